//! `kubectl run`: runs an image in a new pod.

use super::attach::{Options, PreviousLog, join};
use super::create::{WriteFlags, submit};
use super::delete::cascade;
use super::exec::detach;
use crate::error::{Error, Result, text};
use crate::flags::{DryRunStrategy, FileFlags, labels};
use crate::kube::{Kube, POLL_INTERVAL};
use crate::printer::Printer;
use crate::resource::Info;
use crate::resource::last_applied::annotate_generated;
use client::{DeleteOptions, Patch, WatchEvent, WatchOptions};
use futures::StreamExt as _;
use meta::{Map, Object, Value};
use serde_json::json;
use std::time::Duration;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// Name of the pod, and arguments of the program.
    pub words: Vec<String>,
    #[arg(skip)]
    pub name: String,
    /// Image of the container.
    #[arg(long, required = true)]
    pub image: String,
    /// Environment variable NAME=VALUE; may be repeated.
    #[arg(long)]
    pub env: Vec<String>,
    /// Labels KEY=VALUE,….
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub labels: String,
    /// Annotation KEY=VALUE; may be repeated.
    #[arg(long)]
    pub annotations: Vec<String>,
    /// Container port.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub port: String,
    /// Restart policy: Always, OnFailure or Never.
    #[arg(long, default_value = "Always", hide_default_value = true)]
    pub restart: String,
    /// Take the words after `--` as the command instead of its arguments.
    #[arg(long)]
    pub command: bool,
    /// Pull policy of the image: Always, IfNotPresent or Never.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub image_pull_policy: String,
    /// Run a privileged container.
    #[arg(long)]
    pub privileged: bool,
    #[command(flatten)]
    pub overrides: Overrides,
    /// Pass standard input to the container.
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Allocate a terminal.
    #[arg(short = 't', long)]
    pub tty: bool,
    /// Attach to the container once it runs; the default with -i.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub attach: Option<String>,
    /// Delete the pod at the end.
    #[arg(long)]
    pub rm: bool,
    /// Do not wait for the end of the container.
    #[arg(long)]
    pub leave_stdin_open: bool,
    /// Also create a service for the port.
    #[arg(long)]
    pub expose: bool,
    /// Keys that detach from the session and leave the container running: characters and ctrl-CHARACTER, separated by
    /// commas.
    #[arg(long, default_value = detach::KEYS, hide_default_value = true)]
    pub detach_keys: String,
    #[command(flatten)]
    pub replaced: DeletionFlags,
    /// Print only output of the container.
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Time limit until the pod runs.
    #[arg(long, default_value = "1m0s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub pod_running_timeout: String,
    /// Arguments of the container.
    #[arg(last = true)]
    pub args: Vec<String>,
    #[command(flatten)]
    pub write: WriteFlags,
}

/// Overrides for an object that was built from arguments.
#[derive(clap::Args, Clone, Debug)]
pub struct Overrides {
    /// Patch for the object, in JSON.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub overrides: String,
    /// How to apply --overrides: merge, strategic or json.
    #[arg(long, default_value = "merge", hide_default_value = true)]
    pub override_type: String,
}

impl Overrides {
    /// Applies the overrides to a generated object.
    pub fn apply(&self, o: Value) -> Result<Value> {
        if self.overrides.is_empty() {
            return Ok(o);
        }
        let Ok(patch) = serde_json::from_str::<Value>(&self.overrides) else { return text("Invalid JSON Patch") };
        let patch = match self.override_type.as_str() {
            "merge" => Patch::Merge(patch),
            "strategic" => Patch::Strategic(patch),
            "json" => Patch::Json(patch),
            other => return text(format!("invalid override type: {other}")),
        };
        let o = Object::from_value(o).unwrap_or_default();
        let o = super::patch::locally(&o, &patch)?;
        let gvk = o.gvk().unwrap_or_default();
        let Some(schema) = kinds::catalog().schema_of(&gvk) else {
            return text(format!(
                "no kind {:?} is registered for version {:?} in scheme \"pkg/scheme/scheme.go:28\"",
                gvk.kind,
                gvk.api_version()
            ));
        };
        // Fields that the type lacks are dropped, as in Go.
        let mut v = o.into_value();
        schema::typed(&mut v, schema).map_err(|e| Error::Text(e.to_string()))?;
        Ok(v)
    }
}

/// Deletion flags. Upstream's `run` has all of them; with `--rm` it sets time limit and force itself.
#[derive(clap::Args, Clone, Debug)]
pub struct DeletionFlags {
    #[command(flatten)]
    pub files: FileFlags,
    /// With --rm, how to delete dependents: background, foreground or orphan.
    #[arg(long, default_value = "background", num_args = 0..=1, require_equals = true, default_missing_value = "background", hide_default_value = true)]
    pub cascade: String,
    /// Accepted without effect.
    #[arg(long)]
    pub force: bool,
    /// Accepted without effect.
    #[arg(long, default_value = "-1", hide_default_value = true)]
    pub grace_period: i64,
    /// Accepted without effect.
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub timeout: String,
    /// Accepted without effect.
    #[arg(long)]
    pub wait: bool,
}

