//! Escapes from a container by a path: symbolic links where the node agent opens files, sysctls, and the server's data directory.

use crate::cluster::KEMUDI;
use crate::runner::Case;
use crate::story::{IMAGE, Story, condition};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const TESTS: &[Case] = &[
    ("paths::sub_paths_stay_in_their_volume", sub_paths_stay_in_their_volume),
    ("paths::a_link_swapped_in_mounts_nothing", a_link_swapped_in_mounts_nothing),
    ("paths::targets_of_mounts_stay_in_the_container", targets_of_mounts_stay_in_the_container),
    ("paths::host_paths_are_what_their_type_says", host_paths_are_what_their_type_says),
    ("paths::logs_are_no_links", logs_are_no_links),
    ("paths::working_directories_stay_in_the_container", working_directories_stay_in_the_container),
    ("paths::deep_trees_are_removed", deep_trees_are_removed),
    ("paths::sysctls_of_the_machine_are_refused", sysctls_of_the_machine_are_refused),
    ("paths::nobody_walks_the_data_directory", nobody_walks_the_data_directory),
];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// A file of the host that no pod may read.
fn secret(s: &Story) -> PathBuf {
    let path = s.dir.join("secret-of-the-host");
    fs::write(&path, "top secret").unwrap();
    path
}

fn waiting(status: &Value) -> String {
    let w = &status["state"]["waiting"];
    let t = &status["state"]["terminated"];
    format!("{} {} {} {}", w["reason"], w["message"], t["reason"], t["message"])
}

/// A pod of two containers that share a volume: the first writes a link into it, the second mounts what the link names.
fn sub_paths_stay_in_their_volume(s: &Story) {
    let secret = secret(s);
    let host = secret.parent().unwrap().display().to_string();
    let volumes = json!([{"name": "v", "emptyDir": {}}]);
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    let prepare = format!(
        "ln -s {host} /v/absolute; ln -s ../../../../../../../../../../etc /v/climbing; ln -s /proc/1/root /v/magic; \
         mkdir /v/real; echo mine >/v/real/file; ln -s real /v/within; ln -s nowhere /v/dangling; {FOREVER}"
    );
    s.shell_pod("writer", &prepare, json!({"volumes": volumes}), json!({"volumeMounts": mounts}));
    let writer = s.ready("writer");
    let uid = writer["metadata"]["uid"].as_str().unwrap();
    s.sh("writer", "until [ -L /v/dangling ]; do sleep 0.1; done");
    // The volume of a running pod, as a path of the host that another pod mounts.
    let node = s.cluster.directory.join(format!("data/node/pods/{uid}/volumes/kubernetes.io~empty-dir/v"));
    let volumes = json!([{"name": "v", "hostPath": {"path": node}}]);
    for (name, sub) in [
        ("absolute", "absolute"),
        ("deeper", "absolute/secret-of-the-host"),
        ("climbing", "climbing"),
        ("magic", "magic"),
    ] {
        let mount = json!([{"name": "v", "mountPath": "/stolen", "subPath": sub}]);
        s.shell_pod(name, FOREVER, json!({"volumes": volumes}), json!({"volumeMounts": mount}));
        let status = s.container(name, |c| c["state"]["waiting"]["reason"] == "CreateContainerConfigError");
        let why = waiting(&status);
        assert!(why.contains("failed to prepare subPath") && why.contains("leads out of its volume"), "{name}: {why}");
    }
    let mounts = json!([
        {"name": "v", "mountPath": "/within", "subPath": "within"}, {"name": "v", "mountPath": "/new", "subPath": "new/er"},
        {"name": "v", "mountPath": "/made", "subPath": "dangling"},
    ]);
    s.shell_pod("honest", FOREVER, json!({"volumes": volumes}), json!({"volumeMounts": mounts}));
    s.ready("honest");
    assert_eq!(s.sh("honest", "cat /within/file; echo x >/new/file; echo y >/made/file"), "mine\n");
    assert_eq!(s.sh("writer", "cat /v/new/er/file /v/nowhere/file"), "x\ny\n");
}

