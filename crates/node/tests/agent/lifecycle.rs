//! Starts, restarts and ends of pods.

use crate::fake;
use crate::machine::*;
use serde_json::{Value, json};
use std::sync::Arc;

/// Clauses: P01.hostname P04 P06 P07 P08
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_runs_is_probed_and_goes() {
    let m = Machine::new().await;
    m.api.put(
        "api/v1/configmaps",
        json!({"metadata": {"name": "cm", "namespace": "default"}, "data": {"K": "from cm"}}),
    );
    let mut c = demo("web", json!(["--port", "8081"]));
    c["readinessProbe"] = json!({"httpGet": {"path": "/healthz", "port": 8081}, "periodSeconds": 1});
    c["env"] = json!([{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "K"}}}]);
    c["volumeMounts"] = json!([{"name": "v", "mountPath": "/config"}]);
    m.pod("web", json!({"containers": [c], "volumes": [{"name": "v", "configMap": {"name": "cm"}}]}));
    let p = m.until("web", is_ready).await;
    assert_eq!(p["status"]["phase"], "Running");
    assert_eq!(p["status"]["qosClass"], "BestEffort");
    assert_eq!(p["status"]["hostIP"], "192.0.2.7");
    assert!(p["status"]["podIP"].as_str().unwrap().starts_with("10.201.0."));
    let s = &p["status"]["containerStatuses"][0];
    assert!(s["containerID"].as_str().unwrap().starts_with("kemudi://"));
    assert_eq!((&s["ready"], &s["started"], &s["restartCount"]), (&json!(true), &json!(true), &json!(0)));

    let node = m.api.until("api/v1/nodes", "", "n1", |n| n.is_some_and(is_ready)).await.unwrap();
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "n1");
    assert_eq!(node["status"]["features"], json!({"supplementalGroupsPolicy": true}));
    let offers = json!({"recursiveReadOnlyMounts": true, "userNamespaces": true});
    assert_eq!(node["status"]["runtimeHandlers"], json!([{"name": "", "features": offers}]));
    m.api.until("apis/coordination.k8s.io/v1/leases", "kube-node-lease", "n1", |l| l.is_some()).await;

    m.api.delete_gracefully(PODS, "default", "web", 30);
    m.gone("web").await;
    let left = m.embedded.clone();
    use runtime::Runtime;
    assert!(left.list_pods().await.unwrap().is_empty());
    m.finish().await;
}

/// A pod that has failed would be replaced by its controller again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_of_a_class_without_a_runtime_waits() {
    let m = Machine::new().await;
    m.pod("p", json!({"runtimeClassName": "gvisor", "containers": [demo("c", json!(["sleep"]))]}));
    let event = async |why: &str| {
        let why = format!("Failed to create pod sandbox: {why}");
        let is = |e: &Value| e["reason"] == "FailedCreatePodSandBox" && e["message"] == why;
        let begun = tokio::time::Instant::now();
        while !m.api.list("api/v1/events").iter().any(is) {
            assert!(begun.elapsed().as_secs() < 30, "{:#?}", m.api.list("api/v1/events"));
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    event("runtimeclass.node.k8s.io \"gvisor\" not found").await;
    m.api.put("apis/node.k8s.io/v1/runtimeclasses", json!({"metadata": {"name": "gvisor"}, "handler": "runsc"}));
    event("failed to get sandbox runtime: no runtime for \"runsc\" is configured").await;
    let pod = m.until("p", |_| true).await;
    assert_eq!(pod["status"]["phase"], "Pending", "{pod}");
    m.api.delete_gracefully(PODS, "default", "p", 0);
    m.gone("p").await;
    m.finish().await;
}

/// An agent that started again updated volumes of running pods only when it started a container: their tokens expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_of_running_pods_are_refreshed_by_a_new_agent() {
    let mut m = Machine::new().await;
    let config_map = |value: &str| json!({"metadata": {"name": "cm", "namespace": "default"}, "data": {"K": value}});
    m.api.put("api/v1/configmaps", config_map("old"));
    let mut c = demo("c", json!(["sleep"]));
    c["volumeMounts"] = json!([{"name": "v", "mountPath": "/config"}]);
    m.pod("p", json!({"containers": [c], "volumes": [{"name": "v", "configMap": {"name": "cm"}}]}));
    let p = m.until("p", is_ready).await;
    let uid = p["metadata"]["uid"].as_str().unwrap();
    let file = m.directory.path().join(format!("pods/{uid}/volumes/kubernetes.io~configmap/v/K"));
    let shows = async |value: &str| {
        for _ in 0..3000 {
            if std::fs::read_to_string(&file).is_ok_and(|text| text == value) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{:?} instead of {value:?}", std::fs::read_to_string(&file));
    };
    shows("old").await;
    m.stop().await;
    m.api.put("api/v1/configmaps", config_map("changed while it was away"));
    m.start().await;
    shows("changed while it was away").await;
    m.api.put("api/v1/configmaps", config_map("changed later"));
    shows("changed later").await;
    m.finish().await;
}

/// `--seccomp-default`: containers without a profile have a filter, unless they are privileged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_have_the_default_profile() {
    let mut m = Machine::new().await;
    m.stop().await;
    m.seccomp_default = true;
    m.start().await;
    let unconfined = json!({"seccompProfile": {"type": "Unconfined"}});
    for (name, context, expected) in [
        ("none", json!({}), "Seccomp:\t2\n"),
        ("named", unconfined, "Seccomp:\t0\n"),
        ("privileged", json!({"privileged": true}), "Seccomp:\t0\n"),
    ] {
        let mut c = demo("c", json!(["grep", "Seccomp:", "/proc/self/status"]));
        c["command"] = json!(["/busybox"]);
        c["securityContext"] = context;
        c["volumeMounts"] = json!([{"name": "tool", "mountPath": "/busybox"}]);
        let volumes = json!([{"name": "tool", "hostPath": {"path": "/bin/busybox"}}]);
        m.pod(name, json!({"restartPolicy": "Never", "containers": [c], "volumes": volumes}));
        m.until(name, |p| p["status"]["phase"] == "Succeeded").await;
        let (_, log) = body(&m, &format!("/containerLogs/default/{name}/c")).await;
        assert_eq!(log, expected, "{name}");
    }
    m.finish().await;
}

