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
    pub affinity: NodeAffinity,
    pub pod_affinity: PodAffinity,
    pub spread: Vec<Constraint>,
    pub tolerations: Vec<Toleration>,
    pub host_ports: Vec<HostPort>,
    pub images: Vec<Box<str>>,
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
    image: Box<str>,
    restart_policy: Box<str>,
    resources: RawResources,
    #[serde(deserialize_with = "or_default")]
    ports: Vec<RawPort>,
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

/// The maximum that a pod uses: its containers and sidecars together, or an init container with the sidecars started before
/// it (upstream `resource.PodRequests`).
fn total(spec: &RawSpec, amounts: impl Fn(&RawContainer) -> Resources) -> Resources {
    let mut all = Resources::default();
    for c in &spec.containers {
        all.add(&amounts(c));
    }
    let mut sidecars = Resources::default();
    let mut peak = Resources::default();
    for c in &spec.init_containers {
        let mut r = amounts(c);
        if &*c.restart_policy == "Always" {
            all.add(&r);
            sidecars.add(&r);
            r = sidecars.clone();
        } else {
            r.add(&sidecars);
        }
        peak.at_least(&r);
    }
    all.at_least(&peak);
    // Pod-level requests replace those of the containers.
    for (name, v) in spec.resources.requests.iter().flatten() {
        let one = Resources::read(Some(&Map::from_iter([(name.clone(), v.clone())])));
        match name.as_str() {
            "cpu" => all.cpu = one.cpu,
            "memory" => all.memory = one.memory,
            _ => {}
        }
    }
    all.add(&Resources::read(spec.overhead.as_ref()));
    all
}

impl From<Raw> for PodInfo {
    fn from(raw: Raw) -> Self {
        let s = raw.spec;
        let requests = total(&s, |c| Resources::read(c.resources.requests.as_ref()));
        let nonzero = total(&s, |c| {
            let given = c.resources.requests.as_ref();
            let r = Resources::read(given);
            let has = |n: &str| given.is_some_and(|m| m.contains_key(n));
            Resources {
                cpu: if has("cpu") { r.cpu } else { DEFAULT_CPU },
                memory: if has("memory") { r.memory } else { DEFAULT_MEMORY },
                ..Resources::default()
            }
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
        let requirements = Requirements {
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
}
