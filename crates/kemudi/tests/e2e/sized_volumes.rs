//! Volumes with a size: file systems and devices in files of the node.

use crate::claims::{file, volume_path};
use crate::runner::Case;
use crate::story::{Story, condition};
use serde_json::{Value, json};
use std::path::PathBuf;

pub const TESTS: &[Case] = &[
    ("sized_volumes::a_pod_cannot_write_more_than_its_claim", a_pod_cannot_write_more_than_its_claim),
    ("sized_volumes::claims_grow", claims_grow),
    ("sized_volumes::devices_have_the_size_of_their_claim", devices_have_the_size_of_their_claim),
    ("sized_volumes::claims_say_why_they_have_no_volume", claims_say_why_they_have_no_volume),
    ("sized_volumes::a_claim_can_be_a_copy", a_claim_can_be_a_copy),
    ("sized_volumes::a_damaged_file_system_is_reported", a_damaged_file_system_is_reported),
];

pub const ALONE: &[Case] = &[("sized_volumes::kills_lose_no_volume", kills_lose_no_volume)];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

fn claim(s: &Story, name: &str, class: &str, size: &str, more: Value) {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": class,
        "resources": {"requests": {"storage": size}}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    s.create("persistentvolumeclaims", json!({"metadata": {"name": name}, "spec": spec}));
}

fn pod(s: &Story, name: &str, claim: &str) {
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    let spec = json!({"volumes": volumes, "terminationGracePeriodSeconds": 1});
    s.shell_pod(name, FOREVER, spec, json!({"volumeMounts": mounts}));
}