/// One container swaps a directory of a volume for a link to the host, as fast as it can, while the other one starts again and
/// again with that directory mounted. It may fail to start, but it must never see the host.
fn a_link_swapped_in_mounts_nothing(s: &Story) {
    let secret = secret(s);
    let host = secret.parent().unwrap().display().to_string();
    let swap = format!(
        "cd /v; mkdir sub real; touch real/mine; ln -s {host} link; \
         while :; do mv -T sub a 2>/dev/null; mv -T link sub 2>/dev/null; mv -T sub link 2>/dev/null; mv -T a sub 2>/dev/null; done"
    );
    let look =
        "if [ -e /stolen/secret-of-the-host ]; then cat /stolen/secret-of-the-host; echo; fi; echo looked; exit 1";
    let tools = json!({"name": "tools", "mountPath": "/bin", "readOnly": true});
    let pod = |name: &str| {
        let spec = json!({
            "terminationGracePeriodSeconds": 0, "restartPolicy": "Never",
            "volumes": [{"name": "v", "emptyDir": {}}, s.tools()],
            "initContainers": [{
                "name": "swap", "image": IMAGE, "command": ["sh", "-c", swap], "restartPolicy": "Always",
                "volumeMounts": [{"name": "v", "mountPath": "/v"}, tools],
            }],
            "containers": (0..6).map(|n| json!({
                "name": format!("look{n}"), "image": IMAGE, "command": ["sh", "-c", look],
                "volumeMounts": [{"name": "v", "mountPath": "/stolen", "subPath": "sub"}, tools],
            })).collect::<Vec<_>>(),
        });
        s.create("pods", json!({"metadata": {"name": name}, "spec": spec}));
    };
    let (mut looked, mut refused) = (0, 0);
    for round in 0..6 {
        let name = format!("racer{round}");
        pod(&name);
        let done = |c: &Value| !c["state"]["terminated"].is_null() || !c["state"]["waiting"]["message"].is_null();
        let p = s.until(&format!("pods/{name}"), |p| {
            let all = p["status"]["containerStatuses"].as_array();
            all.is_some_and(|a| a.len() == 6 && a.iter().all(done))
        });
        for c in p["status"]["containerStatuses"].as_array().unwrap() {
            let container = c["name"].as_str().unwrap();
            if c["state"]["terminated"]["reason"] != "Error" {
                refused += 1;
                continue;
            }
            looked += 1;
            let log = s.ok(&["logs", &name, "-c", container]);
            assert!(log.contains("looked") && !log.contains("top secret"), "{name} {container}: {log}");
        }
        s.k(&["delete", "pod", &name, "--wait=false"]);
    }
    println!("paths: of 36 starts during the swap {looked} saw their own directory, {refused} were refused");
    assert!(looked + refused == 36);
}

/// Links in a volume where another mount of the same container is to be placed, and mounts over /proc.
fn targets_of_mounts_stay_in_the_container(s: &Story) {
    let before = fs::read_dir("/etc").unwrap().count();
    s.shell_pod(
        "links",
        "ln -s /proc/1/root/etc /v/climb; ln -s ../../../../../../etc /v/up; echo done; exec sleep 1000000",
        json!({"volumes": [{"name": "v", "hostPath": {"path": s.dir.join("shared"), "type": "DirectoryOrCreate"}}]}),
        json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}),
    );
    s.logged("links", "done");
    let volumes = json!([
        {"name": "v", "hostPath": {"path": s.dir.join("shared"), "type": "Directory"}}, {"name": "e", "emptyDir": {}},
    ]);
    for (name, below, spec) in [
        ("climb", "climb", json!({"volumes": volumes})),
        ("up", "up", json!({"volumes": volumes})),
        ("hostpid", "climb", json!({"volumes": volumes, "hostPID": true})),
    ] {
        let mounts = json!([
            {"name": "v", "mountPath": "/v"}, {"name": "e", "mountPath": format!("/v/{below}/made-by-{name}")},
        ]);
        s.shell_pod(name, FOREVER, spec, json!({"volumeMounts": mounts}));
        s.container(name, |c| {
            !c["state"]["running"].is_null()
                || !c["lastState"]["terminated"].is_null()
                || c["state"]["waiting"]["reason"] == "RunContainerError"
        });
        assert!(!Path::new(&format!("/etc/made-by-{name}")).exists(), "{name} made a directory of the host");
    }
    assert_eq!(fs::read_dir("/etc").unwrap().count(), before);
    for (name, path) in [("over-proc", "/proc"), ("in-proc", "/proc/sys/kernel"), ("by-dots", "/proc/self")] {
        let mounts = json!([{"name": "e", "mountPath": path}]);
        s.shell_pod(
            name,
            FOREVER,
            json!({"volumes": [{"name": "e", "emptyDir": {}}]}),
            json!({"volumeMounts": mounts}),
        );
        let refused = |c: &Value| format!("{} {}", waiting(c), c["lastState"]["terminated"]["message"]);
        let status = s.container(name, |c| refused(c).contains("inside /proc"));
        assert!(refused(&status).contains("cannot be mounted because it is inside /proc"), "{status}");
    }
}

