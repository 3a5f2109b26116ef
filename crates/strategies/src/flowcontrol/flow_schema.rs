//! FlowSchema: subjects, rules and priority level.

use super::{EXEMPT, mandatory, same, unequal, validate_status};
use crate::Config;
use crate::plain::Ruled;
use crate::read::{is_set, items, shown, text};
use crate::table::Row;
use ::flowcontrol::bootstrap::Kind;
use kinds::columns::{Cell, condition, display};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(validate).with_cells(cells).with_status(validate_status).with_fixed_status_metadata())
}

const METHODS: [&str; 2] = ["ByNamespace", "ByUser"];
const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

fn validate(o: &Object, errors: &mut ErrorList) {
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

/// Validates URL paths, whose last segment may be `*`.
fn urls(r: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let what = "non-resource URLs";
    list_with_wildcard(r, "nonResourceURLs", "nonResourceURLs must contain at least one value", what, at, errors);
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

/// Validates a list where `*`, for everything, excludes other items.
fn list_with_wildcard(r: &Value, key: &str, missing: &str, what: &str, at: &FieldPath, errors: &mut ErrorList) {
    let list = items(r, key);
    if list.is_empty() {
        errors.push(FieldError::required(&at.child(key), missing));
    } else if list.len() > 1 && list.iter().any(|v| v == "*") {
        let why = format!("if '*' is present, must not specify other {what}");
        errors.push(FieldError::invalid(&at.child(key), list, why));
    }
}

fn verbs(r: &Value, at: &FieldPath, errors: &mut ErrorList) {
    list_with_wildcard(r, "verbs", "verbs must contain at least one value", "verbs", at, errors);
    let list = items(r, "verbs");
    let known = |v: &Value| v.as_str().is_some_and(|v| VERBS.contains(&v));
    if !list.iter().any(|v| v == "*") && !list.iter().all(known) {
        errors.push(FieldError::not_supported(&at.child("verbs"), list, &VERBS));
    }
}

fn resource_rule(r: &Value, at: &FieldPath, errors: &mut ErrorList) {
    verbs(r, at, errors);
    list_with_wildcard(r, "apiGroups", "resource rules must supply at least one api group", "api groups", at, errors);
    list_with_wildcard(r, "resources", "resource rules must supply at least one resource", "resources", at, errors);
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

/// Evaluates the table cell functions of the kind.
fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "missingPL" => match condition(o, "Dangling") {
            Some(c) => display(&c["status"]).into(),
            None => "?".into(),
        },
        _ => return None,
    })
}
