//! A single change of a pod or of a node, and its effect.

use super::shortfall::{PodName, exact, hide, plural, taint_text};
use crate::cluster::NodeEntry;
use crate::pod::{Pod, Requirements};
use placement::{Taint, Toleration};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;

/// Taints that nodes have by their state.
const CONDITIONS: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "ready"),
    ("node.kubernetes.io/unreachable", "reachable"),
    ("node.kubernetes.io/memory-pressure", "without memory pressure"),
    ("node.kubernetes.io/disk-pressure", "without disk pressure"),
    ("node.kubernetes.io/pid-pressure", "without PID pressure"),
    ("node.kubernetes.io/network-unavailable", "connected to the network"),
];

/// Labels that describe what a node is. Changing them would not change the node.
const DESCRIPTIVE_LABELS: [&str; 8] = [
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "node.kubernetes.io/instance-type",
    "node.kubernetes.io/windows-build",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
];

/// Whether a label says where a node is.
fn is_topology_label(key: &str) -> bool {
    key.starts_with("topology.kubernetes.io/") || key.starts_with("failure-domain.beta.kubernetes.io/")
}

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// A change that may make a pod fit a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Change {
    /// The node is made schedulable.
    Uncordon,
    /// The node recovers, and loses the taint of its condition.
    Recover { taint: String, state: String },
    /// The pod requests less.
    LowerRequest {
        resource: String,
        by: String,
        #[serde(skip)]
        amount: i64,
    },
    /// The pod tolerates a taint.
    Tolerate { key: String, value: String, effect: String },
    /// The pod does without a host port.
    RemoveHostPort { port: i64, protocol: String },
    /// The node gets a label.
    SetLabel { key: String, value: String },
    /// The node loses a label.
    RemoveLabel { key: String },
    /// A topology spread constraint of the pod, by its position among those that filter, allows a larger skew.
    RaiseMaxSkew {
        topology_key: String,
        #[serde(skip)]
        index: usize,
        to: i64,
    },
    /// The pod does without a term of its affinity.
    RemoveAffinity { topology_key: String, selector: String },
    /// The pod does without a term of its anti-affinity.
    RemoveAntiAffinity { topology_key: String, selector: String },
    /// Pods of a lower priority are gone from the node.
    PodsGone {
        pods: Vec<PodName>,
        /// The number of further pods, whose names the reader may not see.
        hidden_pods: usize,
        /// How many of the pods their disruption budgets protect.
        protected: usize,
        /// Whether the pod does not preempt them because its `preemptionPolicy` is `Never`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        never_preempts: bool,
    },
}

/// What a change is made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Pod,
    Node,
    OtherPods,
}

impl Change {
    /// Lowers a request by what is missing, bytes rounded up to a readable unit if the request is large enough.
    pub fn lower_request(resource: &str, missing: i64, requested: i64) -> Self {
        let bytes = matches!(resource, "memory" | "ephemeral-storage");
        let units = [(1i64 << 30, 10i64 << 30), (1 << 20, 0), (1 << 10, 0)].into_iter();
        let mut units = units.filter(|(_, least)| bytes && missing >= *least).map(|(unit, _)| unit);
        let round_up = |unit: i64| missing.checked_add(unit - 1).map(|sum| sum - sum % unit);
        let amount = units.find_map(|unit| round_up(unit).filter(|rounded| *rounded < requested)).unwrap_or(missing);
        Self::LowerRequest { resource: resource.into(), by: exact(resource, amount).to_string(), amount }
    }

    /// Sets a label of a node; an empty value stands for any. None for a label that describes what the node is: setting it would make
    /// it wrong. `has_key`: whether the node has the label with another value.
    pub fn set_label(key: &str, value: &str, has_key: bool) -> Option<Self> {
        let fixed = DESCRIPTIVE_LABELS.contains(&key) || (has_key && is_topology_label(key));
        (!fixed).then(|| Self::SetLabel { key: key.into(), value: value.into() })
    }

