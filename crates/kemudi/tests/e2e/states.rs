//! States of pods and containers, and their statuses.

use crate::cluster::Engine;
use crate::runner::Case;
use crate::story::{Story, condition};
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("states::back_off_grows", back_off_grows),
    ("states::runs_out_of_memory", runs_out_of_memory),
    ("states::ends_as_its_containers_end", ends_as_its_containers_end),
    ("states::restarts_what_failed", restarts_what_failed),
    ("states::a_rule_restarts_all_containers", a_rule_restarts_all_containers),
    ("states::rules_restart_init_containers", rules_restart_init_containers),
    ("states::changed_images_restart_containers", changed_images_restart_containers),
    ("states::shows_users_and_resources", shows_users_and_resources),
    ("states::long_host_names_are_refused", long_host_names_are_refused),
    ("states::cannot_pull", cannot_pull),
    ("states::cannot_configure", cannot_configure),
    ("states::cannot_start", cannot_start),
    ("states::leaves_a_message", leaves_a_message),
    ("states::init_containers_come_first", init_containers_come_first),
    ("states::nothing_comes_from_elsewhere", nothing_comes_from_elsewhere),
];

fn never() -> Value {
    json!({"restartPolicy": "Never"})
}

/// Clauses: P06.succeeded P06.failed P06.conditions P08.completed P08.error P08.exit-codes P10.never
fn ends_as_its_containers_end(s: &Story) {
    s.shell_pod("good", "exit 0", never(), json!({}));
    s.shell_pod("bad", "exit 3", never(), json!({}));
    let p = s.phase("good", "Succeeded");
    let state = &p["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&state["reason"], &state["exitCode"]), (&json!("Completed"), &json!(0)));
    assert!(
        state["startedAt"].is_string() && state["finishedAt"].is_string() && state["containerID"].is_string(),
        "{state}"
    );
    for (kind, expected) in
        [("PodScheduled", "True"), ("Initialized", "True"), ("ContainersReady", "False"), ("Ready", "False")]
    {
        assert_eq!(condition(&p, kind), expected, "{kind}");
    }
    let all = p["status"]["conditions"].as_array().unwrap();
    let ready = all.iter().find(|c| c["type"] == "Ready").unwrap();
    assert_eq!(ready["reason"], "PodCompleted");
    assert!(all.iter().all(|c| c["lastTransitionTime"].is_string()), "{all:?}");
    let p = s.phase("bad", "Failed");
    let state = &p["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&state["reason"], &state["exitCode"]), (&json!("Error"), &json!(3)));
    assert_eq!(p["status"]["containerStatuses"][0]["restartCount"], 0);
    // One that ended well does not save one that failed.
    let script = |n: &str, code: &str| json!({"name": n, "command": ["sh", "-c", format!("exit {code}")]});
    s.pod("mixed", never(), vec![script("a", "1"), script("b", "0")]);
    s.phase("mixed", "Failed");
    let table = s.ok(&["get", "pods"]);
    for (pod, word) in [("good", "Completed"), ("bad", "Error"), ("mixed", "Error")] {
        let line = table.lines().find(|l| l.starts_with(pod)).unwrap();
        assert_eq!(line.split_whitespace().nth(2), Some(word), "{table}");
    }
}

/// Clauses: P08.last-state P08.crash-loop P10.on-failure P10.always P08.restarts
fn restarts_what_failed(s: &Story) {
    s.shell_pod("loop", "exit 7", json!({"restartPolicy": "OnFailure"}), json!({}));
    s.shell_pod("again", "exit 0", json!({}), json!({}));
    s.shell_pod("done", "exit 0", json!({"restartPolicy": "OnFailure"}), json!({}));
    let c = s.container("loop", |c| c["state"]["waiting"]["reason"] == "CrashLoopBackOff");
    assert!(c["restartCount"].as_i64() >= Some(1), "{c}");
    let last = &c["lastState"]["terminated"];
    assert_eq!((&last["exitCode"], &last["reason"]), (&json!(7), &json!("Error")));
    let message = c["state"]["waiting"]["message"].as_str().unwrap();
    assert!(message.starts_with("back-off 10s restarting failed container=c pod=loop_"), "{message}");
    assert_eq!(s.get("pods/loop")["status"]["phase"], "Running");
    assert!(s.event("loop", "BackOff").starts_with("Back-off restarting failed container c in pod loop_"));
    let c = s.container("again", |c| c["restartCount"].as_i64() >= Some(1) && !c["lastState"]["terminated"].is_null());
    assert_eq!(c["lastState"]["terminated"]["reason"], "Completed");
    let p = s.phase("done", "Succeeded");
    assert_eq!(p["status"]["containerStatuses"][0]["restartCount"], 0);
    let table = s.ok(&["get", "pod", "loop"]);
    assert!(table.contains("CrashLoopBackOff"), "{table}");
}

fn moment(v: &Value) -> jiff::Timestamp {
    v.as_str().unwrap().parse().unwrap()
}

/// Clauses: P10.back-off
fn back_off_grows(s: &Story) {
    s.shell_pod("p", "exit 1", json!({}), json!({}));
    // The first restart comes at once, the second after ten seconds.
    let c = s.container("p", |c| c["restartCount"] == 1 && !c["lastState"]["terminated"].is_null());
    let first = c["lastState"]["terminated"].clone();
    let c = s.container("p", |c| c["restartCount"] == 2 && c["state"]["running"].is_null());
    // Until the back-off begins, the state itself has the end.
    let second =
        [&c["state"]["terminated"], &c["lastState"]["terminated"]].into_iter().find(|t| t.is_object()).unwrap();
    let ended = moment(&second["finishedAt"]);
    let before = moment(&first["finishedAt"]);
    let waited = ended.duration_since(before).as_secs();
    assert!((9..30).contains(&waited), "{waited} s between the ends: {c}");
}

/// Clauses: R03.memory P08.oom-killed P06.oom
fn runs_out_of_memory(s: &Story) {
    let limit = json!({"resources": {"limits": {"memory": "24Mi"}}});
    s.shell_pod("once", "exec tail /dev/zero", never(), limit.clone());
    s.shell_pod("always", "exec tail /dev/zero", json!({}), limit);
    s.phase("once", "Failed");
    // containerd may report the reason after the end.
    let c = s.container("once", |c| c["state"]["terminated"]["reason"] == "OOMKilled");
    assert_eq!(c["state"]["terminated"]["exitCode"], 137);
    let is_killed = |c: &Value| c["lastState"]["terminated"]["reason"] == "OOMKilled";
    let c = s.container("always", |c| c["restartCount"].as_i64() >= Some(1) && is_killed(c));
    assert_eq!(c["lastState"]["terminated"]["exitCode"], 137);
}

/// Clauses: P08.err-image-pull P08.image-pull-back-off P06.pending
fn cannot_pull(s: &Story) {
    s.pod("p", json!({}), vec![json!({"name": "c", "image": "registry.invalid/nothing:1"})]);
    let waiting = |reason: &'static str| move |c: &Value| c["state"]["waiting"]["reason"] == reason;
    s.container("p", waiting("ErrImagePull"));
    s.container("p", waiting("ImagePullBackOff"));
    let p = s.get("pods/p");
    assert_eq!(p["status"]["phase"], "Pending");
    assert_eq!((condition(&p, "PodScheduled"), condition(&p, "Ready")), ("True", "False"));
    assert!(s.event("p", "Failed").contains("registry.invalid/nothing:1"));
    s.pod(
        "never",
        json!({}),
        vec![json!({"name": "c", "image": "registry.invalid/nothing:1", "imagePullPolicy": "Never"})],
    );
    s.container("never", waiting("ErrImageNeverPull"));
}

/// Clauses: P08.create-container-config-error K12.missing
fn cannot_configure(s: &Story) {
    let key = json!({"env": [{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "k"}}}]});
    s.shell_pod("p", "echo got $K; sleep 1000", json!({}), key);
    let c = s.container("p", |c| c["state"]["waiting"]["reason"] == "CreateContainerConfigError");
    assert_eq!(c["state"]["waiting"]["message"], "configmap \"late\" not found");
    assert!(s.event("p", "Failed").contains("configmap \"late\" not found"));
    s.create("configmaps", json!({"metadata": {"name": "late"}, "data": {"other": "x"}}));
    let missing = format!("couldn't find key k in ConfigMap {}/late", s.ns);
    s.container("p", |c| c["state"]["waiting"]["message"] == *missing);
    s.patch("configmaps/late", json!({"data": {"k": "v"}}));
    s.ready("p");
    s.logged("p", "got v");
}

