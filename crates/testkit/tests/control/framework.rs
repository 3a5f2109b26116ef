//! The extension points of the scheduler, with a plugin of the test.

use crate::harness::Plane;
use client::Informers;
use futures::future::BoxFuture;
use scheduler::Cluster;
use scheduler::cluster::Node;
use scheduler::framework::{Nomination, Permit, Plugin, PostFilter, PostFilterContext, PreFilter, PreScore, Refusal};
use scheduler::pod::Pod;
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NAME: &str = "Probe";

/// Records which of its extension points are called for each pod. Labels of a pod select the results.
#[derive(Clone)]
struct Probe {
    client: client::Client,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Probe {
    fn call(&self, point: &str, pod: &Pod) {
        self.calls.lock().unwrap().push(format!("{} {point}", pod.meta.name));
    }

    /// Takes the calls for a pod, once the last one was `last`.
    async fn taken(&self, pod: &str, last: &str) -> Vec<String> {
        let last = format!("{pod} {last}");
        for _ in 0..1000 {
            if self.calls.lock().unwrap().iter().rfind(|c| c.starts_with(&format!("{pod} "))) == Some(&last) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut calls = self.calls.lock().unwrap();
        let own = calls.iter().filter_map(|c| Some(c.strip_prefix(pod)?.strip_prefix(' ')?.to_owned())).collect();
        calls.retain(|c| !c.starts_with(&format!("{pod} ")));
        own
    }
}

impl Plugin for Probe {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pre_enqueue(&self, pod: &Pod) -> Result<(), Refusal> {
        self.call("PreEnqueue", pod);
        Ok(())
    }

    fn pre_filter<'a>(&'a self, pod: &'a Pod, _: &'a Cluster) -> PreFilter<'a> {
        self.call("PreFilter", pod);
        if pod.meta.label("refuse") == Some("all") {
            return Err(Refusal::unresolvable(NAME, "no node is good enough"));
        }
        Ok(None)
    }

    fn post_filter(&self, context: &PostFilterContext<'_>) -> PostFilter {
        let pod = context.pod;
        self.call("PostFilter", pod);
        let Some(victim) = pod.meta.label("instead-of") else { return PostFilter::Pass };
        let mut nodes = context.cluster.nodes().iter();
        let Some(node) = nodes.find(|n| n.pods.iter().any(|p| *p.meta.name == *victim)) else {
            return PostFilter::Pass;
        };
        let victims = node.pods.iter().filter(|p| *p.meta.name == *victim).cloned().collect();
        PostFilter::Nominated(Nomination { node: node.name.clone(), victims })
    }

    fn pre_score<'a>(&'a self, pod: &'a Pod, _: &'a Cluster, _: &[&'a Node]) -> PreScore<'a> {
        self.call("PreScore", pod);
        Ok(None)
    }

    fn reserve(&self, pod: &Pod, _: &str, _: &Cluster) -> Result<(), Refusal> {
        self.call("Reserve", pod);
        Ok(())
    }

    fn unreserve(&self, pod: &Pod, _: &str) {
        self.call("Unreserve", pod);
    }

    fn permit(&self, pod: &Pod, _: &str) -> Permit {
        self.call("Permit", pod);
        let rejected = pod.meta.label("reject").is_some();
        let never = pod.meta.label("permit") == Some("never");
        Permit::Wait(Box::pin(async move {
            if never {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
            if rejected { Err("the permit was rejected".into()) } else { Ok(()) }
        }))
    }

    fn pre_bind(&self, pod: &Arc<Pod>, _: &Arc<str>) -> Option<BoxFuture<'static, Result<(), client::Error>>> {
        self.call("PreBind", pod);
        assert!(pod.meta.label("panic") != Some("now"), "a test panics");
        let lost = pod.meta.label("lose").map(|_| self.client.clone());
        Some(Box::pin(async move {
            match lost {
                Some(client) => client.get::<serde_json::Value>("/api/v1/nodes/lost").await.map(|_| ()),
                None => Ok(()),
            }
        }))
    }

    fn post_bind(&self, pod: &Pod, _: &str) {
        self.call("PostBind", pod);
    }
}

/// A plane with two nodes and a second scheduler, `probing`, with the plugin.
async fn probing(bindings: usize) -> (Plane, Probe, supervisor::Trigger) {
    let p = Plane::start().await;
    p.node("a", "1").await;
    p.node("b", "1").await;
    p.until("nodes without taints", async || {
        p.list("nodes").await.iter().all(|n| n.at(&["spec", "taints"]).is_none()).then_some(())
    })
    .await;
    let (trigger, shutdown) = supervisor::shutdown();
    let (client, cluster) = (p.client.clone(), &p.cluster);
    let informers = Informers::new(client.clone(), cluster.rng.clone(), shutdown.clone());
    let mut options = scheduler::Options::new(client.clone(), informers, cluster.clock.clone(), cluster.rng.clone());
    options.configuration.profiles = vec![scheduler::configuration::Profile::new("probing")];
    options.bindings = bindings;
    let probe = Probe { client, calls: Arc::default() };
    options.plugins.push(Arc::new(probe.clone()));
    tokio::spawn(scheduler::run(options, shutdown));
    (p, probe, trigger)
}

impl Plane {
    async fn probed(&self, name: &str, labels: serde_json::Value, cpu: &str) {
        let containers = json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]);
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "labels": labels},
            "spec": {"schedulerName": "probing", "containers": containers}});
        self.create("pods", pod).await;
    }

    async fn bound(&self, name: &str) -> String {
        self.until(name, async || {
            let pod = self.api("pods").get(name).await.unwrap();
            pod.str_at(&["spec", "nodeName"]).map(str::to_owned)
        })
        .await
    }
}

