use super::*;
use crate::configuration::Configuration;
use crate::plugins::Handle;
use serde_json::json;

fn queue() -> Queue {
    let frameworks = crate::frameworks(&Configuration::default(), &Handle::default(), &[]).unwrap();
    Queue::new(Arc::new(frameworks), Backoff::default())
}

fn pod(name: &str, priority: i64) -> Arc<Pod> {
    let v = json!({"metadata": {"name": name, "uid": name},
        "spec": {"priority": priority, "schedulerName": "default-scheduler"}});
    Arc::new(Pod::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
}

/// Clauses: Q02.priority, Q02.backoff
#[tokio::test(start_paused = true)]
async fn pods_are_popped_by_priority_and_after_back_off() {
    let mut q = queue();
    for (n, p) in [("low", 0), ("first", 5), ("second", 5), ("high", 9)] {
        q.add(pod(n, p));
    }
    let mut order = Vec::new();
    while let Some(t) = q.pop() {
        order.push(t.pod.meta.name.to_string());
        if &*t.pod.meta.name == "high" {
            q.refused(t, ["NodeResourcesFit"].into());
        }
    }
    assert_eq!(order, ["high", "first", "second", "low"]);
    let gone = pod("gone", 0);
    q.handle_event(&Event::PodPlaced(&gone));
    assert!(q.pop().is_none(), "another pod does not make room");
    q.handle_event(&Event::PodGone(&gone));
    q.add(pod("other", 0));
    assert_eq!(&*q.pop().unwrap().pod.meta.name, "other", "backing off behind a pod of lower priority");
    let t = q.pop().expect("nothing else is to do");
    q.failed(t);
    assert!(q.pop().is_none(), "waiting may mend an error");
    let due = q.next_due().unwrap();
    assert_eq!(due - Instant::now(), Duration::from_secs(2), "the second attempt");
    tokio::time::advance(Duration::from_secs(2)).await;
    let t = q.pop().unwrap();
    q.refused(t, ["NodeAffinity"].into());
    tokio::time::advance(FORGOTTEN).await;
    assert!(q.pop().is_some(), "no pod waits for ever");
}

fn changed(v: serde_json::Value) -> Arc<Pod> {
    Arc::new(Pod::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
}

/// A gate keeps a pod out of the queue. A changed pod is retried at once only if a refusing plugin reads the change.
#[tokio::test(start_paused = true)]
async fn changes_of_a_pod_wake_it_where_plugins_read_them() {
    let mut q = queue();
    let with = |mut spec: serde_json::Value, labels: serde_json::Value| {
        spec["schedulerName"] = "default-scheduler".into();
        changed(json!({"metadata": {"name": "p", "uid": "p", "labels": labels}, "spec": spec}))
    };
    q.add(with(json!({"schedulingGates": [{"name": "g"}]}), json!({})));
    assert!(q.pop().is_none() && q.next_due().is_none(), "gated");
    q.add(with(json!({}), json!({})));
    let taken = q.pop().expect("the gate is gone");
    q.refused(taken, ["TaintToleration"].into());
    tokio::time::advance(Duration::from_secs(20)).await;
    q.add(with(json!({}), json!({"a": "b"})));
    assert!(q.pop().is_none(), "taints do not read labels");
    q.add(with(json!({"tolerations": [{"key": "k"}]}), json!({"a": "b"})));
    assert!(q.pop().is_some(), "a toleration more");
}

#[tokio::test(start_paused = true)]
async fn heartbeats_of_nodes_wake_no_pod() {
    let mut q = queue();
    q.add(pod("p", 0));
    let taken = q.pop().unwrap();
    q.refused(taken, ["NodeResourcesFit", "TaintToleration"].into());
    tokio::time::advance(Duration::from_secs(20)).await;
    let node = |version: &str, pods: &str| {
        let v = json!({"metadata": {"name": "n", "resourceVersion": version},
            "status": {"allocatable": {"cpu": "1", "memory": "4Gi", "pods": pods}}});
        crate::cluster::NodeEntry::new(serde_json::to_vec(&v).unwrap().into()).unwrap()
    };
    q.handle_event(&Event::NodeChanged { old: &node("1", "1"), new: &node("2", "1") });
    assert!(q.pop().is_none(), "nothing that a filter reads");
    q.handle_event(&Event::NodeChanged { old: &node("2", "1"), new: &node("3", "2") });
    assert!(q.pop().is_some(), "room for more pods");
}

/// Pods that fit nowhere are not looked at again for every pod that is placed, and go when there is room.
#[tokio::test(start_paused = true)]
async fn thousands_of_pods_that_never_fit_do_not_delay_others() {
    let mut q = queue();
    for n in 0..10_000 {
        q.add(pod(&format!("big{n}"), 9));
    }
    while let Some(taken) = q.pop() {
        q.refused(taken, ["NodeResourcesFit"].into());
    }
    tokio::time::advance(Duration::from_secs(20)).await;
    let placed = pod("placed", 0);
    q.add(pod("small", 0));
    for _ in 0..10_000 {
        q.handle_event(&Event::PodPlaced(&placed));
    }
    assert_eq!(&*q.pop().unwrap().pod.meta.name, "small");
    assert!(q.pop().is_none(), "nothing has become free");
    q.handle_event(&Event::PodGone(&placed));
    assert!(q.pop().is_some());
    assert_eq!(q.len(), 9_999);
}

/// A pod that shrinks while it waits is tried again.
#[tokio::test(start_paused = true)]
async fn a_pod_that_requests_less_is_tried_again() {
    let mut q = queue();
    let requesting = |cpu: &str| {
        let containers = json!([{"resources": {"requests": {"cpu": cpu}}}]);
        changed(json!({"metadata": {"name": "p", "uid": "p"},
            "spec": {"schedulerName": "default-scheduler", "containers": containers}}))
    };
    q.add(requesting("4"));
    let taken = q.pop().unwrap();
    q.refused(taken, ["NodeResourcesFit"].into());
    q.add(requesting("4"));
    assert!(q.pop().is_none(), "nothing has changed");
    q.add(requesting("1"));
    assert!(q.pop().is_some());
}

/// What happens while a pod is scheduled is not lost.
#[tokio::test(start_paused = true)]
async fn events_during_an_attempt_are_not_missed() {
    let mut q = queue();
    q.add(pod("p", 0));
    let taken = q.pop().unwrap();
    let gone = pod("gone", 0);
    q.handle_event(&Event::PodGone(&gone));
    q.refused(taken, ["NodeResourcesFit"].into());
    assert!(q.pop().is_some());
}

/// A pod that is held back has made no attempt, so that it goes on at once.
#[tokio::test(start_paused = true)]
async fn pods_that_are_held_back_do_not_back_off() {
    let mut q = queue();
    q.add(pod("held", 0));
    let taken = q.pop().unwrap();
    q.gated(taken, "DynamicResources");
    let (_, _, position) = q.position("held").unwrap();
    assert_eq!((position.stage, position.attempts), (StageName::Gated, 0));
    assert_eq!(position.refused_by, ["DynamicResources"]);
    q.handle_event(&Event::PodGone(&pod("other", 0)));
    assert!(q.pop().is_none(), "the event does not concern it");
    q.handle_event(&Event::DependencyChanged(Read::Devices));
    assert_eq!(&*q.pop().expect("it is due at once").pod.meta.name, "held");
}
