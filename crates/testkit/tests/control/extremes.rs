//! Extreme numbers, times and quantities in every field whose schema accepts them.

use super::harness::Plane;
use meta::Value;
use serde_json::json;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

thread_local! {
    /// Of this thread, on which the plane of a test runs.
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

fn count_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.set(PANICS.get() + 1);
        before(info);
    }));
}

/// What a field may hold besides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Extreme {
    Integer,
    Time,
    Quantity,
    Either,
}

fn values(of: Extreme) -> Vec<Value> {
    match of {
        Extreme::Integer => vec![json!(i64::MAX), json!(i64::from(i32::MAX)), json!(0), json!(-1), json!(i64::MIN)],
        Extreme::Time => vec![json!("0001-01-01T00:00:00Z"), json!("9999-12-30T21:59:59Z")],
        Extreme::Quantity => vec![json!("9223372036854775807"), json!("8E"), json!("1e-9")],
        Extreme::Either => vec![json!(i32::MAX), json!("2147483647%"), json!("0%")],
    }
}

/// The fields below a schema, as paths in which `*` is the first item of a list. Each path is listed once.
fn fields(
    schemas: &Value,
    schema: &Value,
    path: &[String],
    seen: &[&str],
    found: &mut BTreeSet<(Vec<String>, Extreme)>,
) {
    let name = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
    if let Some(name) = name.and_then(|r| r.strip_prefix("#/components/schemas/")) {
        let last = name.rsplit('.').next().unwrap_or(name);
        match last {
            "Quantity" => drop(found.insert((path.to_vec(), Extreme::Quantity))),
            "IntOrString" => drop(found.insert((path.to_vec(), Extreme::Either))),
            "Time" | "MicroTime" => drop(found.insert((path.to_vec(), Extreme::Time))),
            "ManagedFieldsEntry" => {}
            _ if seen.contains(&name) => {}
            _ => fields(schemas, &schemas[name], path, &[seen, &[name]].concat(), found),
        }
        return;
    }
    let below = |key: &str| [path, &[key.to_owned()]].concat();
    match schema["type"].as_str() {
        Some("integer") => drop(found.insert((path.to_vec(), Extreme::Integer))),
        Some("array") => fields(schemas, &schema["items"], &below("*"), seen, found),
        _ => {
            for (key, of) in schema["properties"].as_object().into_iter().flatten() {
                fields(schemas, of, &below(key), seen, found);
            }
            if schema["additionalProperties"].is_object() {
                fields(schemas, &schema["additionalProperties"], &below("cpu"), seen, found);
            }
        }
    }
}

fn set(v: &mut Value, path: &[String], to: &Value) {
    let Some((first, rest)) = path.split_first() else {
        *v = to.clone();
        return;
    };
    if first == "*" {
        if v.as_array().is_none_or(Vec::is_empty) {
            *v = json!([{}]);
        }
        return set(&mut v[0], rest, to);
    }
    if !v.is_object() {
        *v = json!({});
    }
    set(&mut v[first], rest, to);
}

struct Kind {
    document: &'static str,
    schema: &'static str,
    resource: &'static str,
    base: Value,
}

