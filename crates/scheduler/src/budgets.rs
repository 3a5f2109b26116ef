//! Pod disruption budgets, for preemption.

use client::Entry;
use client::informer::or_default;
use meta::LabelSelector;
use serde::Deserialize;
use serde_json::{Map, Value};

pub type Budget = Entry<BudgetInfo>;

/// The selector and the status of a disruption budget.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Raw")]
pub struct BudgetInfo {
    pub selector: LabelSelector,
    pub disruptions_allowed: i64,
    /// The names of the pods whose disruption the API server has granted.
    pub disrupted_pods: Vec<Box<str>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Raw {
    spec: RawSpec,
    status: RawStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawSpec {
    selector: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    disruptions_allowed: i64,
    #[serde(deserialize_with = "or_default")]
    disrupted_pods: Map<String, Value>,
}

impl Default for BudgetInfo {
    fn default() -> Self {
        Raw::default().into()
    }
}

impl From<Raw> for BudgetInfo {
    /// A selector that is invalid, missing or empty selects nothing.
    fn from(raw: Raw) -> Self {
        let selector = LabelSelector::from_value(raw.spec.selector.as_ref()).unwrap_or_else(|_| LabelSelector::none());
        Self {
            selector: if selector.is_everything() { LabelSelector::none() } else { selector },
            disruptions_allowed: raw.status.disruptions_allowed,
            disrupted_pods: raw.status.disrupted_pods.into_iter().map(|(name, _)| name.into()).collect(),
        }
    }
}
