//! What concerns container runtimes behind the CRI alone.

use crate::cluster::{KEMUDI, data_dir};
use crate::containerd::HANDLER;
use crate::runner::Case;
use crate::story::{Story, condition};
use serde_json::json;
use std::process::{Command, Stdio};

pub const TESTS: &[Case] = &[
    ("cri::the_node_shows_its_runtime", the_node_shows_its_runtime),
    ("cri::what_the_runtime_lacks_is_refused", what_the_runtime_lacks_is_refused),
    ("cri::pods_run_with_the_handler_of_their_class", pods_run_with_the_handler_of_their_class),
    ("cri::logs_are_rotated", logs_are_rotated),
    ("cri::unusable_endpoints_are_refused", unusable_endpoints_are_refused),
];

pub const ALONE: &[Case] = &[("cri::a_runtime_that_goes_comes_back", a_runtime_that_goes_comes_back)];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

fn the_node_shows_its_runtime(s: &Story) {
    let node = s.get_at("/api/v1/nodes/e2e");
    let version = node["status"]["nodeInfo"]["containerRuntimeVersion"].as_str().unwrap();
    assert!(version.starts_with("containerd://1."), "{version}");
    s.shell_pod("p", FOREVER, json!({}), json!({}));
    let p = s.ready("p");
    let c = &p["status"]["containerStatuses"][0];
    let id = c["containerID"].as_str().unwrap().strip_prefix("containerd://").unwrap();
    assert!(
        s.cluster.containerd.lock().unwrap().as_ref().unwrap().ctr(&["containers", "list", "-q"]).unwrap().contains(id)
    );
    // The files that the agent writes for the container.
    let address = p["status"]["podIP"].as_str().unwrap();
    assert!(s.sh("p", "cat /etc/hosts").contains(&format!("{address}\tp\n")));
    assert!(s.sh("p", "cat /etc/resolv.conf").contains("svc.cluster.local"));
    assert_eq!(s.sh("p", "hostname"), "p\n");
    s.ok(&["delete", "pod", "p", "--grace-period=1"]);
    assert!(
        !s.cluster
            .containerd
            .lock()
            .unwrap()
            .as_ref()
            .unwrap()
            .ctr(&["containers", "list", "-q"])
            .unwrap()
            .contains(id)
    );
}

/// What containerd 1.6 does not offer.
fn what_the_runtime_lacks_is_refused(s: &Story) {
    s.shell_pod("users", FOREVER, json!({"hostUsers": false}), json!({}));
    let p = s.until("pods/users", |p| p["status"]["phase"] == "Failed");
    let message = p["status"]["message"].as_str().unwrap();
    assert!(message.contains("does not support user namespaces"), "{message}");
    let security = json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}});
    s.shell_pod("groups", FOREVER, security, json!({}));
    let volumes = json!([{"name": "v", "emptyDir": {}}]);
    let mount = |recursive: &str| json!({"volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": recursive}]});
    s.shell_pod("recursive", FOREVER, json!({"volumes": volumes}), mount("Enabled"));
    let image = json!([{"name": "v", "image": {"reference": crate::story::IMAGE}}]);
    s.shell_pod(
        "image",
        FOREVER,
        json!({"volumes": image}),
        json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}),
    );
    let signal = json!({"lifecycle": {"stopSignal": "SIGUSR1"}});
    s.shell_pod("signal", FOREVER, json!({"os": {"name": "linux"}}), signal);
    for (name, feature) in [
        ("signal", "stop signals of containers"),
        ("groups", "supplementalGroupsPolicy Strict"),
        ("recursive", "recursive read-only mounts"),
        ("image", "image volumes"),
    ] {
        let c = s.container(name, |c| c["state"]["waiting"]["reason"] == "CreateContainerError");
        let message = c["state"]["waiting"]["message"].as_str().unwrap();
        assert!(
            message.contains("containerd 1.6") && message.ends_with(&format!("does not support {feature}")),
            "{message}"
        );
    }
    // Where it may do without, it does, and the status says so.
    s.shell_pod("possible", FOREVER, json!({"volumes": volumes}), mount("IfPossible"));
    let p = s.ready("possible");
    let mounts = p["status"]["containerStatuses"][0]["volumeMounts"].as_array().unwrap();
    let of_volume = mounts.iter().find(|m| m["name"] == "v").unwrap();
    assert_eq!(of_volume["recursiveReadOnly"], "Disabled");
}

fn pods_run_with_the_handler_of_their_class(s: &Story) {
    let class = |name: &str| format!("{}-{name}", s.ns);
    let create = |name: &str, handler: &str| {
        let metadata = json!({"name": class(name)});
        let class =
            json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": metadata, "handler": handler});
        s.apply(&class.to_string());
    };
    create("other", HANDLER);
    create("missing", "none-such");
    let privileged = || json!({"securityContext": {"privileged": true}});
    s.shell_pod("default", FOREVER, json!({}), privileged());
    s.shell_pod("other", FOREVER, json!({"runtimeClassName": class("other")}), privileged());
    s.shell_pod("missing", FOREVER, json!({"runtimeClassName": class("missing")}), json!({}));
    let has_devices = |name: &str| {
        s.ready(name);
        s.sh(name, "test -e /dev/kmsg -o -e /dev/loop-control && echo yes || echo no")
    };
    assert_eq!((has_devices("default").as_str(), has_devices("other").as_str()), ("yes\n", "no\n"));
    let event = |why: &str| {
        let is = |(reason, message): (String, String)| reason == "FailedCreatePodSandBox" && message.contains(why);
        s.eventually(why, || s.events("missing").into_iter().any(is).then_some(()));
    };
    event("no runtime for \"none-such\" is configured");
    // The handler of a class cannot be changed.
    s.ok(&["delete", "runtimeclass", &class("missing")]);
    event(&format!("runtimeclass.node.k8s.io {:?} not found", class("missing")));
    create("missing", "runc");
    s.ready("missing");
    s.ok(&["delete", "runtimeclass", &class("missing"), &class("other")]);
}

