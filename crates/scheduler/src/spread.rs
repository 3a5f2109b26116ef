//! Topology spread constraints.

use client::Meta;
use meta::LabelSelector;
use meta::selector::{Operator, Requirement};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Constraint {
    pub max_skew: i64,
    pub topology_key: Box<str>,
    /// `DoNotSchedule`, not `ScheduleAnyway`.
    pub hard: bool,
    pub min_domains: i64,
    selector: LabelSelector,
    match_label_keys: Vec<Box<str>>,
    /// `nodeAffinityPolicy`: count only nodes that the pod's affinity admits.
    pub honor_affinity: bool,
    /// `nodeTaintsPolicy`: count only nodes whose taints the pod tolerates.
    pub honor_taints: bool,
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

    /// A constraint of a scheduler for pods without constraints.
    pub fn system(max_skew: i64, topology_key: &str) -> Self {
        Self {
            max_skew,
            topology_key: topology_key.into(),
            hard: false,
            min_domains: 1,
            selector: LabelSelector::none(),
            match_label_keys: Vec::new(),
            honor_affinity: true,
            honor_taints: false,
        }
    }

    /// The label selector with the pod's values of `matchLabelKeys`.
    pub fn selector_for(&self, pod: &Meta) -> LabelSelector {
        let mut s = self.selector.clone();
        for k in &self.match_label_keys {
            if let Some(v) = pod.label(k) {
                s.requirements.push(Requirement {
                    key: k.to_string(),
                    operator: Operator::In,
                    values: vec![v.to_owned()],
                });
            }
        }
        s
    }
}
