use super::*;
use parking_lot::Mutex;
use serde_json::{Value, json};

fn pod(name: &str, priority: i64, spec: Value) -> Arc<scheduler::pod::Pod> {
    let mut v = json!({"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": spec});
    v["spec"]["nodeName"] = "n".into();
    v["spec"]["priority"] = priority.into();
    if let Some(os) = v["spec"]["os-label"].take().as_str() {
        v["metadata"]["labels"][OS_LABEL] = os.into();
    }
    Arc::new(scheduler::pod::Pod::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
}

fn requests(list: Value) -> Value {
    json!({"containers": [{"resources": {"requests": list}}]})
}

fn node(labels: Value, taints: Value) -> Arc<NodeEntry> {
    let v = json!({"metadata": {"name": "n", "labels": labels}, "spec": {"taints": taints}, "status": {"allocatable": {
        "cpu": "2", "memory": "4Gi", "ephemeral-storage": "1Gi", "pods": "3", "hugepages-2Mi": "0", "example.com/gpu": "1"}}});
    Arc::new(NodeEntry::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
}

fn admission() -> (Arc<Admission>, Arc<Mutex<Vec<String>>>) {
    let woken: Arc<Mutex<Vec<String>>> = Arc::default();
    let notified = woken.clone();
    let admission = Admission::new("n", Arc::new(move |uid: &str| notified.lock().push(uid.to_owned())));
    admission.set_node(node(json!({"zone": "a"}), json!([{"key": "soft", "effect": "NoSchedule"}])));
    (Arc::new(admission), woken)
}

/// The weight of the cgroup of burstable pods was that of one processor, whatever they requested.
#[test]
fn burstable_pods_have_the_weight_of_their_requests() {
    let (a, _) = admission();
    let cpu = |milli: i64| requests(json!({"cpu": format!("{milli}m")}));
    let _guaranteed = a.admit(pod("guaranteed", 0, cpu(500)), Qos::Guaranteed).unwrap();
    assert_eq!(a.burstable_cpu(), 0);
    let first = a.admit(pod("first", 0, cpu(300)), Qos::Burstable).unwrap();
    let _adopted = a.adopt(pod("second", 0, cpu(400)), Qos::Burstable);
    assert_eq!(a.burstable_cpu(), 700);
    a.resize(pod("second", 0, cpu(100))).unwrap();
    assert_eq!(a.burstable_cpu(), 400);
    // A pod counts until its containers have ended.
    a.ends("first");
    assert_eq!(a.burstable_cpu(), 400);
    drop(first);
    assert_eq!(a.burstable_cpu(), 100);
}

#[test]
fn a_pod_is_held_against_what_the_scheduler_checks() {
    let (a, _) = admission();
    let port = json!({"containers": [{"ports": [{"containerPort": 80, "hostPort": 8080}],
        "resources": {"requests": {"cpu": "500m", "example.com/gpu": "1"}}}]});
    let _held = a.admit(pod("held", 0, port.clone()), Qos::Burstable).unwrap();
    let out = |resource: &str, numbers: (i64, i64, i64)| {
        let (requested, used, capacity) = numbers;
        let message = format!("{resource}, requested: {requested}, used: {used}, capacity: {capacity}");
        (format!("OutOf{resource}"), format!("Node didn't have enough resource: {message}"))
    };
    let predicate = |name: &str, why: &str| (name.to_owned(), format!("Predicate {name} failed: {why}"));
    let affinity = predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
    let terms = json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]);
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    for (spec, (reason, message)) in [
        (requests(json!({"cpu": "10"})), out("cpu", (10_000, 500, 2000))),
        (requests(json!({"cpu": "1600m"})), out("cpu", (1600, 500, 2000))),
        (requests(json!({"memory": "5Gi"})), out("memory", (5 << 30, 0, 4 << 30))),
        (requests(json!({"ephemeral-storage": "2Gi"})), out("ephemeral-storage", (2 << 30, 0, 1 << 30))),
        (requests(json!({"example.com/gpu": 1})), out("example.com/gpu", (1, 1, 1))),
        (requests(json!({"hugepages-2Mi": "4Mi"})), out("hugepages-2Mi", (4 << 20, 0, 0))),
        (json!({"nodeSelector": {"zone": "b"}}), affinity.clone()),
        (json!({"affinity": {"nodeAffinity": required}}), affinity),
        (
            json!({"containers": [{"ports": [{"hostPort": 8080, "hostIP": "127.0.0.1"}]}]}),
            predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports"),
        ),
        (
            json!({"os-label": "windows"}),
            (
                "PodOSSelectorNodeLabelDoesNotMatch".to_owned(),
                "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label".to_owned(),
            ),
        ),
    ] {
        let refused = a.admit(pod("p", 0, spec.clone()), Qos::Burstable).err().unwrap_or_else(|| panic!("{spec}"));
        assert_eq!((refused.reason, refused.message), (reason, message), "{spec}");
    }
    // An extended resource that no node has may be one of the cluster; a NoSchedule taint does not keep out a bound pod.
    let spec = requests(json!({"cpu": "1500m", "example.com/license": 5}));
    drop(a.admit(pod("p", 0, spec), Qos::Burstable).unwrap());
    // The node may have got devices that this agent has not read yet: it came by another watch than the pod.
    let refused = a.admit(pod("p", 0, requests(json!({"example.com/gpu": 2}))), Qos::BestEffort).err().unwrap();
    assert_eq!((&*refused.reason, refused.node_may_be_newer), ("OutOfexample.com/gpu", true));
    // The devices of a class are those of a claim, which the status names.
    let class = "deviceclass.resource.kubernetes.io/gpu";
    let refused = a.admit(pod("p", 0, requests(json!({class: 1}))), Qos::BestEffort).err().unwrap();
    assert_eq!((&*refused.reason, refused.node_may_be_newer), (&*format!("OutOf{class}"), false));
    let status = json!({"extendedResourceClaimStatus": {"resourceClaimName": "c",
        "requestMappings": [{"containerName": "c", "resourceName": class, "requestName": "r"}]}});
    let view = json!({"metadata": {"name": "p", "uid": "p"}, "spec": requests(json!({class: 1})), "status": status});
    let claimed = scheduler::pod::Pod::new(serde_json::to_vec(&view).unwrap().into()).unwrap();
    drop(a.admit(Arc::new(claimed), Qos::BestEffort).unwrap());
    a.set_node(node(json!({}), json!([{"key": "out", "effect": "NoExecute"}])));
    let refused = a.admit(pod("p", 0, json!({})), Qos::BestEffort).err().unwrap();
    assert_eq!(refused.message, "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate");
    let _tolerates = a.admit(pod("p", 0, json!({"tolerations": [{"operator": "Exists"}]})), Qos::BestEffort).unwrap();
}

