//! Containers of a real pod, seen from outside and from inside.
#![allow(clippy::unwrap_used)] // helpers of tests

mod host;

use std::time::Duration;

use host::{Host, log, shell};
use runtime::cgroup::Hierarchies;
use runtime::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

async fn sh(host: &Host, container: &str, script: &str) -> (i32, String) {
    let result = host
        .runtime
        .exec_sync(container, words("sh -c").into_iter().chain([script.into()]).collect(), None, 16 << 20)
        .await;
    let result = result.unwrap();
    (result.exit_code, String::from_utf8(result.stdout).unwrap())
}

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

#[tokio::test]
async fn a_pod_runs_logs_executes_and_stops() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let script = "trap 'echo bye; exit 3' TERM; echo out; echo err >&2; while :; do sleep 0.1; done";
    let id = host.start("a", shell("main", script)).await;
    let status = host.runtime.container_status(&id).await.unwrap();
    assert_eq!(status.state, ContainerState::Running);
    host.wait_for_output(&id, "stderr F err").await;
    assert_eq!(sh(&host, &id, "hostname; echo $PPID; exit 7").await, (7, "host-a\n0\n".into()));

    host.runtime.stop_container(&id, Duration::from_secs(10)).await.unwrap();
    let status = host.runtime.container_status(&id).await.unwrap();
    assert_eq!((status.state, status.exit_code), (ContainerState::Exited, Some(3)));
    assert_eq!(status.reason.as_deref(), Some("Error"));
    assert_eq!(log(&status), "out\nerr\nbye\n");
    assert!(status.finished_at > status.started_at);
    host.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    host.runtime.remove_container(&id).await.unwrap();
    host.runtime.remove_container(&id).await.unwrap();
    assert!(matches!(host.runtime.container_status(&id).await, Err(Error::NotFound { .. })));
    host.runtime.remove_pod("a").await.unwrap();
    assert!(host.runtime.list_pods().await.unwrap().is_empty());
    host.finish().await;
}

#[tokio::test]
async fn a_container_that_ignores_the_signal_is_killed() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let id = host.start("a", shell("deaf", "trap '' TERM; while :; do sleep 0.1; done")).await;
    host.runtime.stop_container(&id, Duration::from_millis(300)).await.unwrap();
    let status = host.ended(&id).await;
    assert_eq!((status.exit_code, status.signal), (Some(137), Some(9)));
    // Its stop signal may be another one.
    let mut config = shell("usr1", "trap 'exit 42' USR1; echo ready; while :; do sleep 0.1; done");
    config.stop_signal = Some("SIGUSR1".into());
    let id = host.start("a", config).await;
    host.wait_for_output(&id, "ready").await; // process 1 does not get a signal it has no handler for
    host.runtime.stop_container(&id, Duration::from_secs(20)).await.unwrap();
    assert_eq!(host.ended(&id).await.exit_code, Some(42));
    host.finish().await;
}

