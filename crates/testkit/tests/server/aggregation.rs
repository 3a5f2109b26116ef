//! API aggregation: another server's API is served with the caller's identity.

use crate::extension::{Extension, GROUP};
use crate::socket::{Socket, server};
use apiserver::{Options, Server};
use bytes::Bytes;
use client::Transport;
use client::https::Reach;
use http::header::{AUTHORIZATION, HeaderValue};
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::{Action, Expect, Key, Op};
use testkit::Cluster;
use tokio::time::Instant;

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const ADMIN: &str = "admin/system:masters";
const NAME: &str = "v1.wardle.example.com";

struct Aggregated {
    cluster: Cluster,
    server: Arc<Server>,
    extension: Extension,
}

impl Aggregated {
    async fn start(seed: u64) -> Self {
        Self::reaching(seed, Reach::Anywhere).await
    }

    async fn reaching(seed: u64, endpoints: Reach) -> Self {
        let (cluster, extension) = (Cluster::start(seed).await, Extension::start().await);
        let options = Options { proxy_client: Some(extension.proxy.clone()), endpoints, ..Options::default() };
        let server = server(&cluster, options);
        tokio::spawn(apiserver::aggregate::run(server.clone()));
        Self { cluster, server, extension }
    }

    async fn send(
        &self,
        token: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, HeaderMap, Value) {
        let mut r = Request::builder().method(method).uri(path).header("authorization", format!("Bearer {token}"));
        for (k, v) in headers {
            r = r.header(*k, *v);
        }
        let answer = self.server.handle(r.body(Bytes::copy_from_slice(body.as_bytes())).unwrap()).await;
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.unwrap();
        let v = serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into_owned().into());
        (parts.status.as_u16(), parts.headers, v)
    }

    async fn get(&self, path: &str) -> Value {
        self.send(ADMIN, "GET", path, &[], "").await.2
    }

    /// An object that a controller would write. Endpoints on loopback are no valid ones, but the only ones a test may talk to.
    async fn slice(&self, ready: bool) {
        let o = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "wardle", "namespace": "golden", "labels": {"kubernetes.io/service-name": "wardle"}},
            "addressType": "IPv4", "ports": [{"name": "https", "port": self.extension.port}],
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": ready}}]});
        let key = Key::new("discovery.k8s.io/endpointslices", "golden", "wardle");
        let op = Op { key, expect: Expect::Any, action: Action::Put(o.to_string().into()) };
        self.cluster.server.registry.store.commit(vec![op]).await.unwrap();
    }

    async fn service(&self, port: u16) {
        let o = json!({"metadata": {"name": "wardle"}, "spec": {"ports": [{"name": "https", "port": port}]}});
        let a = self.cluster.call("POST", "/api/v1/namespaces/golden/services", o).await;
        assert_eq!(a.code, 201, "{a:?}");
    }

    async fn register(&self, more: Value) {
        let mut spec = json!({"group": GROUP, "version": "v1", "groupPriorityMinimum": 2000, "versionPriority": 10,
            "service": {"namespace": "golden", "name": "wardle"}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let a = self.cluster.call("POST", SERVICES, json!({"metadata": {"name": NAME}, "spec": spec})).await;
        assert_eq!(a.code, 201, "{a:?}");
    }

    /// Waits for a condition: its status, reason and message.
    async fn available(&self, reason: &str) -> (String, String) {
        let begun = Instant::now();
        loop {
            let o = self.cluster.call("GET", &format!("{SERVICES}/{NAME}"), Value::Null).await.body;
            let c = &o["status"]["conditions"][0];
            if c["reason"] == reason {
                let text = |k: &str| c[k].as_str().unwrap().to_owned();
                return (text("status"), text("message"));
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{reason} does not come: {o}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn ready(seed: u64) -> Self {
        let a = Self::start(seed).await;
        a.service(443).await;
        a.slice(true).await;
        a.register(json!({"caBundle": a.extension.ca})).await;
        assert_eq!(a.available("Passed").await, ("True".into(), "all checks passed".into()));
        a
    }
}

/// The client of a relayed body that was cut off upstream saw a body that had ended well.
#[tokio::test]
async fn a_truncated_body_is_an_error_for_the_client() {
    let a = Aggregated::ready(4).await;
    let socket = Socket::listen(a.server.clone()).await;
    let path = format!("/apis/{GROUP}/v1/namespaces/default/flunders?cut=1");
    let request = || Request::get(&path).body(Bytes::new()).unwrap();
    // HTTP/2: the stream is reset.
    let response = socket.client(ADMIN).send(request()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.into_body().collect().await.is_err());
    // HTTP/1: the last chunk is missing.
    let token = [(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {ADMIN}")).unwrap())];
    let mut connection = socket.client(ADMIN).dedicated(HeaderMap::from_iter(token)).await.unwrap();
    let response = connection.send(request()).await.unwrap();
    assert_eq!((response.status().as_u16(), response.version()), (200, http::Version::HTTP_11));
    assert!(response.into_body().collect().await.is_err());
}

#[tokio::test]
async fn requests_are_relayed_with_the_callers_identity() {
    let a = Aggregated::ready(1).await;
    let path = format!("/apis/{GROUP}/v1/namespaces/default/flunders");
    let headers =
        [("x-remote-user", "root"), ("x-remote-extra-a", "b"), ("audit-id", "mine"), ("accept", "application/json")];
    let (code, answer, list) = a.send(ADMIN, "GET", &format!("{path}?limit=5"), &headers, "").await;
    assert_eq!(
        (code, &list["kind"], &list["items"][0]["metadata"]["name"]),
        (200, &json!("FlunderList"), &json!("a")),
        "{list}"
    );
    assert_eq!(answer["audit-id"], "mine");
    let heard = std::mem::take(&mut *a.extension.heard.lock());
    let (asked, h, _) = &heard[0];
    assert!(asked.starts_with("GET ") && asked.ends_with("/flunders?limit=5"), "{asked}");
    let all = |name: &str| h.get_all(name).iter().map(|v| v.to_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(
        (all("x-remote-user"), all("x-remote-group")),
        (vec!["admin".into()], vec!["system:masters".into(), "system:authenticated".into()])
    );
    assert!(all("authorization").is_empty() && all("x-remote-extra-a").is_empty());
    assert_eq!(all("audit-id"), ["mine"]);

    let made = json!({"kind": "Flunder", "metadata": {"name": "new"}}).to_string();
    let (code, _, o) = a.send(ADMIN, "POST", &path, &[("content-type", "application/json")], &made).await;
    assert_eq!((code, &o["metadata"]["name"]), (201, &json!("new")));
    let (code, _, events) = a.send(ADMIN, "GET", &format!("{path}?watch=1"), &[], "").await;
    let lines: Vec<&str> = events.as_str().unwrap().lines().collect();
    assert_eq!((code, lines.len()), (200, 2));
    let (code, _, refused) = a.send("jane", "GET", &path, &[], "").await;
    assert_eq!(code, 403, "who may not, does not get there: {refused}");
    let message = refused["message"].as_str().unwrap();
    assert!(
        message
            .starts_with("flunders.wardle.example.com is forbidden: User \"jane\" cannot list resource \"flunders\""),
        "{message}"
    );
    assert!(!a.extension.heard.lock().iter().any(|(_, h, _)| h["x-remote-user"] == "jane"));
    let metrics = a.get("/metrics").await;
    assert!(
        metrics.as_str().unwrap().contains("aggregator_unavailable_apiservice{name=\"v1.wardle.example.com\"} 0\n")
    );
}

/// A server that says no more, and a client that has left: the answer was waited for, for ever.
#[tokio::test]
async fn relays_end_with_the_client() {
    let a = Aggregated::ready(8).await;
    let path = format!("/apis/{GROUP}/v1/namespaces/default/flunders?silent=1");
    let request = Request::get(path).header("authorization", format!("Bearer {ADMIN}")).body(Bytes::new()).unwrap();
    let mut answer = a.server.handle(request).await;
    let first = answer.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!((&first[..], a.extension.open.load(Ordering::Relaxed)), (&b"hello"[..], 1));
    drop(answer);
    let begun = Instant::now();
    while a.extension.open.load(Ordering::Relaxed) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the server behind still answers");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whoever can write the endpoints of a service that an APIService names is not led to this machine's own addresses.
#[tokio::test]
async fn services_cannot_direct_to_addresses_of_this_machine() {
    let a = Aggregated::reaching(9, Reach::Network).await;
    a.service(443).await;
    a.slice(true).await;
    a.register(json!({"caBundle": a.extension.ca})).await;
    let (status, message) = a.available("FailedDiscoveryCheck").await;
    assert_eq!(status, "False");
    let to = format!("dial tcp 127.0.0.1:{}: address not allowed", a.extension.port);
    assert!(message.ends_with(&to), "{message}");
    let path = format!("/apis/{GROUP}/v1/namespaces/default/flunders");
    assert_eq!(a.send(ADMIN, "GET", &path, &[], "").await.0, 503);
    assert!(a.extension.heard.lock().is_empty());
}

#[tokio::test]
async fn documents_are_merged() {
    let a = Aggregated::ready(2).await;
    let groups = a.get("/apis").await;
    let names: Vec<&str> = groups["groups"].as_array().unwrap().iter().map(|g| g["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"apps") && names.contains(&GROUP), "{names:?}");
    let group = a.get(&format!("/apis/{GROUP}")).await;
    assert_eq!(
        (&group["kind"], &group["preferredVersion"]["groupVersion"]),
        (&json!("APIGroup"), &json!(format!("{GROUP}/v1")))
    );
    assert_eq!(a.get(&format!("/apis/{GROUP}/v1")).await["resources"][0]["name"], "flunders");
    let accept = [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")];
    let all = a.send(ADMIN, "GET", "/apis", &accept, "").await.2;
    let of = |all: &Value| {
        all["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == GROUP).cloned().unwrap()
    };
    let version = &of(&all)["versions"][0];
    assert_eq!((&version["freshness"], &version["resources"][0]["resource"]), (&json!("Current"), &json!("flunders")));
    let v2 = a.get("/openapi/v2").await;
    assert!(
        v2["paths"].get("/apis/wardle.example.com/v1/flunders").is_some()
            && v2["definitions"].get("com.example.wardle.v1.Flunder").is_some()
    );
    assert!(v2["paths"].get("/api/v1/pods").is_none_or(|p| p.get("stolen").is_none()), "nobody takes our paths");
    let index = a.get("/openapi/v3").await;
    let url = &index["paths"][format!("apis/{GROUP}/v1")]["serverRelativeURL"];
    assert_eq!(url, &format!("/openapi/v3/apis/{GROUP}/v1?hash=1234"));
    assert_eq!(a.get(url.as_str().unwrap()).await["theirs"], true);
    assert!(a.get("/").await["paths"].as_array().unwrap().contains(&json!(format!("/apis/{GROUP}/v1"))));
    // One that goes away is still known, but stale.
    a.slice(false).await;
    a.available("MissingEndpoints").await;
    let all = a.send(ADMIN, "GET", "/apis", &accept, "").await.2;
    let version = &of(&all)["versions"][0];
    assert_eq!((&version["freshness"], &version["resources"][0]["resource"]), (&json!("Stale"), &json!("flunders")));
    assert_eq!(a.cluster.call("DELETE", &format!("{SERVICES}/{NAME}"), Value::Null).await.code, 200);
    let begun = Instant::now();
    while a.send(ADMIN, "GET", &format!("/apis/{GROUP}"), &[], "").await.0 != 404 {
        assert!(begun.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn conditions_explain_unavailability() {
    let a = Aggregated::start(3).await;
    a.register(json!({"caBundle": a.extension.ca})).await;
    let no = |message: &str| ("False".to_owned(), message.to_owned());
    assert_eq!(a.available("ServiceNotFound").await, no("service/wardle in \"golden\" is not present"));
    let path = format!("/apis/{GROUP}/v1/namespaces/default/flunders");
    let (code, headers, message) = a.send(ADMIN, "GET", &path, &[], "").await;
    assert_eq!(
        (code, &headers["content-type"], &message),
        (503, &"text/plain; charset=utf-8".parse().unwrap(), &json!("service unavailable\n"))
    );
    a.service(8443).await;
    assert_eq!(a.available("ServicePortError").await, no("service/wardle in \"golden\" is not listening on port 443"));
    let right = json!([{"op": "replace", "path": "/spec/ports/0/port", "value": 443}]).to_string();
    let media = Some("application/json-patch+json");
    let patched = a
        .cluster
        .send("PATCH", "/api/v1/namespaces/golden/services/wardle", media, "application/json", right.into())
        .await;
    assert_eq!(patched.code, 200, "{patched:?}");
    assert_eq!(
        a.available("EndpointsNotFound").await,
        no("cannot find endpointslices for service/wardle in \"golden\"")
    );
    a.slice(false).await;
    let want = "endpointslices for service/wardle in \"golden\" have no addresses with port name \"https\"";
    assert_eq!(a.available("MissingEndpoints").await, no(want));
    a.extension.broken.store(true, Ordering::Relaxed);
    a.slice(true).await;
    let url = format!("https://127.0.0.1:{}/apis/{GROUP}/v1", a.extension.port);
    let want = format!("failing or missing response from {url}: bad status from {url}: 500");
    assert_eq!(a.available("FailedDiscoveryCheck").await, no(&want));
    // It is looked for until it is there.
    a.extension.broken.store(false, Ordering::Relaxed);
    a.available("Passed").await;
    assert_eq!(a.send(ADMIN, "GET", &path, &[], "").await.0, 200);
}

/// One of the servers behind a service has gone, before anybody has noticed: the others are enough, however often it is asked.
/// Issue 3, item 7.
#[tokio::test]
async fn one_missing_backend_does_no_harm() {
    let a = Aggregated::start(7).await;
    a.service(443).await;
    let slice = async |name: &str, port: u16, servers: usize| {
        let o = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": "golden", "labels": {"kubernetes.io/service-name": "wardle"}},
            "addressType": "IPv4", "ports": [{"name": "https", "port": port}],
            "endpoints": vec![json!({"addresses": ["127.0.0.1"]}); servers]});
        let key = Key::new("discovery.k8s.io/endpointslices", "golden", name);
        let op = Op { key, expect: Expect::Any, action: Action::Put(o.to_string().into()) };
        a.cluster.server.registry.store.commit(vec![op]).await.unwrap();
    };
    slice("live", a.extension.port, 7).await;
    slice("gone", 1, 1).await;
    a.register(json!({"caBundle": a.extension.ca})).await;
    assert_eq!(a.available("Passed").await.0, "True");
    // Whenever its endpoints change the server is asked.
    for _ in 0..12 {
        slice("live", a.extension.port, 7).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(a.available("Passed").await.0, "True");
    let text = a.send(ADMIN, "GET", "/metrics", &[], "").await.2;
    let text = text.as_str().unwrap();
    assert!(!text.contains("\naggregator_unavailable_apiservice_total{"), "it was unavailable in between: {text}");
}

#[tokio::test]
async fn certificates_are_verified_unless_disabled() {
    let a = Aggregated::start(4).await;
    a.service(443).await;
    a.slice(true).await;
    let other = Extension::start().await;
    a.register(json!({"caBundle": other.ca})).await;
    let (status, message) = a.available("FailedDiscoveryCheck").await;
    assert!(status == "False" && message.to_lowercase().contains("certificate"), "{message}");
    let insecure = json!([{"op": "remove", "path": "/spec/caBundle"}, {"op": "add", "path": "/spec/insecureSkipTLSVerify", "value": true}]);
    let media = Some("application/json-patch+json");
    let patched = a
        .cluster
        .send("PATCH", &format!("{SERVICES}/{NAME}"), media, "application/json", insecure.to_string().into())
        .await;
    assert_eq!(patched.code, 200, "{patched:?}");
    a.available("Passed").await;
    // With what is no certificate nobody can be asked: what was said stands, and clients are told why.
    let nonsense = json!([{"op": "remove", "path": "/spec/insecureSkipTLSVerify"}, {"op": "add", "path": "/spec/caBundle", "value": "bm9uZQ=="}]);
    let patched = a
        .cluster
        .send("PATCH", &format!("{SERVICES}/{NAME}"), media, "application/json", nonsense.to_string().into())
        .await;
    assert_eq!(patched.code, 200, "{patched:?}");
    let path = format!("/apis/{GROUP}/v1/namespaces/default/flunders");
    let begun = Instant::now();
    let (code, message) = loop {
        let (code, _, message) = a.send(ADMIN, "GET", &path, &[], "").await;
        if code == 500 || begun.elapsed() > Duration::from_secs(30) {
            break (code, message);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let why = "unable to load root certificates: unable to parse bytes as PEM block\n";
    assert_eq!((code, &message), (500, &json!(why)));
    assert_eq!(a.available("Passed").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn local_versions_have_api_services() {
    let c = Cluster::start(5).await;
    let s = server(&c, Options::default());
    tokio::spawn(apiserver::aggregate::run(s));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let get = async |name: &str| c.call("GET", &format!("{SERVICES}/{name}"), Value::Null).await;
    let core = get("v1.").await.body;
    assert_eq!(core["spec"], json!({"version": "v1", "groupPriorityMinimum": 18000, "versionPriority": 1}));
    assert_eq!(core["metadata"]["labels"], json!({"kube-aggregator.kubernetes.io/automanaged": "onstart"}));
    let condition = &core["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["reason"], &condition["message"]),
        (&json!("Available"), &json!("True"), &json!("Local"), &json!("Local APIServices are always available"))
    );
    assert_eq!(get("v1.apps").await.body["spec"]["groupPriorityMinimum"], 17800);
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "toys.example.com"},
        "spec": {"group": "example.com", "names": {"plural": "toys", "kind": "Toy"}, "scope": "Namespaced", "versions": [{"name": "v1",
            "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(c.call("POST", crds, crd).await.code, 201);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let toys = get("v1.example.com").await.body;
    assert_eq!(
        (&toys["spec"]["groupPriorityMinimum"], &toys["spec"]["versionPriority"]),
        (&json!(1000), &json!(100)),
        "{toys}"
    );
    assert_eq!(c.call("DELETE", &format!("{crds}/toys.example.com"), Value::Null).await.code, 200);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(get("v1.example.com").await.code, 404);
}