#[test]
fn a_place_is_free_when_the_pod_has_ended_and_not_before() {
    let (a, woken) = admission();
    let mut held: Vec<_> =
        ["a", "b", "c"].map(|name| a.admit(pod(name, 0, json!({})), Qos::BestEffort).unwrap()).into_iter().collect();
    let refused = a.admit(pod("d", 0, json!({})), Qos::BestEffort).err().unwrap();
    assert_eq!((&*refused.reason, refused.node_may_be_newer), ("OutOfpods", false));
    // A pod that is gone from the API has not ended yet: a pod that needs its resources waits.
    a.ends("c");
    let d = a.admit(pod("d", 0, json!({})), Qos::BestEffort).unwrap();
    assert!(d.waits());
    let refused = a.admit(pod("e", 0, json!({})), Qos::BestEffort).err().unwrap();
    assert_eq!(refused.reason, "OutOfpods", "the place is taken");
    held.pop();
    assert!(!d.waits());
    assert_eq!(*woken.lock(), ["d"]);
    // A new agent counts what runs, even if it exceeds the node.
    let more: Vec<_> = ["x", "y"].map(|name| a.adopt(pod(name, 0, json!({})), Qos::BestEffort)).into_iter().collect();
    drop(held);
    let refused = a.admit(pod("e", 0, json!({})), Qos::BestEffort).err().unwrap();
    assert!(refused.message.ends_with("pods, requested: 1, used: 3, capacity: 3"), "{}", refused.message);
    drop((d, more));
    a.admit(pod("e", 0, json!({})), Qos::BestEffort).unwrap();
}