#[tokio::test]
async fn reports_why_a_start_failed() {
    let mut host = Host::new().await;
    host.pod("a").await;
    for (name, command, message) in [
        ("one", "nope", "exec: \"nope\": executable file not found in $PATH"),
        ("two", "/no/such", "stat /no/such: no such file or directory"),
        ("three", "/etc/passwd", "permission denied"),
    ] {
        let mut config = shell(name, "");
        config.command = vec![command.into()];
        let id = host.runtime.create_container("a", config).await.unwrap();
        let error = host.runtime.start_container(&id).await.unwrap_err();
        assert!(matches!(&error, Error::Start { message: m, .. } if m.contains(message)), "{error}");
        let status = host.runtime.container_status(&id).await.unwrap();
        assert_eq!((status.state, status.exit_code), (ContainerState::Exited, Some(128)));
        assert_eq!(status.reason.as_deref(), Some("StartError"));
        assert!(status.message.unwrap().contains(message));
    }
    let mut config = shell("four", "");
    config.mounts = vec![Mount::bind("/no/such/source", "/mnt")];
    let id = host.runtime.create_container("a", config).await.unwrap();
    assert!(host.runtime.start_container(&id).await.unwrap_err().to_string().contains("mount source /no/such/source"));

    for (edit, message) in [
        ((|c| c.image = "nowhere/none:1".into()) as fn(&mut ContainerConfig), "failed to pull image"),
        (|c| c.image = "Bad Name".into(), "invalid image name"),
        (|c| c.security.add_capabilities = vec!["FLY".into()], "unknown capability \"FLY\""),
        (|c| c.security.seccomp = Seccomp::Oci("{".into()), "invalid seccomp profile"),
        (|c| c.stop_signal = Some("SIGNOPE".into()), "invalid stop signal"),
        (|c| c.mounts = vec![Mount::bind("/tmp", "../x")], "invalid mount path"),
    ] {
        let mut config = shell("bad", "");
        edit(&mut config);
        let error = host.runtime.create_container("a", config).await.unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    assert_eq!(host.runtime.list_containers().await.unwrap().len(), 4, "refused requests leave nothing");
    let mut config = host.pod_config("b");
    config.sysctls = [("net.ipv4.no_such".to_owned(), "1".to_owned())].into();
    let error = host.runtime.run_pod(config).await.unwrap_err().to_string();
    assert!(error.contains("sysctl net.ipv4.no_such=1"), "{error}");
    assert!(matches!(host.runtime.pod_status("b").await, Err(Error::NotFound { .. })));
    host.finish().await;
}

#[tokio::test]
async fn files_and_mounts_are_where_requested() {
    let mut host = Host::new().await;
    let data = host.directory.path().join("data");
    std::fs::create_dir_all(data.join("sub")).unwrap();
    std::fs::write(data.join("file"), "content\n").unwrap();
    let mut config = host.pod_config("a");
    config.sysctls = [("net.ipv4.ip_unprivileged_port_start".to_owned(), "80".to_owned())].into();
    host.runtime.run_pod(config).await.unwrap();
    let d = data.clone();
    let script = "cat /etc/hosts /etc/resolv.conf /etc/hostname; cat /ro/file; echo new > /ro/x || echo read-only; \
                  echo new > /rw/made; echo one > /one/deep/file; cat /mem/none || mount | grep -c ' /mem '; \
                  echo reason > /dev/termination-log; cat /proc/sys/net/ipv4/ip_unprivileged_port_start; \
                  pwd; echo $HOME $A $HOSTNAME; echo shared > /dev/shm/x; ls /ro";
    let (status, text) = host
        .script("a", "main", script, |c| {
            c.mounts = vec![
                Mount::bind(&d, "/ro").read_only(),
                Mount::bind(d.join("sub"), "/rw"),
                Mount::bind(d.join("file"), "/one/deep/file"),
                Mount { source: MountSource::Tmpfs { size: Some(4096), mode: None }, ..Mount::bind("", "/mem") },
            ];
            c.env = vec![("A".into(), "b c".into())];
            c.working_dir = Some("/made/by/us".into());
            c.termination_message_path = Some("/dev/termination-log".into());
        })
        .await;
    assert_eq!(status.exit_code, Some(0), "{text}");
    for line in [
        "10.0.0.9 other",
        "nameserver 10.96.0.10",
        "host-a",
        "content",
        "read-only",
        "1",
        "80",
        "/made/by/us",
        "/root b c host-a",
        "sub",
    ] {
        assert!(text.lines().any(|l| l == line), "{line:?} is missing:\n{text}");
    }
    assert_eq!(std::fs::read_to_string(data.join("sub/made")).unwrap(), "new\n");
    assert_eq!(std::fs::read_to_string(data.join("file")).unwrap(), "one\n");
    assert_eq!(std::fs::read_to_string(status.termination_message_file.unwrap()).unwrap(), "reason\n");
    let (_, text) = host.script("a", "second", "cat /dev/shm/x; ls /made || echo own root", |_| {}).await;
    assert!(text.starts_with("shared\n") && text.contains("own root"), "{text}");
    // A symlink of the image cannot lead a mount out of the container.
    let (_, text) = host
        .script("a", "third", "cat /bin/../link/file || ls -l /link", |c| c.mounts = vec![Mount::bind(&data, "/link")])
        .await;
    assert_eq!(text, "one\n");
    host.finish().await;
}

/// What devices of the CDI bring besides their nodes.
#[tokio::test]
async fn mounts_and_devices_have_their_options() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let data = host.directory.path().join("data");
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(data.join("program"), "#!/bin/sh\necho runs\n").unwrap();
    std::fs::set_permissions(data.join("program"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mount = |target: &str, no_exec| Mount {
        options: MountOptions { no_suid: true, no_exec },
        ..Mount::bind(&data, target)
    };
    let device = |target: &str| DeviceRequest {
        host: "/dev/zero".into(),
        target: target.into(),
        permissions: "r".into(),
        ..DeviceRequest::default()
    };
    let script = "/yes/program; /no/program 2>/dev/null || echo refused; grep -c ' /yes .*nosuid' /proc/mounts; \
                  stat -c '%a %u %g' /dev/own /dev/user /dev/plain; head -c 1 /dev/own | wc -c";
    let (_, text) = host
        .script("a", "main", script, |c| {
            c.security.run_as_user = Some(33);
            c.mounts = vec![mount("/yes", false), mount("/no", true)];
            c.devices = vec![
                DeviceRequest { mode: Some(0o640), uid: Some(33), gid: Some(5), ..device("/dev/own") },
                DeviceRequest { for_user: true, mode: Some(0o600), ..device("/dev/user") },
                device("/dev/plain"),
            ];
        })
        .await;
    assert_eq!(text, "runs\nrefused\n1\n640 33 5\n600 33 0\n666 0 0\n1\n");
    host.finish().await;
}

#[tokio::test]
async fn privileges_are_those_requested() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let script = "id -u; id -g; id -G; grep -E '^(Cap(Eff|Bnd|Amb)|NoNewPrivs|Seccomp):' /proc/self/status; \
                  cat /proc/self/oom_score_adj; cat /proc/kcore | wc -c; echo x > /proc/sys/kernel/domainname || echo locked; \
                  ls /sys/firmware | wc -l; grep -c cgroup /proc/mounts; touch /x && echo writable";
    let (_, text) = host.script("a", "plain", script, |_| {}).await;
    let caps = "CapEff:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\nCapAmb:\t0000000000000000\n";
    assert!(text.starts_with(&format!("0\n0\n0\n{caps}NoNewPrivs:\t0\nSeccomp:\t0\n")), "{text}");
    assert!(text.contains("\nlocked\n") && text.ends_with("writable\n"), "{text}");

    let (_, text) = host
        .script("a", "hard", script, |c| {
            c.security.run_as_user = Some(33);
            c.security.supplemental_groups = vec![5];
            c.security.no_new_privileges = true;
            c.security.read_only_rootfs = true;
            c.security.drop_capabilities = vec!["ALL".into()];
            c.security.seccomp = Seccomp::RuntimeDefault;
            c.oom_score_adj = 500;
        })
        .await;
    let none = "0000000000000000";
    let expect = format!(
        "33\n44\n44 5 70\nCapEff:\t{none}\nCapBnd:\t{none}\nCapAmb:\t{none}\nNoNewPrivs:\t1\nSeccomp:\t2\n500\n"
    );
    assert!(text.starts_with(&expect), "{text}");
    assert!(!text.contains("writable"), "{text}");

    // The filter holds for root too, and without no_new_privs.
    let script = "grep Seccomp: /proc/self/status; unshare -U true; echo $?; mknod /dev/x b 254 0; cat /dev/x; echo $?";
    let (_, text) = host.script("a", "filtered", script, |c| c.security.seccomp = Seccomp::RuntimeDefault).await;
    assert!(text.starts_with("Seccomp:\t2\n") && text.contains("not permitted"), "{text}");
    let (_, text) = host.script("a", "device", "exec 2>&1; mknod /x b 254 0; head -c 1 /x; echo $?", |_| {}).await;
    assert!(text.contains("Permission denied") && text.ends_with("1\n"), "a device made inside is of no use: {text}");

    let script =
        "ls -d /dev/mem /dev/kmsg; mount -t tmpfs none /mnt && echo mounted; touch /sys/x 2>&1 | grep -c Read-only";
    let (_, text) =
        host.script("a", "privileged", &format!("mkdir /mnt; {script}"), |c| c.security.privileged = true).await;
    assert!(text.contains("mounted\n") && text.contains("/dev/kmsg"), "{text}");
    host.finish().await;
}

/// A file of a container's control groups on the host, in all hierarchies that have it.
fn control_files(host: &Host, id: &str, name: &str) -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|e| e.path());
    let hierarchies = all.chain([std::path::PathBuf::from("/sys/fs/cgroup")]);
    let of_container = hierarchies.map(|h| h.join(&host.options.cgroup_prefix).join("burstable/poda").join(id));
    of_container.map(|d| d.join(name)).filter(|f| f.exists()).collect()
}

