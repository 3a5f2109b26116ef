//! The audit log: contents and times of events, and what is omitted.

use crate::hook::{Hook, allow, patch};
use crate::socket::{Socket, admitting};
use apiserver::audit::{Audit, AuditBackend, Limits, Log, Mode, Policy, Rotation, Sink};
use apiserver::{Options, Server};
use bytes::Bytes;
use client::Transport;
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use testkit::Cluster;

const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: None
  nonResourceURLs: ['/livez*']
- level: Metadata
  resources: [{group: '', resources: [secrets]}]
- level: Request
  verbs: [patch]
  omitStages: [RequestReceived]
- level: RequestResponse
  resources: [{group: '', resources: [configmaps, pods]}]
  omitManagedFields: true
- level: Metadata
  userGroups: ['system:authenticated']
";

struct Audited {
    _cluster: Cluster,
    server: Arc<Server>,
    directory: TempDir,
}

impl Audited {
    async fn start() -> Self {
        Self::cutting(None).await
    }

    async fn cutting(limits: Option<Limits>) -> Self {
        Self::with(limits, admission::default_plugins()).await
    }

    async fn with(limits: Option<Limits>, chain: admission::Chain) -> Self {
        let cluster = Cluster::start(1).await;
        let directory = tempfile::tempdir().unwrap();
        let log = Log::open(&directory.path().join("audit.log"), Rotation::default(), cluster.clock.clone()).unwrap();
        let audit = Some(Audit {
            policy: Policy::parse(POLICY).unwrap(),
            to: vec![AuditBackend { sink: Sink::Log(log), mode: Mode::Blocking, limits }],
        });
        let server = admitting(&cluster, chain, Options { audit, ..Options::default() });
        Self { _cluster: cluster, server, directory }
    }

    /// Sends a request, and gives the identifier of its answer with the events that were written since the last time.
    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (String, Vec<Value>) {
        let mut r = Request::builder().method(method).uri(path).header("user-agent", "tester/1");
        for (k, v) in headers {
            r = r.header(*k, *v);
        }
        if !headers.iter().any(|(k, _)| *k == "authorization") {
            r = r.header("authorization", "Bearer admin/system:masters");
        }
        let answer = self.server.handle(r.body(Bytes::copy_from_slice(body.as_bytes())).unwrap()).await;
        let id = answer.headers()["audit-id"].to_str().unwrap().to_owned();
        (id, self.events())
    }

    fn events(&self) -> Vec<Value> {
        let path = self.directory.path().join("audit.log");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }
}

