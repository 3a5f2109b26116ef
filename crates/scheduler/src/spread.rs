//! Topology spread constraints, as data.

use crate::cluster::Node;
use crate::pod::Pod;
use crate::taint::untolerated;
use meta::LabelSelector;
use meta::selector::{Operator, Requirement};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Constraint {
    pub max_skew: i64,
    pub topology_key: Box<str>,
    /// `DoNotSchedule`.
    pub hard: bool,
    pub min_domains: i64,
    selector: LabelSelector,
    match_label_keys: Vec<Box<str>>,
    honor_affinity: bool,
    honor_taints: bool,
}

impl Constraint {
    pub fn read(v: &Value) -> Self {
        let keys = v["matchLabelKeys"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Self {
            max_skew: v["maxSkew"].as_i64().unwrap_or(1),
            topology_key: v["topologyKey"].as_str().unwrap_or_default().into(),
            hard: v["whenUnsatisfiable"] != "ScheduleAnyway",
            min_domains: v["minDomains"].as_i64().unwrap_or(1),
            selector: LabelSelector::from_value(v.get("labelSelector")).unwrap_or_else(|_| LabelSelector::none()),
            match_label_keys: keys.map(Into::into).collect(),
            honor_affinity: v["nodeAffinityPolicy"] != "Ignore",
            honor_taints: v["nodeTaintsPolicy"] == "Honor",
        }
    }

    /// The selector, narrowed to the incoming pod's own values of `matchLabelKeys`.
    pub fn selector_for(&self, pod: &Pod) -> LabelSelector {
        let mut s = self.selector.clone();
        for k in &self.match_label_keys {
            if let Some(v) = pod.meta.label(k) {
                s.requirements.push(Requirement {
                    key: k.to_string(),
                    operator: Operator::In,
                    values: vec![v.to_owned()],
                });
            }
        }
        s
    }

    /// Whether pods on the node count.
    pub fn counts(&self, pod: &Pod, node: &Node) -> bool {
        let Some(n) = &node.entry else { return false };
        (!self.honor_affinity || pod.view.affinity.admits(n))
            && (!self.honor_taints || untolerated(&n.view.taints, &pod.view.tolerations).is_none())
    }
}