/// A class of the provisioner with these parameters.
fn class(s: &Story, name: &str, parameters: Value) -> String {
    let name = format!("{}-{name}", s.ns);
    let class = json!({"metadata": {"name": name}, "provisioner": "kemudi.local/directory", "parameters": parameters,
        "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true});
    s.post("/apis/storage.k8s.io/v1/storageclasses", class);
    name
}

fn remove_class(s: &Story, name: &str) {
    s.ok(&["delete", "storageclass", name]);
}

/// Loop devices of a file.
fn devices(file: &std::path::Path) -> Vec<String> {
    let all = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let of = |d: &std::fs::DirEntry| {
        let text = std::fs::read_to_string(d.path().join("loop/backing_file")).unwrap_or_default();
        text.trim() == file.to_str().unwrap()
    };
    all.filter(of).map(|d| d.file_name().to_string_lossy().into_owned()).collect()
}

/// Deletes a claim that no pod has, with its volume.
fn delete_claim(s: &Story, claim: &str) {
    let (name, file) = file(s, claim);
    s.ok(&["delete", "pvc", claim]);
    s.until_at(&volume_path(&name), Value::is_null);
    assert!(!file.exists());
    s.eventually("no loop device", || devices(&file).is_empty().then_some(()));
}

fn kilobytes(s: &Story, pod: &str) -> u64 {
    let text = s.sh(pod, "df -k /v | tail -n 1");
    text.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Clauses: P02.persistent
fn a_pod_cannot_write_more_than_its_claim(s: &Story) {
    let class = s.get_at("/apis/storage.k8s.io/v1/storageclasses/local");
    assert_eq!(class["parameters"], json!({"type": "file"}), "{class}");
    claim(s, "small", "local", "12Mi", json!({}));
    pod(s, "p", "small");
    s.ready("p");
    let (_, path) = file(s, "small");
    assert_eq!(path.metadata().unwrap().len(), 12 << 20);
    assert_eq!(s.sh("p", "ls -A /v; stat -c %a /v; echo kept > /v/first"), "777\n");
    let full = s.exec("p", &["sh", "-c", "dd if=/dev/zero of=/v/large bs=1048576 count=20"]);
    let text = String::from_utf8_lossy(&full.stderr).into_owned();
    assert!(!full.status.success() && text.contains("No space left on device"), "{text}");
    s.sh("p", "rm /v/large");

    let summary = s.until_at("/api/v1/nodes/e2e/proxy/stats/summary", |all| volume(all, s, "p").is_some());
    let stats = volume(&summary, s, "p").unwrap();
    assert_eq!(stats["pvcRef"], json!({"name": "small", "namespace": s.ns}));
    let (capacity, used) = (stats["capacityBytes"].as_u64().unwrap(), stats["usedBytes"].as_u64().unwrap());
    assert!((8 << 20..12 << 20).contains(&capacity) && used < capacity, "{stats}");
    assert!(stats["inodes"].as_u64().unwrap() > stats["inodesUsed"].as_u64().unwrap(), "{stats}");
    let metrics = s.ok(&["get", "--raw", "/api/v1/nodes/e2e/proxy/metrics"]);
    let labels = format!("{{namespace=\"{}\",persistentvolumeclaim=\"small\"}}", s.ns);
    let line = format!("kubelet_volume_stats_capacity_bytes{labels} {capacity}");
    assert!(metrics.contains(&line), "{line}");

    // Programs with more rights than their users, and devices, have no effect in a volume.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let (name, _) = file(s, "small");
    let line = mounts.lines().find(|l| l.contains(&name)).unwrap();
    assert!(line.contains("nosuid,nodev"), "{line}");
    s.ok(&["delete", "pod", "p"]);
    pod(s, "q", "small");
    s.ready("q");
    assert_eq!(s.sh("q", "cat /v/first"), "kept\n");
    s.ok(&["delete", "pod", "q"]);
    delete_claim(s, "small");
}

/// The statistics of the volume of a pod.
fn volume<'a>(summary: &'a Value, s: &Story, pod: &str) -> Option<&'a Value> {
    let mut pods = summary["pods"].as_array()?.iter();
    let pod = pods.find(|p| p["podRef"]["name"] == pod && p["podRef"]["namespace"] == s.ns.as_str())?;
    pod["volume"].as_array()?.first()
}

fn request(s: &Story, claim: &str, size: &str) {
    s.patch(
        &format!("persistentvolumeclaims/{claim}"),
        json!({"spec": {"resources": {"requests": {"storage": size}}}}),
    );
}

fn capacity_is(size: &str) -> impl Fn(&Value) -> bool {
    move |claim| {
        claim["status"]["capacity"]["storage"] == size
            && claim["status"]["conditions"].is_null()
            && claim["status"]["allocatedResourceStatuses"].is_null()
    }
}

/// Clauses: P02.persistent
fn claims_grow(s: &Story) {
    const CLAIM: &str = "persistentvolumeclaims/growing";
    claim(s, "growing", "local", "12Mi", json!({}));
    pod(s, "p", "growing");
    s.ready("p");
    s.sh("p", "echo kept > /v/file");
    let (name, path) = file(s, "growing");
    let before = kilobytes(s, "p");
    request(s, "growing", "48Mi");
    s.until_at(&volume_path(&name), |v| v["spec"]["capacity"]["storage"] == "48Mi");
    assert_eq!(path.metadata().unwrap().len(), 48 << 20);
    // ext4 grows while it is mounted only with CAP_SYS_RESOURCE, which containers of test machines may lack.
    let has_grown = |c: &Value| capacity_is("48Mi")(c) || condition(c, "FileSystemResizePending") == "True";
    s.until(CLAIM, has_grown);
    if !capacity_is("48Mi")(&s.get(CLAIM)) {
        s.eventually("the result", || {
            let events = s.events("growing");
            events.iter().any(|(r, _)| r == "FileSystemResizeSuccessful" || r == "VolumeResizeFailed").then_some(())
        });
        let pending = s.get(CLAIM);
        if !capacity_is("48Mi")(&pending) {
            assert_eq!(pending["status"]["allocatedResourceStatuses"]["storage"], "NodeResizePending");
            assert_eq!(pending["status"]["capacity"]["storage"], "12Mi");
        }
    }
    s.ok(&["delete", "pod", "p"]);
    pod(s, "q", "growing");
    s.ready("q");
    s.until(CLAIM, capacity_is("48Mi"));
    assert!(kilobytes(s, "q") > before + (24 << 10));
    assert_eq!(s.sh("q", "cat /v/file"), "kept\n");
    assert!(!s.events("growing").iter().any(|(r, _)| r == "VolumeResizeSuccessful"), "its file system grew, too");

    let patch = "{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"12Mi\"}}}}";
    let refused = s.fails(&["patch", "pvc", "growing", "--type=merge", "-p", patch]);
    assert!(refused.contains("field can not be less than status.capacity"), "{refused}");
    // What the disk can never hold, and back.
    request(s, "growing", "1Ei");
    assert!(s.event("growing", "VolumeResizeFailed").contains("does not fit") || s.events("growing").len() > 1);
    let infeasible = |c: &Value| c["status"]["allocatedResourceStatuses"]["storage"] == "ControllerResizeInfeasible";
    let refused = s.until(CLAIM, infeasible);
    assert_eq!(condition(&refused, "ControllerResizeError"), "True");
    assert_eq!(path.metadata().unwrap().len(), 48 << 20);
    request(s, "growing", "50Mi");
    s.until_at(&volume_path(&name), |v| v["spec"]["capacity"]["storage"] == "50Mi");
    s.ok(&["delete", "pod", "q"]);
    // Without a pod, the file system grows at once, or with the next try.
    s.until(CLAIM, |c| c["status"]["capacity"]["storage"] == "50Mi" || c["status"]["conditions"].is_array());
    pod(s, "r", "growing");
    s.ready("r");
    s.until(CLAIM, capacity_is("50Mi"));
    s.ok(&["delete", "pod", "r"]);
    request(s, "growing", "60Mi");
    s.until(CLAIM, capacity_is("60Mi"));
    delete_claim(s, "growing");
}

/// Clauses: P02.persistent
fn devices_have_the_size_of_their_claim(s: &Story) {
    claim(s, "disk", "local", "8Mi", json!({"volumeMode": "Block"}));
    let block_pod = |name: &str, path: &str, privileged: bool| {
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "disk"}}]);
        let devices = json!([{"name": "v", "devicePath": path}]);
        let spec = json!({"volumes": volumes, "terminationGracePeriodSeconds": 1});
        let security = json!({"privileged": privileged});
        s.shell_pod(name, FOREVER, spec, json!({"volumeDevices": devices, "securityContext": security}));
        s.ready(name);
    };
    block_pod("p", "/dev/disk", false);
    let (name, path) = file(s, "disk");
    assert_eq!(s.get_at(&volume_path(&name))["spec"]["volumeMode"], "Block");
    assert_eq!(devices(&path).len(), 1);
    s.sh("p", "echo written | dd of=/dev/disk bs=4096 seek=100 conv=fsync 2>/dev/null");
    let over = s.exec("p", &["sh", "-c", "dd if=/dev/zero of=/dev/disk bs=1048576 count=20"]);
    assert!(String::from_utf8_lossy(&over.stderr).contains("No space left on device"), "{over:?}");
    s.sh("p", "echo written | dd of=/dev/disk bs=4096 seek=100 conv=fsync 2>/dev/null");
    request(s, "disk", "10Mi");
    s.until("persistentvolumeclaims/disk", capacity_is("10Mi"));
    s.sh("p", "echo more | dd of=/dev/disk bs=1048576 seek=9 conv=fsync 2>/dev/null");
    s.ok(&["delete", "pod", "p"]);
    s.eventually("no loop device", || devices(&path).is_empty().then_some(()));
    // A privileged container has the host's /dev, and this device elsewhere.
    block_pod("q", "/opt/disk", true);
    let read = s.sh("q", "dd if=/opt/disk bs=4096 skip=100 count=1 2>/dev/null | head -n 1");
    assert_eq!(read, "written\n");
    s.ok(&["delete", "pod", "q"]);
    delete_claim(s, "disk");
}

