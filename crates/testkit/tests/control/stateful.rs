//! StatefulSets in virtual time.

use crate::harness::Plane;
use client::{DeleteOptions, Propagation};
use meta::{Object, Value};
use serde_json::json;
use std::collections::BTreeMap;

impl Plane {
    async fn stateful(&self, replicas: i64, more: Value) -> Object {
        let mut set = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "replicas": replicas, "serviceName": "nginx", "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "c", "image": "web:1"}]},
                },
            },
        });
        for (k, v) in more.as_object().unwrap() {
            set["spec"][k] = v.clone();
        }
        self.create("statefulsets", set).await
    }

    /// Waits until the status shows these counts and the newest generation.
    async fn counts(&self, expected: &[(&str, i64)]) -> Object {
        self.status_counts("statefulsets", "web", expected).await
    }

    async fn image(&self, image: &str) {
        let containers = json!([{"name": "c", "image": image}]);
        self.patch("statefulsets", "web", json!({"spec": {"template": {"spec": {"containers": containers}}}})).await;
    }

    /// The images of the set's pods, by name.
    async fn images(&self) -> String {
        let pods = self.list("pods").await;
        let pods: BTreeMap<_, _> = pods.iter().map(|p| (p.name(), p.at(&["spec", "containers"]).unwrap())).collect();
        pods.iter().map(|(n, c)| format!("{n}={}", c[0]["image"].as_str().unwrap())).collect::<Vec<_>>().join(" ")
    }

    /// The events of the set, oldest first, as `Reason: message`.
    async fn events(&self, reason: &str) -> Vec<String> {
        let mut events = self.list("events").await;
        events.retain(|e| e.str_at(&["reason"]) == Some(reason));
        events.sort_by_key(|e| e.resource_version().parse::<u64>().unwrap());
        events.iter().map(|e| e.str_at(&["message"]).unwrap().to_owned()).collect()
    }
}

