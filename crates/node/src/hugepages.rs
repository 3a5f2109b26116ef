//! Huge pages: how many this machine has of each size, limits of containers and pods, and the mounts of `emptyDir` volumes with the
//! medium `HugePages` (upstream `kuberuntime_container_linux.go`, `volume/emptydir`).
//!
//! **Invariant.** A container has only the huge pages that it requests: sizes that it does not request are limited to nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use k8s_openapi::api::core::v1::{Pod, PodSpec, ResourceRequirements};
use meta::Quantity;

use crate::resources::{Side, total};

/// Where the kernel shows the huge pages of the machine.
pub const DIRECTORY: &str = "/sys/kernel/mm/hugepages";
const PREFIX: &str = "hugepages-";
/// The medium of a volume with the only size that the pod requests.
const MEDIUM: &str = "HugePages";

/// Bytes in huge pages by name of the resource (`hugepages-2Mi`), from a directory of the kernel. A kernel without them has none.
pub fn read(directory: &Path) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let kib: Option<u64> = name.strip_prefix(PREFIX).and_then(|n| n.strip_suffix("kB")?.parse().ok());
        let count = std::fs::read_to_string(entry.path().join("nr_hugepages")).ok();
        let count = count.and_then(|n| n.trim().parse::<u64>().ok());
        if let (Some(bytes), Some(count)) = (kib.and_then(|n| n.checked_mul(1024)), count) {
            out.insert(format!("{PREFIX}{}", binary(bytes)), bytes.saturating_mul(count));
        }
    }
    out
}

