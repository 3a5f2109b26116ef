//! Attacks from inside a container on the processes that start it and its commands. Each must fail.
#![allow(clippy::unwrap_used)] // helpers of tests

mod host;

use std::os::fd::AsRawFd;
use std::time::Duration;

use host::{Host, shell};
use kemudi_runtime::*;
use tokio::io::AsyncReadExt;

/// Makes looking up a user take seconds: as many lines as are read.
const LONG_PASSWD: &str = "yes x | head -c 8388608 > /etc/passwd";
const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
/// The descriptors of the shell itself: `ls` is a process of its own.
const DESCRIPTORS: &str = "ls /proc/$$/fd; exit 0";

async fn sh(host: &Host, container: &str, script: &str) -> (i32, String) {
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    let result = host.runtime.exec_sync(container, command, Some(Duration::from_secs(30))).await.unwrap();
    (result.exit_code, String::from_utf8(result.stdout).unwrap())
}

/// Issue 15: what the agent's parent left open, and what the shim has open, reached the programs of containers.
#[tokio::test]
async fn programs_see_their_streams_and_nothing_else() {
    let mut host = Host::new().await;
    // What an agent may have been started with, and what a library opened without the flag.
    let secret = host.directory.path().join("secret");
    std::fs::write(&secret, "top").unwrap();
    let file = std::fs::File::open(&secret).unwrap();
    let directory = std::fs::File::open(host.directory.path()).unwrap();
    for open in [&file, &directory] {
        nix::fcntl::fcntl(open, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
    }
    assert!(file.as_raw_fd() > 2);
    for mode in [PidMode::Container, PidMode::Pod, PidMode::Host] {
        let name = format!("{mode:?}").to_lowercase();
        let mut config = host.pod_config(&name);
        config.pid = mode;
        host.runtime.run_pod(config).await.unwrap();
        // One with a log, input and somebody attached, so that its shim has much open.
        let mut config = shell("busy", FOREVER);
        config.stdin = true;
        let busy = host.start(&name, config).await;
        let _attached = host.runtime.attach(&busy, true).await.unwrap();
        let (_, text) = host.script(&name, "first", DESCRIPTORS, |_| {}).await;
        assert_eq!(text, "0\n1\n2\n", "the first process, {mode:?}");
        let (_, text) = host.script(&name, "tty", DESCRIPTORS, |c| c.tty = true).await;
        assert_eq!(
            text.split_whitespace().collect::<Vec<_>>(),
            ["0", "1", "2"],
            "the first process on a terminal, {mode:?}"
        );
        assert_eq!(sh(&host, &busy, DESCRIPTORS).await.1, "0\n1\n2\n", "an exec, {mode:?}");
        let command = ["sh", "-c", DESCRIPTORS].map(str::to_owned).to_vec();
        let request = ExecRequest { command, tty: true, stdin: true, stdout: true, stderr: false };
        let mut session = host.runtime.exec(&busy, request).await.unwrap();
        let mut text = String::new();
        session.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
        assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2"], "an exec with a terminal, {mode:?}");
    }
    host.finish().await;
}

/// Looks at a process from inside a container, and prints what it gets hold of.
const PROBE: &str = "
    for what in exe cwd root fd/0 fd/3 fd/4 fd/5 fd/6 fd/7 fd/8 fd/9 fd/10 ns/mnt; do
        link=$(readlink /proc/$P/$what 2> /dev/null) || continue
        # The list of users of the container itself, which is being read, below a root that is not the host's.
        case $what:$link in
            fd/*:/etc/passwd | fd/*:/etc/group) ;;
            fd/*:/) test -e /proc/$P/$what/boot && echo sees $what ;;
            *) echo sees $what ;;
        esac
    done
    ls /proc/$P/root/ > /dev/null 2>&1 && echo enters root
    (: < /proc/$P/mem) 2> /dev/null && echo reads mem
    (: > /proc/$P/mem) 2> /dev/null && echo writes mem
    (: < /proc/$P/environ) 2> /dev/null && echo reads environ
    (: >> /proc/$P/exe) 2> /dev/null && echo writes exe
    (: < /proc/$P/maps) 2> /dev/null && cat /proc/$P/maps 2> /dev/null | head -n 1
    true";

/// Issue 15: between entering a container and running the program, the process of an exec was open to the container's root.
#[tokio::test]
async fn the_way_into_a_container_shows_nothing() {
    let mut host = Host::new().await;
    for (mode, debugger, users) in [
        (PidMode::Container, false, false),
        (PidMode::Pod, false, false),
        (PidMode::Container, true, false),
        (PidMode::Container, true, true),
        (PidMode::Pod, true, true),
    ] {
        let name = format!("{mode:?}-{debugger}-{users}").to_lowercase();
        let range = IdRange { first: 65536 * 11, length: 65536 };
        let mut config = if users { host.user_pod_config(&name, range) } else { host.pod_config(&name) };
        config.pid = mode;
        host.runtime.run_pod(config).await.unwrap();
        // Looking up the user of an exec takes a while in a long file, which holds the window open.
        let script = format!(
            "exec 2>&1; {LONG_PASSWD}; echo ready
            for try in $(seq 1000); do
                for P in /proc/[0-9]*; do
                    P=${{P##*/}}; read comm < /proc/$P/comm || continue
                    case $P/$comm in 1/*|$$/*|*/sh|*/sleep|*/busybox) ;; *) break 2 ;; esac
                done
                sleep 0.02
            done
            echo found $comm; grep CapEff /proc/$P/status; {PROBE}
            echo over; {FOREVER}"
        );
        let mut config = shell("main", &script);
        if debugger {
            config.security.add_capabilities = vec!["SYS_PTRACE".into()];
        }
        let id = host.start(&name, config).await;
        host.said(&id, "ready").await;
        assert_eq!(sh(&host, &id, "true").await.0, 0);
        host.said(&id, "over").await;
        let text = host::log(&host.runtime.container_status(&id).await.unwrap());
        let mut lines = text.lines().skip_while(|l| !l.starts_with("found "));
        assert_eq!(lines.next(), Some("found kemudi-shim"), "{text}");
        // No more than the container has itself: no way to the host for one that may trace either.
        let capabilities = if debugger { "00000000a80c25fb" } else { "00000000a80425fb" };
        assert_eq!(lines.next(), Some(format!("CapEff:\t{capabilities}").as_str()), "{text}");
        let found: Vec<&str> = lines.take_while(|l| *l != "over").collect();
        // In a user namespace not even what traces sees anything.
        if debugger && !users {
            let writable = ["writes exe", "sees fd/4", "sees fd/5"];
            assert!(!found.iter().any(|f| writable.contains(f)), "{text}");
        } else {
            assert_eq!(found, [""; 0], "{text}");
        }
        host.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    }
    host.finish().await;
}

