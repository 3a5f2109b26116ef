//! The scheduler's view of a pod, decoded and computed once per event.

use crate::pod_affinity::PodAffinity;
use crate::resources::Resources;
use crate::spread::Constraint;
use client::Entry;
use client::informer::{Pooled, or_default};
use jiff::Timestamp;
use placement::{NodeAffinity, Toleration};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::ops::Deref;

pub type Pod = Entry<PodInfo>;

/// Default requests of containers without any, so that their pods are spread as well (upstream `GetNonzeroRequests`).
const DEFAULT_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;
const HUGEPAGES: &str = "hugepages-";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Raw")]
pub struct PodInfo {
    pub node_name: Box<str>,
    pub phase: Box<str>,
    pub nominated_node: Box<str>,
    /// When the node began with the pod.
    pub start_time: Option<Timestamp>,
    /// Whether a scheduler evicts the pod for one of higher priority.
    pub is_preempted: bool,
    /// The persistent volume claims that it uses.
    pub claims: Vec<ClaimUse>,
    /// The claims of devices that it uses.
    pub device_claims: Vec<DeviceClaimUse>,
    /// The extended resources whose devices are those of a claim that the scheduler made.
    pub claimed_resources: Vec<Box<str>>,
    /// Disks that it may not be able to share.
    pub disks: Vec<Disk>,
    requirements: Pooled<Requirements>,
}

/// The scheduling requirements of a pod; equal for all pods of a template, which share it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Requirements {
    pub scheduler_name: Box<str>,
    pub priority: i64,
    pub may_preempt: bool,
    pub gated: bool,
    pub requests: Resources,
    /// CPU and memory, with defaults for containers that request nothing.
    pub nonzero: Resources,
    /// [`Self::nonzero`] of the containers alone, if the pod has requests as a whole.
    containers: Option<Box<Resources>>,
    pub affinity: NodeAffinity,
    pub pod_affinity: PodAffinity,
    pub spread: Vec<Constraint>,
    pub tolerations: Vec<Toleration>,
    pub host_ports: Vec<HostPort>,
    pub images: Vec<Box<str>>,
    /// The features that its node has to declare (upstream `nodedeclaredfeatures`).
    pub features: Vec<&'static str>,
}

impl Deref for PodInfo {
    type Target = Requirements;

    fn deref(&self) -> &Requirements {
        &self.requirements
    }
}

/// A persistent volume claim that a pod uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimUse {
    pub name: Box<str>,
    /// Whether the claim is made for the pod (a generic ephemeral volume).
    pub is_ephemeral: bool,
}

/// A claim of devices that a pod uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceClaimUse {
    /// None until the claim is made.
    pub name: Option<Box<str>>,
    /// Whether the claim is made for the pod.
    pub is_generated: bool,
}

/// A disk in the pod itself that several pods of a node may not be able to share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Disk {
    /// What identifies the disk; the first value is its kind.
    identity: Vec<Box<str>>,
    /// Monitors of a Ceph cluster; disks without a common one differ.
    monitors: Vec<Box<str>>,
    /// Whether it may be shared with others that only read it.
    read_only: bool,
}

impl Disk {
    fn read(volume: &RawVolume) -> Option<Self> {
        let text = |v: &Value| -> Box<str> { v.as_str().unwrap_or_default().into() };
        let sources = [
            ("gcePersistentDisk", &volume.gce_persistent_disk, &["pdName"][..]),
            ("awsElasticBlockStore", &volume.aws_elastic_block_store, &["volumeID"]),
            ("iscsi", &volume.iscsi, &["iqn"]),
            ("rbd", &volume.rbd, &["pool", "image"]),
        ];
        let (kind, source, fields) = sources.into_iter().find(|(_, source, _)| source.is_object())?;
        let monitors = source["monitors"].as_array().into_iter().flatten();
        Some(Self {
            identity: std::iter::once(kind.into()).chain(fields.iter().map(|f| text(&source[f]))).collect(),
            monitors: monitors.map(text).collect(),
            read_only: kind != "awsElasticBlockStore" && source["readOnly"] == true,
        })
    }