fn control(host: &Host, id: &str, name: &str) -> Vec<String> {
    let files = control_files(host, id, name);
    files.iter().filter_map(|f| Some(std::fs::read_to_string(f).ok()?.trim().to_owned())).collect()
}

/// On hybrid hosts, containers saw the hierarchy of v2 as well, and programs read limits there.
#[tokio::test]
async fn containers_see_one_version_of_control_groups() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let kinds = "grep ' /sys/fs/cgroup' /proc/mounts | cut -d' ' -f3 | grep cgroup | sort -u";
    let (_, seen) = host.script("a", "main", kinds, |_| {}).await;
    let v1 = std::fs::read_to_string("/proc/mounts").unwrap().contains(" /sys/fs/cgroup/memory cgroup ");
    assert_eq!(seen, if v1 { "cgroup\n" } else { "cgroup2\n" });
    host.finish().await;
}

/// A container can freeze itself. What joins it then would stand still, and be neither counted nor ended.
#[tokio::test]
async fn nothing_joins_a_frozen_container() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let id = host.start("a", shell("main", FOREVER)).await;
    let v1 = !control_files(&host, &id, "freezer.state").is_empty();
    let (file, frozen, thawed) = if v1 { ("freezer.state", "FROZEN", "THAWED") } else { ("cgroup.freeze", "1", "0") };
    let set = |value: &str| control_files(&host, &id, file).iter().for_each(|f| std::fs::write(f, value).unwrap());
    set(frozen);
    let stands_still = || match v1 {
        true => control(&host, &id, file).iter().all(|s| s == frozen),
        false => control(&host, &id, "cgroup.events").iter().any(|e| e.contains("frozen 1")),
    };
    while !stands_still() {
        tokio::task::yield_now().await;
    }
    let error = host.runtime.exec_sync(&id, words("true"), Some(Duration::from_secs(20)), 1000).await.unwrap_err();
    assert!(error.to_string().contains("cannot exec in a paused container"), "{error}");
    set(thawed);
    assert_eq!(sh(&host, &id, "echo on").await.1, "on\n");
    // It does not keep the container from being ended.
    set(frozen);
    host.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    host.finish().await;
}

