//! The real kubectl in every available version: files beside the one in `PATH` with its name and a version. The newest
//! drives most other tests as well; here each version runs the common commands against the same server.

use super::pod;
use crate::story::{Story, Tool, minor};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

pub fn run(s: &Story) {
    let all = versions();
    if all.is_empty() {
        println!("clients::kubectl: skipped: this machine has no kubectl");
        return;
    }
    // All versions at the same time: objects have the version in their names.
    std::thread::scope(|scope| {
        for (minor, program) in all {
            println!("clients::kubectl: v1.{minor}");
            let k = Kubectl { s, program, minor };
            scope.spawn(move || {
                k.knows_the_server();
                k.config_maps();
                k.watches();
                k.workloads();
            });
        }
    });
}

/// Returns the path of each minor version.
fn versions() -> BTreeMap<u32, PathBuf> {
    let Some(first) = Tool::Kubectl.program().map(|c| PathBuf::from(c.get_program())) else { return BTreeMap::new() };
    let named = |p: &PathBuf| {
        let rest = p.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_prefix("kubectl"));
        let rest = rest.map(|r| r.trim_start_matches(['-', '.', '_', 'v']));
        rest.is_some_and(|r| r.is_empty() || r.starts_with("1."))
    };
    let inside = |d: PathBuf| std::fs::read_dir(d).into_iter().flatten().flatten().map(|f| f.path()).filter(named);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found: Vec<PathBuf> = std::iter::once(first).chain(std::env::split_paths(&path).flat_map(inside)).collect();
    // The one in PATH is usually a link into the directory of the others.
    let homes: BTreeSet<PathBuf> =
        found.iter().filter_map(|p| Some(p.canonicalize().ok()?.parent()?.to_owned())).collect();
    let all = found.into_iter().chain(homes.into_iter().flat_map(inside));
    all.filter_map(|p| Some((minor(&p)?, p))).collect()
}

struct Kubectl<'s> {
    s: &'s Story,
    program: PathBuf,
    minor: u32,
}

impl Kubectl<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(&self.program);
        c.args(["-n", &self.s.ns]).args(args).env("KUBECONFIG", &self.s.cluster.kubeconfig);
        c.env("HOME", &self.s.dir).current_dir(&self.s.dir).stdin(Stdio::null());
        c
    }

    fn transcript(&self, args: &[&str], o: &Output) -> String {
        let (out, stderr) = (String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr));
        format!("v1.{} {args:?}: {}\n{out}{stderr}", self.minor, o.status)
    }

    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let o = self.command(args).output().unwrap();
        assert!(o.status.success(), "{}", self.transcript(args, &o));
        String::from_utf8(o.stdout).unwrap()
    }

    #[track_caller]
    fn fails(&self, args: &[&str], error: &str) {
        let o = self.command(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&o.stderr);
        assert!(o.status.code() == Some(1) && stderr.contains(error), "{error}: {}", self.transcript(args, &o));
    }

    /// Writes a manifest to a file and returns its name.
    fn file(&self, name: &str, object: &Value) -> String {
        let name = format!("{name}-{}.json", self.minor);
        self.s.file(&name, &object.to_string());
        name
    }

    fn knows_the_server(&self) {
        let v: Value = serde_json::from_str(&self.ok(&["version", "-o", "json"])).unwrap();
        assert_eq!(v["serverVersion"]["minor"], "36", "{v}");
        assert!(self.ok(&["api-resources", "--api-group=apps"]).contains("deployments"));
        assert!(self.ok(&["explain", "deployment.spec.template.spec.containers.image"]).contains("FIELD: image"));
        assert_eq!(self.ok(&["auth", "can-i", "create", "pods"]), "yes\n");
    }

    fn config_maps(&self) {
        let name = &format!("c{}", self.minor);
        self.ok(&["create", "configmap", name, "--from-literal=a=1"]);
        self.fails(&["create", "configmap", name], "already exists");
        self.fails(&["get", "configmap", "none"], "NotFound");
        self.ok(&["patch", "configmap", name, "-p", r#"{"data":{"b":"2"}}"#]);
        self.ok(&["patch", "configmap", name, "--type=merge", "-p", r#"{"data":{"a":null}}"#]);
        self.ok(&["patch", "configmap", name, "--type=json", "-p", r#"[{"op":"add","path":"/data/c","value":"3"}]"#]);
        assert_eq!(self.ok(&["get", "configmap", name, "-o", "jsonpath={.data}"]), r#"{"b":"2","c":"3"}"#);
        let map =
            |v: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"b": v}});
        let file = &self.file("map", &map("9"));
        let apply = ["apply", "--server-side", "--field-manager=other", "-f", file];
        self.fails(&apply, "conflict with \"kubectl-patch\"");
        self.ok(&[&apply[..], &["--force-conflicts"]].concat());
        assert_eq!(self.ok(&["get", "configmap", name, "-o", "jsonpath={.data.b}"]), "9");
        let strict = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "dat": {}});
        let file = &self.file("strict", &strict);
        self.fails(&["apply", "--server-side", "-f", file], "dat");
    }

    fn watches(&self) {
        let name = &format!("c{}", self.minor);
        let args = ["get", "configmap", name, "--watch", "-o", "jsonpath={.data.w}{'.'}{'\\n'}"];
        let mut watching = self.command(&args).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert_eq!(lines.next().as_deref(), Some("."), "as it is at first");
        self.ok(&["patch", "configmap", name, "-p", r#"{"data":{"w":"seen"}}"#]);
        assert_eq!(lines.next().as_deref(), Some("seen."));
        watching.kill().unwrap();
        watching.wait().unwrap();
        self.ok(&["delete", "configmap", name]);
        self.fails(&["get", "configmap", name], "NotFound");
    }

    fn workloads(&self) {
        let name = &format!("web{}", self.minor);
        let deployment = |a: &str| {
            let mut spec = pod(self.s);
            spec["containers"][0]["env"][0]["value"] = a.into();
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
                "replicas": 1, "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}}, "spec": spec}}})
        };
        let target = &format!("deployment/{name}");
        self.ok(&["apply", "-f", &self.file("web", &deployment("1"))]);
        self.ok(&["rollout", "status", target, "--timeout=60s"]);
        let ready = self.ok(&["get", target]);
        assert!(ready.starts_with("NAME ") && ready.contains("1/1"), "{ready}");
        assert!(self.ok(&["logs", target]).starts_with("begun\n"));
        assert_eq!(self.ok(&["exec", target, "--", "sh", "-c", "echo $A"]), "1\n");
        let o = self.command(&["exec", target, "--", "sh", "-c", "exit 7"]).output().unwrap();
        assert_eq!(o.status.code(), Some(7), "{}", self.transcript(&["exec"], &o));
        self.ok(&["apply", "-f", &self.file("web", &deployment("2"))]);
        self.ok(&["rollout", "status", target, "--timeout=60s"]);
        assert_eq!(self.ok(&["exec", target, "--", "sh", "-c", "echo $A"]), "2\n");
        self.ok(&["rollout", "undo", target]);
        self.ok(&[
            "wait",
            target,
            "--for=jsonpath={.spec.template.spec.containers[0].env[0].value}=1",
            "--timeout=60s",
        ]);
        self.ok(&["label", target, "seen=yes"]);
        self.ok(&["scale", target, "--replicas=0"]);
        self.ok(&["wait", target, "--for=jsonpath={.status.observedGeneration}=4", "--timeout=60s"]);
        assert!(self.ok(&["describe", target]).contains("seen=yes"));
        self.ok(&["delete", target]);
    }
}