/// Clauses: P18.logs
fn logs_are_rotated(s: &Story) {
    let script = format!(
        "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); echo line $i of a log that is to be rotated; done; {FOREVER}"
    );
    s.shell_pod("p", &script, json!({}), json!({}));
    let p = s.ready("p");
    s.logged("p", "line 400000 of");
    let name = format!("{}_p_{}", s.ns, p["metadata"]["uid"].as_str().unwrap());
    let directory = std::path::Path::new(&data_dir(&s.cluster.directory)).join("logs").join(name).join("c");
    s.eventually("a rotated log", || (std::fs::read_dir(&directory).unwrap().count() > 1).then_some(()));
    s.sh("p", "echo after the rotation >/proc/1/fd/1");
    s.logged("p", "after the rotation");
    // As with the kubelet, only the newest file is printed.
    assert!(!s.ok(&["logs", "p"]).contains("line 1 of"));
}

/// Starts a second node, which fails before it changes anything.
fn refused(s: &Story, args: &[&str]) -> String {
    let directory = s.dir.join("data");
    let o = Command::new(KEMUDI)
        .args(["up", "--secure-port", "0", "--cluster-cidr", "10.91.0.0/16", "--data-dir"])
        .arg(&directory)
        .args(["--service-cluster-ip-range", "10.92.0.0/16", "--load-balancer-cidr", "none"])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!o.status.success());
    let purged = Command::new(KEMUDI).args(["down", "--purge", "--data-dir"]).arg(&directory).output().unwrap();
    assert!(purged.status.success(), "{purged:?}");
    String::from_utf8_lossy(&o.stderr).into_owned()
}

fn unusable_endpoints_are_refused(s: &Story) {
    let flag = "--container-runtime-endpoint";
    let error = refused(s, &[flag, "tcp://127.0.0.1:1"]);
    assert!(error.contains("containerRuntimeEndpoint: protocol \"tcp\" not supported"), "{error}");
    let error = refused(s, &[flag, "unix:///nonexistent/c.sock", "--nodes", "2"]);
    assert!(error.contains("--container-runtime-endpoint is for one node"), "{error}");
    let error = refused(s, &[flag, "unix:///nonexistent/c.sock", "--kubelet-port", "0"]);
    let expected =
        "validate CRI v1 runtime API for endpoint \"unix:///nonexistent/c.sock\": rpc error: code = Unavailable";
    assert!(error.contains(expected) && error.contains("No such file or directory"), "{error}");
    // A server of something else: the API server of the cluster speaks HTTP/2, but no CRI.
    let socket = s.dir.join("other.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || listener.incoming().take(64).for_each(drop));
    let error = refused(s, &[flag, &format!("unix://{}", socket.display()), "--kubelet-port", "0"]);
    assert!(error.contains("validate CRI v1 runtime API for endpoint"), "{error}");
    // Images are where the pods are.
    let o =
        Command::new(KEMUDI).args(["image", "list", "--data-dir", &data_dir(&s.cluster.directory)]).output().unwrap();
    let error = String::from_utf8_lossy(&o.stderr);
    assert!(error.contains("the images of this node are in the container runtime at unix:///"), "{error}");
}

/// The node is not ready while its runtime is away, and its containers go on.
fn a_runtime_that_goes_comes_back(s: &Story) {
    let dir = s.cluster.directory.join(format!("{}-out", s.ns));
    std::fs::create_dir_all(&dir).unwrap();
    let (volume, mounts) =
        (json!([{"name": "out", "hostPath": {"path": dir}}]), json!([{"name": "out", "mountPath": "/out"}]));
    let script = "trap 'exit 0' TERM; until test -e /out/go; do sleep 0.1; done; echo done > /out/done; exit 7";
    s.shell_pod("p", script, json!({"restartPolicy": "Never", "volumes": volume}), json!({"volumeMounts": mounts}));
    let before = s.ready("p");
    s.cluster.containerd.lock().unwrap().as_mut().unwrap().stop();
    let node = || s.get_at("/api/v1/nodes/e2e");
    s.eventually("the node to be not ready", || (condition(&node(), "Ready") == "False").then_some(()));
    let status = node()["status"].clone();
    let ready = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready").unwrap();
    assert_eq!((&ready["reason"], &ready["message"]), (&json!("KubeletNotReady"), &json!("container runtime is down")));
    // It ends while nobody sees it.
    std::fs::write(dir.join("go"), "").unwrap();
    s.eventually("the end of the container", || dir.join("done").exists().then_some(()));
    let mut containerd = s.cluster.containerd.lock().unwrap();
    s.cluster.runtime.block_on(containerd.as_mut().unwrap().start_again(&s.cluster.directory)).unwrap();
    drop(containerd);
    s.eventually("the node to be ready", || (condition(&node(), "Ready") == "True").then_some(()));
    let c = s.container("p", |c| !c["state"]["terminated"].is_null());
    assert_eq!(c["state"]["terminated"]["exitCode"], 7);
    assert_eq!(c["containerID"], before["status"]["containerStatuses"][0]["containerID"]);
    s.shell_pod("new", FOREVER, json!({}), json!({}));
    s.ready("new");
}
