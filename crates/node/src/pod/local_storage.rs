//! Limits of local storage: of `emptyDir` volumes on disk, of a pod, and of its containers (upstream `eviction_manager.go`,
//! `localStorageEviction`). Pure: what a pod uses is measured by its worker.

use crate::resources::is_sidecar;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use meta::Quantity;
use std::collections::BTreeMap;

const RESOURCE: &str = "ephemeral-storage";

/// What a container uses.
#[derive(Clone, Copy, Debug, Default)]
pub struct ContainerStorage {
    /// Bytes and inodes of its writable layer.
    pub layer: (u64, u64),
    /// Bytes of its log.
    pub log: u64,
}

impl ContainerStorage {
    fn bytes(self) -> u64 {
        self.layer.0.saturating_add(self.log)
    }
}

/// What a pod uses.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Bytes and inodes by name of the `emptyDir` volume on disk.
    pub volumes: BTreeMap<String, (u64, u64)>,
    /// By name of the container.
    pub containers: BTreeMap<String, ContainerStorage>,
}

/// The limits of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    volumes: Vec<(String, Quantity)>,
    pod: Option<Quantity>,
    containers: Vec<(String, Quantity)>,
}

fn limit(container: &Container) -> Option<Quantity> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    Quantity::parse(&limits.get(RESOURCE)?.0).ok().filter(|q| !q.is_zero())
}

impl Limits {
    /// The limits of a specification; none if nothing is limited.
    pub fn of(spec: &PodSpec) -> Option<Self> {
        let volumes = spec.volumes.iter().flatten().filter_map(|v| {
            let empty = v.empty_dir.as_ref().filter(|e| e.medium.as_deref().unwrap_or_default().is_empty())?;
            let size = Quantity::parse(&empty.size_limit.as_ref()?.0).ok().filter(|q| !q.is_zero())?;
            Some((v.name.clone(), size))
        });
        let init = || spec.init_containers.iter().flatten();
        let all = spec.containers.iter().chain(init());
        let limits = Self {
            volumes: volumes.collect(),
            pod: pod_limit(&spec.containers, init()),
            containers: all.filter_map(|c| Some((c.name.clone(), limit(c)?))).collect(),
        };
        (limits != Self::default()).then_some(limits)
    }

    /// The signal (of metrics) and the message of an eviction; none if no limit is exceeded.
    pub fn exceeded(&self, usage: &Usage) -> Option<(&'static str, String)> {
        let is_over = |used: u64, limit: &Quantity| i128::from(used) * 1_000_000_000 > limit.nano_value();
        let volume = |name: &str| usage.volumes.get(name).map_or(0, |v| v.0);
        let container = |name: &str| usage.containers.get(name).map_or(0, |c| c.bytes());
        if let Some((name, size)) = self.volumes.iter().find(|(name, size)| is_over(volume(name), size)) {
            let message = format!("Usage of EmptyDir volume \"{name}\" exceeds the limit \"{size}\". ");
            return Some(("emptydirfs.limit", message));
        }
        let all = usage.volumes.values().map(|v| v.0).chain(usage.containers.values().map(|c| c.bytes()));
        let total = all.fold(0, u64::saturating_add);
        if let Some(limit) = self.pod.as_ref().filter(|limit| is_over(total, limit)) {
            let message = format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ");
            return Some(("ephemeralpodfs.limit", message));
        }
        let over = self.containers.iter().find(|(name, limit)| is_over(container(name), limit));
        over.map(|(name, limit)| {
            let message = format!("Container {name} exceeded its local ephemeral storage limit \"{limit}\". ");
            ("ephemeralcontainerfs.limit", message)
        })
    }
}

/// The limit of all containers together: of application containers and sidecars the sum, or that of an init container while it runs.
fn pod_limit<'a>(containers: &[Container], init: impl Iterator<Item = &'a Container>) -> Option<Quantity> {
    let sum = |a: Option<Quantity>, b: Option<Quantity>| match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    };
    let larger = |a: Option<Quantity>, b: Option<Quantity>| match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    };
    let (mut sidecars, mut starting) = (None, None);
    for container in init {
        let own = limit(container);
        match is_sidecar(container) {
            true => {
                sidecars = sum(sidecars, own);
                starting = larger(starting, sidecars);
            }
            false => starting = larger(starting, sum(sidecars, own)),
        }
    }
    larger(containers.iter().map(limit).fold(sidecars, sum), starting)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn exceeded(spec: Value, volumes: &[(&str, u64)], containers: &[(&str, u64)]) -> Option<String> {
        let container = |log| ContainerStorage { layer: (0, 0), log };
        let usage = Usage {
            volumes: volumes.iter().map(|(n, u)| ((*n).to_owned(), (*u, 1))).collect(),
            containers: containers.iter().map(|(n, u)| ((*n).to_owned(), container(*u))).collect(),
        };
        let exceeded = Limits::of(&serde_json::from_value(spec).unwrap())?.exceeded(&usage);
        exceeded.map(|(_, message)| message)
    }

    fn container(name: &str, limit: &str) -> Value {
        json!({"name": name, "resources": {"limits": {"ephemeral-storage": limit}}})
    }

    #[test]
    fn limits_are_checked_in_upstreams_order() {
        let volume = json!({"name": "v", "emptyDir": {"sizeLimit": "10Mi"}});
        let spec = json!({"volumes": [volume, {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1"}}],
            "containers": [container("a", "4Mi"), container("b", "4Mi"), {"name": "c"}]});
        let mib = |n: u64| n << 20;
        let check = |v: u64, a: u64, c: u64| exceeded(spec.clone(), &[("v", mib(v))], &[("a", mib(a)), ("c", mib(c))]);
        assert_eq!(check(1, 4, 3), None);
        let volume = "Usage of EmptyDir volume \"v\" exceeds the limit \"10Mi\". ";
        assert_eq!(check(11, 9, 0).as_deref(), Some(volume));
        let pod = "Pod ephemeral local storage usage exceeds the total limit of containers 8Mi. ";
        assert_eq!(check(5, 0, 4).as_deref(), Some(pod));
        let container = "Container a exceeded its local ephemeral storage limit \"4Mi\". ";
        assert_eq!(check(0, 5, 0).as_deref(), Some(container));
    }

    #[test]
    fn pods_without_limits_are_not_measured() {
        let limits = |spec: Value| Limits::of(&serde_json::from_value(spec).unwrap());
        assert_eq!(limits(json!({"containers": [{"name": "a"}], "volumes": [{"name": "v", "emptyDir": {}}]})), None);
        assert_eq!(limits(json!({"containers": [container("a", "0")]})), None);
        let mut sidecar = container("s", "2Gi");
        sidecar["restartPolicy"] = "Always".into();
        let spec = json!({"initContainers": [sidecar, container("i", "5Gi")], "containers": [container("a", "1Gi")]});
        assert_eq!(limits(spec).unwrap().pod.unwrap().to_string(), "7Gi");
    }
}
