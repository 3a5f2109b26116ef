//! Eviction from a node that lacks disk, memory or process ids: a node on a small disk of its own, whose thresholds are near what it has.

use crate::machine::{Machine, run};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;
/// Seconds that the soft threshold is exceeded before a pod is evicted.
const GRACE: i64 = 15;
/// Memory for pods, and what of it the threshold of eviction keeps.
const FOR_PODS: u64 = 250 * MIB;
const KEPT: u64 = 100 * MIB;

/// The directory of a machine on a disk of its own, as long as this value lives.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(directory: &Path, mib: u64) -> Self {
        let image = directory.with_extension("disk");
        fs::File::create(&image).and_then(|f| f.set_len(mib * MIB)).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0", "-E", "nodiscard"]).arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(directory));
        // The device keeps it.
        fs::remove_file(image).unwrap();
        Self(directory.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn available(path: &Path) -> u64 {
    let s = nix::sys::statvfs::statvfs(path).unwrap();
    s.blocks_available() * s.fragment_size()
}

fn meminfo(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|l| l.starts_with(field)).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn pod(m: &Machine, name: &str, script: &str, spec: Value, resources: Value) {
    let tools = m.directory.path().join("tools");
    let mounts = json!([{"name": "tools", "mountPath": "/tools"}, {"name": "room", "mountPath": "/room"}]);
    let mut spec_of_pod = json!({
        "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "tools", "hostPath": {"path": tools}}, {"name": "room", "emptyDir": {}}],
        "containers": [{"name": "c", "image": "kemudi.local/demo:latest", "command": ["/tools/busybox", "sh", "-c", script],
            "resources": resources, "volumeMounts": mounts}],
    });
    spec_of_pod.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    m.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec_of_pod}).to_string());
}

const FOREVER: &str = "while :; do /tools/busybox sleep 1000; done";

fn runs(m: &Machine, name: &str) -> Value {
    m.eventually(&format!("{name} runs"), || {
        let pod = m.json(&["pod", name]);
        (pod["status"]["phase"] == "Running").then_some(pod)
    })
}

/// Waits until a pod has failed, and returns its status.
fn failed(m: &Machine, name: &str) -> Value {
    m.eventually(&format!("{name} has failed"), || {
        let pod = m.json(&["pod", name]);
        (pod["status"]["phase"] == "Failed").then(|| pod["status"].clone())
    })
}

/// Waits until the node has a condition, or not, with its reason and taint. Returns the time of the condition.
fn pressure(m: &Machine, kind: &str, is: bool, reason: &str) -> String {
    let key = format!("node.kubernetes.io/{}-pressure", kind.trim_end_matches("Pressure").to_lowercase());
    m.eventually(&format!("{kind} is {is}"), || {
        let c = m.condition("n", kind);
        let taints = m.json(&["node", "n"])["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let tainted = taints.iter().any(|t| t["key"] == key && t["effect"] == "NoSchedule");
        let status = if is { "True" } else { "False" };
        (c["status"] == status && c["reason"] == reason && tainted == is)
            .then(|| c["lastTransitionTime"].as_str().unwrap().to_owned())
    })
}

fn evicted(m: &Machine, name: &str, start: &str) -> Value {
    let status = failed(m, name);
    let message = status["message"].as_str().unwrap();
    assert!(status["reason"] == "Evicted" && message.starts_with(start), "{status}");
    let disrupted = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "DisruptionTarget").unwrap();
    assert_eq!((&disrupted["status"], &disrupted["reason"]), (&json!("True"), &json!("TerminationByKubelet")));
    assert_eq!(m.event(name, "Evicted", start), message);
    status
}

/// A pod that is bound to the node all the same.
fn rejected(m: &Machine, name: &str, kind: &str) {
    pod(m, name, FOREVER, json!({"nodeName": "n"}), json!({}));
    let status = failed(m, name);
    let message = format!("Pod was rejected: The node had condition: [{kind}]. ");
    assert_eq!((&status["reason"], &status["message"]), (&json!("Evicted"), &json!(message)));
}

fn volume(m: &Machine, pod: &Value) -> PathBuf {
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    m.data().join("node/pods").join(uid).join("volumes/kubernetes.io~empty-dir/room")
}

/// Writes a file of this size into a pod's volume. It takes room on the small disk alone.
fn fill(m: &Machine, pod: &Value, mib: u64) {
    run(Command::new("fallocate").arg("-l").arg(format!("{mib}M")).arg(volume(m, pod).join("file")));
}

