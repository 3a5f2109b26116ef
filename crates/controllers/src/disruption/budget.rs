//! What a disruption budget allows (upstream `disruption.go`). Pure: data to data.

use crate::views::{PodEntry, scaled};
use jiff::{SignedDuration, Timestamp};
use meta::{Map, Object, Value};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How long an evicted pod counts as disrupted before its deletion is seen.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);

/// How many pods must be healthy.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// A share of the pods that their controllers want.
    MaxUnavailable(Value),
    /// A number of pods, or a percentage of those that their controllers want.
    MinAvailable(Value),
    None,
}

impl Rule {
    pub fn read(budget: &Object) -> Self {
        let field = |k| budget.at(&["spec", k]).filter(|v| !v.is_null()).cloned();
        match (field("maxUnavailable"), field("minAvailable")) {
            (Some(v), _) => Self::MaxUnavailable(v),
            (None, Some(v)) => Self::MinAvailable(v),
            (None, None) => Self::None,
        }
    }

    /// Whether the sizes of the pods' controllers matter.
    pub fn needs_scale(&self) -> bool {
        match self {
            Self::MaxUnavailable(_) => true,
            Self::MinAvailable(v) => v.is_string(),
            Self::None => false,
        }
    }

    /// `(expectedPods, desiredHealthy)`. `pods`: the number of selected pods; `scale`: the sum of the sizes of their controllers.
    fn counts(&self, pods: i64, scale: i64) -> (i64, i64) {
        match self {
            Self::MaxUnavailable(v) => (scale, (scale - scaled(v, scale, f64::ceil)).max(0)),
            Self::MinAvailable(v) if v.is_string() => (scale, scaled(v, scale, f64::ceil)),
            Self::MinAvailable(v) => (pods, v.as_i64().unwrap_or(0)),
            Self::None => (0, 0),
        }
    }
}

/// Evicted pods whose deletion is not seen yet, by name.
type Disrupted = BTreeMap<String, Timestamp>;

/// The result of a look at a budget's pods.
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    pub current_healthy: i64,
    pub desired_healthy: i64,
    pub expected_pods: i64,
    pub disruptions_allowed: i64,
    disrupted: Disrupted,
    /// Evicted pods that were not deleted in time.
    pub not_deleted: Vec<String>,
    /// When the first of the evicted pods counts again.
    pub recheck: Option<Timestamp>,
}

fn disrupted(budget: &Object) -> Disrupted {
    let all = budget.at(&["status", "disruptedPods"]).and_then(Value::as_object);
    let time = |v: &Value| v.as_str().and_then(meta::time::parse);
    all.into_iter().flatten().filter_map(|(k, v)| Some((k.clone(), time(v)?))).collect()
}

/// When a pod that was evicted at `at` counts again. The time comes from the status, which others may write.
fn deadline(at: Timestamp) -> Timestamp {
    at.checked_add(DELETION_TIMEOUT).unwrap_or(Timestamp::MAX)
}

/// Counts the pods of a budget. `scale`: the sum of the sizes of their controllers.
pub fn check(budget: &Object, rule: &Rule, pods: &[Arc<PodEntry>], scale: i64, now: Timestamp) -> Verdict {
    let (expected_pods, desired_healthy) = rule.counts(pods.len() as i64, scale);
    let evicted = disrupted(budget);
    let (mut kept, mut not_deleted, mut current_healthy) = (Disrupted::new(), Vec::new(), 0);
    for p in pods.iter().filter(|p| !p.meta.is_deleting()) {
        match evicted.get(&*p.meta.name) {
            Some(at) if deadline(*at) > now => {
                kept.insert(p.meta.name.to_string(), *at);
                continue;
            }
            Some(_) => not_deleted.push(p.meta.name.to_string()),
            None => {}
        }
        current_healthy += i64::from(p.view.is_ready());
    }
    let room = (current_healthy - desired_healthy).max(0);
    Verdict {
        current_healthy,
        desired_healthy,
        expected_pods,
        disruptions_allowed: if expected_pods <= 0 { 0 } else { room },
        recheck: kept.values().min().map(|at| deadline(*at)),
        disrupted: kept,
        not_deleted,
    }
}

/// Sets a condition; its time changes with its status only.
fn set_condition(status: &mut Map<String, Value>, mut condition: Value, now: Timestamp) {
    let mut all = status.remove("conditions").and_then(|c| c.as_array().cloned()).unwrap_or_default();
    let held = all.iter_mut().find(|c| c["type"] == condition["type"]);
    let since = held.as_ref().filter(|c| c["status"] == condition["status"]).map(|c| c["lastTransitionTime"].clone());
    condition["lastTransitionTime"] = since.unwrap_or_else(|| meta::time::format(now).into());
    match held {
        Some(c) => *c = condition,
        None => all.push(condition),
    }
    status.insert("conditions".into(), all.into());
}

/// The status of a budget.
pub fn status(budget: &Object, v: &Verdict, now: Timestamp) -> Map<String, Value> {
    let mut s = budget.get("status").and_then(Value::as_object).cloned().unwrap_or_default();
    let counts = [
        ("currentHealthy", v.current_healthy),
        ("desiredHealthy", v.desired_healthy),
        ("expectedPods", v.expected_pods),
        ("disruptionsAllowed", v.disruptions_allowed),
        ("observedGeneration", budget.generation()),
    ];
    for (k, n) in counts {
        s.insert(k.into(), n.into());
    }
    s.remove("disruptedPods");
    if !v.disrupted.is_empty() {
        let all = v.disrupted.iter().map(|(k, at)| (k.clone(), meta::time::format(*at).into()));
        s.insert("disruptedPods".into(), Value::Object(all.collect()));
    }
    let (status, reason) =
        if v.disruptions_allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let condition = json!({"type": "DisruptionAllowed", "status": status, "reason": reason, "message": "",
        "observedGeneration": budget.generation()});
    set_condition(&mut s, condition, now);
    s
}

