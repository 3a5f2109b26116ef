//! `kubectl cluster-info dump`: objects and logs for debugging, on standard output or as files.

use crate::error::{Error, Result, os_message, text};
use crate::flags::PrintFlags;
use crate::kube::Kube;
use crate::printer::shape::Order;
use crate::printer::{Formats, Output, ordered};
use client::{ListOptions, Query};
use http::Method;
use meta::{Object, Value};
use serde_json::json;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// Directory for the files; empty or `-` is standard output.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub output_directory: String,
    /// Dump all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Dump these namespaces.
    #[arg(long, value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// Time limit until a pod runs.
    #[arg(long, default_value = "20s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub pod_running_timeout: String,
    #[command(flatten)]
    pub print: PrintFlags,
}

/// The resources of a namespace and the names of their files.
const PARTS: [(&str, &str); 7] = [
    ("events", "events"),
    ("replicationcontrollers", "replication-controllers"),
    ("services", "services"),
    ("daemonsets.apps", "daemonsets"),
    ("deployments.apps", "deployments"),
    ("replicasets.apps", "replicasets"),
    ("pods", "pods"),
];

struct Sink<'a> {
    directory: &'a str,
    extension: &'static str,
}

impl Sink<'_> {
    /// The dump may contain secrets: only the owner may read it.
    fn write(&self, k: &Kube, name: &str, extension: &str, content: &str) -> Result {
        if matches!(self.directory, "" | "-") {
            k.out.write(content.as_bytes());
            return Ok(());
        }
        let path = Path::new(self.directory).join(format!("{name}{extension}"));
        let wrong = |e: std::io::Error| Error::Text(format!("open {}: {}", path.display(), os_message(&e)));
        if let Some(parent) = path.parent() {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent);
            made.map_err(|e| Error::Text(format!("mkdir {}: {}", parent.display(), os_message(&e))))?;
        }
        let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        std::io::Write::write_all(&mut file.map_err(wrong)?, content.as_bytes()).map_err(wrong)
    }
}

async fn items(k: &mut Kube, word: &str, namespace: &str) -> Result<(Object, Vec<Object>)> {
    let r = k.resource(word).await?;
    let all = k.api(&r, namespace).await?.list_all(&ListOptions::default()).await?;
    let list = json!({
        "apiVersion": r.group_version(), "kind": format!("{}List", r.kind), "items": all.items,
        "metadata": {"resourceVersion": all.resource_version},
    });
    Ok((Object::from_value(list).unwrap_or_default(), all.items))
}

pub async fn run(a: &Arguments, k: &mut Kube) -> Result {
    let flags = PrintFlags {
        output: if a.print.output.is_empty() { "json".into() } else { a.print.output.clone() },
        ..a.print.clone()
    };
    let output = Output::parse(&flags, Formats::Objects, true)?;
    if matches!(output, Output::Name) {
        return text("list types are not supported by name printing: *v1.NodeList");
    }
    let extension = match flags.output.as_str() {
        "json" => ".json",
        "yaml" => ".yaml",
        _ => ".txt",
    };
    let sink = Sink { directory: &a.output_directory, extension };
    let (nodes, _) = items(k, "nodes", "").await?;
    sink.write(k, "nodes", sink.extension, &ordered(&output, nodes, a.print.show_managed_fields, Order::ByType)?)?;
    let namespaces: Vec<String> = if a.all_namespaces {
        items(k, "namespaces", "").await?.1.iter().map(|n| n.name().to_owned()).collect()
    } else if a.namespaces.is_empty() {
        vec!["kube-system".to_owned(), k.namespace()?.0]
    } else {
        a.namespaces.clone()
    };
    for n in &namespaces {
        check_name(n)?;
        let mut pods = Vec::new();
        for (word, file) in PARTS {
            let (list, all) = items(k, word, n).await?;
            let text = ordered(&output, list, a.print.show_managed_fields, Order::ByType)?;
            sink.write(k, &format!("{n}/{file}"), sink.extension, &text)?;
            if word == "pods" {
                pods = all;
            }
        }
        for p in pods {
            check_name(p.name())?;
            let text = logs(k, &p).await?;
            sink.write(k, &format!("{n}/{}/logs", p.name()), ".txt", &text)?;
        }
    }
    if !matches!(sink.directory, "" | "-") {
        k.println(format!("Cluster info dumped to {}", sink.directory));
    }
    Ok(())
}