/// Where the processes are, and in the group above, which they cannot reach.
#[tokio::test]
async fn limits_change_up_and_down() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let limits = |quota: i64, memory: i64| Resources {
        cpu_quota: Some(quota),
        cpu_period: Some(100_000),
        memory_limit: Some(memory),
        pids_limit: Some(50),
        ..Resources::default()
    };
    let mut config = shell("main", FOREVER);
    config.resources = limits(50_000, 64 << 20);
    let id = host.start("a", config).await;
    for (quota, memory) in [(20_000, 32 << 20), (80_000, 128 << 20), (30_000, 64 << 20)] {
        host.runtime.update_container(&id, limits(quota, memory)).await.unwrap();
        let found = |v1: &str, v2: &str| [control(&host, &id, v1), control(&host, &id, v2)].concat();
        let (quotas, memories) = (found("cpu.cfs_quota_us", "cpu.max"), found("memory.limit_in_bytes", "memory.max"));
        assert!(quotas == [quota.to_string()] || quotas == [format!("{quota} 100000")], "{quotas:?}");
        assert_eq!(memories, [memory.to_string()]);
        let script = "cd /sys/fs/cgroup; cat cpu/cpu.cfs_quota_us cpu.max 2> /dev/null | cut -d' ' -f1; \
                      cat memory/memory.limit_in_bytes memory.max 2> /dev/null; true";
        assert_eq!(sh(&host, &id, script).await, (0, format!("{quota}\n{memory}\n")));
    }
    host.finish().await;
}

