//! Endpoints and endpoint slices of services in virtual time.

use super::harness::Plane;
use client::{DeleteOptions, Patch, WriteOptions};
use meta::{Object, Value};
use serde_json::json;
use std::time::Duration;
use testkit::{Access, Cluster};

impl Plane {
    async fn service(&self, name: &str, more: Value) -> Object {
        let mut s = json!({"metadata": {"name": name, "namespace": "default"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}});
        for (k, v) in more.as_object().unwrap() {
            s["spec"][k] = v.clone();
        }
        self.create("services", s).await
    }

    async fn slices(&self, service: &str) -> Vec<Object> {
        let mut all = self.list("endpointslices").await;
        all.retain(|s| s.label("kubernetes.io/service-name") == Some(service));
        all
    }

    /// Each endpoint of the slices of a service as `pod's zone>hints`.
    async fn hints(&self, service: &str) -> Vec<String> {
        let mut found = Vec::new();
        for s in self.slices(service).await {
            for e in s.get("endpoints").and_then(Value::as_array).into_iter().flatten() {
                let names = |list: &Value| -> String {
                    list.as_array().into_iter().flatten().map(|z| z["name"].as_str().unwrap()).collect()
                };
                let (zones, nodes) = (names(&e["hints"]["forZones"]), names(&e["hints"]["forNodes"]));
                found.push(format!("{}>{zones}{nodes}", e["zone"].as_str().unwrap_or("-")));
            }
        }
        found.sort();
        found
    }

