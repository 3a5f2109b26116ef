//! Whether a PodDisruptionBudget allows evictions, and which of its pods are not healthy.

use super::eviction;
use super::fields::{condition, list, name, namespace, number, selector, selects, text};
use super::finding::{Explanation, Finding, State, plural, some};
use super::reader::Reader;
use crate::error::Result;
use meta::Value;

pub async fn explain(r: &mut Reader<'_>, budget: &Value) -> Result<Explanation> {
    let pods = r.list("v1", namespace(budget), "pods").await?;
    Ok(of_budget(budget, &pods))
}

/// From a budget and the pods of its namespace. Pure.
fn of_budget(budget: &Value, pods: &[Value]) -> Explanation {
    let status = |field: &str| number(budget, &format!("/status/{field}"));
    if budget["status"].is_null() || status("observedGeneration") < number(budget, "/metadata/generation") {
        let message = "the disruption controller has not counted its pods since it was changed";
        return Explanation::new(State::Pending, "has not been counted").because([Finding::new("NotCounted", message)]);
    }
    let failed = condition(budget, "DisruptionAllowed").filter(|c| c["reason"] == "SyncFailed");
    if let Some(c) = failed {
        let finding = Finding::new("SyncFailed", format!("its pods cannot be counted: {}", text(c, "/message")));
        return Explanation::new(State::Failed, "allows no eviction").because([finding]);
    }
    let (allowed, healthy) = (status("disruptionsAllowed"), status("currentHealthy"));
    let (desired, expected) = (status("desiredHealthy"), status("expectedPods"));
    let mut findings: Vec<Finding> = unhealthy(budget, pods).into_iter().collect();
    if expected == 0 {
        let by = selector(budget, "/spec/selector");
        findings.push(Finding::new("NoPods", format!("its selector {by} matches no pods")));
        return Explanation::new(State::Healthy, "protects no pods").because(findings);
    }
    let disrupted = budget.pointer("/status/disruptedPods").and_then(Value::as_object).map_or(0, |d| d.len());
    if disrupted > 0 {
        let message =
            format!("{disrupted} eviction{} granted and not finished", if disrupted == 1 { " is" } else { "s are" });
        findings.push(Finding::new("EvictionsPending", message));
    }
    let counts = format!(
        "{healthy} of {expected} pod{} healthy, and {desired} must stay so",
        if expected == 1 { " is" } else { "s are" }
    );
    if allowed > 0 {
        let summary = format!("allows {allowed} eviction{}: {counts}", plural(allowed as usize));
        return Explanation::new(State::Healthy, summary).because(findings);
    }
    if expected <= desired {
        let change = eviction::never_allows(&budget["spec"], expected);
        let message = "it allows no eviction even if all pods are healthy";
        findings.push(Finding::new("NeverAllows", message).suggest(change));
    }
    Explanation::new(State::NotReady, format!("allows no eviction: {counts}")).because(findings)
}

/// The pods of a budget that are not ready.
fn unhealthy(budget: &Value, pods: &[Value]) -> Option<Finding> {
    if !budget["spec"]["selector"].is_object() {
        return None;
    }
    let by = selector(budget, "/spec/selector");
    let ended = |p: &Value| matches!(text(p, "/status/phase"), "Succeeded" | "Failed");
    let ready = |p: &Value| list(p, "/status/conditions").iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
    let unready = pods.iter().filter(|p| selects(&by, p) && !ended(p) && !ready(p));
    let unready: Vec<String> = unready.map(|p| name(p).to_owned()).collect();
    let first = unready.first()?;
    let command = format!("kubectl why -n {} pod/{first}", namespace(budget));
    Some(Finding::new("PodsNotReady", format!("not ready: {}", some(&unready))).suggest(command))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn explains_the_status_of_budgets() {
        let pod = |name: &str, ready: &str| {
            json!({"metadata": {"name": name, "namespace": "d", "labels": {"app": "web"}},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}})
        };
        let check = |allowed: i64, healthy: i64, expected: i64, pods: Value, expect: &str| {
            let budget = json!({"metadata": {"name": "b", "namespace": "d", "generation": 1},
                "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
                "status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": healthy,
                    "desiredHealthy": 2, "expectedPods": expected}});
            let e = of_budget(&budget, pods.as_array().unwrap());
            assert_eq!(e.text("pdb/b", jiff::Timestamp::UNIX_EPOCH), expect);
            assert_eq!(e.state.is_healthy(), allowed > 0 || expected == 0);
        };
        let (a, b, c) = (pod("a", "True"), pod("b", "True"), pod("c", "False"));
        check(1, 3, 3, json!([a, b]), "pdb/b allows 1 eviction: 3 of 3 pods are healthy, and 2 must stay so\n");
        check(
            0,
            2,
            3,
            json!([a, b, c]),
            "pdb/b allows no eviction: 2 of 3 pods are healthy, and 2 must stay so\n  not ready: c\n    => kubectl why -n d pod/c\n",
        );
        check(
            0,
            2,
            2,
            json!([a, b]),
            "pdb/b allows no eviction: 2 of 2 pods are healthy, and 2 must stay so\n  it allows no eviction even if all pods are healthy\n    => more than 2 pods, or a smaller minAvailable\n",
        );
        check(0, 0, 0, json!([]), "pdb/b protects no pods\n  its selector app=web matches no pods\n");
        let e = of_budget(&json!({"metadata": {"generation": 1}}), &[]);
        assert!(!e.state.is_healthy());
    }
}
