//! ResourceQuota: limited resources and scopes.

use crate::Config;
use crate::plain::Ruled;
use crate::pod_template::amount;
use crate::read::{items, shown, shown_field, text};
use crate::table::Row;
use kinds::columns::{Cell, display};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Quantity, Value, names};
use std::collections::BTreeSet;

pub fn row(_: &Config) -> Row {
    Row::stored(
        Ruled::new(validate)
            .with_cells(cells)
            .with_update(validate_update)
            .with_status(validate_status)
            .with_warnings(warnings),
    )
}

/// Resources that only quotas limit.
pub(super) const QUOTA: [&str; 18] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
];

const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

fn validate(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    counted(&spec["hard"], &path.child("hard"), errors);
    let (scopes, hard) = (items(spec, "scopes"), &spec["hard"]);
    let at = path.child("scopes");
    let mut wrong = |why: &str| errors.push(FieldError::invalid(&at, scopes, why));
    for scope in scopes.iter().map(|s| s.as_str().unwrap_or_default()) {
        if !SCOPES.contains(&scope) {
            wrong("unsupported scope");
        }
        (0..misapplied(scope, hard)).for_each(|_| wrong(MISAPPLIED));
    }
    (0..conflicts(|s| scopes.iter().any(|x| *x == s))).for_each(|_| wrong(CONFLICTING));
    if spec["scopeSelector"].is_object() {
        scope_selector(spec, &path.child("scopeSelector"), errors);
    }
}

/// Returns warnings for a new quota with more requests than limits.
fn warnings(o: &Object, old: Option<&Object>) -> Vec<String> {
    let hard = |name: &str| {
        let text = o.at(&["spec", "hard", name])?.as_str()?;
        Some((name.to_owned(), Quantity::parse(text).ok()?))
    };
    let excess = |resource: &&str| {
        let named = || hard(resource).filter(|_| matches!(*resource, "cpu" | "memory"));
        let (request, amount) = hard(&format!("requests.{resource}")).or_else(named)?;
        let (limit, most) = hard(&format!("limits.{resource}"))?;
        let why = || format!("ResourceQuota {request} ({amount}) should be less than {limit} ({most})");
        (amount > most).then(why)
    };
    let resources = ["cpu", "memory", "storage", "ephemeral-storage"];
    resources.iter().filter(|_| old.is_none()).filter_map(excess).collect()
}

/// Checks that the set of scopes is unchanged.
fn validate_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    let of = |o: &Object| items(o.get("spec").unwrap_or(&Value::Null), "scopes").to_vec();
    let set = |scopes: &[Value]| scopes.iter().filter_map(|s| s.as_str().map(str::to_owned)).collect::<BTreeSet<_>>();
    let (new, was) = (of(o), of(old));
    if set(&new) != set(&was) {
        let at = FieldPath::new("spec.scopes");
        let value = shown_field(o.at(&["spec", "scopes"]), "io.k8s.api.core.v1.ResourceQuotaSpec", "scopes", &at);
        errors.push(FieldError::invalid(&at, value, "field is immutable"));
    }
}

fn validate_status(o: &Object, _old: &Object, errors: &mut ErrorList) {
    let status = o.get("status").unwrap_or(&Value::Null);
    for part in ["hard", "used"] {
        counted(&status[part], &FieldPath::new("status").child(part), errors);
    }
}

pub(super) fn is_huge(name: &str) -> bool {
    ["hugepages-", "requests.hugepages-", "limits.hugepages-"].iter().any(|p| name.starts_with(p))
}

/// Validates the amounts of limited resources.
fn counted(amounts: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for (k, v) in amounts.as_object().into_iter().flatten() {
        let at = at.key(k);
        let bad = names::qualified_name(k);
        let qualified = bad.is_empty();
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at, k.as_str(), m)));
        if !k.contains('/') && !QUOTA.contains(&k.as_str()) && k != "services.loadbalancers" && !is_huge(k) {
            if qualified && k != "storage" {
                errors.push(FieldError::invalid(
                    &at,
                    k.as_str(),
                    "must be a standard resource type or fully qualified",
                ));
            }
            errors.push(FieldError::invalid(&at, k.as_str(), "must be a standard resource for quota"));
        }
        amount(k, v, &at, errors);
    }
}

const MISAPPLIED: &str = "unsupported scope applied to resource";
const CONFLICTING: &str = "conflicting scopes";

