//! The status of a deployment (upstream `progress.go`): counts and progress.

use super::rolling::{max_unavailable, total};
use super::sets::{replicas, status as count};
use crate::views::condition;
use jiff::{SignedDuration, Timestamp};
use meta::{Map, Object, Value};
use serde_json::json;

pub const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
pub const CREATE_ERROR: &str = "ReplicaSetCreateError";
pub const TIMED_OUT: &str = "ProgressDeadlineExceeded";
pub const PAUSED: &str = "DeploymentPaused";
pub const RESUMED: &str = "DeploymentResumed";

/// A condition without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub kind: &'static str,
    pub status: &'static str,
    pub reason: String,
    pub message: String,
}

impl Condition {
    pub fn new(kind: &'static str, status: &'static str, reason: &str, message: impl Into<String>) -> Self {
        Self { kind, status, reason: reason.into(), message: message.into() }
    }
}

fn conditions(status: &Map<String, Value>) -> Vec<Value> {
    status.get("conditions").and_then(Value::as_array).cloned().unwrap_or_default()
}

pub fn find<'a>(status: &'a Map<String, Value>, kind: &str) -> Option<&'a Value> {
    condition(status.get("conditions"), kind)
}

/// Sets a condition, unless it has the same status and reason. The transition time is kept if the status is the same.
pub fn set_condition(status: &mut Map<String, Value>, c: &Condition, now: Timestamp) {
    set_condition_at(status, c, &Value::from(meta::time::format(now)));
}

fn set_condition_at(status: &mut Map<String, Value>, c: &Condition, at: &Value) {
    let old = find(status, c.kind).cloned();
    if old.as_ref().is_some_and(|o| o["status"] == c.status && o["reason"] == c.reason) {
        return;
    }
    let transition = match &old {
        Some(o) if o["status"] == c.status => o["lastTransitionTime"].clone(),
        _ => at.clone(),
    };
    let mut all = conditions(status);
    all.retain(|o| o["type"] != c.kind);
    all.push(json!({
        "type": c.kind, "status": c.status, "reason": c.reason, "message": c.message,
        "lastUpdateTime": at, "lastTransitionTime": transition,
    }));
    status.insert("conditions".into(), all.into());
}

pub fn remove_condition(status: &mut Map<String, Value>, kind: &str) {
    let mut all = conditions(status);
    all.retain(|o| o["type"] != kind);
    if all.is_empty() {
        status.remove("conditions");
    } else {
        status.insert("conditions".into(), all.into());
    }
}

pub fn status_of(d: &Object) -> Map<String, Value> {
    d.get("status").and_then(Value::as_object).cloned().unwrap_or_default()
}

/// The progress deadline in seconds; none if it is unlimited (the maximum of the type).
pub fn progress_deadline(d: &Object) -> Option<i64> {
    d.int_at(&["spec", "progressDeadlineSeconds"]).filter(|s| *s != i64::from(i32::MAX))
}

/// Computes counts and availability from all sets.
pub fn calculate(d: &Object, new: Option<&Object>, old: &[Object], now: Timestamp) -> Map<String, Value> {
    let sum = |field: &str| old.iter().chain(new).map(|s| count(s, field)).sum::<i64>();
    let available = sum("availableReplicas");
    let desired = total(old.iter().chain(new));
    let mut s = status_of(d);
    let counts = [
        ("replicas", sum("replicas")),
        ("updatedReplicas", new.map_or(0, |n| count(n, "replicas"))),
        ("readyReplicas", sum("readyReplicas")),
        ("availableReplicas", available),
        ("unavailableReplicas", (desired - available).max(0)),
    ];
    for (k, n) in counts {
        if n == 0 {
            s.remove(k);
        } else {
            s.insert(k.into(), n.into());
        }
    }
    s.insert("observedGeneration".into(), d.generation().into());
    // A set that its controller has not seen yet has no terminating pods.
    let known =
        |s: &Object| s.int_at(&["status", "terminatingReplicas"]).is_some() || count(s, "observedGeneration") == 0;
    if old.iter().chain(new).all(known) {
        s.insert("terminatingReplicas".into(), sum("terminatingReplicas").into());
    } else {
        s.remove("terminatingReplicas");
    }
    let c = if available >= replicas(d) - max_unavailable(d) {
        Condition::new("Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        Condition::new(
            "Available",
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        )
    };
    set_condition(&mut s, &c, now);
    s
}

fn number(s: &Map<String, Value>, field: &str) -> i64 {
    s.get(field).and_then(Value::as_i64).unwrap_or(0)
}

pub fn is_complete(d: &Object, s: &Map<String, Value>) -> bool {
    let wish = replicas(d);
    number(s, "updatedReplicas") == wish
        && number(s, "replicas") == wish
        && number(s, "availableReplicas") == wish
        && number(s, "observedGeneration") >= d.generation()
}