/// Pods that wait for a Permit plugin took all places of bindings, and the scheduler stood still; nothing ended the wait of a pod that was
/// deleted, and its resources stayed taken.
#[tokio::test(start_paused = true)]
async fn pods_that_wait_for_permits_delay_no_others() {
    let (p, probe, _trigger) = probing(1).await;
    for n in 0..3 {
        p.probed(&format!("waiting{n}"), json!({"permit": "never"}), "600m").await;
    }
    p.probed("good", json!({}), "100m").await;
    p.bound("good").await;
    for n in 0..2 {
        p.api("pods").delete(&format!("waiting{n}"), &client::DeleteOptions::default()).await.unwrap();
        probe.taken(&format!("waiting{n}"), "Unreserve").await;
    }
    p.probed("next", json!({}), "600m").await;
    p.bound("next").await;
}

/// A pod whose plugin panicked while it was bound counted as placed for ever; one that was edited meanwhile was tried again as it had been.
#[tokio::test(start_paused = true)]
async fn bindings_that_fail_are_tried_again_with_the_pod_as_it_is() {
    let (p, probe, _trigger) = probing(8).await;
    p.probed("panics", json!({"panic": "now"}), "100m").await;
    probe.taken("panics", "Unreserve").await;
    p.patch("pods", "panics", json!({"metadata": {"labels": {"panic": "over"}}})).await;
    p.bound("panics").await;

    p.probed("edited", json!({"reject": "x"}), "100m").await;
    probe.taken("edited", "Permit").await;
    p.patch("pods", "edited", json!({"metadata": {"labels": {"reject": null}}})).await;
    p.bound("edited").await;
}

#[tokio::test(start_paused = true)]
async fn plugins_are_called_at_every_extension_point() {
    let (p, probe, _trigger) = probing(128).await;
    let create = async |name: &str, labels, cpu: &str| p.probed(name, labels, cpu).await;
    let bound = async |name: &str| p.bound(name).await;
    let reported = async |name: &str, message: &str| {
        p.until(message, async || {
            let events = p.list("events").await;
            let has = |e: &meta::Object| {
                e.str_at(&["involvedObject", "name"]) == Some(name)
                    && e.str_at(&["message"]).is_some_and(|m| m.contains(message))
            };
            events.iter().any(has).then_some(())
        })
        .await;
    };

    let before = tokio::time::Instant::now();
    create("good", json!({}), "500m").await;
    bound("good").await;
    assert!(before.elapsed() >= Duration::from_secs(3), "the permit was waited for");
    let calls = probe.taken("good", "PostBind").await;
    assert_eq!(calls, ["PreEnqueue", "PreFilter", "PreScore", "Reserve", "Permit", "PreBind", "PostBind"]);

    create("refused", json!({"refuse": "all"}), "100m").await;
    reported("refused", "0/2 nodes are available: no node is good enough.").await;
    assert_eq!(probe.taken("refused", "PostFilter").await, ["PreEnqueue", "PreFilter", "PostFilter"]);

    create("rejected", json!({"reject": "x"}), "100m").await;
    reported("rejected", "the permit was rejected").await;
    assert!(probe.taken("rejected", "Unreserve").await.ends_with(&["Permit".into(), "Unreserve".into()]));

    create("lost", json!({"lose": "x"}), "100m").await;
    reported("lost", "running PreBind plugin \"Probe\": nodes \"lost\" not found").await;
    assert!(probe.taken("lost", "Unreserve").await.ends_with(&["PreBind".into(), "Unreserve".into()]));
    p.api("pods").delete("lost", &client::DeleteOptions::default()).await.unwrap();

    create("full", json!({}), "900m").await;
    bound("full").await;
    create("urgent", json!({"instead-of": "full"}), "800m").await;
    let pod = p
        .until("the nomination", async || {
            let pod = p.api("pods").get("urgent").await.unwrap();
            pod.str_at(&["status", "nominatedNodeName"]).is_some().then_some(pod)
        })
        .await;
    let nominated = pod.str_at(&["status", "nominatedNodeName"]).unwrap().to_owned();
    assert_eq!(bound("urgent").await, nominated);
    assert!(p.api("pods").get_opt("full").await.unwrap().is_none(), "the victim is gone");
}
