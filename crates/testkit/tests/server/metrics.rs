//! Metrics: upstream's names and labels.

use crate::socket::server;
use apiserver::{Options, Server};
use bytes::Bytes;
use http::Request;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use testkit::Cluster;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The status code of a response, whose body is dropped.
async fn send(s: &Arc<Server>, token: &str, method: &str, path: &str, body: &str, media: &str) -> u16 {
    let r = Request::builder().method(method).uri(path).header("authorization", format!("Bearer {token}"));
    let r = r.header("content-type", media).body(Bytes::copy_from_slice(body.as_bytes())).unwrap();
    s.handle(r).await.status().as_u16()
}

async fn read(s: &Arc<Server>) -> String {
    let r = Request::get("/metrics").header("authorization", "Bearer admin/system:masters").body(Bytes::new()).unwrap();
    let r = s.handle(r).await;
    assert_eq!(r.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    String::from_utf8(r.into_body().collect().await.unwrap().to_vec()).unwrap()
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
}

/// Labels in the order in which they are written: by name.
fn request(verb: &str, dry: &str, scope: &str, code: u16) -> String {
    format!(
        "apiserver_request_total{{code=\"{code}\",component=\"apiserver\",dry_run=\"{dry}\",group=\"\",resource=\"configmaps\",\
         scope=\"{scope}\",subresource=\"\",verb=\"{verb}\",version=\"v1\"}}"
    )
}

/// Clauses: R07.apiserver
#[tokio::test(start_paused = true)]
async fn requests_are_counted_under_upstreams_names() {
    let c = Cluster::start(1).await;
    let s = server(&c, Options::default());
    let admin = "admin/system:masters";
    let json = "application/json";
    let map = json!({"metadata": {"name": "m"}}).to_string();
    let check = async |method: &str, path: &str, body: &str, media: &str, want: u16| {
        assert_eq!(send(&s, admin, method, &format!("{MAPS}{path}"), body, media).await, want, "{method} {path}");
    };
    check("POST", "?dryRun=All", &map, json, 201).await;
    check("POST", "", &map, json, 201).await;
    check("POST", "", &map, json, 409).await;
    check("GET", "/m", "", json, 200).await;
    check("GET", "/none", "", json, 404).await;
    check("GET", "", "", json, 200).await;
    check("PATCH", "/m", r#"{"data":{"a":"b"}}"#, "application/merge-patch+json", 200).await;
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"c": "d"}});
    check("PATCH", "/m?fieldManager=f", &applied.to_string(), "application/apply-patch+yaml", 200).await;
    check("DELETE", "/m", "", json, 200).await;
    let before = read(&s).await;
    for (line, n) in [
        (request("POST", "All", "resource", 201), 1),
        (request("POST", "", "resource", 201), 1),
        (request("POST", "", "resource", 409), 1),
        (request("GET", "", "resource", 200), 1),
        (request("GET", "", "resource", 404), 1),
        (request("LIST", "", "namespace", 200), 1),
        (request("PATCH", "", "resource", 200), 1),
        (request("APPLY", "", "resource", 200), 1),
        (request("DELETE", "", "resource", 200), 1),
    ] {
        has(&before, &format!("{line} {n}"));
    }
    has(
        &before,
        "apiserver_request_duration_seconds_count{component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"configmaps\",scope=\"namespace\",subresource=\"\",verb=\"LIST\",version=\"v1\"} 1",
    );
    has(&before, "# TYPE apiserver_request_duration_seconds histogram");
    has(&before, "apiserver_resource_objects{group=\"\",resource=\"namespaces\"} 3");
    has(&before, "apiserver_storage_objects{resource=\"namespaces\"} 3");
    has(
        &before,
        "apiserver_admission_step_admission_duration_seconds_count{operation=\"CREATE\",rejected=\"false\",type=\"admit\"} 3",
    );
    has(&before, "authentication_attempts{result=\"success\"} 10");
    for name in [
        "process_resident_memory_bytes",
        "apiserver_storage_size_bytes",
        "kubernetes_build_info",
        "apiserver_response_sizes_sum",
    ] {
        assert!(before.contains(&format!("\n{name}")), "{name}");
    }
    // The health checks are counted by their path.
    assert_eq!(send(&s, admin, "GET", "/livez/ping", "", json).await, 200);
    has(
        &read(&s).await,
        "apiserver_request_total{code=\"200\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"\",scope=\"\",subresource=\"/livez\",verb=\"GET\",version=\"\"} 1",
    );
}

