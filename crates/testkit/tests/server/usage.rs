//! The resource metrics API over kubelets that a function answers for.

use crate::extension::Extension;
use crate::socket::server;
use apiserver::{Body, ConnectError, NodeConnector, Options};
use async_trait::async_trait;
use bytes::Bytes;
use client::https::Reach;
use http::{Request, Response};
use meta::Clock;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use testkit::{Access, Cluster};

const NODES: &str = "/apis/metrics.k8s.io/v1beta1/nodes";
const PODS: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods";

/// What kubelets report, by node. Others do not answer.
#[derive(Clone, Default)]
struct Kubelets(Arc<Mutex<BTreeMap<String, String>>>);

#[async_trait]
impl NodeConnector for Kubelets {
    async fn connect(&self, node: &str, _: &str, request: Request<Bytes>) -> Result<Response<Body>, ConnectError> {
        assert_eq!((request.method().as_str(), request.uri().path()), ("GET", "/metrics/resource"));
        let report = self.0.lock().get(node).cloned();
        match report {
            Some(text) => Ok(Response::new(Body::Full(text.into()))),
            None => Err(ConnectError::Unreachable("connection refused".into())),
        }
    }
}

struct Measured {
    cluster: Cluster,
    kubelets: Kubelets,
}

/// A setting of `--runtime-config` that serves the group.
fn served() -> strategies::RuntimeConfig {
    strategies::metrics::serve(strategies::RuntimeConfig::default())
}

impl Measured {
    async fn start() -> Self {
        let usage = Arc::new(usage::Usage::default());
        let access = Access { runtime: served(), usage: usage.clone(), ..Access::default() };
        let (cluster, kubelets) = (Cluster::with_access(5, access).await, Kubelets::default());
        *cluster.server.connector.write() = Some(Arc::new(kubelets.clone()));
        tokio::spawn(apiserver::scraper::run(cluster.server.clone(), usage));
        Self { cluster, kubelets }
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let answer = self.cluster.call("GET", path, Value::Null).await;
        (answer.code, answer.body)
    }

    async fn names(&self, path: &str) -> Vec<String> {
        let (code, list) = self.get(path).await;
        assert_eq!(code, 200, "{list}");
        let name = |o: &Value| o["metadata"]["name"].as_str().unwrap().to_owned();
        list["items"].as_array().unwrap().iter().map(name).collect()
    }

    /// A kubelet reports the CPU seconds of its node and of the container `c` of pods, as of now.
    fn report(&self, node: &str, cpu: f64, pods: &[(&str, f64)]) {
        let at = self.cluster.clock.now().as_millisecond();
        let mut text =
            format!("node_cpu_usage_seconds_total {cpu} {at}\nnode_memory_working_set_bytes 1.073741824e+09 {at}\n");
        for (pod, cpu) in pods {
            let labels = format!("{{container=\"c\",namespace=\"default\",pod=\"{pod}\"}}");
            text += &format!("container_cpu_usage_seconds_total{labels} {cpu} {at}\n");
            text += &format!("container_memory_working_set_bytes{labels} 3e+06 {at}\n");
            text += &format!("container_start_time_seconds{labels} 1.7e+09\n");
        }
        self.kubelets.0.lock().insert(node.into(), text);
    }

    async fn node(&self, name: &str) {
        let o = json!({"metadata": {"name": name, "labels": {"disk": "ssd"}}});
        assert_eq!(self.cluster.call("POST", "/api/v1/nodes", o).await.code, 201);
    }