    async fn zone(&self, node: &str, zone: &str) {
        self.patch("nodes", node, json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}})).await;
    }

    /// A pod of a deployment runs on each of the nodes.
    async fn one_pod_per_node(&self, nodes: &[&str]) {
        for n in nodes {
            self.create(
                "pods",
                json!({"metadata": {"name": format!("on-{n}"), "namespace": "default", "labels": {"app": "web"}},
                "spec": {"nodeName": n, "containers": [{"name": "c", "image": "i"}]}}),
            )
            .await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn endpoints_say_where_they_are() {
    let p = Plane::start().await;
    for (node, zone) in [("n1", "a"), ("n2", "b")] {
        p.node(node, "4").await;
        p.zone(node, zone).await;
    }
    p.one_pod_per_node(&["n1", "n2"]).await;
    p.service("plain", json!({})).await;
    p.service("zone", json!({"trafficDistribution": "PreferClose"})).await;
    p.service("node", json!({"trafficDistribution": "PreferSameNode"})).await;
    for (service, expect) in [("plain", ["a>", "b>"]), ("zone", ["a>a", "b>b"]), ("node", ["a>an1", "b>bn2"])] {
        p.until(service, async || (p.hints(service).await == expect).then_some(())).await;
    }
    p.patch("services", "zone", json!({"spec": {"trafficDistribution": null}})).await;
    p.until("no hints", async || (p.hints("zone").await == ["a>", "b>"]).then_some(())).await;
    let mode = |m: &str| json!({"metadata": {"annotations": {"service.kubernetes.io/topology-mode": m}}});
    p.patch("services", "plain", mode("Auto")).await;
    p.reported("TopologyAwareHintsEnabled", "Topology Aware Hints has been enabled, addressType: IPv4").await;
    p.until("hints for zones", async || (p.hints("plain").await == ["a>a", "b>b"]).then_some(())).await;
    p.patch("services", "plain", mode("Disabled")).await;
    p.reported("TopologyAwareHintsDisabled", "Topology Aware Hints has been disabled, addressType: IPv4").await;
    assert_eq!(p.hints("plain").await, ["a>", "b>"]);
    // All nodes in one zone: there is nothing to distribute to.
    p.zone("n2", "a").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    p.patch("services", "node", mode("Auto")).await;
    p.reported("TopologyAwareHintsDisabled", "Insufficient Node information").await;
}

/// What the objects say beside their addresses, and what becomes of them.
#[tokio::test(start_paused = true)]
async fn endpoints_follow_their_service() {
    let p = Plane::start().await;
    p.node("n1", "4").await;
    p.one_pod_per_node(&["n1"]).await;
    let service = p.service("s", json!({"clusterIP": "None"})).await;
    let filled = async || {
        p.until("the endpoints", async || {
            let e = p.api("endpoints").get_opt("s").await.unwrap()?;
            let slices = p.slices("s").await;
            let has = |o: &Object, field: &str| o.get(field).is_some_and(|v| !v.as_array().is_none_or(Vec::is_empty));
            (has(&e, "subsets") && slices.iter().any(|s| has(s, "endpoints"))).then_some((e, slices))
        })
        .await
    };
    let (e, slices) = filled().await;
    for o in [&e, &slices[0]] {
        assert_eq!(o.label("service.kubernetes.io/headless"), Some(""));
        assert!(o.annotation("endpoints.kubernetes.io/last-change-trigger-time").is_some(), "{o:?}");
    }
    assert_eq!(e.label("endpoints.kubernetes.io/managed-by"), Some("endpoint-controller"));
    // Without a selector the endpoints are the user's.
    p.patch("services", "s", json!({"spec": {"selector": null}, "metadata": {"labels": {"a": "b"}}})).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let (kept, _) = filled().await;
    assert_eq!(kept.get("subsets"), e.get("subsets"));
    assert_eq!(kept.label("a"), None);
    p.patch("services", "s", json!({"spec": {"selector": {"app": "web"}}})).await;
    p.until("the label", async || {
        (p.api("endpoints").get("s").await.unwrap().label("a") == Some("b")
            && p.slices("s").await.iter().all(|s| s.label("a") == Some("b")))
        .then_some(())
    })
    .await;
    // Another service of the same name has slices of its own.
    p.api("services").delete("s", &DeleteOptions::default()).await.unwrap();
    let second = p.service("s", json!({})).await;
    assert_ne!(second.uid(), service.uid());
    p.until("slices of the second service", async || {
        let slices = p.slices("s").await;
        let own = |s: &Object| s.owner_references().any(|o| o.uid == second.uid());
        (!slices.is_empty() && slices.iter().all(own)).then_some(())
    })
    .await;
    p.api("services").delete("s", &DeleteOptions::default()).await.unwrap();
    p.until("everything to go", async || {
        (p.api("endpoints").get_opt("s").await.unwrap().is_none() && p.slices("s").await.is_empty()).then_some(())
    })
    .await;
}

/// A service with both families has slices of both.
#[tokio::test(start_paused = true)]
async fn pods_with_two_addresses_are_in_slices_of_both_families() {
    let ranges = ["10.96.0.0/16", "fd00:96::/112"].iter().map(|r| r.parse().unwrap()).collect();
    let cluster = Cluster::with_access(7, Access { ranges, ..Access::default() }).await;
    let p = Plane::over(cluster).await;
    p.node("n1", "4").await;
    p.one_pod_per_node(&["n1"]).await;
    p.until("the pod to run", async || {
        (p.api("pods").get("on-n1").await.unwrap().str_at(&["status", "phase"]) == Some("Running")).then_some(())
    })
    .await;
    let ip = p.api("pods").get("on-n1").await.unwrap().str_at(&["status", "podIP"]).unwrap().to_owned();
    let status = Patch::Merge(json!({"status": {"podIPs": [{"ip": ip}, {"ip": "fd00::7"}]}}));
    p.api("pods").patch_status("on-n1", &WriteOptions::default(), &status).await.unwrap();
    p.service("s", json!({"clusterIP": "None", "ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4", "IPv6"]}))
        .await;
    p.until("slices of both families", async || {
        let mut found: Vec<String> = p
            .slices("s")
            .await
            .iter()
            .map(|s| {
                let first = &s.get("endpoints").unwrap()[0]["addresses"][0];
                format!("{} {}", s.str_at(&["addressType"]).unwrap(), first.as_str().unwrap_or("-"))
            })
            .collect();
        found.sort();
        (found == [format!("IPv4 {ip}"), "IPv6 fd00::7".to_owned()]).then_some(())
    })
    .await;
}

/// `/metrics` shows what the controllers and their queues count.
#[tokio::test(start_paused = true)]
async fn controllers_are_measured() {
    let p = Plane::start().await;
    p.node("n1", "4").await;
    p.one_pod_per_node(&["n1"]).await;
    p.service("s", json!({"trafficDistribution": "PreferSameZone"})).await;
    p.until("the slice", async || (!p.hints("s").await.is_empty()).then_some(())).await;
    let text = p.cluster.send("GET", "/metrics", None, "text/plain", bytes::Bytes::new()).await.body;
    let text = text.as_str().unwrap();
    // Other tests of the process count into the same metrics.
    for series in [
        "endpoint_slice_controller_changes{operation=\"create\"}",
        "endpoint_slice_controller_syncs{result=\"success\"}",
        "node_collector_zone_size{zone=\"\"}",
        "workqueue_adds_total{name=\"endpoint_slice\"}",
        "workqueue_adds_total{name=\"endpoint\"}",
    ] {
        let line = text.lines().find_map(|l| l.strip_prefix(series));
        let value: Option<f64> = line.and_then(|v| v.trim().parse().ok());
        let near = || text.lines().filter(|l| l.starts_with(series.split('{').next().unwrap())).collect::<Vec<_>>();
        assert!(value.is_some_and(|v| v > 0.0), "{series}: {:?}", near());
    }
}