    /// Whether a node cannot have both.
    pub fn conflicts(&self, other: &Self) -> bool {
        let same_cluster = self.monitors.is_empty() || self.monitors.iter().any(|m| other.monitors.contains(m));
        self.identity == other.identity && same_cluster && !(self.read_only && other.read_only)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    pub ip: Box<str>,
    pub protocol: Box<str>,
    pub port: i64,
}

impl HostPort {
    pub fn conflicts(&self, other: &Self) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || &*self.ip == "0.0.0.0" || &*other.ip == "0.0.0.0")
    }
}

impl Requirements {
    /// CPU and memory with which `NodeResourcesFit` scores the pod: upstream's scorers leave out requests as a whole, unlike what counts
    /// for pods on nodes.
    pub fn scored(&self) -> &Resources {
        self.containers.as_deref().unwrap_or(&self.nonzero)
    }
}

impl PodInfo {
    /// A copy with changed requirements.
    pub fn with_requirements(&self, change: impl FnOnce(&mut Requirements)) -> Self {
        let mut requirements = Requirements::clone(&self.requirements);
        change(&mut requirements);
        Self { requirements: Pooled::intern(requirements), ..self.clone() }
    }

    pub fn is_terminal(&self) -> bool {
        matches!(&*self.phase, "Succeeded" | "Failed")
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Raw {
    metadata: RawMetadata,
    spec: RawSpec,
    status: RawStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawMetadata {
    name: Box<str>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    phase: Box<str>,
    nominated_node_name: Box<str>,
    start_time: Option<Timestamp>,
    #[serde(deserialize_with = "or_default")]
    conditions: Vec<RawCondition>,
    #[serde(deserialize_with = "or_default")]
    resource_claim_statuses: Vec<RawDeviceClaim>,
    #[serde(deserialize_with = "or_default")]
    extended_resource_claim_status: RawExtended,
    #[serde(deserialize_with = "or_default")]
    container_statuses: Vec<RawContainerStatus>,
    #[serde(deserialize_with = "or_default")]
    init_container_statuses: Vec<RawContainerStatus>,
    /// What the pod as a whole has.
    resources: Option<RawResources>,
    /// What the pod as a whole was promised.
    allocated_resources: Option<Map<String, Value>>,
}

/// The resources that a container has, and those that it was promised.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawContainerStatus {
    name: Box<str>,
    resources: Option<RawResources>,
    allocated_resources: Option<Map<String, Value>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawExtended {
    #[serde(deserialize_with = "or_default")]
    request_mappings: Vec<RawMapping>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawMapping {
    resource_name: Box<str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawCondition {
    r#type: Box<str>,
    status: Box<str>,
    reason: Box<str>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    node_name: Box<str>,
    scheduler_name: Box<str>,
    priority: Option<i64>,
    preemption_policy: Box<str>,
    #[serde(deserialize_with = "or_default")]
    scheduling_gates: Vec<Value>,
    node_selector: Value,
    affinity: RawAffinity,
    #[serde(deserialize_with = "or_default")]
    tolerations: Vec<Toleration>,
    #[serde(deserialize_with = "or_default")]
    topology_spread_constraints: Vec<Value>,
    #[serde(deserialize_with = "or_default")]
    containers: Vec<RawContainer>,
    #[serde(deserialize_with = "or_default")]
    init_containers: Vec<RawContainer>,
    overhead: Option<Map<String, Value>>,
    host_network: bool,
    host_users: Option<bool>,
    resources: RawResources,
    #[serde(deserialize_with = "or_default")]
    volumes: Vec<RawVolume>,
    #[serde(deserialize_with = "or_default")]
    resource_claims: Vec<RawDeviceClaim>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawDeviceClaim {
    name: Box<str>,
    resource_claim_name: Option<Box<str>>,
}

/// The sources of volumes that matter.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawVolume {
    name: Box<str>,
    persistent_volume_claim: Value,
    ephemeral: Value,
    gce_persistent_disk: Value,
    aws_elastic_block_store: Value,
    iscsi: Value,
    rbd: Value,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawAffinity {
    node_affinity: Value,
    pod_affinity: Value,
    pod_anti_affinity: Value,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawContainer {
    name: Box<str>,
    image: Box<str>,
    restart_policy: Box<str>,
    resources: RawResources,
    #[serde(deserialize_with = "or_default")]
    ports: Vec<RawPort>,
    #[serde(deserialize_with = "or_default")]
    restart_policy_rules: Vec<RawRule>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawRule {
    action: Box<str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawResources {
    requests: Option<Map<String, Value>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawPort {
    host_port: i64,
    #[serde(rename = "hostIP")]
    host_ip: Box<str>,
    protocol: Box<str>,
}

type List = Map<String, Value>;

/// The requests of a container, with the names that they contain.
struct Requests {
    resources: Resources,
    has_cpu: bool,
    has_memory: bool,
    is_sidecar: bool,
}

impl Requests {
    /// The largest of each resource in `lists`.
    fn largest(lists: &[Option<&List>], is_sidecar: bool) -> Self {
        let has = |name: &str| lists.iter().flatten().any(|list| list.contains_key(name));
        let mut resources = Resources::default();
        lists.iter().for_each(|list| resources.at_least(&Resources::read(*list)));
        Self { resources, has_cpu: has("cpu"), has_memory: has("memory"), is_sidecar }
    }

    /// CPU and memory, with defaults for what is not requested.
    fn nonzero(&self) -> Resources {
        Resources {
            cpu: if self.has_cpu { self.resources.cpu } else { DEFAULT_CPU },
            memory: if self.has_memory { self.resources.memory } else { DEFAULT_MEMORY },
            ..Resources::default()
        }
    }
}

/// What the status of a pod on a node says about its resources while they are changed.
struct Resize<'a> {
    status: &'a RawStatus,
    /// The node cannot carry out the resize, so the specification does not count.
    is_infeasible: bool,
}

impl<'a> Resize<'a> {
    fn read(status: &'a RawStatus) -> Self {
        let pending = status.conditions.iter().find(|c| &*c.r#type == "PodResizePending");
        Self { status, is_infeasible: pending.is_some_and(|c| &*c.reason == "Infeasible") }
    }

    /// The lists of which the largest amounts count: what is desired, what it has, and what it was promised (upstream
    /// `determineEffectiveRequests`).
    fn lists(
        &self,
        desired: Option<&'a List>,
        actual: &'a RawResources,
        allocated: Option<&'a List>,
    ) -> [Option<&'a List>; 3] {
        [desired.filter(|_| !self.is_infeasible), actual.requests.as_ref(), allocated]
    }
}

/// The requests of the containers and of the pod as a whole. Without `resize`, those of the specification.
struct Demand<'a> {
    containers: Vec<Requests>,
    init_containers: Vec<Requests>,
    /// Requests of the pod as a whole.
    desired: Option<&'a List>,
    whole: Resources,
    overhead: Resources,
}

impl<'a> Demand<'a> {
    fn read(spec: &'a RawSpec, resize: Option<&Resize<'a>>) -> Self {
        let requests = |c: &'a RawContainer, is_init: bool| {
            let desired = c.resources.requests.as_ref();
            let is_sidecar = is_init && &*c.restart_policy == "Always";
            let of_status = resize.filter(|_| !is_init || is_sidecar).and_then(|resize| {
                let status = resize.status;
                // Names of containers and init containers differ.
                let mut all = status.init_container_statuses.iter().chain(&status.container_statuses);
                let own = all.find(|s| s.name == c.name)?;
                Some(resize.lists(desired, own.resources.as_ref()?, own.allocated_resources.as_ref()))
            });
            Requests::largest(&of_status.unwrap_or([desired, None, None]), is_sidecar)
        };
        let desired = spec.resources.requests.as_ref();
        let of_status = resize.and_then(|resize| {
            let status = resize.status;
            Some(resize.lists(desired, status.resources.as_ref()?, status.allocated_resources.as_ref()))
        });
        Self {
            containers: spec.containers.iter().map(|c| requests(c, false)).collect(),
            init_containers: spec.init_containers.iter().map(|c| requests(c, true)).collect(),
            desired,
            whole: Requests::largest(&of_status.unwrap_or([desired, None, None]), false).resources,
            overhead: Resources::read(spec.overhead.as_ref()),
        }
    }

    /// The maximum that the containers use: containers and sidecars together, or an init container with the sidecars started before
    /// it (upstream `resource.PodRequests`).
    fn of_containers(&self, amounts: impl Fn(&Requests) -> Resources) -> Resources {
        let mut all = Resources::default();
        for c in &self.containers {
            all.add(&amounts(c));
        }
        let mut sidecars = Resources::default();
        let mut peak = Resources::default();
        for c in &self.init_containers {
            let mut r = amounts(c);
            if c.is_sidecar {
                all.add(&r);
                sidecars.add(&r);
                r = sidecars.clone();
            } else {
                r.add(&sidecars);
            }
            peak.at_least(&r);
        }
        all.at_least(&peak);
        all
    }

    /// What the containers use, or what the pod requests as a whole in place of that, and its overhead.
    fn total(&self, amounts: impl Fn(&Requests) -> Resources) -> Resources {
        let mut all = self.of_containers(amounts);
        for name in self.desired.iter().flat_map(|list| list.keys()) {
            if matches!(name.as_str(), "cpu" | "memory") || name.starts_with(HUGEPAGES) {
                all.set(name, self.whole.get(name));
            }
        }
        all.add(&self.overhead);
        all
    }
}

impl From<Raw> for PodInfo {
    fn from(raw: Raw) -> Self {
        let s = raw.spec;
        // Only a pod on a node is resized.
        let resize = (!s.node_name.is_empty()).then(|| Resize::read(&raw.status));
        let demand = Demand::read(&s, resize.as_ref());
        let requests = demand.total(|c| c.resources.clone());
        let nonzero = demand.total(Requests::nonzero);
        let containers = demand.desired.map(|_| {
            let mut all = demand.of_containers(Requests::nonzero);
            all.add(&demand.overhead);
            Box::new(all)
        });
        let sidecars = s.init_containers.iter().filter(|c| &*c.restart_policy == "Always");
        let host_ports = s
            .containers
            .iter()
            .chain(sidecars)
            .flat_map(|c| &c.ports)
            .filter(|p| p.host_port > 0)
            .map(|p| HostPort {
                ip: if p.host_ip.is_empty() { "0.0.0.0".into() } else { p.host_ip.clone() },
                protocol: if p.protocol.is_empty() { "TCP".into() } else { p.protocol.clone() },
                port: p.host_port,
            })
            .collect();
        let mut rules = s.containers.iter().chain(&s.init_containers).flat_map(|c| &c.restart_policy_rules);
        let restarts_all = rules.any(|rule| &*rule.action == "RestartAllContainers");
        let has_own_users = s.host_network && s.host_users == Some(false);
        let mut features = Vec::new();
        features.extend(restarts_all.then_some("RestartAllContainersOnContainerExits"));
        features.extend(has_own_users.then_some("UserNamespacesHostNetworkSupport"));
        let requirements = Requirements {
            features,
            affinity: NodeAffinity::read(&s.node_selector, &s.affinity.node_affinity),
            pod_affinity: PodAffinity::read(&s.affinity.pod_affinity, &s.affinity.pod_anti_affinity),
            spread: s.topology_spread_constraints.iter().map(Constraint::read).collect(),
            images: s.init_containers.iter().chain(&s.containers).map(|c| c.image.clone()).collect(),
            scheduler_name: s.scheduler_name,
            priority: s.priority.unwrap_or(0),
            may_preempt: &*s.preemption_policy != "Never",
            gated: !s.scheduling_gates.is_empty(),
            requests,
            nonzero,
            containers,
            tolerations: s.tolerations,
            host_ports,
        };
        let claim = |v: &RawVolume| {
            let made = || format!("{}-{}", raw.metadata.name, v.name);
            match v.persistent_volume_claim["claimName"].as_str() {
                Some(name) => Some(ClaimUse { name: name.into(), is_ephemeral: false }),
                None => v.ephemeral.is_object().then(|| ClaimUse { name: made().into(), is_ephemeral: true }),
            }
        };
        let made = &raw.status.resource_claim_statuses;
        let device_claim = |c: &RawDeviceClaim| match &c.resource_claim_name {
            Some(name) => Some(DeviceClaimUse { name: Some(name.clone()), is_generated: false }),
            None => {
                let made = made.iter().find(|m| m.name == c.name);
                // A claim that turned out not to be needed has a status without a name.
                let name = made.map(|m| m.resource_claim_name.clone());
                (name != Some(None)).then(|| DeviceClaimUse { name: name.flatten(), is_generated: true })
            }
        };
        Self {
            device_claims: s.resource_claims.iter().filter_map(device_claim).collect(),
            claims: s.volumes.iter().filter_map(claim).collect(),
            claimed_resources: raw
                .status
                .extended_resource_claim_status
                .request_mappings
                .into_iter()
                .map(|m| m.resource_name)
                .collect(),
            disks: s.volumes.iter().filter_map(Disk::read).collect(),
            node_name: s.node_name,
            phase: raw.status.phase,
            nominated_node: raw.status.nominated_node_name,
            start_time: raw.status.start_time,
            is_preempted: raw.status.conditions.iter().any(|c| {
                &*c.r#type == "DisruptionTarget" && &*c.status == "True" && &*c.reason == "PreemptionByScheduler"
            }),
            requirements: Pooled::intern(requirements),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_are_the_maximum_a_pod_uses() {
        let requests = |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "1Gi"}});
        let p: PodInfo = serde_json::from_value(json!({"spec": {
            "containers": [{"resources": requests("100m")}, {"image": "x"}],
            "initContainers": [
                {"resources": requests("1")},
                {"restartPolicy": "Always", "resources": requests("200m")},
                {"resources": requests("1500m")},
            ],
            "overhead": {"cpu": "50m"},
        }}))
        .unwrap();
        assert_eq!((p.requests.cpu, p.requests.memory), (1750, 2 << 30));
        assert_eq!(p.nonzero.memory, (2 << 30) + DEFAULT_MEMORY);
    }
    #[track_caller]
    fn cpu(pod: Value, expect: i64) {
        let p: PodInfo = serde_json::from_value(pod.clone()).unwrap();
        assert_eq!(p.requests.cpu, expect, "{pod}");
    }

    /// A node was filled beyond its resources while a pod became smaller, and had no room left for those of a refused resize.
    #[test]
    fn a_resized_pod_requests_what_it_has_or_will_have() {
        let requests = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let pod = |reason: &str, node: &str, status: Value| {
            let mut status = status;
            status["conditions"] = json!([{"type": "PodResizePending", "status": "True", "reason": reason}]);
            json!({"spec": {"nodeName": node, "containers": [{"name": "c", "resources": requests("500m")}],
                "initContainers": [
                    {"name": "s", "restartPolicy": "Always", "resources": requests("100m")},
                    {"name": "i", "resources": requests("100m")},
                ]}, "status": status})
        };
        let statuses = |has: &str, promised: &str| json!({"containerStatuses": [{"name": "c", "resources": requests(has), "allocatedResources": {"cpu": promised}}]});
        cpu(pod("", "n", json!({})), 600);
        cpu(pod("Deferred", "n", statuses("2", "1")), 2100);
        cpu(pod("Deferred", "n", statuses("1", "2")), 2100);
        cpu(pod("Deferred", "n", statuses("100m", "200m")), 600);
        cpu(pod("Infeasible", "n", statuses("100m", "200m")), 300);
        cpu(pod("Infeasible", "", statuses("2", "200m")), 600);
        cpu(
            pod("Infeasible", "n", json!({"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "2"}}]})),
            600,
        );
        // Sidecars are resized, other init containers are not.
        let sidecar = json!({"initContainerStatuses": [{"name": "s", "resources": requests("1")}, {"name": "i", "resources": requests("8")}]});
        cpu(pod("Deferred", "n", sidecar), 1500);
        // Resources of the pod as a whole.
        let mut whole = pod("Deferred", "n", json!({"resources": requests("3"), "allocatedResources": {"cpu": "4"}}));
        whole["spec"]["resources"] = requests("1");
        cpu(whole.clone(), 4000);
        whole["status"]["resources"] = Value::Null;
        cpu(whole, 1000);
    }

    #[test]
    fn requests_of_a_pod_as_a_whole_include_huge_pages() {
        let p: PodInfo = serde_json::from_value(json!({"spec": {
            "containers": [{"name": "c", "resources": {"requests": {"hugepages-2Mi": "4Mi", "example.com/a": "1"}}}],
            "resources": {"requests": {"cpu": "1", "hugepages-2Mi": "128Mi", "hugepages-1Gi": "1Gi", "example.com/a": "5"}},
        }}))
        .unwrap();
        let requests = |name: &str| p.requests.get(name);
        assert_eq!((requests("cpu"), requests("example.com/a")), (1000, 1));
        assert_eq!((requests("hugepages-2Mi"), requests("hugepages-1Gi")), (128 << 20, 1 << 30));
        assert_eq!((p.nonzero.cpu, p.scored().cpu), (1000, DEFAULT_CPU), "only the containers score");
    }
}
