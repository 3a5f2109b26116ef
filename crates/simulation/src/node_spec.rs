//! Nodes as scenarios describe them.

use meta::{Quantity, Value};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// The label with the zone of a node.
pub(crate) const ZONE: &str = "topology.kubernetes.io/zone";
/// The most nodes of one entry.
const MAX: u32 = 10_000;

/// A node and what it offers, or several nodes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeSpec {
    /// The name of the node.
    pub name: String,
    /// How many there are: `name-1`, `name-2` and so on. None: one of exactly this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Allocatable CPU.
    #[serde(default = "cpu", deserialize_with = "quantity")]
    pub cpu: String,
    /// Allocatable memory.
    #[serde(default = "memory", deserialize_with = "quantity")]
    pub memory: String,
    /// How many pods it runs.
    #[serde(default = "pods")]
    pub pods: u32,
    /// Other allocatable resources.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "quantities")]
    pub resources: BTreeMap<String, String>,
    /// The zones, in turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
    /// The labels of the node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Its taints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// The version of its kubelet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// A taint of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Taint {
    pub key: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    pub effect: String,
}

/// A quantity: a string or a number, as in Kubernetes.
struct Amount(String);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match Value::deserialize(d)? {
            Value::String(text) => Ok(Self(text)),
            Value::Number(number) => Ok(Self(number.to_string())),
            _ => Err(D::Error::custom("must be a quantity such as 8 or 500m")),
        }
    }
}

fn quantity<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    Amount::deserialize(d).map(|amount| amount.0)
}

fn quantities<'de, D: Deserializer<'de>>(d: D) -> Result<BTreeMap<String, String>, D::Error> {
    let amounts = BTreeMap::<String, Amount>::deserialize(d)?;
    Ok(amounts.into_iter().map(|(name, amount)| (name, amount.0)).collect())
}

fn cpu() -> String {
    "8".into()
}

fn memory() -> String {
    "8Gi".into()
}

fn pods() -> u32 {
    110
}

/// What nodes of Kemudi declare (`status.declaredFeatures`).
const FEATURES: [&str; 4] = [
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

impl NodeSpec {
    /// A node with 8 GiB of memory for 110 pods.
    pub fn new(name: &str, cpu: &str) -> Self {
        Self {
            name: name.into(),
            count: None,
            cpu: cpu.into(),
            memory: memory(),
            pods: pods(),
            resources: BTreeMap::new(),
            zones: Vec::new(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            version: None,
        }
    }

    /// The single nodes, each with its name and zone.
    pub fn each(&self) -> Vec<Self> {
        let single = |i: usize, name: String| {
            let mut labels = self.labels.clone();
            if let Some(zone) = self.zones.get(i % self.zones.len().max(1)) {
                labels.insert(ZONE.to_owned(), zone.clone());
            }
            Self { name, labels, count: None, zones: Vec::new(), ..self.clone() }
        };
        match self.count {
            None => vec![single(0, self.name.clone())],
            Some(n) => (0..n.min(MAX) as usize).map(|i| single(i, format!("{}-{}", self.name, i + 1))).collect(),
        }
    }

    /// The field and the problem of a value that makes no sense.
    pub(crate) fn problem(&self) -> Option<(String, String)> {
        if self.count.is_some_and(|n| n > MAX) {
            return Some(("count".into(), format!("must be at most {MAX}")));
        }
        let amounts = [("cpu".to_owned(), &self.cpu), ("memory".to_owned(), &self.memory)];
        let others = self.resources.iter().map(|(name, amount)| (format!("resources.{name}"), amount));
        let mut wrong = amounts.into_iter().chain(others).filter(|(_, text)| Quantity::parse(text).is_err());
        if let Some((field, text)) = wrong.next() {
            return Some((field, format!("{text:?} is not a quantity")));
        }
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        let i = self.taints.iter().position(|t| !effects.contains(&&*t.effect))?;
        Some((format!("taints[{i}].effect"), format!("must be one of {}", effects.join(", "))))
    }

    /// The node as an object.
    pub(crate) fn object(&self) -> Value {
        let mut amounts = json!({"cpu": self.cpu, "memory": self.memory, "pods": self.pods.to_string()});
        for (name, amount) in &self.resources {
            amounts[name] = amount.clone().into();
        }
        let mut node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name, "labels": self.labels},
            "status": {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}],
                "declaredFeatures": FEATURES},
        });
        if !self.taints.is_empty() {
            node["spec"]["taints"] = serde_json::to_value(&self.taints).unwrap_or_default();
        }
        if let Some(version) = &self.version {
            node["status"]["nodeInfo"] = node_info(version);
        }
        node
    }
}

/// `status.nodeInfo` of a node with this version.
pub(crate) fn node_info(version: &str) -> Value {
    let mut info = json!({"kubeletVersion": version, "operatingSystem": "linux", "architecture": "amd64"});
    for field in
        ["machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeProxyVersion"]
    {
        info[field] = "".into();
    }
    info
}