/// Profiles that deny what the runtime itself does after a filter is installed.
#[tokio::test]
async fn profiles_may_be_narrow() {
    let mut host = Host::new().await;
    for mode in [PidMode::Container, PidMode::Pod] {
        let pod = format!("{mode:?}").to_lowercase();
        let mut config = host.pod_config(&pod);
        config.pid = mode;
        host.runtime.run_pod(config).await.unwrap();
        let deny = |calls: &str| {
            Seccomp::Oci(format!(
                r#"{{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{{"names":[{calls}],"action":"SCMP_ACT_KILL_PROCESS"}}]}}"#
            ))
        };
        // What a program that is alone never calls.
        let narrow = deny(r#""clone","setsid","capset","sendmsg","close_range""#);
        let script = "grep Seccomp: /proc/self/status; exec sleep 1000";
        let mut config = shell("narrow", "exec sleep 1000");
        config.security.seccomp = narrow.clone();
        config.security.no_new_privileges = true;
        let id = host.start(&pod, config).await;
        let command = ["cat", "/proc/self/status"].map(str::to_owned).to_vec();
        let result = host.runtime.exec_sync(&id, command, Some(Duration::from_secs(20)), 16 << 20).await.unwrap();
        assert!(String::from_utf8_lossy(&result.stdout).contains("Seccomp:\t2\n"), "{result:?}");

        // The filter has to go in earlier, since installing it is a privilege.
        let mut config = shell("privileged-filter", script);
        config.security.seccomp = deny(r#""setsid""#);
        let id = host.runtime.create_container(&pod, config).await.unwrap();
        let started = host.runtime.start_container(&id).await;
        let expected = "the seccomp profile denies setsid, which starting this process takes unless allowPrivilegeEscalation is false";
        let error = match mode {
            PidMode::Pod => started.unwrap_err().to_string(),
            _ => {
                started.unwrap();
                let command = vec!["true".to_owned()];
                host.runtime
                    .exec_sync(&id, command, Some(Duration::from_secs(20)), 16 << 20)
                    .await
                    .unwrap_err()
                    .to_string()
            }
        };
        assert!(error.contains(expected), "{error}");
    }
    host.finish().await;
}

#[tokio::test]
async fn limits_apply_and_out_of_memory_is_reported() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let (status, _) = host
        .script("a", "hungry", "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo survived", |c| {
            c.resources.memory_limit = Some(20 << 20)
        })
        .await;
    assert_eq!(status.reason.as_deref(), Some("OOMKilled"));
    assert_eq!(status.exit_code, Some(137));
    let mut config = shell("busy", "while :; do :; done");
    config.resources = Resources {
        cpu_quota: Some(10_000),
        cpu_period: Some(100_000),
        pids_limit: Some(20),
        cpu_shares: Some(102),
        ..Default::default()
    };
    let id = host.start("a", config).await;
    let before = host.runtime.container_stats(&id).await.unwrap().usage;
    let begin = tokio::time::Instant::now();
    let (code, _) = sh(&host, &id, "for i in $(seq 40); do sleep 5 & done").await;
    assert_ne!(code, 0, "more processes than allowed");
    tokio::time::sleep_until(begin + Duration::from_secs(1)).await;
    let after = host.runtime.container_stats(&id).await.unwrap().usage;
    let used = Duration::from_nanos(after.cpu_nanoseconds - before.cpu_nanoseconds);
    assert!(used < begin.elapsed() / 2, "a tenth of a processor, but {used:?} in {:?}", begin.elapsed());
    assert!(after.working_set > 0 && after.pids >= 1 && after.page_faults > 0, "{after:?}");
    assert!(after.cpu_user + after.cpu_system > 0 && after.memory_limit.is_none(), "{after:?}");
    assert!(host.runtime.container_layer(&id).await.unwrap().1 < 10);
    let pod = host.runtime.pod_stats("a").await.unwrap().usage;
    assert!(pod.cpu_nanoseconds >= after.cpu_nanoseconds);
    host.finish().await;
}

/// Only the process that the kernel chose was killed, and a container went on without a part of it.
#[tokio::test]
async fn running_out_of_memory_may_kill_all_processes() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let has_groups = Hierarchies::detect().unwrap().version() == "v2";
    // The program of the container waits for a process that takes too much.
    let script = "(x=$(head -c 200000000 /dev/zero | tr '\\0' x)) & wait; echo survived";
    for all in [true, false] {
        let limited = |c: &mut ContainerConfig| {
            c.resources.memory_limit = Some(20 << 20);
            (c.resources.oom_group, c.resources.swap_limit) = (Some(all), Some(0));
        };
        let (status, text) = host.script("a", &format!("group-{all}"), script, limited).await;
        let survives = !(has_groups && all);
        assert_eq!(text.contains("survived"), survives, "all: {all}: {text}");
        assert_eq!(status.exit_code, Some(if survives { 0 } else { 137 }));
        assert_eq!(status.reason.as_deref(), Some("OOMKilled"));
    }
    host.finish().await;
}