/// Clauses: P08.start-error
fn cannot_start(s: &Story) {
    s.pod("p", never(), vec![json!({"name": "c", "command": ["/no/such/program"]})]);
    let c = s.container("p", |c| !c["state"]["terminated"].is_null());
    let state = &c["state"]["terminated"];
    assert_eq!((&state["reason"], &state["exitCode"]), (&json!("StartError"), &json!(128)), "{state}");
    assert!(state["message"].as_str().unwrap().contains("/no/such/program"), "{state}");
    s.phase("p", "Failed");
}

/// Clauses: P08.termination-message P08.fallback
fn leaves_a_message(s: &Story) {
    s.shell_pod("file", "echo -n farewell > /dev/termination-log", never(), json!({}));
    let fallback = json!({"terminationMessagePolicy": "FallbackToLogsOnError"});
    s.shell_pod("log", "echo the last words; exit 1", never(), fallback.clone());
    let p = s.phase("file", "Succeeded");
    assert_eq!(p["status"]["containerStatuses"][0]["state"]["terminated"]["message"], "farewell");
    let p = s.phase("log", "Failed");
    assert_eq!(p["status"]["containerStatuses"][0]["state"]["terminated"]["message"], "the last words\n");
    s.shell_pod("bare", "echo -n one; echo; echo -n DONE; exit 1", never(), fallback);
    let p = s.phase("bare", "Failed");
    assert_eq!(p["status"]["containerStatuses"][0]["state"]["terminated"]["message"], "one\nDONE");
    assert_eq!(s.logs("bare"), "one\nDONE", "nor has the log an end of line that was not written");
}