/// Clauses: R05.disk-pressure R05.memory-pressure R05.pid-pressure R05.soft-eviction R04.enforced
#[test]
fn pods_are_evicted_under_pressure() {
    let _memory = crate::MEMORY.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut m = Machine::new("pressure");
    m.held = Some(Box::new(SmallDisk::new(m.directory.path(), 4096)));
    fs::create_dir(m.directory.path().join("tools")).unwrap();
    fs::copy("/bin/busybox", m.directory.path().join("tools/busybox")).unwrap();
    let up = ["up", "--node-name", "n"];
    let server = m.start(&up);
    m.ready(&["n"]);
    m.kill(server);
    let room = available(m.directory.path()) / MIB;
    m.kubelet = format!(
        "systemReserved: {{memory: \"{reserved}\"}}\n\
         evictionHard: {{memory.available: {kept}Mi, nodefs.available: {hard}Mi}}\n\
         evictionSoft: {{nodefs.available: {soft}Mi}}\nevictionSoftGracePeriod: {{nodefs.available: {GRACE}s}}\n\
         evictionPressureTransitionPeriod: 1s\nevictionMaxPodGracePeriod: 1\n",
        reserved = meminfo("MemTotal") - FOR_PODS,
        kept = KEPT / MIB,
        hard = room - 1000,
        soft = room - 400,
    );
    let server = m.start(&up);
    m.ready(&["n"]);
    // All pods together have a limit.
    m.event("n", "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods");
    let allocatable = format!("{}Mi", (FOR_PODS - KEPT) / MIB);
    m.eventually("the node shows what is left for pods", || {
        (m.json(&["node", "n"])["status"]["allocatable"]["memory"] == allocatable).then_some(())
    });
    let request = json!({"requests": {"memory": "10Mi"}});
    pod(&m, "bystander", FOREVER, json!({}), request.clone());
    let limits = control_group_limits(&runs(&m, "bystander"));
    assert!(limits.contains(&FOR_PODS.to_string()), "{limits:?}");
    disk_pressure(&m, room);
    memory_pressure(&m);
    m.kill(server);
    pid_pressure(&mut m, &up);
    let bystander = runs(&m, "bystander");
    assert_eq!(bystander["status"]["containerStatuses"][0]["restartCount"], 0);
    m.purge();
}

fn disk_pressure(m: &Machine, room: u64) {
    // Beyond the soft threshold.
    pod(m, "slow", FOREVER, json!({}), json!({}));
    fill(m, &runs(m, "slow"), 600);
    let since = pressure(m, "DiskPressure", true, "KubeletHasDiskPressure");
    rejected(m, "late", "DiskPressure");
    pod(m, "waits", FOREVER, json!({}), json!({}));
    let start =
        format!("The node was low on resource: ephemeral-storage. Threshold quantity: {}Mi, available: ", room - 400);
    let status = evicted(m, "slow", &start);
    let message = status["message"].as_str().unwrap();
    // Files outside of volumes and the log, as upstream.
    assert!(message.contains("Ki, request is 0, has larger consumption of ephemeral-storage. "), "{message}");
    let time = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
    let disrupted = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "DisruptionTarget").unwrap();
    let delay = time(disrupted["lastTransitionTime"].as_str().unwrap()).as_second() - time(&since).as_second();
    assert!(delay >= GRACE - 1, "evicted after {delay} s");
    m.event("n", "EvictionThresholdMet", "Attempting to reclaim ephemeral-storage");
    // Its volume went with it.
    pressure(m, "DiskPressure", false, "KubeletHasNoDiskPressure");
    runs(m, "waits");
    m.ok(&["delete", "pod", "slow", "late", "waits"]);
    // Beyond the hard one.
    pod(m, "fast", FOREVER, json!({}), json!({}));
    fill(m, &runs(m, "fast"), 1200);
    evicted(m, "fast", "The node was low on resource: ephemeral-storage. ");
    pressure(m, "DiskPressure", false, "KubeletHasNoDiskPressure");
    m.ok(&["delete", "pod", "fast"]);
}