fn host_paths_are_what_their_type_says(s: &Story) {
    let at = |name: &str| s.dir.join(name);
    fs::create_dir(at("directory")).unwrap();
    fs::write(at("file"), "x").unwrap();
    std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
    for (name, path, kind, what) in [
        ("d", "file", "Directory", "directory"),
        ("f", "directory", "File", "file"),
        ("s", "link", "Socket", "socket file"),
        ("c", "file", "CharDevice", "character device"),
        ("b", "none", "BlockDevice", "block device"),
        ("n", "none", "Directory", "directory"),
    ] {
        let volumes = json!([{"name": "v", "hostPath": {"path": at(path), "type": kind}}]);
        s.shell_pod(name, FOREVER, json!({"volumes": volumes}), json!({}));
        let message = s.event(name, "FailedMount");
        let want = format!("hostPath type check failed: {} is not a {what}", at(path).display());
        assert!(message.contains(&want), "{message}");
    }
    assert!(!at("none").exists());
}

/// Whoever can write among the logs must not make the node read or write other files.
fn logs_are_no_links(s: &Story) {
    let secret = secret(s);
    s.shell_pod("talker", &format!("echo mine; {FOREVER}"), json!({}), json!({}));
    let pod = s.ready("talker");
    s.logged("talker", "mine");
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let logs = s.cluster.directory.join(format!("data/logs/{}_talker_{uid}/c", s.ns));
    let log = fs::read_dir(&logs).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(&log).unwrap();
    std::os::unix::fs::symlink(&secret, &log).unwrap();
    let o = s.k(&["logs", "talker"]);
    let said = format!("{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr));
    assert!(!said.contains("top secret"), "{said}");
    fs::remove_file(&log).unwrap();
    nix::unistd::mkfifo(&log, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(s.k(&["logs", "talker"]).stdout.is_empty(), "a pipe is not waited for");
}

fn working_directories_stay_in_the_container(s: &Story) {
    for (name, dir) in [("fd", "/proc/self/fd/8"), ("cwd", "/proc/self/cwd/../../.."), ("root", "/proc/1/root/..")] {
        s.shell_pod(name, "ls -a /proc/self/cwd/; pwd; exec sleep 1000000", json!({}), json!({"workingDir": dir}));
        let c = s.container(name, |c| !c["state"]["running"].is_null() || !c["lastState"]["terminated"].is_null());
        if !c["state"]["running"].is_null() {
            let listed = s.logged(name, "/\n");
            assert!(listed.contains("kemudi") && !listed.contains("boot"), "{name} is outside: {listed}");
        }
    }
}

/// A tree that is deeper than a path may be long, or than a process may open files, does not keep a pod from being removed.
fn deep_trees_are_removed(s: &Story) {
    let volumes = json!([{"name": "v", "emptyDir": {}}]);
    let dig = "cd /v; i=0; while [ $i -lt 3000 ]; do mkdir d; cd d; i=$((i+1)); done; echo dug; exec sleep 1000000";
    s.shell_pod("mole", dig, json!({"volumes": volumes}), json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
    s.logged("mole", "dug");
    let uid = s.get("pods/mole")["metadata"]["uid"].as_str().unwrap().to_owned();
    s.ok(&["delete", "pod", "mole"]);
    let left = s.cluster.directory.join("data/node/pods").join(uid);
    s.eventually("the pod's directory is gone", || (!left.exists()).then_some(()));
}

/// Clauses: P05.sysctls
fn sysctls_of_the_machine_are_refused(s: &Story) {
    let pattern = || fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let before = pattern();
    for (name, sysctl) in [
        ("core", "kernel.core_pattern"),
        ("slashed", "kernel/core_pattern"),
        ("unsafe", "net.core.somaxconn"),
        ("unsafe-ipc", "kernel.msgmax"),
    ] {
        let spec = json!({"securityContext": {"sysctls": [{"name": sysctl, "value": "1"}]}});
        s.shell_pod(name, FOREVER, spec, json!({}));
        let p = s.phase(name, "Failed");
        assert_eq!(p["status"]["reason"], "SysctlForbidden", "{p}");
        let message = p["status"]["message"].as_str().unwrap();
        assert!(message.contains("forbidden sysctl: "), "{message}");
    }
    assert_eq!(pattern(), before);
    let sysctls = json!([
        {"name": "net.ipv4.ip_unprivileged_port_start", "value": "80"}, {"name": "kernel/shm_rmid_forced", "value": "1"},
    ]);
    s.shell_pod("safe", FOREVER, json!({"securityContext": {"sysctls": sysctls}}), json!({}));
    let p = s.ready("safe");
    assert_eq!(condition(&p, "Ready"), "True");
    assert_eq!(
        s.sh("safe", "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced"),
        "80\n1\n"
    );
}

/// What a user of the machine without privileges can reach in the data directory, and the modes of what is kept.
fn nobody_walks_the_data_directory(s: &Story) {
    s.create("secrets", json!({"metadata": {"name": "key"}, "stringData": {"password": "one"}}));
    let volumes = json!([{"name": "key", "secret": {"secretName": "key"}}]);
    s.shell_pod(
        "p",
        FOREVER,
        json!({"volumes": volumes}),
        json!({"volumeMounts": [{"name": "key", "mountPath": "/key"}]}),
    );
    s.ready("p");
    let data = s.cluster.directory.join("data");
    let mode = |p: &Path| fs::symlink_metadata(p).unwrap().mode() & 0o7777;
    assert_eq!(mode(&data), 0o700);
    for private in
        ["store", "keys", "runtime", "runtime/pods", "runtime/images", "node", "node/pods", "logs", "network", "netns"]
    {
        assert_eq!(mode(&data.join(private)), 0o700, "{private}");
    }
    for entry in fs::read_dir(&data).unwrap().map(|e| e.unwrap().path()) {
        let name = entry.file_name().unwrap().to_string_lossy().into_owned();
        let private = name.ends_with(".key") || name.ends_with(".token") || name.contains("kubeconfig");
        assert!(!private || mode(&entry) == 0o600, "{name}: {:o}", mode(&entry));
    }
    assert_eq!(mode(&s.cluster.kubeconfig), 0o600);
    let pods = fs::read_dir(data.join("runtime/pods")).unwrap().map(|p| p.unwrap().path().join("shim.sock"));
    // One whose pod ends meanwhile is none.
    let sockets: Vec<u32> = pods.filter_map(|p| Some(fs::symlink_metadata(p).ok()?.mode() & 0o7777)).collect();
    assert!(!sockets.is_empty() && sockets.iter().all(|m| *m == 0o600), "{sockets:?}");
    let found = Command::new("find").arg(&data).arg("-ls").uid(65534).gid(65534).current_dir("/").output().unwrap();
    let listed = String::from_utf8_lossy(&found.stdout);
    assert!(listed.lines().count() <= 1, "{listed}");

    // A directory that an older version left open is closed by the next start, and a kubeconfig that others had opened stays old.
    let old = s.dir.join("old");
    fs::create_dir_all(old.join("keys")).unwrap();
    fs::create_dir_all(old.join("store")).unwrap();
    for p in [&old, &old.join("keys"), &old.join("store")] {
        fs::set_permissions(p, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let config = s.dir.join("config");
    fs::write(&config, "old").unwrap();
    fs::set_permissions(&config, fs::Permissions::from_mode(0o644)).unwrap();
    let opened = fs::File::open(&config).unwrap();
    let mut up = Command::new(KEMUDI);
    up.args(["up", "--disable-agent", "--secure-port", "0", "--data-dir"]).arg(&old);
    up.arg("--write-kubeconfig").arg(&config);
    let server = s.cluster.runtime.block_on(crate::running::Running::start_with(&mut up, &config)).unwrap();
    assert_eq!([&old, &old.join("keys"), &old.join("store"), &config].map(|p| mode(p)), [0o700, 0o700, 0o700, 0o600]);
    assert_eq!(std::io::read_to_string(opened).unwrap(), "old");
    drop(server);
}