/// Clauses: P12.order P12.status P06.initialized
fn init_containers_come_first(s: &Story) {
    let mut pod = json!({
        "metadata": {"name": "p"},
        "spec": {
            "restartPolicy": "Never",
            "volumes": [{"name": "v", "emptyDir": {}}, s.tools()],
            "initContainers": [], "containers": [],
        },
    });
    let container = |name: &str, script: &str| {
        let mounts = json!([{"name": "v", "mountPath": "/v"}, {"name": "tools", "mountPath": "/bin"}]);
        json!({"name": name, "image": crate::story::IMAGE, "command": ["sh", "-c", script], "volumeMounts": mounts})
    };
    let hold = "until test -e /v/go; do sleep 0.1; done; echo one >> /v/order";
    pod["spec"]["initContainers"] = json!([container("one", hold), container("two", "echo two >> /v/order")]);
    pod["spec"]["containers"] = json!([container("main", "cat /v/order")]);
    s.create("pods", pod);
    let running = |p: &Value| !p["status"]["initContainerStatuses"][0]["state"]["running"].is_null();
    let p = s.until("pods/p", running);
    assert_eq!((condition(&p, "Initialized"), &p["status"]["phase"]), ("False", &json!("Pending")));
    let table = s.ok(&["get", "pod", "p"]);
    assert!(table.contains("Init:0/2"), "{table}");
    // How `touch` ends is not looked at: the container it lets go may end first and take it along (exit code 137).
    s.k(&["exec", "p", "-c", "one", "--", "touch", "/v/go"]);
    let p = s.phase("p", "Succeeded");
    assert_eq!(condition(&p, "Initialized"), "True");
    assert_eq!(s.logs("p"), "one\ntwo\n");
}

