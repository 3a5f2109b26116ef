//! Small requests that read large objects of others execute on worker threads, or do not decode these objects.

use auth::User;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Request;
use meta::Value;
use serde_json::json;
use store::{Action, Expect, Key, Op};
use strategies::authentication::service_account::Claims;
use testkit::{Access, Cluster};
use tokio::runtime::Handle;

const NAMESPACE: &str = "/api/v1/namespaces/default";

/// A server with worker threads: the thread of the test, which is as good for counting.
async fn cluster() -> Cluster {
    Cluster::with_access(1, Access { workers: Some(Handle::current()), ..Access::default() }).await
}

async fn create(c: &Cluster, path: &str, o: Value) -> Value {
    let a = c.call("POST", path, o).await;
    assert_eq!(a.code, 201, "{path}: {}", a.body);
    a.body
}

/// Whether a request executes on a worker thread.
async fn uses_worker(c: &Cluster, method: &str, path: &str, body: &Value) -> bool {
    let before = c.server.sent_to_workers();
    c.call(method, path, body.clone()).await;
    c.server.sent_to_workers() > before
}

/// Checks that a request is worked on where it arrives, until an object is there that it has to read.
async fn check(c: &Cluster, method: &str, path: &str, body: Value, place: &str, large: Value) {
    assert!(!uses_worker(c, method, path, &body).await, "{method} {path} is small");
    create(c, place, large).await;
    assert!(uses_worker(c, method, path, &body).await, "{method} {path} reads what is large");
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// Many of what takes little.
fn many<T>(each: impl Fn(usize) -> T) -> Vec<T> {
    (0..4000).map(each).collect()
}

#[tokio::test(start_paused = true)]
async fn objects_that_a_request_reads_count() {
    let c = cluster().await;
    create(&c, &format!("{NAMESPACE}/pods"), pod("p")).await;
    let running = json!({"status": {"phase": "Running", "podIP": "10.1.1.1"}});
    let status = format!("{NAMESPACE}/pods/p/status");
    c.send("PATCH", &status, Some("application/merge-patch+json"), "application/json", running.to_string().into())
        .await;
    let eviction = json!({"metadata": {"name": "p"}, "deleteOptions": {"dryRun": ["All"]}});
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let values =
        json!({"matchExpressions": [{"key": "k", "operator": "In", "values": many(|i| format!("value-{i:020}"))}]});
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": values}});
    check(&c, "POST", &format!("{NAMESPACE}/pods/p/eviction"), eviction, budgets, budget).await;

    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    create(&c, &format!("{NAMESPACE}/services"), service).await;
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let slice = |service: &str| {
        let note = json!({"a": "x".repeat(100_000)});
        let metadata = json!({"name": service, "labels": {"kubernetes.io/service-name": service}, "annotations": note});
        json!({"metadata": metadata, "addressType": "IPv4", "ports": [], "endpoints": []})
    };
    create(&c, slices, slice("another")).await;
    check(&c, "GET", &format!("{NAMESPACE}/services/s/proxy/"), Value::Null, slices, slice("s")).await;

    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    let rules = many(|i| json!({"apiGroups": [""], "resources": [format!("r{i}")], "verbs": ["get"]}));
    let role_ref = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"});
    let binding = json!({"metadata": {"name": "b"}, "roleRef": role_ref, "subjects": []});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings?dryRun=All";
    check(&c, "POST", bindings, binding, roles, json!({"metadata": {"name": "r"}, "rules": rules})).await;

    let mut large = pod("large");
    large["metadata"]["annotations"] = json!({"a": "x".repeat(100_000)});
    let binding = json!({"metadata": {"name": "large"}, "target": {"kind": "Node", "name": "n"}});
    let bindings = format!("{NAMESPACE}/bindings?dryRun=All");
    check(&c, "POST", &bindings, binding, &format!("{NAMESPACE}/pods"), large).await;

    let pods = format!("{NAMESPACE}/pods?dryRun=All");
    let accounts = format!("{NAMESPACE}/serviceaccounts");
    let secrets = many(|i| json!({"name": format!("secret-{i}")}));
    let account = json!({"metadata": {"name": "large"}, "imagePullSecrets": secrets});
    check(&c, "POST", &pods, pod("q"), &accounts, account).await;

    // No service has been given a port of the nodes yet: who wants one reads all services.
    let service = |name: &str, kind: &str| {
        let note = json!({"a": "x".repeat(100_000)});
        json!({"metadata": {"name": name, "annotations": note}, "spec": {"type": kind, "ports": [{"port": 80}]}})
    };
    let mut exposed = service("exposed", "NodePort");
    exposed["metadata"]["annotations"] = json!({});
    let services = format!("{NAMESPACE}/services");
    check(&c, "POST", &format!("{services}?dryRun=All"), exposed, &services, service("large", "ClusterIP")).await;
}

#[tokio::test(start_paused = true)]
async fn objects_that_admission_plugins_read_count() {
    let c = cluster().await;
    let note = json!({"name": "x", "annotations": {"a": "x".repeat(100_000)}});
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let claims = format!("{NAMESPACE}/persistentvolumeclaims?dryRun=All");
    check(
        &c,
        "POST",
        &claims,
        claim,
        &format!("{NAMESPACE}/limitranges"),
        json!({"metadata": note, "spec": {"limits": []}}),
    )
    .await;
    let map = json!({"metadata": {"name": "m"}});
    let maps = format!("{NAMESPACE}/configmaps?dryRun=All");
    let quotas = format!("{NAMESPACE}/resourcequotas");
    check(&c, "POST", &maps, map, &quotas, json!({"metadata": note, "spec": {"hard": {"pods": "1000"}}})).await;
}

#[tokio::test(start_paused = true)]
async fn parameters_of_policies_count() {
    const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
    for reference in [json!({"name": "large"}), json!({"selector": {"matchLabels": {"a": "b"}}})] {
        let c = cluster().await;
        let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["secrets"]}]);
        let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {"resourceRules": rules}, "validations": [{"expression": "true"}]});
        create(&c, POLICIES, json!({"metadata": {"name": "p"}, "spec": spec})).await;
        let mut param = reference;
        param["parameterNotFoundAction"] = "Allow".into();
        let spec = json!({"policyName": "p", "validationActions": ["Deny"], "paramRef": param});
        create(&c, BINDINGS, json!({"metadata": {"name": "b"}, "spec": spec})).await;
        let metadata = json!({"name": "large", "labels": {"a": "b"}});
        let large = json!({"metadata": metadata, "data": {"a": "x".repeat(100_000)}});
        let secret = json!({"metadata": {"name": "s"}});
        let (secrets, maps) = (format!("{NAMESPACE}/secrets?dryRun=All"), format!("{NAMESPACE}/configmaps"));
        check(&c, "POST", &secrets, secret, &maps, large).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_subresource_of_a_large_object_uses_a_worker() {
    let c = cluster().await;
    let env = many(|i| json!({"name": format!("E{i}"), "value": "v"}));
    let spec = json!({"containers": [{"name": "c", "image": "i", "env": env}]});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let large = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": spec}}});
    create(&c, deployments, large).await;
    let mut large = pod("p");
    large["spec"] = spec;
    create(&c, &format!("{NAMESPACE}/pods"), large).await;
    create(&c, &format!("{NAMESPACE}/pods"), pod("small")).await;
    let large = ["log", "log?container=c", "exec?command=c", "portforward", "proxy", "proxy/"];
    for path in large.map(|s| format!("{NAMESPACE}/pods/p/{s}")).into_iter().chain([format!("{deployments}/d/scale")]) {
        assert!(uses_worker(&c, "GET", &path, &Value::Null).await, "{path}");
    }
    for path in large.map(|s| format!("{NAMESPACE}/pods/small/{s}")).into_iter().chain([format!("{deployments}/d")]) {
        assert!(!uses_worker(&c, "GET", &path, &Value::Null).await, "{path}");
    }
}

