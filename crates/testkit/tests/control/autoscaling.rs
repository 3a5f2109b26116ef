//! HorizontalPodAutoscalers in virtual time. Metrics come from a function behind the controllers' client.

use super::harness::Plane;
use client::{DeleteOptions, Patch, WriteOptions};
use jiff::SignedDuration;
use meta::{Clock, Object, Value};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Milli-cores that the pods of `app=web` use in total.
type Load = Arc<AtomicI64>;

fn load(milli: i64) -> Load {
    Arc::new(AtomicI64::new(milli))
}

impl Plane {
    /// Serves the resource metrics API: running pods share `load`.
    fn measure(&self, load: &Load) {
        let (registry, clock, load) = (self.cluster.server.registry.clone(), self.cluster.clock.clone(), load.clone());
        *self.metrics.lock().unwrap() = Some(Box::new(move |path| {
            assert_eq!(path, "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods?labelSelector=app%3Dweb");
            let snapshot = registry.store.snapshot();
            let resource: store::Str = "pods".into();
            let pods = snapshot.range(&resource, Some("default"), None);
            let pods: Vec<Value> = pods.filter_map(|e| serde_json::from_slice(&e.value).ok()).collect();
            let running = |p: &&Value| p["status"]["phase"] == "Running" && p["metadata"]["labels"]["app"] == "web";
            let running: Vec<&Value> = pods.iter().filter(running).collect();
            let each = load.load(Ordering::Relaxed) / running.len().max(1) as i64;
            let metrics = |p: &&Value| {
                json!({"metadata": {"name": p["metadata"]["name"]}, "timestamp": meta::time::format(clock.now()),
                    "window": "15s", "containers": [{"name": "c", "usage": {"cpu": format!("{each}m"), "memory": "64Mi"}}]})
            };
            (200, json!({"kind": "PodMetricsList", "items": running.iter().map(metrics).collect::<Vec<_>>()}))
        }));
    }