fn annotations(all: &[String]) -> Result<Map<String, Value>> {
    let pair = |a: &String| a.split_once('=').filter(|(k, _)| !k.is_empty()).map(|(k, v)| (k.to_owned(), v.into()));
    let given: Vec<&String> = all.iter().filter(|a| !a.is_empty()).collect();
    let invalid: Vec<&str> = given.iter().filter(|a| pair(a).is_none()).map(|a| a.as_str()).collect();
    if !invalid.is_empty() {
        return text(format!("invalid annotations format: {}", invalid.join(", ")));
    }
    Ok(given.into_iter().filter_map(pair).collect())
}

pub async fn run(mut a: Arguments, k: &mut Kube) -> Result {
    if !a.words.is_empty() {
        a.name = a.words.remove(0);
        a.args.splice(0..0, a.words.drain(..));
    }
    if a.name.is_empty() {
        return text("NAME is required for run\nSee 'kubectl run -h' for help and examples");
    }
    if a.image.is_empty() {
        return text("--image is required");
    }
    cascade(&a.replaced.cascade)?;
    let dry = a.write.dry.strategy()?;
    let attached = match &a.attach {
        Some(given) => crate::flags::go_bool(given).map_err(Error::Text)?,
        None => a.stdin,
    };
    if a.tty && !a.stdin {
        return text(
            "-i/--stdin is required for containers with -t/--tty=true\nSee 'kubectl run -h' for help and examples",
        );
    }
    if !a.image.is_empty() && !is_reference(&a.image) {
        return text(format!("Invalid image name {:?}: invalid reference format", a.image));
    }
    if a.expose && a.port.is_empty() {
        return text("--port must be set when exposing a service\nSee 'kubectl run -h' for help and examples");
    }
    if a.rm && !attached {
        return text("--rm should only be used for attached containers\nSee 'kubectl run -h' for help and examples");
    }
    if attached {
        crate::flags::running_timeout(&a.pod_running_timeout, "run")?;
    }
    if attached && dry != DryRunStrategy::None {
        return text(
            "--dry-run=[server|client] can't be used with attached containers options (--attach, --stdin, or --tty)\nSee 'kubectl run -h' for help and examples",
        );
    }
    let labels = match a.labels.as_str() {
        "" => json!({"run": a.name}),
        l => labels(l)?.into(),
    };
    let mut c = json!({"name": a.name, "image": a.image, "resources": {}});
    if !a.args.is_empty() {
        c[if a.command { "command" } else { "args" }] = a.args.clone().into();
    }
    // A single empty value is no variable: it is the flag's default.
    let env: &[String] = if a.env.len() == 1 && a.env[0].is_empty() { &[] } else { &a.env };
    if !env.is_empty() {
        let mut all = Vec::new();
        for e in env {
            match e.split_once('=') {
                Some((n, v)) if meta::names::env_var_name(n).is_empty() => {
                    all.push(if v.is_empty() { json!({"name": n}) } else { json!({"name": n, "value": v}) });
                }
                _ => return text(format!("invalid env: {e}")),
            }
        }
        c["env"] = all.into();
    }
    if !a.port.is_empty() {
        let n: i64 =
            a.port.parse().map_err(|_| Error::Text(format!("strconv.Atoi: parsing {:?}: invalid syntax", a.port)))?;
        c["ports"] = json!([{"containerPort": n}]);
    }
    if !matches!(a.image_pull_policy.as_str(), "" | "Always" | "IfNotPresent" | "Never") {
        return text(format!(
            "invalid image pull policy: {}\nSee 'kubectl run -h' for help and examples",
            a.image_pull_policy
        ));
    }
    if !a.image_pull_policy.is_empty() {
        c["imagePullPolicy"] = a.image_pull_policy.clone().into();
    }
    if a.privileged {
        c["securityContext"] = json!({"privileged": true});
    }
    if a.stdin {
        c["stdin"] = true.into();
        c["stdinOnce"] = true.into();
    }
    if a.tty {
        c["tty"] = true.into();
    }
    if !matches!(a.restart.as_str(), "Always" | "OnFailure" | "Never") {
        return text(format!("invalid restart policy: {}\nSee 'kubectl run -h' for help and examples", a.restart));
    }
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": a.name, "labels": labels},
        "spec": {"containers": [c], "dnsPolicy": "ClusterFirst", "restartPolicy": a.restart}, "status": {},
    });
    let annotations = annotations(&a.annotations)?;
    if !annotations.is_empty() {
        pod["metadata"]["annotations"] = annotations.into();
    }
    pod = a.overrides.apply(pod)?;
    let (namespace, explicit) = k.namespace()?;
    let mut o = Object::from_value(pod).unwrap_or_default();
    if explicit {
        o.set_namespace(&namespace);
    }
    k.record(&mut o);
    if a.write.save_config && dry != DryRunStrategy::Client {
        annotate_generated(&mut o);
    }
    let mut printer = Printer::new(&a.write.print, dry)?.typed();
    let labels = o.at(&["metadata", "labels"]).cloned().unwrap_or_default();
    let mut made = vec![submit(k, &a.write, o, &namespace).await?];
    if a.expose {
        let mut service = service(&a, &labels)?;
        if explicit {
            service.set_namespace(&namespace);
        }
        k.record(&mut service);
        if a.write.save_config && dry != DryRunStrategy::Client {
            annotate_generated(&mut service);
        }
        made.push(submit(k, &a.write, service, &namespace).await?);
    }
    if !attached {
        // The service is reported first.
        if let [_, service] = made.as_slice() {
            printer.print(k, service, "created")?;
            if matches!(a.write.print.output.as_str(), "yaml") {
                k.println("---");
            }
        }
        return made.iter().take(1).try_for_each(|o| printer.print(k, o, "created"));
    }
    let done = attach_and_wait(k, &a, &made[0]).await;
    if a.rm {
        for o in &made {
            remove(k, &a, o).await?;
        }
    }
    done
}