fn stages(events: &[Value]) -> Vec<&str> {
    events.iter().map(|e| e["stage"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_event_has_user_request_and_response() {
    let a = Audited::start().await;
    let (id, events) = a.send("GET", "/api/v1/namespaces/default/services/none?x=y", &[], "").await;
    assert_eq!(stages(&events), ["RequestReceived", "ResponseComplete"]);
    let mut e = events[1].clone();
    let times = ["requestReceivedTimestamp", "stageTimestamp"].map(|k| e.as_object_mut().unwrap().remove(k).unwrap());
    assert!(times.iter().all(|t| t.as_str().unwrap().len() == "2026-01-01T00:00:00.000000Z".len()), "{times:?}");
    assert_eq!(
        e,
        json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": id,
        "stage": "ResponseComplete", "requestURI": "/api/v1/namespaces/default/services/none?x=y", "verb": "get",
        "user": {"username": "admin", "groups": ["system:masters", "system:authenticated"]},
        "userAgent": "tester/1",
        "objectRef": {"resource": "services", "namespace": "default", "name": "none", "apiVersion": "v1"},
        "responseStatus": {"metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404,
            "message": "services \"none\" not found", "details": {"name": "none", "kind": "services"}},
        "annotations": {"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": ""}})
    );
    let (_, events) = a.send("GET", "/livez", &[], "").await;
    assert!(events.is_empty(), "{events:?}");
    let (id, events) =
        a.send("GET", "/version", &[("audit-id", "mine"), ("x-forwarded-for", "10.0.0.7, 10.0.0.8")], "").await;
    assert_eq!((&*id, &events[1]["auditID"], &events[1]["verb"]), ("mine", &json!("mine"), &json!("get")));
    assert_eq!(events[1]["sourceIPs"], json!(["10.0.0.7", "10.0.0.8"]));
    assert!(events[1]["objectRef"].is_null());
}

/// An event that is too large loses its objects, with an annotation; one that is too large without them is dropped.
#[tokio::test(start_paused = true)]
async fn large_events_are_cut() {
    let a = Audited::cutting(Some(Limits { event: 2000, batch: 4000 })).await;
    let json = [("content-type", "application/json")];
    let maps = "/api/v1/namespaces/default/configmaps";
    let map =
        |name: &str, size: usize| json!({"metadata": {"name": name}, "data": {"a": "b".repeat(size)}}).to_string();
    let (_, events) = a.send("POST", maps, &json, &map("small", 10)).await;
    assert!(events[1]["requestObject"].is_object() && events[1]["annotations"].get("audit.k8s.io/truncated").is_none());
    let (_, events) = a.send("POST", maps, &json, &map("large", 3000)).await;
    let e = &events[1];
    assert!(e["requestObject"].is_null() && e["responseObject"].is_null(), "{e}");
    assert_eq!(
        (&e["annotations"]["audit.k8s.io/truncated"], &e["objectRef"]["name"]),
        (&json!("true"), &json!("large"))
    );
    assert_eq!(e["responseStatus"]["code"], 201, "everything else is there");
    let (_, events) = a.send("GET", &format!("{maps}?x={}", "y".repeat(3000)), &[], "").await;
    assert!(events.is_empty(), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn levels_determine_the_detail_of_events() {
    let a = Audited::start().await;
    let json = [("content-type", "application/json")];
    let secrets = "/api/v1/namespaces/default/secrets";
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}}).to_string();
    let (_, events) = a.send("POST", secrets, &json, &secret).await;
    assert_eq!(stages(&events), ["RequestReceived", "ResponseComplete"]);
    assert_eq!(events[1]["objectRef"]["name"], "s", "the name is the object's");
    assert_eq!(events[1]["responseStatus"], json!({"metadata": {}, "code": 201}));
    assert!(!format!("{events:?}").contains("hunter2") && events[1]["requestObject"].is_null());

    let maps = "/api/v1/namespaces/default/configmaps";
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\ndata:\n  a: b\n";
    let (_, events) = a.send("POST", maps, &[("content-type", "application/yaml")], yaml).await;
    let e = &events[1];
    assert_eq!(e["requestObject"]["data"], json!({"a": "b"}));
    assert_eq!((&e["responseObject"]["kind"], &e["responseObject"]["data"]), (&json!("ConfigMap"), &json!({"a": "b"})));
    assert!(e["responseObject"]["metadata"]["uid"].is_string());
    assert!(e["responseObject"]["metadata"]["managedFields"].is_null(), "{e}");
    assert!(events[0]["responseStatus"].is_null() && events[0]["responseObject"].is_null());
    let (_, events) =
        a.send("GET", &format!("{maps}/m"), &[("accept", "application/vnd.kubernetes.protobuf")], "").await;
    assert_eq!(events[1]["responseObject"]["data"], json!({"a": "b"}), "whatever was sent, JSON is written");
    let (_, events) = a.send("GET", maps, &[], "").await;
    assert_eq!(events[1]["responseObject"]["items"][0]["metadata"]["name"], "m");
    assert!(events[1]["responseObject"]["items"][0]["metadata"]["managedFields"].is_null());

    let patch = r#"{"data":{"c":"d"}}"#;
    let (_, events) =
        a.send("PATCH", &format!("{maps}/m"), &[("content-type", "application/merge-patch+json")], patch).await;
    assert_eq!(stages(&events), ["ResponseComplete"]);
    assert_eq!(
        (&events[0]["requestObject"], &events[0]["responseObject"]),
        (&json!({"data": {"c": "d"}}), &Value::Null)
    );
    let (_, events) = a.send("DELETE", &format!("{maps}/m"), &json, r#"{"gracePeriodSeconds":0}"#).await;
    assert_eq!(events[1]["responseStatus"]["status"], "Success");
    assert_eq!(events[1]["requestObject"], json!({"gracePeriodSeconds": 0}));
}

#[tokio::test(start_paused = true)]
async fn watches_have_events_at_start_and_end() {
    let a = Audited::start().await;
    let path = "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=3";
    let r = Request::get(path).header("authorization", "Bearer admin/system:masters").body(Bytes::new()).unwrap();
    let answer = a.server.handle(r).await;
    let events = a.events();
    assert_eq!(stages(&events), ["RequestReceived", "ResponseStarted"]);
    assert_eq!(events[1]["responseStatus"]["code"], 200);
    answer.into_body().collect().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let events = a.events();
    assert_eq!(stages(&events), ["ResponseComplete"]);
    assert!(events[0]["stageTimestamp"].as_str() > events[0]["requestReceivedTimestamp"].as_str());
}

#[tokio::test(start_paused = true)]
async fn rejections_and_impersonation_are_logged() {
    let a = Audited::start().await;
    let (_, events) =
        a.send("GET", "/api/v1/namespaces/default/configmaps", &[("authorization", "Bearer somebody")], "").await;
    let e = &events[1];
    assert_eq!(
        (&e["responseStatus"]["code"], &e["annotations"]["authorization.k8s.io/decision"]),
        (&json!(403), &json!("forbid"))
    );
    assert_eq!(e["responseObject"]["kind"], "Status");
    let headers = [("impersonate-user", "jane"), ("impersonate-group", "developers")];
    let (_, events) = a.send("GET", "/api/v1/namespaces/default/secrets", &headers, "").await;
    assert_eq!(events[1]["user"]["username"], "admin");
    assert_eq!(
        events[1]["impersonatedUser"],
        json!({"username": "jane", "groups": ["developers", "system:authenticated"]})
    );
    let constraint = json!({"impersonationConstraint": "impersonate:user-info"});
    assert_eq!(events[1]["authenticationMetadata"], constraint, "who may do all may do this by a narrower way");
    assert!(events[0]["impersonatedUser"].is_null());
}

#[tokio::test(start_paused = true)]
async fn plugins_add_annotations() {
    let a = Audited::start().await;
    let json = [("content-type", "application/json")];
    let labels =
        json!({"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/audit": "restricted"});
    let ns = json!({"metadata": {"name": "tight", "labels": labels}}).to_string();
    a.send("POST", "/api/v1/namespaces", &json, &ns).await;
    let account = json!({"metadata": {"name": "default"}}).to_string();
    a.send("POST", "/api/v1/namespaces/tight/serviceaccounts", &json, &account).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}).to_string();
    let (_, events) = a.send("POST", "/api/v1/namespaces/tight/pods", &json, &pod).await;
    let notes = &events[1]["annotations"];
    assert_eq!(notes["pod-security.kubernetes.io/enforce-policy"], "baseline:latest", "{events:?}");
    let found = notes["pod-security.kubernetes.io/audit-violations"].as_str().unwrap();
    assert!(found.starts_with("would violate PodSecurity \"restricted:latest\": "), "{found}");
}