/// Clauses: P02.waiting
fn claims_say_why_they_have_no_volume(s: &Story) {
    let (plain, odd) = (class(s, "plain", json!({})), class(s, "odd", json!({"type": "file", "fsType": "fat"})));
    for (name, class, size, more, why) in [
        ("huge", "local", "1Ei", json!({}), "does not fit on the disk of this node"),
        ("odd", &*odd, "1Mi", json!({}), "file system \"fat\" is not supported: only ext4 and xfs are"),
        ("block", &*plain, "1Mi", json!({"volumeMode": "Block"}), "block volumes need a StorageClass"),
    ] {
        claim(s, name, class, size, more);
        pod(s, name, name);
        let message = s.event(name, "ProvisioningFailed");
        assert!(message.contains(why), "{message}");
        s.ok(&["delete", "pod", name]);
        s.ok(&["delete", "pvc", name]);
    }
    // A directory has no limit, and grows by its number alone.
    claim(s, "directory", &plain, "1Mi", json!({}));
    pod(s, "directory", "directory");
    s.ready("directory");
    s.sh("directory", "dd if=/dev/zero of=/v/large bs=1048576 count=2 2>/dev/null");
    request(s, "directory", "2Mi");
    s.until("persistentvolumeclaims/directory", capacity_is("2Mi"));
    assert_eq!(s.event("directory", "VolumeResizeSuccessful"), "Resize volume succeeded");
    s.ok(&["delete", "pod", "directory"]);
    delete_claim(s, "directory");
    for class in [plain, odd] {
        remove_class(s, &class);
    }
}

