//! Validation of affinity, topology spread, tolerations and scheduling gates.

use crate::read::{is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value, names};
use std::collections::{HashMap, HashSet};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub fn rules(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let at = path.child("affinity");
    let node = &spec["affinity"]["nodeAffinity"];
    let node_at = at.child("nodeAffinity");
    if is_set(node, REQUIRED) {
        node_selector_terms(&node[REQUIRED], &node_at.child(REQUIRED), errors);
    }
    for (i, p) in items(node, PREFERRED).iter().enumerate() {
        let at = node_at.child(PREFERRED).index(i).child("preference");
        term(&p["preference"], Values::Any, &at, errors);
    }
    for side in ["podAffinity", "podAntiAffinity"] {
        let terms = &spec["affinity"][side];
        let at = at.child(side);
        for (i, t) in items(terms, REQUIRED).iter().enumerate() {
            pod_term(t, &at.child(REQUIRED).index(i), errors);
        }
        for (i, t) in items(terms, PREFERRED).iter().enumerate() {
            pod_term(&t["podAffinityTerm"], &at.child(PREFERRED).index(i).child("podAffinityTerm"), errors);
        }
    }
    spread(items(spec, "topologySpreadConstraints"), &path.child("topologySpreadConstraints"), errors);
    tolerations(spec, path, errors);
    let mut gates = HashSet::new();
    for (i, g) in items(spec, "schedulingGates").iter().enumerate() {
        let at = path.child("schedulingGates").index(i);
        let name = text(g, "name");
        errors.extend(names::qualified_name(name).into_iter().map(|m| FieldError::invalid(&at, name, m)));
        if !gates.insert(name) {
            errors.push(FieldError::duplicate(&at, name));
        }
    }
}

/// Validates a `NodeSelector`, which has at least one term.
pub fn node_selector_terms(selector: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let at = at.child("nodeSelectorTerms");
    let terms = items(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        errors.push(FieldError::required(&at, "must have at least one node selector term"));
    }
    for (i, t) in terms.iter().enumerate() {
        term(t, Values::OfLabels, &at.index(i), errors);
    }
}

/// Whether values must be valid label values. Preferred terms are not checked, as upstream.
#[derive(Clone, Copy, PartialEq)]
enum Values {
    OfLabels,
    Any,
}

fn term(t: &Value, of: Values, at: &FieldPath, errors: &mut ErrorList) {
    for (i, e) in items(t, "matchExpressions").iter().enumerate() {
        let at = at.child("matchExpressions").index(i);
        let values = items(e, "values");
        match text(e, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(&at.child("values"), why));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(&at.child("values"), why));
            }
            "Gt" | "Lt" if values.len() != 1 => {
                let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                errors.push(FieldError::required(&at.child("values"), why));
            }
            _ => {}
        }
        for (j, v) in values.iter().enumerate().filter(|_| of == Values::OfLabels) {
            let v = v.as_str().unwrap_or_default();
            let at = at.child("values").index(j);
            errors.extend(names::label_value(v).into_iter().map(|m| FieldError::invalid(&at, v, m)));
        }
    }
    for (i, e) in items(t, "matchFields").iter().enumerate() {
        let at = at.child("matchFields").index(i);
        let values = items(e, "values");
        match text(e, "operator") {
            "In" | "NotIn" if values.len() != 1 => {
                let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errors.push(FieldError::required(&at.child("values"), why));
            }
            "In" | "NotIn" => {}
            other => errors.push(FieldError::invalid(&at.child("operator"), other, "not a valid selector operator")),
        }
        if text(e, "key") != "metadata.name" {
            errors.push(FieldError::invalid(&at.child("key"), &e["key"], "not a valid field selector key"));
            continue;
        }
        for (j, v) in values.iter().enumerate() {
            let v = v.as_str().unwrap_or_default();
            let at = at.child("values").index(j);
            errors.extend(names::dns_subdomain(v).into_iter().map(|m| FieldError::invalid(&at, v, m)));
        }
    }
}

/// Validates a pod affinity term. Upstream reports namespaces at `namespace`, without index.
fn pod_term(t: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for ns in items(t, "namespaces") {
        let ns = ns.as_str().unwrap_or_default();
        let at = at.child("namespace");
        errors.extend(names::dns_label(ns).into_iter().map(|m| FieldError::invalid(&at, ns, m)));
    }
    label_keys(t, at, errors);
    let key = text(t, "topologyKey");
    let at = at.child("topologyKey");
    if key.is_empty() {
        errors.push(FieldError::required(&at, "can not be empty"));
    }
    errors.extend(names::qualified_name(key).into_iter().map(|m| FieldError::invalid(&at, key, m)));
}

