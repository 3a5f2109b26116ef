//! Attacks from inside a container on the processes that start it and its commands. Each must fail.
#![allow(clippy::unwrap_used)] // helpers of tests

mod host;

use std::os::fd::AsRawFd;
use std::time::Duration;

use host::{Host, shell};
use runtime::*;
use tokio::io::AsyncReadExt;

/// Makes looking up a user take seconds: as many lines as are read.
const LONG_PASSWD: &str = "yes x | head -c 8388608 > /etc/passwd";
const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
/// The descriptors of the shell itself: `ls` is a process of its own.
const DESCRIPTORS: &str = "ls /proc/$$/fd; exit 0";

async fn sh(host: &Host, container: &str, script: &str) -> (i32, String) {
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    let result = host.runtime.exec_sync(container, command, Some(Duration::from_secs(30)), 16 << 20).await.unwrap();
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
        // One with a log, input and an attached client, so that its shim has many descriptors.
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

/// A container that runs an attack of the testbed, with only the capability to trace.
fn tracer(name: &str, attack: &[&str]) -> ContainerConfig {
    let mut config = shell(name, "");
    config.image = "demo".into();
    config.command = [&["/kemudi"], attack].concat().into_iter().map(str::to_owned).collect();
    config.security.drop_capabilities = vec!["ALL".into()];
    config.security.add_capabilities = vec!["SYS_PTRACE".into()];
    config
}

/// Runs commands in a container until another one's log has `text`.
async fn commands_until(host: &Host, victim: &str, attacker: &str, text: &str) {
    let limit = tokio::time::Instant::now() + Duration::from_secs(60);
    let path = host.runtime.container_status(attacker).await.unwrap().log_path;
    while !std::fs::read_to_string(&path).unwrap().contains(text) {
        assert!(tokio::time::Instant::now() < limit, "{text:?} never came");
        let command = ["/kemudi", "demo-app"].map(str::to_owned).to_vec();
        let result = host.runtime.exec_sync(victim, command, Some(Duration::from_secs(20)), 16 << 20).await.unwrap();
        assert_eq!(result.exit_code, 0);
    }
}

/// Looks at what an attacker printed about the processes that it seized: each held from the beginning what its program held.
fn assert_nothing_gained(text: &str) {
    let mut before: Vec<&str> = Vec::new();
    let mut programs = 0;
    for line in text.lines() {
        if let Some(held) = line.strip_prefix("before ") {
            before.push(held);
        } else if let Some(held) = line.strip_prefix("after ") {
            assert!(!before.is_empty() && before.drain(..).all(|b| b == held), "more than its program has:\n{text}");
            programs += 1;
        } else {
            assert!(["ready", "over"].contains(&line), "{line}\n{text}");
        }
    }
    assert!(programs >= 3, "{text}");
}

const SECRET: &str = "what-only-the-neighbour-knows";

fn backwards(text: &str) -> String {
    text.chars().rev().collect()
}

/// With SYS_PTRACE in the same user namespace nothing hides a process: whatever is seized on its way into a container holds only what the
/// container has, and nothing about another one.
#[tokio::test]
async fn a_process_that_can_be_seized_has_nothing_to_take() {
    let mut host = Host::new().await;
    host.runtime.images().ensure_builtin("demo", &host.options.shim_program).unwrap();
    // A neighbour with a secret in its variables, its output and the commands that are run in it.
    let neighbour = |host: &Host, pod: &str| {
        let mut config = shell("neighbour", &format!("echo $S; printf $S; {FOREVER}"));
        config.env = vec![("S".into(), SECRET.into())];
        let (runtime, pod) = (host.runtime.clone(), pod.to_owned());
        async move {
            let id = runtime.create_container(&pod, config).await.unwrap();
            runtime.start_container(&id).await.unwrap();
            let command = ["echo", SECRET].map(str::to_owned).to_vec();
            runtime.exec_sync(&id, command, None, 16 << 20).await.unwrap();
        }
    };
    let secret = backwards(SECRET);
    let attack = ["steal", "4", &secret];
    for (name, seccomp, no_new_privileges) in [
        ("plain", Seccomp::Unconfined, false),
        ("filtered", Seccomp::RuntimeDefault, false),
        ("restricted", Seccomp::RuntimeDefault, true),
    ] {
        host.pod(name).await;
        neighbour(&host, name).await;
        let mut config = tracer("main", &attack);
        (config.security.seccomp, config.security.no_new_privileges) = (seccomp, no_new_privileges);
        let id = host.start(name, config).await;
        host.wait_for_output(&id, "ready").await;
        commands_until(&host, &id, &id, "over").await;
        assert_nothing_gained(&host::log(&host.runtime.container_status(&id).await.unwrap()));
    }
    // Commands in other containers, with other users, and the first processes of those.
    let mut config = host.pod_config("shared");
    config.pid = PidMode::Pod;
    host.runtime.run_pod(config).await.unwrap();
    neighbour(&host, "shared").await;
    let mut victim = tracer("victim", &["park"]);
    victim.security = Security { run_as_user: Some(1000), no_new_privileges: true, ..Security::default() };
    victim.security.seccomp = Seccomp::RuntimeDefault;
    let victim = host.start("shared", victim).await;
    let commands = host.start("shared", tracer("commands", &attack)).await;
    host.wait_for_output(&commands, "ready").await;
    commands_until(&host, &victim, &commands, "over").await;
    assert_nothing_gained(&host::log(&host.runtime.container_status(&commands).await.unwrap()));
    let starts = host.start("shared", tracer("starts", &attack)).await;
    host.wait_for_output(&starts, "ready").await;
    let path = host.runtime.container_status(&starts).await.unwrap().log_path;
    for number in 0..200 {
        if std::fs::read_to_string(&path).unwrap().contains("over") {
            break;
        }
        let mut config = tracer(&format!("short-{number}"), &["demo-app"]);
        config.tty = number % 2 == 1;
        config.security.run_as_user = Some(number % 3);
        let id = host.start("shared", config).await;
        host.ended(&id).await;
    }
    host.wait_for_output(&starts, "over").await;
    assert_nothing_gained(&host::log(&host.runtime.container_status(&starts).await.unwrap()));
    host.finish().await;
}

/// A process on its way into a container, held where it is by one that may trace, as another container sees it.
#[tokio::test]
async fn the_way_into_a_container_shows_nothing() {
    let mut host = Host::new().await;
    host.runtime.images().ensure_builtin("demo", &host.options.shim_program).unwrap();
    let mut config = host.pod_config("a");
    config.pid = PidMode::Pod;
    host.runtime.run_pod(config).await.unwrap();
    // No others come and go.
    const QUIET: &str = "exec sleep 100000";
    // Those that join the processes of one container see each other, too.
    host.pod("joined").await;
    let first = host.start("joined", shell("first", QUIET)).await;
    for (pod, target_container, start) in [("a", None, false), ("a", None, true), ("joined", Some(first), true)] {
        let join = |config: ContainerConfig| ContainerConfig { target_container: target_container.clone(), ..config };
        let plain = host.start(pod, join(shell(&format!("plain-{start}"), QUIET))).await;
        let mut config = shell(&format!("debugger-{start}"), QUIET);
        config.security.add_capabilities = vec!["SYS_PTRACE".into()];
        let debugger = host.start(pod, join(config)).await;
        let attacker = host.start(pod, join(tracer(&format!("hold-{start}"), &["hold"]))).await;
        host.wait_for_output(&attacker, "ready").await;
        let path = host.runtime.container_status(&attacker).await.unwrap().log_path;
        // Goes on until one is held, which stays as long as its attacker.
        let starts = async {
            for number in 0.. {
                if start {
                    let config = join(tracer(&format!("started-{number}"), &["demo-app"]));
                    let id = host.runtime.create_container(pod, config).await.unwrap();
                    let _ = host.runtime.start_container(&id).await;
                } else {
                    let command = vec!["true".to_owned()];
                    let _ = host.runtime.exec_sync(&plain, command, Some(Duration::from_secs(60)), 16 << 20).await;
                }
            }
        };
        let found = async {
            loop {
                let text = std::fs::read_to_string(&path).unwrap();
                if let Some((_, found)) = text.split_once("holds ") {
                    return found.split_once(',').unwrap().0.to_owned();
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let look = async {
            let pid = tokio::time::timeout(Duration::from_secs(60), found).await.expect("nothing was held");
            let (_, text) = sh(&host, &plain, &format!("P={pid}; cat /proc/$P/comm; {PROBE}")).await;
            assert_eq!(text, "pause\n", "{pod} start: {start}");
            let look = format!(
                "P={pid}; {PROBE}; ls /proc/$P/root/; for f in /proc/$P/fd/*; do readlink $f | cut -d: -f1; done | sort | uniq -c"
            );
            let (_, text) = sh(&host, &debugger, &look).await;
            assert!(text.contains("enters root") && text.contains("bin\n") && !text.contains("boot\n"), "{text}");
            assert!(!text.contains("writes exe"), "{text}");
            // Its streams, the pipe it waits at (both ends, at first), and the socket it reports errors to.
            let links: Vec<&str> = text.lines().filter(|l| l.starts_with(' ')).map(str::trim).collect();
            let count = |kind| links.iter().find_map(|l| l.strip_suffix(kind)?.trim().parse::<u32>().ok()).unwrap_or(0);
            assert_eq!(count(" socket"), 1, "{text}");
            assert_eq!(
                links.len() as u32,
                1 + u32::from(count(" pipe") > 0) + u32::from(count(" /dev/null") > 0),
                "{text}"
            );
            assert!(count(" pipe") + count(" /dev/null") <= 5, "{text}");
        };
        tokio::select! { () = starts => unreachable!(), () = look => {} }
        host.runtime.stop_container(&attacker, Duration::ZERO).await.unwrap();
    }
    host.finish().await;
}

/// In a user namespace not even what traces gets hold of such a process, since its memory is the host's.
#[tokio::test]
async fn nothing_of_ours_is_seized_in_a_user_namespace() {
    let mut host = Host::new().await;
    host.runtime.images().ensure_builtin("demo", &host.options.shim_program).unwrap();
    let config = host.user_pod_config("a", IdRange { first: 65536 * 11, length: 65536 });
    host.runtime.run_pod(config).await.unwrap();
    let mut config = tracer("main", &["steal", "1", &backwards(SECRET)]);
    config.security.add_capabilities = vec!["ALL".into()];
    let id = host.start("a", config).await;
    host.wait_for_output(&id, "ready").await;
    for _ in 0..50 {
        let command = ["/kemudi", "demo-app"].map(str::to_owned).to_vec();
        let result = host.runtime.exec_sync(&id, command, Some(Duration::from_secs(20)), 16 << 20).await.unwrap();
        assert_eq!(result.exit_code, 0);
    }
    assert_eq!(host::log(&host.runtime.container_status(&id).await.unwrap()), "ready\n");
    host.finish().await;
}

/// A container that controls a process which reports its start may send any report, for example the process id of another process,
/// which the shim would kill in its place.
#[tokio::test]
async fn a_forged_report_kills_no_other_process() {
    let mut host = Host::new().await;
    host.runtime.images().ensure_builtin("demo", &host.options.shim_program).unwrap();
    host.pod("a").await;
    let mut bystander = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let lie = format!("P{}", bystander.id());
    let id = host.start("a", tracer("main", &["hold", &lie, "T", "X", ""])).await;
    host.wait_for_output(&id, "ready").await;
    let limit = tokio::time::Instant::now() + Duration::from_secs(60);
    let path = host.runtime.container_status(&id).await.unwrap().log_path;
    while !std::fs::read_to_string(&path).unwrap().contains("holds") {
        assert!(tokio::time::Instant::now() < limit, "nothing was held");
        let command = ["/kemudi", "demo-app"].map(str::to_owned).to_vec();
        let _ = host.runtime.exec_sync(&id, command, Some(Duration::from_secs(2)), 16 << 20).await;
    }
    let text = host::log(&host.runtime.container_status(&id).await.unwrap());
    assert!(text.contains(", 3 lies"), "{text}");
    let held = text.split_once("holds ").unwrap().1.split_once(',').unwrap().0;
    // What was held is killed (but not gone, as long as it is traced), and the shim goes on.
    loop {
        let command = ["/kemudi", "cat", &format!("/proc/{held}/status")].map(str::to_owned).to_vec();
        let result = host.runtime.exec_sync(&id, command, Some(Duration::from_secs(20)), 16 << 20).await.unwrap();
        if String::from_utf8_lossy(&result.stdout).contains("State:\tZ") {
            break;
        }
        assert!(tokio::time::Instant::now() < limit, "it is still there");
    }
    assert!(bystander.try_wait().unwrap().is_none(), "the shim killed somebody else");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    host.finish().await;
}

/// A process that ends before the shim knows of it does no harm, and its id is not reused until then.
#[tokio::test]
async fn commands_that_are_killed_at_birth_are_answered() {
    let mut host = Host::new().await;
    host.runtime.images().ensure_builtin("demo", &host.options.shim_program).unwrap();
    host.pod("a").await;
    let neighbour = host.start("a", shell("neighbour", FOREVER)).await;
    let id = host.start("a", tracer("main", &["kill"])).await;
    host.wait_for_output(&id, "ready").await;
    let limit = tokio::time::Instant::now() + Duration::from_secs(60);
    let path = host.runtime.container_status(&id).await.unwrap().log_path;
    while std::fs::read_to_string(&path).unwrap().matches("killed").count() < 20 {
        assert!(tokio::time::Instant::now() < limit, "too few were killed");
        let command = ["/kemudi", "demo-app"].map(str::to_owned).to_vec();
        match host.runtime.exec_sync(&id, command, Some(Duration::from_secs(20)), 16 << 20).await {
            Ok(result) => assert!([0, 137].contains(&result.exit_code), "{result:?}"),
            Err(e) => assert!(e.to_string().contains("killed while it was started"), "{e}"),
        }
    }
    assert_eq!(sh(&host, &neighbour, "echo 0").await, (0, "0\n".into()));
    host.finish().await;
}

/// A container that stops every process it sees also stopped those that enter others of its pod, and the callers that started these
/// waited for ever.
#[tokio::test]
async fn starts_that_are_held_up_come_to_an_end() {
    let mut host = Host::with(|options| options.start_timeout = Duration::from_secs(2)).await;
    let mut config = host.pod_config("a");
    config.pid = PidMode::Pod;
    host.runtime.run_pod(config).await.unwrap();
    let neighbour = host.start("a", shell("neighbour", FOREVER)).await;
    let stopper = host.start("a", shell("stopper", "echo ready; while :; do kill -STOP -1; done")).await;
    host.wait_for_output(&stopper, "ready").await;
    let late = "did not run within 2 seconds";
    let mut held = [0; 3];
    for number in 0..300 {
        if held.iter().all(|n| *n > 0) {
            break;
        }
        let id = host.runtime.create_container("a", shell(&format!("c{number}"), "exec sleep 100000")).await.unwrap();
        match number % 3 {
            // The limit ends it,
            0 => {
                if let Err(e) = host.runtime.start_container(&id).await {
                    assert!(e.to_string().contains(late), "{e}");
                    assert_eq!(host.ended(&id).await.pid, None);
                    held[0] += 1;
                }
            }
            // or a caller that gives up,
            1 => {
                let limit = Duration::from_millis(500);
                if tokio::time::timeout(limit, host.runtime.start_container(&id)).await.is_err() {
                    host.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
                    assert_eq!(host.ended(&id).await.pid, None);
                    held[1] += 1;
                }
            }
            // and commands are no different.
            _ => {
                let command = vec!["true".to_owned()];
                let request = ExecRequest { command, tty: false, stdin: false, stdout: false, stderr: false };
                match host.runtime.exec(&neighbour, request).await {
                    Ok(mut session) => session.control.kill().await.unwrap(),
                    Err(e) => {
                        assert!(e.to_string().contains(late), "{e}");
                        held[2] += 1;
                    }
                }
            }
        }
        host.runtime.remove_container(&id).await.unwrap();
    }
    assert!(held.iter().all(|n| *n > 0), "none was held: {held:?}");
    host.runtime.stop_pod("a").await.unwrap();
    host.runtime.remove_pod("a").await.unwrap();
    host.finish().await;
}

/// Immutable files, in a volume and in the container's own layer, prevented the removal of their pod.
#[tokio::test]
async fn immutable_files_keep_no_container() {
    let mut host = Host::new().await;
    host.runtime.images().ensure_builtin("demo", &host.options.shim_program).unwrap();
    host.pod("a").await;
    let volume = host.directory.path().join("volume");
    std::fs::create_dir(&volume).unwrap();
    let mut config = shell("main", "");
    config.image = "demo".into();
    config.command = ["/kemudi", "immutable", "/volume", "/root", "/tmp"].map(str::to_owned).to_vec();
    config.security.add_capabilities = vec!["LINUX_IMMUTABLE".into()];
    config.mounts = vec![Mount::bind(&volume, "/volume")];
    let id = host.start("a", config).await;
    let status = host.ended(&id).await;
    assert_eq!(host::log(&status), "done\n");
    host.runtime.remove_container(&id).await.unwrap();
    host.runtime.stop_pod("a").await.unwrap();
    host.runtime.remove_pod("a").await.unwrap();
    assert!(!host.options.root.join("pods/a").exists());
    beneath::remove_tree(&volume).unwrap();
    host.finish().await;
}

/// A purge and the end of a container removed the same control group at once, and the slower one failed.
#[test]
fn a_tree_may_be_removed_by_several_at_once() {
    let files = tempfile::tempdir().unwrap();
    let hierarchies = runtime::cgroup::Hierarchies::detect().unwrap();
    let name = format!("kemudi-runtime-test-trees-{}", std::process::id());
    let groups = hierarchies.directories(&name);
    let roots = groups.iter().map(|g| g.directory.clone()).chain([files.path().join("tree")]);
    for root in roots {
        for _ in 0..20 {
            for i in 0..200 {
                std::fs::create_dir_all(root.join(format!("{}/{i}/below", i % 10))).unwrap();
            }
            let start = std::sync::Barrier::new(4);
            std::thread::scope(|threads| {
                let remove = || {
                    start.wait();
                    beneath::remove_directories(&root)
                };
                let removing: Vec<_> = (0..4).map(|_| threads.spawn(remove)).collect();
                removing.into_iter().for_each(|t| t.join().unwrap().unwrap());
            });
            assert!(!root.exists(), "{}", root.display());
        }
    }
}

/// Root of the container owns the files of its control group wherever it mounts them.
#[tokio::test]
async fn limits_cannot_be_raised_from_inside() {
    let mut host = Host::new().await;
    host.runtime.images().ensure_builtin("demo", &host.options.shim_program).unwrap();
    host.pod("a").await;
    let mut config = shell("main", "");
    config.image = "demo".into();
    config.command = ["/kemudi", "raise-limits", "128"].map(str::to_owned).to_vec();
    config.resources = Resources { memory_limit: Some(32 << 20), ..Resources::default() };
    let id = host.start("a", config).await;
    let status = host.ended(&id).await;
    let text = host::log(&status);
    assert!(text.contains("mounted "), "the attack takes place: {text}");
    assert_eq!(status.reason.as_deref(), Some("OOMKilled"), "{text}");
    assert!(!text.contains("took "), "{text}");
    // What programs read of their limits is what holds.
    let script = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2> /dev/null";
    let (_, text) = host.script("a", "reads", script, |c| c.resources.memory_limit = Some(32 << 20)).await;
    assert_eq!(text, format!("{}\n", 32 << 20));
    host.finish().await;
}

/// The process that creates another may end after it: the caller gets its answer all the same.
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
                    let result = runtime.exec_sync(&id, command, Some(Duration::from_secs(20)), 16 << 20).await;
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

/// A container that delays the start of commands does not accumulate them: a caller that gives up ends them.
#[tokio::test]
async fn abandoned_commands_are_not_started() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let id = host.start("a", shell("main", &format!("{LONG_PASSWD}; echo ready; {FOREVER}"))).await;
    host.wait_for_output(&id, "ready").await;
    for _ in 0..3 {
        let command = vec!["true".to_owned()];
        let result = host.runtime.exec_sync(&id, command, Some(Duration::from_millis(200)), 16 << 20).await;
        assert!(matches!(result, Err(Error::Timeout { .. })), "{result:?}");
    }
    let limit = tokio::time::Instant::now() + Duration::from_secs(20);
    // The shell and its sleep.
    while host.runtime.container_stats(&id).await.unwrap().usage.pids > 2 {
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
    host.wait_for_output(&id, "ready").await;
    let (code, text) = sh(&host, &id, "echo 0").await;
    assert_eq!((code, text.as_str()), (0, "0\n"));
    let request = ExecRequest { command: vec!["true".into()], stdout: false, ..ExecRequest::default() };
    let mut session = host.runtime.exec(&id, request).await.unwrap();
    assert_eq!(session.control.wait().await.unwrap(), 0);
    host.finish().await;
}

/// Containers do not get keys of the agent's session.
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

/// Process 1 of a shared pid namespace was a fork of the shim with all it had: the host's root, sockets, capabilities, and a path of the
/// host as its command.
#[tokio::test]
async fn the_reaper_of_a_pod_has_nothing_to_take() {
    let mut host = Host::new().await;
    let mut config = host.pod_config("a");
    config.pid = PidMode::Pod;
    host.runtime.run_pod(config).await.unwrap();
    let script = format!(
        "P=1; grep -E '^(Cap|NoNewPrivs)' /proc/1/status; cat /proc/1/comm; tr '\\0' ' ' < /proc/1/cmdline; echo; {PROBE}"
    );
    let (_, text) = host.script("a", "plain", &script, |_| {}).await;
    let none = "0000000000000000";
    let expected = format!(
        "CapInh:\t{none}\nCapPrm:\t{none}\nCapEff:\t{none}\nCapBnd:\t{none}\nCapAmb:\t{none}\nNoNewPrivs:\t1\npause\n/pause a \n"
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

/// The mode, owner and times of a device belong to its node: the nodes of a container are its own.
#[tokio::test]
async fn devices_of_a_container_are_its_own() {
    let mut host = Host::new().await;
    host.pod("a").await;
    host.pod("b").await;
    let seen = |path: &str| std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(path).unwrap());
    let before = DEVICE_NAMES.map(|n| seen(&format!("/dev/{n}")));
    let spoiled = host.start("a", shell("root", FOREVER)).await;
    let other = host.start("b", shell("other", FOREVER)).await;
    let spoil = "cd /dev && chmod 600 null zero full random urandom tty && chown 1234:1234 null full && touch -d 2000-01-01 null";
    let (code, _) = sh(&host, &spoiled, spoil).await;
    let after = DEVICE_NAMES.map(|n| seen(&format!("/dev/{n}")));
    for (name, mode) in DEVICE_NAMES.iter().zip(&before) {
        // Whatever comes of it, the machine goes on.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode & 0o7777);
        std::fs::set_permissions(format!("/dev/{name}"), mode).unwrap();
    }
    assert_eq!((code, after), (0, before), "changed, but not for the host");
    let look = "cd /dev && stat -c '%n %a %u:%g %t:%T' null zero full random urandom tty; head -c 2 zero | od -An -tx1; echo x > null";
    let (_, text) = sh(&host, &other, look).await;
    let want = "null 666 0:0 1:3\nzero 666 0:0 1:5\nfull 666 0:0 1:7\nrandom 666 0:0 1:8\nurandom 666 0:0 1:9\ntty 666 0:0 5:0\n 00 00\n";
    assert_eq!(text, want);
    // A node that a container makes itself opens nothing, wherever it lies.
    let made = "for d in /dev /tmp /; do mknod $d/mine c 1 3 && echo x > $d/mine; done 2>&1 | grep -c 'Permission denied'; mount | grep -c ' /dev/null '";
    assert_eq!(sh(&host, &other, made).await.1, "3\n1\n");
    host.finish().await;
}

const DEVICE_NAMES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