    /// Removes a label of a node. None for a label that describes what or where the node is.
    pub fn remove_label(key: &str) -> Option<Self> {
        let fixed = DESCRIPTIVE_LABELS.contains(&key) || is_topology_label(key);
        (!fixed).then(|| Self::RemoveLabel { key: key.into() })
    }

    pub fn tolerate(taint: &Taint) -> Self {
        let text = |t: &str| t.to_owned();
        Self::Tolerate { key: text(&taint.key), value: text(&taint.value), effect: text(&taint.effect) }
    }

    /// The changes that let a pod on a node with a taint.
    pub fn of_taint(taint: &Taint) -> Vec<Self> {
        if &*taint.key == UNSCHEDULABLE {
            return vec![Self::Uncordon, Self::tolerate(taint)];
        }
        match CONDITIONS.iter().find(|(key, _)| **key == *taint.key) {
            Some((key, state)) => vec![Self::Recover { taint: (*key).into(), state: (*state).into() }],
            None => vec![Self::tolerate(taint)],
        }
    }

    pub fn subject(&self) -> Subject {
        match self {
            Self::Uncordon | Self::Recover { .. } | Self::SetLabel { .. } | Self::RemoveLabel { .. } => Subject::Node,
            Self::PodsGone { .. } => Subject::OtherPods,
            _ => Subject::Pod,
        }
    }

    /// Orders changes: the smaller ones first.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Uncordon => 0,
            Self::Recover { .. } => 1,
            Self::LowerRequest { .. } => 2,
            Self::RemoveHostPort { .. } => 3,
            Self::Tolerate { .. } => 4,
            Self::SetLabel { .. } | Self::RemoveLabel { .. } => 5,
            Self::RaiseMaxSkew { .. } => 6,
            Self::RemoveAffinity { .. } | Self::RemoveAntiAffinity { .. } => 7,
            Self::PodsGone { .. } => 8,
        }
    }

    /// Whether both are the same change, but for its size.
    pub fn is_alike(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::LowerRequest { resource: a, .. }, Self::LowerRequest { resource: b, .. }) => a == b,
            (Self::RaiseMaxSkew { index: a, .. }, Self::RaiseMaxSkew { index: b, .. }) => a == b,
            _ => self == other,
        }
    }

    /// The pods that the change names.
    pub fn pods(&self) -> &[PodName] {
        match self {
            Self::PodsGone { pods, .. } => pods,
            _ => &[],
        }
    }

    /// Replaces the names of pods of namespaces that are not readable by their number.
    pub fn hide_pods(&mut self, readable: &impl Fn(&str) -> bool) {
        if let Self::PodsGone { pods, hidden_pods, .. } = self {
            *hidden_pods += hide(pods, readable);
        }
    }

    /// The pod after the change. None if it cannot be made.
    pub fn apply_to_pod(&self, pod: &Pod) -> Option<Pod> {
        let mut changed = Pod::new(pod.json().into_owned().into()).ok()?;
        changed.view = pod.view.with_requirements(|r| self.change_requirements(r));
        Some(changed)
    }

    fn change_requirements(&self, r: &mut Requirements) {
        match self {
            Self::LowerRequest { resource, amount, .. } => match resource.as_str() {
                "cpu" => r.requests.cpu -= amount,
                "memory" => r.requests.memory -= amount,
                "ephemeral-storage" => r.requests.ephemeral -= amount,
                name => r.requests.extended.iter_mut().filter(|(n, _)| **n == *name).for_each(|(_, v)| *v -= amount),
            },
            Self::Tolerate { key, value, effect } => r.tolerations.push(Toleration {
                key: key.as_str().into(),
                operator: "Equal".into(),
                value: value.as_str().into(),
                effect: effect.as_str().into(),
                toleration_seconds: None,
            }),
            Self::RemoveHostPort { port, protocol } => {
                r.host_ports.retain(|p| !(p.port == *port && *p.protocol == **protocol));
            }
            Self::RaiseMaxSkew { index, to, .. } => {
                if let Some(constraint) = r.spread.iter_mut().filter(|c| c.hard).nth(*index) {
                    constraint.max_skew = *to;
                }
            }
            Self::RemoveAffinity { topology_key, selector } => {
                r.pod_affinity.required.retain(|t| *t.topology_key != **topology_key || t.selector_text() != *selector);
            }
            Self::RemoveAntiAffinity { topology_key, selector } => {
                let terms = &mut r.pod_affinity.anti_required;
                terms.retain(|t| *t.topology_key != **topology_key || t.selector_text() != *selector);
            }
            _ => {}
        }
    }

    /// The node after the change. None if it cannot be made.
    pub fn apply_to_node(&self, node: &NodeEntry) -> Option<NodeEntry> {
        let mut v: Value = meta::depth::from_slice(&node.json()).ok()?;
        match self {
            Self::Uncordon => {
                v["spec"]["unschedulable"] = false.into();
                remove_taints(&mut v, UNSCHEDULABLE);
            }
            Self::Recover { taint, .. } => remove_taints(&mut v, taint),
            Self::SetLabel { key, value } => {
                if !v["metadata"]["labels"].is_object() {
                    v["metadata"]["labels"] = json!({});
                }
                v["metadata"]["labels"][key.as_str()] = value.as_str().into();
            }
            Self::RemoveLabel { key } => {
                v["metadata"]["labels"].as_object_mut()?.remove(key);
            }
            _ => return None,
        }
        NodeEntry::new(serde_json::to_vec(&v).ok()?.into()).ok()
    }
}