/// Validates `matchLabelKeys` and `mismatchLabelKeys`. On create they are merged into the selector, so a duplicate key
/// was in both.
fn label_keys(t: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let keys = |list: &str| items(t, list).iter().map(|k| k.as_str().unwrap_or_default()).collect::<Vec<_>>();
    let (same, other) = (keys("matchLabelKeys"), keys("mismatchLabelKeys"));
    for (list, keys) in [("matchLabelKeys", &same), ("mismatchLabelKeys", &other)] {
        let at = at.child(list);
        if !keys.is_empty() && !is_set(t, "labelSelector") {
            errors.push(FieldError::forbidden(&at, "must not be specified when labelSelector is not set"));
            continue;
        }
        for (i, k) in keys.iter().enumerate() {
            errors.extend(names::qualified_name(k).into_iter().map(|m| FieldError::invalid(&at.index(i), *k, m)));
        }
    }
    let selector = &t["labelSelector"];
    let mut seen: HashSet<&str> =
        selector["matchLabels"].as_object().into_iter().flatten().map(|(k, _)| k.as_str()).collect();
    let last: HashMap<&str, usize> = same.iter().enumerate().map(|(i, k)| (*k, i)).collect();
    for e in items(selector, "matchExpressions") {
        let key = text(e, "key");
        if let Some(i) = last.get(key).copied().filter(|_| seen.contains(key)) {
            let why = "exists in both matchLabelKeys and labelSelector";
            errors.push(FieldError::invalid(&at.index(i), key, why));
        }
        seen.insert(key);
    }
    let other: HashSet<&str> = other.into_iter().collect();
    for (i, k) in same.iter().enumerate().filter(|(_, k)| other.contains(*k)) {
        let why = "exists in both matchLabelKeys and mismatchLabelKeys";
        errors.push(FieldError::invalid(&at.child("matchLabelKeys").index(i), *k, why));
    }
}

fn spread(constraints: &[Value], path: &FieldPath, errors: &mut ErrorList) {
    fn pair(c: &Value) -> (&str, &str) {
        (text(c, "topologyKey"), text(c, "whenUnsatisfiable"))
    }
    let last: HashMap<(&str, &str), usize> = constraints.iter().enumerate().map(|(i, c)| (pair(c), i)).collect();
    for (i, c) in constraints.iter().enumerate() {
        let at = path.index(i);
        let mine = pair(c);
        if last.get(&mine).is_some_and(|last| *last > i) {
            let what = format!("{{{}, {}}}", mine.0, mine.1);
            errors.push(FieldError::duplicate(&at.child("{topologyKey, whenUnsatisfiable}"), what));
        }
        if is_set(c, "minDomains") && mine.1 != "DoNotSchedule" {
            let why = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}", mine.1);
            errors.push(FieldError::invalid(&at.child("minDomains"), &c["minDomains"], why));
        }
        for k in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if let Some(policy) = c[k].as_str()
                && !matches!(policy, "Honor" | "Ignore")
            {
                errors.push(FieldError::not_supported(&at.child(k), policy, &["Honor", "Ignore"]));
            }
        }
        label_keys(c, &at, errors);
    }
}

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

const OPERATORS: [&str; 4] = ["Equal", "Exists", "Lt", "Gt"];