/// Whether the counts progressed since the last status.
fn is_progressing(d: &Object, s: &Map<String, Value>) -> bool {
    let before = status_of(d);
    let old_pods = |s: &Map<String, Value>| number(s, "replicas") - number(s, "updatedReplicas");
    number(s, "updatedReplicas") > number(&before, "updatedReplicas")
        || old_pods(s) < old_pods(&before)
        || number(s, "readyReplicas") > number(&before, "readyReplicas")
        || number(s, "availableReplicas") > number(&before, "availableReplicas")
}

fn time(c: &Value, field: &str) -> Option<Timestamp> {
    meta::time::parse(c[field].as_str()?)
}

/// Whether the progress deadline has passed, according to the condition in `s`.
fn is_timed_out(d: &Object, s: &Map<String, Value>, now: Timestamp) -> bool {
    let (Some(deadline), Some(c)) = (progress_deadline(d), find(s, "Progressing")) else { return false };
    match c["reason"].as_str() {
        Some(NEW_SET_AVAILABLE) => false,
        Some(TIMED_OUT) => true,
        _ => time(c, "lastUpdateTime").is_some_and(|t| now.duration_since(t) > SignedDuration::from_secs(deadline)),
    }
}

/// Computes the status of a rollout (upstream `syncRolloutStatus`).
pub fn rollout(d: &Object, new: Option<&Object>, old: &[Object], now: Timestamp) -> Map<String, Value> {
    let mut s = calculate(d, new, old, now);
    if progress_deadline(d).is_none() {
        remove_condition(&mut s, "Progressing");
    }
    let before = status_of(d);
    let current = find(&before, "Progressing").cloned();
    let was_complete = number(&s, "replicas") == number(&s, "updatedReplicas")
        && current.as_ref().is_some_and(|c| c["reason"] == NEW_SET_AVAILABLE);
    if progress_deadline(d).is_some() && !was_complete {
        let subject = match new {
            Some(n) => format!("ReplicaSet \"{}\"", n.name()),
            None => format!("Deployment \"{}\"", d.name()),
        };
        if is_complete(d, &s) {
            let text = format!("{subject} has successfully progressed.");
            set_condition(&mut s, &Condition::new("Progressing", "True", NEW_SET_AVAILABLE, text), now);
        } else if is_progressing(d, &s) {
            let text = format!("{subject} is progressing.");
            // The update time must change even if nothing else in the condition does.
            let transition = current.filter(|c| c["status"] == "True").map(|c| c["lastTransitionTime"].clone());
            remove_condition(&mut s, "Progressing");
            set_condition(&mut s, &Condition::new("Progressing", "True", "ReplicaSetUpdated", text), now);
            if let (Some(t), Some(Value::Array(all))) = (transition, s.get_mut("conditions"))
                && let Some(c) = all.iter_mut().find(|c| c["type"] == "Progressing")
            {
                c["lastTransitionTime"] = t;
            }
        } else if is_timed_out(d, &before, now) {
            let text = format!("{subject} has timed out progressing.");
            set_condition(&mut s, &Condition::new("Progressing", "False", TIMED_OUT, text), now);
        }
    }
    let failure = |o: &Object| condition(o.at(&["status", "conditions"]), "ReplicaFailure").cloned();
    match new.and_then(failure).or_else(|| old.iter().find_map(failure)) {
        Some(f) => {
            let text = |k: &str| f[k].as_str().unwrap_or_default().to_owned();
            let status = if f["status"] == "True" { "True" } else { "False" };
            let c = Condition::new("ReplicaFailure", status, &text("reason"), text("message"));
            set_condition_at(&mut s, &c, &f["lastTransitionTime"]);
        }
        None => remove_condition(&mut s, "ReplicaFailure"),
    }
    s
}