/// Exemptions from Pod Security are annotated with their reason, and no policy.
#[tokio::test(start_paused = true)]
async fn exemptions_are_annotated() {
    let config = json!({"apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
        "defaults": {"enforce": "restricted"},
        "exemptions": {"namespaces": ["golden"], "runtimeClasses": ["sandbox"], "usernames": ["jane"]}});
    let config = admission::Configuration::default().with("PodSecurity", config);
    let a = Audited::with(None, admission::configured(&[], &[], &config).unwrap()).await;
    let json = [("content-type", "application/json")];
    let class = json!({"metadata": {"name": "sandbox"}, "handler": "sandbox"}).to_string();
    a.send("POST", "/apis/node.k8s.io/v1/runtimeclasses", &json, &class).await;
    let jane = [json[0], ("authorization", "Bearer jane/system:masters")];
    let plain = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let mut sandboxed = plain.clone();
    sandboxed["spec"]["runtimeClassName"] = "sandbox".into();
    for (namespace, headers, pod, why) in [
        ("golden", &json[..], &plain, Some("namespace")),
        ("default", &jane[..], &plain, Some("user")),
        ("kube-system", &json[..], &sandboxed, Some("runtimeClass")),
        ("kube-system", &json[..], &plain, None),
    ] {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let (_, events) = a.send("POST", &path, headers, &pod.to_string()).await;
        let notes = &events[1]["annotations"];
        assert_eq!(notes["pod-security.kubernetes.io/exempt"].as_str(), why, "{events:?}");
        let policy = notes["pod-security.kubernetes.io/enforce-policy"].as_str();
        assert_eq!(policy, if why.is_none() { Some("restricted:latest") } else { None });
    }
    let labels =
        json!({"metadata": {"name": "odd", "labels": {"pod-security.kubernetes.io/enforce": "x"}}}).to_string();
    let (_, events) = a.send("POST", "/api/v1/namespaces", &json, &labels).await;
    assert_eq!(events[1]["responseStatus"]["code"], 422);
}