/// While a container starts, a neighbour that may trace finds no way to the host in the process that is to be its first.
#[tokio::test]
async fn the_start_of_a_neighbour_shows_nothing() {
    let mut host = Host::new().await;
    if !kernel_is_at_least(6, 17) {
        println!("skipped: this kernel mounts /proc for the caller's own namespace only");
        return host.finish().await;
    }
    let mut config = host.pod_config("a");
    config.pid = PidMode::Pod;
    host.runtime.run_pod(config).await.unwrap();
    // Looking up the user takes a while.
    let shared = host.directory.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::write(shared.join("passwd"), "x\n".repeat(4 << 20)).unwrap();
    for tty in [false, true] {
        let script = format!(
            "exec 2>&1; echo ready
            for try in $(seq 1000); do
                for P in /proc/[0-9]*; do
                    P=${{P##*/}}; read comm < /proc/$P/comm || continue
                    case $P/$comm in 1/*) ;; */kemudi-shim) break 2 ;; esac
                done
                sleep 0.02
            done
            echo found $comm; grep CapEff /proc/$P/status; ls /proc/$P/root/; echo that was its root
            echo over; {FOREVER}"
        );
        let mut config = shell(&format!("neighbour-{tty}"), &script);
        config.security.add_capabilities = vec!["SYS_PTRACE".into()];
        config.mounts = vec![Mount::bind(&shared, "/shared")];
        let neighbour = host.start("a", config).await;
        host.said(&neighbour, "ready").await;
        let mut config = shell(&format!("main-{tty}"), FOREVER);
        config.mounts = vec![Mount::bind(shared.join("passwd"), "/etc/passwd")];
        config.tty = tty;
        host.start("a", config).await;
        host.said(&neighbour, "over").await;
        let text = host::log(&host.runtime.container_status(&neighbour).await.unwrap());
        let mut lines = text.lines().skip_while(|l| !l.starts_with("found "));
        assert_eq!(lines.next(), Some("found kemudi-shim"), "{text}");
        assert_eq!(lines.next(), Some("CapEff:\t00000000a80425fb"), "{text}");
        let root: Vec<&str> = lines.by_ref().take_while(|l| *l != "that was its root").collect();
        assert!(root.contains(&"home") && !root.contains(&"boot"), "the root of the image: {text}");
        host.runtime.stop_container(&neighbour, Duration::ZERO).await.unwrap();
    }
    host.finish().await;
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut parts = release.split('.').map(|p| p.parse::<u32>().unwrap_or(0));
    (parts.next(), parts.next()) >= (Some(major), Some(minor))
}

/// The process that makes another may end after it: whoever asked is answered all the same.
#[tokio::test]
async fn short_commands_are_answered_each() {
    let mut host = Host::new().await;
    for mode in [PidMode::Container, PidMode::Pod] {
        let name = format!("{mode:?}").to_lowercase();
        let mut config = host.pod_config(&name);
        config.pid = mode;
        host.runtime.run_pod(config).await.unwrap();
        let id = host.start(&name, shell("main", FOREVER)).await;
        let commands = (0..8).map(|worker| {
            let (runtime, id) = (host.runtime.clone(), id.clone());
            tokio::spawn(async move {
                for round in 0..30 {
                    let command = vec!["true".to_owned()];
                    let result = runtime.exec_sync(&id, command, Some(Duration::from_secs(20))).await;
                    assert_eq!(result.unwrap().exit_code, 0, "{worker}/{round}");
                }
            })
        });
        for command in commands.collect::<Vec<_>>() {
            command.await.unwrap();
        }
    }
    host.finish().await;
}

/// When the process has the container's privileges already, and looks for the program, only its being not dumpable protects it.
#[tokio::test]
async fn no_memory_is_open_until_the_program_runs() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let script = "exec 2>&1; PATH=/bin; echo ready
        until test -e /stop; do
            for P in /proc/[0-9]*; do
                P=${P##*/}
                case $P in 1) continue ;; esac
                { true < /proc/$P/mem; } 2> /dev/null && read comm < /proc/$P/comm && echo opened $comm
            done
        done; echo over";
    let mut config = shell("main", script);
    // A long search makes the window wide.
    config.env = vec![("PATH".into(), "/x:".repeat(30_000) + "/bin")];
    let id = host.start("a", config).await;
    host.said(&id, "ready").await;
    for _ in 0..10 {
        assert_eq!(sh(&host, &id, "true").await.0, 0);
    }
    assert_eq!(sh(&host, &id, ": > /stop").await.0, 0);
    let status = host.ended(&id).await;
    let text = host::log(&status);
    assert!(!text.contains("opened kemudi"), "{text}");
    host.finish().await;
}