    async fn pod(&self, name: &str, node: &str) {
        let o = json!({"metadata": {"name": name, "labels": {"app": name}},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}});
        assert_eq!(self.cluster.call("POST", "/api/v1/namespaces/default/pods", o).await.code, 201);
    }
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// Clauses: R07.metrics, C03.metrics-api
#[tokio::test(start_paused = true)]
async fn usage_is_served_from_the_second_report_on() {
    let m = Measured::start().await;
    let (code, list) = m.get(NODES).await;
    let empty = json!({"kind": "NodeMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {"resourceVersion": ""}, "items": []});
    assert_eq!((code, list), (200, empty));
    m.node("n1").await;
    m.node("n2").await;
    m.pod("web", "n1").await;
    m.pod("job", "n1").await;
    pass(1).await;
    // A node cannot report on pods of others, nor on pods that do not exist.
    m.report("n1", 100.0, &[("web", 10.0), ("gone", 1.0)]);
    m.report("n2", 100.0, &[("job", 10.0)]);
    pass(15).await;
    assert!(m.names(NODES).await.is_empty());
    m.report("n1", 130.0, &[("web", 13.75), ("gone", 2.0)]);
    m.report("n2", 100.3, &[("job", 20.0)]);
    pass(15).await;
    assert_eq!(m.names(NODES).await, ["n1", "n2"]);
    assert_eq!(m.names(PODS).await, ["web"]);
    assert_eq!(m.names("/apis/metrics.k8s.io/v1beta1/pods").await, ["web"]);
    assert_eq!(m.names("/apis/metrics.k8s.io/v1beta1/namespaces/kube-system/pods").await, Vec::<String>::new());
    for (selector, expected) in [
        ("labelSelector=app%3Dweb", 1),
        ("labelSelector=app%3Dother", 0),
        ("fieldSelector=metadata.name%3Dweb", 1),
        ("fieldSelector=metadata.name%3Dother", 0),
    ] {
        assert_eq!(m.names(&format!("{PODS}?{selector}")).await.len(), expected, "{selector}");
    }
    let now = meta::time::format(m.cluster.clock.now());
    let (code, mut o) = m.get(&format!("{PODS}/web")).await;
    let end = o["timestamp"].take();
    assert!(end.is_string() && code == 200, "{end}");
    let expected = json!({"kind": "PodMetrics", "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}, "creationTimestamp": now},
        "timestamp": null, "window": "15s", "containers": [{"name": "c", "usage": {"cpu": "250m", "memory": "3000000"}}]});
    assert_eq!(o, expected);
    let (_, o) = m.get(&format!("{NODES}/n1")).await;
    assert_eq!(
        (&o["usage"], &o["metadata"]["labels"]),
        (&json!({"cpu": "2", "memory": "1Gi"}), &json!({"disk": "ssd"}))
    );
    assert_eq!(m.get(&format!("{NODES}/n2")).await.1["usage"]["cpu"], "20m");
    for (path, text) in [
        (format!("{NODES}/n3"), "nodemetrics.metrics.k8s.io \"n3\" not found"),
        (format!("{PODS}/job"), "podmetrics.metrics.k8s.io \"default/job\" not found"),
    ] {
        let (code, status) = m.get(&path).await;
        assert_eq!((code, status["message"].as_str().unwrap()), (404, text));
    }
    // Nothing but reading.
    for (method, path) in
        [("GET", format!("{PODS}?watch=1")), ("POST", PODS.to_owned()), ("DELETE", format!("{NODES}/n1"))]
    {
        let body = if method == "POST" { json!({"metadata": {"name": "x"}}) } else { Value::Null };
        assert_eq!(m.cluster.call(method, &path, body).await.code, 405, "{method} {path}");
    }
    // A kubelet that does not answer has no usage; one that reports the same again, the same.
    m.kubelets.0.lock().remove("n1");
    pass(15).await;
    assert_eq!(m.names(NODES).await, ["n2"]);
    assert!(m.names(PODS).await.is_empty());
}

/// Clauses: R07.metrics
#[tokio::test(start_paused = true)]
async fn usage_has_tables_and_a_place_in_discovery() {
    let m = Measured::start().await;
    m.node("n1").await;
    m.pod("web", "n1").await;
    for cpu in [1.0, 4.0] {
        m.report("n1", cpu, &[("web", cpu)]);
        pass(15).await;
    }
    for (path, expected) in
        [(NODES, json!(["n1", "200m", "1Gi", "15s"])), (PODS, json!(["web", "200m", "3000000", "15s"]))]
    {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let t = m.cluster.send("GET", path, None, table, Bytes::new()).await.body;
        let columns = t["columnDefinitions"].as_array().unwrap().iter();
        let columns: Vec<&str> = columns.map(|c| c["name"].as_str().unwrap()).collect();
        assert_eq!(columns, ["Name", "cpu", "memory", "Window"]);
        assert_eq!(t["rows"][0]["cells"], expected);
    }
    let (_, list) = m.get("/apis/metrics.k8s.io/v1beta1").await;
    let found: Vec<_> =
        list["resources"].as_array().unwrap().iter().map(|r| (r["name"].as_str(), r["verbs"].clone())).collect();
    assert_eq!(found, [(Some("nodes"), json!(["get", "list"])), (Some("pods"), json!(["get", "list"]))]);
    let (code, document) = m.get("/openapi/v3/apis/metrics.k8s.io/v1beta1").await;
    let schema = &document["components"]["schemas"]["io.k8s.metrics.pkg.apis.metrics.v1beta1.PodMetrics"];
    assert_eq!((code, &schema["required"]), (200, &json!(["containers", "timestamp", "window"])));
}

/// Clauses: R07.metrics-server
#[tokio::test]
async fn a_metrics_server_takes_the_place() {
    let (cluster, extension) = {
        let access = Access { runtime: served(), ..Access::default() };
        (Cluster::with_access(5, access).await, Extension::start().await)
    };
    let options =
        Options { proxy_client: Some(extension.proxy.clone()), endpoints: Reach::Anywhere, ..Options::default() };
    let server = server(&cluster, options);
    tokio::spawn(apiserver::aggregate::run(server.clone()));
    let get = async |path: &str| {
        let r = Request::get(path).header("authorization", "Bearer admin/system:masters").body(Bytes::new()).unwrap();
        let (parts, body) = server.handle(r).await.into_parts();
        let body = body.collect().await.unwrap();
        (parts.status.as_u16(), String::from_utf8_lossy(&body).into_owned())
    };
    assert_eq!(get(NODES).await.0, 200);
    // Its manifest is created as it is: no APIService is in the way.
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    let o = json!({"metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": {"group": "metrics.k8s.io", "version": "v1beta1",
        "groupPriorityMinimum": 100, "versionPriority": 100, "insecureSkipTLSVerify": true,
        "service": {"namespace": "golden", "name": "absent"}}});
    assert_eq!(cluster.call("POST", services, o).await.code, 201);
    let answers = async |code: u16| {
        let begun = tokio::time::Instant::now();
        while get(NODES).await.0 != code {
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", get(NODES).await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    answers(503).await;
    let groups: Value = serde_json::from_str(&get("/apis").await.1).unwrap();
    let own: Vec<&Value> =
        groups["groups"].as_array().unwrap().iter().filter(|g| g["name"] == "metrics.k8s.io").collect();
    assert_eq!((own.len(), own[0]["versions"].as_array().unwrap().len()), (1, 1));
    // When it goes, the usage of nodes is served again.
    assert_eq!(cluster.call("DELETE", &format!("{services}/v1beta1.metrics.k8s.io"), Value::Null).await.code, 200);
    answers(200).await;
}