/// Clauses: P06 P08 P10 P12
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_end_restart_and_outlive_the_agent() {
    let mut m = Machine::new().await;
    let bad = json!(["--nonsense"]);
    m.pod("job", json!({"restartPolicy": "Never", "containers": [demo("c", bad.clone())]}));
    m.pod(
        "done",
        json!({"restartPolicy": "Never", "initContainers": [demo("i", json!(["sleep", "0"]))],
        "containers": [demo("c", json!(["sleep", "0"]))]}),
    );
    m.pod("loop", json!({"containers": [demo("c", bad)]}));
    m.pod("stays", json!({"terminationGracePeriodSeconds": 1, "containers": [demo("c", json!([]))]}));
    m.pod("image", json!({"containers": [{"name": "c", "image": "nowhere.example/x:1"}]}));
    m.pod(
        "waits",
        json!({"containers": [demo("c", json!([]))],
        "volumes": [{"name": "v", "configMap": {"name": "late"}}]}),
    );
    let state = |p: &Value| p["status"]["containerStatuses"][0]["state"].clone();

    let p = m.until("job", |p| p["status"]["phase"] == "Failed").await;
    assert_eq!(
        (&state(&p)["terminated"]["exitCode"], &state(&p)["terminated"]["reason"]),
        (&json!(2), &json!("Error"))
    );
    let (code, log) = body(&m, "/containerLogs/default/job/c?tailLines=1").await;
    assert_eq!(code, 200);
    assert!(log.contains("unknown argument \"--nonsense\""), "{log}");
    m.until("done", |p| p["status"]["phase"] == "Succeeded").await;
    let p = m.until("loop", |p| state(p)["waiting"]["reason"] == "CrashLoopBackOff").await;
    let s = &p["status"]["containerStatuses"][0];
    assert_eq!((&p["status"]["phase"], &s["restartCount"]), (&json!("Running"), &json!(1)));
    assert_eq!(s["lastState"]["terminated"]["exitCode"], 2);
    m.until("image", |p| state(p)["waiting"]["reason"] == "ErrImagePull").await;

    // An object that comes late is seen at once.
    m.until("waits", |p| state(p)["waiting"]["reason"] == "ContainerCreating").await;
    let waiting = "container \"c\" in pod \"waits\" is waiting to start: ContainerCreating";
    assert_eq!(body(&m, "/containerLogs/default/waits/c").await, (400, waiting.into()));
    assert_eq!(body(&m, "/exec/default/waits/c?command=true").await, (500, "container not found (\"c\")".into()));
    assert_eq!(body(&m, "/attach/default/done/c").await, (500, "container not found (\"c\")".into()));
    let previous = "previous terminated container \"c\" in pod \"stays\" not found";
    m.until("stays", is_ready).await;
    assert_eq!(body(&m, "/containerLogs/default/stays/c?previous=true").await, (400, previous.into()));
    m.until("image", |p| state(p)["waiting"]["reason"] == "ImagePullBackOff").await;
    let pulling = "container \"c\" in pod \"image\" is waiting to start: trying and failing to pull image";
    assert_eq!(body(&m, "/containerLogs/default/image/c").await, (400, pulling.into()));
    m.api.put("api/v1/configmaps", json!({"metadata": {"name": "late", "namespace": "default"}, "data": {"a": "b"}}));
    m.until("waits", is_ready).await;

    let before = m.until("stays", is_ready).await;
    m.stop().await;
    m.start().await;
    m.pod("next", json!({"containers": [demo("c", json!([]))]}));
    m.until("next", is_ready).await;
    let after = m.until("stays", is_ready).await;
    let id = |p: &Value| p["status"]["containerStatuses"][0]["containerID"].clone();
    assert_eq!(id(&before), id(&after), "the container was adopted");
    assert_eq!(before["status"]["podIP"], after["status"]["podIP"]);
    m.api.delete_gracefully(PODS, "default", "stays", 1);
    m.gone("stays").await;
    assert_eq!(body(&m, "/healthz").await, (200, "ok".into()));
    assert_eq!(body(&m, "/containerLogs/default/none/c").await, (404, "pod \"none\" does not exist".into()));
    m.finish().await;
}