/// The scheduler reads from the status what a resized pod has; for the node, that was before the resize.
#[test]
fn the_status_does_not_change_the_requests() {
    let requests = |cpu: &str| json!({"requests": {"cpu": cpu}});
    let status = json!({"name": "c", "resources": requests("2"), "allocatedResources": {"cpu": "2"}, "image": "", "imageID": "", "ready": true, "restartCount": 0});
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": requests("1")}]},
        "status": {"containerStatuses": [status], "startTime": "2026-01-01T00:00:00Z"}});
    let view = super::view(&serde_json::from_value(pod).unwrap()).unwrap();
    assert_eq!((view.view.requests.cpu, view.view.start_time.is_some()), (1000, true));
}

#[test]
fn a_resize_waits_for_room() {
    let (a, woken) = admission();
    let requesting =
        |name: &str, cpu: &str, memory: &str| pod(name, 0, requests(json!({"cpu": cpu, "memory": memory})));
    let big = a.admit(requesting("big", "1", "3Gi"), Qos::Burstable).unwrap();
    let _small = a.admit(requesting("small", "500m", "1Gi"), Qos::Burstable).unwrap();
    let infeasible = |name: &str, numbers: &str| {
        Err(Unfit::Infeasible(format!("Node didn't have enough capacity: {name}, requested: {numbers}")))
    };
    assert_eq!(a.resize(requesting("small", "3", "1Gi")), infeasible("cpu", "3000, capacity: 2000"));
    assert_eq!(a.resize(requesting("small", "3", "5Gi")), infeasible("memory", "5368709120, capacity: 4294967296"));
    assert_eq!(a.resize(requesting("small", "1", "1Gi")), Ok(()));
    let message =
        "Node didn't have enough resource: memory, requested: 2147483648, used: 3221225472, capacity: 4294967296";
    assert_eq!(a.resize(requesting("small", "1", "2Gi")), Err(Unfit::Deferred(message.into())));
    // A deferred pod keeps its resources, and is woken when another pod becomes smaller or ends.
    let refused = a.admit(requesting("third", "1m", "1"), Qos::Burstable).err().unwrap();
    assert_eq!(refused.message, "Node didn't have enough resource: cpu, requested: 1, used: 2000, capacity: 2000");
    assert_eq!(a.resize(requesting("big", "1", "2560Mi")), Ok(()));
    assert_eq!(*woken.lock(), ["small"]);
    drop(big);
    assert_eq!(*woken.lock(), ["small", "small"]);
    assert_eq!(a.resize(requesting("small", "1", "2Gi")), Ok(()));
}

#[test]
fn others_end_for_a_critical_pod() {
    const CRITICAL: i64 = 2_000_000_000;
    let (a, woken) = admission();
    let cpu = |amount: &str| requests(json!({"cpu": amount}));
    let small = a.admit(pod("small", 0, cpu("200m")), Qos::Burstable).unwrap();
    let large = a.admit(pod("large", 0, cpu("1500m")), Qos::Burstable).unwrap();
    assert!(a.admit(pod("plain", 1000, cpu("1")), Qos::Burstable).is_err(), "priority alone preempts no pod");
    let elsewhere = json!({"nodeSelector": {"zone": "b"}, "containers": cpu("1")["containers"]});
    assert_eq!(a.admit(pod("c", CRITICAL, elsewhere), Qos::Burstable).err().unwrap().reason, "NodeAffinity");
    let critical = a.admit(pod("critical", CRITICAL, cpu("1")), Qos::Burstable).unwrap();
    assert!(critical.waits() && a.is_preempted("large") && !a.is_preempted("small"));
    assert_eq!(*woken.lock(), ["large"]);
    drop(large);
    assert!(!critical.waits());
    assert_eq!(*woken.lock(), ["large", "critical"]);
    let refused = a.admit(pod("more", CRITICAL, cpu("1500m")), Qos::Burstable).err().unwrap();
    assert_eq!(refused.reason, "UnexpectedAdmissionError");
    assert!(refused.message.ends_with("found to reclaim resources: [(res: cpu, q: 500), ]"), "{}", refused.message);
    assert!(!a.is_preempted("small"));
    drop(small);
}