/// Whether a text is an image reference: a host, a path in lower case, a tag and a digest.
fn is_reference(s: &str) -> bool {
    const HOST: &str = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?";
    const PART: &str = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*";
    let pattern = format!(
        r"^(?:{HOST}/)?{PART}(?:/{PART})*(?::\w[\w.-]{{0,127}})?(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{{32,}})?$"
    );
    regex::Regex::new(&pattern).is_ok_and(|r| r.is_match(s))
}

fn service(a: &Arguments, labels: &Value) -> Result<Object> {
    let port: i64 = a.port.parse().map_err(|_| Error::Text("--port must be a number".into()))?;
    let mut v = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": a.name},
        "spec": {"ports": [{"port": port, "protocol": "TCP", "targetPort": port}], "selector": labels},
        "status": {"loadBalancer": {}},
    });
    // The service gets only the labels of the flag, while its selector gets those of the pod.
    if !a.labels.is_empty() {
        v["metadata"]["labels"] = labels.clone();
    }
    Ok(Object::from_value(v).unwrap_or_default())
}

/// Attaches to the pod and waits for its end. A failing program sets the exit code of kubectl.
async fn attach_and_wait(k: &mut Kube, a: &Arguments, pod: &Object) -> Result {
    let resource = k.resource("pods").await?;
    let (name, namespace) = (pod.name().to_owned(), pod.namespace().to_owned());
    let info = Info { resource, namespace, name, source: String::new(), object: Some(pod.clone()) };
    let limit = crate::flags::duration("pod-running-timeout", &a.pod_running_timeout)?.unwrap_or(Duration::MAX);
    let started = |o: &Object| {
        let ready = o
            .at(&["status", "conditions"])
            .and_then(Value::as_array)
            .is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"));
        ready || matches!(o.str_at(&["status", "phase"]), Some("Succeeded" | "Failed"))
    };
    wait_for_pod(k, &info, limit, started).await?;
    let options = Options { stdin: a.stdin, tty: a.tty, quiet: a.quiet, detach_keys: a.detach_keys.clone() };
    join(k, info.clone(), &a.name, &options, PreviousLog::Print).await?;
    if a.leave_stdin_open || a.restart == "Always" {
        return Ok(());
    }
    let onfailure = a.restart == "OnFailure";
    let ended = |o: &Object| match o.str_at(&["status", "phase"]) {
        Some("Succeeded") => true,
        Some("Failed") => !onfailure,
        _ => false,
    };
    let o = wait_for_pod(k, &info, limit, ended).await?;
    let (ns, name) = (&info.namespace, &info.name);
    if o.str_at(&["status", "phase"]) == Some("Succeeded") {
        return Ok(());
    }
    let states = o.at(&["status", "containerStatuses"]).and_then(Value::as_array);
    let end = states.and_then(|s| s.first()).map(|s| s["state"]["terminated"].clone()).unwrap_or_default();
    match end["exitCode"].as_i64().and_then(|c| u8::try_from(c).ok()).filter(|c| *c != 0) {
        Some(code) => {
            let s = |f: &str| end[f].as_str().unwrap_or_default().to_owned();
            let error = Error::Bare(format!("pod {ns}/{name} terminated ({})\n{}", s("reason"), s("message")));
            Err(Error::Code { code, error: Box::new(error) })
        }
        None => text(format!("pod {ns}/{name} failed with unknown exit code")),
    }
}

