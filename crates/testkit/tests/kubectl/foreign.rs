//! The same commands against servers that behave as kube-apiserver may and ours does not by default: the output of kubectl
//! is the same.

use crate::shell::{run, server};
use async_trait::async_trait;
use bytes::Bytes;
use client::{Body, Error, Transport};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Mutex;
use testkit::Cluster;

/// How a server deviates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Ours,
    /// Every write validates strictly, and creations with null fields are rejected.
    Strict,
    /// Pages have two objects, whatever limit is requested.
    SmallPages,
    /// Discovery as before v1.26: a document per version.
    OldDiscovery,
    /// The server supports neither tables nor partial metadata.
    NoTables,
    /// Each request gets 429 the first time.
    Busy,
    /// Watches end after one second.
    ShortWatches,
}

const OTHERS: [Manner; 6] =
    [Manner::Strict, Manner::SmallPages, Manner::OldDiscovery, Manner::NoTables, Manner::Busy, Manner::ShortWatches];

struct Foreign<T> {
    server: T,
    manner: Manner,
    /// Requests that got 429.
    seen: Mutex<HashSet<String>>,
}

fn response(code: u16, body: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(body.to_string())).map_err(|e| match e {}).boxed_unsync();
    Response::builder().status(code).header("content-type", "application/json").body(body).unwrap()
}

fn error_response(code: u16, reason: &str, message: &str) -> Response<Body> {
    response(
        code,
        &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": message}),
    )
}

fn parameters(uri: &Uri) -> Vec<(String, String)> {
    let pairs = uri.query().unwrap_or_default().split('&').filter(|p| !p.is_empty());
    pairs.map(|p| p.split_once('=').unwrap_or((p, ""))).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

fn with(uri: &Uri, name: &str, value: &str) -> Uri {
    let mut all = parameters(uri);
    all.retain(|(k, _)| k != name);
    all.push((name.to_owned(), value.to_owned()));
    let query: Vec<String> = all.iter().map(|(k, v)| format!("{k}={v}")).collect();
    format!("{}?{}", uri.path(), query.join("&")).parse().unwrap()
}

fn has_null(v: &Value) -> bool {
    match v {
        Value::Null => true,
        Value::Array(all) => all.iter().any(has_null),
        // Go's types write nulls in an empty status.
        Value::Object(m) => m.iter().any(|(k, v)| k != "status" && has_null(v)),
        _ => false,
    }
}

#[async_trait]
impl<T: Transport> Transport for Foreign<T> {
    async fn send(&self, mut r: Request<Bytes>) -> Result<Response<Body>, Error> {
        let has = |name: &str| parameters(r.uri()).iter().any(|(k, _)| k == name);
        let writes = matches!(*r.method(), Method::POST | Method::PUT | Method::PATCH);
        let accept = r.headers().get(ACCEPT).map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default();
        match self.manner {
            Manner::Ours => {}
            Manner::Strict => {
                if writes {
                    *r.uri_mut() = with(r.uri(), "fieldValidation", "Strict");
                }
                if r.method() == Method::POST
                    && r.headers().get(CONTENT_TYPE).is_some_and(|t| t == "application/json")
                    && has_null(&serde_json::from_slice(r.body()).unwrap())
                {
                    return Ok(error_response(400, "BadRequest", "a null"));
                }
            }
            Manner::SmallPages if has("limit") => *r.uri_mut() = with(r.uri(), "limit", "2"),
            Manner::OldDiscovery if matches!(r.uri().path(), "/api" | "/apis") => {
                r.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
            }
            Manner::NoTables if accept.contains("as=Table") || accept.contains("as=PartialObjectMetadata") => {
                r.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
            }
            Manner::Busy => {
                let line = format!("{} {} {}", r.method(), r.uri(), String::from_utf8_lossy(r.body()));
                if self.seen.lock().unwrap().insert(line) {
                    let mut r = error_response(429, "TooManyRequests", "please try again later");
                    r.headers_mut().insert("retry-after", HeaderValue::from_static("0"));
                    return Ok(r);
                }
            }
            Manner::ShortWatches if has("watch") => *r.uri_mut() = with(r.uri(), "timeoutSeconds", "1"),
            _ => {}
        }
        self.server.send(r).await
    }
}

const FILE: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: one, labels: {app: x}}
data: {a: "1"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: two, labels: {app: x}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: three, labels: {app: z}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i, ports: [{containerPort: 80}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{port: 80}], selector: {app: web}}
---
apiVersion: v1
kind: Node
metadata: {name: node-1}
"#;

