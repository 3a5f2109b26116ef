//! Huge pages of containers, from a few that the machine reserves for this test.

use crate::machine::Machine;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const RESERVED: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const UNLIMITED: &str = "max";

/// Huge pages of 2 MiB, until this value is dropped.
struct Pages {
    before: u64,
}

impl Pages {
    /// `None` if the kernel has none, or not as many.
    fn reserve(count: u64) -> Option<Self> {
        let read = || fs::read_to_string(RESERVED).ok()?.trim().parse::<u64>().ok();
        let pages = Self { before: read()? };
        fs::write(RESERVED, (pages.before + count).to_string()).ok()?;
        (read()? == pages.before + count).then_some(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = fs::write(RESERVED, self.before.to_string());
    }
}

fn resources(pages: &str) -> Value {
    let all = json!({"cpu": "50m", "memory": "32Mi", "hugepages-2Mi": pages});
    json!({"limits": all, "requests": all})
}

fn pod(m: &Machine, name: &str, medium: Option<&str>, container: Value, whole: Value) {
    let tools = m.directory.path().join("tools");
    let mut spec = json!({
        "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "tools", "hostPath": {"path": tools}}],
        "containers": [{"name": "c", "image": "kemudi.local/demo:latest", "resources": container,
            "command": ["/tools/busybox", "sh", "-c", "while :; do /tools/busybox sleep 1000; done"],
            "volumeMounts": [{"name": "tools", "mountPath": "/tools"}]}],
    });
    if let Some(medium) = medium {
        spec["volumes"].as_array_mut().unwrap().push(json!({"name": "huge", "emptyDir": {"medium": medium}}));
        let mounts = spec["containers"][0]["volumeMounts"].as_array_mut().unwrap();
        mounts.push(json!({"name": "huge", "mountPath": "/huge"}));
        spec["containers"][0]["securityContext"] = json!({"runAsUser": 1000});
    }
    if !whole.is_null() {
        spec["resources"] = whole;
    }
    m.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string());
}

fn runs(m: &Machine, name: &str) -> String {
    m.eventually(&format!("{name} runs"), || {
        let pod = m.json(&["pod", name]);
        (pod["status"]["phase"] == "Running").then(|| pod["metadata"]["uid"].as_str().unwrap().to_owned())
    })
}

fn sh(m: &Machine, pod: &str, script: &str) -> String {
    m.ok(&["exec", pod, "--", "/tools/busybox", "sh", "-c", script])
}

/// The limits of a pod's control group and of those below it, where there are any.
fn limits(uid: &str) -> Vec<String> {
    fn walk(directory: &Path, uid: &str, found: &mut Vec<PathBuf>) {
        for e in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = e.path();
            if e.file_type().is_ok_and(|t| t.is_dir()) {
                walk(&path, uid, found);
            } else if path.to_string_lossy().contains(uid)
                && ["hugetlb.2MB.max", "hugetlb.2MB.limit_in_bytes"].iter().any(|f| path.ends_with(f))
            {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), uid, &mut found);
    found.iter().map(|path| fs::read_to_string(path).unwrap().trim().to_owned()).collect()
}

/// Maps pages: all that it has, then one more, then one more without a reservation.
const MAPPER: &str = "import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def pages(n, flags):
 a = libc.mmap(None, n << 21, 3, flags, -1, 0)
 print('refused' if a == 2**64 - 1 else 'mapped', flush=True)
 return a
ctypes.memset(pages(2, 0x40022), 1, 2 << 21)
pages(1, 0x40022)
ctypes.memset(pages(1, 0x44022), 1, 1 << 21)
print('not limited', flush=True)
";

