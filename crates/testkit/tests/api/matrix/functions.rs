//! Kinds that are not stored: the request is answered.

use super::Walk;
use crate::served::NS;
use serde_json::{Value, json};

pub async fn functions(w: &mut Walk<'_>) {
    match w.kind.kind.as_str() {
        "Binding" => binding(w).await,
        "ComponentStatus" => components(w).await,
        _ => review(w).await,
    }
}

async fn review(w: &mut Walk<'_>) {
    let Some(o) = w.samples.of(w.kind) else {
        w.problem("there is no sample of it");
        return;
    };
    let before = w.revision();
    for query in ["", "?dryRun=All"] {
        let path = format!("{}{query}", w.kind.collection());
        let a = w.expect(201, "POST", &path, &o, "ask").await;
        w.check(a["kind"] == *w.kind.kind && a["apiVersion"] == w.kind.api_version(), "an answer says its kind");
        w.check(a["status"].as_object().is_some_and(|s| !s.is_empty()), format!("an answer has a status: {a}"));
        // As upstream, that of rules does not.
        let repeats = &*w.kind.kind != "SelfSubjectRulesReview";
        for (k, v) in o["spec"].as_object().into_iter().flatten().filter(|_| repeats) {
            w.same(&a["spec"][k], v, format!("an answer repeats the question, {k}"));
        }
    }
    w.unwritten(before, "a question");
}

async fn components(w: &mut Walk<'_>) {
    let list = w.expect(200, "GET", &w.kind.collection(), &Value::Null, "list").await;
    let names: Vec<&Value> = list["items"].as_array().into_iter().flatten().map(|o| &o["metadata"]["name"]).collect();
    w.check(names == ["scheduler", "controller-manager", "etcd-0"], format!("the components: {names:?}"));
    // None but the store runs in this test.
    let healthy: Vec<&Value> =
        list["items"].as_array().into_iter().flatten().map(|o| &o["conditions"][0]["status"]).collect();
    w.check(healthy == ["False", "False", "True"], format!("their health: {healthy:?}"));
    let supervisor = &w.cluster.server.registry.supervisor;
    let (trigger, shutdown) = supervisor::shutdown();
    let component = supervisor.component("scheduler", &shutdown, &tokio::runtime::Handle::current());
    component.spawn("scheduler", supervisor::OnEnd::Restart, std::future::pending::<()>);
    let one = w.expect(200, "GET", &w.kind.object("scheduler"), &Value::Null, "get").await;
    w.check(one["conditions"] == json!([{"type": "Healthy", "status": "True", "message": "ok"}]), "a part that runs");
    trigger.trigger();
    component.ended().await;
    let first = list["items"][0]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let one = w.expect(200, "GET", &w.kind.object(&first), &Value::Null, "get").await;
    w.same(&one["conditions"], &list["items"][0]["conditions"], "a component in the list and alone");
    w.expect(404, "GET", &w.kind.object("nosuch"), &Value::Null, "get what is not there").await;
}

/// Puts pods on a node both ways there are; a pod on a node is deleted gracefully, or evicted.
async fn binding(w: &mut Walk<'_>) {
    let pods = format!("/api/v1/namespaces/{NS}/pods");
    let pod = |name: &str| json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let to = |name: &str| json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}});
    for (name, path) in [("bound-a", w.kind.collection()), ("bound-b", format!("{pods}/bound-b/binding"))] {
        w.expect(404, "POST", &path, &to(name), "bind what is not there").await;
        w.expect(201, "POST", &pods, &pod(name), "create a pod").await;
        let before = w.revision();
        w.expect(201, "POST", &format!("{path}?dryRun=All"), &to(name), "bind dry").await;
        w.expect(
            422,
            "POST",
            &path,
            &json!({"metadata": {"name": name}, "target": {"kind": "Node"}}),
            "bind to nothing",
        )
        .await;
        w.unwritten(before, "a binding that is tried or refused");
        let done = w.expect(201, "POST", &path, &to(name), "bind").await;
        w.check(done["kind"] == "Status" && done["status"] == "Success", format!("the answer of a binding: {done}"));
        let o = w.expect(200, "GET", &format!("{pods}/{name}"), &Value::Null, "get").await;
        w.check(o["spec"]["nodeName"] == "n1", "a bound pod has a node");
        let before = w.revision();
        w.expect(409, "POST", &path, &to(name), "bind again").await;
        w.unwritten(before, "a refused binding");
    }
    let path = format!("{pods}/bound-a");
    let o = w.expect(200, "DELETE", &path, &Value::Null, "delete gracefully").await;
    w.check(o["metadata"]["deletionGracePeriodSeconds"] == 30, format!("a pod on a node has time to end: {o}"));
    let o = w.expect(200, "DELETE", &format!("{path}?gracePeriodSeconds=5"), &Value::Null, "delete sooner").await;
    w.check(o["metadata"]["deletionGracePeriodSeconds"] == 5, "the time can be cut");
    let before = w.revision();
    let o = w.expect(200, "DELETE", &format!("{path}?gracePeriodSeconds=60"), &Value::Null, "delete later").await;
    w.check(o["metadata"]["deletionGracePeriodSeconds"] == 5, "the time cannot be made longer");
    w.unwritten(before, "a deletion that asks for more time");
    w.expect(200, "DELETE", &format!("{path}?gracePeriodSeconds=0"), &Value::Null, "delete now").await;
    w.expect(404, "GET", &path, &Value::Null, "get what is gone").await;

    let path = format!("{pods}/bound-b");
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "bound-b"}});
    let before = w.revision();
    w.expect(201, "POST", &format!("{path}/eviction?dryRun=All"), &eviction, "evict dry").await;
    w.unwritten(before, "evict dry");
    w.expect(201, "POST", &format!("{path}/eviction"), &eviction, "evict").await;
    let o = w.expect(200, "GET", &path, &Value::Null, "get").await;
    w.check(o["metadata"]["deletionTimestamp"].is_string(), "an evicted pod is being deleted");
    w.expect(200, "DELETE", &format!("{path}?gracePeriodSeconds=0"), &Value::Null, "delete now").await;

    let token = format!("/api/v1/namespaces/{NS}/serviceaccounts/default/token");
    let ask = json!({"spec": {"audiences": ["a"], "expirationSeconds": 3600}});
    let before = w.revision();
    let t = w.expect(201, "POST", &token, &ask, "ask for a token").await;
    w.check(t["kind"] == "TokenRequest" && t["status"]["token"].is_string(), format!("a token: {t}"));
    w.check(t["status"]["expirationTimestamp"].is_string() && t["spec"]["audiences"] == json!(["a"]), "its terms");
    w.expect(422, "POST", &token, &json!({"spec": {"expirationSeconds": 1}}), "ask for a short token").await;
    w.unwritten(before, "a token");
}
