//! Tests of the binary as a process: errors of the start, and data after the end.
//!
//! Everything is on loopback, in directories of its own. A full disk is a file system in memory that only the process sees.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod authorities;
mod running;
mod sim;

use http::StatusCode;
use running::{BINARY, Running, failed, up, up_on};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn directory() -> tempfile::TempDir {
    let d = tempfile::Builder::new().prefix("kemudi-process-").tempdir().unwrap();
    // Others may look in: some processes here run as nobody.
    std::fs::set_permissions(d.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    d
}

fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t0\t")
}

fn map(name: &str, size: usize) -> Value {
    json!({"metadata": {"name": name}, "data": {"k": "v".repeat(size)}})
}

#[tokio::test]
async fn a_restart_keeps_everything() {
    let d = directory();
    let data = d.path().join("data");
    let mut first = Running::start(&mut up(&data)).await.unwrap();
    // Each start warned that the service of the API server has no endpoints on loopback, which cannot be changed.
    assert!(!first.log().iter().any(|l| l.contains("has no endpoints")), "{:?}", first.log());
    let token = std::fs::read_to_string(data.join("admin.token")).unwrap();
    let (code, made) = first.call("POST", MAPS, &map("kept", 10)).await;
    assert_eq!(code, StatusCode::CREATED, "{made}");
    let all = first.call("GET", "/api/v1/namespaces", &Value::Null).await.1;
    let asked = tokio::time::Instant::now();
    assert_eq!(first.stop(), Some(0), "asked to stop, it ends well");
    // This test does not read its connection meanwhile: the server does not wait for a client that is asleep.
    assert!(asked.elapsed() < Duration::from_secs(4), "it took {:?}", asked.elapsed());
    assert!(!data.join("kemudi.pid").exists());

    let mut second = Running::start(&mut up(&data)).await.unwrap();
    assert_eq!(std::fs::read_to_string(data.join("admin.token")).unwrap(), token);
    assert_eq!(second.call("GET", &format!("{MAPS}/kept"), &Value::Null).await, (StatusCode::OK, made.clone()));
    let again = second.call("GET", "/api/v1/namespaces", &Value::Null).await.1;
    assert_eq!(again["items"], all["items"]);
    let late = second.call("POST", MAPS, &map("late", 10)).await.1;
    second.kill();

    // Not even a chance to say goodbye.
    let third = Running::start(&mut up(&data)).await.unwrap();
    for (name, want) in [("kept", made), ("late", late)] {
        assert_eq!(third.call("GET", &format!("{MAPS}/{name}"), &Value::Null).await, (StatusCode::OK, want));
    }
}

