//! Containers in the process-id namespace of another one (`kubectl debug --target`).
#![allow(clippy::unwrap_used)] // helpers of tests

mod host;

use std::path::Path;
use std::time::Duration;

use host::{Host, log, shell};
use runtime::*;

const FOREVER: &str = "trap 'exit 3' TERM; echo up; while :; do sleep 0.1; done";

/// A container that joins the processes of another one.
fn debugger(name: &str, target: &str, script: &str) -> ContainerConfig {
    ContainerConfig { target_container: Some(target.to_owned()), ..shell(name, script) }
}

fn namespace(pid: i32, kind: &str) -> String {
    std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap().display().to_string()
}

async fn sh(host: &Host, id: &str, script: &str) -> (i32, String) {
    let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let result = host.runtime.exec_sync(id, command, None, 1 << 20).await.unwrap();
    let text = [result.stdout, result.stderr].concat();
    (result.exit_code, String::from_utf8_lossy(&text).into_owned())
}

#[tokio::test]
async fn a_container_joins_the_processes_of_its_target() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let target = host.start("a", shell("target", &format!("echo mark > /only-in-target; : target; {FOREVER}"))).await;
    host.wait_for_output(&target, "up").await;
    let other = host.start("a", shell("other", &format!(": other; {FOREVER}"))).await;
    let looks = "echo $$; tr '\\0' ' ' < /proc/1/cmdline; cat /proc/1/root/only-in-target; ls /only-in-target; \
                 readlink /proc/self | grep -c '[0-9]'; ps | grep -c ': [o]ther;'; true";
    let (status, text) = host.script("a", "looks", looks, |c| c.target_container = Some(target.clone())).await;
    assert_eq!(status.exit_code, Some(0), "{text}");
    let (own, rest) = text.split_once('\n').unwrap();
    assert_ne!(own, "1", "{text}");
    assert!(rest.starts_with("/bin/sh -c echo mark") && rest.contains("mark\n"), "{text}");
    assert!(rest.contains("ls: /only-in-target: No such file"), "the file systems are separate: {text}");
    assert!(rest.ends_with("\n1\n0\n"), "{text}");

    // What it may do to the target depends on its capabilities, as for any two processes.
    let enters = "ls /proc/1/root/only-in-target";
    let drop = |c: &mut ContainerConfig| {
        c.target_container = Some(target.clone());
        c.security.drop_capabilities = vec!["ALL".into()];
    };
    let (status, text) = host.script("a", "weak", enters, drop).await;
    assert!(status.exit_code != Some(0) && text.contains("Permission denied"), "{text}");
    let other_user = |c: &mut ContainerConfig| {
        c.target_container = Some(target.clone());
        c.security.run_as_user = Some(1000);
    };
    let (status, text) = host.script("a", "stranger", &format!("{enters} || kill -9 1"), other_user).await;
    assert!(status.exit_code != Some(0) && text.contains("not permitted"), "{text}");

    // Commands, terminals and the own limits are as in every container.
    let mut with_terminal = debugger("tty", &target, FOREVER);
    with_terminal.tty = true;
    with_terminal.resources.memory_limit = Some(64 << 20);
    let debug = host.start("a", with_terminal).await;
    let mut pids = Vec::new();
    for id in [&target, &other, &debug] {
        pids.push(host.runtime.container_status(id).await.unwrap().pid.unwrap());
    }
    let [target_pid, other_pid, debug_pid] = pids[..] else { panic!("{pids:?}") };
    assert_eq!(namespace(debug_pid, "pid"), namespace(target_pid, "pid"));
    assert_ne!(namespace(debug_pid, "pid"), namespace(other_pid, "pid"));
    for kind in ["mnt", "cgroup"] {
        assert_ne!(namespace(debug_pid, kind), namespace(target_pid, kind));
    }
    let (code, text) = sh(&host, &debug, "ps; test -t 0 || echo no terminal").await;
    assert!(code == 0 && text.contains(": target;") && text.contains("no terminal"), "{text}");
    let (_, text) = sh(&host, &target, "ps").await;
    assert!(text.contains(": target;") && text.matches("exit 3").count() == 2, "the target sees the debugger: {text}");

    // A debugger that ends leaves nothing, and its target goes on.
    sh(&host, &debug, "setsid sleep 54321 &").await;
    host.runtime.stop_container(&debug, Duration::from_secs(10)).await.unwrap();
    assert_eq!(host.runtime.container_status(&debug).await.unwrap().exit_code, Some(3), "it handles its signal");
    let (_, text) = sh(&host, &target, "ps").await;
    assert!(!text.contains("54321"), "{text}");
    assert_eq!(host.runtime.container_status(&target).await.unwrap().state, ContainerState::Running);
    host.finish().await;
}

