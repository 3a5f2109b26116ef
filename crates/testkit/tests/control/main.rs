//! The controllers and the scheduler against the real API server, in virtual time.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod accounts;
mod addresses;
mod attachments;
mod autoscaling;
mod balancers;
mod batch;
mod binding;
mod budgets;
mod certificates;
mod controllers;
mod custom;
mod daemons;
mod devices;
mod extremes;
mod framework;
mod harness;
mod limits;
mod nodes;
mod owners;
mod policies;
mod preemption;
mod protection;
mod repeat;
mod roles;
mod rollouts;
mod scheduling;
mod services;
mod stateful;
mod tokens;
mod unreadable;
mod upkeep;
mod volumes;

use client::{DeleteOptions, Propagation};
use harness::Plane;
use meta::{Object, Value};
use serde_json::json;
use std::time::Duration;

/// Clauses: C04.rolling-update, C04.pod-template-hash, C05.revision, C07.Progressing
#[tokio::test(start_paused = true)]
async fn a_rollout_stays_within_surge_and_unavailability() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.node("n2", "8").await;
    p.deployment("web", 4, "web:1").await;
    let d = p.rolled_out("web").await;
    assert_eq!(d.annotation("deployment.kubernetes.io/revision"), Some("1"));
    p.patch(
        "deployments",
        "web",
        json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "web:2"}]}}}}),
    )
    .await;
    let mut least = i64::MAX;
    let mut most = 0;
    let d = p
        .until("the second revision", async || {
            let d = p.api("deployments").get("web").await.unwrap();
            let done = d.int_at(&["status", "updatedReplicas"]) == Some(4)
                && d.int_at(&["status", "replicas"]) == Some(4)
                && d.int_at(&["status", "availableReplicas"]) == Some(4)
                && d.int_at(&["status", "observedGeneration"]) == Some(d.generation());
            done.then_some(d)
        })
        .await;
    for pod in p.list("pods").await.iter().filter(|o| !o.is_deleting()) {
        assert_eq!(pod.at(&["spec", "containers"]).unwrap()[0]["image"], "web:2");
        assert!(pod.label("pod-template-hash").is_some());
        assert!(pod.name().starts_with("web-"), "{}", pod.name());
    }
    for e in p.list("events").await.iter().filter(|e| e.str_at(&["reason"]) == Some("ScalingReplicaSet")) {
        let text = e.str_at(&["message"]).unwrap();
        let to: i64 = text.rsplit(' ').next().unwrap().parse().unwrap();
        if text.contains("down") {
            least = least.min(to);
        } else {
            most = most.max(to);
        }
    }
    assert_eq!((least, most), (0, 4));
    assert_eq!(d.annotation("deployment.kubernetes.io/revision"), Some("2"));
    let sets = p.list("replicasets").await;
    let mut sizes: Vec<_> = sets.iter().map(|s| s.int_at(&["spec", "replicas"]).unwrap()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [0, 4]);
    let progressing = d.at(&["status", "conditions"]).unwrap().as_array().unwrap();
    let progressing = progressing.iter().find(|c| c["type"] == "Progressing").unwrap();
    assert_eq!(progressing["reason"], "NewReplicaSetAvailable");
}

/// Clauses: C07.progressDeadlineSeconds
#[tokio::test(start_paused = true)]
async fn a_stalled_rollout_is_reported() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.break_image("bad");
    p.deployment("web", 3, "good").await;
    p.rolled_out("web").await;
    let v = json!({"spec": {"progressDeadlineSeconds": 60, "template": {"spec": {"containers": [{"name": "c", "image": "bad"}]}}}});
    p.patch("deployments", "web", v).await;
    let d = p
        .until("the deadline", async || {
            let d = p.api("deployments").get("web").await.unwrap();
            let c = d.at(&["status", "conditions"])?.as_array()?.iter().find(|c| c["type"] == "Progressing")?.clone();
            (c["reason"] == "ProgressDeadlineExceeded").then_some(d)
        })
        .await;
    assert_eq!(d.int_at(&["status", "availableReplicas"]), Some(3), "the old pods stay");
    p.patch(
        "deployments",
        "web",
        json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "good"}]}}}}),
    )
    .await;
    let d = p.rolled_out("web").await;
    assert_eq!(d.annotation("deployment.kubernetes.io/revision"), Some("3"));
}

