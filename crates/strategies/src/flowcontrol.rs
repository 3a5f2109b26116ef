//! `flowcontrol.apiserver.k8s.io`: what a level and a schema may say, and that the mandatory ones say what they must.

use crate::read::{is_set, items, repeats, shown, text};
use ::flowcontrol::bootstrap::{Kind, MANDATORY, objects};
use kinds::columns::{Cell, condition, display};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};

const EXEMPT: &str = "exempt";
const METHODS: [&str; 2] = ["ByNamespace", "ByUser"];
/// What only conversions between older versions write.
const ROUND_TRIP: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";
const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

pub fn flow_schema(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    let level = text(&spec["priorityLevelConfiguration"], "name");
    let at = path.child("priorityLevelConfiguration").child("name");
    if !level.is_empty() {
        errors.extend(names::dns_subdomain(level).into_iter().map(|m| FieldError::invalid(&at, level, m)));
    }
    let method = &spec["distinguisherMethod"];
    if method.is_object() && !METHODS.contains(&text(method, "type")) {
        let at = path.child("distinguisherMethod").child("type");
        let value =
            shown(method, "io.k8s.api.flowcontrol.v1.FlowDistinguisherMethod", &path.child("distinguisherMethod"));
        errors.push(FieldError::not_supported(&at, value, &METHODS));
    }
    let exempt = o.name() == EXEMPT;
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
            urls(x, &at, errors);
        }
    }
    if let Some(fixed) = mandatory(o, Kind::Schema)
        && !same(spec, &fixed)
    {
        unequal(o, "", "io.k8s.api.flowcontrol.v1.FlowSchemaSpec", errors);
    }
}

/// What the server itself says of an object with this name.
fn mandatory(o: &Object, kind: Kind) -> Option<Value> {
    objects(MANDATORY, kind).into_iter().find(|m| m.name() == o.name()).and_then(|mut m| m.remove(&["spec"]))
}

/// Equal, where nothing is as good as an empty list.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            let keys = x.keys().chain(y.keys().filter(|k| !x.contains_key(*k)));
            keys.into_iter().all(|k| same(&a[k], &b[k]))
        }
        (Value::Null, Value::Array(l)) | (Value::Array(l), Value::Null) => l.is_empty(),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(a, b)| same(a, b)),
        // What has a default is there, and what is not, is nothing.
        (Value::Null, other) | (other, Value::Null) => other.is_null() || *other == false || *other == "",
        _ => a == b,
    }
}

fn unequal(o: &Object, but: &str, definition: &str, errors: &mut ErrorList) {
    let why = format!("spec of '{}'{but} must equal the fixed value", o.name());
    let at = FieldPath::new("spec");
    let value = shown(o.get("spec").unwrap_or(&Value::Null), definition, &at);
    errors.push(FieldError::invalid(&at, value, &why));
}