#[tokio::test]
async fn a_debugger_ends_with_its_target() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let target = host.start("a", shell("target", FOREVER)).await;
    let debug = host.start("a", debugger("debug", &target, FOREVER)).await;
    // The next agent has the same target.
    host.runtime = Embedded::open(host.options.clone()).await.unwrap();
    host.events = host.runtime.subscribe();
    let next = host.start("a", debugger("next", &target, FOREVER)).await;
    // As an agent leaves it that is killed between the two calls.
    let late = host.runtime.create_container("a", debugger("late", &target, FOREVER)).await.unwrap();
    host.runtime.stop_container(&target, Duration::from_secs(10)).await.unwrap();
    for id in [&debug, &next] {
        let status = host.ended(id).await;
        assert_eq!((status.exit_code, status.signal), (Some(137), Some(9)), "{}", status.name);
        assert_eq!(status.reason.as_deref(), Some("Error"));
    }
    assert_eq!(host.runtime.container_status(&target).await.unwrap().exit_code, Some(3));
    let error = host.runtime.start_container(&late).await.unwrap_err().to_string();
    assert!(error.contains(&format!("target container {target} is not running")), "{error}");
    let status = host.runtime.container_status(&late).await.unwrap();
    assert_eq!((status.state, status.reason.as_deref()), (ContainerState::Exited, Some("StartError")));

    // The next container of the target's name is another target.
    let again = host.start("a", ContainerConfig { attempt: 1, ..shell("target", FOREVER) }).await;
    let (_, text) = host.script("a", "again", "ps", |c| c.target_container = Some(again.clone())).await;
    assert!(text.matches("exit 3").count() == 1, "{text}");

    // Process 1 of a namespace ignores signals from inside that it does not handle.
    let kills = host.start("a", debugger("kills", &again, "kill -9 1")).await;
    host.ended(&kills).await;
    assert_eq!(host.runtime.container_status(&again).await.unwrap().state, ContainerState::Running);
    let stays = host.start("a", debugger("stays", &again, FOREVER)).await;
    sh(&host, &stays, "kill -TERM 1").await;
    assert_eq!(host.ended(&again).await.exit_code, Some(3));
    assert_eq!(host.ended(&stays).await.exit_code, Some(137));
    host.finish().await;
}

#[tokio::test]
async fn targets_that_cannot_be_joined_are_refused() {
    let mut host = Host::new().await;
    host.pod("a").await;
    host.pod("b").await;
    let ended = host.start("a", shell("ended", "true")).await;
    host.ended(&ended).await;
    let created = host.runtime.create_container("a", shell("created", "true")).await.unwrap();
    let foreign = host.start("b", shell("foreign", FOREVER)).await;
    for (target, message) in [
        (ended.as_str(), "container \"ended\" is not running"),
        (created.as_str(), "container \"created\" is not running"),
        (foreign.as_str(), "the sandbox has no container"),
        ("nothing", "the sandbox has no container \"nothing\""),
    ] {
        let error = host.runtime.create_container("a", debugger("debug", target, "true")).await.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("invalid target container: ") && text.contains(message), "{text}");
    }
    // A shim of an earlier release would start it among processes of its own.
    let path = host.options.root.join("pods/b/shim.json");
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    record.as_object_mut().unwrap().remove("has_targets").unwrap();
    std::fs::write(&path, record.to_string()).unwrap();
    host.runtime = Embedded::open(host.options.clone()).await.unwrap();
    let error = host.runtime.create_container("b", debugger("debug", &foreign, "true")).await.unwrap_err().to_string();
    assert!(error.contains("started by an earlier release"), "{error}");
    host.finish().await;
}

