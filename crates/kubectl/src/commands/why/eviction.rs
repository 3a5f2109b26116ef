//! Which disruption budgets refuse the eviction of a pod. Pure.

use super::fields::{has_condition, name, namespace, number, selector, selects, text};
use super::finding::{Finding, ObjectName, plural, some};
use meta::Value;

/// Why a pod cannot be evicted now. `budgets` and `pods` are those of its namespace.
pub fn blocking(pod: &Value, budgets: &[Value], pods: &[Value]) -> Vec<Finding> {
    // As the API server: pods that do not run are evicted whatever the budgets are.
    if matches!(text(pod, "/status/phase"), "Succeeded" | "Failed" | "Pending") {
        return Vec::new();
    }
    let covers = |b: &&Value| b["spec"]["selector"].is_object() && selects(&selector(b, "/spec/selector"), pod);
    let covering: Vec<&Value> = budgets.iter().filter(covers).collect();
    if covering.len() > 1 {
        let names: Vec<String> = covering.iter().map(|b| name(b).to_owned()).collect();
        let message =
            format!("more than one PodDisruptionBudget selects the pod, so it cannot be evicted: {}", some(&names));
        return vec![Finding::new("SeveralBudgets", message)];
    }
    covering.first().and_then(|budget| of_budget(pod, budget, pods)).into_iter().collect()
}

/// Why a budget refuses the eviction of a pod that it covers.
fn of_budget(pod: &Value, budget: &Value, pods: &[Value]) -> Option<Finding> {
    let (budget_name, status) = (name(budget), |field: &str| number(budget, &format!("/status/{field}")));
    let about = ObjectName::new("policy/v1", "PodDisruptionBudget", namespace(budget), budget_name);
    if status("observedGeneration") < number(budget, "/metadata/generation") || budget["status"].is_null() {
        let message = format!(
            "PodDisruptionBudget {budget_name} has been changed, and the disruption controller has not counted its pods since"
        );
        return Some(Finding::new("BudgetNotCounted", message).about(about));
    }
    if status("disruptionsAllowed") > 0 {
        return None;
    }
    let ready = has_condition(pod, "Ready", "True");
    let (healthy, desired, expected) = (status("currentHealthy"), status("desiredHealthy"), status("expectedPods"));
    let always = budget.pointer("/spec/unhealthyPodEvictionPolicy") == Some(&Value::from("AlwaysAllow"));
    if !ready && (always || (healthy >= desired && desired > 0)) {
        return None;
    }
    let rule = ["minAvailable", "maxUnavailable"].iter().find_map(|field| {
        let value = budget.pointer(&format!("/spec/{field}"))?;
        Some(format!("{field} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
    });
    let by = selector(budget, "/spec/selector");
    let unhealthy = pods.iter().filter(|p| selects(&by, p) && !has_condition(p, "Ready", "True"));
    let unhealthy: Vec<String> = unhealthy.map(|p| name(p).to_owned()).collect();
    let mut message = format!(
        "PodDisruptionBudget {budget_name} allows no eviction: {healthy} of {expected} pods are healthy, and {desired} must stay so ({})",
        rule.unwrap_or_default(),
    );
    if !unhealthy.is_empty() {
        message.push_str(&format!("; not ready: {}", some(&unhealthy)));
    }
    let disrupted = budget.pointer("/status/disruptedPods").and_then(Value::as_object).map_or(0, |d| d.len());
    if disrupted > 0 {
        message.push_str(&format!("; {disrupted} eviction{} granted and not finished", plural(disrupted)));
    }
    let finding = Finding::new("BudgetExhausted", message).about(about);
    Some(match expected <= desired && expected > 0 {
        true => finding.suggest(format!("{}: no eviction is ever allowed", never_allows(&budget["spec"], expected))),
        false => finding,
    })
}

/// What would change a budget that allows no eviction even if all pods are healthy.
pub fn never_allows(spec: &Value, pods: i64) -> String {
    if !spec["maxUnavailable"].is_null() {
        return "a larger maxUnavailable".into();
    }
    match spec["minAvailable"].as_i64() {
        // A percentage grows with the number of pods.
        None => "a smaller minAvailable".into(),
        Some(_) => format!("more than {pods} pod{}, or a smaller minAvailable", plural(pods as usize)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, ready: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "d", "labels": {"app": "web"}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}})
    }

    fn budget(allowed: i64, healthy: i64, expected: i64) -> Value {
        json!({"metadata": {"name": "b", "namespace": "d", "generation": 1},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
            "status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": healthy,
                "desiredHealthy": 2, "expectedPods": expected}})
    }

    /// Clauses: G01.not-evictable
    #[test]
    fn names_the_budget_with_its_numbers() {
        let pods = [pod("a", "True"), pod("b", "True"), pod("c", "False")];
        let message = |pod: &Value, budgets: &[Value]| blocking(pod, budgets, &pods).first().map(|f| f.message.clone());
        let expect = "PodDisruptionBudget b allows no eviction: 2 of 3 pods are healthy, and 2 must stay so (minAvailable 2); not ready: c";
        assert_eq!(message(&pods[0], &[budget(0, 2, 3)]).as_deref(), Some(expect));
        assert_eq!(message(&pods[0], &[budget(1, 3, 3)]), None);
        assert_eq!(message(&pods[2], &[budget(0, 2, 3)]), None, "enough others are healthy");
        assert!(message(&pods[2], &[budget(0, 1, 3)]).is_some());
        let exact = blocking(&pods[0], &[budget(0, 2, 2)], &pods);
        assert!(exact[0].suggestions[0].contains("no eviction is ever allowed"), "{exact:?}");
        let two = message(&pods[0], &[budget(1, 3, 3), budget(1, 3, 3)]).unwrap();
        assert!(two.starts_with("more than one PodDisruptionBudget"), "{two}");
        let mut new = budget(1, 3, 3);
        new["metadata"]["generation"] = 2.into();
        assert!(message(&pods[0], &[new]).unwrap().contains("has not counted its pods since"));
        let empty = json!({"metadata": {"name": "b"}, "spec": {}});
        assert_eq!(message(&pods[0], &[empty]), None, "a budget without a selector covers no pod");
    }
}