/// An amount as Kubernetes writes it (`2Mi`).
pub fn binary(bytes: u64) -> Quantity {
    Quantity::binary(i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// The size of a page in bytes, from the name of the resource.
fn size(resource: &str) -> Option<i64> {
    let size = Quantity::parse(resource.strip_prefix(PREFIX)?).ok()?.value();
    (size > 0).then_some(size)
}

/// A size as the kernel and container runtimes write it (`2MB`).
fn kernel_size(bytes: i64) -> String {
    match bytes {
        b if b % (1 << 30) == 0 => format!("{}GB", b >> 30),
        b if b % (1 << 20) == 0 => format!("{}MB", b >> 20),
        b => format!("{}KB", b >> 10),
    }
}

/// The sizes of huge pages that the machine knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageSizes(BTreeSet<i64>);

impl PageSizes {
    /// From the names of the node's resources.
    pub fn new<'a>(resources: impl IntoIterator<Item = &'a String>) -> Self {
        Self(resources.into_iter().filter_map(|name| size(name)).collect())
    }

    /// Limits by size, with none of the sizes that are not requested.
    fn limits(&self, requested: BTreeMap<i64, i64>) -> BTreeMap<String, u64> {
        let none = self.0.iter().map(|size| (*size, 0));
        let all: BTreeMap<i64, i64> = none.chain(requested).collect();
        all.into_iter().map(|(size, limit)| (kernel_size(size), u64::try_from(limit).unwrap_or(0))).collect()
    }

    /// The limits of a container: its own, or those of the pod as a whole.
    pub fn of_container(&self, spec: &PodSpec, container: Option<&ResourceRequirements>) -> BTreeMap<String, u64> {
        let mut requested = BTreeMap::new();
        for resources in [spec.resources.as_ref(), container].into_iter().flatten() {
            let limits = resources.limits.iter().flatten();
            requested.extend(limits.filter_map(|(name, q)| Some((size(name)?, Quantity::parse(&q.0).ok()?.value()))));
        }
        self.limits(requested)
    }

    /// The limits of a pod: its own, or the sum of its containers (or its largest init container, if that is more).
    pub fn of_pod(&self, spec: &PodSpec) -> BTreeMap<String, u64> {
        let request = |name: &String| Some((size(name)?, total(spec, Side::Requests, name, Quantity::value)?));
        self.limits(requested_names(spec).iter().filter_map(request).collect())
    }
}

/// The names of the huge pages that a pod or its containers request.
fn requested_names(spec: &PodSpec) -> BTreeSet<String> {
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let all = containers.map(|c| c.resources.as_ref()).chain([spec.resources.as_ref()]).flatten();
    // A missing request equals the limit.
    let names = all.flat_map(|r| r.requests.iter().chain(&r.limits)).flat_map(BTreeMap::keys);
    names.filter(|name| size(name).is_some()).cloned().collect()
}

/// Whether a medium of an `emptyDir` volume is huge pages.
pub fn is_medium(medium: &str) -> bool {
    medium == MEDIUM || medium.starts_with("HugePages-")
}

/// The option of the mount of a volume with such a medium. Errors with upstream's texts unless the pod requests pages of its size.
pub fn mount_option(medium: &str, pod: &Pod) -> Result<String, String> {
    let wanted = match medium.strip_prefix("HugePages-") {
        None => None,
        Some(size) => {
            Some(Quantity::parse(size).map_err(|e| format!("medium {medium}: {e}"))?.value()).filter(|s| *s > 0)
        }
    };
    let sizes: BTreeSet<i64> = pod.spec.iter().flat_map(requested_names).filter_map(|name| size(&name)).collect();
    let found = match (medium == MEDIUM, sizes.len()) {
        (true, 2..) => {
            return Err(format!("medium: {medium} can't be used if container requests multiple huge page sizes"));
        }
        (true, _) => sizes.first().copied(),
        (false, _) => wanted.filter(|size| sizes.contains(size)),
    };
    let found = found.and_then(|size| u64::try_from(size).ok()).ok_or_else(|| {
        format!("medium {medium}: hugePages storage requested, but there is no resource request for huge pages")
    })?;
    Ok(format!("pagesize={}", binary(found)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn the_kernels_directories_become_resources() {
        let directory = tempfile::tempdir().unwrap();
        for (name, count) in [("hugepages-2048kB", "3\n"), ("hugepages-1048576kB", "2\n"), ("hugepages-64kB", "0\n")] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
            std::fs::write(directory.path().join(name).join("nr_hugepages"), count).unwrap();
        }
        for name in ["hugepages-XkB", "other"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        let read = read(directory.path());
        let expected = [("hugepages-1Gi", 2 << 30), ("hugepages-2Mi", 6 << 20), ("hugepages-64Ki", 0)];
        assert_eq!(read, expected.map(|(name, bytes)| (name.to_owned(), bytes)).into());
        assert_eq!(binary(2 << 30).to_string(), "2Gi");
        assert!(super::read(Path::new("/nonexistent")).is_empty());
    }

    fn spec(value: Value) -> PodSpec {
        serde_json::from_value(value).unwrap()
    }

    fn container(name: &str, pages: Value) -> Value {
        json!({"name": name, "resources": {"limits": pages, "requests": pages}})
    }

    fn sizes() -> PageSizes {
        PageSizes::new(&["hugepages-2Mi".to_owned(), "hugepages-1Gi".to_owned(), "cpu".to_owned()])
    }

    fn limits(all: BTreeMap<String, u64>) -> Vec<String> {
        all.into_iter().map(|(size, limit)| format!("{size}={}", binary(limit))).collect()
    }

    #[test]
    fn containers_and_pods_have_the_pages_that_they_request() {
        let mut sidecar = container("side", json!({"hugepages-2Mi": "4Mi"}));
        sidecar["restartPolicy"] = "Always".into();
        let s = spec(json!({
            "initContainers": [container("init", json!({"hugepages-1Gi": "1Gi", "hugepages-2Mi": "2Mi"})), sidecar],
            "containers": [container("a", json!({"hugepages-2Mi": "8Mi"})), container("b", json!({"hugepages-2Mi": "2Mi"})),
                {"name": "c"}]}));
        let of = |c: usize| limits(sizes().of_container(&s, s.containers[c].resources.as_ref()));
        assert_eq!(of(0), ["1GB=0", "2MB=8Mi"]);
        assert_eq!(of(2), ["1GB=0", "2MB=0"]);
        assert_eq!(limits(sizes().of_pod(&s)), ["1GB=1Gi", "2MB=14Mi"]);
        // Those of the pod are for containers without their own.
        let mut whole = s.clone();
        whole.resources = Some(
            serde_json::from_value(json!({"limits": {"hugepages-2Mi": "32Mi"}, "requests": {"hugepages-2Mi": "32Mi"}}))
                .unwrap(),
        );
        let of = |c: usize| limits(sizes().of_container(&whole, whole.containers[c].resources.as_ref()));
        assert_eq!((of(0), of(2)), (vec!["1GB=0".into(), "2MB=8Mi".into()], vec!["1GB=0".into(), "2MB=32Mi".into()]));
        assert_eq!(limits(sizes().of_pod(&whole)), ["1GB=1Gi", "2MB=32Mi"]);
        assert_eq!(limits(PageSizes::default().of_pod(&spec(json!({"containers": [{"name": "c"}]})))), [""; 0]);
    }

    #[test]
    fn volumes_have_pages_of_the_requested_size() {
        let pod = |pages: &[Value]| -> Pod {
            let all: Vec<Value> = pages.iter().map(|p| container("c", p.clone())).collect();
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": all}})).unwrap()
        };
        let (small, large) = (json!({"hugepages-2Mi": "2Mi"}), json!({"hugepages-1Gi": "1Gi"}));
        let none = |medium: &str| {
            Err(format!(
                "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
            ))
        };
        for (medium, pages, expected) in [
            ("HugePages", vec![small.clone()], Ok("pagesize=2Mi".to_owned())),
            ("HugePages-2Mi", vec![small.clone(), large.clone()], Ok("pagesize=2Mi".to_owned())),
            ("HugePages-1Gi", vec![small.clone(), large.clone()], Ok("pagesize=1Gi".to_owned())),
            ("HugePages-2048Ki", vec![small.clone()], Ok("pagesize=2Mi".to_owned())),
            (
                "HugePages",
                vec![small.clone(), large],
                Err("medium: HugePages can't be used if container requests multiple huge page sizes".to_owned()),
            ),
            ("HugePages-1Gi", vec![small.clone()], none("HugePages-1Gi")),
            ("HugePages", vec![json!({"cpu": "1"})], none("HugePages")),
            ("HugePages-0", vec![small], none("HugePages-0")),
        ] {
            assert_eq!(mount_option(medium, &pod(&pages)), expected, "{medium}");
        }
        assert!(mount_option("HugePages-many", &pod(&[])).is_err());
        assert!(
            is_medium("HugePages") && is_medium("HugePages-2Mi") && !is_medium("Memory") && !is_medium("HugePages2Mi")
        );
    }
}
