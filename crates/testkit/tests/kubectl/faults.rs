//! Faults while a command deletes and recreates an object: afterwards the old or the new object exists, and the command
//! exits with 0 only if it is the new one. If the server stays unreachable, the old object is in a file that the command
//! names.

use crate::shell::{run, server};
use async_trait::async_trait;
use bytes::Bytes;
use client::{Body, Error, Transport};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use testkit::Cluster;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The connection fails: the server does not receive the request.
    Unreached,
    /// The server executes the request, and the response is lost.
    Lost,
    /// The server executes the request, and reports a timeout.
    TimedOut,
    /// The server rejects the request.
    Forbidden,
    /// The server is unreachable from this request on.
    Gone,
    /// Before this request, another client writes the last object of the command.
    Changed,
    /// Before this request, another client creates the last object of the command if it does not exist.
    Made,
}

const FAULTS: [Fault; 7] =
    [Fault::Unreached, Fault::Lost, Fault::TimedOut, Fault::Forbidden, Fault::Gone, Fault::Changed, Fault::Made];

/// Counts requests except discovery, and lets one fail.
struct Faulty<T> {
    server: T,
    count: Arc<AtomicUsize>,
    at: usize,
    fault: Fault,
    /// The path of a collection, and an object in it as another client writes it.
    others: (&'static str, Value),
}

impl<T: Transport> Faulty<T> {
    async fn write_as_other(&self, method: Method) -> Result<(), Error> {
        let (path, o) = &self.others;
        let name = o["metadata"]["name"].as_str().unwrap();
        let path = if method == Method::POST { (*path).to_owned() } else { format!("{path}/{name}") };
        let r = Request::builder().method(method).uri(path).header("content-type", "application/json");
        self.server.send(r.body(o.to_string().into()).unwrap()).await.map(drop)
    }
}

fn connection_error() -> Box<dyn std::error::Error + Send + Sync> {
    "connection reset by peer".into()
}

fn status(code: u16, reason: &str) -> Response<Body> {
    let text = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": reason});
    let body = Full::new(Bytes::from(text.to_string())).map_err(|e| match e {}).boxed_unsync();
    Response::builder().status(code).header("content-type", "application/json").body(body).unwrap()
}

#[async_trait]
impl<T: Transport> Transport for Faulty<T> {
    async fn send(&self, r: Request<Bytes>) -> Result<Response<Body>, Error> {
        let path = r.uri().path();
        if matches!(path, "/api" | "/apis") || path.starts_with("/openapi") {
            return self.server.send(r).await;
        }
        let n = self.count.fetch_add(1, Ordering::SeqCst);
        if n != self.at && !(n > self.at && self.fault == Fault::Gone) {
            return self.server.send(r).await;
        }
        match self.fault {
            Fault::Unreached | Fault::Gone => {
                Err(Error::Connect { to: "the server".into(), source: connection_error() })
            }
            Fault::Forbidden => Ok(status(403, "Forbidden")),
            Fault::Changed => {
                self.write_as_other(Method::PUT).await?;
                self.server.send(r).await
            }
            Fault::Made => {
                self.write_as_other(Method::POST).await?;
                self.server.send(r).await
            }
            Fault::Lost => {
                self.server.send(r).await?;
                Err(Error::Send(connection_error()))
            }
            Fault::TimedOut => {
                self.server.send(r).await?;
                Ok(status(504, "Timeout"))
            }
        }
    }
}

/// A command that deletes and creates objects.
struct Case {
    line: &'static [&'static str],
    /// Paths of collections, with the objects that exist before the command.
    before: Vec<(&'static str, Value)>,
    input: String,
    /// Whether an object is the new one.
    is_new: fn(&Value) -> bool,
}

fn config_map(name: &str, v: &str, immutable: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {"v": v}, "immutable": immutable})
}

fn binding(role: &str) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b", "namespace": "default"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]})
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";

fn cases() -> Vec<Case> {
    let pair = |v: &str, immutable| ["a", "b"].map(|n| config_map(n, v, immutable));
    let text = |all: [Value; 2]| all.map(|o| format!("---\n{o}\n")).concat();
    let is_new = |o: &Value| o["data"]["v"] == "new";
    let replace = |line| Case {
        line,
        before: pair("old", false).map(|o| (MAPS, o)).into(),
        input: text(pair("new", false)),
        is_new,
    };
    vec![
        replace(&["replace", "--force", "-f", "-"]),
        replace(&["replace", "--force", "--grace-period=0", "-f", "-"]),
        Case {
            line: &["apply", "--force", "-f", "-"],
            before: pair("old", true).map(|o| (MAPS, o)).into(),
            input: text(pair("new", true)),
            is_new,
        },
        Case {
            line: &["auth", "reconcile", "-f", "-"],
            before: vec![(BINDINGS, binding("old"))],
            input: binding("new").to_string(),
            is_new: |o| o["roleRef"]["name"] == "new",
        },
    ]
}

/// Runs a command on a new cluster where request `at`, counted from 0, fails. Returns the exit code, the output and the
/// number of requests.
async fn attempt(case: &Case, at: usize, fault: Fault) -> (u8, String, usize) {
    let cluster = Cluster::start(7).await;
    for (path, o) in &case.before {
        assert_eq!(cluster.call("POST", path, o.clone()).await.code, 201);
    }
    let directory = tempfile::tempdir().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let (path, mut write_as_other) = case.before.last().cloned().unwrap();
    write_as_other["metadata"]["labels"] = json!({"written": "by-another"});
    let faulty = Faulty { server: server(&cluster), count: count.clone(), at, fault, others: (path, write_as_other) };
    let (code, output) = run(&cluster, faulty, case.line, &case.input, directory.path()).await;
    let context = format!("{:?}, {fault:?} at request {at}: exit {code}\n{output}", case.line);
    let mut all_new = true;
    for (path, o) in &case.before {
        let name = o["metadata"]["name"].as_str().unwrap();
        let response = cluster.call("GET", &format!("{path}/{name}"), Value::Null).await;
        if response.code == 200 {
            let by_another = response.body["metadata"]["labels"]["written"] == "by-another";
            all_new &= (case.is_new)(&response.body) || by_another && fault == Fault::Changed;
            continue;
        }
        assert_eq!(fault, Fault::Gone, "{name} is lost: {context}");
        all_new = false;
        let files = std::fs::read_dir(directory.path()).unwrap().map(|f| f.unwrap().path());
        let mut files = files.filter(|f| output.contains(&f.display().to_string()));
        let is_it = |f: std::path::PathBuf| std::fs::read_to_string(f).unwrap().contains(&format!("name: {name}\n"));
        assert!(files.any(is_it), "{name} is in no file: {context}");
    }
    // The object may exist although the command failed: a lost response is an error.
    assert!(code != 0 || all_new, "it says that all went well: {context}");
    (code, output, count.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn no_fault_loses_an_object() {
    for case in cases() {
        let (code, output, requests) = attempt(&case, usize::MAX, Fault::Lost).await;
        assert_eq!(code, 0, "{output}");
        assert!(requests >= 5, "{:?} made {requests} requests", case.line);
        for fault in FAULTS {
            for at in 0..requests {
                attempt(&case, at, fault).await;
            }
        }
    }
}
