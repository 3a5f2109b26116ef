//! What is left when the agent or a shim goes.
#![allow(clippy::unwrap_used)] // helpers of tests

mod host;

use std::time::Duration;

use host::{Host, log, shell};
use runtime::*;

#[tokio::test]
async fn containers_outlive_the_agent() {
    let mut host = Host::new().await;
    host.pod("a").await;
    host.pod("b").await;
    let waiting = |name: &str, directory: &std::path::Path| {
        let mut config = shell(name, "while [ ! -e /flags/$N ]; do sleep 0.05; done; echo done; exit 4");
        config.env = vec![("N".into(), name.into())];
        config.mounts = vec![Mount::bind(directory, "/flags")];
        config
    };
    let flags = host.directory.path().join("flags");
    std::fs::create_dir(&flags).unwrap();
    let waits = host.start("a", waiting("waits", &flags)).await;
    let leaves = host.start("b", waiting("leaves", &flags)).await;
    let created = host.runtime.create_container("b", shell("created", "echo late")).await.unwrap();
    let before = host.runtime.container_status(&waits).await.unwrap();

    // The first agent ends; one container ends while no agent runs.
    let options = host.options.clone();
    drop(std::mem::replace(&mut host.runtime, Embedded::open(other_root(&options)).await.unwrap()));
    std::fs::write(flags.join("leaves"), "").unwrap();
    let state = options.root.join("pods/b/containers").join(&leaves).join("state.json");
    wait(|| std::fs::read_to_string(&state).is_ok_and(|s| s.contains("Exited"))).await;

    host.runtime = Embedded::open(options.clone()).await.unwrap();
    host.events = host.runtime.subscribe();
    let after = host.runtime.container_status(&waits).await.unwrap();
    assert_eq!((after.state, after.pid, after.started_at), (ContainerState::Running, before.pid, before.started_at));
    let left = host.runtime.container_status(&leaves).await.unwrap();
    assert_eq!((left.state, left.exit_code), (ContainerState::Exited, Some(4)));
    assert_eq!(log(&left), "done\n");
    // Everything continues: a created container can be started, a running one can be entered, and its end is reported.
    host.runtime.start_container(&created).await.unwrap();
    assert_eq!(log(&host.ended(&created).await), "late\n");
    let result = host.runtime.exec_sync(&waits, vec!["hostname".into()], None, 16 << 20).await.unwrap();
    assert_eq!(result.stdout, b"host-a\n");
    std::fs::write(flags.join("waits"), "").unwrap();
    assert_eq!(host.ended(&waits).await.exit_code, Some(4));
    Embedded::purge(&other_root(&options)).await.unwrap();
    host.finish().await;
}

#[tokio::test]
async fn containers_die_with_their_shim() {
    let mut host = Host::new().await;
    let pod = host.pod("a").await;
    let id = host.start("a", shell("main", "while :; do sleep 0.1; done")).await;
    let pid = host.runtime.container_status(&id).await.unwrap().pid.unwrap();
    let shim = nix::unistd::Pid::from_raw(pod.shim_pid.unwrap());
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGKILL).unwrap();
    let status = host.ended(&id).await;
    assert_eq!((status.state, status.reason.as_deref()), (ContainerState::Unknown, Some("ContainerStatusUnknown")));
    wait(|| !std::path::Path::new(&format!("/proc/{pid}")).exists()).await;
    assert_eq!(host.runtime.pod_status("a").await.unwrap().state, PodState::NotReady);
    assert!(matches!(host.runtime.create_container("a", shell("x", "")).await, Err(Error::ShimGone { .. })));
    host.runtime.remove_pod("a").await.unwrap();
    host.finish().await;
}

