//! Pod failure policies and success policies (upstream `pod_failure_policy.go`, `success_policy.go`).

use super::intervals::Intervals;
use super::pod::JobPod;
use super::spec::{FailureRule, OnExitCodes, PodFailurePolicy, SuccessPolicy};

/// What a pod failure policy says about a failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The failure counts toward the back-off limits.
    Count,
    Ignore,
    FailIndex,
    /// The job fails, with this message.
    FailJob(String),
}

impl Verdict {
    /// The name of the action.
    pub fn action(&self) -> &'static str {
        match self {
            Self::Count => "Count",
            Self::Ignore => "Ignore",
            Self::FailIndex => "FailIndex",
            Self::FailJob(_) => "FailJob",
        }
    }
}

/// The action of the first rule that matches a failed pod. Without one the failure counts.
pub fn match_failure(policy: Option<&PodFailurePolicy>, pod: &JobPod) -> Verdict {
    match_rule(policy, pod).unwrap_or(Verdict::Count)
}

/// The action of the first rule that matches a failed pod, if there is one.
pub fn match_rule(policy: Option<&PodFailurePolicy>, pod: &JobPod) -> Option<Verdict> {
    let rules = policy.map(|p| p.rules.as_slice()).unwrap_or_default();
    let matching = rules.iter().enumerate().filter_map(|(i, rule)| verdict(i, rule, pod));
    matching.into_iter().next()
}

/// Whether the failure of a pod counts.
pub fn counts(policy: Option<&PodFailurePolicy>, pod: &JobPod) -> bool {
    match_failure(policy, pod) != Verdict::Ignore
}