/// A container that holds up the start of commands does not collect them: who gives up is heard.
#[tokio::test]
async fn commands_that_nobody_waits_for_are_not_started() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let id = host.start("a", shell("main", &format!("{LONG_PASSWD}; echo ready; {FOREVER}"))).await;
    host.said(&id, "ready").await;
    for _ in 0..3 {
        let command = vec!["true".to_owned()];
        let result = host.runtime.exec_sync(&id, command, Some(Duration::from_millis(200))).await;
        assert!(matches!(result, Err(Error::Timeout { .. })), "{result:?}");
    }
    let limit = tokio::time::Instant::now() + Duration::from_secs(20);
    // The shell and its sleep.
    while host.runtime.container_stats(&id).await.unwrap().pids > 2 {
        assert!(tokio::time::Instant::now() < limit, "they are still there");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    host.finish().await;
}

/// Pipes and devices in place of the files that the start of a command reads hold nothing up.
#[tokio::test]
async fn a_container_cannot_hold_up_commands() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let script = format!(
        "rm -f /etc/passwd /etc/group /dev/null; mkfifo /etc/passwd /etc/group; ln -s /etc/passwd /dev/null; echo ready; {FOREVER}"
    );
    let id = host.start("a", shell("main", &script)).await;
    host.said(&id, "ready").await;
    let (code, text) = sh(&host, &id, "echo 0").await;
    assert_eq!((code, text.as_str()), (0, "0\n"));
    let request = ExecRequest { command: vec!["true".into()], stdout: false, ..ExecRequest::default() };
    let mut session = host.runtime.exec(&id, request).await.unwrap();
    assert_eq!(session.control.wait().await.unwrap(), 0);
    host.finish().await;
}