fn kinds() -> Vec<Kind> {
    let pod = json!({"terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
        "containers": [{"name": "c", "image": "i", "livenessProbe": {"tcpSocket": {"port": 80}}}]});
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod});
    let set = json!({"spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let apps = "/openapi/v3/apis/apps/v1";
    let kind = |document, schema, resource, base| Kind { document, schema, resource, base };
    vec![
        kind("/openapi/v3/api/v1", "io.k8s.api.core.v1.Pod", "/api/v1/namespaces/default/pods", json!({"spec": pod})),
        kind(apps, "io.k8s.api.apps.v1.ReplicaSet", "/apis/apps/v1/namespaces/default/replicasets", set.clone()),
        kind(apps, "io.k8s.api.apps.v1.Deployment", "/apis/apps/v1/namespaces/default/deployments", set),
        kind("/openapi/v3/api/v1", "io.k8s.api.core.v1.Node", "/api/v1/nodes", json!({"spec": {}})),
        kind("/openapi/v3/api/v1", "io.k8s.api.core.v1.Namespace", "/api/v1/namespaces", json!({})),
        kind("/openapi/v3/api/v1", "io.k8s.api.core.v1.Secret", "/api/v1/namespaces/default/secrets", json!({})),
        kind(
            "/openapi/v3/api/v1",
            "io.k8s.api.core.v1.ResourceQuota",
            "/api/v1/namespaces/default/resourcequotas",
            json!({"spec": {"hard": {"pods": "100000"}}}),
        ),
        kind(
            "/openapi/v3/api/v1",
            "io.k8s.api.core.v1.Service",
            "/api/v1/namespaces/default/services",
            json!({"spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}}),
        ),
        kind(
            "/openapi/v3/apis/coordination.k8s.io/v1",
            "io.k8s.api.coordination.v1.Lease",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
            json!({"spec": {"holderIdentity": "x"}}),
        ),
        kind(
            "/openapi/v3/apis/discovery.k8s.io/v1",
            "io.k8s.api.discovery.v1.EndpointSlice",
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.2.3"]}], "ports": [{"port": 80}]}),
        ),
        kind(
            "/openapi/v3/apis/certificates.k8s.io/v1",
            "io.k8s.api.certificates.v1.CertificateSigningRequest",
            "/apis/certificates.k8s.io/v1/certificatesigningrequests",
            json!({"spec": {"request": "eA==", "signerName": "example.com/x", "usages": ["client auth"]}}),
        ),
    ]
}

/// Created, reported on, changed and deleted: whatever is admitted is far away for the server, the controllers and the scheduler, and
/// stops none of them. A user of one namespace once ended the ReplicaSet controller with `terminationGracePeriodSeconds`.
#[tokio::test(start_paused = true)]
async fn extreme_values_cause_no_panic() {
    count_panics();
    let p = Plane::start().await;
    p.node("n1", "8").await;
    let mut admitted = 0;
    for Kind { document, schema, resource, base } in kinds() {
        let openapi = p.cluster.call("GET", document, Value::Null).await;
        assert_eq!(openapi.code, 200, "{document}");
        let schemas = &openapi.body["components"]["schemas"];
        let mut found = BTreeSet::new();
        fields(schemas, &schemas[schema], &[], &[schema], &mut found);
        assert!(found.iter().any(|(_, of)| *of == Extreme::Time), "{schema}: creationTimestamp at least");
        let objects: Vec<Value> = found
            .iter()
            .flat_map(|(path, of)| values(*of).into_iter().map(move |v| (path, v)))
            .enumerate()
            .map(|(at, (path, to))| {
                let mut o = base.clone();
                set(&mut o, path, &to);
                o["metadata"]["name"] = format!("x{at}").into();
                o
            })
            .collect();
        for part in objects.chunks(60) {
            let mut there = Vec::new();
            for o in part {
                let made = p.cluster.call("POST", resource, o.clone()).await;
                assert_ne!(made.code, 500, "{o}: {}", made.body);
                if made.code < 300 {
                    there.push((o, format!("{resource}/{}", o["metadata"]["name"].as_str().unwrap())));
                }
                assert_eq!(PANICS.get(), 0, "at {o}");
            }
            admitted += there.len();
            for (o, place) in &there {
                let live = p.cluster.call("GET", place, Value::Null).await.body;
                if o["status"].is_object() && live.is_object() {
                    let mut reported = live.clone();
                    reported["status"] = o["status"].clone();
                    let answer = p.cluster.call("PUT", &format!("{place}/status"), reported).await;
                    assert_ne!(answer.code, 500, "{o}: {}", answer.body);
                }
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
            // One that the controllers delete, and one that the user does.
            for (o, place) in &there {
                if o["spec"]["template"].is_object() {
                    let mut none = (*o).clone();
                    none["spec"]["replicas"] = 0.into();
                    p.cluster.call("PUT", place, none).await;
                }
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
            for (o, place) in &there {
                let gone = p.cluster.call("DELETE", place, Value::Null).await;
                assert_ne!(gone.code, 500, "{o}: {}", gone.body);
                if resource.ends_with("/pods") {
                    p.cluster
                        .call("DELETE", &format!("{place}?gracePeriodSeconds=9223372036854775807"), Value::Null)
                        .await;
                    p.cluster.call("DELETE", &format!("{place}?gracePeriodSeconds=0"), Value::Null).await;
                }
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
            let names: Vec<&String> = there.iter().map(|(_, place)| place).collect();
            assert_eq!(PANICS.get(), 0, "at one of {names:?}");
        }
    }
    assert!(admitted > 200, "{admitted}: the objects are so wrong that nothing was tried");
}

/// A toleration for longer than time lasts is one for ever.
#[tokio::test(start_paused = true)]
async fn unlimited_tolerations_are_allowed() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    for (name, seconds) in [("long", i64::MAX), ("short", 5), ("not", i64::MIN)] {
        let toleration = json!({"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        p.create(
            "pods",
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"tolerations": [toleration], "containers": [{"name": "c", "image": "i"}]}}),
        )
        .await;
    }
    let placed = async || p.list("pods").await.iter().filter(|o| o.str_at(&["spec", "nodeName"]).is_some()).count();
    p.until("all to be placed", async || (placed().await == 3).then_some(())).await;
    // As people add them: without the time.
    let taint = json!({"key": "k", "effect": "NoExecute"});
    p.patch("nodes", "n1", json!({"spec": {"taints": [taint]}})).await;
    p.until("those to go that tolerate it for a while", async || {
        let left = p.list("pods").await;
        (left.len() == 1 && left[0].name() == "long").then_some(())
    })
    .await;
}