/// Clauses: C01.adopt, C01.release, C01.scale
#[tokio::test(start_paused = true)]
async fn a_replica_set_adopts_and_releases() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    let pod = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": {"tier": "f"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        })
    };
    p.create("pods", pod("pod1")).await;
    p.create("pods", pod("pod2")).await;
    let template =
        json!({"metadata": {"labels": {"tier": "f"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let set = p
        .create(
            "replicasets",
            json!({
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "frontend", "namespace": "default"},
                "spec": {"replicas": 3, "selector": {"matchLabels": {"tier": "f"}}, "template": template},
            }),
        )
        .await;
    let owned = async || {
        let all = p.list("pods").await;
        all.into_iter().filter(|o| o.controller_of().is_some_and(|c| c.uid == set.uid())).collect::<Vec<_>>()
    };
    p.until("three pods", async || (owned().await.len() == 3).then_some(())).await;
    assert!(owned().await.iter().any(|o| o.name() == "pod1"));
    p.patch("pods", "pod1", json!({"metadata": {"labels": {"tier": "debug"}}})).await;
    p.until("a replacement", async || {
        let mine = owned().await;
        (mine.len() == 3 && mine.iter().all(|o| o.name() != "pod1")).then_some(())
    })
    .await;
    let one = p.api("pods").get("pod1").await.unwrap();
    assert!(one.controller_of().is_none() && !one.is_deleting());
    p.patch("replicasets", "frontend", json!({"spec": {"replicas": 1}})).await;
    p.until("one pod", async || {
        let s = p.api("replicasets").get("frontend").await.unwrap();
        (s.int_at(&["status", "replicas"]) == Some(1) && p.list("pods").await.len() == 2).then_some(())
    })
    .await;
}

/// Clauses: C10.background, C10.foreground, C10.orphan
#[tokio::test(start_paused = true)]
async fn dependents_are_deleted_or_orphaned_with_their_owner() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    for policy in [Propagation::Background, Propagation::Foreground] {
        p.deployment("web", 2, "i").await;
        p.rolled_out("web").await;
        p.api("deployments").delete("web", &DeleteOptions::propagation(policy)).await.unwrap();
        p.until("everything to go", async || {
            let left =
                p.list("pods").await.len() + p.list("replicasets").await.len() + p.list("deployments").await.len();
            (left == 0).then_some(())
        })
        .await;
    }
    p.deployment("web", 2, "i").await;
    p.rolled_out("web").await;
    p.api("deployments").delete("web", &DeleteOptions::propagation(Propagation::Orphan)).await.unwrap();
    p.until("the deployment to go", async || p.list("deployments").await.is_empty().then_some(())).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let sets = p.list("replicasets").await;
    assert_eq!((sets.len(), p.list("pods").await.len()), (1, 2));
    assert!(sets[0].controller_of().is_none());
}

/// Clauses: C14.namespace, C14.default-service-account
#[tokio::test(start_paused = true)]
async fn a_deleted_namespace_deletes_its_content() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.create("namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})).await;
    let maps = p.client.dynamic(p.api("configmaps").resource()).namespace("team");
    let root_ca = p.until("the root CA", async || maps.get_opt("kube-root-ca.crt").await.unwrap()).await;
    let description = root_ca.annotation("kubernetes.io/description").unwrap_or_default();
    assert!(description.starts_with("Contains a CA bundle"), "{description}");
    p.until("the service account", async || {
        let a = p.cluster.call("GET", "/api/v1/namespaces/team/serviceaccounts/default", Value::Null).await;
        (a.code == 200).then_some(())
    })
    .await;
    let kept = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept", "finalizers": ["example.com/keep"]}});
    maps.create(&Default::default(), &meta::Object::from_value(kept).unwrap()).await.unwrap();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    p.cluster.call("POST", "/api/v1/namespaces/team/pods", pod).await;
    p.api("namespaces").delete("team", &DeleteOptions::default()).await.unwrap();
    p.until("only the finalizer to hold it", async || {
        let ns = p.api("namespaces").get("team").await.unwrap();
        let c =
            ns.at(&["status", "conditions"])?.as_array()?.iter().find(|c| c["type"] == "NamespaceContentRemaining")?;
        (c["message"] == "Some resources are remaining: configmaps. has 1 resource instances").then_some(())
    })
    .await;
    let off = client::Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch("kept", &Default::default(), &off).await.unwrap();
    p.until("the namespace to go", async || p.api("namespaces").get_opt("team").await.unwrap().is_none().then_some(()))
        .await;
}

/// Clauses: P11.node-loss, C14.node-lifecycle
#[tokio::test(start_paused = true)]
async fn pods_are_evicted_from_a_dead_node() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.deployment("web", 2, "i").await;
    p.rolled_out("web").await;
    p.node("n2", "8").await;
    p.kill_node("n1");
    p.until("the taint", async || {
        let n = p.api("nodes").get("n1").await.unwrap();
        let t = n.at(&["spec", "taints"])?.as_array()?.clone();
        t.iter().any(|t| t["key"] == "node.kubernetes.io/unreachable" && t["effect"] == "NoExecute").then_some(())
    })
    .await;
    p.until("pods on the other node", async || {
        let on = p.list("pods").await;
        let there = on.iter().filter(|o| o.str_at(&["spec", "nodeName"]) == Some("n2") && !o.is_deleting()).count();
        (there == 2).then_some(())
    })
    .await;
}