pub fn tolerations(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    for (i, t) in items(spec, "tolerations").iter().enumerate() {
        let at = path.child("tolerations").index(i);
        let operator = text(t, "operator");
        let value = text(t, "value");
        if text(t, "key").is_empty() && operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(&at.child("operator"), operator, why));
        }
        if is_set(t, "tolerationSeconds") && t["effect"] != "NoExecute" {
            let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(&at.child("effect"), text(t, "effect"), why));
        }
        match operator {
            "Equal" | "" => {
                let bad = names::label_value(value);
                if !bad.is_empty() {
                    errors.push(FieldError::invalid(&at.child("operator"), value, bad.join(";")));
                }
            }
            "Exists" if !value.is_empty() => {
                let why = "value must be empty when `operator` is 'Exists'";
                errors.push(FieldError::invalid(&at.child("operator"), value, why));
            }
            "Exists" => {}
            other => {
                // Comparisons are behind a gate that is off by default, but they are listed if one is tried.
                let listed = if matches!(other, "Lt" | "Gt") { &OPERATORS[..] } else { &OPERATORS[..2] };
                errors.push(FieldError::not_supported(&at.child("operator"), other, listed));
            }
        }
        let effect = text(t, "effect");
        if !effect.is_empty() && !EFFECTS.contains(&effect) {
            errors.push(FieldError::not_supported(&at.child("effect"), effect, &EFFECTS));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::check_pod_spec;
    use serde_json::json;

    #[test]
    fn validates_tolerations() {
        let empty = "tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        let effects = r#"tolerations[0].effect: Unsupported value: "Other": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute""#;
        check_pod_spec(&[
            ("/tolerations", json!([{"operator": "Exists"}, {"key": "k", "value": "v", "effect": "NoSchedule"}]), &[]),
            ("/tolerations", json!([{"operator": "Equal"}]), &[empty]),
            (
                "/tolerations",
                json!([{"key": "k", "operator": "Exists", "value": "v"}]),
                &["tolerations[0].operator: Invalid value: \"v\": value must be empty when `operator` is 'Exists'"],
            ),
            (
                "/tolerations",
                json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 1}]),
                &[
                    "tolerations[0].effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute' when `tolerationSeconds` is set",
                ],
            ),
            ("/tolerations", json!([{"key": "k", "operator": "Exists", "effect": "Other"}]), &[effects]),
        ]);
    }

    #[test]
    fn validates_affinity() {
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let terms = format!("affinity.nodeAffinity.{required}.nodeSelectorTerms");
        let node = |terms: serde_json::Value| json!({"nodeAffinity": {required: {"nodeSelectorTerms": terms}}});
        let expression = |e: serde_json::Value| node(json!([{"matchExpressions": [e]}]));
        let at = format!("{terms}[0].matchExpressions[0].values");
        let pods = format!("affinity.podAntiAffinity.{required}[0]");
        let pod = |term: serde_json::Value| json!({"podAntiAffinity": {required: [term]}});
        let keys = "must not be specified when labelSelector is not set";
        check_pod_spec(&[
            (
                "/affinity",
                node(json!([{"matchFields": [{"key": "a b", "operator": "Other", "values": ["x"]}]}])),
                &[
                    &format!(
                        "{terms}[0].matchFields[0].operator: Invalid value: \"Other\": not a valid selector operator"
                    ),
                    &format!("{terms}[0].matchFields[0].key: Invalid value: \"a b\": not a valid field selector key"),
                ],
            ),
            (
                "/affinity",
                node(json!([])),
                &[&format!("{terms}: Required value: must have at least one node selector term")],
            ),
            ("/affinity", expression(json!({"key": "k", "operator": "Exists"})), &[]),
            (
                "/affinity",
                expression(json!({"key": "k", "operator": "In"})),
                &[&format!("{at}: Required value: must be specified when `operator` is 'In' or 'NotIn'")],
            ),
            (
                "/affinity",
                expression(json!({"key": "k", "operator": "Exists", "values": ["v"]})),
                &[&format!("{at}: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'")],
            ),
            (
                "/affinity",
                expression(json!({"key": "k", "operator": "Gt", "values": ["1", "2"]})),
                &[&format!("{at}: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'")],
            ),
            ("/affinity", pod(json!({"topologyKey": "k", "labelSelector": {}})), &[]),
            (
                "/affinity",
                pod(json!({"topologyKey": "k", "matchLabelKeys": ["a"]})),
                &[&format!("{pods}.matchLabelKeys: Forbidden: {keys}")],
            ),
            (
                "/affinity",
                pod(
                    json!({"topologyKey": "k", "labelSelector": {}, "matchLabelKeys": ["a"], "mismatchLabelKeys": ["a"]}),
                ),
                &[&format!(
                    "{pods}.matchLabelKeys[0]: Invalid value: \"a\": exists in both matchLabelKeys and mismatchLabelKeys"
                )],
            ),
        ]);
    }

    #[test]
    fn validates_topology_spread_and_gates() {
        let constraint =
            |when: &str| json!({"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": when, "labelSelector": {}});
        let mut domains = constraint("ScheduleAnyway");
        domains["minDomains"] = 2.into();
        let pair =
            "topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}: Duplicate value: \"{k, DoNotSchedule}\"";
        check_pod_spec(&[
            ("/topologySpreadConstraints", json!([constraint("DoNotSchedule"), constraint("ScheduleAnyway")]), &[]),
            ("/topologySpreadConstraints", json!([constraint("DoNotSchedule"), constraint("DoNotSchedule")]), &[pair]),
            (
                "/topologySpreadConstraints",
                json!([domains]),
                &[
                    "topologySpreadConstraints[0].minDomains: Invalid value: 2: can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway",
                ],
            ),
            (
                "/schedulingGates",
                json!([{"name": "a"}, {"name": "a"}]),
                &["schedulingGates[1]: Duplicate value: \"a\""],
            ),
        ]);
    }
}
