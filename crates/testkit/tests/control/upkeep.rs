//! Small controllers: claims of ephemeral volumes, and annotations of nodes.

use crate::harness::Plane;
use client::DeleteOptions;
use serde_json::json;

/// Clauses: C14.ephemeral-volumes
#[tokio::test(start_paused = true)]
async fn ephemeral_volumes_have_claims_that_go_with_their_pod() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    let claim = |name: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
    };
    p.create("persistentvolumeclaims", claim("p-taken")).await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": claim("")["spec"]});
    let volume = |name: &str| json!({"name": name, "ephemeral": {"volumeClaimTemplate": template}});
    p.create(
        "pods",
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "volumes": [volume("scratch"), volume("taken")]}}),
    )
    .await;
    let made = p.until("the claim", async || p.api("persistentvolumeclaims").get_opt("p-scratch").await.unwrap()).await;
    assert_eq!((made.label("a"), made.controller_of().unwrap().name), (Some("b"), "p"));
    p.until("an event about the other's claim", async || {
        let why = "ephemeral volume taken: PVC default/p-taken was not created for pod default/p (pod is not owner)";
        p.list("events").await.iter().any(|e| e.str_at(&["message"]) == Some(why)).then_some(())
    })
    .await;
    // It comes again while the pod is there.
    p.patch("persistentvolumeclaims", "p-scratch", json!({"metadata": {"finalizers": null}})).await;
    p.api("persistentvolumeclaims").delete("p-scratch", &DeleteOptions::default()).await.unwrap();
    p.until("another claim", async || {
        let claim = p.api("persistentvolumeclaims").get_opt("p-scratch").await.unwrap()?;
        (claim.uid() != made.uid()).then_some(())
    })
    .await;
    p.api("pods").delete("p", &DeleteOptions::default()).await.unwrap();
    p.until("the claim to go", async || {
        let names: Vec<_> = p.list("persistentvolumeclaims").await.iter().map(|c| c.name().to_owned()).collect();
        (names == ["p-taken"]).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nodes_say_how_long_kubelets_may_cache() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    p.until("the annotation", async || {
        let node = p.api("nodes").get("n1").await.unwrap();
        (node.annotation("node.alpha.kubernetes.io/ttl") == Some("0")).then_some(())
    })
    .await;
}

/// Clauses: C14.tolerationSeconds, C14.taint-eviction
#[tokio::test(start_paused = true)]
async fn pods_leave_tainted_nodes_when_their_toleration_ends() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    let pod = |name: &str, seconds: i64| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "i"}], "tolerations": [
                {"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]}})
    };
    p.create("pods", pod("short", 30)).await;
    p.create("pods", pod("long", 300)).await;
    let bound = async || p.list("pods").await.iter().all(|p| p.str_at(&["spec", "nodeName"]).is_some()).then_some(());
    p.until("both to be bound", bound).await;
    p.patch("nodes", "n1", json!({"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}})).await;
    let started = tokio::time::Instant::now();
    p.until("one to go", async || (p.list("pods").await.len() == 1).then_some(())).await;
    let after = started.elapsed().as_secs();
    assert!((29..=35).contains(&after), "{after}");
    p.patch("nodes", "n1", json!({"spec": {"taints": null}})).await;
    let event = |text: &str| {
        let text = text.to_owned();
        let p = &p;
        async move {
            let events = p.list("events").await;
            let found = events.into_iter().find(|e| e.str_at(&["message"]) == Some(&*text))?;
            assert_eq!(found.str_at(&["reason"]), Some("TaintManagerEviction"));
            assert_eq!(found.str_at(&["source", "component"]), Some("taint-eviction-controller"));
            Some(())
        }
    };
    p.until("an event", async || event("Marking for deletion Pod default/short").await).await;
    p.until("an event", async || event("Cancelling deletion of Pod default/long").await).await;
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    assert_eq!(p.list("pods").await.len(), 1);
}

/// Clauses: C14.resource-claims
#[tokio::test(start_paused = true)]
async fn claims_of_devices_come_from_templates_and_are_released() {
    let p = Plane::start().await;
    p.node("n1", "8").await;
    let request = json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}});
    let pod = |name: &str, node: &str, claims: serde_json::Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}], "resourceClaims": claims}})
    };
    p.create("pods", pod("p", "", json!([{"name": "gpu", "resourceClaimTemplateName": "t"}]))).await;
    p.until("an event about the template", async || {
        let why = "PodResourceClaim gpu: resource claim template \"t\": resourceclaimtemplate.resource.k8s.io \"t\" not found";
        p.list("events").await.iter().any(|e| e.str_at(&["message"]) == Some(why)).then_some(())
    })
    .await;
    p.create("resourceclaimtemplates", json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t", "namespace": "default"}, "spec": {"metadata": {"labels": {"a": "b"}}, "spec": request}}))
        .await;
    let name = p
        .until("the claim in the pod's status", async || {
            let pod = p.api("pods").get("p").await.unwrap();
            let all = pod.at(&["status", "resourceClaimStatuses"])?.as_array()?;
            Some(all[0]["resourceClaimName"].as_str()?.to_owned())
        })
        .await;
    assert!(name.starts_with("p-gpu-"), "{name}");
    let made = p.list("resourceclaims").await;
    assert_eq!(made.len(), 1, "one, however often the pod changes");
    assert_eq!(made[0].label("a"), Some("b"));
    assert_eq!(made[0].annotation("resource.kubernetes.io/pod-claim-name"), Some("gpu"));
    let failed = client::Patch::Strategic(json!({"status": {"phase": "Failed"}}));
    p.api("pods").patch_status("p", &client::WriteOptions::default(), &failed).await.unwrap();
    p.until("the claim to go", async || p.list("resourceclaims").await.is_empty().then_some(())).await;

    // A claim that pods share is reserved for those that run, and deallocated after the last.
    p.create("resourceclaims", json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "shared", "namespace": "default", "finalizers": ["resource.kubernetes.io/delete-protection"]},
        "spec": request}))
        .await;
    let allocated = json!({"status": {"allocation": {"devices": {"results": [
        {"request": "r", "driver": "gpu.example.com", "pool": "n1", "device": "d"}]}}}});
    let allocated = client::Patch::Merge(allocated);
    p.api("resourceclaims").patch_status("shared", &client::WriteOptions::default(), &allocated).await.unwrap();
    let uses = json!([{"name": "gpu", "resourceClaimName": "shared"}]);
    let user = p.create("pods", pod("q", "n1", uses)).await;
    p.until("the reservation", async || {
        let claim = p.api("resourceclaims").get("shared").await.unwrap();
        let all = claim.at(&["status", "reservedFor"])?.as_array()?.clone();
        (all[0]["uid"] == user.uid()).then_some(())
    })
    .await;
    p.api("pods").delete("q", &DeleteOptions::default().with_grace(0)).await.unwrap();
    p.until("the claim to be free", async || {
        let claim = p.api("resourceclaims").get("shared").await.unwrap();
        let free = claim.at(&["status", "reservedFor"]).is_none() && claim.at(&["status", "allocation"]).is_none();
        (free && claim.finalizers().next().is_none()).then_some(())
    })
    .await;
}
