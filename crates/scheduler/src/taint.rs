//! Taints and tolerations.

use serde::Deserialize;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: Box<str>,
    pub value: Box<str>,
    pub effect: Box<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    pub key: Box<str>,
    pub operator: Box<str>,
    pub value: Box<str>,
    pub effect: Box<str>,
}

impl Toleration {
    /// An empty effect matches every effect, an empty key (with `Exists`) every key. `Lt` and `Gt` compare integers; a taint whose value
    /// is no integer is not tolerated.
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

pub fn tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|t| t.tolerates(taint))
}

/// The first taint that is not tolerated.
pub fn untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration]) -> Option<&'a Taint> {
    taints.iter().filter(|t| matches!(&*t.effect, "NoSchedule" | "NoExecute")).find(|t| !tolerated(t, tolerations))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations() {
        let taint = Taint { key: "k".into(), value: "5".into(), effect: "NoSchedule".into() };
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
            let t =
                Toleration { key: key.into(), operator: operator.into(), value: value.into(), effect: effect.into() };
            assert_eq!(t.tolerates(&taint), expect, "{t:?}");
        }
    }
}