/// A program that reserves more than its limit gets an error; one that uses more gets SIGBUS.
fn beyond_its_limit(m: &Machine, has_limits: bool) {
    let python = "/usr/bin/python3";
    if !has_limits || !Path::new(python).exists() {
        return eprintln!("the limit of mappings is not tried: it takes {python} and control groups of huge pages");
    }
    let tools = m.directory.path().join("tools");
    let spec = json!({
        "restartPolicy": "Never",
        "volumes": [{"name": "tools", "hostPath": {"path": tools}}, {"name": "host", "hostPath": {"path": "/"}}],
        "containers": [{"name": "c", "image": "kemudi.local/demo:latest", "resources": {"limits": {"memory": "64Mi", "hugepages-2Mi": "4Mi"}},
            "command": ["/tools/busybox", "chroot", "/host", python, "-c", MAPPER],
            "volumeMounts": [{"name": "tools", "mountPath": "/tools"}, {"name": "host", "mountPath": "/host", "readOnly": true}]}],
    });
    m.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mapper"}, "spec": spec}).to_string());
    let pod = m.eventually("the mapper ends", || {
        let pod = m.json(&["pod", "mapper"]);
        ["Failed", "Succeeded"].iter().any(|p| pod["status"]["phase"] == *p).then_some(pod)
    });
    assert_eq!(m.ok(&["logs", "mapper"]), "mapped\nrefused\nmapped\n");
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(135), &json!("Error")), "SIGBUS: {ended}");
    m.ok(&["delete", "pod", "mapper"]);
}

/// Clauses: R01.hugepages R03.hugepages
#[test]
fn containers_have_the_huge_pages_that_they_request() {
    let _memory = crate::MEMORY.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut m = Machine::new("huge");
    let Some(pages) = Pages::reserve(8) else {
        return eprintln!("this machine reserves no huge pages");
    };
    let all = format!("{}Mi", (pages.before + 8) * 2);
    m.held = Some(Box::new(pages));
    fs::create_dir(m.directory.path().join("tools")).unwrap();
    fs::copy("/bin/busybox", m.directory.path().join("tools/busybox")).unwrap();
    m.start(&["up", "--node-name", "n"]);
    m.ready(&["n"]);
    let node = m.json(&["node", "n"]);
    for amounts in ["capacity", "allocatable"] {
        assert_eq!(node["status"][amounts]["hugepages-2Mi"], all, "{amounts}");
    }
    // A volume of them, which a user may write to, and a limit below what the machine has.
    pod(&m, "huge", Some("HugePages-2Mi"), resources("8Mi"), Value::Null);
    let huge = runs(&m, "huge");
    let mount = sh(&m, "huge", "/tools/busybox grep ' /huge ' /proc/mounts");
    assert!(mount.contains("hugetlbfs") && mount.contains("pagesize=2M"), "{mount}");
    let has_limits = !limits(&huge).is_empty();
    assert!(limits(&huge).iter().all(|l| l == &(8 << 20).to_string()), "{:?}", limits(&huge));
    assert_eq!(sh(&m, "huge", "/tools/busybox fallocate -l 8M /huge/all && echo taken"), "taken\n");
    if has_limits {
        let more = sh(&m, "huge", "/tools/busybox fallocate -l 2M /huge/more || echo refused");
        assert!(more.ends_with("refused\n"), "{more}");
    }
    beyond_its_limit(&m, has_limits);
    // Others have none, even without a limit of anything else.
    pod(&m, "plain", None, json!({}), Value::Null);
    let plain = runs(&m, "plain");
    assert!(limits(&plain).iter().all(|l| l == "0"), "{:?}", limits(&plain));
    assert_eq!(limits(&plain).is_empty(), !has_limits);
    // Those of a pod as a whole.
    pod(&m, "whole", Some("HugePages"), json!({}), resources("4Mi"));
    let whole = runs(&m, "whole");
    assert!(limits(&whole).iter().all(|l| l == &(4 << 20).to_string()), "{:?}", limits(&whole));
    assert_eq!(sh(&m, "whole", "/tools/busybox fallocate -l 4M /huge/all && echo taken"), "taken\n");
    // A volume of a size that nobody requests, and more than is left.
    pod(&m, "wrong", Some("HugePages-1Gi"), resources("2Mi"), Value::Null);
    let message = m.event("wrong", "FailedMount", "HugePages-1Gi");
    assert!(
        message.ends_with(
            "medium HugePages-1Gi: hugePages storage requested, but there is no resource request for huge pages"
        ),
        "{message}"
    );
    pod(&m, "large", None, resources(&all), Value::Null);
    m.event("large", "FailedScheduling", "1 Insufficient hugepages-2Mi");
    // What a pod had is there for others.
    m.ok(&["delete", "pod", "huge", "plain", "whole", "wrong"]);
    let large = runs(&m, "large");
    assert!(limits(&large).iter().all(|l| l != "0" && l != UNLIMITED), "{:?}", limits(&large));
    m.purge();
    assert_eq!(limits(&large), [""; 0]);
}
