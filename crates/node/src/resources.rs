//! Cgroup settings, quality of service and out-of-memory score from requests and limits.
//!
//! Follows kubelet's `pkg/kubelet/cm` and `qos`: CPU shares are 1024 per core and at least 2, the quota is per 100 ms and at
//! least 1 ms. Left out: swap.

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use meta::Quantity;
use runtime::Resources;

const PERIOD: u64 = 100_000;
const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 262_144;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Qos {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }

    /// The pod's cgroup below the runtime's prefix.
    pub fn cgroup(self, uid: &str) -> String {
        match self {
            Self::Guaranteed => format!("kubepods/pod{uid}"),
            Self::Burstable => format!("kubepods/burstable/pod{uid}"),
            Self::BestEffort => format!("kubepods/besteffort/pod{uid}"),
        }
    }
}

/// A side of resource requirements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Requests,
    Limits,
}

fn amount(r: Option<&ResourceRequirements>, side: Side, name: &str) -> Option<Quantity> {
    let r = r?;
    let map = match side {
        Side::Requests => r.requests.as_ref(),
        Side::Limits => r.limits.as_ref(),
    }?;
    Quantity::parse(&map.get(name)?.0).ok()
}

fn all_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// The quality of service class, from CPU and memory of all containers (kubelet `qos.ComputePodQOS`).
pub fn qos(spec: &PodSpec) -> Qos {
    let mut any = false;
    let mut guaranteed = true;
    let sets: Vec<Option<&ResourceRequirements>> = match &spec.resources {
        Some(r) if r.requests.is_some() || r.limits.is_some() => vec![Some(r)],
        _ => all_containers(spec).map(|c| c.resources.as_ref()).collect(),
    };
    for resources in sets {
        for name in ["cpu", "memory"] {
            let positive = |side| amount(resources, side, name).filter(|q| q.sign() > 0).map(|q| q.nano_value());
            let (request, limit) = (positive(Side::Requests), positive(Side::Limits));
            any |= request.is_some() || limit.is_some();
            // A missing request equals the limit (the server fills it in).
            guaranteed &= limit.is_some() && (request.is_none() || request == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => Qos::BestEffort,
        (true, true) => Qos::Guaranteed,
        (true, false) => Qos::Burstable,
    }
}

/// The weight of a request of CPU, in thousandths, as cgroup v1 has it (kubelet `MilliCPUToShares`).
pub fn shares(milli: i64) -> u64 {
    ((milli.max(0) as u64) * 1024 / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

fn quota(milli: i64) -> i64 {
    (milli * PERIOD as i64 / 1000).max(1000)
}

/// The resources whose limits pods may have as a whole, beside huge pages.
const LIMITED_BY_PODS: [&str; 2] = ["cpu", "memory"];

/// The limit of a pod as a whole, if it has one.
pub fn limit_of_pod(pod: Option<&ResourceRequirements>, name: &str) -> Option<String> {
    let limit = amount(pod, Side::Limits, name).filter(|q| LIMITED_BY_PODS.contains(&name) && !q.is_zero())?;
    Some(limit.to_string())
}

/// The resources of a container, with the limits of CPU and memory that its pod has where it has none (kubelet `getCPULimit` and
/// `getMemoryLimit`).
pub fn with_limits_of_pod(pod: Option<&ResourceRequirements>, mut own: ResourceRequirements) -> ResourceRequirements {
    for name in LIMITED_BY_PODS {
        let has = |q: Quantity| q.sign() > 0;
        let of_pod = pod.and_then(|r| r.limits.as_ref()?.get(name));
        if let Some(limit) = of_pod.filter(|_| !amount(Some(&own), Side::Limits, name).is_some_and(has)) {
            own.limits.get_or_insert_default().insert(name.into(), limit.clone());
        }
    }
    own
}

/// The settings of a container's cgroup. Huge pages are added by [`crate::hugepages`].
pub fn container(resources: Option<&ResourceRequirements>) -> Resources {
    let get = |side, name| amount(resources, side, name);
    let cpu_limit = get(Side::Limits, "cpu").map(|q| q.milli_value()).filter(|m| *m > 0);
    let cpu_request = get(Side::Requests, "cpu").map(|q| q.milli_value()).or(cpu_limit).unwrap_or(0);
    Resources {
        cpu_shares: Some(shares(cpu_request)),
        cpu_quota: cpu_limit.map(quota),
        cpu_period: cpu_limit.map(|_| PERIOD),
        memory_limit: get(Side::Limits, "memory").map(|q| q.value()).filter(|v| *v > 0),
        ..Resources::default()
    }
}

/// What a pod has of a resource, as its own or from its containers; no limit if one of these has none.
pub fn total(spec: &PodSpec, side: Side, name: &str, value: fn(&Quantity) -> i64) -> Option<i64> {
    if let Some(q) = amount(spec.resources.as_ref(), side, name) {
        return Some(value(&q));
    }
    let one = |c: &Container| {
        let own = amount(c.resources.as_ref(), side, name);
        let own = if own.is_none() && side == Side::Requests {
            amount(c.resources.as_ref(), Side::Limits, name)
        } else {
            own
        };
        own.as_ref().map(value).filter(|v| *v > 0)
    };
    let all = |mut values: Box<dyn Iterator<Item = Option<i64>> + '_>| match side {
        Side::Limits => values.try_fold(0i64, |sum, v| v.map(|v| sum.saturating_add(v))),
        Side::Requests => Some(values.map(|v| v.unwrap_or(0)).fold(0, i64::saturating_add)),
    };
    let sidecars: Vec<&Container> = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c)).collect();
    let app = all(Box::new(spec.containers.iter().chain(sidecars).map(one)))?;
    let mut most = app;
    for init in spec.init_containers.iter().flatten().filter(|c| !is_sidecar(c)) {
        match (one(init), side) {
            (Some(v), _) => most = most.max(v),
            (None, Side::Limits) => return None,
            (None, Side::Requests) => {}
        }
    }
    Some(most)
}

/// The settings of a pod's cgroup: the sum of its containers (the largest of the regular init containers where that is more), with a
/// limit only where every container has one. Huge pages are added by [`crate::hugepages`].
pub fn pod(spec: &PodSpec, pids_limit: Option<i64>) -> Resources {
    let total = |side, name, value| total(spec, side, name, value);
    let cpu_limit = total(Side::Limits, "cpu", Quantity::milli_value).filter(|m| *m > 0);
    Resources {
        cpu_shares: Some(shares(total(Side::Requests, "cpu", Quantity::milli_value).unwrap_or(0))),
        cpu_quota: cpu_limit.map(quota),
        cpu_period: cpu_limit.map(|_| PERIOD),
        memory_limit: total(Side::Limits, "memory", Quantity::value).filter(|v| *v > 0),
        pids_limit,
        ..Resources::default()
    }
}

pub fn is_sidecar(c: &Container) -> bool {
    c.restart_policy.as_deref() == Some("Always")
}

/// The out-of-memory score (kubelet `qos.GetContainerOOMScoreAdjust`): the smaller the part of the node's memory that a burstable
/// container requests, the sooner it is killed.
pub fn oom_score_adj(spec: &PodSpec, c: Option<&ResourceRequirements>, node_memory: u64) -> i32 {
    // Node-critical pods.
    if spec.priority.unwrap_or(0) >= 2_000_001_000 {
        return -997;
    }
    match qos(spec) {
        Qos::Guaranteed => -997,
        Qos::BestEffort => 1000,
        Qos::Burstable => {
            let request = amount(c, Side::Requests, "memory").map_or(0, |q| q.value());
            let share = 1000 * i128::from(request) / i128::from(node_memory.max(1));
            (1000 - share).clamp(3, 999) as i32
        }
    }
}

/// The value of `limits.cpu` and the like for a container, with the node's allocatable where no limit is set, divided by
/// `divisor` and rounded up (kubelet `resource.ExtractContainerResourceValue`). `None` for a resource that has no value.
pub fn field(
    resources: Option<&ResourceRequirements>,
    name: &str,
    divisor: Option<&str>,
    allocatable: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let (side, name) = match name.split_once('.')? {
        ("limits", n) => (Side::Limits, n),
        ("requests", n) => (Side::Requests, n),
        _ => return None,
    };
    let own = amount(resources, side, name).filter(|q| !q.is_zero());
    let value = match (own, side) {
        (Some(q), _) => q,
        (None, Side::Limits) => Quantity::parse(&allocatable(name)?).ok()?,
        (None, Side::Requests) => amount(resources, Side::Limits, name).unwrap_or(Quantity::from_int(0)),
    };
    let divisor =
        Quantity::parse(divisor.unwrap_or("1")).ok().filter(|d| !d.is_zero()).unwrap_or(Quantity::from_int(1));
    let (v, d) = (value.nano_value(), divisor.nano_value());
    Some((v / d + i128::from(v > 0 && v % d != 0)).to_string())
}

/// Whether a resource is an extended one: with a domain other than Kubernetes' own (`v1helper.IsExtendedResourceName`).
pub fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(containers: serde_json::Value) -> PodSpec {
        serde_json::from_value(json!({"containers": containers})).unwrap()
    }

    #[test]
    fn containers_without_limits_have_those_of_the_pod() {
        let of_pod: ResourceRequirements =
            serde_json::from_value(json!({"limits": {"cpu": "1", "memory": "64Mi"}})).unwrap();
        let limits = |own: serde_json::Value| {
            let own = serde_json::from_value(own).unwrap();
            let settings = container(Some(&with_limits_of_pod(Some(&of_pod), own)));
            (settings.cpu_quota, settings.memory_limit, settings.cpu_shares)
        };
        assert_eq!(limits(json!({})), (Some(100_000), Some(64 << 20), Some(1024)));
        let own = json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "250m"}});
        assert_eq!(limits(own), (Some(50_000), Some(64 << 20), Some(256)));
        assert_eq!(container(Some(&with_limits_of_pod(None, ResourceRequirements::default()))).memory_limit, None);
    }

    #[test]
    fn classes_follow_requests_and_limits() {
        let check = |c, expected: Qos| assert_eq!(qos(&spec(c)), expected);
        check(json!([{"name": "a"}]), Qos::BestEffort);
        let full = json!({"cpu": "1", "memory": "1Gi"});
        check(json!([{"name": "a", "resources": {"limits": full, "requests": full}}]), Qos::Guaranteed);
        check(json!([{"name": "a", "resources": {"limits": full}}]), Qos::Guaranteed);
        check(json!([{"name": "a", "resources": {"limits": full}}, {"name": "b"}]), Qos::Burstable);
        check(json!([{"name": "a", "resources": {"requests": {"cpu": "1m"}}}]), Qos::Burstable);
        check(json!([{"name": "a", "resources": {"requests": {"cpu": "0"}}}]), Qos::BestEffort);
    }

    #[test]
    fn values_are_those_of_the_kubelet() {
        let s = spec(json!([{"name": "a", "resources": {"limits": {"cpu": "250m", "memory": "64Mi"}}}]));
        let r = container(s.containers[0].resources.as_ref());
        assert_eq!((r.cpu_shares, r.cpu_quota, r.memory_limit), (Some(256), Some(25_000), Some(64 << 20)));
        assert_eq!(container(None).cpu_shares, Some(2));
        assert_eq!(pod(&s, Some(9)).pids_limit, Some(9));
        let two = spec(json!([{"name": "a", "resources": {"limits": {"memory": "1Gi"}}}, {"name": "b"}]));
        assert_eq!(pod(&two, None).memory_limit, None);
        assert_eq!(oom_score_adj(&two, two.containers[1].resources.as_ref(), 4 << 30), 999);
        assert_eq!(oom_score_adj(&spec(json!([{"name": "a"}])), None, 1), 1000);
    }

    #[test]
    fn resource_fields_are_divided_and_rounded_up() {
        let r: ResourceRequirements =
            serde_json::from_value(json!({"limits": {"cpu": "1500m"}, "requests": {"memory": "32Mi"}})).unwrap();
        let get = |n, d| field(Some(&r), n, d, |n| (n == "memory").then(|| "2Gi".to_owned()));
        assert_eq!(get("limits.cpu", None).as_deref(), Some("2"));
        assert_eq!(get("limits.cpu", Some("1m")).as_deref(), Some("1500"));
        assert_eq!(get("requests.memory", Some("1Mi")).as_deref(), Some("32"));
        assert_eq!(get("limits.memory", Some("1Gi")).as_deref(), Some("2"));
        assert_eq!(get("limits.nothing", None), None);
    }
}