/// A target that hides its /proc, or shows that of other processes, is not joined with it.
#[tokio::test]
async fn the_proc_of_a_target_is_verified() {
    let mut host = Host::new().await;
    host.pod("a").await;
    for (name, change) in [
        ("covered", "mount -t tmpfs none /proc && echo changed"),
        ("gone", "umount -l /proc && echo changed"),
        ("part", "mount --bind /proc/1/task /proc && echo changed"),
        // Processes below the target's own.
        ("nested", "unshare -pf sh -c 'mount -t proc proc /proc && echo changed; sleep 100000' & true"),
    ] {
        let mut target = shell(name, &format!("{change}; {FOREVER}"));
        target.security.privileged = true;
        let target = host.start("a", target).await;
        host.wait_for_output(&target, "changed").await;
        let id = host.runtime.create_container("a", debugger(&format!("debug-{name}"), &target, "ps")).await.unwrap();
        let error = host.runtime.start_container(&id).await.unwrap_err().to_string();
        assert!(error.contains("/proc of the pid namespace"), "{name}: {error}");
    }
    host.finish().await;
}

/// Where containers share processes anyway, a target changes nothing.
#[tokio::test]
async fn targets_in_pods_with_shared_processes_and_with_users_of_their_own() {
    let mut host = Host::new().await;
    let mut config = host.pod_config("shared");
    config.pid = PidMode::Pod;
    host.runtime.run_pod(config).await.unwrap();
    let target = host.start("shared", shell("target", &format!(": target; {FOREVER}"))).await;
    let (_, text) = host.script("shared", "debug", "ps", |c| c.target_container = Some(target.clone())).await;
    assert!(text.contains(": target;") && text.contains("pause"), "{text}");
    let mut config = host.pod_config("host");
    config.pid = PidMode::Host;
    host.runtime.run_pod(config).await.unwrap();
    let target = host.start("host", shell("target", &format!(": target; {FOREVER}"))).await;
    let own = std::process::id();
    let look = format!("ls -d /proc/{own}");
    let (status, text) = host.script("host", "debug", &look, |c| c.target_container = Some(target.clone())).await;
    assert_eq!(status.exit_code, Some(0), "{text}");

    let users = host.user_pod_config("users", IdRange { first: 1 << 20, length: 65536 });
    if host.runtime.run_pod(users).await.is_ok() {
        let target = host.start("users", shell("target", &format!("echo mark > /mark; : target; {FOREVER}"))).await;
        host.wait_for_output(&target, "up").await;
        let look = "ps; cat /proc/1/root/mark /proc/self/uid_map; cat /proc/kcore | wc -c";
        let (status, text) = host.script("users", "debug", look, |c| c.target_container = Some(target.clone())).await;
        assert_eq!(status.exit_code, Some(0), "{text}");
        let expected = [": target;", "\nmark\n", "1048576"];
        assert!(expected.iter().all(|e| text.contains(e)) && text.ends_with("\n0\n"), "{text}");
        let pid = host.runtime.container_status(&target).await.unwrap().pid.unwrap();
        let debug = host.start("users", debugger("stays", &target, FOREVER)).await;
        let of_debug = host.runtime.container_status(&debug).await.unwrap().pid.unwrap();
        for kind in ["pid", "user"] {
            assert_eq!(namespace(of_debug, kind), namespace(pid, kind));
        }
        assert!(!Path::new(&format!("/proc/{of_debug}/root/mark")).exists());
        host.runtime.stop_container(&target, Duration::ZERO).await.unwrap();
        assert_eq!(host.ended(&debug).await.exit_code, Some(137));
        assert_eq!(log(&host.runtime.container_status(&debug).await.unwrap()), "up\n");
    }
    host.finish().await;
}
