//! Priority and fairness: requests follow the objects, and a noisy client delays only itself.

use crate::socket::server;
use apiserver::{Options, Server};
use bytes::Bytes;
use http::{HeaderMap, Request};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use testkit::Cluster;
use tokio::time::Instant;

const API: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
const ADMIN: &str = "admin/system:masters";

async fn send(s: &Arc<Server>, token: &str, method: &str, path: &str, body: Value) -> (u16, HeaderMap, Bytes) {
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let r = Request::builder().method(method).uri(path).header("authorization", format!("Bearer {token}"));
    let (parts, body) = s.handle(r.header("content-type", "application/json").body(body).unwrap()).await.into_parts();
    (parts.status.as_u16(), parts.headers, body.collect().await.unwrap())
}

async fn governed(seed: u64, options: Options) -> (Cluster, Arc<Server>) {
    let c = Cluster::start(seed).await;
    let s = server(&c, options);
    tokio::spawn(apiserver::flow::run(s.clone()));
    // The objects every cluster has are there after a moment.
    tokio::time::sleep(Duration::from_secs(2)).await;
    (c, s)
}

async fn object(c: &Cluster, path: &str) -> Value {
    c.call("GET", &format!("{API}/{path}"), Value::Null).await.body
}

#[tokio::test(start_paused = true)]
async fn every_cluster_has_the_default_schemas_and_levels() {
    let (c, s) = governed(1, Options::default()).await;
    let names = async |plural: &str| -> Vec<String> {
        let items = object(&c, plural).await["items"].take();
        items.as_array().unwrap().iter().map(|o| o["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let levels = [
        "catch-all",
        "exempt",
        "global-default",
        "leader-election",
        "node-high",
        "system",
        "workload-high",
        "workload-low",
    ];
    assert_eq!(names("prioritylevelconfigurations").await, levels);
    assert_eq!(names("flowschemas").await.len(), 11);
    let schema = object(&c, "flowschemas/service-accounts").await;
    assert_eq!(schema["spec"]["priorityLevelConfiguration"]["name"], "workload-low");
    let condition = &schema["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["reason"]),
        (&json!("Dangling"), &json!("False"), &json!("Found"))
    );

    let (_, headers, _) = send(&s, "jane", "GET", "/api", Value::Null).await;
    let level = object(&c, "prioritylevelconfigurations/global-default").await;
    let schema = object(&c, "flowschemas/global-default").await;
    assert_eq!(headers["x-kubernetes-pf-prioritylevel-uid"], level["metadata"]["uid"].as_str().unwrap());
    assert_eq!(headers["x-kubernetes-pf-flowschema-uid"], schema["metadata"]["uid"].as_str().unwrap());
    let (_, headers, _) = send(&s, ADMIN, "GET", "/api", Value::Null).await;
    let exempt = object(&c, "flowschemas/exempt").await;
    assert_eq!(headers["x-kubernetes-pf-flowschema-uid"], exempt["metadata"]["uid"].as_str().unwrap());
    let (_, _, text) = send(&s, ADMIN, "GET", "/metrics", Value::Null).await;
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(
        text.contains("apiserver_flowcontrol_nominal_limit_seats{priority_level=\"workload-low\"} 245\n"),
        "{text}"
    );
    let one = "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"global-default\",priority_level=\"global-default\"} 1\n";
    assert!(text.contains(one), "{text}");
}

#[tokio::test(start_paused = true)]
async fn default_objects_are_maintained_unless_changed() {
    let (c, s) = governed(2, Options::default()).await;
    let catch_all = format!("{API}/flowschemas/catch-all");
    assert_eq!(c.call("DELETE", &catch_all, Value::Null).await.code, 200);
    let media = Some("application/merge-patch+json");
    let patch = async |path: &str, v: Value| {
        let a = c.send("PATCH", &format!("{API}/{path}"), media, "application/json", v.to_string().into()).await;
        assert_eq!(a.code, 200, "{a:?}");
    };
    let shares = |n: u32| json!({"spec": {"limited": {"nominalConcurrencyShares": n}}});
    patch("prioritylevelconfigurations/system", shares(99)).await;
    patch("prioritylevelconfigurations/workload-low", json!({"metadata": {"annotations": {"apf.kubernetes.io/autoupdate-spec": "false"}}, "spec": {"limited": {"nominalConcurrencyShares": 98}}})).await;
    // A schema of somebody's own, which leads nowhere yet.
    let own = json!({"metadata": {"name": "own"}, "spec": {"priorityLevelConfiguration": {"name": "own"}, "matchingPrecedence": 50,
        "rules": [{"subjects": [{"kind": "User", "user": {"name": "jane"}}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]}});
    assert_eq!(c.call("POST", &format!("{API}/flowschemas"), own).await.code, 201);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let condition = object(&c, "flowschemas/own").await["status"]["conditions"][0].take();
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("True"), &json!("NotFound")));
    let want =
        "This FlowSchema references the PriorityLevelConfiguration object named \"own\" but there is no such object";
    assert_eq!(condition["message"], want);
    let flow = async || {
        let (_, headers, _) = send(&s, "jane", "GET", "/api", Value::Null).await;
        headers["x-kubernetes-pf-flowschema-uid"].to_str().unwrap().to_owned()
    };
    assert_eq!(flow().await, object(&c, "flowschemas/global-default").await["metadata"]["uid"]);
    let level = json!({"metadata": {"name": "own"}, "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 5,
        "limitResponse": {"type": "Reject"}}}});
    assert_eq!(c.call("POST", &format!("{API}/prioritylevelconfigurations"), level).await.code, 201);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(flow().await, object(&c, "flowschemas/own").await["metadata"]["uid"]);
    assert_eq!(object(&c, "flowschemas/own").await["status"]["conditions"][0]["status"], "False");

    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(c.call("GET", &catch_all, Value::Null).await.code, 200, "mandatory objects come back");
    let now = async |name: &str| {
        object(&c, &format!("prioritylevelconfigurations/{name}")).await["spec"]["limited"]["nominalConcurrencyShares"]
            .clone()
    };
    assert_eq!((now("system").await, now("workload-low").await), (json!(30), json!(98)));
}

