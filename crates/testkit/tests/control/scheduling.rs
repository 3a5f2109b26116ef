//! The scheduler under bad conditions: extenders, clocks, nodes that vanish, and pods that never fit.

use crate::harness::Plane;
use bytes::Bytes;
use client::{Client, InProcess, Informers};
use http::{Request, Response};
use http_body_util::Full;
use meta::{Clock, Value};
use scheduler::configuration::{Configuration, ExtenderConfiguration, Profile};
use scheduler::extender::Extender;
use scheduler::framework::{Permit, Plugin};
use scheduler::pod::Pod;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// A clock that jumps by hours, forwards and backwards.
struct Jumping(Arc<dyn Clock>, AtomicI64);

impl Clock for Jumping {
    fn now(&self) -> jiff::Timestamp {
        let n = self.1.fetch_add(1, Ordering::Relaxed);
        let hours = if n % 2 == 0 { n % 50 } else { -(n % 50) };
        self.0.now() + jiff::SignedDuration::from_hours(hours)
    }
}

/// Makes pods with a label wait for two seconds before they are bound.
struct Slow;

impl Plugin for Slow {
    fn name(&self) -> &'static str {
        "Slow"
    }

    fn permit(&self, pod: &Pod, _: &str) -> Permit {
        match pod.meta.label("slow") {
            Some(_) => Permit::Wait(Box::pin(async {
                tokio::time::sleep(Duration::from_secs(2)).await;
                Ok(())
            })),
            None => Permit::Allow,
        }
    }
}

impl Plane {
    /// Starts another scheduler, for the pods of `other`.
    async fn other_scheduler(&self, change: impl FnOnce(&mut scheduler::Options)) -> supervisor::Trigger {
        let (trigger, shutdown) = supervisor::shutdown();
        let informers = Informers::new(self.client.clone(), self.cluster.rng.clone(), shutdown.clone());
        let (clock, rng) = (self.cluster.clock.clone(), self.cluster.rng.clone());
        let mut options = scheduler::Options::new(self.client.clone(), informers, clock, rng);
        options.configuration.profiles = vec![Profile::new("other")];
        change(&mut options);
        tokio::spawn(scheduler::run(options, shutdown));
        trigger
    }

    async fn other_pod(&self, name: &str, labels: Value, cpu: &str) {
        let containers = json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]);
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "labels": labels},
            "spec": {"schedulerName": "other", "containers": containers}});
        self.create("pods", pod).await;
    }
}

/// An extender whose answers to filter calls depend on a label of the pod.
fn extender(ignorable: bool) -> Extender {
    let text = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nextenders:\n\
                - {urlPrefix: 'http://extender', filterVerb: filter, nodeCacheCapable: true, httpTimeout: 2s}\n";
    let mut configuration: ExtenderConfiguration = Configuration::parse(text).unwrap().extenders.remove(0);
    configuration.ignorable = ignorable;
    let answer = |request: Request<Bytes>| async move {
        let call: Value = serde_json::from_slice(request.body()).unwrap();
        let answer = match call["Pod"]["metadata"]["labels"]["extender"].as_str().unwrap_or("agrees") {
            "hangs" => std::future::pending().await,
            "late" => {
                tokio::time::sleep(Duration::from_secs(30)).await;
                json!({"NodeNames": call["NodeNames"]}).to_string()
            }
            "lies" => json!({"NodeNames": ["moon"]}).to_string(),
            "babbles" => "[".repeat(100_000),
            "refuses" => json!({"nodenames": [], "FailedNodes": {"a": "the extender is tired"}}).to_string(),
            "errs" => json!({"Error": "out of order"}).to_string(),
            _ => json!({"NodeNames": call["NodeNames"]}).to_string(),
        };
        Response::new(Full::new(Bytes::from(answer)))
    };
    Extender::over(configuration, Client::new(InProcess(answer), "kube-scheduler"))
}

/// Clauses: R06.extender
#[tokio::test(start_paused = true)]
async fn extenders_that_fail_delay_only_their_pods() {
    let p = Plane::start().await;
    p.node("a", "4").await;
    let explainer = Arc::<scheduler::Explainer>::default();
    let own = explainer.clone();
    let _trigger = p
        .other_scheduler(|o| {
            o.explainer = own;
            o.extenders.push(extender(false));
        })
        .await;
    let cases = [
        ("hangs", "Post \"http://extender/filter\""),
        ("late", "Post \"http://extender/filter\""),
        (
            "lies",
            "extender \"http://extender\" claims a filtered node \"moon\" which is not found in the input node list",
        ),
        ("babbles", "extender at URL http://extender/filter"),
        ("refuses", "0/1 nodes are available: 1 the extender is tired."),
        ("errs", "out of order"),
    ];
    for (behaviour, _) in cases {
        p.other_pod(behaviour, json!({"extender": behaviour}), "100m").await;
    }
    p.other_pod("good", json!({}), "100m").await;
    assert_eq!(p.node_of("good").await, "a");
    for (behaviour, message) in cases {
        p.waits_because(behaviour, message).await;
    }
    let uid = p.api("pods").get("refuses").await.unwrap().uid().to_owned();
    let last = explainer.explain(&uid).await.unwrap().decision.last_decision.unwrap();
    let [refusal] = &last.extenders[..] else { panic!("{last:?}") };
    assert_eq!((&*refusal.extender, &*refusal.message), ("http://extender", "the extender is tired"));
    assert_eq!((refusal.nodes.as_slice(), refusal.node_count), (&["a".to_owned()][..], 1));
    // The pods are tried again once the extender agrees.
    for (behaviour, _) in cases {
        p.patch("pods", behaviour, json!({"metadata": {"labels": {"extender": null}}})).await;
    }
    for (behaviour, _) in cases {
        if behaviour != "refuses" {
            p.node_of(behaviour).await;
        }
    }
    p.node("b", "4").await;
    p.node_of("refuses").await;
}