/// Clauses: C08.ordinals, C08.stable-names, C08.pod-name-label, C08.claims
#[tokio::test(start_paused = true)]
async fn pods_have_names_and_claims_of_their_own() {
    let p = Plane::start().await;
    p.bind_claims();
    p.node("n1", "8").await;
    let claim = json!({"metadata": {"name": "www"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    p.stateful(3, json!({"volumeClaimTemplates": [claim]})).await;
    p.counts(&[("replicas", 3), ("readyReplicas", 3), ("availableReplicas", 3), ("currentReplicas", 3)]).await;
    let made: Vec<_> = p.events("SuccessfulCreate").await;
    let expected = [0, 1, 2].map(|n| {
        [
            format!("Create Claim www-web-{n} Pod web-{n} in StatefulSet web success"),
            format!("Create Pod web-{n} in StatefulSet web successful"),
        ]
    });
    assert_eq!(made, expected.concat(), "in order");
    let pod = p.api("pods").get("web-1").await.unwrap();
    assert_eq!(pod.label("statefulset.kubernetes.io/pod-name"), Some("web-1"));
    assert_eq!(pod.label("apps.kubernetes.io/pod-index"), Some("1"));
    assert_eq!(pod.str_at(&["spec", "hostname"]), Some("web-1"));
    assert_eq!(pod.str_at(&["spec", "subdomain"]), Some("nginx"));
    let volume = &pod.at(&["spec", "volumes"]).unwrap()[0];
    assert_eq!((&volume["name"], &volume["persistentVolumeClaim"]["claimName"]), (&json!("www"), &json!("www-web-1")));
    let claims = p.list("persistentvolumeclaims").await;
    assert_eq!(claims.iter().map(Object::name).collect::<Vec<_>>(), ["www-web-0", "www-web-1", "www-web-2"]);
    assert!(claims.iter().all(|c| c.label("app") == Some("web")));

    // Claims outlive pods and set.
    p.patch("statefulsets", "web", json!({"spec": {"replicas": 1}})).await;
    p.counts(&[("replicas", 1)]).await;
    assert_eq!(
        p.events("SuccessfulDelete").await,
        [2, 1].map(|n| format!("Delete Pod web-{n} in StatefulSet web successful"))
    );
    p.api("statefulsets").delete("web", &DeleteOptions::propagation(Propagation::Background)).await.unwrap();
    p.until("the last pod to go", async || p.list("pods").await.is_empty().then_some(())).await;
    assert_eq!(p.list("persistentvolumeclaims").await.len(), 3);
    assert!(p.list("controllerrevisions").await.is_empty());
}

/// Clauses: C08.PVC-retention
#[tokio::test(start_paused = true)]
async fn claims_go_with_pods_and_set_if_the_policy_says_so() {
    let p = Plane::start().await;
    p.bind_claims();
    p.node("n1", "8").await;
    let claim = json!({"metadata": {"name": "www"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let policy = |deleted: &str| json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": deleted, "whenScaled": "Delete"}});
    let mut spec = policy("Retain");
    spec["volumeClaimTemplates"] = json!([claim]);
    p.stateful(3, spec).await;
    p.counts(&[("availableReplicas", 3)]).await;
    p.patch("statefulsets", "web", json!({"spec": policy("Delete")})).await;
    p.until("the set to own its claims", async || {
        let owners = p.list("persistentvolumeclaims").await;
        owners.iter().all(|c| c.controller_of().is_some_and(|o| o.kind == "StatefulSet")).then_some(())
    })
    .await;
    p.until("the event", async || {
        let text = Some("Update Pod web-2 in StatefulSet web successful");
        let events = p.list("events").await;
        events
            .iter()
            .any(|e| e.str_at(&["message"]) == text && e.str_at(&["reason"]) == Some("SuccessfulUpdate"))
            .then_some(())
    })
    .await;
    p.patch("statefulsets", "web", json!({"spec": {"replicas": 1}})).await;
    p.until("two claims to go", async || (p.list("persistentvolumeclaims").await.len() == 1).then_some(())).await;
    p.patch("statefulsets", "web", json!({"spec": {"replicas": 2}})).await;
    p.counts(&[("availableReplicas", 2)]).await;
    p.api("statefulsets").delete("web", &DeleteOptions::propagation(Propagation::Background)).await.unwrap();
    p.until("all claims to go", async || p.list("persistentvolumeclaims").await.is_empty().then_some(())).await;
}

/// Clauses: C08.partition, C08.RollingUpdate, C08.rollback
#[tokio::test(start_paused = true)]
async fn a_canary_goes_out_and_back() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.stateful(3, json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}})).await;
    let set = p.counts(&[("availableReplicas", 3)]).await;
    let first = set.str_at(&["status", "currentRevision"]).unwrap().to_owned();
    assert_eq!(set.str_at(&["status", "updateRevision"]), Some(&*first));
    p.image("web:2").await;
    let set = p.counts(&[("updatedReplicas", 1), ("currentReplicas", 2), ("availableReplicas", 3)]).await;
    assert_eq!(set.str_at(&["status", "currentRevision"]), Some(&*first));
    assert_eq!(p.images().await, "web-0=web:1 web-1=web:1 web-2=web:2");
    // A pod below the partition comes back with the current revision, one above with the new one.
    for name in ["web-0", "web-2"] {
        let old = p.api("pods").get(name).await.unwrap();
        p.api("pods").delete(name, &DeleteOptions::uid(old.uid())).await.unwrap();
        p.until("it again", async || p.api("pods").get_opt(name).await.unwrap().filter(|new| new.uid() != old.uid()))
            .await;
        p.counts(&[("availableReplicas", 3)]).await;
    }
    assert_eq!(p.images().await, "web-0=web:1 web-1=web:1 web-2=web:2");
    let partition = |n: i64| json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": n}}}});
    p.patch("statefulsets", "web", partition(0)).await;
    let set = p.counts(&[("updatedReplicas", 3), ("currentReplicas", 3), ("availableReplicas", 3)]).await;
    assert_ne!(set.str_at(&["status", "currentRevision"]), Some(&*first));
    assert_eq!(p.images().await, "web-0=web:2 web-1=web:2 web-2=web:2");
    // The way back uses the first revision again, with a new number.
    p.image("web:1").await;
    let set = p
        .until("the first revision", async || {
            let set = p.api("statefulsets").get("web").await.unwrap();
            (set.str_at(&["status", "currentRevision"]) == Some(&*first)).then_some(set)
        })
        .await;
    assert_eq!(set.int_at(&["status", "updatedReplicas"]), Some(3));
    let revisions = p.list("controllerrevisions").await;
    for r in &revisions {
        let hash = r.name().trim_start_matches("web-");
        let labels: BTreeMap<&str, &str> = r.labels().collect();
        assert_eq!(labels, BTreeMap::from([("app", "web"), ("controller.kubernetes.io/hash", hash)]));
    }
    let numbers: BTreeMap<String, i64> =
        revisions.iter().map(|r| (r.name().to_owned(), r.int_at(&["revision"]).unwrap())).collect();
    assert_eq!((numbers.len(), numbers[&first]), (2, 3));
}

/// The documented story: a template that never becomes ready blocks the set, also after it is taken back, until its pod is deleted.
///
/// Clauses: C08.forced-rollback
#[tokio::test(start_paused = true)]
async fn a_broken_update_has_to_be_ended_by_hand() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.break_image("web:broken");
    p.stateful(2, json!({})).await;
    p.counts(&[("availableReplicas", 2)]).await;
    p.image("web:broken").await;
    p.counts(&[("updatedReplicas", 1), ("readyReplicas", 1)]).await;
    p.image("web:1").await;
    p.counts(&[("readyReplicas", 1)]).await;
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    assert_eq!(p.images().await, "web-0=web:1 web-1=web:broken");
    let pod = p.api("pods").get("web-1").await.unwrap();
    p.api("pods").delete("web-1", &DeleteOptions::uid(pod.uid())).await.unwrap();
    p.counts(&[("availableReplicas", 2), ("updatedReplicas", 2)]).await;
    assert_eq!(p.images().await, "web-0=web:1 web-1=web:1");
}

/// Clauses: C08.OnDelete
#[tokio::test(start_paused = true)]
async fn with_on_delete_only_deleted_pods_change() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.stateful(
        2,
        json!({"updateStrategy": {"type": "OnDelete"}, "podManagementPolicy": "Parallel", "ordinals": {"start": 3}}),
    )
    .await;
    p.counts(&[("availableReplicas", 2)]).await;
    p.image("web:2").await;
    p.counts(&[("updatedReplicas", 0)]).await;
    p.api("pods").delete("web-3", &DeleteOptions::default()).await.unwrap();
    p.counts(&[("updatedReplicas", 1), ("availableReplicas", 2)]).await;
    assert_eq!(p.images().await, "web-3=web:2 web-4=web:1");
}