fn memory_pressure(m: &Machine) {
    let room = json!([
        {"name": "tools", "hostPath": {"path": m.directory.path().join("tools")}}, {"name": "room", "emptyDir": {"medium": "Memory"}},
    ]);
    let script = format!("/tools/busybox dd if=/dev/zero of=/room/file bs=1M count=200; {FOREVER}");
    pod(m, "greedy", &script, json!({"volumes": room}), json!({}));
    pressure(m, "MemoryPressure", true, "KubeletHasInsufficientMemory");
    let start = format!("The node was low on resource: memory. Threshold quantity: {}Mi, available: ", KEPT / MIB);
    let status = evicted(m, "greedy", &start);
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("Container c was using ")
            && message.contains(", request is 0, has larger consumption of memory. "),
        "{message}"
    );
    m.event("n", "EvictionThresholdMet", "Attempting to reclaim memory");
    pressure(m, "MemoryPressure", false, "KubeletHasSufficientMemory");
    m.ok(&["delete", "pod", "greedy"]);
}

/// Process ids that the machine has left: threads count, and those of other programs come and go.
fn available_pids() -> u64 {
    let read = |file: &str| fs::read_to_string(file).unwrap().trim().parse::<u64>().unwrap();
    let most = read("/proc/sys/kernel/pid_max").min(read("/proc/sys/kernel/threads-max"));
    let load = fs::read_to_string("/proc/loadavg").unwrap();
    most - load.split_ascii_whitespace().nth(3).unwrap().split_once('/').unwrap().1.parse::<u64>().unwrap()
}

/// A pod whose processes exceed the threshold, which is near what the machine has, not near its end.
fn pid_pressure(m: &mut Machine, up: &[&str]) {
    const MARGIN: u64 = 400;
    // No round number, which would be written with a unit.
    let threshold = (available_pids() - MARGIN) / 10 * 10 + 1;
    m.kubelet = format!(
        "evictionSoft: {{pid.available: \"{threshold}\"}}\nevictionSoftGracePeriod: {{pid.available: {GRACE}s}}\n\
         evictionHard: {{pid.available: \"10\"}}\nevictionPressureTransitionPeriod: 1s\nevictionMaxPodGracePeriod: 1\n"
    );
    m.start(up);
    m.ready(&["n"]);
    pressure(m, "PIDPressure", false, "KubeletHasSufficientPID");
    m.apply(
        &json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "humble"}, "value": -10})
            .to_string(),
    );
    pod(m, "humble", FOREVER, json!({"priorityClassName": "humble"}), json!({}));
    runs(m, "humble");
    let count = 2 * MARGIN;
    let script = format!(
        "/tools/busybox mkfifo /room/never; i=0; while [ $i -lt {count} ]; do (read x </room/never) & i=$((i+1)); done; {FOREVER}"
    );
    pod(m, "forks", &script, json!({}), json!({}));
    pressure(m, "PIDPressure", true, "KubeletHasInsufficientPID");
    rejected(m, "late", "PIDPressure");
    pod(m, "waits", FOREVER, json!({}), json!({}));
    // Of lower priority, although it has hardly a process; then the one that has most.
    let start = format!("The node was low on resource: pids. Threshold quantity: {threshold}, available: ");
    let humble = evicted(m, "humble", &start);
    let forks = evicted(m, "forks", &start);
    let time = |status: &Value| {
        let all = status["conditions"].as_array().unwrap();
        let disrupted = all.iter().find(|c| c["type"] == "DisruptionTarget").unwrap();
        disrupted["lastTransitionTime"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap()
    };
    assert!(time(&humble) <= time(&forks), "{humble} {forks}");
    assert!(!forks["message"].as_str().unwrap().contains("Container"), "no container requests process ids");
    m.event("n", "EvictionThresholdMet", "Attempting to reclaim pids");
    pressure(m, "PIDPressure", false, "KubeletHasSufficientPID");
    runs(m, "waits");
    m.ok(&["delete", "pod", "humble", "forks", "late", "waits"]);
}

/// The limits of memory of the control groups above a pod's.
fn control_group_limits(pod: &Value) -> Vec<String> {
    fn find(directory: &Path, name: &str) -> Option<PathBuf> {
        fs::read_dir(directory).ok()?.flatten().filter(|e| e.path().is_dir()).find_map(|e| {
            let path = e.path();
            if path.to_string_lossy().contains(name) { Some(path) } else { find(&path, name) }
        })
    }
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let roots = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
    let group = roots.iter().find_map(|root| find(Path::new(root), uid)).unwrap();
    let limit = |path: &Path| {
        ["memory.limit_in_bytes", "memory.max"].iter().find_map(|f| fs::read_to_string(path.join(f)).ok())
    };
    group.ancestors().filter_map(limit).map(|l| l.trim().to_owned()).collect()
}