/// Some kilobytes of nested lists became tens of megabytes as YAML, for as many requests at a time as wanted them.
#[tokio::test(start_paused = true)]
async fn what_is_large_as_yaml_uses_a_worker() {
    let c = cluster().await;
    let revisions = "/apis/apps/v1/namespaces/default/controllerrevisions";
    let data = (0..150).fold(json!(many(|_| 1)), |v, _| json!({"a": v}));
    create(&c, revisions, json!({"metadata": {"name": "deep"}, "data": data, "revision": 1})).await;
    create(&c, revisions, json!({"metadata": {"name": "flat"}, "data": {"a": many(|_| 1)}, "revision": 1})).await;
    let uses_worker = async |path: &str, accept: &str| {
        let before = c.server.sent_to_workers();
        let answer = c.request("GET", path, &[("accept", accept)], Default::default()).await;
        assert_eq!(answer.status(), 200, "{path}");
        c.server.sent_to_workers() > before
    };
    let yaml = "application/yaml";
    assert!(uses_worker(&format!("{revisions}/deep"), yaml).await);
    assert!(uses_worker(revisions, yaml).await);
    assert!(!uses_worker(&format!("{revisions}/flat"), yaml).await);
    assert!(!uses_worker(&format!("{revisions}/deep"), "application/json").await);
}

/// The code of an answer to the holder of a token, who may do nothing: 403 for somebody who is known.
async fn knock(c: &Cluster, token: &str) -> u16 {
    let r = Request::get("/api/v1/nodes").header("authorization", format!("Bearer {token}"));
    c.server.handle(r.body(Bytes::new()).unwrap()).await.status().as_u16()
}