/// A request for people: CPU above one core as a decimal number of cores.
fn cores(resource: &str, by: &str) -> String {
    let milli = by.strip_suffix('m').and_then(|digits| digits.parse::<i64>().ok());
    match milli.filter(|milli| resource == "cpu" && *milli > 1000) {
        Some(milli) => format!("{}.{:03}", milli / 1000, milli % 1000).trim_end_matches('0').to_owned(),
        None => by.to_owned(),
    }
}

fn remove_taints(node: &mut Value, key: &str) {
    if let Some(taints) = node["spec"]["taints"].as_array_mut() {
        taints.retain(|t| t["key"] != key);
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uncordon => f.write_str("if it were uncordoned"),
            Self::Recover { state, .. } => write!(f, "if it were {state}"),
            Self::LowerRequest { resource, by, .. } => write!(f, "with {} less {resource}", cores(resource, by)),
            Self::Tolerate { key, value, effect } => {
                let (key, value, effect) = (key.as_str().into(), value.as_str().into(), effect.as_str().into());
                let taint = Taint { key, value, effect, time_added: None };
                write!(f, "with a toleration for {}", taint_text(&taint))
            }
            Self::RemoveHostPort { port, protocol } => write!(f, "without its host port {port}/{protocol}"),
            Self::SetLabel { key, value } if value.is_empty() => write!(f, "if it had the label {key}"),
            Self::SetLabel { key, value } => write!(f, "if it had the label {key}={value}"),
            Self::RemoveLabel { key } => write!(f, "if it did not have the label {key}"),
            Self::RaiseMaxSkew { topology_key, to, .. } => write!(f, "with maxSkew {to} for {topology_key}"),
            Self::RemoveAffinity { topology_key, selector } => {
                write!(f, "without its pod affinity to {selector} by {topology_key}")
            }
            Self::RemoveAntiAffinity { topology_key, selector } => {
                write!(f, "without its pod anti-affinity to {selector} by {topology_key}")
            }
            Self::PodsGone { pods, hidden_pods, protected, never_preempts } => {
                let mut names: Vec<String> = pods.iter().map(|p| format!("{}/{}", p.namespace, p.name)).collect();
                if *hidden_pods > 0 {
                    let other = if names.is_empty() { "" } else { "other " };
                    names.push(format!("{hidden_pods} {other}pod{}", plural(*hidden_pods)));
                }
                let are = if pods.len() + hidden_pods == 1 { "is" } else { "are" };
                write!(f, "after {} of lower priority {are} gone", names.join(", "))?;
                if *protected > 0 {
                    write!(f, " ({protected} of them protected by a PodDisruptionBudget)")?;
                }
                if *never_preempts {
                    f.write_str("; the pod does not preempt, because its preemptionPolicy is Never")?;
                }
                Ok(())
            }
        }
    }
}
