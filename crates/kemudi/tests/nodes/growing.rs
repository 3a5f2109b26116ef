//! Volumes of claims that grow while a pod writes to them. Also run in a virtual machine (`scripts/virtual`), since this machine may lack what
//! ext4 needs.

use crate::machine::Machine;
use serde_json::json;
use std::fs;
use std::process::Command;

/// Whether this machine lets a mounted ext4 grow.
fn grows_ext4() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let bits = status.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(bits.trim(), 16).unwrap() & 1 << 24 != 0
}

/// Writes a block a round, and says when one was not written.
const WRITER: &str = "i=0; while :; do i=$((i+1)); /tools/busybox dd if=/dev/zero of=/v/rounds bs=4096 count=1 seek=$((i%64)) conv=notrunc,fsync 2>/dev/null \
                      || echo lost >> /tools/lost; echo $i > /v/count; done";

fn create(m: &Machine, kind: &str, size: &str) {
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": kind},
        "provisioner": "kemudi.local/directory", "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true,
        "parameters": {"type": "file", "fsType": kind}});
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": kind},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": kind, "resources": {"requests": {"storage": size}}}});
    let tools = m.directory.path().join("tools");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": kind}, "spec": {
        "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "tools", "hostPath": {"path": tools}}, {"name": "v", "persistentVolumeClaim": {"claimName": kind}}],
        "containers": [{"name": "c", "image": "kemudi.local/demo:latest", "command": ["/tools/busybox", "sh", "-c", WRITER],
            "volumeMounts": [{"name": "tools", "mountPath": "/tools"}, {"name": "v", "mountPath": "/v"}]}]}});
    m.apply(&json!({"apiVersion": "v1", "kind": "List", "items": [class, claim, pod]}).to_string());
}

fn sh(m: &Machine, pod: &str, script: &str) -> String {
    m.ok(&["exec", pod, "--", "/tools/busybox", "sh", "-c", script])
}

/// Clauses: P02.persistent
#[test]
fn volumes_grow_while_pods_write() {
    let mut kinds = Vec::new();
    if grows_ext4() {
        kinds.push(("ext4", "32Mi", 32 << 20, "96Mi", 96 << 20));
    } else {
        println!("ext4 is left out: CAP_SYS_RESOURCE is missing here");
    }
    if ["mkfs.xfs", "xfs_growfs"].iter().all(|name| Command::new(name).arg("-V").output().is_ok()) {
        kinds.push(("xfs", "300Mi", 300 << 20, "420Mi", 420 << 20));
    } else {
        println!("xfs is left out: xfsprogs is not on this machine");
    }
    let mut m = Machine::new("grow");
    fs::create_dir(m.directory.path().join("tools")).unwrap();
    fs::copy("/bin/busybox", m.directory.path().join("tools/busybox")).unwrap();
    m.start(&["up", "--node-name", "n"]);
    m.ready(&["n"]);
    for (kind, small, from, large, to) in kinds {
        create(&m, kind, small);
        m.eventually(&format!("{kind} is written to"), || {
            m.kubectl(&["exec", kind, "--", "/tools/busybox", "cat", "/v/count"]).ok()
        });
        // Kilobytes of the file system.
        let size =
            || sh(&m, kind, "/tools/busybox df -k /v | /tools/busybox tail -n 1 | /tools/busybox awk '{print $2}'");
        let size = || size().trim().parse::<u64>().unwrap();
        let before = size();
        assert!(before << 10 <= from, "{kind}: {before}");
        let pod = m.json(&["pod", kind]);
        let patch = json!({"spec": {"resources": {"requests": {"storage": large}}}}).to_string();
        m.ok(&["patch", "pvc", kind, "-p", &patch]);
        m.eventually(&format!("{kind} has grown"), || {
            let claim = m.json(&["pvc", kind]);
            let status = &claim["status"];
            (status["capacity"]["storage"] == large && status["conditions"].is_null()).then_some(())
        });
        m.event(kind, "FileSystemResizeSuccessful", "");
        let after = size();
        assert!(after << 10 > from && after << 10 <= to && after - before > 40 << 10, "{kind}: {before} to {after}");
        // More than it had room for, while the same program writes on.
        let count = || sh(&m, kind, "/tools/busybox cat /v/count");
        let rounds = count();
        let more = (from >> 20) + 8;
        sh(
            &m,
            kind,
            &format!("/tools/busybox dd if=/dev/zero of=/v/more bs=1048576 count={more} && /tools/busybox sync"),
        );
        m.eventually(&format!("{kind} is still written to"), || (count() != rounds).then_some(()));
        let now = m.json(&["pod", kind]);
        assert_eq!(now["status"]["containerStatuses"], pod["status"]["containerStatuses"], "the container runs on");
        assert!(!m.directory.path().join("tools/lost").exists(), "{kind} refused a write");
        m.ok(&["delete", "pod,pvc", kind]);
    }
    m.purge();
    assert_eq!(m.left(), [""; 0]);
}