/// Keys of whoever started the agent are not for containers.
#[tokio::test]
async fn every_process_has_a_session_keyring_of_its_own() {
    let mut host = Host::new().await;
    let program = host.options.shim_program.clone();
    host.runtime.images().ensure_builtin("demo", &program).unwrap();
    host.pod("a").await;
    let own = std::process::Command::new(&program).arg("keyring").output().unwrap();
    let own = String::from_utf8(own.stdout).unwrap();
    let mut seen = std::collections::BTreeSet::from([own.trim().to_owned()]);
    for name in ["one", "two"] {
        let mut config = shell(name, "");
        (config.image, config.command) = ("demo".into(), vec!["/kemudi".into(), "keyring".into()]);
        let id = host.start("a", config).await;
        let status = host.ended(&id).await;
        let found = host::log(&status).trim().to_owned();
        assert!(found.parse::<i32>().is_ok_and(|serial| serial > 0), "{found}");
        assert!(seen.insert(found.clone()), "the keyring {found} is not the container's alone: {seen:?}");
    }
    host.finish().await;
}

/// Process 1 of a shared pid namespace was a fork of the shim with all it had: the host's root, sockets, capabilities.
#[tokio::test]
async fn the_reaper_of_a_pod_has_nothing_to_take() {
    let mut host = Host::new().await;
    let mut config = host.pod_config("a");
    config.pid = PidMode::Pod;
    host.runtime.run_pod(config).await.unwrap();
    let script = format!("P=1; grep -E '^(Cap|NoNewPrivs)' /proc/1/status; cat /proc/1/comm; {PROBE}");
    let (_, text) = host.script("a", "plain", &script, |_| {}).await;
    let none = "0000000000000000";
    let expected = format!(
        "CapInh:\t{none}\nCapPrm:\t{none}\nCapEff:\t{none}\nCapBnd:\t{none}\nCapAmb:\t{none}\nNoNewPrivs:\t1\nkemudi-shim\n"
    );
    assert_eq!(text, expected);
    // A container that may trace sees that there is nothing.
    let script = "ls -A /proc/1/root/ /proc/1/cwd/ /proc/1/fd; (: >> /proc/1/exe) 2>&1; cat /proc/1/cgroup";
    let (_, text) =
        host.script("a", "tracer", script, |c| c.security.add_capabilities = vec!["SYS_PTRACE".into()]).await;
    let (listing, rest) = text.split_once("/bin/sh: ").unwrap_or((&text, ""));
    let empty = ["/proc/1/cwd/:", "/proc/1/fd:", "/proc/1/root/:"];
    assert_eq!(listing.split_whitespace().collect::<Vec<_>>(), empty, "{text}");
    // What it uses counts for the pod.
    assert!(rest.contains("can't create /proc/1/exe") && rest.contains("/sandbox\n"), "{text}");
    host.finish().await;
}