/// An agent that could not take up the connection to a shim knows it from its record only.
#[tokio::test]
async fn a_shim_without_a_connection_is_ended_by_its_record() {
    let mut host = Host::new().await;
    let pod = host.pod("a").await;
    let shim = pod.shim_pid.unwrap();
    let id = host.start("a", shell("main", "while :; do sleep 0.1; done")).await;
    let options = host.options.clone();
    drop(std::mem::replace(&mut host.runtime, Embedded::open(other_root(&options)).await.unwrap()));
    let record = options.root.join("pods/a/containers").join(&id).join("config.json");
    std::fs::write(&record, "{").unwrap();
    host.runtime = Embedded::open(options.clone()).await.unwrap();
    assert_eq!(host.runtime.pod_status("a").await.unwrap().state, PodState::NotReady);
    assert!(std::path::Path::new(&format!("/proc/{shim}")).exists());
    host.runtime.stop_pod("a").await.unwrap();
    wait(|| !std::path::Path::new(&format!("/proc/{shim}")).exists()).await;
    host.runtime.remove_pod("a").await.unwrap();
    Embedded::purge(&other_root(&options)).await.unwrap();
    host.finish().await;
}

/// Whoever tidies the machine removes empty control groups, and pods start all the same.
#[tokio::test]
async fn removed_control_groups_are_created_again() {
    let mut host = Host::new().await;
    let prefix = &host.options.cgroup_prefix;
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|e| e.path());
    let removed = hierarchies.chain(["/sys/fs/cgroup".into()]).filter(|h| {
        let group = h.join(prefix);
        std::fs::remove_dir(group.join("shims")).is_ok() && std::fs::remove_dir(group).is_ok()
    });
    assert!(removed.count() > 0);
    host.pod("a").await;
    let id = host.start("a", shell("main", "echo here")).await;
    assert_eq!(log(&host.ended(&id).await), "here\n");
    host.finish().await;
}

/// Cleaning up after shims that ended with the machine's agent may take long, and an attacker can cause that. Nothing waits for it.
#[tokio::test]
async fn what_is_left_is_removed_while_the_agent_works() {
    let mut host = Host::new().await;
    let pod = host.pod("a").await;
    host.start("a", shell("main", "while :; do sleep 0.1; done")).await;
    let options = host.options.clone();
    drop(std::mem::replace(&mut host.runtime, Embedded::open(other_root(&options)).await.unwrap()));
    let shim = pod.shim_pid.unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(shim), nix::sys::signal::Signal::SIGKILL).unwrap();
    wait(|| !std::path::Path::new(&format!("/proc/{shim}")).exists()).await;
    // What the removal of a pod left when it was interrupted, deeper than any path may be long.
    let left = options.root.join("pods/left");
    std::fs::create_dir_all(left.join("containers/x/upper").join("d/".repeat(500))).unwrap();
    // A mount on it keeps a control group from being removed.
    let groups = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|e| e.path());
    let groups = groups.chain(["/sys/fs/cgroup".into()]).map(|h| h.join(&options.cgroup_prefix).join("burstable/poda"));
    let group = groups.into_iter().find(|g| g.exists()).unwrap();
    let flags = nix::mount::MsFlags::MS_BIND;
    nix::mount::mount(Some(&group), &group, None::<&str>, flags, None::<&str>).unwrap();
    let begin = tokio::time::Instant::now();
    host.runtime = Embedded::open(options.clone()).await.unwrap();
    let took = begin.elapsed();
    nix::mount::umount2(&group, nix::mount::MntFlags::MNT_DETACH).unwrap();
    assert!(took < Duration::from_secs(1), "the agent waited {took:?} for a control group that cannot be removed");
    assert_eq!(host.runtime.pod_status("a").await.unwrap().state, PodState::NotReady);
    wait(|| !group.exists() && !left.exists()).await;
    // The pod's next sandbox has the same control group.
    host.runtime.stop_pod("a").await.unwrap();
    let config = PodConfig { cgroup_parent: "burstable/poda".into(), ..host.pod_config("a-1") };
    host.runtime.run_pod(config).await.unwrap();
    let id = host.start("a-1", shell("main", "while :; do sleep 0.1; done")).await;
    assert_eq!(host.runtime.container_status(&id).await.unwrap().state, ContainerState::Running);
    let names: Vec<_> =
        std::fs::read_dir(options.root.join("pods")).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    Embedded::purge(&other_root(&options)).await.unwrap();
    host.finish().await;
}