/// Every kind of command that contacts a server and needs no controller.
const STEPS: &[&str] = &[
    "create namespace other",
    "create -n other configmap far --from-literal=a=b",
    "apply -f -",
    "apply -f -",
    "apply --server-side --force-conflicts -f -",
    "diff -f -",
    "get configmaps",
    "get configmaps -A -o wide --show-labels",
    "get all",
    "get cm -l app=x -o name",
    "get cm,deploy,svc -o json",
    "get cm --sort-by=.metadata.name -o custom-columns=N:.metadata.name",
    "get cm one -o jsonpath={.data.a}",
    "get cm nothing",
    "get nonsense",
    "get cm --chunk-size=1",
    "describe cm one",
    "describe deployment web",
    "describe svc web",
    "label cm --all new=label",
    "label cm one new-",
    "annotate cm -l app=x note=text",
    "patch cm one -p {\"data\":{\"a\":\"2\"}}",
    "patch deploy web --type=json -p [{\"op\":\"replace\",\"path\":\"/spec/replicas\",\"value\":3}]",
    "scale deploy web --replicas=2",
    "set image deploy/web c=other",
    "set env deploy/web A=b",
    "set resources deploy/web --limits=cpu=1",
    "set serviceaccount deploy web default",
    "autoscale deploy web --max=3",
    "expose deploy web --name=more --port=81",
    "rollout pause deploy web",
    "rollout resume deploy web",
    "rollout restart deploy web",
    "create secret generic s --from-literal=k=v",
    "create role r --verb=get --resource=pods,configmaps",
    "create rolebinding rb --role=r --user=jane",
    "create quota q --hard=pods=3",
    "create deployment made --image=i --replicas=1",
    "create service clusterip plain --tcp=80",
    "create ingress i --rule=a.example.com/=web:80",
    "create job j --image=i -- true",
    "create cronjob cj --image=i --schedule=@daily",
    "create pdb p --selector=app=web --min-available=1",
    "create priorityclass high --value=10",
    "create serviceaccount robot",
    "run alone --image=i",
    "logs alone",
    "rollout history deploy web",
    "rollout undo deploy web",
    "rollout status deploy web --timeout=2s",
    "cordon node-1",
    "taint node node-1 a=b:NoSchedule",
    "drain node-1 --force --ignore-daemonsets",
    "uncordon node-1",
    "describe node node-1",
    "top nodes",
    "get cm one --watch --request-timeout=2s",
    "get cm --watch-only --request-timeout=2s -o name",
    "create token robot --audience=a --duration=10m --bound-object-kind=Pod --bound-object-name=nobody",
    "label ns default a=b --overwrite --list",
    "annotate cm one note- --dry-run=server",
    "set selector svc web app=other",
    "set subject rolebinding rb --user=joe",
    "patch cm one --subresource=status --type=merge -p {}",
    "delete pod alone --now --wait=false",
    "wait cm/one --for=jsonpath={.data.a}=2 --timeout=5s",
    "wait cm/one --for=jsonpath={.data.a}=9 --timeout=3s",
    "auth can-i create pods",
    "auth can-i --list",
    "auth whoami",
    "api-resources",
    "api-versions",
    "explain deployment.spec.replicas",
    "cluster-info",
    "version",
    "events",
    "apply view-last-applied cm one",
    "apply set-last-applied --create-annotation -f -",
    "replace -f -",
    "replace --force -f -",
    "get --raw /version",
    "delete cm -l app=z",
    "delete cm,secret --all",
    "delete ns other --wait=false",
    "delete deploy,svc,role,rolebinding,quota,ingress,pdb,hpa --all",
    "delete cm one",
    "get all,cm,secret,role -o name",
];

async fn run_steps(manner: Manner) -> Vec<String> {
    let cluster = Cluster::start(7).await;
    let directory = tempfile::tempdir().unwrap();
    let mut results = Vec::new();
    for step in STEPS {
        let foreign = Foreign { server: server(&cluster), manner, seen: Mutex::default() };
        let line: Vec<&str> = step.split(' ').collect();
        let (code, text) = run(&cluster, foreign, &line, FILE, directory.path()).await;
        results.push(format!("{text}exit {code}"));
    }
    results
}

#[tokio::test(start_paused = true)]
async fn output_is_the_same_on_all_servers() {
    let ours = run_steps(Manner::Ours).await;
    let mut differ = Vec::new();
    for manner in OTHERS {
        for ((line, ours), theirs) in STEPS.iter().zip(&ours).zip(run_steps(manner).await) {
            // Without server-side tables kubectl prints names and ages.
            let of_table = line.starts_with("get ") && (line.contains("-o wide") || !line.contains(" -o "));
            if *ours != theirs && !(manner == Manner::NoTables && of_table) {
                differ.push(format!("{manner:?}: {line}\n--- ours\n{ours}\n--- theirs\n{theirs}"));
            }
        }
    }
    assert!(differ.is_empty(), "{} steps differ\n{}", differ.len(), differ.join("\n"));
}