#[tokio::test(start_paused = true)]
async fn watches_are_counted_while_they_last() {
    let c = Cluster::start(2).await;
    let s = server(&c, Options::default());
    let r = Request::get(format!("{MAPS}?watch=1")).header("authorization", "Bearer admin/system:masters");
    let mut watch = s.handle(r.body(Bytes::new()).unwrap()).await.into_body();
    c.call("POST", MAPS, json!({"metadata": {"name": "m"}})).await;
    let apiserver::Body::Stream(pieces) = &mut watch else { panic!("a stream") };
    assert!(pieces.recv().await.is_some());
    let open = "apiserver_longrunning_requests{component=\"apiserver\",group=\"\",resource=\"configmaps\",scope=\"namespace\",subresource=\"\",verb=\"WATCH\",version=\"v1\"}";
    let text = read(&s).await;
    has(&text, &format!("{open} 1"));
    has(&text, "apiserver_watch_events_total{group=\"\",resource=\"configmaps\",version=\"v1\"} 1");
    assert!(!text.contains(&request("WATCH", "", "namespace", 200)), "it is not over");
    drop(watch);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let text = read(&s).await;
    has(&text, &format!("{open} 0"));
    has(&text, &format!("{} 1", request("WATCH", "", "namespace", 200)));
}