/// Counts the pairs of contradictory scopes.
fn conflicts(has: impl Fn(&str) -> bool) -> usize {
    [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")]
        .iter()
        .filter(|(a, b)| has(a) && has(b))
        .count()
}

/// Resources of pods, and of claims, to which scopes apply.
const OF_PODS: [&str; 7] = ["pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
const OF_CLAIMS: [&str; 2] = ["persistentvolumeclaims", "requests.storage"];

/// Counts the limited resources to which a scope does not apply.
fn misapplied(scope: &str, hard: &Value) -> usize {
    let limited = hard.as_object().into_iter().flatten().map(|(k, _)| k.as_str());
    let limited = limited.filter(|k| QUOTA.contains(k) || *k == "services.loadbalancers" || is_huge(k));
    let wrong = |k: &&str| match scope {
        "BestEffort" => *k != "pods",
        "VolumeAttributesClass" => !OF_CLAIMS.contains(k),
        known if SCOPES.contains(&known) => !OF_PODS.contains(k),
        _ => false,
    };
    limited.filter(wrong).count()
}

/// Validates a scope selector. Upstream reports no index for its errors.
fn scope_selector(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let s = &spec["scopeSelector"];
    let at = path.child("matchExpressions");
    let expressions = items(s, "matchExpressions");
    for e in expressions {
        let (scope, operator, values) = (text(e, "scopeName"), text(e, "operator"), items(e, "values"));
        if !SCOPES.contains(&scope) {
            errors.push(FieldError::invalid(&at.child("scopeName"), scope, "unsupported scope"));
        }
        for _ in 0..misapplied(scope, &spec["hard"]) {
            let shown = shown(s, "io.k8s.api.core.v1.ScopeSelector", path);
            errors.push(FieldError::invalid(&at, shown, MISAPPLIED));
        }
        let valued = matches!(scope, "PriorityClass" | "VolumeAttributesClass");
        if !valued && SCOPES.contains(&scope) && operator != "Exists" {
            let why = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.push(FieldError::invalid(&at.child("operator"), operator, why));
        }
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.push(FieldError::required(&at.child("values"), why));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.push(FieldError::invalid(&at.child("values"), values, why));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.push(FieldError::invalid(&at.child("operator"), other, "not a valid selector operator")),
        }
    }
    // Upstream reports the wrong value here.
    for _ in 0..conflicts(|s| expressions.iter().any(|e| e["scopeName"] == s)) {
        errors.push(FieldError::invalid(&at, &spec["scopes"], CONFLICTING));
    }
}

/// Evaluates the table cell functions of the kind.
fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "quotaRequest" | "quotaLimit" => quota(o, cell.function == "quotaLimit").into(),
        _ => return None,
    })
}

fn quota(o: &Object, limits: bool) -> String {
    let hard = o.at(&["status", "hard"]).or_else(|| o.at(&["spec", "hard"]));
    let all: Vec<String> = hard
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(k, _)| k.starts_with("limits.") == limits)
        .map(|(k, h)| format!("{k}: {}/{}", o.str_at(&["status", "used", k]).unwrap_or("0"), display(h)))
        .collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_create;
    use serde_json::json;

    #[test]
    fn validates_resources_and_scopes() {
        let base = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}});
        let scope = "spec.scopes: Invalid value:";
        let selector = "spec.scopeSelector.matchExpressions";
        let expression = |e: Value| json!({"matchExpressions": [e]});
        check_create(
            &Ruled::new(validate),
            &base,
            &[
                ("", Value::Null, &[]),
                (
                    "/spec/hard",
                    json!({"requests.example.com/gpu": "1", "count/a.example": "1", "services.loadbalancers": "1"}),
                    &[],
                ),
                (
                    "/spec/hard",
                    json!({"pods": "-1"}),
                    &["spec.hard[pods]: Invalid value: \"-1\": must be greater than or equal to 0"],
                ),
                (
                    "/spec/hard",
                    json!({"pods": "500m"}),
                    &["spec.hard[pods]: Invalid value: \"500m\": must be an integer"],
                ),
                (
                    "/spec/hard",
                    json!({"other": "1"}),
                    &[
                        "spec.hard[other]: Invalid value: \"other\": must be a standard resource type or fully qualified",
                        "spec.hard[other]: Invalid value: \"other\": must be a standard resource for quota",
                    ],
                ),
                ("/spec/scopes", json!(["BestEffort"]), &[]),
                (
                    "/spec",
                    json!({"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}),
                    &[&format!("{scope} [\"BestEffort\"]: unsupported scope applied to resource")],
                ),
                ("/spec/scopes", json!(["Other"]), &[&format!("{scope} [\"Other\"]: unsupported scope")]),
                (
                    "/spec/scopes",
                    json!(["BestEffort", "NotBestEffort"]),
                    &[&format!("{scope} [\"BestEffort\",\"NotBestEffort\"]: conflicting scopes")],
                ),
                (
                    "/spec",
                    json!({"hard": {"secrets": "1"}, "scopes": ["Terminating"]}),
                    &[&format!("{scope} [\"Terminating\"]: unsupported scope applied to resource")],
                ),
                (
                    "/spec/scopeSelector",
                    expression(json!({"scopeName": "PriorityClass", "operator": "In", "values": ["a"]})),
                    &[],
                ),
                (
                    "/spec/scopeSelector",
                    expression(json!({"scopeName": "PriorityClass", "operator": "In"})),
                    &[&format!(
                        "{selector}.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
                    )],
                ),
                (
                    "/spec/scopeSelector",
                    expression(json!({"scopeName": "PriorityClass", "operator": "Exists", "values": ["a"]})),
                    &[&format!(
                        "{selector}.values: Invalid value: [\"a\"]: must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
                    )],
                ),
                (
                    "/spec/scopeSelector",
                    expression(json!({"scopeName": "Terminating", "operator": "In", "values": ["a"]})),
                    &[&format!("{selector}.operator: Invalid value: \"In\": must be 'Exists' when scope is any of …")],
                ),
            ],
        );
    }
}
