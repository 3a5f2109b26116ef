//! Admin access to devices in use, which only labelled namespaces may request.

use crate::read::items;
use meta::{FieldError, FieldPath, Object, Status, Value};
use registry::{Env, Request};

const LABEL: &str = "resource.kubernetes.io/admin-access";

/// Checks the namespace of new claims, claim templates and allocations with admin access. Requests are immutable.
pub fn admin_access(env: Env<'_>, request: &Request, o: &Object, old: Option<&Object>) -> Result<(), Status> {
    let Some(at) = requested_at(request, o, old) else { return Ok(()) };
    let rows = env.registry.rows();
    let key = rows.stored("", "namespaces").and_then(|r| r.key("", &request.namespace));
    let namespace = key.and_then(|k| env.registry.store.snapshot().get(&k));
    if namespace.is_some_and(|n| n.index().labels.iter().any(|(k, v)| **k == *LABEL && **v == *"true")) {
        return Ok(());
    }
    let why = format!("admin access to devices requires the `{LABEL}: true` label on the containing namespace");
    Err(Status::invalid(&request.resource.group_kind(), o.name(), &[FieldError::forbidden(&at, &why)]))
}

/// Returns the path of new admin access.
fn requested_at(request: &Request, o: &Object, old: Option<&Object>) -> Option<FieldPath> {
    let first = |o: &Object, list: &[&str], has_admin_access: fn(&Value) -> bool| {
        let all = o.at(list).and_then(Value::as_array)?;
        all.iter().position(has_admin_access).map(|i| FieldPath::new(list.join(".")).index(i).child("adminAccess"))
    };
    match (&*request.subresource, old) {
        ("status", Some(old)) => {
            let results = ["status", "allocation", "devices", "results"];
            let granted = |o: &Object| first(o, &results, |r| r["adminAccess"] == true);
            granted(o).filter(|_| granted(old).is_none())
        }
        ("", None) => {
            let has_admin_access = |r: &Value| r["exactly"]["adminAccess"] == true;
            let spec = o.at(&["spec", "spec"]).or_else(|| o.get("spec")).unwrap_or(&Value::Null);
            let i = items(&spec["devices"], "requests").iter().position(has_admin_access)?;
            Some(FieldPath::new("spec.devices.requests").index(i).child("adminAccess"))
        }
        _ => None,
    }
}