#[tokio::test]
async fn processes_of_a_pod_may_be_shared() {
    let mut host = Host::new().await;
    let mut config = host.pod_config("a");
    config.pid = PidMode::Pod;
    host.runtime.run_pod(config).await.unwrap();
    let first = host.start("a", shell("first", FOREVER)).await;
    let second = host.start("a", shell("second", "sleep 1000 & sleep 1000")).await;
    let (_, text) = sh(&host, &first, "ps -o pid,args").await;
    assert!(text.contains("sleep 1000") && text.contains("trap"), "{text}");
    host.runtime.stop_container(&second, Duration::ZERO).await.unwrap();
    assert_eq!(host.ended(&second).await.exit_code, Some(137));
    // Processes that it left are killed too, which takes a moment.
    let gone = "for i in $(seq 100); do ps -o pid,args | grep -q '[s]leep 1000' || exit 0; sleep 0.1; done; exit 1";
    assert_eq!(sh(&host, &first, gone).await.0, 0, "what it left behind goes on");
    let mut config = host.pod_config("b");
    (config.netns, config.pid) = (None, PidMode::Host);
    host.runtime.run_pod(config).await.unwrap();
    let (_, text) =
        host.script("b", "main", "echo $$; cat /proc/net/dev | grep -c eth0 || true; hostname", |_| {}).await;
    let own = nix::unistd::gethostname().unwrap().into_string().unwrap();
    assert!(text.lines().next().unwrap().parse::<i32>().unwrap() > 1 && text.ends_with(&format!("{own}\n")), "{text}");
    host.finish().await;
}