/// Of either kind: conditions have a type, each another.
pub fn status(o: &Object, _old: &Object, errors: &mut ErrorList) {
    let all = o.at(&["status", "conditions"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let again = repeats(all.iter().map(|c| text(c, "type")));
    for (i, c) in all.iter().enumerate() {
        let (kind, at) = (text(c, "type"), FieldPath::new("status.conditions").index(i).child("type"));
        if again[i] {
            errors.push(FieldError::duplicate(&at, kind));
        }
        if kind.is_empty() {
            errors.push(FieldError::required(&at, "must not be empty"));
        }
    }
}

/// Paths, of which the last step may be `*`.
fn urls(r: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let what = "non-resource URLs";
    with_star(r, "nonResourceURLs", "nonResourceURLs must contain at least one value", what, at, errors);
    let list = items(r, "nonResourceURLs");
    if list.iter().any(|v| v == "*") {
        return;
    }
    for (i, url) in list.iter().enumerate() {
        let url = url.as_str().unwrap_or_default();
        let stars = url.matches('*').count();
        let why = match url {
            "/" => continue,
            "" => "must not be empty",
            u if !u.starts_with('/') => "must start with slash",
            u if u.contains(' ') => "must not contain white-space",
            u if u.contains("//") => "must not contain double slash",
            u if stars > 1 || (stars == 1 && !u.ends_with("/*")) => "wildcard can only do suffix matching",
            _ => continue,
        };
        errors.push(FieldError::invalid(&at.child("nonResourceURLs").index(i), url, why));
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
    let name = text(&s["serviceAccount"], "name");
    if kind == "ServiceAccount" && !name.is_empty() && name != "*" {
        let at = at.child("serviceAccount").child("name");
        errors.extend(names::dns_subdomain(name).into_iter().map(|m| FieldError::invalid(&at, name, m)));
    }
}

/// A list of which `*` is everything.
fn with_star(r: &Value, key: &str, missing: &str, what: &str, at: &FieldPath, errors: &mut ErrorList) {
    let list = items(r, key);
    if list.is_empty() {
        errors.push(FieldError::required(&at.child(key), missing));
    } else if list.len() > 1 && list.iter().any(|v| v == "*") {
        let why = format!("if '*' is present, must not specify other {what}");
        errors.push(FieldError::invalid(&at.child(key), list, why));
    }
}

fn verbs(r: &Value, at: &FieldPath, errors: &mut ErrorList) {
    with_star(r, "verbs", "verbs must contain at least one value", "verbs", at, errors);
    let list = items(r, "verbs");
    let known = |v: &Value| v.as_str().is_some_and(|v| VERBS.contains(&v));
    if !list.iter().any(|v| v == "*") && !list.iter().all(known) {
        errors.push(FieldError::not_supported(&at.child("verbs"), list, &VERBS));
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
        errors.push(FieldError::invalid(&at.child("namespaces"), namespaces, why));
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

/// Whether it takes more than [`ENTROPY_MAX`] bits to choose a hand from a deck.
fn is_too_much_entropy(deck: i64, hand: i64) -> bool {
    let cards = (1..=deck).rev().take(usize::try_from(hand).unwrap_or_default());
    let mut bits = 0.0;
    // All but the last card of a deck take a bit or more, so the answer is known after sixty of them.
    cards.take(ENTROPY_MAX as usize + 2).any(|left| {
        bits += (left as f64).log2();
        bits.ceil() as i64 > ENTROPY_MAX
    })
}

pub fn priority_level(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    if o.annotation(ROUND_TRIP).is_some() {
        let why = format!("annotation '{ROUND_TRIP}' is forbidden");
        errors.push(FieldError::forbidden(&FieldPath::new("metadata.annotations"), &why));
    }
    let kind = text(spec, "type");
    if (o.name() == EXEMPT) != (kind == "Exempt") {
        let why = "type must be 'Exempt' if and only if name is 'exempt'";
        errors.push(FieldError::invalid(&path.child("type"), kind, why));
    }
    if kind == "Limited" && spec["exempt"].is_object() {
        errors.push(FieldError::forbidden(&path.child("exempt"), "must be nil if the type is Limited"));
    }
    let (limited, at) = (&spec["limited"], path.child("limited"));
    match kind {
        "Limited" if !limited.is_object() => {
            errors.push(FieldError::required(&at, "must not be empty when type is Limited"));
        }
        "Exempt" if limited.is_object() => {
            errors.push(FieldError::forbidden(&at, "must be nil if the type is not Limited"));
        }
        _ => {}
    }
    if let Some(mut fixed) = mandatory(o, Kind::Level) {
        // How the exempt share with others is the administrator's to say.
        let but = if o.name() == EXEMPT { " except the 'spec.exempt' field" } else { "" };
        if o.name() == EXEMPT {
            fixed["exempt"] = spec["exempt"].clone();
        }
        if !same(spec, &fixed) {
            unequal(o, but, "io.k8s.api.flowcontrol.v1.PriorityLevelConfigurationSpec", errors);
        }
    }
    if limited.is_object() {
        queuing(limited, &at, errors);
    }
}

fn queuing(limited: &Value, at: &FieldPath, errors: &mut ErrorList) {
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
    } else if queuing.is_object() && is_too_much_entropy(number("queues"), number("handSize")) {
        let why = format!(
            "required entropy bits of deckSize {} and handSize {} should not be greater than {ENTROPY_MAX}",
            number("queues"),
            number("handSize")
        );
        errors.push(FieldError::invalid(&at.child("handSize"), number("handSize"), why));
    }
}

/// The cells that only flow schemas have.
pub fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "missingPL" => match condition(o, "Dangling") {
            Some(c) => display(&c["status"]).into(),
            None => "?".into(),
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_is_counted_as_far_as_it_matters() {
        let check = |deck, hand, expect| assert_eq!(is_too_much_entropy(deck, hand), expect, "{deck} {hand}");
        check(128, 6, false);
        check(512, 6, false);
        check(1 << 10, 6, false);
        check(1 << 10, 7, true);
        check(10, 10, false);
        check(20, 20, true);
        check(60, 1, false);
        // Of these the largest took ten seconds, and the smallest ended the request without an answer.
        check(i64::from(i32::MAX), i64::from(i32::MAX), true);
        check(-1, -1, false);
        check(i64::MIN, i64::MAX, false);
    }
}