#[tokio::test(start_paused = true)]
async fn writes_are_counted_by_the_first_server() {
    let c = Cluster::start(3).await;
    c.call("POST", MAPS, json!({"metadata": {"name": "m"}})).await;
    let text = c.call("GET", "/metrics", serde_json::Value::Null).await.body;
    has(text.as_str().unwrap(), "etcd_requests_total{group=\"\",operation=\"create\",resource=\"configmaps\"} 1");
    has(
        text.as_str().unwrap(),
        "etcd_request_duration_seconds_count{group=\"\",operation=\"create\",resource=\"configmaps\"} 1",
    );
    let r = c.client(auth::User::new("c", &[])).get::<serde_json::Value>("/api/v1/nodes").await;
    assert!(r.is_err(), "nobody may");
    let text = client::metrics::text();
    assert!(text.contains("rest_client_requests_total{code=\"403\",host=\"in-process\",method=\"GET\"}"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn metrics_need_permission() {
    let c = Cluster::start(4).await;
    let s = server(&c, Options::default());
    assert_eq!(send(&s, "somebody", "GET", "/metrics", "", "").await, 403);
    let role = json!({"metadata": {"name": "metrics"}, "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]});
    let group = "/apis/rbac.authorization.k8s.io/v1";
    assert_eq!(c.call("POST", &format!("{group}/clusterroles"), role).await.code, 201);
    let binding = json!({"metadata": {"name": "metrics"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "metrics"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "somebody"}]});
    assert_eq!(c.call("POST", &format!("{group}/clusterrolebindings"), binding).await.code, 201);
    c.rbac.load(&c.server.registry.store);
    assert_eq!(send(&s, "somebody", "GET", "/metrics", "", "").await, 200);
}

/// How long certificates still hold, how long requests are worked on, and how wide they are. Clauses: R07.apiserver
#[tokio::test(start_paused = true)]
async fn certificates_and_seats_are_counted() {
    let c = Cluster::start(1).await;
    let s = server(&c, Options::default());
    tokio::spawn(apiserver::flow::run(s.clone()));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let user = Some(auth::User::new("eve", &[auth::user::GROUP_MASTERS]));
    let expires = Some(meta::Clock::now(&*c.clock).as_second() + 3000);
    let mut r = Request::get("/version/").body(Bytes::new()).unwrap();
    r.extensions_mut().insert(apiserver::Peer { user, expires, ..Default::default() });
    assert_eq!(s.handle(r).await.status().as_u16(), 200, "with a slash at the end as well");
    let text = read(&s).await;
    let certificates = "apiserver_client_certificate_expiration_seconds_bucket";
    has(&text, &format!("{certificates}{{le=\"1800\"}} 0"));
    has(&text, &format!("{certificates}{{le=\"3600\"}} 1"));
    let exempt = "flow_schema=\"exempt\",priority_level=\"exempt\"";
    has(&text, &format!("apiserver_flowcontrol_request_execution_seconds_count{{{exempt},type=\"regular\"}} 1"));
    has(&text, &format!("apiserver_flowcontrol_current_executing_seats{{{exempt}}} 1"));
}

/// Operators alert on webhooks that cannot be asked; the codes say why. Issue 3, item 10.
#[tokio::test]
async fn failed_webhook_calls_are_counted() {
    let c = Cluster::start(1).await;
    let hook = |name: &str, policy: &str, effects: &str| {
        json!({"name": format!("{name}.example.com"), "clientConfig": {"url": "https://127.0.0.1:1/x"}, "sideEffects": effects,
            "failurePolicy": policy, "admissionReviewVersions": ["v1"],
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]})
    };
    let configure = async |hook: serde_json::Value| {
        let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        let name = hook["name"].clone();
        let a = c.call("POST", path, json!({"metadata": {"name": name}, "webhooks": [hook]})).await;
        assert_eq!(a.code, 201, "{}", a.body);
    };
    configure(hook("open", "Ignore", "None")).await;
    let map = json!({"metadata": {"name": "m"}});
    assert_eq!(c.call("POST", MAPS, map.clone()).await.code, 201);
    configure(hook("closed", "Fail", "None")).await;
    assert_eq!(c.call("POST", MAPS, map.clone()).await.code, 500);
    let text = c.call("GET", "/metrics", serde_json::Value::Null).await.body;
    let text = text.as_str().unwrap();
    has(text, "apiserver_admission_webhook_fail_open_count{name=\"open.example.com\",type=\"validating\"} 2");
    has(
        text,
        "apiserver_admission_webhook_request_total{code=\"503\",name=\"open.example.com\",operation=\"CREATE\",rejected=\"false\",type=\"validating\"} 2",
    );
    has(
        text,
        "apiserver_admission_webhook_rejection_count{error_type=\"calling_webhook_error\",name=\"closed.example.com\",operation=\"CREATE\",rejection_code=\"503\",type=\"validating\"} 1",
    );
    has(
        text,
        "apiserver_admission_controller_admission_duration_seconds_count{name=\"ValidatingAdmissionWebhook\",operation=\"CREATE\",rejected=\"true\",type=\"validate\"} 1",
    );
    has(
        text,
        "apiserver_admission_webhook_admission_duration_seconds_count{name=\"closed.example.com\",operation=\"CREATE\",rejected=\"true\",type=\"validating\"} 1",
    );
}

/// What policies decide and what match conditions come to is counted with upstream's names. Issue 3, item 10.
#[tokio::test]
async fn policies_and_conditions_are_counted() {
    let c = Cluster::start(1).await;
    let registration = "/apis/admissionregistration.k8s.io/v1";
    let make = async |plural: &str, name: &str, mut body: serde_json::Value| {
        body["metadata"] = json!({"name": name});
        let a = c.call("POST", &format!("{registration}/{plural}"), body).await;
        assert_eq!(a.code, 201, "{}", a.body);
    };
    let rules =
        json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]);
    let hook = |name: &str, condition: &str| {
        json!({"name": format!("{name}.example.com"), "clientConfig": {"url": "https://127.0.0.1:1/x"}, "sideEffects": "None",
            "failurePolicy": "Ignore", "admissionReviewVersions": ["v1"], "rules": rules,
            "matchConditions": [{"name": "c", "expression": condition}]})
    };
    let hooks = json!([hook("other", "request.name == 'other'"), hook("vague", "object.data.none == 'x'")]);
    make("validatingwebhookconfigurations", "hooks", json!({"webhooks": hooks})).await;
    make("mutatingwebhookconfigurations", "hooks", json!({"webhooks": [hook("first", "false")]})).await;
    let policy = |fails: &str, expression: &str| {
        json!({"spec": {"failurePolicy": fails, "matchConstraints": {"resourceRules": rules},
            "matchConditions": [{"name": "all", "expression": "true"}], "validations": [{"expression": expression}]}})
    };
    make("validatingadmissionpolicies", "strict", policy("Fail", "object.metadata.name != 'bad'")).await;
    make("validatingadmissionpolicies", "lax", policy("Ignore", "object.data.none == 'x'")).await;
    for (name, actions) in [("strict", json!(["Deny", "Audit"])), ("lax", json!(["Warn"]))] {
        let spec = json!({"spec": {"policyName": name, "validationActions": actions}});
        make("validatingadmissionpolicybindings", name, spec).await;
    }
    let change = "Object{metadata: Object.metadata{labels: {'a': 'b'}}}";
    let mutations = json!([{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": change}}]);
    let spec = json!({"failurePolicy": "Fail", "reinvocationPolicy": "Never", "mutations": mutations,
        "matchConstraints": {"resourceRules": rules}});
    make("mutatingadmissionpolicies", "label", json!({"spec": spec})).await;
    make("mutatingadmissionpolicybindings", "label", json!({"spec": {"policyName": "label"}})).await;
    let create = async |name: &str| {
        let a = c.call("POST", MAPS, json!({"metadata": {"name": name}, "data": {"k": "v"}})).await;
        a.code
    };
    assert_eq!((create("good").await, create("bad").await), (201, 422));
    let text = c.call("GET", "/metrics", serde_json::Value::Null).await.body;
    let text = text.as_str().unwrap();
    let admission = "apiserver_admission_match_condition";
    let whose = |name: &str, when: &str| {
        format!("{{kind=\"webhook\",name=\"{name}.example.com\",operation=\"CREATE\",type=\"{when}\"}}")
    };
    // Twice for each, since the policy has changed the object in the first round.
    has(text, &format!("{admission}_exclusions_total{} 4", whose("first", "admit")));
    // What is bad is refused by the policy before.
    has(text, &format!("{admission}_exclusions_total{} 1", whose("other", "validating")));
    has(text, &format!("{admission}_evaluation_errors_total{} 1", whose("vague", "validating")));
    has(text, &format!("{admission}_evaluation_seconds_count{} 1", whose("vague", "validating")));
    let policy = "kind=\"policy\",name=\"strict\",operation=\"CREATE\",type=\"validate\"";
    has(text, &format!("{admission}_evaluation_seconds_count{{{policy}}} 2"));
    let checked = |what: &str, action: &str, error: &str, name: &str| {
        format!(
            "apiserver_validating_admission_policy_check_{what}{{enforcement_action=\"{action}\",error_type=\"{error}\",policy=\"{name}\",policy_binding=\"{name}\"}}"
        )
    };
    has(text, &format!("{} 1", checked("total", "deny", "invalid_error", "strict")));
    has(text, &format!("{} 1", checked("total", "audit", "invalid_error", "strict")));
    has(text, &format!("{} 2", checked("total", "allow", "invalid_error", "lax")));
    has(text, &format!("{} 1", checked("duration_seconds_count", "deny", "invalid_error", "strict")));
    let label = "error_type=\"no_error\",policy=\"label\",policy_binding=\"label\"";
    has(text, &format!("apiserver_mutating_admission_policy_check_total{{{label}}} 2"));
}