/// Seconds until the progress deadline must be checked; none if it does not apply.
pub fn check_again_in(d: &Object, s: &Map<String, Value>, now: Timestamp) -> Option<i64> {
    let deadline = progress_deadline(d)?;
    let c = find(s, "Progressing")?;
    if is_complete(d, s) || c["reason"] == TIMED_OUT {
        return None;
    }
    let after = deadline.saturating_sub(now.duration_since(time(c, "lastUpdateTime")?).as_secs());
    Some(after.max(0).saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(n: i64, available: i64) -> Object {
        Object::from_value(json!({
            "metadata": {"name": "web-1"}, "spec": {"replicas": n},
            "status": {"replicas": n, "readyReplicas": available, "availableReplicas": available},
        }))
        .unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn reason(s: &Map<String, Value>, kind: &str) -> String {
        find(s, kind)
            .map_or(String::new(), |c| format!("{} {}", c["status"].as_str().unwrap(), c["reason"].as_str().unwrap()))
    }

    /// Clauses: C07.Progressing, C07.progressDeadlineSeconds
    #[test]
    fn progress_stall_and_success() {
        let mut d = Object::from_value(json!({
            "metadata": {"name": "web", "generation": 1},
            "spec": {"replicas": 2, "progressDeadlineSeconds": 10, "strategy": {"type": "RollingUpdate"}},
        }))
        .unwrap();
        let step = |d: &mut Object, n: &Object, t| {
            let s = rollout(d, Some(n), &[], at(t));
            d.set(&["status"], s.clone());
            s
        };
        let s = step(&mut d, &set(2, 0), 0);
        assert_eq!(reason(&s, "Progressing"), "True ReplicaSetUpdated");
        assert_eq!(reason(&s, "Available"), "False MinimumReplicasUnavailable");
        assert_eq!(check_again_in(&d, &s, at(4)), Some(7));
        let s = step(&mut d, &set(2, 0), 10);
        assert_eq!(reason(&s, "Progressing"), "True ReplicaSetUpdated");
        let s = step(&mut d, &set(2, 0), 11);
        assert_eq!(reason(&s, "Progressing"), "False ProgressDeadlineExceeded");
        assert_eq!(check_again_in(&d, &s, at(12)), None);
        let s = step(&mut d, &set(2, 1), 20);
        assert_eq!(reason(&s, "Progressing"), "True ReplicaSetUpdated");
        let s = step(&mut d, &set(2, 2), 21);
        assert_eq!(reason(&s, "Progressing"), "True NewReplicaSetAvailable");
        assert_eq!(reason(&s, "Available"), "True MinimumReplicasAvailable");
        assert_eq!(find(&s, "Progressing").unwrap()["message"], "ReplicaSet \"web-1\" has successfully progressed.");
        // A pod that is lost later is not a rollout.
        let s = step(&mut d, &set(2, 1), 100);
        assert_eq!(reason(&s, "Progressing"), "True NewReplicaSetAvailable");
    }

    /// Clauses: C07.ReplicaFailure
    #[test]
    fn failures_of_sets_are_reported() {
        let d = Object::from_value(json!({"metadata": {"name": "web"}, "spec": {"replicas": 2}})).unwrap();
        let mut n = set(2, 0);
        n.set(
            &["status", "conditions"],
            json!([{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota",
                "lastTransitionTime": "2020-01-01T00:00:00Z"}]),
        );
        let s = rollout(&d, Some(&n), &[], at(0));
        let failure = find(&s, "ReplicaFailure").unwrap();
        assert_eq!(
            (&failure["lastUpdateTime"], &failure["lastTransitionTime"]),
            (&json!("2020-01-01T00:00:00Z"), &json!("2020-01-01T00:00:00Z")),
            "the time of the replica set's condition"
        );
        assert_eq!(reason(&s, "ReplicaFailure"), "True FailedCreate");
        assert_eq!(reason(&s, "Progressing"), "", "no deadline, no condition");
        let mut d = d;
        d.set(&["status"], s);
        assert_eq!(reason(&rollout(&d, Some(&set(2, 2)), &[], at(1)), "ReplicaFailure"), "");
    }

    /// Unavailable pods are counted from the desired sizes of the sets, also before their pods exist.
    #[test]
    fn counts_of_sets_that_change() {
        let d = Object::from_value(json!({"spec": {"replicas": 3}, "status": {"terminatingReplicas": 9}})).unwrap();
        let set = |status: Value| {
            Object::from_value(json!({"metadata": {"name": "s"}, "spec": {"replicas": 3}, "status": status})).unwrap()
        };
        let seen = json!({"observedGeneration": 1, "replicas": 1, "availableReplicas": 1});
        let mut with_terminating = seen.clone();
        with_terminating["terminatingReplicas"] = 2.into();
        let cases = [
            (None, vec![], None, Some(0)),
            (Some(set(json!({"replicas": 0}))), vec![], Some(3), Some(0)),
            (Some(set(seen.clone())), vec![], Some(2), None),
            (Some(set(json!({"replicas": 0}))), vec![set(with_terminating.clone())], Some(5), Some(2)),
            (Some(set(seen)), vec![set(with_terminating)], Some(4), None),
        ];
        for (i, (new, old, unavailable, terminating)) in cases.into_iter().enumerate() {
            let s = calculate(&d, new.as_ref(), &old, at(0));
            let get = |k: &str| s.get(k).and_then(Value::as_i64);
            assert_eq!((get("unavailableReplicas"), get("terminatingReplicas")), (unavailable, terminating), "{i}");
        }
    }
}