/// The cluster of these tests lives where no registry can be reached. Clauses: G07.no-images G07.demo G07.dns
fn nothing_comes_from_elsewhere(s: &Story) {
    let routes = std::process::Command::new("ip").args(["route", "show", "default"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&routes.stdout), "", "there is no way out");
    let system = s.get_at("/api/v1/namespaces/kube-system/pods");
    assert_eq!(system["items"], json!([]), "names and services need no pod");
    s.shell_pod("here", "sleep 1000", json!({}), json!({}));
    let p = s.phase("here", "Running");
    let status = &p["status"]["containerStatuses"][0];
    assert_eq!((&status["image"], &status["ready"]), (&json!("kemudi.local/demo:latest"), &json!(true)), "{status}");
    assert!(status["imageID"].as_str().is_some_and(|i| i.contains("sha256:")), "{status}");
    let answer = s.exec("here", &["nslookup", "kubernetes.default.svc.cluster.local"]);
    let answer = String::from_utf8_lossy(&answer.stdout);
    assert!(answer.contains("10.96.0.1"), "{answer}");
}

/// Clauses: P10.restart-all P12.restart-all
fn a_rule_restarts_all_containers(s: &Story) {
    let out = s.cluster.directory.join(format!("{}-out", s.ns));
    std::fs::create_dir_all(&out).unwrap();
    let container = |name: &str, script: &str| {
        json!({"name": name, "image": "kemudi.local/demo", "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "out", "mountPath": "/out"}, {"name": "tools", "mountPath": "/bin"}]})
    };
    let forever = "echo $0 >> /out/order; trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let mut trigger = container(
        "trigger",
        "echo trigger >> /out/order; until test -e /out/go; do sleep 0.1; done; rm /out/go; exit 42",
    );
    trigger["restartPolicy"] = "Never".into();
    trigger["restartPolicyRules"] =
        json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let spec = json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "out", "hostPath": {"path": out}}, s.tools()],
        "initContainers": [container("init", "echo init >> /out/order")],
        "containers": [trigger, container("other", &forever.replace("$0", "other"))]});
    s.create("pods", json!({"metadata": {"name": "p"}, "spec": spec}));
    let ready = s.ready("p");
    assert_eq!(condition(&ready, "AllContainersRestarting"), "False");
    std::fs::write(out.join("go"), "").unwrap();
    let restarted = s.until("pods/p", |p| {
        let count = |list: &str, i: usize| p["status"][list][i]["restartCount"] == 1;
        condition(p, "Ready") == "True"
            && count("containerStatuses", 0)
            && count("containerStatuses", 1)
            && count("initContainerStatuses", 0)
    });
    let last = &restarted["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 42);
    assert_eq!(condition(&restarted, "AllContainersRestarting"), "False");
    let order = std::fs::read_to_string(out.join("order")).unwrap();
    let lines: Vec<&str> = order.lines().collect();
    assert_eq!((lines.len(), lines[0], lines[3]), (6, "init", "init"), "{lines:?}");
    assert_eq!(restarted["status"]["podIP"], ready["status"]["podIP"], "the sandbox stays");
}