#[tokio::test]
async fn over_a_socket_the_address_of_the_client_is_known() {
    let a = Audited::start().await;
    let socket = Socket::listen(a.server.clone()).await;
    let client = socket.client("admin/system:masters");
    let answer = client.send(Request::get("/version").body(Bytes::new()).unwrap()).await.unwrap();
    answer.into_body().collect().await.unwrap();
    let events = a.events();
    assert_eq!(events[1]["sourceIPs"], json!(["127.0.0.1"]));
    // No token, or none that anybody knows: written without a name.
    let nobody = Request::get("/api").body(Bytes::new()).unwrap();
    let _ = a.server.handle(nobody).await;
    assert!(a.events().is_empty(), "the policy asks for authenticated users");
}

/// Audit annotations of admission policies.
#[tokio::test(start_paused = true)]
async fn policies_annotate() {
    let a = Audited::start().await;
    let json = [("content-type", "application/json")];
    let group = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({"metadata": {"name": "p"}, "spec": {
        "matchConstraints": {"resourceRules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]},
        "validations": [{"expression": "true"}, {"expression": "has(object.data)", "message": "wants data"},
            {"expression": "false", "message": "wants more"}],
        "auditAnnotations": [{"key": "name", "valueExpression": "'it is ' + object.metadata.name"},
            {"key": "none", "valueExpression": "null"}, {"key": "long", "valueExpression": format!("'{}'.replace('x', 'xxxx')", "x".repeat(3_000))}]}});
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Audit"]}});
    let (_, e) = a.send("POST", &format!("{group}/validatingadmissionpolicies"), &json, &policy.to_string()).await;
    assert_eq!(e.last().unwrap()["responseStatus"]["code"], 201, "{e:?}");
    let (_, e) =
        a.send("POST", &format!("{group}/validatingadmissionpolicybindings"), &json, &binding.to_string()).await;
    assert_eq!(e.last().unwrap()["responseStatus"]["code"], 201, "{e:?}");
    let map = json!({"metadata": {"name": "c"}}).to_string();
    let (_, events) = a.send("POST", "/api/v1/namespaces/default/configmaps", &json, &map).await;
    let notes = &events[1]["annotations"];
    assert_eq!((&events[1]["responseStatus"]["code"], &notes["p/name"]), (&json!(201), &json!("it is c")));
    assert!(notes.get("p/none").is_none(), "{notes}");
    assert_eq!(notes["p/long"].as_str().unwrap().len(), 10_240, "cut");
    let failures: Value =
        serde_json::from_str(notes["validation.policy.admission.k8s.io/validation_failure"].as_str().unwrap()).unwrap();
    // Of several failures the first one stands.
    let want = json!([{"message": "wants data", "policy": "p", "binding": "b", "expressionIndex": 1, "validationActions": ["Audit"]}]);
    assert_eq!(failures, want);
}

/// What webhooks did to an object, and that one could not be asked, stands in the log under upstream's names. Issue 3, item 5.
#[tokio::test]
async fn calls_of_webhooks_are_annotated() {
    let a = Audited::start().await;
    let h = Hook::start(|path, _| match path {
        "/idle" => Some(json!({"allowed": true, "auditAnnotations": {"good": "1", "not/good": "2", "": "3"}})),
        "/patch" => patch(&json!([{"value": "2", "path": "/data/b", "op": "add"}])),
        _ => allow(),
    })
    .await;
    let down = json!({"url": "https://127.0.0.1:1/x", "caBundle": h.ca});
    let hook = |name: &str, client: &Value| {
        json!({"name": format!("{name}.example.com"), "clientConfig": client, "sideEffects": "None", "failurePolicy": "Ignore",
            "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps", "secrets"]}]})
    };
    let configure = async |kind: &str, hooks: Value| {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations");
        let body = json!({"metadata": {"name": "w"}, "webhooks": hooks});
        a.send("POST", &path, &[("content-type", "application/json")], &body.to_string()).await;
    };
    let hooks = [hook("idle", &h.url("/idle")), hook("down", &down), hook("patch", &h.url("/patch"))];
    configure("mutating", json!(hooks)).await;
    configure("validating", json!([hook("idle", &h.url("/idle")), hook("down", &down)])).await;
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "1"}}).to_string();
    let media = [("content-type", "application/json")];
    let (_, events) = a.send("POST", "/api/v1/namespaces/golden/configmaps", &media, &map).await;
    let annotations = &events.last().unwrap()["annotations"];
    let of = |round: u8, index: u8| format!("mutation.webhook.admission.k8s.io/round_{round}_index_{index}");
    let note = |name: &str, more: &str| format!(r#"{{"configuration":"w","webhook":"{name}.example.com",{more}}}"#);
    assert_eq!(annotations[of(0, 0)], note("idle", r#""mutated":false"#), "{annotations}");
    assert_eq!(annotations["idle.example.com/good"], "1");
    let names = annotations.as_object().unwrap().keys().filter(|k| k.starts_with("idle.example.com")).count();
    assert_eq!(names, 1, "what is no name is left out: {annotations}");
    assert_eq!(annotations[of(0, 1)], note("down", r#""mutated":false"#));
    assert_eq!(annotations[of(0, 2)], note("patch", r#""mutated":true"#));
    assert_eq!(annotations[format!("failed-open.{}", of(0, 1))], "down.example.com");
    assert_eq!(annotations["failed-open.validating.webhook.admission.k8s.io/round_0_index_1"], "down.example.com");
    let patched = "patch.webhook.admission.k8s.io/round_0_index_2";
    let patch = r#""patch":[{"op":"add","path":"/data/b","value":"2"}],"patchType":"JSONPatch""#;
    assert_eq!(annotations[patched], note("patch", patch));
    assert!(annotations[of(1, 0)].is_null(), "nobody wants to be asked again");
    // What is patched is an object's business: where only metadata is written, it is left out.
    let (_, events) = a
        .send(
            "POST",
            "/api/v1/namespaces/golden/secrets",
            &media,
            &map.replace("\"1\"", "\"MQ==\"").replace("\"2\"", "\"Mg==\""),
        )
        .await;
    let annotations = &events.last().unwrap()["annotations"];
    assert!(annotations[of(0, 0)].is_string() && annotations[patched].is_null(), "{annotations}");
}
