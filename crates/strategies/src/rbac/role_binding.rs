//! RoleBinding and ClusterRoleBinding: an immutable role, and subjects.

use super::{GROUP, escalation};
use crate::Config;
use crate::read::{items, shown, text};
use crate::table::Row;
use auth::Authorizer;
use kinds::columns::{Cell, display, list_at};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Status, Value, names};
use registry::{CostEstimator, CreateStrategy, Env, NameRule, Request, TableConvertor, UpdateStrategy};
use std::sync::Arc;

pub fn row(config: &Config) -> Row {
    Row::stored(RoleBinding(config.authorizer.clone()))
}

pub struct RoleBinding(Arc<dyn Authorizer>);

impl CreateStrategy for RoleBinding {
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn permit(&self, env: Env<'_>, request: &Request, o: &Object, old: Option<&Object>) -> Result<(), Status> {
        escalation::check(&*self.0, env, request, o, old)
    }

    fn default(&self, o: &mut Object) {
        let Some(Value::Array(mut subjects)) = o.remove(&["subjects"]) else { return };
        for s in &mut subjects {
            if s["kind"] == "ServiceAccount" && s.get("apiGroup").is_some_and(|g| g == "") {
                s.as_object_mut().map(|m| m.remove("apiGroup"));
            }
        }
        o.set(&["subjects"], subjects);
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let all = o.clone().into_value();
        let role = &all["roleRef"];
        let at = FieldPath::new("roleRef");
        if text(role, "apiGroup") != GROUP {
            errors.push(FieldError::not_supported(&at.child("apiGroup"), text(role, "apiGroup"), &[GROUP]));
        }
        let kinds: &[&str] = if o.kind() == "RoleBinding" { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
        if !kinds.contains(&text(role, "kind")) {
            errors.push(FieldError::not_supported(&at.child("kind"), text(role, "kind"), kinds));
        }
        for (i, s) in items(&all, "subjects").iter().enumerate() {
            subject(s, o.kind() == "RoleBinding", &FieldPath::new("subjects").index(i), errors);
        }
    }
}

impl UpdateStrategy for RoleBinding {
    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        if o.get("roleRef") != old.get("roleRef") {
            let at = FieldPath::new("roleRef");
            let value = shown(o.get("roleRef").unwrap_or(&Value::Null), "io.k8s.api.rbac.v1.RoleRef", &at);
            errors.push(FieldError::invalid(&at, value, "cannot change roleRef"));
        }
    }
}

impl TableConvertor for RoleBinding {
    fn cell(&self, cell: &Cell<'_>) -> Option<Value> {
        cells(cell)
    }
}

impl CostEstimator for RoleBinding {
    fn reads(&self, env: Env<'_>, _subresource: &str, namespace: &str, _name: &str) -> usize {
        escalation::reads(env, namespace)
    }
}

registry::strategy!(RoleBinding: CreateStrategy, UpdateStrategy, TableConvertor, CostEstimator);

fn subject(s: &Value, namespaced: bool, at: &FieldPath, errors: &mut ErrorList) {
    let (kind, name, group) = (text(s, "kind"), text(s, "name"), text(s, "apiGroup"));
    match kind {
        "ServiceAccount" => {
            if !name.is_empty() {
                let at = at.child("name");
                errors.extend(names::dns_subdomain(name).into_iter().map(|m| FieldError::invalid(&at, name, m)));
            }
            if !group.is_empty() {
                errors.push(FieldError::not_supported(&at.child("apiGroup"), group, &[""]));
            }
            if !namespaced && text(s, "namespace").is_empty() {
                errors.push(FieldError::required(&at.child("namespace"), ""));
            }
        }
        "User" | "Group" if group != GROUP => {
            errors.push(FieldError::not_supported(&at.child("apiGroup"), group, &[GROUP]));
        }
        _ => {}
    }
}

/// Evaluates the table cell functions of the kind.
fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "roleRef" => {
            let r = &o.get("roleRef").cloned().unwrap_or_default();
            format!("{}/{}", display(&r["kind"]), display(&r["name"])).into()
        }
        "subjects" => {
            let kind = cell.arguments.first().copied().unwrap_or_default();
            let names = list_at(o, &["subjects"]).iter().filter(|s| s["kind"] == kind).map(|s| match kind {
                "ServiceAccount" => format!("{}/{}", display(&s["namespace"]), display(&s["name"])),
                _ => display(&s["name"]),
            });
            names.collect::<Vec<_>>().join(", ").into()
        }
        _ => return None,
    })
}
