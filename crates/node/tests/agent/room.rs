//! Pods that the node has no room for.

use crate::machine::*;
use serde_json::{Value, json};

/// What others add to the node's capacity is what pods may use, and an agent that starts again leaves it.
#[tokio::test(flavor = "multi_thread")]
async fn extended_resources_are_allocatable() {
    const NODES: &str = "api/v1/nodes";
    let mut m = Machine::new().await;
    let patch = |capacity: Value| {
        let mut node = m.api.get(NODES, "", "n1").unwrap();
        node["status"]["capacity"] = capacity;
        m.api.put(NODES, node);
    };
    let node = m.api.until(NODES, "", "n1", |n| n.is_some_and(|n| n["status"]["capacity"].is_object())).await.unwrap();
    let own = node["status"]["capacity"].clone();
    let with = |name: &str, value: &str| {
        let mut capacity = own.clone();
        capacity[name] = value.into();
        capacity
    };
    patch(with("example.com/dongle", "4"));
    m.api.until(NODES, "", "n1", |n| n.unwrap()["status"]["allocatable"]["example.com/dongle"] == "4").await;
    m.stop().await;
    m.start().await;
    let started = |n: Option<&Value>| n.unwrap()["metadata"]["labels"].is_object();
    let node = m.api.until(NODES, "", "n1", started).await.unwrap();
    assert_eq!(node["status"]["capacity"]["example.com/dongle"], "4");
    let patch = |capacity: Value| {
        let mut node = m.api.get(NODES, "", "n1").unwrap();
        node["status"]["capacity"] = capacity;
        m.api.put(NODES, node);
    };
    patch(with("example.com/dongle", "5"));
    m.api.until(NODES, "", "n1", |n| n.unwrap()["status"]["allocatable"]["example.com/dongle"] == "5").await;
    // One of the machine's own is not theirs to change.
    patch(with("pods", "7"));
    let node = m
        .api
        .until(NODES, "", "n1", |n| n.unwrap()["status"]["allocatable"].get("example.com/dongle").is_none())
        .await
        .unwrap();
    assert_eq!(node["status"]["allocatable"]["pods"], "110");
    m.finish().await;
}

/// A node has a maximum of pods, however they are bound; a finished one does not count.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_pods_than_the_node_has_room_for() {
    let mut m = Machine::new().await;
    m.stop().await;
    m.max_pods = 2;
    m.start().await;
    let spec = || json!({"containers": [demo("c", json!(["--port", "8081"]))]});
    for name in ["a", "b"] {
        m.pod(name, spec());
        m.until(name, is_ready).await;
    }
    m.pod("c", spec());
    let c = m.until("c", |p| p["status"]["phase"] == "Failed").await;
    assert_eq!(c["status"]["reason"], "OutOfpods");
    let message = "Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2";
    assert_eq!(c["status"]["message"], message);
    // A restart of the agent counts what runs.
    m.stop().await;
    m.start().await;
    m.pod("d", spec());
    m.until("d", |p| p["status"]["reason"] == "OutOfpods").await;
    // Not by force: the API would forget it before the node has ended it.
    m.api.delete_gracefully(PODS, "default", "a", 1);
    m.gone("a").await;
    m.pod("e", spec());
    m.until("e", is_ready).await;
    for name in ["b", "c", "d", "e"] {
        m.api.delete_gracefully(PODS, "default", name, 0);
        m.gone(name).await;
    }
    m.finish().await;
}

/// A pod that names its node has not been seen by the scheduler: the node itself refuses what does not fit.
///
/// Clauses: R02.overcommit K02.conflict
#[tokio::test(flavor = "multi_thread")]
async fn pods_bound_by_hand_are_held_against_what_the_node_has() {
    let mut m = Machine::new().await;
    let cpus = std::thread::available_parallelism().unwrap().get() as i64;
    let spec = |cpu: String, port: Option<u16>| {
        let mut c = demo("c", json!(["--port", "8081"]));
        c["resources"] = json!({"requests": {"cpu": cpu}});
        if let Some(port) = port {
            c["ports"] = json!([{"containerPort": 8081, "hostPort": port}]);
        }
        json!({"terminationGracePeriodSeconds": 1, "containers": [c]})
    };
    let refused = async |name: &str, reason: &str, message: &str| {
        let p = m.until(name, |p| p["status"]["phase"] == "Failed").await;
        let status = &p["status"];
        assert_eq!((&status["reason"], &status["message"]), (&json!(reason), &json!(message)));
        // A container that waits would be what kubectl shows of the pod, in place of the reason.
        assert!(status["containerStatuses"].is_null(), "nothing of it ran: {status}");
    };
    m.pod("first", spec("200m".into(), Some(8088)));
    m.until("first", is_ready).await;
    let enough = |requested: i64| {
        let capacity = cpus * 1000;
        format!(
            "Pod was rejected: Node didn't have enough resource: cpu, requested: {requested}, used: 200, capacity: {capacity}"
        )
    };
    m.pod("large", spec(format!("{}m", cpus * 1000 - 100), None));
    refused("large", "OutOfcpu", &enough(cpus * 1000 - 100)).await;
    m.pod("port", spec("0".into(), Some(8088)));
    let why = "node(s) didn't have free ports for the requested pod ports";
    refused("port", "NodePorts", &format!("Pod was rejected: Predicate NodePorts failed: {why}")).await;
    let elsewhere = |name: &str| {
        let mut spec = spec("0".into(), None);
        spec["nodeSelector"] = json!({"zone": "b"});
        m.pod(name, spec)
    };
    elsewhere("elsewhere");
    let why = "node(s) didn't match Pod's node affinity/selector";
    refused("elsewhere", "NodeAffinity", &format!("Pod was rejected: Predicate NodeAffinity failed: {why}")).await;
    // A label that was just given counts at once.
    let mut node = m.api.get("api/v1/nodes", "", "n1").unwrap();
    node["metadata"]["labels"]["zone"] = "b".into();
    m.api.put("api/v1/nodes", node);
    elsewhere("here");
    m.until("here", is_ready).await;

    // What runs comes first when the agent starts again, whatever came meanwhile.
    m.stop().await;
    let early = json!({"metadata": {"name": "early", "namespace": "default", "creationTimestamp": "2001-01-01T00:00:00Z"},
        "spec": spec(format!("{cpus}"), None)});
    let mut early = early;
    early["spec"]["nodeName"] = "n1".into();
    m.api.put(PODS, early);
    m.start().await;
    let p = m.until("early", |p| p["status"]["phase"] == "Failed").await;
    assert_eq!(p["status"]["message"], enough(cpus * 1000));
    assert!(is_ready(&m.api.get(PODS, "default", "first").unwrap()));

    // A critical pod makes another one end, and starts when it has.
    m.pod("filler", spec(format!("{}m", cpus * 1000 - 300), None));
    m.until("filler", is_ready).await;
    let mut critical = spec("500m".into(), None);
    critical["priority"] = 2_000_000_000.into();
    m.pod("critical", critical);
    let p = m.until("filler", |p| p["status"]["phase"] == "Failed").await;
    let status = &p["status"];
    assert_eq!(
        (&status["reason"], &status["message"]),
        (&json!("Preempting"), &json!("Preempted in order to admit critical pod"))
    );
    let conditions = status["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|c| c["type"] == "DisruptionTarget" && c["reason"] == "TerminationByKubelet"));
    m.until("critical", is_ready).await;
    for name in ["first", "large", "port", "elsewhere", "here", "early", "filler", "critical"] {
        m.api.delete_gracefully(PODS, "default", name, 0);
        m.gone(name).await;
    }
    m.finish().await;
}