/// What failed to start left its records, its files and its logs, one after the other without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_that_fail_leave_two_records() {
    use runtime::Runtime;
    let mut m = Machine::new().await;
    m.stop().await;
    // So that every back-off has passed.
    m.ahead = 3600;
    m.start().await;
    let mut c = demo("c", json!([]));
    c["command"] = json!(["/nope"]);
    m.pod("fails", json!({"terminationGracePeriodSeconds": 1, "containers": [c]}));
    let restarts = |p: &Value| p["status"]["containerStatuses"][0]["restartCount"].as_u64();
    let p = m.until("fails", |p| restarts(p) >= Some(5)).await;
    let status = &p["status"]["containerStatuses"][0];
    assert_eq!(status["lastState"]["terminated"]["reason"], "StartError");
    // The newest, the one before, and for a moment one that is removed or made.
    let left = m.embedded.list_containers().await.unwrap();
    assert!(left.len() <= 3, "{} records are left", left.len());
    let logs = left[0].log_path.parent().unwrap().to_owned();
    assert!(std::fs::read_dir(&logs).unwrap().count() <= 3, "logs are left in {logs:?}");
    m.api.delete_gracefully(PODS, "default", "fails", 1);
    m.gone("fails").await;
    m.finish().await;
}

/// A pod whose shim is killed again and again got a new sandbox at once each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_is_lost_again_waits() {
    use runtime::Runtime;
    let m = Machine::new().await;
    m.pod(
        "lost",
        json!({"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "nowhere.example/x:1"}]}),
    );
    let mut events = m.embedded.subscribe();
    let ready = async |attempt: u32| {
        let wait = async {
            loop {
                let pods = m.embedded.list_pods().await.unwrap();
                let pod = pods.into_iter().find(|p| p.config.attempt == attempt);
                if let Some(shim) = pod.and_then(|p| p.shim_pid) {
                    return shim;
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), wait).await.expect("a new sandbox")
    };
    for attempt in [0, 1] {
        let shim = nix::unistd::Pid::from_raw(ready(attempt).await);
        nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGKILL).unwrap();
        let gone = async { while !matches!(events.recv().await, Ok(runtime::Event::PodStopped { .. })) {} };
        tokio::time::timeout(std::time::Duration::from_secs(30), gone).await.unwrap();
    }
    let is_back_off = |e: &Value| e["message"] == "Back-off 10s re-creating the lost sandbox of pod default/lost";
    let begun = tokio::time::Instant::now();
    while !m.api.list("api/v1/events").iter().any(is_back_off) {
        assert!(begun.elapsed().as_secs() < 30, "{:#?}", m.api.list("api/v1/events"));
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let attempts = |pods: Vec<runtime::Pod>| pods.iter().map(|p| p.config.attempt).max();
    assert_eq!(attempts(m.embedded.list_pods().await.unwrap()), Some(1));
    // It comes back, later.
    let _ = ready(2).await;
    assert!(begun.elapsed().as_secs() >= 5, "after {:?}", begun.elapsed());
    m.api.delete_gracefully(PODS, "default", "lost", 1);
    m.gone("lost").await;
    m.finish().await;
}

/// Many pods bound at once: a few start at a time, the others wait for their turn, and one that is deleted does not.
#[tokio::test(flavor = "multi_thread")]
async fn starts_wait_for_their_turn_and_deletions_do_not() {
    let mut m = Machine::new().await;
    m.stop().await;
    let held = Arc::new(fake::held::Held::new(m.embedded.clone()));
    m.held = Some(held.clone());
    m.start().await;
    let names: Vec<String> = (0..20).map(|n| format!("p{n:02}")).collect();
    for name in &names {
        m.pod(name, json!({"containers": [demo("c", json!(["--port", "8081"]))]}));
    }
    let bound = 2 * std::thread::available_parallelism().unwrap().get().max(2);
    held.until(bound).await;
    // A waiting pod reports it, and is gone at once when it is deleted.
    let waits = |p: &Value| p["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating";
    let find = async {
        loop {
            let waiting = m.api.list(PODS).iter().find(|p| waits(p)).map(|p| p["metadata"]["name"].clone());
            match waiting {
                Some(name) => break name.as_str().unwrap().to_owned(),
                None => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            }
        }
    };
    let waiting = tokio::time::timeout(std::time::Duration::from_secs(20), find).await.unwrap();
    m.api.delete_gracefully(PODS, "default", &waiting, 1);
    m.gone(&waiting).await;
    assert_eq!(held.most(), bound, "as many at a time as there are places");
    held.release();
    for name in names.iter().filter(|n| **n != waiting) {
        m.until(name, is_ready).await;
        m.api.delete_gracefully(PODS, "default", name, 0);
    }
    assert_eq!(held.most(), bound);
    for name in &names {
        m.gone(name).await;
    }
    m.finish().await;
}

/// Each step of each pod listed all pods and containers of the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_costs_nothing_for_the_others() {
    let mut m = Machine::new().await;
    m.stop().await;
    let held = Arc::new(fake::held::Held::new(m.embedded.clone()));
    held.release();
    m.held = Some(held.clone());
    m.start().await;
    let names: Vec<String> = (0..5).map(|n| format!("p{n}")).collect();
    for name in &names {
        m.pod(name, json!({"containers": [demo("c", json!(["--port", "8081"]))]}));
    }
    for name in &names {
        m.until(name, is_ready).await;
        m.api.delete_gracefully(PODS, "default", name, 0);
    }
    for name in &names {
        m.gone(name).await;
    }
    assert_eq!(held.listings(), 1, "what an earlier agent left is looked for once");
    m.finish().await;
}

/// A container that failed a probe and ignored signals kept its pod for its whole grace period, even after a deletion with a shorter
/// one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_takes_its_time_does_not_hold_up_the_end() {
    use runtime::Runtime;
    let m = Machine::new().await;
    let spec = |probe: &str| {
        let mut c = demo("c", json!(["sh", "-c", "trap '' TERM; while :; do /busybox sleep 1; done"]));
        c["command"] = json!(["/busybox"]);
        c["volumeMounts"] = json!([{"name": "tool", "mountPath": "/busybox"}]);
        c[probe] = json!({"exec": {"command": ["/busybox", "false"]}, "periodSeconds": 1, "failureThreshold": 1});
        let volumes = json!([{"name": "tool", "hostPath": {"path": "/bin/busybox"}}]);
        json!({"terminationGracePeriodSeconds": 1_000_000, "containers": [c], "volumes": volumes})
    };
    for (name, probe, force) in [("live", "livenessProbe", false), ("starts", "startupProbe", true)] {
        m.pod(name, spec(probe));
        let killing = |e: &Value| e["reason"] == "Killing" && e["involvedObject"]["name"] == name;
        let killed = async {
            while !m.api.list("api/v1/events").iter().any(killing) {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), killed).await.unwrap();
        if force {
            let api = m.api.client();
            let pods = api.api::<k8s_openapi::api::core::v1::Pod>().namespace("default");
            pods.delete(name, &client::DeleteOptions::default()).await.unwrap();
        } else {
            m.api.delete_gracefully(PODS, "default", name, 1);
        }
        m.gone(name).await;
        let removed = async {
            while !m.embedded.list_pods().await.unwrap().is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), removed).await.unwrap();
    }
    m.finish().await;
}

/// A process that another container of the pod held up on its way to its program held up the deletion too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_an_end_does_not_hold_up_the_end() {
    let mut m = Machine::new().await;
    m.stop().await;
    let held = Arc::new(fake::held::Held::stuck(m.embedded.clone()));
    m.held = Some(held.clone());
    m.start().await;
    m.pod("stuck", json!({"containers": [demo("c", json!([]))]}));
    held.until_stuck(true).await;
    m.api.delete_gracefully(PODS, "default", "stuck", 1);
    held.until_stuck(false).await; // it has been killed
    m.gone("stuck").await;
    m.finish().await;
}