/// Without `kube-node-lease`, nodes could not renew their leases until the server was started again.
#[tokio::test]
async fn what_a_cluster_needs_is_created_again() {
    let d = directory();
    let server = Running::start(&mut up(&d.path().join("data"))).await.unwrap();
    for path in ["/api/v1/namespaces/kube-node-lease", "/api/v1/namespaces/default/services/kubernetes"] {
        let before = server.call("GET", path, &Value::Null).await.1;
        let (code, answer) = server.call("DELETE", path, &Value::Null).await;
        assert_eq!(code, StatusCode::OK, "{answer}");
        let is_new =
            |now: &Value| now["metadata"]["uid"].is_string() && now["metadata"]["uid"] != before["metadata"]["uid"];
        let begin = tokio::time::Instant::now();
        let now = loop {
            let now = server.call("GET", path, &Value::Null).await.1;
            if is_new(&now) {
                break now;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{path} stays away: {now}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert_eq!(now["spec"]["clusterIP"], before["spec"]["clusterIP"]);
    }
    // The others cannot be deleted.
    let (code, _) = server.call("DELETE", "/api/v1/namespaces/kube-public", &Value::Null).await;
    assert_eq!(code, StatusCode::FORBIDDEN);
}

/// Those that answer requests do not wait behind controllers, which have threads of their own, and fewer.
#[tokio::test]
async fn controllers_have_their_own_threads() {
    let d = directory();
    let server = Running::start(&mut up(&d.path().join("data"))).await.unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    // A thread that was just begun has the name of the one that began it for a moment, and may be gone when it is looked at.
    let names = || -> Vec<String> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
        threads.filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("comm")).ok()).collect()
    };
    let own = || names().iter().filter(|n| n.trim() == "controllers").count() == cores.div_ceil(2);
    let begun = tokio::time::Instant::now();
    while !own() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", names());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn readiness_fails_before_the_end_and_requests_are_audited() {
    let d = directory();
    let (data, log, policy) = (d.path().join("data"), d.path().join("audit.log"), d.path().join("policy.yaml"));
    std::fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Everything}]").unwrap();
    let with = |c: &mut Command| {
        c.arg("--audit-policy-file").arg(&policy).arg("--audit-log-path").arg(&log);
        c.args(["--shutdown-delay-duration", "30s"]);
    };
    let mut c = up(&data);
    with(&mut c);
    let says = failed(&mut c).await;
    assert!(
        says.starts_with("error: loading audit policy file: rules[0].level: Unsupported value: \"Everything\""),
        "{says}"
    );
    std::fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]").unwrap();
    let mut c = up(&data);
    with(&mut c);
    let mut plane = Running::start(&mut c).await.unwrap();
    assert_eq!(plane.call("POST", MAPS, &map("m", 1)).await.0, StatusCode::CREATED);
    let written = std::fs::read_to_string(&log).unwrap();
    let event = |l: &str| -> Value { serde_json::from_str(l).unwrap() };
    let made = |e: &Value| e["verb"] == "create" && e["objectRef"]["name"] == "m" && e["responseStatus"]["code"] == 201;
    assert!(written.lines().map(event).any(|e| made(&e)), "{written}");
    let flags = plane.call("GET", "/flagz", &Value::Null).await;
    assert_eq!(flags.0, StatusCode::NOT_ACCEPTABLE, "this client asks for JSON of no kind: {}", flags.1);
    plane.ask_to_stop();
    let begun = tokio::time::Instant::now();
    while plane.call("GET", "/readyz", &Value::Null).await.0 == StatusCode::OK {
        assert!(begun.elapsed() < Duration::from_secs(20), "it is ready while it ends");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(plane.call("GET", MAPS, &Value::Null).await.0, StatusCode::OK, "it still serves");
    assert_eq!(plane.stop(), Some(0), "who asks twice does not wait");
    assert!(begun.elapsed() < Duration::from_secs(25), "it took {:?}", begun.elapsed());
}

/// Whoever starts a cluster and stops it at once: the signal is kept until the start is done.
#[test]
fn a_signal_during_the_start_is_not_lost() {
    let d = directory();
    let data = d.path().join("data");
    let mut child = up(&data).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !data.exists() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let pid = nix::unistd::Pid::from_raw(child.id().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success(), "it was ended for being late: {status}");
    assert!(!data.join("kemudi.pid").exists(), "it says that it runs");
}

#[tokio::test]
async fn a_directory_has_one_cluster() {
    let d = directory();
    let data = d.path().join("data");
    let first = Running::start(&mut up(&data)).await.unwrap();
    let says = failed(&mut up(&data)).await;
    let want = format!("error: another kemudi runs on {0}; stop it with `kemudi down --data-dir {0}`", data.display());
    assert_eq!(says, want);
    assert_eq!(failed(&mut up_on(&data, first.port())).await, want, "the directory is looked at first");
    assert_eq!(first.call("GET", "/readyz", &Value::Null).await.0, StatusCode::OK, "the first one goes on");
    let down = Command::new(BINARY).args(["down", "--data-dir"]).arg(&data).status().unwrap();
    assert!(down.success());
    let none = Command::new(BINARY).args(["down", "--data-dir"]).arg(&data).output().unwrap();
    assert!(!none.status.success() && String::from_utf8_lossy(&none.stderr).contains("no cluster runs on"));
}

#[tokio::test]
async fn a_port_in_use_fails_the_start_without_changes() {
    let d = directory();
    let data = d.path().join("data");
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap();
    let says = failed(&mut up_on(&data, address.port())).await;
    assert!(says.starts_with(&format!("error: the port {address} cannot be used: Address already in use")), "{says}");
    assert!(!data.join("store").exists() && !data.join("pki").exists() && !data.join("admin.token").exists());
}