#[tokio::test(start_paused = true)]
async fn pods_are_scheduled_without_an_extender_that_may_fail() {
    let p = Plane::start().await;
    p.node("a", "4").await;
    let _trigger = p.other_scheduler(|o| o.extenders.push(extender(true))).await;
    for behaviour in ["hangs", "lies", "babbles", "errs"] {
        p.other_pod(behaviour, json!({"extender": behaviour}), "100m").await;
    }
    for behaviour in ["hangs", "lies", "babbles", "errs"] {
        assert_eq!(p.node_of(behaviour).await, "a");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_node_vanishes_before_it_is_bound_goes_to_another() {
    let p = Plane::start().await;
    p.node("a", "1").await;
    let _trigger = p.other_scheduler(|o| o.plugins.push(Arc::new(Slow))).await;
    p.other_pod("web", json!({"slow": "x"}), "1").await;
    p.until("the expected node", async || {
        let o = p.api("pods").get("web").await.unwrap();
        (o.str_at(&["status", "nominatedNodeName"]) == Some("a")).then_some(())
    })
    .await;
    p.api("nodes").delete("a", &client::DeleteOptions::default()).await.unwrap();
    p.node("b", "1").await;
    assert_eq!(p.node_of("web").await, "b");
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_delays_no_pod() {
    let p = Plane::start().await;
    p.node("a", "4").await;
    let clock = Arc::new(Jumping(p.cluster.clock.clone(), AtomicI64::new(0)));
    let _trigger = p.other_scheduler(|o| o.clock = clock).await;
    for n in 0..5 {
        p.other_pod(&format!("big{n}"), json!({}), "8").await;
        p.other_pod(&format!("small{n}"), json!({}), "100m").await;
    }
    let begin = tokio::time::Instant::now();
    for n in 0..5 {
        p.node_of(&format!("small{n}")).await;
        p.waits_because(&format!("big{n}"), "1 Insufficient cpu").await;
    }
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    p.node("b", "64").await;
    for n in 0..5 {
        assert_eq!(p.node_of(&format!("big{n}")).await, "b");
    }
}

/// Clauses: Q06.profiles, Q06.schedulerName, Q06.disable
#[tokio::test(start_paused = true)]
async fn each_scheduler_name_has_plugins_of_its_own() {
    let p = Plane::start().await;
    p.priorities().await;
    p.node("a", "1").await;
    let text = "apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: polite
  plugins: {postFilter: {disabled: [{name: DefaultPreemption}]}}
- schedulerName: pushy
";
    let decisions: Arc<scheduler::Decisions> = Arc::default();
    let kept = decisions.clone();
    let change = |o: &mut scheduler::Options| {
        o.configuration = Configuration::parse(text).unwrap();
        o.decisions = kept;
    };
    let _trigger = p.other_scheduler(change).await;
    p.pod_of("low", "low", "1", json!({})).await;
    p.running("low").await;
    p.pod_of("waits", "high", "1", json!({"schedulerName": "polite"})).await;
    p.waits_because("waits", "0/1 nodes are available: 1 Insufficient cpu.").await;
    let waiting = p.api("pods").get("waits").await.unwrap();
    let (_, decision) = decisions.get(waiting.uid()).expect("the last decision");
    let reasons: Vec<String> = decision.refusal("a").unwrap().reasons.iter().map(ToString::to_string).collect();
    assert_eq!(reasons, ["Insufficient cpu"], "the reason of each node is kept");
    p.pod_of("unknown", "high", "1", json!({"schedulerName": "unknown"})).await;
    tokio::time::sleep(Duration::from_secs(400)).await;
    assert!(!p.is_deleting("low").await);
    p.pod_of("takes", "high", "1", json!({"schedulerName": "pushy"})).await;
    p.running("takes").await;
    let events = p.list("events").await;
    let reported = |name: &str, by: &str| {
        events.iter().any(|e| {
            e.str_at(&["involvedObject", "name"]) == Some(name) && e.str_at(&["reportingComponent"]) == Some(by)
        })
    };
    assert!(reported("waits", "polite") && reported("takes", "pushy"));
    let unknown = p.api("pods").get("unknown").await.unwrap();
    assert!(unknown.at(&["status", "conditions"]).is_none(), "no scheduler has that name");
}

/// A pod whose affinity no pod matched waited for five minutes after such a pod was bound.
#[tokio::test(start_paused = true)]
async fn a_pod_follows_the_pod_of_its_affinity() {
    let p = Plane::start().await;
    p.node("a", "1").await;
    p.patch("nodes", "a", json!({"metadata": {"labels": {"zone": "z"}}})).await;
    let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "leader"}}});
    let affinity = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    let pod = |name: &str, affinity: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"affinity": affinity, "containers": [{"name": "c", "image": "i"}]}})
    };
    p.create("pods", pod("follower", affinity)).await;
    p.waits_because("follower", "node(s) didn't match pod affinity rules").await;
    let begin = tokio::time::Instant::now();
    p.create("pods", pod("leader", json!({}))).await;
    p.node_of("follower").await;
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
}