    /// The deployment `web`, whose pods request half a core.
    async fn web(&self, replicas: i64) {
        if self.list("nodes").await.is_empty() {
            self.node("n1", "64").await;
        }
        self.create("deployments", json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "500m"}}}]},
                },
            },
        }))
        .await;
        self.rolled_out("web").await;
    }

    /// The autoscaler `web` of the deployment `web`, for half of the requested CPU.
    async fn autoscale(&self, spec: Value) -> Object {
        let mut all = json!({
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "minReplicas": 1, "maxReplicas": 10,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}],
        });
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        self.create(
            "horizontalpodautoscalers",
            json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "web", "namespace": "default"}, "spec": all}),
        )
        .await
    }

    async fn autoscaler(&self) -> Object {
        self.api("horizontalpodautoscalers").get("web").await.unwrap()
    }

    async fn replicas(&self) -> i64 {
        self.api("deployments").get("web").await.unwrap().int_at(&["spec", "replicas"]).unwrap()
    }

    async fn scaled_to(&self, replicas: i64) -> Instant {
        self.until(&format!("{replicas} replicas"), async || (self.replicas().await == replicas).then_some(())).await;
        Instant::now()
    }

    /// Waits for a condition of the autoscaler: its status, reason and message.
    async fn condition(&self, kind: &str, status: &str, reason: &str) -> String {
        let found = async || {
            let o = self.autoscaler().await;
            let c = o.at(&["status", "conditions"])?.as_array()?.iter().find(|c| c["type"] == kind)?.clone();
            (c["status"] == status && c["reason"] == reason).then(|| c["message"].as_str().unwrap().to_owned())
        };
        let last = async || self.autoscaler().await.at(&["status", "conditions"]).cloned();
        match tokio::time::timeout(Duration::from_secs(600), self.until(reason, found)).await {
            Ok(message) => message,
            Err(_) => panic!("{kind}={status} {reason} did not come: {:?}", last().await),
        }
    }

    /// Waits for an event of the autoscaler.
    async fn event(&self, reason: &str, message: &str) {
        self.until(message, async || {
            let is_it = |e: &Object| {
                e.str_at(&["reason"]) == Some(reason)
                    && e.str_at(&["message"]) == Some(message)
                    && e.str_at(&["source", "component"]) == Some("horizontal-pod-autoscaler")
                    && e.str_at(&["involvedObject", "apiVersion"]) == Some("autoscaling/v2")
            };
            self.list("events").await.iter().any(is_it).then_some(())
        })
        .await;
    }
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// Clauses: C03.scale-up, C03.scale-down, C03.stabilization, C03.conditions, C03.events, C03.currentMetrics
#[tokio::test(start_paused = true)]
async fn replicas_follow_the_load() {
    let p = Plane::start().await;
    let load = load(2000);
    p.measure(&load);
    p.web(1).await;
    let begun = Instant::now();
    p.autoscale(json!({})).await;
    let at = p.scaled_to(4).await;
    assert_eq!(at.duration_since(begun).as_secs(), 15, "the first look");
    p.condition("ScalingLimited", "True", "ScaleUpLimit").await;
    p.event("SuccessfulRescale", "New size: 4; reason: cpu resource utilization (percentage of request) above target")
        .await;
    // The new pods count as soon as their samples are of their time.
    let at = p.scaled_to(8).await.duration_since(at).as_secs();
    assert!((15..=45).contains(&at), "{at} s");
    let settled = p.condition("AbleToScale", "True", "ReadyForNewScale").await;
    assert_eq!(settled, "recommended size matches current size");
    let o = p.autoscaler().await;
    let status = |field: &str| o.at(&["status", field]).cloned().unwrap_or_default();
    assert_eq!((status("currentReplicas"), status("desiredReplicas")), (8.into(), 8.into()));
    let current = json!({"averageUtilization": 50, "averageValue": "250m"});
    assert_eq!(
        status("currentMetrics"),
        json!([{"type": "Resource", "resource": {"name": "cpu", "current": current}}])
    );
    assert!(status("lastScaleTime").is_string());
    assert_eq!(status("observedGeneration"), Value::Null, "upstream's controller does not set it");
    let message = p.condition("ScalingActive", "True", "ValidMetricFound").await;
    let valid = "the HPA was able to successfully calculate a replica count from cpu resource utilization (percentage of request)";
    assert_eq!(message, valid);
    p.condition("ScalingLimited", "False", "DesiredWithinRange").await;

    load.store(400, Ordering::Relaxed);
    let begun = Instant::now();
    let message = p.condition("AbleToScale", "True", "ScaleDownStabilized").await;
    assert_eq!(
        message,
        "recent recommendations were higher than current one, applying the highest recent recommendation"
    );
    let at = p.scaled_to(2).await.duration_since(begun).as_secs();
    assert!((285..=330).contains(&at), "{at} s");
    p.event("SuccessfulRescale", "New size: 2; reason: All metrics below target").await;
    load.store(0, Ordering::Relaxed);
    p.scaled_to(1).await;
    p.condition("ScalingLimited", "True", "TooFewReplicas").await;
}

/// Clauses: C03.behavior-policies, C03.tolerance
#[tokio::test(start_paused = true)]
async fn a_behavior_sets_the_pace() {
    let p = Plane::start().await;
    let load = load(5000);
    p.measure(&load);
    p.web(2).await;
    p.autoscale(json!({"behavior": {
        "scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]},
        "scaleDown": {"stabilizationWindowSeconds": 0, "tolerance": "0.5", "policies": [{"type": "Pods", "value": 2, "periodSeconds": 30}]},
    }}))
    .await;
    let first = p.scaled_to(3).await;
    let second = p.scaled_to(4).await;
    assert_eq!(second.duration_since(first).as_secs(), 60);
    p.condition("ScalingLimited", "True", "ScaleUpLimit").await;
    p.scaled_to(10).await;
    p.condition("ScalingLimited", "True", "TooManyReplicas").await;
    // Within the tolerance.
    load.store(1500, Ordering::Relaxed);
    pass(120).await;
    assert_eq!(p.replicas().await, 10);
    load.store(1000, Ordering::Relaxed);
    let first = p.scaled_to(8).await;
    load.store(100, Ordering::Relaxed);
    let second = p.scaled_to(6).await;
    assert_eq!(second.duration_since(first).as_secs(), 30);
    p.condition("ScalingLimited", "True", "ScaleDownLimit").await;
}