/// Waits until the pod fulfils a condition.
async fn wait_for_pod(k: &mut Kube, i: &Info, limit: Duration, fits: impl Fn(&Object) -> bool) -> Result<Object> {
    let api = k.api(&i.resource, &i.namespace).await?;
    let options = WatchOptions { field_selector: format!("metadata.name={}", i.name), ..WatchOptions::default() };
    let waiting = async {
        loop {
            let now = api.get(&i.name).await?;
            if fits(&now) {
                return Ok(now);
            }
            let mut events = std::pin::pin!(api.watch(&options).await?);
            while let Some(e) = events.next().await {
                match e {
                    Ok(WatchEvent::Added(o) | WatchEvent::Modified(o)) if fits(&o) => return Ok(o),
                    Ok(WatchEvent::Deleted(_)) => return text(format!("pods {:?} not found", i.name)),
                    Ok(_) => {}
                    Err(e) if e.is_expired() || e.is_transient() => break,
                    Err(e) => return Err(e.into()),
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    match tokio::time::timeout(limit, crate::shell::interruptible(waiting)).await {
        Ok(done) => done,
        Err(_) => text("timed out waiting for the condition"),
    }
}

async fn remove(k: &mut Kube, a: &Arguments, o: &Object) -> Result {
    let Some(r) = k.resource_of(&o.gvk().unwrap_or_default()).await? else { return Ok(()) };
    let options = DeleteOptions::propagation(cascade(&a.replaced.cascade)?);
    match k.api(&r, o.namespace()).await?.delete(o.name(), &options).await {
        Err(e) if e.is_not_found() => return Ok(()),
        done => done?,
    };
    if !a.quiet {
        k.println(format!("{} {:?} deleted from {} namespace", r.group_kind(), o.name(), o.namespace()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use futures::SinkExt;
    use serde_json::json;
    use tokio_tungstenite::tungstenite::Message;

    #[tokio::test]
    async fn runs_a_pod_to_its_end() {
        let path = "/api/v1/namespaces/default/pods";
        let pod = |phase: &str, state| {
            json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [{"name": "p"}]},
                "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [{"name": "p", "state": state}]}})
        };
        let running = pod("Running", json!({"running": {}}));
        let s = Server::new()
            .on(&format!("POST {path}?fieldManager=kubectl-run&fieldValidation=Strict"), 201, running.clone())
            .on(&format!("GET {path}/p"), 200, running.clone())
            .on(&format!("GET {path}/p"), 200, running)
            .on(&format!("GET {path}/p"), 200, pod("Failed", json!({"terminated": {"exitCode": 3, "reason": "Error"}})))
            .on(&format!("DELETE {path}/p"), 200, json!({}))
            .on_bytes(&format!("GET {path}/p/log?container=p"), 200, b"earlier\n".to_vec())
            .on_upgrade(|mut ws| {
                Box::pin(async move {
                    ws.send(Message::Binary(b"\x01hello\n".to_vec().into())).await.unwrap();
                    ws.send(Message::Binary(b"\x03{\"status\":\"Success\"}".to_vec().into())).await.unwrap();
                    ws.close(None).await.unwrap();
                })
            });
        assert_eq!(
            snapshot(&s, "run p --image=i -i -q --restart=Never", "").await,
            "earlier\nhello\n! pod default/p terminated (Error)\nexit 3\n"
        );
        for (line, expected) in [
            ("run --image=i", "NAME is required for run"),
            ("run p", "required flag(s) \"image\" not set"),
            ("run p --image=i --rm", "--rm should only be used for attached containers"),
            ("run p --image=i -t", "-i/--stdin is required for containers with -t/--tty=true"),
            ("run p --image=i --expose", "--port must be set when exposing a service"),
            (
                "run p --image=i -i --dry-run=client",
                "--dry-run=[server|client] can't be used with attached containers options (--attach, --stdin, or --tty)",
            ),
        ] {
            assert_eq!(
                snapshot(&s, line, "").await,
                {
                    let see = if expected.starts_with("required") {
                        ""
                    } else {
                        "! See 'kubectl run -h' for help and examples\n"
                    };
                    format!("! error: {expected}\n{see}exit 1\n")
                },
                "{line}"
            );
        }
        let env = "run p --image=i --env= --dry-run=client -o jsonpath={.spec.containers[0].env}";
        assert_eq!(snapshot(&s, env, "").await, "");
        let output = snapshot(&s, "run p --image=i --port=80 --expose --dry-run=client", "").await;
        assert_eq!(output, "service/p created (dry run)\npod/p created (dry run)\n");
        let line = "run p --image=i --port=80 --expose --dry-run=client -n other -o jsonpath={.metadata.namespace}";
        assert_eq!(snapshot(&s, line, "").await, "otherother");
    }
}