/// None if the rule does not match.
fn verdict(index: usize, rule: &FailureRule, pod: &JobPod) -> Option<Verdict> {
    let meta = &pod.entry.meta;
    let (subject, action) = (format_args!("{}/{}", meta.namespace, meta.name).to_string(), rule.action.as_str());
    let message = match &rule.on_exit_codes {
        Some(on) => {
            let (container, code) = pod.exit_code(|name, code| matches_exit_code(on, name, code))?;
            format!(
                "Container {container} for pod {subject} failed with exit code {code} matching {action} rule at index {index}"
            )
        }
        None => {
            let conditions = pod.entry.view.status.conditions.iter();
            let on = &rule.on_pod_conditions;
            let found =
                conditions.into_iter().find(|c| on.iter().any(|p| *p.r#type == *c.r#type && *p.status == *c.status));
            format!("Pod {subject} has condition {} matching {action} rule at index {index}", found?.r#type)
        }
    };
    Some(match action {
        "Ignore" => Verdict::Ignore,
        "FailIndex" => Verdict::FailIndex,
        "Count" => Verdict::Count,
        "FailJob" => Verdict::FailJob(message),
        // An action of a later version.
        _ => return None,
    })
}

fn matches_exit_code(on: &OnExitCodes, container: &str, code: i64) -> bool {
    let named = on.container_name.as_ref().is_none_or(|name| name == container);
    let listed = on.values.contains(&code);
    let matches = match on.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    };
    named && code != 0 && matches
}

/// The message of the first rule that the succeeded indexes meet.
pub fn match_success(policy: Option<&SuccessPolicy>, completions: i64, succeeded: &Intervals) -> Option<String> {
    let rules = &policy?.rules;
    if succeeded.is_empty() {
        return None;
    }
    let met = rules.iter().position(|rule| match &rule.succeeded_indexes {
        Some(indexes) => {
            let required = Intervals::parse(indexes, completions);
            let common = required.common(succeeded);
            !required.is_empty() && (common == required.total() || rule.succeeded_count.is_some_and(|n| common >= n))
        }
        None => rule.succeeded_count.is_some_and(|n| succeeded.total() >= n),
    });
    met.map(|i| format!("Matched rules at index {i}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::testing::pod;
    use serde_json::{Value, json};

    /// Clauses: C12.podFailurePolicy
    #[test]
    fn the_first_rule_that_matches_decides() {
        let codes = |main: i64, init: i64| {
            json!({"phase": "Failed",
                "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": main}}}, {"name": "side", "state": {"running": {}}}],
                "initContainerStatuses": [{"name": "init", "state": {"terminated": {"exitCode": init}}}],
            })
        };
        let on = |operator: &str, container: Value, values: &[i64]| json!({"operator": operator, "containerName": container, "values": values});
        let rule = |action: &str, codes: Value| json!({"action": action, "onExitCodes": codes});
        let any = json!([{"type": "DisruptionTarget", "status": "True"}]);
        let disrupted = json!({"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True"}]});
        let fail = |message: &str| Verdict::FailJob(message.to_owned());
        let container =
            fail("Container main for pod default/p failed with exit code 2 matching FailJob rule at index 0");
        let condition = fail("Pod default/p has condition DisruptionTarget matching FailJob rule at index 1");
        for (rules, status, expect) in [
            (json!([]), codes(1, 0), Verdict::Count),
            (json!([rule("FailJob", on("In", json!(null), &[2]))]), codes(2, 0), container.clone()),
            (json!([rule("FailJob", on("In", json!("main"), &[2]))]), codes(2, 0), container),
            (json!([rule("FailJob", on("In", json!("side"), &[2]))]), codes(2, 0), Verdict::Count),
            (json!([rule("FailIndex", on("In", json!(null), &[7]))]), codes(0, 7), Verdict::FailIndex),
            (json!([rule("Ignore", on("NotIn", json!(null), &[2]))]), codes(3, 0), Verdict::Ignore),
            (json!([rule("Ignore", on("NotIn", json!(null), &[2]))]), codes(0, 0), Verdict::Count),
            (
                json!([rule("Count", on("In", json!(null), &[2])), rule("Ignore", on("In", json!(null), &[2]))]),
                codes(2, 0),
                Verdict::Count,
            ),
            (
                json!([rule("Later", on("In", json!(null), &[2])), {"action": "Ignore", "onPodConditions": any}]),
                disrupted.clone(),
                Verdict::Ignore,
            ),
            (
                json!([rule("Ignore", on("In", json!(null), &[2])), {"action": "FailJob", "onPodConditions": any}]),
                disrupted,
                condition,
            ),
            (
                json!([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "False"}]}]),
                codes(1, 0),
                Verdict::Count,
            ),
        ] {
            let policy: PodFailurePolicy = serde_json::from_value(json!({"rules": rules})).unwrap();
            let got = match_failure(Some(&policy), &pod(json!({"status": status})));
            assert_eq!(got, expect, "{rules} {status}");
        }
    }

    /// Clauses: C12.successPolicy
    #[test]
    fn a_success_policy_is_met_by_indexes_or_their_number() {
        let check = |rules: Value, succeeded: &str, expect: Option<&str>| {
            let policy: SuccessPolicy = serde_json::from_value(json!({"rules": rules})).unwrap();
            let got = match_success(Some(&policy), 10, &Intervals::parse(succeeded, 10));
            assert_eq!(got.as_deref(), expect, "{rules} {succeeded}");
        };
        let first = Some("Matched rules at index 0");
        check(json!([{"succeededIndexes": "0-2"}]), "0-2", first);
        check(json!([{"succeededIndexes": "0-2"}]), "0,1,5", None);
        check(json!([{"succeededIndexes": "0-2", "succeededCount": 2}]), "0,1,5", first);
        check(json!([{"succeededIndexes": "0-2", "succeededCount": 2}]), "0,5,6", None);
        check(json!([{"succeededCount": 3}]), "0,5,6", first);
        check(json!([{"succeededCount": 0}]), "", None);
        check(json!([{"succeededIndexes": "x"}, {"succeededCount": 1}]), "5", Some("Matched rules at index 1"));
        check(json!([{"succeededIndexes": "8-20"}]), "8,9", first);
        assert_eq!(match_success(None, 10, &Intervals::parse("0-9", 10)), None);
    }
}