/// Clauses: C03.missing-metrics
#[tokio::test(start_paused = true)]
async fn the_metrics_api_comes_and_goes() {
    let p = Plane::start().await;
    p.web(2).await;
    p.autoscale(json!({"metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "100m"}}}]}))
        .await;
    let unable = |why: &str| {
        format!(
            "the HPA was unable to compute the replica count: failed to get cpu usage: unable to get metrics for resource cpu: {why}"
        )
    };
    let expected = "unable to fetch metrics from resource metrics API: the server could not find the requested resource (get pods.metrics.k8s.io)";
    assert_eq!(p.condition("ScalingActive", "False", "FailedGetResourceMetric").await, unable(expected));
    let failed = format!("failed to get cpu usage: unable to get metrics for resource cpu: {expected}");
    p.event("FailedGetResourceMetric", &failed).await;
    let all = format!(
        "invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: {failed}"
    );
    p.event("FailedComputeMetricsReplicas", &all).await;
    assert_eq!(p.autoscaler().await.at(&["status", "currentMetrics"]), Some(&json!([{"type": ""}])));
    let answers = [
        (
            503,
            json!({}),
            "unable to fetch metrics from resource metrics API: the server is currently unable to handle the request (get pods.metrics.k8s.io)",
        ),
        (200, json!({"items": []}), "no metrics returned from resource metrics API"),
        (
            403,
            json!({"kind": "Status", "apiVersion": "v1", "code": 403, "reason": "Forbidden", "message": "no, thanks", "details": {}}),
            "unable to fetch metrics from resource metrics API: no, thanks",
        ),
    ];
    for (code, body, why) in answers {
        *p.metrics.lock().unwrap() = Some(Box::new(move |_| (code, body.clone())));
        p.until(why, async || {
            (p.condition("ScalingActive", "False", "FailedGetResourceMetric").await == unable(why)).then_some(())
        })
        .await;
    }
    assert_eq!(p.replicas().await, 2);
    p.measure(&load(800));
    p.scaled_to(8).await;
    p.condition("ScalingActive", "True", "ValidMetricFound").await;
    assert_eq!(
        p.autoscaler().await.at(&["status", "currentMetrics"]).unwrap()[0]["resource"]["current"]["averageValue"],
        "200m"
    );
}

/// Metrics that fail do not matter when replicas are added, and keep replicas from being removed.
///
/// Clauses: C03.several-metrics, C03.external-metric, C03.object-metric
#[tokio::test(start_paused = true)]
async fn the_largest_of_several_metrics_counts() {
    let p = Plane::start().await;
    p.web(3).await;
    let answer = |queue: Option<i64>, hits: i64| {
        Box::new(move |path: &str| {
            let value = |v: i64| json!({"describedObject": {"name": "x"}, "timestamp": "2026-01-01T00:00:00Z", "value": v.to_string()});
            match path {
                "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue%20length?labelSelector=name%3Dwork" => {
                    match queue {
                        Some(v) => (200, json!({"items": [{"value": v.to_string()}, {"value": "500m"}]})),
                        None => (
                            500,
                            json!({"kind": "Status", "apiVersion": "v1", "code": 500, "message": "broken", "details": {}}),
                        ),
                    }
                }
                "/apis/custom.metrics.k8s.io" => {
                    let version = |v: &str| json!({"groupVersion": format!("custom.metrics.k8s.io/{v}")});
                    (200, json!({"preferredVersion": version("v1beta1"), "versions": [version("v1beta1")]}))
                }
                "/apis/custom.metrics.k8s.io/v1beta1/namespaces/default/services/front/hits" => {
                    (200, json!({"items": [value(hits)]}))
                }
                other => panic!("{other}"),
            }
        })
    };
    *p.metrics.lock().unwrap() = Some(answer(Some(20), 10));
    p.autoscale(json!({"metrics": [
        {"type": "External", "external": {"metric": {"name": "queue length", "selector": {"matchLabels": {"name": "work"}}}, "target": {"type": "AverageValue", "averageValue": "5"}}},
        {"type": "Object", "object": {"describedObject": {"apiVersion": "v1", "kind": "Service", "name": "front"}, "metric": {"name": "hits"},
            "target": {"type": "Value", "value": "10"}}},
    ], "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}))
    .await;
    p.scaled_to(5).await;
    let name = "external metric queue length(&LabelSelector{MatchLabels:map[string]string{name: work,},MatchExpressions:[]LabelSelectorRequirement{},})";
    p.event("SuccessfulRescale", &format!("New size: 5; reason: {name} above target")).await;
    p.rolled_out("web").await;
    pass(15).await;
    let selector = json!({"matchLabels": {"name": "work"}});
    let expected = json!([
        {"type": "External", "external": {"metric": {"name": "queue length", "selector": selector}, "current": {"averageValue": "4100m"}}},
        {"type": "Object", "object": {"describedObject": {"apiVersion": "v1", "kind": "Service", "name": "front"}, "metric": {"name": "hits"},
            "current": {"value": "10"}}},
    ]);
    assert_eq!(p.autoscaler().await.at(&["status", "currentMetrics"]), Some(&expected));
    // One is broken, the other asks for more.
    *p.metrics.lock().unwrap() = Some(answer(None, 14));
    p.scaled_to(7).await;
    p.event("SuccessfulRescale", "New size: 7; reason: Service metric hits above target").await;
    p.rolled_out("web").await;
    // One is broken, the other asks for fewer.
    *p.metrics.lock().unwrap() = Some(answer(None, 1));
    let message = p.condition("ScalingActive", "False", "FailedGetExternalMetric").await;
    let why = format!(
        "unable to get external metric default/queue length/{}: unable to fetch metrics from external metrics API: broken",
        &name["external metric queue length(".len()..name.len() - 1]
    );
    assert_eq!(message, format!("the HPA was unable to compute the replica count: {why}"));
    let all = format!(
        "invalid metrics (1 invalid out of 2), first error is: failed to get queue length external metric value: failed to get queue length external metric: {why}"
    );
    p.event("FailedComputeMetricsReplicas", &all).await;
    assert_eq!(p.replicas().await, 7);
    *p.metrics.lock().unwrap() = Some(answer(Some(4), 1));
    p.scaled_to(1).await;
}

/// Clauses: C03.v1
#[tokio::test(start_paused = true)]
async fn an_autoscaler_of_v1_scales_too() {
    let p = Plane::start().await;
    p.measure(&load(1000));
    p.web(1).await;
    let path = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    let o = json!({"metadata": {"name": "web"}, "spec": {"maxReplicas": 5, "targetCPUUtilizationPercentage": 80,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
    assert_eq!(p.cluster.call("POST", path, o).await.code, 201);
    p.scaled_to(3).await;
    p.rolled_out("web").await;
    pass(60).await;
    let o = p.cluster.call("GET", &format!("{path}/web"), Value::Null).await.body;
    assert_eq!(o["status"]["currentReplicas"], 3);
    assert_eq!(o["status"]["currentCPUUtilizationPercentage"], 66);
    let conditions: Value = serde_json::from_str(
        o["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/conditions"].as_str().unwrap(),
    )
    .unwrap();
    let kinds: Vec<&str> = conditions.as_array().unwrap().iter().map(|c| c["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["AbleToScale", "ScalingActive", "ScalingLimited"]);
    // The annotations that v1 shows are the status of v2 when they come back.
    let answer = p.cluster.call("PUT", &format!("{path}/web"), o).await;
    assert_eq!(answer.code, 200, "{answer:?}");
    assert_eq!(p.autoscaler().await.at(&["status", "conditions"]).unwrap().as_array().unwrap().len(), 3);
}

/// A custom resource that can be scaled, by a custom metric of its pods.
///
/// Clauses: C03.custom-resource, C03.pods-metric
#[tokio::test(start_paused = true)]
async fn custom_resources_are_scaled() {
    let p = Plane::start().await;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let scale = json!({"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size", "labelSelectorPath": ".status.selector"});
    let definition = json!({"metadata": {"name": "toys.play.example.com"}, "spec": {"group": "play.example.com",
        "scope": "Namespaced", "names": {"plural": "toys", "kind": "Toy"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
            "subresources": {"scale": scale, "status": {}}}]}});
    assert_eq!(
        p.cluster.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await.code,
        201
    );
    let toys = "/apis/play.example.com/v1/namespaces/default/toys";
    p.until("the resource", async || (p.cluster.call("GET", toys, Value::Null).await.code == 200).then_some(())).await;
    let toy =
        json!({"apiVersion": "play.example.com/v1", "kind": "Toy", "metadata": {"name": "t"}, "spec": {"size": 2}});
    assert_eq!(p.cluster.call("POST", toys, toy).await.code, 201);
    let toy = || async { p.cluster.call("GET", &format!("{toys}/t"), Value::Null).await.body };
    p.node("n1", "8").await;
    for name in ["a", "b"] {
        p.create("pods", json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": {"toy": "t"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}))
        .await;
    }
    *p.metrics.lock().unwrap() = Some(Box::new(|path| match path {
        "/apis/custom.metrics.k8s.io" => {
            let version = |v: &str| json!({"groupVersion": format!("custom.metrics.k8s.io/{v}")});
            (200, json!({"preferredVersion": version("v1beta2"), "versions": [version("v1beta2"), version("v1beta1")]}))
        }
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/%2A/games?labelSelector=toy%20in%20%28t%2Cu%29" => {
            let value = |pod: &str| json!({"describedObject": {"name": pod}, "timestamp": "2026-01-01T00:00:00Z", "value": "3"});
            (200, json!({"items": [value("a"), value("b")]}))
        }
        other => panic!("{other}"),
    }));
    p.autoscale(json!({"scaleTargetRef": {"apiVersion": "play.example.com/v7", "kind": "Toy", "name": "t"},
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": "games"}, "target": {"type": "AverageValue", "averageValue": "1"}}}]}))
    .await;
    let message = p.condition("ScalingActive", "False", "InvalidSelector").await;
    assert_eq!(message, "the HPA target's scale is missing a selector");
    p.event("SelectorRequired", "selector is required").await;
    let status = |selector: &str| json!({"status": {"size": 2, "selector": selector}});
    let patch = async |v: Value| {
        let r = client::ApiResource::named("play.example.com", "v1", "toys", "Toy", true);
        let api = p.client.dynamic(&r).namespace("default");
        api.patch_status("t", &WriteOptions::default(), &Patch::Merge(v)).await.unwrap();
    };
    patch(status("a in (")).await;
    let message = p.until("the message", async || {
        Some(p.condition("ScalingActive", "False", "InvalidSelector").await).filter(|m| m.contains("convert"))
    });
    assert!(message.await.starts_with("couldn't convert selector into a corresponding internal selector object: "));
    patch(status("toy in (t,u)")).await;
    p.until("six toys", async || (toy().await["spec"]["size"] == 6).then_some(())).await;
    p.event("SuccessfulRescale", "New size: 6; reason: pods metric games above target").await;
    assert_eq!(
        p.autoscaler().await.at(&["status", "currentMetrics"]).unwrap()[0]["pods"]["current"]["averageValue"],
        "3"
    );
}

/// Clauses: C03.target-gone
#[tokio::test(start_paused = true)]
async fn the_target_comes_and_goes() {
    let p = Plane::start().await;
    p.measure(&load(1000));
    p.web(2).await;
    p.autoscale(json!({})).await;
    p.condition("AbleToScale", "True", "SucceededRescale").await;
    p.scaled_to(4).await;
    let unable = "the HPA controller was unable to get the target's current scale:";
    p.api("deployments").delete("web", &DeleteOptions::default()).await.unwrap();
    let message = p.condition("AbleToScale", "False", "FailedGetScale").await;
    assert_eq!(message, format!("{unable} deployments.apps \"web\" not found"));
    p.event("FailedGetScale", "deployments.apps \"web\" not found").await;
    p.until("the pods to go", async || p.list("pods").await.is_empty().then_some(())).await;
    p.web(1).await;
    p.scaled_to(4).await;
    let targets = [
        ("apps/v1", "Toy", "no matches for kind \"Toy\" in group \"apps\""),
        ("none.example.com/v1", "Toy", "no matches for kind \"Toy\" in group \"none.example.com\""),
    ];
    for (version, kind, why) in targets {
        let target = json!({"spec": {"scaleTargetRef": {"apiVersion": version, "kind": kind, "name": "web"}}});
        p.patch("horizontalpodautoscalers", "web", target).await;
        p.event("FailedGetScale", why).await;
    }
    assert_eq!(p.replicas().await, 4);
}

/// Clauses: C03.scaling-disabled, C03.min-max
#[tokio::test(start_paused = true)]
async fn limits_apply_at_once_and_zero_disables() {
    let p = Plane::start().await;
    p.measure(&load(400));
    p.web(6).await;
    p.autoscale(json!({"minReplicas": 2, "maxReplicas": 5})).await;
    p.scaled_to(5).await;
    p.event("SuccessfulRescale", "New size: 5; reason: Current number of replicas above Spec.MaxReplicas").await;
    p.patch("horizontalpodautoscalers", "web", json!({"spec": {"minReplicas": 8, "maxReplicas": 9}})).await;
    p.scaled_to(8).await;
    p.event("SuccessfulRescale", "New size: 8; reason: Current number of replicas below Spec.MinReplicas").await;
    p.patch("deployments", "web", json!({"spec": {"replicas": 0}})).await;
    let message = p.condition("ScalingActive", "False", "ScalingDisabled").await;
    assert_eq!(message, "scaling is disabled since the replica count of the target is zero");
    pass(120).await;
    assert_eq!(p.replicas().await, 0);
    let o = p.autoscaler().await;
    assert_eq!(o.int_at(&["status", "desiredReplicas"]), Some(0));
    let version = o.resource_version().to_owned();
    pass(60).await;
    assert_eq!(p.autoscaler().await.resource_version(), version, "nothing changes");
    p.patch("deployments", "web", json!({"spec": {"replicas": 1}})).await;
    p.scaled_to(8).await;
}

/// Clauses: C03.conflicts
#[tokio::test(start_paused = true)]
async fn conflicting_updates_are_repeated() {
    let p = Plane::start().await;
    p.measure(&load(600));
    p.web(2).await;
    p.conflicts.store(4, Ordering::Relaxed);
    let begun = Instant::now();
    p.autoscale(json!({})).await;
    p.scaled_to(3).await;
    assert_eq!(begun.elapsed().as_secs(), 15, "at the first sync");
    p.rolled_out("web").await;
    p.conflicts.store(5, Ordering::Relaxed);
    p.patch("horizontalpodautoscalers", "web", json!({"spec": {"minReplicas": 6}})).await;
    let message = p.condition("AbleToScale", "False", "FailedUpdateScale").await;
    assert_eq!(message, "the HPA controller was unable to update the target scale: somebody else was faster");
    let text =
        "New size: 6; reason: Current number of replicas below Spec.MinReplicas; error: somebody else was faster";
    p.event("FailedRescale", text).await;
    p.scaled_to(6).await;
    p.condition("AbleToScale", "True", "ReadyForNewScale").await;
}

/// Clauses: C03.ambiguous-selector
#[tokio::test(start_paused = true)]
async fn two_autoscalers_of_the_same_pods_do_nothing() {
    let p = Plane::start().await;
    p.measure(&load(3000));
    p.web(2).await;
    let mut second = p.autoscale(json!({})).await;
    second.set_name("web2");
    second.metadata_mut().remove("resourceVersion");
    second.metadata_mut().remove("uid");
    p.create("horizontalpodautoscalers", second.into_value()).await;
    // The first to be looked at knows nothing of the other yet.
    let text = "pods by selector app=web are controlled by multiple HPAs: [default/web default/web2]";
    assert_eq!(p.condition("ScalingActive", "False", "AmbiguousSelector").await, text);
    p.event("AmbiguousSelector", text).await;
    p.event("FailedComputeMetricsReplicas", text).await;
    let replicas = p.replicas().await;
    pass(120).await;
    assert_eq!(p.replicas().await, replicas);
    p.api("horizontalpodautoscalers").delete("web2", &DeleteOptions::default()).await.unwrap();
    p.scaled_to(10).await;
}

/// Windows are those of the time that passes.
///
/// Clauses: C03.stabilization
#[tokio::test(start_paused = true)]
async fn jumps_of_the_clock_end_no_window() {
    let p = Plane::start().await;
    let clock = &p.component("horizontal-pod-autoscaler").unwrap().clock;
    let load = load(2000);
    p.measure(&load);
    p.web(8).await;
    pass(300).await;
    p.autoscale(json!({})).await;
    p.condition("ScalingActive", "True", "ValidMetricFound").await;
    load.store(250, Ordering::Relaxed);
    let begun = Instant::now();
    for jump in [36_000, -72_000, 396_000] {
        clock.jump(SignedDuration::from_secs(jump));
        pass(60).await;
        assert_eq!(p.replicas().await, 8, "{jump}");
    }
    let at = p.scaled_to(1).await.duration_since(begun).as_secs();
    assert!((285..=330).contains(&at), "{at} s");
}
