//! Where a pod may run: affinity, spread, tolerations, gates.

use crate::read::{is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value, names};
use std::collections::HashSet;

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
        term(&p["preference"], &node_at.child(PREFERRED).index(i).child("preference"), errors);
    }
    for side in ["podAffinity", "podAntiAffinity"] {
        let terms = &spec["affinity"][side];
        let at = at.child(side);
        for (i, t) in items(terms, REQUIRED).iter().enumerate() {
            topology_key(t, &at.child(REQUIRED).index(i), errors);
        }
        for (i, t) in items(terms, PREFERRED).iter().enumerate() {
            topology_key(&t["podAffinityTerm"], &at.child(PREFERRED).index(i).child("podAffinityTerm"), errors);
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
    if !gates.is_empty() && !text(spec, "nodeName").is_empty() {
        let why = "cannot be set until all schedulingGates have been cleared";
        errors.push(FieldError::forbidden(&path.child("nodeName"), why));
    }
}

/// A `NodeSelector`: at least one term.
pub fn node_selector_terms(selector: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let at = at.child("nodeSelectorTerms");
    let terms = items(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        errors.push(FieldError::required(&at, "must have at least one node selector term"));
    }
    for (i, t) in terms.iter().enumerate() {
        term(t, &at.index(i), errors);
    }
}

fn term(t: &Value, at: &FieldPath, errors: &mut ErrorList) {
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
        for (j, v) in values.iter().enumerate() {
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
            errors.push(FieldError::invalid(&at.child("key"), e["key"].clone(), "not a valid field selector key"));
        }
    }
}

fn topology_key(t: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let key = text(t, "topologyKey");
    let at = at.child("topologyKey");
    if key.is_empty() {
        errors.push(FieldError::required(&at, "can not be empty"));
    }
    errors.extend(names::qualified_name(key).into_iter().map(|m| FieldError::invalid(&at, key, m)));
}

fn spread(constraints: &[Value], path: &FieldPath, errors: &mut ErrorList) {
    for (i, c) in constraints.iter().enumerate() {
        let at = path.index(i);
        let pair = |c: &Value| (text(c, "topologyKey").to_owned(), text(c, "whenUnsatisfiable").to_owned());
        let mine = pair(c);
        for _ in constraints[i + 1..].iter().filter(|o| pair(o) == mine) {
            let what = format!("{{{}, {}}}", mine.0, mine.1);
            errors.push(FieldError::duplicate(&at.child("{topologyKey, whenUnsatisfiable}"), what));
        }
        if is_set(c, "minDomains") && mine.1 != "DoNotSchedule" {
            let why = "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway";
            errors.push(FieldError::invalid(&at.child("minDomains"), c["minDomains"].clone(), why));
        }
        for k in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if let Some(policy) = c[k].as_str()
                && !matches!(policy, "Honor" | "Ignore")
            {
                errors.push(FieldError::not_supported(&at.child(k), policy, &["Honor", "Ignore"]));
            }
        }
        for (j, k) in items(c, "matchLabelKeys").iter().enumerate() {
            let k = k.as_str().unwrap_or_default();
            let at = at.child("matchLabelKeys").index(j);
            errors.extend(names::qualified_name(k).into_iter().map(|m| FieldError::invalid(&at, k, m)));
            if !is_set(c, "labelSelector") {
                let why = "must not be specified when labelSelector is not set";
                errors.push(FieldError::forbidden(&at, why));
            }
        }
    }
}

fn tolerations(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
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
            errors.push(FieldError::invalid(&at.child("effect"), t["effect"].clone(), why));
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
                errors.push(FieldError::invalid(&at.child("operator"), t.clone(), why));
            }
            _ => {}
        }
    }
}