/// The records of a lost sandbox stay, and the next one of the pod has the same control group: cleaning up after the former ended it.
#[tokio::test]
async fn a_second_sandbox_outlives_the_agent() {
    let mut host = Host::new().await;
    let config =
        |host: &mut Host, id: &str| PodConfig { cgroup_parent: "burstable/poda".into(), ..host.pod_config(id) };
    let first = config(&mut host, "a-0");
    let first = host.runtime.run_pod(first).await.unwrap();
    let lost = host.start("a-0", shell("main", "while :; do sleep 0.1; done")).await;
    let shim = nix::unistd::Pid::from_raw(first.shim_pid.unwrap());
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGKILL).unwrap();
    host.ended(&lost).await;
    host.runtime.stop_pod("a-0").await.unwrap();
    let second = config(&mut host, "a-1");
    host.runtime.run_pod(second).await.unwrap();
    let id = host.start("a-1", shell("main", "while [ ! -e /end ]; do sleep 0.05; done; exit 3")).await;
    let options = host.options.clone();
    drop(std::mem::replace(&mut host.runtime, Embedded::open(other_root(&options)).await.unwrap()));
    host.runtime = Embedded::open(options.clone()).await.unwrap();
    host.events = host.runtime.subscribe();
    let result = host.runtime.exec_sync(&id, vec!["touch".into(), "/end".into()], None, 16 << 20).await.unwrap();
    assert_eq!(result.exit_code, 0);
    assert_eq!(host.ended(&id).await.exit_code, Some(3), "it ends by itself");
    Embedded::purge(&other_root(&options)).await.unwrap();
    host.finish().await;
}

#[tokio::test]
async fn fifty_pods_at_once() {
    let mut host = Host::new().await;
    let configs: Vec<PodConfig> = (0..50).map(|i| host.pod_config(&format!("p{i}"))).collect();
    let begin = tokio::time::Instant::now();
    let mut tasks = Vec::new();
    for config in configs {
        let runtime = host.runtime.clone();
        tasks.push(tokio::spawn(async move {
            let id = config.id.clone();
            let begin = tokio::time::Instant::now();
            runtime.run_pod(config).await.unwrap();
            let container = runtime.create_container(&id, shell("main", "while :; do sleep 100; done")).await.unwrap();
            runtime.start_container(&container).await.unwrap();
            begin.elapsed()
        }));
    }
    let mut times = Vec::new();
    for task in tasks {
        times.push(task.await.unwrap());
    }
    times.sort();
    println!("50 pods in {:?}; each: p50 {:?}, p99 {:?}", begin.elapsed(), times[25], times[49]);
    let pods = host.runtime.list_pods().await.unwrap();
    let private: u64 = pods.iter().filter_map(|p| p.shim_pid).map(private_memory).sum();
    println!("private memory per shim: {} kB", private / 50);
    assert!(private / 50 < 1024, "a shim keeps {} kB for itself", private / 50);
    host.finish().await;
}

#[tokio::test]
async fn one_pod_alone_starts_quickly() {
    let mut host = Host::new().await;
    let mut times = Vec::new();
    for i in 0..10 {
        let config = host.pod_config(&format!("p{i}"));
        let begin = tokio::time::Instant::now();
        host.runtime.run_pod(config).await.unwrap();
        let made = begin.elapsed();
        let id = host.start(&format!("p{i}"), shell("main", "while :; do sleep 100; done")).await;
        times.push((begin.elapsed(), made));
        host.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    }
    times.sort();
    println!("created to running, of which the pod: median {:?}, worst {:?}", times[5], times[9]);
    host.finish().await;
}

