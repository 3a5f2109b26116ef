//! Controllers with too many objects, or with servers that do not respond.

use super::harness::Plane;
use client::{DeleteOptions, Patch, Propagation};
use meta::{Object, Value};
use serde_json::json;
use std::time::Duration;

fn ready(n: i64) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "many", "namespace": "default"},
        "spec": {"replicas": n, "selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

/// A set that wants more pods than anybody can run does not fill the store with them: after the first thousand without a node they come
/// at the rate of upstream's client.
#[tokio::test(start_paused = true)]
async fn unschedulable_pods_are_created_slowly() {
    let p = Plane::start().await;
    let start = tokio::time::Instant::now();
    p.create("replicasets", ready(1_000_000)).await;
    let count = async || p.list("pods").await.len();
    p.until("the first thousand", async || (count().await >= 1000).then_some(())).await;
    let (first, begun) = (count().await, tokio::time::Instant::now());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let made = count().await - first;
    let most = 20 * usize::try_from(begun.elapsed().as_secs() + 2).unwrap();
    assert!(
        (100..=most).contains(&made),
        "{made} more in {:?}, {:?} after the start",
        begun.elapsed(),
        start.elapsed()
    );
    // Nor when they say themselves which node it is to be, and it does not run them: it has no agent.
    let mut bound = ready(1_000_000);
    bound["spec"]["template"]["spec"]["nodeName"] = "ghost".into();
    bound["metadata"]["namespace"] = "ghosts".into();
    assert_eq!(p.cluster.call("POST", "/api/v1/namespaces", json!({"metadata": {"name": "ghosts"}})).await.code, 201);
    let ghosts = async || {
        let pods = p.cluster.call("GET", "/api/v1/namespaces/ghosts/pods", Value::Null).await;
        pods.body["items"].as_array().map_or(0, Vec::len)
    };
    assert_eq!(p.cluster.call("POST", "/apis/apps/v1/namespaces/ghosts/replicasets", bound).await.code, 201);
    p.until("the first of them", async || (ghosts().await >= 500).then_some(())).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(ghosts().await < 1500, "{}", ghosts().await);
    // It is of no consequence for other namespaces, and undone as fast as ever.
    let other = p.cluster.call("POST", "/api/v1/namespaces", json!({"metadata": {"name": "other"}})).await;
    assert_eq!(other.code, 201);
    let mut small = ready(30);
    small["metadata"]["namespace"] = "other".into();
    assert_eq!(p.cluster.call("POST", "/apis/apps/v1/namespaces/other/replicasets", small).await.code, 201);
    let begun = tokio::time::Instant::now();
    p.until("thirty in the other namespace", async || {
        let pods = p.cluster.call("GET", "/api/v1/namespaces/other/pods", Value::Null).await;
        (pods.body["items"].as_array()?.len() == 30).then_some(())
    })
    .await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    p.patch("replicasets", "many", json!({"spec": {"replicas": 0}})).await;
    p.until("all to go", async || (count().await == 0).then_some(())).await;
}

/// Single changes of a user are followed at once, however many there are.
#[tokio::test(start_paused = true)]
async fn single_changes_are_followed_at_once() {
    let p = Plane::start().await;
    p.deployment("web", 0, "i0").await;
    let start = tokio::time::Instant::now();
    for n in 1..=10 {
        let image = format!("i{n}");
        let containers = json!([{"name": "c", "image": image}]);
        p.patch("deployments", "web", json!({"spec": {"template": {"spec": {"containers": containers}}}})).await;
        p.patch("deployments", "web", json!({"spec": {"paused": true}})).await;
        p.patch("deployments", "web", json!({"spec": {"paused": false}})).await;
        p.until("the new revision", async || {
            let of = |s: &Object| s.at(&["spec", "template", "spec", "containers"]).map(|c| c[0]["image"] == *image);
            p.list("replicasets").await.iter().any(|s| of(s) == Some(true)).then_some(())
        })
        .await;
    }
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

/// When all nodes are silent, the control plane is assumed to be cut off: no pod is evicted, and running evictions stop.
#[tokio::test(start_paused = true)]
async fn no_pod_is_evicted_when_all_nodes_are_silent() {
    let p = Plane::start().await;
    for n in ["n1", "n2"] {
        p.node(n, "8").await;
    }
    p.deployment("web", 4, "i").await;
    p.rolled_out("web").await;
    let node_state = async |name: &str| {
        let n = p.api("nodes").get(name).await.unwrap();
        let taints = n.at(&["spec", "taints"]).and_then(Value::as_array).cloned().unwrap_or_default();
        let has =
            |effect: &str| taints.iter().any(|t| t["key"] == "node.kubernetes.io/unreachable" && t["effect"] == effect);
        (has("NoSchedule"), has("NoExecute"))
    };
    p.kill_node("n1");
    p.until("one node to be left", async || (node_state("n1").await == (true, true)).then_some(())).await;
    p.kill_node("n2");
    p.until("no eviction", async || {
        (node_state("n1").await == (true, false) && node_state("n2").await == (true, false)).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let pods = p.list("pods").await;
    assert_eq!(pods.iter().filter(|o| !o.is_deleting()).count(), 4);
    p.revive_node("n2").await;
    p.until("the other one to be left again", async || (node_state("n1").await == (true, true)).then_some(())).await;
    assert_eq!(node_state("n2").await, (false, false));
}

/// A deployment that does not select its replica sets creates none, instead of one after the other.
#[tokio::test(start_paused = true)]
async fn a_deployment_that_does_not_select_its_sets_creates_none() {
    let p = Plane::start().await;
    let labels = json!({"app": "x", "pod-template-hash": "x"});
    let d = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x", "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    p.create("deployments", d).await;
    p.until("the condition", async || {
        let d = p.api("deployments").get("x").await.unwrap();
        let all = d.at(&["status", "conditions"])?.as_array()?.clone();
        all.iter().any(|c| c["reason"] == "ReplicaSetCreateError" && c["status"] == "False").then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(p.list("replicasets").await.is_empty());
}

/// Objects with very many owners that are not there hold up nobody else's, and go in the end; those with an owner of a kind that nobody
/// knows cost next to nothing.
#[tokio::test(start_paused = true)]
async fn many_absent_owners_delay_no_other_objects() {
    let p = Plane::start().await;
    let owner = |kind: &str, version: &str, i: usize| json!({"apiVersion": version, "kind": kind, "name": format!("o{i}"), "uid": format!("00000000-0000-4000-8000-{i:012}")});
    let map = |name: &str, owners: Vec<Value>| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default", "ownerReferences": owners}});
    let many =
        |more: Vec<Value>| -> Vec<Value> { (0..2000).map(|i| owner("ConfigMap", "v1", i)).chain(more).collect() };
    let before = p.cluster.server.registry.store.revision();
    for i in 0..3 {
        p.create("configmaps", map(&format!("stuck{i}"), many(vec![owner("Nope", "no.such/v1", 1)]))).await;
        p.create("configmaps", map(&format!("goes{i}"), many(Vec::new()))).await;
    }
    p.create("configmaps", map("small", vec![owner("ConfigMap", "v1", 9)])).await;
    let there = async |name: &str| p.api("configmaps").get_opt(name).await.unwrap().is_some();
    p.until("the small one to go", async || (!there("small").await).then_some(())).await;
    for i in 0..3 {
        p.until("the large ones to go", async || (!there(&format!("goes{i}")).await).then_some(())).await;
        assert!(there(&format!("stuck{i}")).await, "what cannot be judged stays");
    }
    assert!(p.cluster.server.registry.store.revision() > before);
}

/// A ring of owners, each waiting for the next, is opened.
#[tokio::test(start_paused = true)]
async fn a_ring_of_owners_is_deleted() {
    let p = Plane::start().await;
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}});
    let mut uids = Vec::new();
    for name in ["a", "b", "c"] {
        uids.push(p.create("configmaps", map(name)).await.uid().to_owned());
    }
    for (of, owner, i) in [("a", "c", 2), ("b", "a", 0), ("c", "b", 1)] {
        let refs: &String = &uids[i];
        let refs = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": refs, "controller": true,
            "blockOwnerDeletion": true}]);
        p.patch("configmaps", of, json!({"metadata": {"ownerReferences": refs}})).await;
    }
    p.api("configmaps").delete("a", &DeleteOptions::propagation(Propagation::Foreground)).await.unwrap();
    p.until("all three to go", async || {
        let left = p.list("configmaps").await;
        left.iter().all(|o| !["a", "b", "c"].contains(&o.name())).then_some(())
    })
    .await;
}

