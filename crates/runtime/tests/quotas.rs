//! A container that exhausts the kernel's quotas of its user (root, if the pod has the host's users) does not affect others.
#![allow(clippy::unwrap_used, unsafe_code)] // helpers of tests; one system call

mod host;

use std::time::Duration;

use host::{Host, shell};
use runtime::*;
use tokio::io::AsyncReadExt;

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// A container of a pod of its own that runs an attack of the testbed, without any privilege.
async fn attacker(host: &mut Host, attack: &str) -> String {
    host.runtime.images().ensure_builtin("demo", &host.options.shim_program).unwrap();
    host.pod("attacker").await;
    let mut config = shell("attacker", "");
    config.image = "demo".into();
    config.command = vec!["/kemudi".into(), attack.into()];
    config.security.drop_capabilities = vec!["ALL".into()];
    config.security.no_new_privileges = true;
    let id = host.start("attacker", config).await;
    host.wait_for_output(&id, "full after").await;
    id
}

/// Starts pods and commands of every kind, with and without a terminal.
async fn everything_starts(host: &mut Host) {
    for (number, mode) in [PidMode::Container, PidMode::Pod, PidMode::Host].into_iter().enumerate() {
        let name = format!("{mode:?}").to_lowercase();
        let mut config = host.pod_config(&name);
        config.pid = mode;
        host.runtime.run_pod(config).await.unwrap();
        check(host, &name).await;
        if mode != PidMode::Host {
            let name = format!("users-{name}");
            let range = IdRange { first: 65536 * (20 + number as u32), length: 65536 };
            let config = PodConfig { pid: mode, ..host.user_pod_config(&name, range) };
            host.runtime.run_pod(config).await.unwrap();
            check(host, &name).await;
        }
    }
}

async fn check(host: &mut Host, pod: &str) {
    let main = host.start(pod, shell("main", FOREVER)).await;
    let (status, text) = host.script(pod, "terminal", "test -t 1 && echo terminal", |c| c.tty = true).await;
    assert_eq!((status.exit_code, text.trim()), (Some(0), "terminal"), "{pod}");
    let command = |script: &str| ["sh", "-c", script].map(str::to_owned).to_vec();
    let result =
        host.runtime.exec_sync(&main, command("echo plain"), Some(Duration::from_secs(20)), 16 << 20).await.unwrap();
    assert_eq!(result.stdout, b"plain\n", "{pod}");
    let request = ExecRequest {
        command: command("test -t 0 && echo terminal"),
        tty: true,
        stdin: true,
        ..ExecRequest::default()
    };
    let mut session = host.runtime.exec(&main, request).await.unwrap_or_else(|e| panic!("{pod}: {e}"));
    let mut text = String::new();
    session.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
    assert_eq!(text.trim(), "terminal", "{pod}");
    host.runtime.attach(&main, false).await.unwrap();
}

/// For the thread that runs a whole test.
fn new_session_keyring() -> nix::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: joining with a null name makes a keyring of this thread's own.
    let joined = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, 0usize) };
    nix::Error::result(joined).map(drop)
}

/// A server that was started from a session with keys has a session keyring; a new one then counts, and root's quota may be full.
#[tokio::test]
async fn keys_of_one_container_keep_no_other_from_starting() {
    new_session_keyring().unwrap();
    let mut host = Host::new().await;
    let attacker = attacker(&mut host, "fill-keys").await;
    // What other programs of root give back is taken a moment later.
    let limit = tokio::time::Instant::now() + Duration::from_secs(30);
    while new_session_keyring() != Err(nix::Error::EDQUOT) {
        assert!(tokio::time::Instant::now() < limit, "the quota of root is not full");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    everything_starts(&mut host).await;
    let mut seen = std::collections::BTreeSet::new();
    for name in ["one", "two"] {
        let mut config = shell(name, "");
        (config.image, config.command) = ("demo".into(), vec!["/kemudi".into(), "keyring".into()]);
        let id = host.start("attacker", config).await;
        let status = host.ended(&id).await;
        assert!(seen.insert(host::log(&status)), "a keyring of its own");
    }
    assert_eq!(host.runtime.container_status(&attacker).await.unwrap().state, ContainerState::Running);
    host.finish().await;
}

/// The kernel limits descriptors in flight per user for unprivileged processes.
#[tokio::test]
async fn descriptors_in_flight_of_one_container_break_no_terminal() {
    let mut host = Host::new().await;
    let attacker = attacker(&mut host, "descriptors-in-flight").await;
    everything_starts(&mut host).await;
    assert_eq!(host.runtime.container_status(&attacker).await.unwrap().state, ContainerState::Running);
    host.finish().await;
}

/// Control groups within each other cost memory of the kernel, and time when they are removed.
#[tokio::test]
async fn control_groups_of_a_pod_are_bounded() {
    let mut host = Host::new().await;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    if mounts.contains(" - cgroup2 ") {
        host.runtime.images().ensure_builtin("demo", &host.options.shim_program).unwrap();
        host.pod("a").await;
        let mut config = shell("deep", "");
        (config.image, config.command) = ("demo".into(), vec!["/kemudi".into(), "deep-cgroups".into()]);
        let id = host.start("a", config).await;
        let status = host.ended(&id).await;
        let text = host::log(&status);
        let depth = text.strip_prefix("deep ").and_then(|t| t.split([':', '\n']).next()?.parse::<u32>().ok());
        assert!(depth.is_some_and(|d| (8..=32).contains(&d)), "{text}");
    }
    host.finish().await;
}