/// Clauses: P02.persistent
fn a_claim_can_be_a_copy(s: &Story) {
    let copy_of = |source: &str| json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": source}});
    claim(s, "original", "local", "10Mi", json!({}));
    pod(s, "p", "original");
    s.ready("p");
    s.sh("p", "echo copied > /v/file");
    // While a pod uses the original, the claim says so.
    claim(s, "copy", "local", "20Mi", copy_of("original"));
    pod(s, "q", "copy");
    let message = s.event("copy", "ProvisioningFailed");
    assert!(message.contains("cannot be copied while a pod uses it"), "{message}");
    s.ok(&["delete", "pod", "p"]);
    s.ready("q");
    assert_eq!(s.sh("q", "cat /v/file"), "copied\n");
    assert!(kilobytes(s, "q") > 14 << 10);
    for (name, size, source, why) in [
        ("smaller", "5Mi", "original", "which is more"),
        ("nothing", "5Mi", "missing", "persistentvolumeclaims \"missing\" not found"),
    ] {
        claim(s, name, "local", size, copy_of(source));
        pod(s, name, name);
        let message = s.event(name, "ProvisioningFailed");
        assert!(message.contains(why), "{message}");
        s.ok(&["delete", "pod", name]);
        s.ok(&["delete", "pvc", name]);
    }
    s.ok(&["delete", "pod", "q"]);
    for name in ["original", "copy"] {
        delete_claim(s, name);
    }
}

/// Clauses: P02.waiting
fn a_damaged_file_system_is_reported(s: &Story) {
    claim(s, "damaged", "local", "8Mi", json!({}));
    pod(s, "p", "damaged");
    s.ready("p");
    let (_, path) = file(s, "damaged");
    s.ok(&["delete", "pod", "p"]);
    s.eventually("no loop device", || devices(&path).is_empty().then_some(()));
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    damaged[..64 << 10].fill(0xff);
    std::fs::write(&path, damaged).unwrap();
    pod(s, "q", "damaged");
    let message = s.event("q", "FailedMount");
    assert!(message.contains("MountVolume.MountDevice failed for volume"), "{message}");
    assert!(message.contains("fsck"), "{message}");
    std::fs::write(&path, whole).unwrap();
    s.ready("q");
    s.ok(&["delete", "pod", "q"]);
    delete_claim(s, "damaged");
}

/// Clauses: C08.claims P02.persistent
fn kills_lose_no_volume(s: &Story) {
    claim(s, "kept", "local", "12Mi", json!({}));
    claim(s, "disk", "local", "4Mi", json!({"volumeMode": "Block"}));
    // While the volumes are made.
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "kept"}},
        {"name": "d", "persistentVolumeClaim": {"claimName": "disk"}}]);
    let container = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "volumeDevices": [{"name": "d", "devicePath": "/dev/disk"}]});
    s.shell_pod("p", FOREVER, json!({"volumes": volumes, "terminationGracePeriodSeconds": 1}), container);
    s.cluster.kill();
    s.cluster.start_again();
    s.ready("p");
    let started = s.get("pods/p")["status"]["containerStatuses"][0]["containerID"].clone();
    s.sh("p", "echo kept > /v/file");
    let (_, path) = file(s, "kept");
    let (_, disk) = file(s, "disk");
    // While they grow.
    request(s, "kept", "24Mi");
    s.cluster.kill();
    assert_eq!(devices(&path).len() + devices(&disk).len(), 2, "mounts stay");
    s.cluster.start_again();
    s.until("persistentvolumeclaims/kept", |c| {
        capacity_is("24Mi")(c) || condition(c, "FileSystemResizePending") == "True"
    });
    assert_eq!(s.sh("p", "cat /v/file"), "kept\n");
    assert_eq!(s.get("pods/p")["status"]["containerStatuses"][0]["containerID"], started);
    // While they are removed.
    s.ok(&["delete", "pod", "p", "--wait=false"]);
    s.ok(&["delete", "pvc", "kept", "disk", "--wait=false"]);
    s.cluster.kill();
    s.cluster.start_again();
    for claim in ["kept", "disk"] {
        s.gone(&format!("persistentvolumeclaims/{claim}"));
    }
    s.eventually("nothing is left", || {
        let is_gone = |p: &PathBuf| !p.exists() && devices(p).is_empty();
        (is_gone(&path) && is_gone(&disk)).then_some(())
    });
}