/// The status of a budget whose pods could not be counted: nothing may be disrupted.
pub fn failed(budget: &Object, why: &str, now: Timestamp) -> Map<String, Value> {
    let mut s = budget.get("status").and_then(Value::as_object).cloned().unwrap_or_default();
    for k in ["currentHealthy", "desiredHealthy", "expectedPods"] {
        s.entry(k).or_insert_with(|| 0.into());
    }
    s.insert("disruptionsAllowed".into(), 0.into());
    let observed = s.get("observedGeneration").cloned().unwrap_or_else(|| 0.into());
    let condition = json!({"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": why,
        "observedGeneration": observed});
    set_condition(&mut s, condition, now);
    s
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::selector_text;

    const NOW: &str = "2026-01-01T01:00:00Z";

    /// Pods by letters: `r` ready, `-` not ready, `d` ready and being deleted; named `p0`, `p1`, ….
    fn pods(states: &str) -> Vec<Arc<PodEntry>> {
        let pod = |(i, state): (usize, char)| {
            let ready = if state == '-' { "False" } else { "True" };
            let mut pod = json!({
                "metadata": {"name": format!("p{i}")},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            });
            if state == 'd' {
                pod["metadata"]["deletionTimestamp"] = NOW.into();
            }
            Arc::new(PodEntry::new(pod.to_string().into()).unwrap())
        };
        states.chars().enumerate().map(pod).collect()
    }

    /// Clauses: P16.minAvailable, P16.maxUnavailable
    #[test]
    fn counts_what_may_be_disrupted() {
        let rule = |k: &str, v: Value| Rule::read(&Object::from_value(json!({"spec": {k: v}})).unwrap());
        let (min, max) = ("minAvailable", "maxUnavailable");
        // (rule, pods, scale, (expected, desired, healthy, allowed))
        let cases = [
            (rule(min, json!(2)), "rrr", 0, (3, 2, 3, 1)),
            (rule(min, json!(2)), "rr-", 0, (3, 2, 2, 0)),
            (rule(min, json!(2)), "rrd", 0, (3, 2, 2, 0)),
            (rule(min, json!(0)), "", 0, (0, 0, 0, 0)),
            (rule(min, json!("50%")), "rrr", 3, (3, 2, 3, 1)),
            (rule(min, json!("28%")), "rrrrrrr", 7, (7, 2, 7, 5)),
            (rule(max, json!(1)), "rrr", 3, (3, 2, 3, 1)),
            (rule(max, json!(1)), "rr", 3, (3, 2, 2, 0)),
            (rule(max, json!(5)), "rr", 3, (3, 0, 2, 2)),
            (rule(max, json!("34%")), "rrr", 3, (3, 1, 3, 2)),
            (rule(max, json!("0%")), "rrr", 3, (3, 3, 3, 0)),
            (Rule::None, "rrr", 0, (0, 0, 3, 0)),
        ];
        let budget = Object::default();
        for (rule, states, scale, expected) in cases {
            let v = check(&budget, &rule, &pods(states), scale, NOW.parse().unwrap());
            let got = (v.expected_pods, v.desired_healthy, v.current_healthy, v.disruptions_allowed);
            assert_eq!(got, expected, "{rule:?} {states}");
        }
    }

    #[test]
    fn evicted_pods_count_as_gone_for_two_minutes() {
        let budget = Object::from_value(json!({
            "metadata": {"generation": 2}, "spec": {"minAvailable": 1},
            "status": {"disruptedPods": {"p0": "2026-01-01T00:59:00Z", "p1": "2026-01-01T00:57:00Z", "gone": NOW}},
        }))
        .unwrap();
        let now = NOW.parse().unwrap();
        let v = check(&budget, &Rule::read(&budget), &pods("rrr"), 0, now);
        assert_eq!((v.current_healthy, v.disruptions_allowed), (2, 1));
        assert_eq!(v.not_deleted, ["p1"]);
        assert_eq!(v.recheck, Some("2026-01-01T01:01:00Z".parse().unwrap()));
        let s = status(&budget, &v, now);
        assert_eq!(s["disruptedPods"], json!({"p0": "2026-01-01T00:59:00Z"}));
        assert_eq!((&s["observedGeneration"], &s["conditions"][0]["reason"]), (&json!(2), &json!("SufficientPods")));
        let s = failed(&budget, "no", now);
        assert_eq!((&s["disruptionsAllowed"], &s["conditions"][0]["message"]), (&json!(0), &json!("no")));
    }

    /// The end of time in a status made the controller panic, and the budget kept its last counts.
    #[test]
    fn evictions_at_the_end_of_time_are_counted() {
        let at = meta::time::format(Timestamp::MAX);
        let budget = json!({"spec": {"minAvailable": 1}, "status": {"disruptedPods": {"p0": at}}});
        let budget = Object::from_value(budget).unwrap();
        let v = check(&budget, &Rule::read(&budget), &pods("rr"), 0, NOW.parse().unwrap());
        assert_eq!((v.current_healthy, v.disruptions_allowed, v.recheck), (1, 0, Some(Timestamp::MAX)));
    }

    #[test]
    fn selectors_are_printed_as_go_does() {
        let s = json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["a", "b"]}]});
        assert_eq!(
            selector_text(Some(&s)),
            "&LabelSelector{MatchLabels:map[string]string{app: web,},MatchExpressions:[]LabelSelectorRequirement{\
             LabelSelectorRequirement{Key:k,Operator:In,Values:[a b],},},}"
        );
    }
}