#[tokio::test]
async fn invalid_flags_fail_the_start_without_changes() {
    let d = directory();
    let data = d.path().join("data");
    for flag in [
        "--feature-gates=Nosuch=true",
        "--enable-admission-plugins=Nosuch",
        "--admission-control-config-file=nosuch",
        "--audit-policy-file=nosuch",
    ] {
        let says = failed(up(&data).arg(flag)).await;
        assert!(says.starts_with("error: ") && says.to_lowercase().contains("nosuch"), "{says}");
        assert!(!data.exists(), "{flag} left a directory");
    }
    let says = failed(up(&data).arg("--admission-control-config-file=nosuch")).await;
    let why = "unable to read admission control configuration from \"nosuch\" [open nosuch: no such file or directory]";
    assert_eq!(says, format!("error: {why}"));
}

/// The bytes of the format's record, as the store writes it: the key, then the number.
fn format_record(number: u64) -> Vec<u8> {
    [&b"format"[..], &number.to_le_bytes()].concat()
}

#[tokio::test]
async fn data_of_a_newer_release_is_left_alone() {
    let d = directory();
    let data = d.path().join("data");
    Running::start(&mut up(&data)).await.unwrap().stop();
    let file = data.join("store/data.mdb");
    let mut bytes = std::fs::read(&file).unwrap();
    let (old, new) = (format_record(1), format_record(7));
    let places: Vec<usize> = (0..bytes.len() - old.len()).filter(|i| bytes[*i..].starts_with(&old)).collect();
    assert!(!places.is_empty(), "the record is found");
    for i in places {
        bytes[i..i + new.len()].copy_from_slice(&new);
    }
    std::fs::write(&file, &bytes).unwrap();
    let says = failed(&mut up(&data)).await;
    let want = format!(
        "error: opening the store in {}: the data has format 7, this program reads up to 1: it was written by a newer release",
        data.join("store").display()
    );
    assert_eq!(says, want);
    assert!(std::fs::read(&file).unwrap() == bytes, "nothing was written");
}