#[tokio::test(start_paused = true)]
async fn a_noisy_client_does_not_starve_another() {
    let few = Options { max_requests_in_flight: 20, max_mutating_requests_in_flight: 0, ..Options::default() };
    let (c, s) = governed(3, few).await;
    // Both may read config maps, and both are in `global-default`, which has a few seats.
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({"metadata": {"name": "reader"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}]});
    c.call("POST", &format!("{rbac}/clusterroles"), role).await;
    let subjects =
        ["noisy", "quiet"].map(|n| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": n}));
    let binding = json!({"metadata": {"name": "reader"}, "subjects": subjects,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"}});
    c.call("POST", &format!("{rbac}/clusterrolebindings"), binding).await;
    c.rbac.load(&c.server.registry.store);
    // What makes requests slow is a webhook that never answers: each waits for its deadline.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", silent.local_addr().unwrap());
    let hook = json!({"metadata": {"name": "slow"}, "webhooks": [{"name": "slow.example.com", "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "timeoutSeconds": 1, "failurePolicy": "Ignore",
        "clientConfig": {"url": url},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}]}]});
    let made = c.call("POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", hook).await;
    assert_eq!(made.code, 201, "{made:?}");
    let (over, served, refused) =
        (Arc::new(AtomicBool::new(false)), Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let crowd: Vec<_> = (0..400)
        .map(|i| {
            let (s, over, served, refused) = (s.clone(), over.clone(), served.clone(), refused.clone());
            tokio::spawn(async move {
                let mut n = 0;
                while !over.load(Ordering::Relaxed) {
                    n += 1;
                    let map = json!({"metadata": {"name": format!("noisy-{i}-{n}")}});
                    let (code, headers, body) =
                        send(&s, "noisy", "POST", "/api/v1/namespaces/default/configmaps", map).await;
                    if code == 429 {
                        assert_eq!(body, "Too many requests, please try again later.\n");
                        let after: u64 = headers["retry-after"].to_str().unwrap().parse().unwrap();
                        refused.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_secs(after)).await;
                    } else {
                        assert_eq!(code, 201, "{body:?}");
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(5)).await;
    for i in 0..10 {
        let begun = Instant::now();
        let map = json!({"metadata": {"name": format!("quiet-{i}")}});
        let (code, _, body) = send(&s, "quiet", "POST", "/api/v1/namespaces/default/configmaps", map).await;
        assert_eq!(code, 201, "{body:?}");
        assert!(begun.elapsed() < Duration::from_secs(6), "it waited {:?}", begun.elapsed());
    }
    // An administrator does not wait at all, and sees who does.
    let path = "/debug/api_priority_and_fairness/dump_requests?includeRequestDetails=1";
    let (_, _, body) = send(&s, ADMIN, "GET", path, Value::Null).await;
    let text = String::from_utf8(body.to_vec()).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split(',').map(str::trim).collect()).collect();
    let names = ["PriorityLevelName", "FlowSchemaName", "QueueIndex", "RequestIndexInQueue", "FlowDistingsher"];
    assert_eq!((&rows[0][..5], rows[0].len()), (&names[..], 18), "{text}");
    let of = |place: &str| rows.iter().filter(|r| r[0] == "global-default" && r[3] == place).count();
    assert!(of("-1") > 0 && of("0") > 0 && of("3") > 0, "{text}");
    let next = rows.iter().find(|r| r[0] == "global-default" && r[3] == "0").unwrap();
    assert!(next[2].parse::<usize>().is_ok_and(|q| q < 128) && next[4] == "noisy", "{next:?}");
    assert_eq!(next[6..11], ["1", "0", "0s", "0001-01-01T00:00:00Z", "noisy"]);
    assert_eq!(
        rows.iter().find(|r| r[0] == "exempt").unwrap()[10..13],
        ["admin", "get", path.split_once('?').unwrap().0],
        "{text}"
    );
    let begun = Instant::now();
    assert_eq!(send(&s, ADMIN, "GET", "/api/v1/namespaces", Value::Null).await.0, 200);
    assert_eq!(begun.elapsed(), Duration::ZERO);
    over.store(true, Ordering::Relaxed);
    for t in crowd {
        t.await.unwrap();
    }
    assert!(served.load(Ordering::Relaxed) > 10 && refused.load(Ordering::Relaxed) > 10, "{served:?} {refused:?}");
    let (_, _, text) = send(&s, ADMIN, "GET", "/metrics", Value::Null).await;
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(
        text.lines()
            .any(|l| l.starts_with("apiserver_flowcontrol_rejected_requests_total{flow_schema=\"global-default\"")),
        "{text}"
    );
    assert!(text.contains("apiserver_flowcontrol_current_executing_requests{flow_schema=\"global-default\",priority_level=\"global-default\"} 0\n"));
}

#[tokio::test(start_paused = true)]
async fn without_fairness_requests_in_flight_are_limited() {
    let options = Options { priority_and_fairness: false, max_requests_in_flight: 1, ..Options::default() };
    let (_c, s) = governed(4, options).await;
    let (code, headers, _) = send(&s, "jane", "GET", "/api", Value::Null).await;
    assert!(code == 403 && !headers.contains_key("x-kubernetes-pf-flowschema-uid"));
}

/// Levels and their queues are shown to those who look for what is wrong.
#[tokio::test(start_paused = true)]
async fn levels_and_queues_are_dumped() {
    let (_c, s) = governed(1, Options::default()).await;
    let dump = async |what: &str, token: &str| {
        let path = format!("/debug/api_priority_and_fairness/{what}");
        let (code, _, body) = send(&s, token, "GET", &path, Value::Null).await;
        (code, String::from_utf8(body.to_vec()).unwrap())
    };
    let (code, text) = dump("dump_priority_levels", ADMIN).await;
    assert_eq!(code, 200, "{text}");
    let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split(',').map(str::trim).collect()).collect();
    assert_eq!((rows[0][0], rows[0].len()), ("PriorityLevelName", 10));
    let exempt = rows.iter().find(|r| r[0] == "exempt").unwrap();
    assert_eq!(exempt[1..6], ["0", "false", "false", "0", "1"], "this request is being answered");
    let column = |l: &str| l.find("0,").or(l.find("ActiveQueues"));
    let first: Vec<_> = text.lines().map(column).collect();
    assert!(first.windows(2).all(|w| w[0] == w[1]), "{text}");
    let (_, text) = dump("dump_queues", ADMIN).await;
    assert!(text.starts_with("PriorityLevelName, Index,  PendingRequests, "), "{text}");
    let of = |level: &str| text.lines().filter(|l| l.starts_with(level)).count();
    assert_eq!((of("global-default,"), of("workload-low,"), of("exempt,")), (128, 128, 0));
    let (_, text) = dump("dump_requests", ADMIN).await;
    let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split(',').map(str::trim).collect()).collect();
    assert_eq!(
        (rows.len(), rows[0].len(), &rows[1][..5]),
        (2, 10, &["exempt", "exempt", "-1", "-1", ""][..]),
        "{text}"
    );
    assert_eq!(rows[1][5], rows[1][9], "it has not waited");
    assert_eq!(dump("dump_nothing", ADMIN).await.0, 404);
    assert_eq!(dump("dump_queues", "eve").await.0, 403);
}