/// Clauses: C08.adoption, C08.revisionHistoryLimit
#[tokio::test(start_paused = true)]
async fn an_orphaned_set_is_taken_over_without_restarts() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.stateful(2, json!({"revisionHistoryLimit": 1})).await;
    p.counts(&[("availableReplicas", 2)]).await;
    for n in 2..6 {
        p.image(&format!("web:{n}")).await;
        p.counts(&[("updatedReplicas", 2), ("availableReplicas", 2), ("currentReplicas", 2)]).await;
    }
    p.until("two revisions", async || (p.list("controllerrevisions").await.len() == 2).then_some(())).await;
    let before = p.list("pods").await;
    p.api("statefulsets").delete("web", &DeleteOptions::propagation(Propagation::Orphan)).await.unwrap();
    p.until("orphans", async || {
        let gone = p.api("statefulsets").get_opt("web").await.unwrap().is_none();
        (gone && p.list("pods").await.iter().all(|p| p.controller_of().is_none())).then_some(())
    })
    .await;
    let containers = json!([{"name": "c", "image": "web:5"}]);
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}});
    let set = p.stateful(2, json!({"template": template})).await;
    p.counts(&[("updatedReplicas", 2), ("availableReplicas", 2), ("currentReplicas", 2)]).await;
    let after = p.list("pods").await;
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(old.uid(), new.uid());
        assert_eq!(new.controller_of().unwrap().uid, set.uid());
    }
    assert_eq!(p.list("controllerrevisions").await.len(), 2, "adopted, none is new");
}

/// A revision that somebody deleted came back under another name, and all pods were replaced.
#[tokio::test(start_paused = true)]
async fn a_deleted_revision_comes_back_under_its_name() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.stateful(2, json!({})).await;
    let set = p.counts(&[("availableReplicas", 2), ("updatedReplicas", 2)]).await;
    let revision = set.str_at(&["status", "updateRevision"]).unwrap().to_owned();
    let before: Vec<_> = p.list("pods").await.iter().map(|o| o.uid().to_owned()).collect();
    p.api("controllerrevisions").delete(&revision, &DeleteOptions::default()).await.unwrap();
    p.patch("statefulsets", "web", json!({"spec": {"revisionHistoryLimit": 3}})).await;
    p.counts(&[("availableReplicas", 2), ("updatedReplicas", 2)]).await;
    let revisions = p.list("controllerrevisions").await;
    assert_eq!(revisions.iter().map(Object::name).collect::<Vec<_>>(), [&revision]);
    assert_eq!(p.list("pods").await.iter().map(|o| o.uid().to_owned()).collect::<Vec<_>>(), before);
}

/// A set adopted a pod `web-01` and had two of the ordinal 1.
#[tokio::test(start_paused = true)]
async fn ordinals_have_no_leading_zeros() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.create(
        "pods",
        json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web-01", "namespace": "default", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "web:1"}]}}),
    )
    .await;
    p.stateful(2, json!({})).await;
    p.counts(&[("replicas", 2), ("availableReplicas", 2)]).await;
    assert!(p.api("pods").get("web-01").await.unwrap().controller_of().is_none());
}

/// A set of `i32::MAX` replicas ended the process.
#[tokio::test(start_paused = true)]
async fn a_huge_set_grows_in_parts() {
    let p = Plane::start().await;
    p.stateful(i32::MAX.into(), json!({"podManagementPolicy": "Parallel"})).await;
    p.until("the first pods", async || (p.list("pods").await.len() >= 500).then_some(())).await;
}