/// Under `restartPolicy: Never` the pod failed: the rules of init containers were not looked at.
///
/// Clauses: P10.restart-all
fn rules_restart_init_containers(s: &Story) {
    let out = s.cluster.directory.join(format!("{}-out", s.ns));
    std::fs::create_dir_all(&out).unwrap();
    let container = |name: &str, script: &str| {
        json!({"name": name, "image": "kemudi.local/demo", "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "out", "mountPath": "/out"}, {"name": "tools", "mountPath": "/bin"}]})
    };
    let once = |file: &str, code: u32| format!("test -e /out/{file} && exit 0; touch /out/{file}; exit {code}");
    let with_rule = |mut c: Value, action: &str, code: u32| {
        c["restartPolicy"] = "Never".into();
        c["restartPolicyRules"] = json!([{"action": action, "exitCodes": {"operator": "In", "values": [code]}}]);
        c
    };
    let forever = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let mut sidecar = container("sidecar", forever);
    sidecar["restartPolicy"] = "Always".into();
    let itself = with_rule(container("itself", &once("itself", 7)), "Restart", 7);
    let all = with_rule(container("all", &once("all", 42)), "RestartAllContainers", 42);
    let fails = with_rule(container("fails", "exit 1"), "Restart", 7);
    let spec = |init: Value| {
        json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "out", "hostPath": {"path": out}}, s.tools()],
            "initContainers": init, "containers": [container("c", forever)]})
    };
    s.create("pods", json!({"metadata": {"name": "p"}, "spec": spec(json!([sidecar, itself, all]))}));
    let ready = s.ready("p");
    let counts = |p: &Value| -> Vec<i64> {
        let init = p["status"]["initContainerStatuses"].as_array().unwrap();
        init.iter().map(|c| c["restartCount"].as_i64().unwrap()).collect()
    };
    assert_eq!(counts(&ready), [1, 2, 1]);
    s.create("pods", json!({"metadata": {"name": "failing"}, "spec": spec(json!([fails]))}));
    let failed = s.until("pods/failing", |p| p["status"]["phase"] == "Failed");
    assert_eq!(counts(&failed), [0]);
}

/// Clauses: P06.observed-generation P08.definition-changed
fn changed_images_restart_containers(s: &Story) {
    let script = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
    s.shell_pod("p", script, never(), json!({}));
    let first = s.ready("p");
    s.ok(&["set", "image", "pod/p", "c=kemudi.local/demo"]);
    let second = s.until("pods/p", |p| {
        p["status"]["containerStatuses"][0]["restartCount"] == 1 && condition(p, "Ready") == "True"
    });
    assert_eq!(second["status"]["observedGeneration"], second["metadata"]["generation"]);
    assert_ne!(first["metadata"]["generation"], second["metadata"]["generation"]);
    let message = "Container c definition changed, will be restarted";
    assert!(s.events("p").contains(&("Killing".to_owned(), message.to_owned())), "{:?}", s.events("p"));
}

/// Clauses: P05.status-user P12.status-resources
fn shows_users_and_resources(s: &Story) {
    let security = json!({"runAsUser": 1000, "runAsGroup": 3000, "supplementalGroups": [4000]});
    let resources = json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}});
    let script = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
    s.shell_pod("p", script, json!({"securityContext": security}), json!({"resources": resources}));
    let status = s.ready("p")["status"].clone();
    let user = json!({"linux": {"uid": 1000, "gid": 3000, "supplementalGroups": [3000, 4000]}});
    // containerd 1.6 does not report it.
    let expected = if s.cluster.engine == Engine::Embedded { user } else { Value::Null };
    assert_eq!(status["containerStatuses"][0]["user"], expected);
    assert_eq!(s.sh("p", "id -u; id -g; id -G"), "1000\n3000\n3000 4000\n");
    assert_eq!(status["resources"], resources);
    assert_eq!(status["allocatedResources"], resources["requests"]);
}

/// Clauses: P01.fqdn
fn long_host_names_are_refused(s: &Story) {
    let hostname = "h".repeat(60);
    s.shell_pod("p", "true", json!({"hostname": hostname, "subdomain": "sub", "setHostnameAsFQDN": true}), json!({}));
    let full = format!("{hostname}.sub.{}.svc.cluster.local", s.ns);
    let message = format!(
        "Failed to create pod sandbox: failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too \
         long (64 characters is the max, {} characters requested)",
        full.len()
    );
    assert_eq!(s.event("p", "FailedCreatePodSandBox"), message);
}