/// Checks that the name of an object is safe as the name of a directory: the server must not choose the location.
fn check_name(name: &str) -> Result {
    match meta::names::path_segment(name).is_empty() && !name.is_empty() {
        true => Ok(()),
        false => text(format!("the server named an object {name:?}, which is no name of a directory")),
    }
}

/// Returns the logs of all containers of a pod, one after the other.
async fn logs(k: &mut Kube, pod: &Object) -> Result<String> {
    let r = k.resource("pods").await?;
    let api = k.api(&r, pod.namespace()).await?;
    let client = k.client().await?;
    let mut out = String::new();
    for field in ["initContainers", "containers"] {
        for c in pod.at(&["spec", field]).and_then(Value::as_array).into_iter().flatten() {
            let name = c["name"].as_str().unwrap_or_default();
            let what = format!("logs for container {name} of pod {}/{}", pod.namespace(), pod.name());
            out.push_str(&format!("==== START {what} ====\n"));
            let mut q = Query::default();
            q.add("container", name);
            match client.bytes(api.subresource_request(Method::GET, pod.name(), "log", &q)?).await {
                Ok(b) => out.push_str(&String::from_utf8_lossy(&b)),
                Err(e) => out.push_str(&format!("Request log error: {e}\n")),
            }
            out.push_str(&format!("==== END {what} ====\n"));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, run_with};
    use serde_json::json;

    #[tokio::test]
    async fn dumps_a_namespace_into_files() {
        let dir = tempfile::tempdir().unwrap();
        let empty = || json!({"items": [], "metadata": {"resourceVersion": "5"}});
        let pods =
            json!({"items": [{"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [{"name": "c"}]}}]});
        let mut s = Server::new().on("GET /api/v1/nodes", 200, empty()).on("GET /api/v1/namespaces/n/pods", 200, pods);
        for r in ["events", "replicationcontrollers", "services"] {
            s = s.on(&format!("GET /api/v1/namespaces/n/{r}"), 200, empty());
        }
        for r in ["daemonsets", "deployments", "replicasets"] {
            s = s.on(&format!("GET /apis/apps/v1/namespaces/n/{r}"), 200, empty());
        }
        let s = s.on_bytes("GET /api/v1/namespaces/n/pods/p/log?container=c", 200, b"hello\n".to_vec());
        let to = dir.path().join("d").to_string_lossy().into_owned();
        let line = ["cluster-info", "dump", "--namespaces=n", "--output-directory", &to];
        let expected = (0, format!("Cluster info dumped to {to}\n"), String::new());
        assert_eq!(run_with(&s, &line, "").await, expected);
        let read = |f: &str| std::fs::read_to_string(format!("{to}/{f}")).unwrap();
        assert_eq!(
            read("n/p/logs.txt"),
            "==== START logs for container c of pod n/p ====\nhello\n==== END logs for container c of pod n/p ====\n"
        );
        assert!(read("nodes.json").contains("\"kind\": \"NodeList\""));
        let (code, out, err) = run_with(&s, &["cluster-info", "dump", "--namespaces=n", "-o", "name"], "").await;
        let lists = "error: list types are not supported by name printing: *v1.NodeList\n";
        assert_eq!((code, out.as_str(), err.as_str()), (1, "", lists));
        let (code, out, _) = run_with(&s, &["cluster-info", "dump", "--namespaces=n", "-o", "yaml"], "").await;
        assert!(code == 0 && out.contains("kind: DeploymentList\n") && out.ends_with(" ====\n"), "{out}");
    }
}
