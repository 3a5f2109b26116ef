//! FlowSchema: subjects, rules and priority level.

use super::{EXEMPT, mandatory, same, unequal, validate_status};
use crate::Config;
use crate::plain::Ruled;
use crate::read::{delegated, is_set, items, shown, text};
use crate::table::Row;
use ::flowcontrol::bootstrap::Kind;
use kinds::columns::{Cell, condition, display};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};

pub fn row(_: &Config) -> Row {
    Row::stored(
        Ruled::new(validate)
            .with_cells(cells)
            .with_status(validate_status)
            .with_metadata_fixed_by_status(registry::WHOLE_METADATA),
    )
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
        } else if kind == k {
            delegated(s, "io.k8s.api.flowcontrol.v1.Subject", field, at, errors);
        } else if is_set(s, field) && ["User", "Group", "ServiceAccount"].contains(&kind) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_status};
    use serde_json::json;

    fn strategy() -> Ruled {
        Ruled::new(validate).with_status(validate_status)
    }

    fn schema(name: &str) -> Value {
        json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": name}, "spec": {
            "priorityLevelConfiguration": {"name": "l"}, "matchingPrecedence": 500, "distinguisherMethod": {"type": "ByUser"},
            "rules": [{"subjects": [{"kind": "User", "user": {"name": "u"}}],
                "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["*"]}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["/healthz/*"]}]}]}})
    }

    #[test]
    fn validates_precedence_level_and_method() {
        let at = "spec.matchingPrecedence: Invalid value:";
        check_create(
            &strategy(),
            &schema("s"),
            &[
                ("", Value::Null, &[]),
                ("/spec/matchingPrecedence", json!(10_000), &[]),
                ("/spec/matchingPrecedence", json!(10_001), &[&format!("{at} 10001: must not be greater than 10000")]),
                ("/spec/matchingPrecedence", json!(-1), &[&format!("{at} -1: must be a positive value")]),
                (
                    "/spec/matchingPrecedence",
                    json!(1),
                    &[&format!("{at} 1: only the schema named 'exempt' may have matchingPrecedence 1")],
                ),
                (
                    "/spec/priorityLevelConfiguration/name",
                    json!(""),
                    &["spec.priorityLevelConfiguration.name: Required value: must reference a priority level"],
                ),
                (
                    "/spec/priorityLevelConfiguration/name",
                    json!("L"),
                    &["spec.priorityLevelConfiguration.name: Invalid value: \"L\": a lowercase RFC 1123 subdomain…"],
                ),
                ("/spec/distinguisherMethod", Value::Null, &[]),
                ("/spec/distinguisherMethod/type", json!("ByNamespace"), &[]),
                (
                    "/spec/distinguisherMethod/type",
                    json!("ByGroup"),
                    &[
                        "spec.distinguisherMethod.type: Unsupported value: {\"Type\":\"ByGroup\"}: supported values: \"ByNamespace\", \"ByUser\"",
                    ],
                ),
            ],
        );
    }

    #[test]
    fn validates_subjects() {
        let subject = "/spec/rules/0/subjects/0";
        let at = "spec.rules[0].subjects[0]";
        let account = |namespace: &str, name: &str| json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": namespace, "name": name}});
        check_create(
            &strategy(),
            &schema("s"),
            &[
                (
                    "/spec/rules/0/subjects",
                    json!([]),
                    &["spec.rules[0].subjects: Required value: subjects must contain at least one value"],
                ),
                (subject, json!({"kind": "Group", "group": {"name": "*"}}), &[]),
                (
                    subject,
                    json!({"kind": "Group", "group": {"name": ""}}),
                    &[&format!("{at}.group.name: Required value")],
                ),
                (subject, json!({"kind": "User", "user": {"name": ""}}), &[&format!("{at}.user.name: Required value")]),
                (
                    subject,
                    json!({"kind": "User"}),
                    &[&format!("{at}.user: Required value: user is required when subject kind is 'User'")],
                ),
                (
                    subject,
                    json!({"kind": "Group"}),
                    &[&format!("{at}.group: Required value: group is required when subject kind is 'Group'")],
                ),
                (
                    subject,
                    json!({"kind": "ServiceAccount"}),
                    &[&format!(
                        "{at}.serviceAccount: Required value: serviceAccount is required when subject kind is 'ServiceAccount'"
                    )],
                ),
                (
                    subject,
                    json!({"kind": "Group", "group": {"name": "g"}, "user": {"name": "u"}}),
                    &[&format!("{at}.user: Forbidden: user is forbidden when subject kind is not 'User'")],
                ),
                (
                    subject,
                    json!({"kind": "User", "group": {"name": "g"}, "user": {"name": "u"}, "serviceAccount": {"namespace": "n", "name": "*"}}),
                    &[
                        &format!("{at}.group: Forbidden: group is forbidden when subject kind is not 'Group'"),
                        &format!(
                            "{at}.serviceAccount: Forbidden: serviceAccount is forbidden when subject kind is not 'ServiceAccount'"
                        ),
                    ],
                ),
                (subject, account("n", "*"), &[]),
                (subject, account("n", "a.b"), &[]),
                (subject, account("n", ""), &[&format!("{at}.serviceAccount.name: Required value")]),
                (
                    subject,
                    account("n", "A"),
                    &[&format!("{at}.serviceAccount.name: Invalid value: \"A\": a lowercase RFC 1123 subdomain…")],
                ),
                (
                    subject,
                    account("", "a"),
                    &[&format!(
                        "{at}.serviceAccount.namespace: Required value: must specify namespace for service account"
                    )],
                ),
                (
                    subject,
                    account("a.b", "a"),
                    &[&format!("{at}.serviceAccount.namespace: Invalid value: \"a.b\": must not contain dots")],
                ),
                (
                    "/spec/rules/0/subjects/0/kind",
                    json!("Robot"),
                    &[&format!(
                        "{at}.kind: Unsupported value: \"Robot\": supported values: \"Group\", \"ServiceAccount\", \"User\""
                    )],
                ),
            ],
        );
    }

    #[test]
    fn validates_rules() {
        let (resource, path) = ("/spec/rules/0/resourceRules/0", "/spec/rules/0/nonResourceRules/0");
        let (at, path_at) = ("spec.rules[0].resourceRules[0]", "spec.rules[0].nonResourceRules[0]");
        let with = |rule: &str, field: &str| format!("{rule}/{field}");
        let urls = |url: &str, error: &'static str| (url.to_owned(), error);
        let many = |field: &str, other: &str, what: &str| {
            format!("{field}: Invalid value: [\"*\",\"{other}\"]: if '*' is present, must not specify other {what}")
        };
        let verbs = "supported values: \"create\", \"delete\", \"deletecollection\", \"get\", \"list\", \"patch\", \"proxy\", \"update\", \"watch\"";
        check_create(
            &strategy(),
            &schema("s"),
            &[
                ("/spec/rules", json!([]), &[]),
                ("/spec/rules/0/resourceRules", json!([]), &[]),
                ("/spec/rules/0/nonResourceRules", json!([]), &[]),
                (
                    "/spec/rules/0",
                    json!({"subjects": [{"kind": "User", "user": {"name": "u"}}]}),
                    &[
                        "spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
                    ],
                ),
                (
                    &with(resource, "verbs"),
                    json!([]),
                    &[&format!("{at}.verbs: Required value: verbs must contain at least one value")],
                ),
                (&with(resource, "verbs"), json!(["*"]), &[]),
                (&with(resource, "verbs"), json!(["*", "get"]), &[&many(&format!("{at}.verbs"), "get", "verbs")]),
                (
                    &with(resource, "verbs"),
                    json!(["get", "peek"]),
                    &[&format!("{at}.verbs: Unsupported value: [\"get\",\"peek\"]: {verbs}")],
                ),
                (&with(path, "verbs"), json!(["*", "get"]), &[&many(&format!("{path_at}.verbs"), "get", "verbs")]),
                (
                    &with(path, "verbs"),
                    json!(["peek"]),
                    &[&format!("{path_at}.verbs: Unsupported value: [\"peek\"]: {verbs}")],
                ),
                (
                    &with(resource, "apiGroups"),
                    json!([]),
                    &[&format!("{at}.apiGroups: Required value: resource rules must supply at least one api group")],
                ),
                (
                    &with(resource, "apiGroups"),
                    json!(["*", "apps"]),
                    &[&many(&format!("{at}.apiGroups"), "apps", "api groups")],
                ),
                (
                    &with(resource, "resources"),
                    json!([]),
                    &[&format!("{at}.resources: Required value: resource rules must supply at least one resource")],
                ),
                (
                    &with(resource, "resources"),
                    json!(["*", "pods"]),
                    &[&many(&format!("{at}.resources"), "pods", "resources")],
                ),
                (
                    &with(resource, "namespaces"),
                    json!([]),
                    &[&format!(
                        "{at}.namespaces: Required value: resource rules that are not cluster scoped must supply at least one namespace"
                    )],
                ),
                (
                    resource,
                    json!({"verbs": ["get"], "apiGroups": [""], "resources": ["nodes"], "clusterScope": true}),
                    &[],
                ),
                (
                    &with(resource, "namespaces"),
                    json!(["*", "n"]),
                    &[&many(&format!("{at}.namespaces"), "n", "namespaces")],
                ),
                (
                    &with(resource, "namespaces"),
                    json!(["n", "N"]),
                    &[&format!(
                        "{at}.namespaces[1]: Invalid value: \"N\": each member of this list must be '*' or a DNS-1123 label; a lowercase RFC 1123 label…"
                    )],
                ),
                (
                    &with(path, "nonResourceURLs"),
                    json!([]),
                    &[&format!(
                        "{path_at}.nonResourceURLs: Required value: nonResourceURLs must contain at least one value"
                    )],
                ),
                (&with(path, "nonResourceURLs"), json!(["*"]), &[]),
                (
                    &with(path, "nonResourceURLs"),
                    json!(["*", "/a"]),
                    &[&many(&format!("{path_at}.nonResourceURLs"), "/a", "non-resource URLs")],
                ),
            ],
        );
        for (url, why) in [
            urls("/", ""),
            urls("/a", ""),
            urls("/a/*", ""),
            urls("", "must not be empty"),
            urls("a", "must start with slash"),
            urls("/a b", "must not contain white-space"),
            urls("/a//b", "must not contain double slash"),
            urls("/a*", "wildcard can only do suffix matching"),
            urls("/*/*", "wildcard can only do suffix matching"),
            urls("/*/a", "wildcard can only do suffix matching"),
        ] {
            let error = format!("{path_at}.nonResourceURLs[0]: Invalid value: {url:?}: {why}");
            let errors: &[&str] = if why.is_empty() { &[] } else { &[&error] };
            check_create(&strategy(), &schema("s"), &[(&with(path, "nonResourceURLs/0"), json!(url), errors)]);
        }
    }

    #[test]
    fn mandatory_schemas_are_fixed() {
        for fixed in ::flowcontrol::bootstrap::objects(::flowcontrol::bootstrap::MANDATORY, Kind::Schema) {
            let name = fixed.name().to_owned();
            let different = format!("spec: Invalid value: …: spec of '{name}' must equal the fixed value");
            check_create(
                &strategy(),
                &fixed.into_value(),
                &[
                    ("", Value::Null, &[]),
                    ("/spec/rules", Value::Null, &[&different]),
                    ("/spec/priorityLevelConfiguration/name", json!("other"), &[&different]),
                ],
            );
        }
    }

    #[test]
    fn validates_the_status() {
        let conditions = "/status/conditions";
        let at = "status.conditions";
        check_status(
            &strategy(),
            &schema("s"),
            &[
                (conditions, json!([{"type": "Dangling", "status": "False"}, {"type": "Other"}]), &[]),
                (
                    conditions,
                    json!([{"type": "Dangling"}, {"type": "Dangling"}]),
                    &[&format!("{at}[1].type: Duplicate value: \"Dangling\"")],
                ),
                (conditions, json!([{"status": "True"}]), &[&format!("{at}[0].type: Required value")]),
            ],
        );
    }
}