#[tokio::test]
async fn exec_carries_streams_terminals_and_timeouts() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let id = host.start("a", shell("main", FOREVER)).await;
    let request =
        |command: &str, tty| ExecRequest { command: words(command), tty, stdin: true, stdout: true, stderr: true };

    let mut session = host.runtime.exec(&id, request("cat", false)).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    let payload = vec![b'x'; 1 << 20];
    let write = async {
        stdin.write_all(&payload).await.unwrap();
        drop(stdin)
    };
    let mut echoed = Vec::new();
    let mut stdout = session.stdout.take().unwrap();
    tokio::join!(write, async { stdout.read_to_end(&mut echoed).await.unwrap() });
    assert_eq!((echoed.len(), session.control.wait().await.unwrap()), (1 << 20, 0));

    let mut session = host.runtime.exec(&id, request("sh", true)).await.unwrap();
    (session.control.resizer())(TerminalSize { rows: 33, columns: 77 });
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"tty; stty size; exit 5\n").await.unwrap();
    let mut text = String::new();
    session.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
    assert!(text.contains("/dev/pts/0") && text.contains("33 77"), "{text}");
    assert_eq!(session.control.wait().await.unwrap(), 5);

    // Output beyond the limit is read, so that the command ends, and not kept.
    let command = words("sh -c").into_iter().chain(["head -c 3000000 /dev/zero; exit 7".into()]).collect();
    let result = host.runtime.exec_sync(&id, command, None, 1000).await.unwrap();
    assert_eq!((result.stdout.len(), result.exit_code), (1000, 7));

    let error =
        host.runtime.exec_sync(&id, words("sleep 100"), Some(Duration::from_millis(200)), 16 << 20).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let (_, text) = sh(&host, &id, "ps | grep -c '[s]leep 100'").await;
    assert_eq!(text, "0\n", "a command that timed out is killed");
    let error = host.runtime.exec_sync(&id, words("nope"), None, 16 << 20).await.unwrap_err();
    assert!(error.to_string().contains("executable file not found"), "{error}");
    assert_eq!(sh(&host, &id, "kill -9 $$").await.0, 137);
    host.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    assert!(matches!(host.runtime.exec_sync(&id, words("true"), None, 16 << 20).await, Err(Error::State { .. })));
    host.finish().await;
}

#[tokio::test]
async fn attach_sees_output_and_feeds_input() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let mut config = shell("main", "while read line; do echo got $line; done; echo end");
    (config.stdin, config.stdin_once) = (true, true);
    let id = host.start("a", config).await;
    let mut session = host.runtime.attach(&id, true).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"one\ntwo\n").await.unwrap();
    drop(stdin);
    let mut text = String::new();
    session.stdout.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "got one\ngot two\nend\n");
    let status = host.ended(&id).await;
    assert_eq!(log(&status), text, "the log has it as well");

    let mut config = shell("tty", "stty size; read x; stty size; echo $x");
    (config.tty, config.stdin) = (true, true);
    let id = host.start("a", config).await;
    let mut session = host.runtime.attach(&id, true).await.unwrap();
    assert!(session.stderr.is_none());
    (session.resizer)(TerminalSize { rows: 11, columns: 22 });
    // The size is set by another request than the input: wait until it is there.
    while !sh(&host, &id, "stty size < /proc/1/fd/0").await.1.contains("11 22") {}
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"hello\n").await.unwrap();
    let mut text = String::new();
    session.stdout.read_to_string(&mut text).await.unwrap();
    assert!(text.contains("11 22\r\nhello\r\n"), "{text:?}");
    assert_eq!(host.ended(&id).await.exit_code, Some(0));

    for (tty, once) in [(true, true), (true, false), (false, false)] {
        let mut config = shell(&format!("left-{tty}-{once}"), "while read x; do echo got $x; done; echo end");
        (config.tty, config.stdin, config.stdin_once) = (tty, true, once);
        let id = host.start("a", config).await;
        let mut listening = host.runtime.attach(&id, false).await.unwrap();
        assert!(listening.stdin.is_none());
        for word in ["one", "two"] {
            let mut session = host.runtime.attach(&id, true).await.unwrap();
            let mut stdin = session.stdin.take().unwrap();
            stdin.write_all(format!("{word}\n").as_bytes()).await.unwrap();
            let mut text = String::new();
            while !text.contains(&format!("got {word}")) {
                let mut byte = [0];
                session.stdout.read_exact(&mut byte).await.unwrap();
                text.push(char::from(byte[0]));
            }
            drop(stdin);
            text.clear();
            session.stdout.read_to_string(&mut text).await.unwrap();
            assert_eq!(text.trim(), "", "the session ends with its input, the container does not");
        }
        host.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
        let mut text = String::new();
        listening.stdout.read_to_string(&mut text).await.unwrap();
        assert!(text.contains("got two") && !text.contains("end"), "{text}");
    }
    host.finish().await;
}

