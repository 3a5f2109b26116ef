//! `flowcontrol.apiserver.k8s.io`.

use crate::read::{is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};

const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

pub fn flow_schema(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    let level = text(&spec["priorityLevelConfiguration"], "name");
    let at = path.child("priorityLevelConfiguration").child("name");
    if !level.is_empty() {
        errors.extend(names::dns_subdomain(level).into_iter().map(|m| FieldError::invalid(&at, level, m)));
    }
    let exempt = o.name() == "exempt";
    if spec["matchingPrecedence"].as_i64() == Some(1) && !exempt {
        let why = "only the schema named 'exempt' may have matchingPrecedence 1";
        errors.push(FieldError::invalid(&path.child("matchingPrecedence"), 1, why));
    }
    for (i, r) in items(spec, "rules").iter().enumerate() {
        let at = path.child("rules").index(i);
        if items(r, "subjects").is_empty() {
            errors.push(FieldError::required(&at.child("subjects"), "subjects must contain at least one value"));
        }
        for (j, s) in items(r, "subjects").iter().enumerate() {
            subject(s, &at.child("subjects").index(j), errors);
        }
        if items(r, "resourceRules").is_empty() && items(r, "nonResourceRules").is_empty() {
            let why = "at least one of resourceRules and nonResourceRules has to be non-empty";
            errors.push(FieldError::required(&at, why));
        }
        for (j, x) in items(r, "resourceRules").iter().enumerate() {
            resource_rule(x, &at.child("resourceRules").index(j), errors);
        }
        for (j, x) in items(r, "nonResourceRules").iter().enumerate() {
            let at = at.child("nonResourceRules").index(j);
            verbs(x, &at, errors);
            if items(x, "nonResourceURLs").is_empty() {
                let why = "nonResourceURLs must contain at least one value";
                errors.push(FieldError::required(&at.child("nonResourceURLs"), why));
            }
        }
    }
}

fn subject(s: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let kind = text(s, "kind");
    for (k, field) in [("User", "user"), ("Group", "group"), ("ServiceAccount", "serviceAccount")] {
        if kind == k && !is_set(s, field) {
            let why = format!("{field} is required when subject kind is '{kind}'");
            errors.push(FieldError::required(&at.child(field), &why));
        } else if kind != k && is_set(s, field) && ["User", "Group", "ServiceAccount"].contains(&kind) {
            let why = format!("{field} is forbidden when subject kind is not '{k}'");
            errors.push(FieldError::forbidden(&at.child(field), &why));
        }
    }
}

/// A list of which `*` is everything.
fn with_star(r: &Value, key: &str, missing: &str, what: &str, at: &FieldPath, errors: &mut ErrorList) {
    let list = items(r, key);
    if list.is_empty() {
        errors.push(FieldError::required(&at.child(key), missing));
    } else if list.len() > 1 && list.iter().any(|v| v == "*") {
        let why = format!("if '*' is present, must not specify other {what}");
        errors.push(FieldError::invalid(&at.child(key), list.to_vec(), why));
    }
}

fn verbs(r: &Value, at: &FieldPath, errors: &mut ErrorList) {
    with_star(r, "verbs", "verbs must contain at least one value", "verbs", at, errors);
    let list = items(r, "verbs");
    if list.iter().any(|v| v != "*" && !v.as_str().is_some_and(|v| VERBS.contains(&v))) {
        errors.push(FieldError::not_supported(&at.child("verbs"), list.to_vec(), &VERBS));
    }
}

fn resource_rule(r: &Value, at: &FieldPath, errors: &mut ErrorList) {
    verbs(r, at, errors);
    with_star(r, "apiGroups", "resource rules must supply at least one api group", "api groups", at, errors);
    with_star(r, "resources", "resource rules must supply at least one resource", "resources", at, errors);
    let namespaces = items(r, "namespaces");
    if namespaces.is_empty() {
        if r["clusterScope"] != true {
            let why = "resource rules that are not cluster scoped must supply at least one namespace";
            errors.push(FieldError::required(&at.child("namespaces"), why));
        }
    } else if namespaces.len() > 1 && namespaces.iter().any(|v| v == "*") {
        let why = "if '*' is present, must not specify other namespaces";
        errors.push(FieldError::invalid(&at.child("namespaces"), namespaces.to_vec(), why));
    } else {
        for (i, n) in namespaces.iter().enumerate().filter(|(_, n)| *n != "*") {
            let n = n.as_str().unwrap_or_default();
            for m in names::dns_label(n) {
                let why = format!("each member of this list must be '*' or a DNS-1123 label; {m}");
                errors.push(FieldError::invalid(&at.child("namespaces").index(i), n, why));
            }
        }
    }
}

/// Bits of a hash that a hand of queues may take.
const ENTROPY_MAX: i64 = 60;

/// How many bits it takes to choose a hand from a deck.
fn entropy(deck: i64, hand: i64) -> i64 {
    let choices = (0..hand.clamp(0, deck)).map(|i| ((deck - i) as f64).log2());
    choices.sum::<f64>().ceil() as i64
}

pub fn priority_level(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    let (limited, at) = (&spec["limited"], path.child("limited"));
    match text(spec, "type") {
        "Limited" if !limited.is_object() => {
            errors.push(FieldError::required(&at, "must not be empty when type is Limited"));
        }
        "Exempt" if limited.is_object() => {
            errors.push(FieldError::forbidden(&at, "must be nil if the type is not Limited"));
        }
        _ => {}
    }
    if !limited.is_object() {
        return;
    }
    let response = &limited["limitResponse"];
    let (queuing, at) = (&response["queuing"], at.child("limitResponse").child("queuing"));
    match text(response, "type") {
        "Queue" if !queuing.is_object() => {
            errors.push(FieldError::required(&at, "must not be empty if limited.limitResponse.type is Limited"));
        }
        "Reject" if queuing.is_object() => {
            errors.push(FieldError::forbidden(&at, "must be nil if limited.limitResponse.type is not Limited"));
        }
        _ => {}
    }
    let number = |k: &str| queuing[k].as_i64().unwrap_or(0);
    if queuing.is_object() && number("handSize") > number("queues") {
        let why = format!("should not be greater than queues ({})", number("queues"));
        errors.push(FieldError::invalid(&at.child("handSize"), number("handSize"), why));
    } else if queuing.is_object() && entropy(number("queues"), number("handSize")) > ENTROPY_MAX {
        let why = format!(
            "required entropy bits of deckSize {} and handSize {} should not be greater than {ENTROPY_MAX}",
            number("queues"),
            number("handSize")
        );
        errors.push(FieldError::invalid(&at.child("handSize"), number("handSize"), why));
    }
}
