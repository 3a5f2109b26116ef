//! PersistentVolumes of the type `local` that are block devices with a file system.

use crate::claims::volume_path;
use crate::runner::Case;
use crate::story::Story;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

pub const TESTS: &[Case] = &[
    ("local_volumes::pods_share_a_block_device", pods_share_a_block_device),
    ("local_volumes::devices_that_cannot_be_mounted_are_reported", devices_that_cannot_be_mounted_are_reported),
];

pub const ALONE: &[Case] = &[("local_volumes::kills_leave_no_device_mounted", kills_leave_no_device_mounted)];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// A loop device, which is detached with this value.
struct Device(String);

impl Device {
    fn new(s: &Story, name: &str) -> Self {
        let file = s.dir.join(name);
        std::fs::create_dir_all(&s.dir).unwrap();
        std::fs::File::create(&file).unwrap().set_len(16 << 20).unwrap();
        let made = Command::new("/sbin/losetup").args(["--find", "--show"]).arg(&file).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        Self(String::from_utf8(made.stdout).unwrap().trim().to_owned())
    }

    /// Where it is mounted on the machine.
    fn mounts(&self) -> Vec<PathBuf> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let lines = table.lines().map(|l| l.split(' ').collect::<Vec<_>>());
        let of = |l: &Vec<&str>| l.iter().skip_while(|f| **f != "-").nth(2) == Some(&self.0.as_str());
        lines.filter(of).map(|l| l[4].into()).collect()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = Command::new("/sbin/losetup").args(["-d", &self.0]).status();
    }
}

/// A volume of this node, and a claim that is bound to it.
fn volume(s: &Story, name: &str, local: Value, more: Value) {
    let node = s.get_at("/api/v1/nodes")["items"][0]["metadata"]["name"].clone();
    let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
    let mut spec = json!({"capacity": {"storage": "16Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "claimRef": {"namespace": s.ns, "name": name}, "local": local,
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    s.post("/api/v1/persistentvolumes", json!({"metadata": {"name": pv(s, name)}, "spec": spec}));
    let request = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": pv(s, name),
        "resources": {"requests": {"storage": "16Mi"}}});
    s.create("persistentvolumeclaims", json!({"metadata": {"name": name}, "spec": request}));
    s.until(&format!("persistentvolumeclaims/{name}"), |c| c["status"]["phase"] == "Bound");
}

fn pv(s: &Story, name: &str) -> String {
    format!("{}-{name}", s.ns)
}

fn pod(s: &Story, name: &str, claim: &str, is_read_only: bool, group: u32) {
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim, "readOnly": is_read_only}}]);
    let spec = json!({"volumes": volumes, "terminationGracePeriodSeconds": 1, "securityContext": {"fsGroup": group}});
    s.shell_pod(name, FOREVER, spec, json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
}

fn remove(s: &Story, claims: &[&str]) {
    for claim in claims {
        s.ok(&["delete", "pvc", claim]);
        s.ok(&["delete", "pv", &pv(s, claim)]);
        s.until_at(&volume_path(&pv(s, claim)), Value::is_null);
    }
}

/// Clauses: P02.persistent
fn pods_share_a_block_device(s: &Story) {
    let device = Device::new(s, "disk");
    volume(s, "disk", json!({"path": device.0}), json!({"mountOptions": ["noexec"]}));
    pod(s, "reader", "disk", true, 1000);
    let why = format!("cannot mount unformatted disk {} as we are manipulating it in read-only mode", device.0);
    let message = s.event("reader", "FailedMount");
    assert!(message.starts_with("MountVolume.MountDevice failed for volume") && message.contains(&why), "{message}");
    pod(s, "a", "disk", false, 1000);
    s.ready("a");
    assert_eq!(
        s.sh("a", "stat -c %g /v; echo kept > /v/file; stat -f -c %T /v; stat -c %g /v/file"),
        "1000\next2/ext3\n1000\n"
    );
    s.ready("reader");
    assert_eq!(s.sh("reader", "cat /v/file; touch /v/x 2> /dev/null || echo locked"), "kept\nlocked\n");
    pod(s, "b", "disk", false, 2000);
    s.ready("b");
    let message = s.event("b", "AlreadyMountedVolume");
    let name = pv(s, "disk");
    assert_eq!(
        message,
        format!("The requested fsGroup is 2000, but the volume {name} has GID 1000. The volume may not be shareable.")
    );
    assert_eq!(s.sh("b", "stat -c %g /v/file"), "1000\n", "the files stay with the group of the first pod");
    let global = Path::new("plugins/kubernetes.io/local-volume/mounts").join(&name);
    let mounts = device.mounts();
    assert!(mounts.len() == 4 && mounts.iter().any(|m| m.ends_with(&global)), "{mounts:?}");
    s.ok(&["delete", "pod", "a", "reader"]);
    assert_eq!(s.sh("b", "cat /v/file"), "kept\n");
    s.ok(&["delete", "pod", "b"]);
    s.eventually("nothing is mounted", || device.mounts().is_empty().then_some(()));
    pod(s, "c", "disk", false, 2000);
    s.ready("c");
    assert_eq!(s.sh("c", "cat /v/file; stat -c %g /v/file"), "kept\n2000\n", "it is not formatted again");
    s.ok(&["delete", "pod", "c"]);
    remove(s, &["disk"]);
}

/// Clauses: P02.waiting
fn devices_that_cannot_be_mounted_are_reported(s: &Story) {
    let device = Device::new(s, "other");
    assert!(Command::new("/sbin/mkfs.ext4").args(["-q", &device.0]).status().unwrap().success());
    let file = s.dir.join("file");
    std::fs::write(&file, "").unwrap();
    let gone = s.dir.join("gone");
    for (name, local, expected) in [
        (
            "other",
            json!({"path": device.0, "fsType": "xfs"}),
            "(fstype: xfs), error mount failed: exit status: 32".to_owned(),
        ),
        ("file", json!({"path": file}), "MountVolume.NewMounter initialization failed".to_owned()),
        ("gone", json!({"path": gone}), format!("path {gone:?} does not exist")),
    ] {
        volume(s, name, local, json!({}));
        pod(s, name, name, false, 1000);
        let message = s.event(name, "FailedMount");
        assert!(message.contains(&expected), "{message}");
        s.ok(&["delete", "pod", name]);
        remove(s, &[name]);
    }
    assert!(device.mounts().is_empty());
}

/// Clauses: P02.persistent
fn kills_leave_no_device_mounted(s: &Story) {
    let device = Device::new(s, "disk");
    volume(s, "disk", json!({"path": device.0}), json!({}));
    // While it is formatted and mounted.
    pod(s, "p", "disk", false, 1000);
    s.cluster.kill();
    s.cluster.start_again();
    s.ready("p");
    s.sh("p", "echo kept > /v/file");
    s.cluster.kill();
    assert_eq!(device.mounts().len(), 2, "mounts stay");
    s.cluster.start_again();
    assert_eq!(s.sh("p", "cat /v/file"), "kept\n");
    // While it is unmounted.
    s.ok(&["delete", "pod", "p", "--wait=false"]);
    s.cluster.kill();
    s.cluster.start_again();
    s.gone("pods/p");
    s.eventually("nothing is mounted", || device.mounts().is_empty().then_some(()));
    remove(s, &["disk"]);
}