#[tokio::test]
async fn logs_can_be_rotated() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let mut config = shell("main", "while read x; do echo $x; done");
    config.stdin = true;
    let id = host.start("a", config).await;
    let mut session = host.runtime.attach(&id, true).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    let mut line = [0; 4];
    stdin.write_all(b"old\n").await.unwrap();
    session.stdout.read_exact(&mut line).await.unwrap();
    let status = host.runtime.container_status(&id).await.unwrap();
    let moved = status.log_path.with_extension("1");
    std::fs::rename(&status.log_path, &moved).unwrap();
    host.runtime.reopen_log(&id).await.unwrap();
    stdin.write_all(b"new\n").await.unwrap();
    session.stdout.read_exact(&mut line).await.unwrap();
    assert_eq!(log(&status), "new\n");
    assert!(std::fs::read_to_string(moved).unwrap().ends_with("stdout F old\n"));
    host.finish().await;
}

/// A program that writes lines of one byte made its shim write forty times as much, without a limit.
#[tokio::test]
async fn logs_grow_at_a_bounded_rate_and_nothing_is_lost() {
    const LINES: usize = 1_200_000;
    // Each line has 41 bytes in the log; the burst is 32 MiB, the rate 8 MiB a second.
    const LEAST: Duration = Duration::from_millis(1500);
    let mut host = Host::new().await;
    let pod = host.pod("a").await;
    let script = format!(
        "until [ -e /tmp/go ]; do sleep 0.02; done; head -c {LINES} /dev/zero | tr '\\0' '\\n'; printf last-; head -c 50000 /dev/zero | tr '\\0' x"
    );
    let id = host.start("a", shell("main", &script)).await;
    let mut attached = host.runtime.attach(&id, false).await.unwrap();
    let everything = tokio::spawn(async move {
        let mut all = Vec::new();
        attached.stdout.read_to_end(&mut all).await.unwrap();
        all
    });
    let begun = tokio::time::Instant::now();
    assert_eq!(sh(&host, &id, "touch /tmp/go").await.0, 0);
    // Others of the pod write and run meanwhile, and their terminals answer.
    let mut config = shell("tty", "read x; echo got $x");
    (config.tty, config.stdin) = (true, true);
    let tty = host.start("a", config).await;
    let mut session = host.runtime.attach(&tty, true).await.unwrap();
    assert_eq!(sh(&host, &tty, "echo here").await.1, "here\n");
    session.stdin.as_mut().unwrap().write_all(b"hello\n").await.unwrap();
    let mut text = String::new();
    session.stdout.read_to_string(&mut text).await.unwrap();
    assert!(text.contains("got hello"), "{text:?}");
    let status = host.ended(&id).await;
    assert!(begun.elapsed() >= LEAST, "it took {:?}", begun.elapsed());
    // It ends while the budget is used up: all output is in the log, and was sent to attached clients.
    let tail = format!("last-{}", "x".repeat(50_000));
    let all = everything.await.unwrap();
    assert!(all.len() == LINES + tail.len() && all.ends_with(tail.as_bytes()), "{}", all.len());
    let lines = std::fs::read_to_string(&status.log_path).unwrap();
    let last: String = lines.lines().filter(|l| l.len() > 45).map(|l| l.splitn(4, ' ').nth(3).unwrap()).collect();
    assert_eq!(last, tail);
    let shim = std::fs::read_to_string(format!("/proc/{}/status", pod.shim_pid.unwrap())).unwrap();
    let memory = shim.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap().trim().trim_end_matches(" kB");
    assert!(memory.parse::<u64>().unwrap() <= 1024, "the shim takes {memory} kB");
    host.finish().await;
}