/// Each start that failed left its environment in memory, twice, and the next agent read all of it again.
#[tokio::test]
async fn environments_take_no_memory_of_the_agent() {
    const CONTAINERS: u64 = 40;
    const VARIABLE: usize = 100_000;
    let mut host = Host::new().await;
    host.pod("a").await;
    let large = |name: &str, attempt: u32, count: usize| {
        let mut config = shell(name, "env | wc -c; sleep 0.1");
        config.attempt = attempt;
        config.env = (0..count).map(|n| (format!("V{n}"), "x".repeat(VARIABLE))).collect();
        config
    };
    let own = std::process::id() as i32;
    host.runtime.create_container("a", large("first", 0, 15)).await.unwrap();
    let before = private_memory(own);
    let mut last = String::new();
    for attempt in 0..CONTAINERS as u32 {
        last = host.runtime.create_container("a", large("main", attempt, 15)).await.unwrap();
    }
    let grown = private_memory(own).saturating_sub(before);
    // 60 MB, once.
    assert!(grown < 40 << 10, "the agent grew by {grown} KiB");
    host.runtime = Embedded::open(host.options.clone()).await.unwrap();
    host.events = host.runtime.subscribe();
    let grown = private_memory(own).saturating_sub(before);
    assert!(grown < 40 << 10, "the next agent grew by {grown} KiB");
    let known = host.runtime.container_status(&last).await.unwrap();
    assert_eq!((known.name.as_str(), u64::from(known.attempt)), ("main", CONTAINERS - 1));
    host.runtime.start_container(&last).await.unwrap();
    host.wait_for_output(&last, "150").await;
    let record = host.options.root.join("pods/a/containers").join(&last).join("config.json");
    let size = std::fs::metadata(record).unwrap().len();
    assert!(size < 16 * VARIABLE as u64, "the environment is recorded once: {size}");

    // What the kernel would refuse is not recorded at all.
    let containers = || std::fs::read_dir(host.options.root.join("pods/a/containers")).unwrap().count();
    let there = containers();
    let mut long = large("long", 0, 0);
    long.args = vec!["x".repeat(128 << 10)];
    long.command.clear();
    for config in [large("main", 99, 90), long] {
        let error = host.runtime.create_container("a", config).await.unwrap_err().to_string();
        assert!(error.starts_with("failed to start container") && error.contains("argument list too long"), "{error}");
    }
    // Nor is what all containers of a pod may not have together, of which only the newest attempts count.
    let mut refused = None;
    for n in 0..20 {
        if let Err(e) = host.runtime.create_container("a", large(&format!("more-{n}"), 0, 15)).await {
            refused = Some((n, e.to_string()));
            break;
        }
    }
    let (n, error) = refused.unwrap();
    assert!(n == 9 && error.contains("environment, arguments and mounts"), "{n} {error}");
    assert_eq!(containers(), there + 9);
    host.finish().await;
}

/// A record as the release before wrote it: what was requested stands beside what was made of it.
#[tokio::test]
async fn records_of_the_release_before_are_adopted() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let mut config = shell("main", "echo $A; while [ ! -e /tmp/end ]; do sleep 0.05; done; exit 3");
    config.env = vec![("A".into(), "b".into())];
    config.labels = [("l".to_owned(), "m".to_owned())].into();
    let id = host.runtime.create_container("a", config).await.unwrap();
    let path = host.options.root.join("pods/a/containers").join(&id).join("config.json");
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (field, value) in
        [("env", record["env"].clone()), ("command", record["argv"].clone()), ("mounts", record["mounts"].clone())]
    {
        record["config"][field] = value;
    }
    assert!(record.as_object_mut().unwrap().remove("weight").is_some());
    std::fs::write(&path, record.to_string()).unwrap();
    host.runtime = Embedded::open(host.options.clone()).await.unwrap();
    host.events = host.runtime.subscribe();
    host.runtime.start_container(&id).await.unwrap();
    host.wait_for_output(&id, "b").await;
    let status = host.runtime.container_status(&id).await.unwrap();
    assert_eq!((status.name.as_str(), status.labels["l"].as_str()), ("main", "m"));
    let touch = ["/bin/busybox", "touch", "/tmp/end"].map(str::to_owned).to_vec();
    host.runtime.exec_sync(&id, touch, None, 1 << 10).await.unwrap();
    assert_eq!(host.ended(&id).await.exit_code, Some(3));
    host.finish().await;
}

fn private_memory(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    text.lines()
        .filter(|l| l.starts_with("Private_"))
        .filter_map(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum()
}

/// Options of a runtime that has nothing to do with ours.
fn other_root(options: &Options) -> Options {
    let mut other = options.clone();
    other.root = options.root.with_file_name("other");
    other.cgroup_prefix.push_str("-other");
    other
}

async fn wait(condition: impl Fn() -> bool) {
    let limit = tokio::time::Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(tokio::time::Instant::now() < limit, "waited in vain");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
