//! Hooks of containers: where and when each runs, what their failures do, and what a container gets to see of them.
#![allow(clippy::unwrap_used)] // helpers of tests

mod host;

use std::path::{Path, PathBuf};
use std::time::Duration;

use host::{Host, log, shell};
use runtime::*;

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// Lines of a script that find the bundle and the root of the container.
const ROOT: &str = r#"bundle=$(sed -n 's/.*"bundle":"\([^"]*\).*/\1/p'); root=$(sed -n 's/.*"root":{"path":"\([^"]*\).*/\1/p' $bundle/config.json);"#;

/// A hook that is a script of the machine.
fn script(text: &str) -> Vec<Hook> {
    vec![Hook {
        path: "/bin/sh".into(),
        args: ["sh", "-c", text].map(str::to_owned).to_vec(),
        env: vec!["PATH=/usr/bin:/bin".into()],
        timeout: None,
    }]
}

/// The number of a namespace of a process.
fn namespace(pid: i32, kind: &str) -> String {
    std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap().display().to_string()
}

async fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let end = tokio::time::Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(tokio::time::Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What a hook has written, by its name: lines of `NAME=VALUE`, and the state as JSON.
struct Seen(PathBuf);

impl Seen {
    /// A hook that writes down what it sees, and does more.
    fn hook(&self, name: &str, more: &str) -> Vec<Hook> {
        script(&format!(
            "ls /proc/self/fd > {0}/{name}.fds; cd_is=$(pwd); {{ cat; echo; for n in mnt net pid cgroup; do echo $n=$(readlink /proc/self/ns/$n); done; \
             echo cwd=$cd_is; echo uid=$(id -u); env | grep -c SECRET; \
             echo group=$(grep -c hooks/ /proc/self/cgroup); }} > {0}/{name}.new && mv {0}/{name}.new {0}/{name}; echo {name} >> {0}/order; {more}",
            self.0.display(),
        ))
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    fn value(&self, name: &str, key: &str) -> String {
        let text = self.text(name);
        let found = text.lines().find_map(|l| l.strip_prefix(&format!("{key}=")));
        found.unwrap_or_else(|| panic!("{name} has no {key}: {text}")).to_owned()
    }

    fn state(&self, name: &str) -> serde_json::Value {
        let text = self.text(name);
        serde_json::from_str(text.lines().next().unwrap_or_default()).unwrap_or_else(|e| panic!("{name}: {e}: {text}"))
    }
}

fn seen(host: &Host) -> Seen {
    let path = host.directory.path().join("seen");
    std::fs::create_dir_all(&path).unwrap();
    // Users of containers write there, too.
    for (path, mode) in [(path.clone(), 0o777), (path.join("order"), 0o666)] {
        if mode == 0o666 {
            std::fs::write(&path, "").unwrap();
        }
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }
    Seen(path)
}

#[tokio::test]
async fn each_hook_runs_at_its_moment_and_place() {
    let mut host = Host::new().await;
    let seen = seen(&host);
    host.pod("a").await;
    let mut config =
        shell("main", "cat /from-hook; cat /run/seen/order; readlink /proc/self/ns/pid; echo x > /y || echo locked");
    config.command = vec!["/bin/sh".into(), "-c".into(), format!("exec 2>&1; {}; {FOREVER}", config.command[2])];
    config.mounts = vec![Mount::bind(&seen.0, "/run/seen")];
    config.security.read_only_rootfs = true;
    config.security.run_as_user = Some(33);
    config.annotations = [("example.com/a".to_owned(), "b".to_owned())].into();
    // What it does to the root is there when the program starts, as `ldconfig` of a driver needs it.
    let root = "[ -d \"$bundle\" ] || exit 1; root=$(sed -n 's/.*\"root\":{\"path\":\"\\([^\"]*\\).*/\\1/p' $bundle/config.json); [ -d \"$root\" ] || exit 1; \
                ls $root/dev/null $root/proc/1/status && echo hello > $root/from-hook || exit 1";
    let bundle =
        format!("bundle=$(sed -n 's/.*\"bundle\":\"\\([^\"]*\\).*/\\1/p' {}/createContainer);", seen.0.display());
    let write = Seen("/run/seen".into());
    config.hooks = Hooks {
        prestart: seen.hook("prestart", ""),
        create_runtime: seen.hook("createRuntime", ""),
        create_container: seen.hook("createContainer", &format!("{bundle} {root}")),
        start_container: write.hook("startContainer", ""),
        poststart: seen.hook("poststart", ""),
        poststop: seen.hook("poststop", ""),
    };
    config.hooks.start_container[0].path = "/bin/busybox".into();
    let id = host.start("a", config).await;
    let status = host.runtime.container_status(&id).await.unwrap();
    host.wait_for_output(&id, "locked").await;
    let output = log(&status);
    let before = "hello\nprestart\ncreateRuntime\ncreateContainer\nstartContainer\n";
    assert!(output.starts_with(before), "{output}");
    let pid = status.pid.unwrap();
    let own = std::process::id() as i32;
    for (name, process, word) in [
        ("prestart", own, "creating"),
        ("createRuntime", own, "creating"),
        ("createContainer", pid, "creating"),
        ("startContainer", pid, "created"),
        ("poststart", own, "running"),
    ] {
        let state = seen.state(name);
        assert_eq!((&state["id"], &state["status"]), (&id.clone().into(), &word.into()), "{name}");
        assert_eq!(state["annotations"]["example.com/a"], "b");
        let inside = process == pid;
        assert_eq!(state["pid"], if inside { 1 } else { pid }, "{name}");
        for kind in ["mnt", "net", "pid", "cgroup"] {
            // The mount namespace of a child is that of the container.
            assert_eq!(seen.value(name, kind), namespace(process, kind), "{name} {kind}");
        }
        assert_eq!(seen.value(name, "cwd"), "/", "{name}");
        assert_eq!(seen.value(name, "uid"), if name == "startContainer" { "33" } else { "0" }, "{name}");
        // Those that `ls` inherits, and that of the directory.
        assert_eq!(seen.text(&format!("{name}.fds")), "0\n1\n2\n3\n", "{name}");
        assert_eq!(seen.value(name, "group") != "0", !inside, "a cgroup of its own: {name}");
    }
    assert!(seen.text("poststop").is_empty());
    let cgroup = host.options.cgroup_prefix.clone() + "/burstable/poda/" + &id;
    let directory = host.options.root.join("pods/a/containers").join(&id);
    assert!(directory.join("bundle/config.json").exists());
    host.runtime.remove_container(&id).await.unwrap();
    assert_eq!(seen.state("poststop")["status"], "stopped");
    assert!(seen.state("poststop").get("pid").is_none());
    assert!(!directory.exists(), "{}", directory.display());
    assert!(cgroup::Hierarchies::detect().unwrap().processes(&cgroup).is_empty());
    let order = seen.text("order");
    assert!(order.ends_with("startContainer\npoststart\npoststop\n"), "{order}");
    host.finish().await;
}

#[tokio::test]
async fn a_hook_that_fails_keeps_the_program_from_starting() {
    let mut host = Host::new().await;
    let seen = seen(&host);
    let out = seen.0.display().to_string();
    let fails = |name: &str| script(&format!("cat > /dev/null; echo {name} is broken >&2; exit 3"));
    let mut shared = host.pod_config("shared");
    shared.pid = PidMode::Pod;
    host.runtime.run_pod(shared).await.unwrap();
    host.pod("own").await;
    let refused: [(&str, fn(&mut Hooks) -> &mut Vec<Hook>); 4] = [
        ("prestart", |h| &mut h.prestart),
        ("createRuntime", |h| &mut h.create_runtime),
        ("createContainer", |h| &mut h.create_container),
        ("startContainer", |h| &mut h.start_container),
    ];
    for (name, field) in refused {
        for pod in ["own", "shared"] {
            let mut config = shell(&name.to_lowercase(), "echo started");
            *field(&mut config.hooks) = fails(name);
            config.hooks.poststop = script(&format!("echo {name} >> {out}/poststop"));
            let id = host.runtime.create_container(pod, config).await.unwrap();
            let error = host.runtime.start_container(&id).await.unwrap_err();
            let message = format!("error running {name} hook #0: exit status 3, stderr: {name} is broken");
            assert!(matches!(&error, Error::Start { message: m, .. } if *m == message), "{pod}: {error}");
            let status = host.runtime.container_status(&id).await.unwrap();
            assert_eq!((status.state, status.exit_code), (ContainerState::Exited, Some(128)), "{pod} {name}");
            assert_eq!((status.reason.as_deref(), status.message.as_ref()), (Some("StartError"), Some(&message)));
            assert_eq!(log(&status), "", "{pod} {name}");
            host.runtime.remove_container(&id).await.unwrap();
        }
    }
    // Failures of the last two are warnings.
    let mut config = shell("main", FOREVER);
    config.hooks.poststart = [fails("a"), script(&format!("touch {out}/second"))].concat();
    config.hooks.poststop = [fails("b"), script(&format!("echo last >> {out}/poststop"))].concat();
    let id = host.start("own", config).await;
    assert!(Path::new(&format!("{out}/second")).exists());
    assert_eq!(host.runtime.container_status(&id).await.unwrap().state, ContainerState::Running);
    host.runtime.remove_pod("own").await.unwrap();
    let names = ["prestart", "createRuntime", "createContainer", "startContainer"];
    let twice: String = names.map(|n| format!("{n}\n{n}\n")).concat();
    assert_eq!(seen.text("poststop"), twice + "last\n");
    host.finish().await;
}

/// An agent that was killed right after the start of a container had not run its `poststart` hooks, and the next one did not know of them.
#[tokio::test]
async fn the_next_agent_runs_poststart_hooks() {
    let mut host = Host::new().await;
    let seen = seen(&host);
    host.pod("a").await;
    let mut config = shell("main", FOREVER);
    let waits = format!("while [ ! -e {}/go ]; do sleep 0.05; done", seen.0.display());
    config.hooks.poststart = seen.hook("poststart", &waits);
    let id = host.runtime.create_container("a", config).await.unwrap();
    let (runtime, started) = (host.runtime.clone(), id.clone());
    let start = tokio::spawn(async move { runtime.start_container(&started).await });
    let runs = |times: usize| seen.text("order").lines().count() == times;
    wait_for("the hook runs", || runs(1)).await;
    let options = host.options.clone();
    let mark = options.root.join("pods/a/containers").join(&id).join("poststart");
    assert!(mark.exists(), "whoever is killed now leaves it");
    let go = seen.0.join("go");
    std::fs::write(&go, "").unwrap();
    start.await.unwrap().unwrap();
    assert!(!mark.exists());

    // As an agent leaves it that was killed while the hook ran, or before.
    std::fs::write(&mark, "").unwrap();
    host.runtime = Embedded::open(options.clone()).await.unwrap();
    wait_for("the hook runs to its end", || runs(2) && !mark.exists()).await;
    let state = seen.state("poststart");
    let pid = host.runtime.container_status(&id).await.unwrap().pid.unwrap();
    assert_eq!((&state["status"], &state["pid"]), (&"running".into(), &pid.into()));
    host.runtime = Embedded::open(options).await.unwrap();
    host.runtime.remove_pod("a").await.unwrap();
    assert!(runs(2), "{}", seen.text("order"));
    host.finish().await;
}

/// The root of a user namespace may not enter the directories of the runtime.
#[tokio::test]
async fn create_container_hooks_run_in_user_namespaces() {
    let mut host = Host::new().await;
    let users = host.user_pod_config("users", IdRange { first: 1 << 20, length: 65536 });
    if host.runtime.run_pod(users).await.is_err() {
        return host.finish().await;
    }
    // The directories above may be root's alone, too: what the hook sees it writes into the container.
    let runtime = host.options.root.clone();
    std::fs::set_permissions(&runtime, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let mut config = shell(
        "main",
        "cat /from-hook; stat -c %u /from-hook; ls -d /data/file; touch /y 2> /dev/null || echo locked; cat /seen",
    );
    let data = host.directory.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("file"), "").unwrap();
    config.mounts = vec![Mount { read_only: true, ..Mount::bind(&data, "/data") }];
    config.security.read_only_rootfs = true;
    let hook = format!(
        "{ROOT} ls $root/dev/null $root/proc/1/status $root/data/file && \
         echo \"$(id -u) $(ls $(dirname $bundle) | tr '\\n' ' ')\" > $root/from-hook || exit 1; \
         {{ readlink /proc/self/ns/mnt; cat /proc/self/uid_map; }} > $root/seen || exit 1; \
         ls {}/pods/users/pod.json && exit 7; touch $root/data/no && exit 8; true",
        runtime.display()
    );
    config.hooks = Hooks { create_container: script(&hook), create_runtime: script("true"), ..Hooks::default() };
    let (status, output) = host.script("users", "main", "true", |c| *c = ContainerConfig { ..config.clone() }).await;
    let expected = "0 bundle rootfs \n0\n/data/file\nlocked\n";
    let Some((namespace_of_hook, users)) = output.strip_prefix(expected).and_then(|seen| seen.split_once('\n')) else {
        panic!("{output}: {status:?}");
    };
    assert_eq!(status.exit_code, Some(0), "{status:?}");
    assert!(users.contains("1048576"), "{users}");
    assert_ne!(namespace_of_hook, namespace(std::process::id() as i32, "mnt"));
    assert!(!data.join("no").exists());
    host.finish().await;
}

#[tokio::test]
async fn hooks_that_cannot_be_run_are_refused() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let hook = |path: &str, timeout| Hook { path: path.into(), timeout, ..Hook::default() };
    for (pod, hooks, message) in [
        ("a", Hooks { poststop: vec![hook("x", None)], ..Hooks::default() }, "invalid hook: \"x\" is not absolute"),
        ("a", Hooks { prestart: vec![hook("/x", Some(0))], ..Hooks::default() }, "invalid hook: /x: the timeout is 0"),
    ] {
        let config = ContainerConfig { hooks, ..shell("main", "true") };
        let error = host.runtime.create_container(pod, config).await.unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    host.finish().await;
}

/// A hook has the machine's privileges. A container that may trace, in the same pid namespace, must not find it.
#[tokio::test]
async fn containers_do_not_see_the_hooks_of_others() {
    let mut host = Host::new().await;
    let seen = seen(&host);
    let out = seen.0.display().to_string();
    let mut config = host.pod_config("a");
    config.pid = PidMode::Pod;
    host.runtime.run_pod(config).await.unwrap();
    let mut spy = shell("spy", FOREVER);
    spy.security.add_capabilities = vec!["SYS_PTRACE".into()];
    let spy = host.start("a", spy).await;
    let mut config = shell("main", "echo started");
    // It leaves a process behind, which must not be there when the program runs.
    let hook =
        format!("sleep 1000 & echo $! > {out}/left; touch {out}/waits; while [ ! -e {out}/go ]; do sleep 0.05; done");
    config.hooks.create_container = script(&hook);
    let id = host.runtime.create_container("a", config).await.unwrap();
    let (runtime, started) = (host.runtime.clone(), id.clone());
    let start = tokio::spawn(async move { runtime.start_container(&started).await });
    wait_for("the hook runs", || seen.0.join("waits").exists()).await;
    let look = ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"].map(str::to_owned).to_vec();
    let found = host.runtime.exec_sync(&spy, look, None, 1 << 20).await.unwrap();
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(found.contains("trap") && !found.contains("sleep 1000") && !found.contains("waits"), "{found}");
    std::fs::write(seen.0.join("go"), "").unwrap();
    start.await.unwrap().unwrap();
    assert_eq!(log(&host.ended(&id).await), "started\n");
    let left = seen.text("left");
    wait_for("what the hook left has ended", || !Path::new("/proc").join(left.trim()).exists()).await;
    host.finish().await;
}

/// A hook has the machine's privileges, and so had a process that it left in a session of its own, where no pid namespace ended it.
#[tokio::test]
async fn nothing_that_a_hook_leaves_outlives_it() {
    let mut host = Host::new().await;
    let (mut shared, mut machine) = (host.pod_config("shared"), host.pod_config("host"));
    (shared.pid, machine.pid) = (PidMode::Pod, PidMode::Host);
    let mut users = host.user_pod_config("users", IdRange { first: 1 << 20, length: 65536 });
    users.pid = PidMode::Pod;
    let mut pods = vec!["own", "joined", "shared", "host"];
    host.pod("own").await;
    host.pod("joined").await;
    for config in [shared, machine] {
        host.runtime.run_pod(config).await.unwrap();
    }
    if host.has_user_namespaces() {
        host.runtime.run_pod(users).await.unwrap();
        pods.push("users");
    }
    let target = host.start("joined", shell("target", FOREVER)).await;
    for pod in pods {
        // It makes others all the time. The root of a user namespace may write nowhere but into the container.
        let text = format!(
            "{ROOT} setsid sh -c 'echo > '$root'/left; n=0; while :; do n=$((n+1)); setsid sleep 77$n.7 & sleep 0.01; done' & \
             while [ ! -e $root/left ]; do sleep 0.01; done"
        );
        let mut config = shell("main", &format!("ls /left && echo runs; {FOREVER}"));
        config.hooks.create_container = script(&text);
        config.target_container = Some(target.clone()).filter(|_| pod == "joined");
        let id = host.start(pod, config).await;
        host.wait_for_output(&id, "runs").await;
        let left = || {
            let all = std::fs::read_dir("/proc").unwrap().flatten();
            let names = all.filter_map(|p| std::fs::read(p.path().join("cmdline")).ok());
            names.filter(|n| n.starts_with(b"sleep\x0077") && n.ends_with(b".7\0")).count()
        };
        wait_for(&format!("what a hook left in pod {pod} has ended"), || left() == 0).await;
        // It would have ended with the container.
        let status = host.runtime.container_status(&id).await.unwrap();
        assert_eq!(status.state, ContainerState::Running, "{pod}");
    }
    host.finish().await;
}

/// A hook that hangs does not keep a pod from being removed, and does not outlive it.
#[tokio::test]
async fn a_hook_ends_with_the_container_that_waits_for_it() {
    let mut host = Host::new().await;
    let seen = seen(&host);
    let out = seen.0.display().to_string();
    host.pod("a").await;
    let mut config = shell("main", "echo started");
    config.hooks.create_runtime = script(&format!("echo $$ > {out}/pid; mv {out}/pid {out}/runs; exec sleep 1000"));
    config.hooks.poststop =
        script(&format!("ls /proc/$(cat {out}/runs) && echo too early > {out}/poststop || echo > {out}/poststop"));
    let id = host.runtime.create_container("a", config).await.unwrap();
    let (runtime, started) = (host.runtime.clone(), id.clone());
    let start = tokio::spawn(async move { runtime.start_container(&started).await });
    wait_for("the hook runs", || seen.0.join("runs").exists()).await;
    host.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    start.await.unwrap().unwrap_err();
    let pid = seen.text("runs");
    wait_for("the hook has ended", || !Path::new("/proc").join(pid.trim()).exists()).await;
    host.runtime.remove_pod("a").await.unwrap();
    assert_eq!(seen.text("poststop"), "\n");
    host.finish().await;
}

/// kill -9 of the agent: what waits for its hooks does not start, its hooks end, and the next agent runs those that come later.
#[test]
fn hooks_of_an_agent_that_was_killed_end() {
    let agent = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let first = agent();
    let mut host = first.block_on(Host::new());
    let seen = seen(&host);
    let out = seen.0.display().to_string();
    let hook = format!("echo $$ > {out}/pid; mv {out}/pid {out}/runs; exec sleep 1000");
    let (waits, runs) = first.block_on(async {
        host.pod("a").await;
        let mut config = shell("runs", FOREVER);
        config.hooks.poststop = script(&format!("echo runs >> {out}/poststop"));
        let runs = host.start("a", config).await;
        let mut config = shell("waits", "echo started");
        config.hooks.create_runtime = script(&hook);
        config.hooks.poststop = script(&format!("echo waits >> {out}/poststop"));
        let waits = host.runtime.create_container("a", config).await.unwrap();
        let (runtime, started) = (host.runtime.clone(), waits.clone());
        tokio::spawn(async move { runtime.start_container(&started).await });
        wait_for("the hook runs", || seen.0.join("runs").exists()).await;
        (waits, runs)
    });
    // Its connections end, as those of a killed process; its thread that waits for the hook is what the kernel would end.
    first.shutdown_background();
    let second = agent();
    second.block_on(async {
        host.runtime = Embedded::open(host.options.clone()).await.unwrap();
        host.events = host.runtime.subscribe();
        let pid = seen.text("runs");
        wait_for("the hook has ended", || !Path::new("/proc").join(pid.trim()).exists()).await;
        let status = host.ended(&waits).await;
        let message = status.message.unwrap();
        assert!(message.contains("the node agent ended while hooks of the container ran"), "{message}");
        assert_eq!(host.runtime.container_status(&runs).await.unwrap().state, ContainerState::Running);
        host.runtime.remove_container(&waits).await.unwrap();
        host.runtime.remove_pod("a").await.unwrap();
        assert_eq!(seen.text("poststop"), "waits\nruns\n");
        host.finish().await;
    });
}

/// What is purged has been stopped, too.
#[tokio::test]
async fn a_purge_runs_the_last_hooks() {
    let mut host = Host::new().await;
    let seen = seen(&host);
    host.pod("a").await;
    let config = ContainerConfig {
        hooks: Hooks { poststop: seen.hook("poststop", ""), ..Hooks::default() },
        ..shell("main", FOREVER)
    };
    host.start("a", config).await;
    Embedded::purge(&host.options).await.unwrap();
    assert_eq!(seen.state("poststop")["status"], "stopped");
    host.finish().await;
}
