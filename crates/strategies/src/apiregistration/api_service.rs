//! APIService: the name is version and group.

use crate::Config;
use crate::plain::Ruled;
use crate::read::{is_set, items, text};
use crate::table::Row;
use kinds::columns::{Cell, condition, display};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use registry::NameRule;
use serde_json::json;

pub fn row(_: &Config) -> Row {
    Row::stored(
        Ruled::new(validate)
            .with_cells(cells)
            .in_scheme("pkg/apiserver/scheme/scheme.go:28")
            .named(NameRule::PathSegment)
            .with_status(validate_status)
            .with_prepare(|env, o, old| {
                if old.is_none() && o.at(&["spec", "service"]).is_none() {
                    let now = meta::time::format(env.clock().now());
                    o.set(&["status"], json!({"conditions": [{"type": "Available", "status": "True",
                        "lastTransitionTime": now, "reason": "Local", "message": "Local APIServices are always available"}]}));
                }
            })
            .with_metadata_fixed_by_status(registry::USER_METADATA),
    )
}

fn validate(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    let (group, version) = (text(spec, "group"), text(spec, "version"));
    let expected = format!("{version}.{group}");
    // Missing and invalid names are reported otherwise.
    if !o.name().is_empty() && names::path_segment(o.name()).is_empty() && o.name() != expected {
        let why = format!("must be `spec.version+\".\"+spec.group`: {expected:?}");
        errors.push(FieldError::invalid(&FieldPath::new("metadata.name"), o.name(), why));
    }
    if !group.is_empty() {
        let at = path.child("group");
        errors.extend(names::dns_subdomain(group).into_iter().map(|m| FieldError::invalid(&at, group, m)));
    } else if version != "v1" {
        let why = "only v1 may have an empty group and it better be legacy kube";
        errors.push(FieldError::required(&path.child("group"), why));
    }
    let bundle = schema::base64_decode(text(spec, "caBundle")).unwrap_or_default();
    let insecure = spec["insecureSkipTLSVerify"] == true;
    if is_set(spec, "service") {
        if insecure && !bundle.is_empty() {
            let why = "may not be true if caBundle is present";
            errors.push(FieldError::invalid(&path.child("insecureSkipTLSVerify"), true, why));
        }
        return;
    }
    if !bundle.is_empty() {
        let why = "local APIServices may not have a caBundle";
        errors.push(FieldError::invalid(&path.child("caBundle"), format!("{} bytes", bundle.len()), why));
    }
    if insecure {
        let why = "local APIServices may not have insecureSkipTLSVerify";
        errors.push(FieldError::invalid(&path.child("insecureSkipTLSVerify"), true, why));
    }
}

fn validate_status(o: &Object, _old: &Object, errors: &mut ErrorList) {
    const ALL: [&str; 3] = ["True", "False", "Unknown"];
    let status = o.get("status").unwrap_or(&Value::Null);
    for (i, c) in items(status, "conditions").iter().enumerate() {
        let status = text(c, "status");
        if !ALL.contains(&status) {
            let at = FieldPath::new("status.conditions").index(i).child("status");
            errors.push(FieldError::not_supported(&at, status, &ALL));
        }
    }
}

/// Evaluates the table cell functions of the kind.
fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "apiService" => match o.at(&["spec", "service"]) {
            Some(s) => format!("{}/{}", display(&s["namespace"]), display(&s["name"])).into(),
            None => "Local".into(),
        },
        "apiAvailable" => match condition(o, "Available") {
            Some(c) if c["status"] == "True" => "True".into(),
            Some(c) => format!("{} ({})", display(&c["status"]), display(&c["reason"])).into(),
            None => "Unknown".into(),
        },
        _ => return None,
    })
}
