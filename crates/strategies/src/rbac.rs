//! Roles and bindings: names are path segments, and nobody grants what they do not hold.

mod escalation;
mod policy;

pub use policy::{bootstrap, unserved};

use crate::read::{items, shown, text};
use auth::Authorizer;
use kinds::columns::{Cell, display, list_at};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Status, Value, names};
use registry::{Env, NameRule, Request, Strategy};
use std::sync::Arc;

pub struct Rbac(pub Arc<dyn Authorizer>);

const GROUP: &str = "rbac.authorization.k8s.io";
const ROLES: &str = "rbac.authorization.k8s.io/roles";
const CLUSTER_ROLES: &str = "rbac.authorization.k8s.io/clusterroles";

impl Strategy for Rbac {
    fn cell(&self, cell: &Cell<'_>) -> Option<Value> {
        cells(cell)
    }

    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn permit(&self, env: Env<'_>, request: &Request, o: &Object, old: Option<&Object>) -> Result<(), Status> {
        escalation::check(&*self.0, env, request, o, old)
    }

    /// A binding is compared with the role that it names.
    fn reads(&self, env: Env<'_>, _subresource: &str, namespace: &str, _name: &str) -> usize {
        let snapshot = env.registry.store.snapshot();
        let largest = |resource: &str, namespace| registry::amount::largest(&snapshot, resource, namespace);
        let own = if namespace.is_empty() { 0 } else { largest(ROLES, Some(namespace)) };
        own.max(largest(CLUSTER_ROLES, None))
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
        match o.kind() {
            "Role" | "ClusterRole" => {
                for (i, r) in items(&all, "rules").iter().enumerate() {
                    rule(r, o.kind() == "Role", &FieldPath::new("rules").index(i), errors);
                }
                let aggregation = &all["aggregationRule"];
                let at = FieldPath::new("aggregationRule.clusterRoleSelectors");
                if aggregation.is_object() && items(aggregation, "clusterRoleSelectors").is_empty() {
                    let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
                    errors.push(FieldError::required(&at, why));
                }
                for (i, s) in items(aggregation, "clusterRoleSelectors").iter().enumerate() {
                    let before = errors.len();
                    schema::rules::selector(s, &at.index(i), errors);
                    if errors.len() > before {
                        errors.push(FieldError::invalid(&at.index(i), Value::Null, "invalid label selector."));
                    }
                }
            }
            _ => {
                let role = &all["roleRef"];
                let at = FieldPath::new("roleRef");
                if text(role, "apiGroup") != GROUP {
                    errors.push(FieldError::not_supported(&at.child("apiGroup"), text(role, "apiGroup"), &[GROUP]));
                }
                let kinds: &[&str] =
                    if o.kind() == "RoleBinding" { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
                if !kinds.contains(&text(role, "kind")) {
                    errors.push(FieldError::not_supported(&at.child("kind"), text(role, "kind"), kinds));
                }
                for (i, s) in items(&all, "subjects").iter().enumerate() {
                    subject(s, o.kind() == "RoleBinding", &FieldPath::new("subjects").index(i), errors);
                }
            }
        }
    }

    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        if o.get("roleRef") != old.get("roleRef") {
            let at = FieldPath::new("roleRef");
            let value = shown(o.get("roleRef").unwrap_or(&Value::Null), "io.k8s.api.rbac.v1.RoleRef", &at);
            errors.push(FieldError::invalid(&at, value, "cannot change roleRef"));
        }
    }
}

fn rule(r: &Value, namespaced: bool, at: &FieldPath, errors: &mut ErrorList) {
    if !items(r, "nonResourceURLs").is_empty() {
        if namespaced {
            let why = "namespaced rules cannot apply to non-resource URLs";
            errors.push(FieldError::invalid(&at.child("nonResourceURLs"), &r["nonResourceURLs"], why));
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|k| !items(r, k).is_empty()) {
            let why = "rules cannot apply to both regular resources and non-resource URLs";
            errors.push(FieldError::invalid(&at.child("nonResourceURLs"), &r["nonResourceURLs"], why));
        }
        return;
    }
    if items(r, "apiGroups").is_empty() {
        errors.push(FieldError::required(&at.child("apiGroups"), "resource rules must supply at least one api group"));
    }
    if items(r, "resources").is_empty() {
        errors.push(FieldError::required(&at.child("resources"), "resource rules must supply at least one resource"));
    }
}

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

/// The cells that only roles and bindings have.
pub fn cells(cell: &Cell<'_>) -> Option<Value> {
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