async fn put(c: &Cluster, key: &Key, text: String) {
    let op = Op { key: key.clone(), expect: Expect::Any, action: Action::Put(text.into()) };
    c.server.registry.store.commit(vec![op]).await.unwrap();
}

/// What is behind the metadata is no JSON here: whoever decodes the object has no uid.
#[tokio::test(start_paused = true)]
async fn authentication_decodes_nothing_that_a_token_names() {
    let c = cluster().await;
    let text = |kind: &str, uid: &str, more: &str| {
        let metadata = format!(r#"{{"name":"x","namespace":"default",{more}"uid":"{uid}"}}"#);
        format!(r#"{{"kind":"{kind}","apiVersion":"v1","metadata":{metadata},"imagePullSecrets":[..."#)
    };
    let account = Key::new("serviceaccounts", "default", "x");
    let (pod, secret, node) =
        (Key::new("pods", "default", "x"), Key::new("secrets", "default", "x"), Key::new("nodes", "", "x"));
    put(&c, &account, text("ServiceAccount", "a", "")).await;
    for (bound, key) in [("pod", pod), ("secret", secret), ("node", node)] {
        let claims = Claims {
            namespace: "default".into(),
            account: "x".into(),
            account_uid: "a".into(),
            audiences: vec![testkit::AUDIENCE.into()],
            seconds: 3600,
            bound: vec![(bound, "x".into(), "p".into())],
            ..Claims::default()
        };
        let (token, _) = c.accounts.issue(&claims).unwrap();
        let refused = async |why: &str| assert_eq!(knock(&c, &token).await, 401, "{bound} {why}");
        let known = async |why: &str| assert_eq!(knock(&c, &token).await, 403, "{bound} {why}");
        refused("is not there").await;
        put(&c, &key, text("K", "p", "")).await;
        known("is there").await;
        put(&c, &key, text("K", "q", "")).await;
        refused("is another").await;
        put(&c, &key, text("K", "p", r#""deletionTimestamp":"2000-01-01T00:00:00Z","#)).await;
        refused("has been going for long").await;
        put(&c, &key, text("K", "p", "")).await;
        known("is there again").await;
        put(&c, &account, text("ServiceAccount", "b", "")).await;
        refused("and the account is another").await;
        put(&c, &account, text("ServiceAccount", "a", "")).await;
        known("is as it was").await;
        let op = Op { key, expect: Expect::Any, action: Action::Delete };
        c.server.registry.store.commit(vec![op]).await.unwrap();
        refused("is deleted").await;
    }
    let data =
        [("token-id", "abcdef"), ("token-secret", "0123456789abcdef"), ("usage-bootstrap-authentication", "true")];
    let data: Value = data.into_iter().map(|(k, v)| (k.to_owned(), Value::from(STANDARD.encode(v)))).collect();
    let secret = format!(
        r#"{{"kind":"Secret","apiVersion":"v1","metadata":{{"uid":"u"}},"data":{data},"type":"bootstrap.kubernetes.io/token","x":..."#
    );
    put(&c, &Key::new("secrets", "kube-system", "bootstrap-token-abcdef"), secret).await;
    assert_eq!(knock(&c, "abcdef.0123456789abcdef").await, 403);
    assert_eq!(knock(&c, "abcdef.0123456789abcdee").await, 401);
}

/// The agent of a node asks for each secret and token of its pods, and each time for all of its pods there: these are decoded once.
#[tokio::test(start_paused = true)]
async fn pods_of_a_node_are_read_once_for_its_agent() {
    let c = cluster().await;
    let text = |name: &str| {
        format!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"default"}},"spec":{{"nodeName":"n","imagePullSecrets":[{{"name":"s-{name}"}}]}}}}"#
        )
    };
    let agent = c.client(User::new("system:node:n", &["system:nodes"]));
    let may = async |secret: &str| {
        let request = Request::get(format!("{NAMESPACE}/secrets/{secret}")).body(Bytes::new()).unwrap();
        // One that may be read is not there.
        match agent.raw(request).await.unwrap().status().as_u16() {
            404 => true,
            code => {
                assert_eq!(code, 403, "{secret}");
                false
            }
        }
    };
    put(&c, &Key::new("pods", "default", "a"), text("a")).await;
    assert!(may("s-a").await && !may("s-b").await);
    put(&c, &Key::new("pods", "default", "b"), text("b")).await;
    assert!(may("s-a").await && may("s-b").await);
    // Another revision is read anew.
    put(&c, &Key::new("pods", "default", "b"), text("c")).await;
    assert!(!may("s-b").await && may("s-c").await);
    let op = Op { key: Key::new("pods", "default", "b"), expect: Expect::Any, action: Action::Delete };
    c.server.registry.store.commit(vec![op]).await.unwrap();
    assert!(!may("s-c").await && may("s-a").await);
}