/// A command under another user without any privilege, unless this is one already.
fn as_nobody(directory: &Path) -> Command {
    if !is_root() {
        return Command::new(BINARY);
    }
    // Where the binary was built nobody else may be let in.
    let copy = directory.join("kemudi");
    if !copy.exists() {
        std::fs::copy(BINARY, &copy).unwrap();
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut c = Command::new("setpriv");
    c.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(copy);
    c
}

#[tokio::test]
async fn missing_capabilities_fail_the_start() {
    let d = directory();
    let data = d.path().join("data");
    let arguments = |c: &mut Command, data: &Path| {
        c.args(["up", "--secure-port", "0", "--data-dir"]).arg(data);
    };
    let mut c = as_nobody(d.path());
    arguments(&mut c, &data);
    let says = failed(&mut c).await;
    assert!(
        says.starts_with(
            "error: this process lacks capabilities to run containers:\n  CAP_SYS_ADMIN is missing; it is needed for namespaces"
        ),
        "{says}"
    );
    assert!(
        says.contains(
            "\n  CAP_NET_ADMIN is missing; it is needed for the pod network, and the packet rules of services\n"
        ),
        "{says}"
    );
    assert!(says.ends_with("or only the control plane with --disable-agent; nothing was changed"), "{says}");
    assert!(!data.exists());

    let mut c = as_nobody(d.path());
    arguments(&mut c, Path::new("/proc/nowhere"));
    c.arg("--disable-agent");
    let says = failed(&mut c).await;
    assert!(says.starts_with("error: /proc/nowhere: "), "{says}");

    // The control plane needs no privileges.
    let open = d.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut c = as_nobody(d.path());
    arguments(&mut c, &open.join("data"));
    c.arg("--disable-agent");
    let plane = Running::start(&mut c).await.unwrap();
    assert_eq!(plane.call("POST", MAPS, &map("m", 1)).await.0, StatusCode::CREATED);
}

/// A command whose data directory is on a file system of this size, which only it sees.
fn on_small_disk(place: &Path, size: &str, kubeconfig: &Path) -> Command {
    std::fs::create_dir_all(place).unwrap();
    let mut c = Command::new("unshare");
    c.arg("--mount");
    if !is_root() {
        c.arg("--map-root-user");
    }
    let script = "mount -t tmpfs -o size=\"$0\" small \"$1\" && shift && exec \"$@\"";
    c.args(["--", "sh", "-c", script, size]).arg(place).arg(BINARY);
    c.args(["up", "--disable-agent", "--secure-port", "0", "--data-dir"]).arg(place.join("data"));
    c.arg("--write-kubeconfig").arg(kubeconfig);
    c
}

#[tokio::test]
async fn a_full_disk_is_reported_and_deletions_free_space() {
    let d = directory();
    let kubeconfig = d.path().join("kubeconfig");
    let mut c = on_small_disk(&d.path().join("disk"), "40m", &kubeconfig);
    let plane = Running::start_with(&mut c, &kubeconfig).await.unwrap();
    let mut made = 0;
    let refused = loop {
        let (code, body) = plane.call("POST", MAPS, &map(&format!("m{made}"), 900_000)).await;
        if code != StatusCode::CREATED {
            break (code, body);
        }
        made += 1;
        assert!(made < 60, "more than there is room for");
    };
    assert_eq!(refused.0, StatusCode::INSUFFICIENT_STORAGE, "{}", refused.1);
    let says = refused.1["message"].as_str().unwrap();
    assert!(refused.1["kind"] == "Status" && says.contains("disk is full"), "{says}");
    // Reading goes on, writing does not, and nothing of what was refused is there.
    let list = plane.call("GET", MAPS, &Value::Null).await.1;
    let have: Vec<_> = list["items"].as_array().unwrap().iter().filter(|o| o["data"]["k"].is_string()).collect();
    assert_eq!(have.len(), made);
    assert_eq!(plane.call("GET", &format!("{MAPS}/m{made}"), &Value::Null).await.0, StatusCode::NOT_FOUND);
    assert_eq!(plane.call("GET", "/readyz", &Value::Null).await.0, StatusCode::OK);
    let before = list["metadata"]["resourceVersion"].clone();
    assert_eq!(plane.call("POST", MAPS, &map("more", 900_000)).await.0, StatusCode::INSUFFICIENT_STORAGE);
    assert_eq!(plane.call("GET", MAPS, &Value::Null).await.1["metadata"]["resourceVersion"], before);
    for i in 0..made {
        let (code, body) = plane.call("DELETE", &format!("{MAPS}/m{i}"), &Value::Null).await;
        assert_eq!(code, StatusCode::OK, "{body}");
    }
    // What was deleted is forgotten soon, and then there is room again.
    let mut last = StatusCode::OK;
    for i in 0..200 {
        last = plane.call("POST", MAPS, &map(&format!("again{i}"), 900_000)).await.0;
        if last == StatusCode::CREATED {
            break;
        }
    }
    assert_eq!(last, StatusCode::CREATED);
}

#[tokio::test]
async fn a_too_small_disk_is_reported() {
    let d = directory();
    let kubeconfig = d.path().join("kubeconfig");
    let says = failed(&mut on_small_disk(&d.path().join("disk"), "200k", &kubeconfig)).await;
    assert!(says.starts_with("error: ") && says.to_lowercase().contains("no space left on"), "{says}");
}

#[tokio::test]
async fn an_endless_body_is_cut_off() {
    let d = directory();
    let plane = Running::start(&mut up(&d.path().join("data"))).await.unwrap();
    for size in [3 * 1024 * 1024, 20 * 1024 * 1024] {
        let (code, body) = plane.call("POST", MAPS, &map("large", size)).await;
        assert_eq!((code, &body["reason"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!("RequestEntityTooLarge")), "{body}");
    }
    assert_eq!(plane.call("GET", &format!("{MAPS}/large"), &Value::Null).await.0, StatusCode::NOT_FOUND);
}

#[test]
fn the_binary_needs_no_other_library() {
    let out = Command::new("ldd").arg(BINARY).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let name = |l: &str| Path::new(l.split_whitespace().next()?).file_name()?.to_str().map(str::to_owned);
    let have: BTreeSet<String> = text.lines().filter_map(name).collect();
    let known =
        ["linux-vdso.so.1", "libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];
    let surprises: Vec<_> = have.iter().filter(|l| !known.contains(&l.as_str())).collect();
    assert!(have.contains("libc.so.6") && surprises.is_empty(), "{text}");
}

/// Who turns the API of roles off has nobody with a role: it starts, says so, and is never ready, as upstream's server.
#[tokio::test]
async fn without_roles_a_server_is_not_ready() {
    let d = directory();
    let mut c = up(&d.path().join("with"));
    let plane = Running::start(&mut c).await.unwrap();
    assert_eq!(plane.call("GET", "/readyz/informer-sync", &Value::Null).await.0, StatusCode::OK);
    let mut c = up(&d.path().join("without"));
    c.arg("--runtime-config=rbac.authorization.k8s.io/v1=false");
    let plane = Running::start(&mut c).await.unwrap();
    assert_eq!(plane.call("GET", "/readyz", &Value::Null).await.0, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(plane.call("GET", "/readyz?exclude=informer-sync", &Value::Null).await.0, StatusCode::OK);
    assert_eq!(plane.call("GET", "/livez", &Value::Null).await.0, StatusCode::OK);
    assert_eq!(plane.call("POST", MAPS, &map("m", 1)).await.0, StatusCode::CREATED);
}

/// An archive can have any names, and those are in errors.
#[test]
fn image_names_are_escaped_for_the_terminal() {
    let d = directory();
    let layout = d.path().join("layout");
    std::fs::create_dir(&layout).unwrap();
    let manifest = json!([{"Config": "\u{1b}[31mEVIL\u{7}\r\u{9b}5m", "RepoTags": ["a"], "Layers": []}]);
    std::fs::write(layout.join("manifest.json"), manifest.to_string()).unwrap();
    let mut import = Command::new(BINARY);
    let out = import.args(["image", "import", "--data-dir"]).arg(d.path().join("data")).arg(&layout).output().unwrap();
    let error = String::from_utf8(out.stderr).unwrap();
    assert!(!out.status.success() && error.contains("^[[31mEVIL^G^M\\u{9b}5m"), "{error:?}");
    assert!(!error.trim_end_matches('\n').contains(char::is_control), "{error:?}");
}

/// An agent that would join a server that is not there.
fn agent(data: &Path) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["agent", "--join", "https://192.0.2.1:6443", "--token", "abcdef.0123456789abcdef"]);
    command.args(["--node-name", "n", "--data-dir"]).arg(data);
    command
}

/// A node whose configuration cannot be used does not start.
#[tokio::test]
async fn configurations_of_nodes_are_checked_first() {
    if !is_root() {
        return;
    }
    let d = directory();
    let is_version_1 = !Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let of_version_1 = (
        "singleProcessOOMKill: false",
        "invalid configuration: singleProcessOOMKill must not be explicitly set to false when using cgroup v1",
    );
    for (fields, message) in is_version_1.then_some(of_version_1).into_iter().chain([
        ("maxPod: 5", "error: strict decoding error: unknown field \"maxPod\""),
        ("maxPods: -1", "invalid configuration: maxPods (--max-pods) -1 must not be a negative number"),
        ("readOnlyPort: 10255", "invalid configuration: readOnlyPort 10255 cannot be honoured by this node"),
        // They were retried for ever.
        (
            "cpuManagerPolicy: static",
            "the node cannot run: new static policy error: [cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero",
        ),
        (
            "cpuManagerPolicy: static\nreservedSystemCPUs: 0-9999",
            "the node cannot run: new static policy error: [cpumanager] unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: ",
        ),
        (
            "memoryManagerPolicy: Static",
            "the node cannot run: the total amount \"0\" of type \"memory\" is not equal to the value",
        ),
    ]) {
        let file = d.path().join("kubelet.yaml");
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        std::fs::write(&file, format!("{head}{fields}\n")).unwrap();
        let error = failed(agent(&d.path().join("data")).arg("--kubelet-config").arg(&file)).await;
        assert!(error.contains(message), "{error}");
    }
    assert!(!d.path().join("data").exists(), "nothing is made");
    // What an earlier agent has left with another policy.
    let data = d.path().join("data");
    std::fs::create_dir_all(data.join("node")).unwrap();
    std::fs::write(data.join("node/cpu_manager_state"), "{").unwrap();
    let error = failed(&mut agent(&data)).await;
    assert!(error.contains("the node cannot run: could not restore state from checkpoint"), "{error}");
}
