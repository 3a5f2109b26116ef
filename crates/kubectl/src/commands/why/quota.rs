//! Which resources of a ResourceQuota are exhausted. Pure.

use super::finding::{Explanation, Finding, State, plural};
use meta::{Quantity, Value};

pub fn explain(quota: &Value) -> Explanation {
    let Some(hard) = quota.pointer("/status/hard").and_then(Value::as_object) else {
        let finding = Finding::new("NotCounted", "the resource quota controller has not counted what is used yet");
        return Explanation::new(State::Pending, "has not been counted").because([finding]);
    };
    let mut findings = Vec::new();
    if quota["spec"]["hard"] != quota["status"]["hard"] {
        let message = "its limits were changed, and the resource quota controller has not acted on the change yet";
        findings.push(Finding::new("NotCounted", message));
    }
    let mut exhausted = 0;
    for (resource, limit) in hard {
        let limit = limit.as_str().unwrap_or_default();
        let used = quota["status"]["used"][resource].as_str().unwrap_or("0");
        let (Ok(a), Ok(b)) = (Quantity::parse(used), Quantity::parse(limit)) else { continue };
        if a >= b {
            exhausted += 1;
            let message = match a > b {
                true => format!("{resource}: {used} of {limit} are used, more than allowed: no more can be created"),
                false => format!("{resource}: {used} of {limit} are used: no more can be created"),
            };
            findings.push(Finding::new("Exhausted", message));
        }
    }
    match exhausted {
        0 => Explanation::new(State::Healthy, "is healthy: no resource is exhausted"),
        n => {
            let all = hard.len();
            Explanation::new(State::Failed, format!("is exhausted: {n} of {all} resource{}", plural(all)))
        }
    }
    .because(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_what_is_exhausted() {
        let check = |used: Value, expect: &str| {
            let hard = json!({"pods": "2", "requests.cpu": "1"});
            let quota = json!({"spec": {"hard": hard}, "status": {"hard": hard, "used": used}});
            assert_eq!(explain(&quota).text("resourcequota/q", jiff::Timestamp::UNIX_EPOCH), expect);
        };
        check(json!({"pods": "1", "requests.cpu": "900m"}), "resourcequota/q is healthy: no resource is exhausted\n");
        check(
            json!({"pods": "2", "requests.cpu": "1500m"}),
            "resourcequota/q is exhausted: 2 of 2 resources\n  pods: 2 of 2 are used: no more can be created\n  requests.cpu: 1500m of 1 are used, more than allowed: no more can be created\n",
        );
        let e = explain(&json!({"spec": {"hard": {"pods": "1"}}}));
        assert!(!e.state.is_healthy() && e.summary == "has not been counted");
    }
}