/// Pods go first; what may protect others from them goes when they are gone. A group that does not answer holds the namespace and
/// is named, and all else goes.
#[tokio::test(start_paused = true)]
async fn namespace_content_is_deleted_in_order_despite_failed_groups() {
    let p = Plane::start().await;
    tokio::spawn(apiserver::aggregate::run(p.cluster.server.clone()));
    let post = async |path: &str, v: Value| assert_eq!(p.cluster.call("POST", path, v).await.code, 201, "{path}");
    post("/api/v1/namespaces", json!({"metadata": {"name": "team"}})).await;
    post("/api/v1/namespaces/team/configmaps", json!({"metadata": {"name": "m"}})).await;
    let pod = json!({"metadata": {"name": "p", "finalizers": ["example.com/keep"]},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    p.until("the service account", async || {
        let a = p.cluster.call("GET", "/api/v1/namespaces/team/serviceaccounts/default", Value::Null).await;
        (a.code == 200).then_some(())
    })
    .await;
    post("/api/v1/namespaces/team/pods", pod).await;
    let service = json!({"metadata": {"name": "v1.broken.example.com"}, "spec": {"group": "broken.example.com",
        "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100, "insecureSkipTLSVerify": true,
        "service": {"name": "none", "namespace": "default"}}});
    post("/apis/apiregistration.k8s.io/v1/apiservices", service).await;
    p.until("the group to be named", async || {
        let groups = p.cluster.call("GET", "/apis", Value::Null).await.body;
        groups["groups"].as_array()?.iter().any(|g| g["name"] == "broken.example.com").then_some(())
    })
    .await;
    p.api("namespaces").delete("team", &DeleteOptions::default()).await.unwrap();
    let condition = async |kind: &str| {
        let ns = p.api("namespaces").get("team").await.unwrap();
        let all = ns.at(&["status", "conditions"])?.as_array()?.clone();
        all.into_iter().find(|c| c["type"] == kind && c["status"] == "True")?["message"].as_str().map(str::to_owned)
    };
    let text = p.until("what is left", async || condition("NamespaceContentRemaining").await).await;
    assert_eq!(text, "Some resources are remaining: pods. has 1 resource instances");
    let text = p.until("the finalizer", async || condition("NamespaceFinalizersRemaining").await).await;
    assert_eq!(
        text,
        "Some content in the namespace has finalizers remaining: example.com/keep in 1 resource instances"
    );
    tokio::time::sleep(Duration::from_secs(60)).await;
    let map = async || p.cluster.call("GET", "/api/v1/namespaces/team/configmaps/m", Value::Null).await.code;
    assert_eq!(map().await, 200, "it waits for the pod");
    let pods = p.client.dynamic(p.api("pods").resource()).namespace("team");
    let off = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    pods.patch("p", &Default::default(), &off).await.unwrap();
    p.until("the map to go", async || (map().await == 404).then_some(())).await;
    let text = p.until("the failure", async || condition("NamespaceDeletionDiscoveryFailure").await).await;
    let begins = "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: \
                  broken.example.com/v1: ";
    assert!(text.starts_with(begins), "{text}");
    let gone =
        p.cluster.call("DELETE", "/apis/apiregistration.k8s.io/v1/apiservices/v1.broken.example.com", Value::Null);
    assert_eq!(gone.await.code, 200);
    p.until("the namespace to go", async || p.api("namespaces").get_opt("team").await.unwrap().is_none().then_some(()))
        .await;
}

/// Endpoints that a user writes for a service without a selector are mirrored to slices, and deleted with them.
#[tokio::test(start_paused = true)]
async fn endpoints_are_mirrored_to_slices() {
    let p = Plane::start().await;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "default"},
        "spec": {"ports": [{"port": 80}]}});
    p.create("services", service).await;
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "s", "namespace": "default"},
        "subsets": [{"addresses": [{"ip": "10.1.2.3"}], "ports": [{"port": 8080}]}]});
    p.create("endpoints", endpoints).await;
    let addresses = async || {
        let slices = p.list("endpointslices").await;
        let mine: Vec<Object> =
            slices.into_iter().filter(|s| s.label("kubernetes.io/service-name") == Some("s")).collect();
        let one: Option<Vec<Value>> = mine.first().map(|s| {
            s.get("endpoints")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .map(|e| e["addresses"][0].clone())
                .collect()
        });
        (mine.len(), one.unwrap_or_default())
    };
    p.until("the slice", async || (addresses().await == (1, vec![json!("10.1.2.3")])).then_some(())).await;
    let more = json!([{"addresses": [{"ip": "10.1.2.3"}, {"ip": "10.1.2.4"}], "ports": [{"port": 8080}]}]);
    p.api("endpoints").patch("s", &Default::default(), &Patch::Merge(json!({"subsets": more}))).await.unwrap();
    p.until("the second address", async || {
        (addresses().await == (1, vec![json!("10.1.2.3"), json!("10.1.2.4")])).then_some(())
    })
    .await;
    p.api("endpoints").delete("s", &DeleteOptions::default()).await.unwrap();
    p.until("the slice to go", async || (addresses().await.0 == 0).then_some(())).await;
}
