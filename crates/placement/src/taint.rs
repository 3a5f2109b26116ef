//! Taints and tolerations.

use jiff::Timestamp;
use serde::Deserialize;

/// A taint of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    /// The key, a label key.
    pub key: Box<str>,
    /// The value; may be empty.
    pub value: Box<str>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: Box<str>,
    /// When the taint was set, for `NoExecute`.
    pub time_added: Option<Timestamp>,
}

/// A toleration of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// The key of the taints; empty for every key.
    pub key: Box<str>,
    /// `Equal` (also if empty), `Exists`, `Lt` or `Gt`.
    pub operator: Box<str>,
    /// The value to compare with.
    pub value: Box<str>,
    /// The effect of the taints; empty for every effect.
    pub effect: Box<str>,
    /// How long a `NoExecute` taint is tolerated, in seconds. None: forever.
    pub toleration_seconds: Option<i64>,
}

impl Toleration {
    /// Whether the taint is tolerated. `Lt` and `Gt` compare integers; a taint whose value is no integer is not tolerated.
    pub fn tolerates(&self, t: &Taint) -> bool {
        if !self.effect.is_empty() && self.effect != t.effect || !self.key.is_empty() && self.key != t.key {
            return false;
        }
        let numbers = || Some((t.value.parse::<i64>().ok()?, self.value.parse::<i64>().ok()?));
        match &*self.operator {
            "" | "Equal" => self.value == t.value,
            "Exists" => true,
            "Lt" => numbers().is_some_and(|(taint, mine)| taint < mine),
            "Gt" => numbers().is_some_and(|(taint, mine)| taint > mine),
            _ => false,
        }
    }
}

/// The effects that keep pods off a node.
pub const EXCLUDING: &[&str] = &["NoSchedule", "NoExecute"];

/// Whether one of the tolerations tolerates the taint.
pub fn is_tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|t| t.tolerates(taint))
}

/// The first taint with one of these effects that is not tolerated.
pub fn untolerated<'a>(taints: &'a [Taint], effects: &[&str], tolerations: &[Toleration]) -> Option<&'a Taint> {
    taints.iter().filter(|t| effects.contains(&&*t.effect)).find(|t| !is_tolerated(t, tolerations))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations() {
        let taint = Taint { key: "k".into(), value: "5".into(), effect: "NoSchedule".into(), time_added: None };
        let cases = [
            ("k", "Equal", "5", "NoSchedule", true),
            ("k", "", "5", "", true),
            ("k", "Equal", "6", "", false),
            ("k", "Exists", "", "NoExecute", false),
            ("", "Exists", "", "", true),
            ("other", "Exists", "", "", false),
            ("k", "Lt", "6", "", true),
            ("k", "Gt", "6", "", false),
        ];
        for (key, operator, value, effect, expect) in cases {
            let t = Toleration {
                key: key.into(),
                operator: operator.into(),
                value: value.into(),
                effect: effect.into(),
                toleration_seconds: None,
            };
            assert_eq!(t.tolerates(&taint), expect, "{t:?}");
        }
    }
}