/// Clauses: R02.FailedScheduling, Q02.backoff
#[tokio::test(start_paused = true)]
async fn an_unschedulable_pod_waits_with_a_condition() {
    let p = Plane::start().await;
    p.node("n1", "1").await;
    p.create(
        "pods",
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "big", "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}}}]},
        }),
    )
    .await;
    let text = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, \
                preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    p.until("the condition", async || {
        let o = p.api("pods").get("big").await.unwrap();
        let c = o.at(&["status", "conditions"])?.as_array()?.iter().find(|c| c["type"] == "PodScheduled")?.clone();
        (c["status"] == "False" && c["reason"] == "Unschedulable" && c["message"] == text).then_some(())
    })
    .await;
    p.until("the event", async || {
        let all = p.list("events").await;
        all.iter()
            .any(|e| e.str_at(&["reason"]) == Some("FailedScheduling") && e.str_at(&["message"]) == Some(text))
            .then_some(())
    })
    .await;
    p.node("n2", "4").await;
    let o = p
        .until("the pod to run", async || {
            let o = p.api("pods").get("big").await.unwrap();
            (o.str_at(&["status", "phase"]) == Some("Running")).then_some(o)
        })
        .await;
    assert_eq!(o.str_at(&["spec", "nodeName"]), Some("n2"));
    let c = o.at(&["status", "conditions"]).unwrap().as_array().unwrap().clone();
    assert_eq!(c.iter().find(|c| c["type"] == "PodScheduled").unwrap()["status"], "True");
}

/// Clauses: C14.endpoints, C14.endpointslices
#[tokio::test(start_paused = true)]
async fn a_service_has_the_endpoints_of_its_pods() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.create(
        "services",
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]},
        }),
    )
    .await;
    p.deployment("web", 3, "i").await;
    p.rolled_out("web").await;
    p.until("three endpoints", async || {
        let all = p.list("endpointslices").await;
        let e: Vec<Value> = all.iter().flat_map(|s| s.get("endpoints")?.as_array().cloned()).flatten().collect();
        (e.len() == 3 && e.iter().all(|e| e["conditions"]["ready"] == true)).then_some(())
    })
    .await;
    p.until("three addresses", async || {
        let e = p.api("endpoints").get_opt("web").await.unwrap()?;
        let s = e.get("subsets")?.as_array()?.first()?.clone();
        (s["addresses"].as_array()?.len() == 3 && s["ports"][0]["port"] == 8080).then_some(())
    })
    .await;
    p.api("services").delete("web", &DeleteOptions::default()).await.unwrap();
    p.until("both to go", async || {
        (p.list("endpointslices").await.is_empty() && p.list("endpoints").await.is_empty()).then_some(())
    })
    .await;
}

/// A controller's copy of an object is the store's own bytes, and a view of them.
#[tokio::test(start_paused = true)]
async fn informers_share_the_stores_bytes() {
    let p = Plane::start().await;
    let (_trigger, shutdown) = client::shutdown();
    let informers = client::Informers::new(p.client.clone(), p.cluster.rng.clone(), shutdown);
    let maps: client::Informer<()> = informers.typed::<k8s_openapi::api::core::v1::ConfigMap, ()>();
    maps.synced().await;
    let made = p
        .create(
            "configmaps",
            json!({"metadata": {"name": "c", "namespace": "default", "labels": {"a": "b"}}, "data": {"k": "v"}}),
        )
        .await;
    let key = client::Key::new("default", "c");
    let held = p.until("the map to be seen", async || maps.get(&key)).await;
    let stored =
        p.cluster.server.registry.store.snapshot().get(&store::Key::new("configmaps", "default", "c")).unwrap().clone();
    assert!(held.shares(&stored.value));
    assert_eq!(held.meta.label("a"), Some("b"));
    assert_eq!(held.decode::<Object>().unwrap(), made, "with its resource version");
    // Also what was there before anyone looked.
    let (_trigger, shutdown) = client::shutdown();
    let late = client::Informers::new(p.client.clone(), p.cluster.rng.clone(), shutdown);
    let maps: client::Informer<()> = late.typed::<k8s_openapi::api::core::v1::ConfigMap, ()>();
    maps.synced().await;
    assert!(maps.get(&key).unwrap().shares(&stored.value));
}

/// Whoever changes a deployment all the time is not raced by its controller; the last wish is followed.
#[tokio::test(start_paused = true)]
async fn frequent_changes_of_a_deployment_are_rate_limited() {
    let p = Plane::start().await;
    p.deployment("busy", 0, "i").await;
    let before = p.cluster.server.registry.store.revision();
    for n in 1..=500 {
        p.patch("deployments", "busy", json!({"spec": {"minReadySeconds": n}})).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let writes = p.cluster.server.registry.store.revision() - before - 500;
    assert!(writes < 200, "{writes} writes of controllers beside five hundred of a client");
    p.until("the last wish to be followed", async || {
        let sets = p.list("replicasets").await;
        let d = p.api("deployments").get("busy").await.unwrap();
        let observed = d.int_at(&["status", "observedGeneration"]) == Some(d.generation());
        (observed && sets.len() == 1 && sets[0].int_at(&["spec", "minReadySeconds"]) == Some(500)).then_some(())
    })
    .await;
}
