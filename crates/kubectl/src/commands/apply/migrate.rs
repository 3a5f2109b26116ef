//! Migration from client-side to server-side apply: the managed fields of the former go to the latter, so that fields
//! removed from the file are removed from the object (`k8s.io/client-go/util/csaupgrade`).
//!
//! Client-side apply is recognized by its annotation. With kubectl's default manager the annotation is kept for older
//! clients, under a manager of its own; other managers drop it.

use crate::error::Result;
use crate::kube::Kube;
use crate::resource::Info;
use crate::resource::last_applied::LAST_APPLIED;
use client::{Patch, WriteOptions};
use meta::{Object, Value};
use serde_json::json;

/// kubectl's default field manager.
pub const DEFAULT: &str = "kubectl";
const ANNOTATION_MANAGER: &str = "kubectl-last-applied";

fn entries(o: &Object) -> Vec<Value> {
    o.at(&["metadata", "managedFields"]).and_then(Value::as_array).cloned().unwrap_or_default()
}

fn owns_annotation(e: &Value, operation: &str) -> bool {
    let key = format!("f:{LAST_APPLIED}");
    e["operation"] == operation && e["fieldsV1"]["f:metadata"]["f:annotations"].get(&key).is_some()
}

/// Adds the fields of `b` to `a`.
fn union(a: &mut Value, b: &Value) {
    if let (Value::Object(a), Value::Object(b)) = (a, b) {
        for (k, v) in b {
            match a.get_mut(k) {
                Some(have) => union(have, v),
                None => _ = a.insert(k.clone(), v.clone()),
            }
        }
    }
}

/// Returns the managed fields with those of client-side apply moved to `manager`; `None` if nothing changes.
fn upgraded(all: &[Value], manager: &str) -> Option<Vec<Value>> {
    let is_main_resource = |e: &Value| e["subresource"].as_str().unwrap_or_default().is_empty();
    let old = |e: &Value| owns_annotation(e, "Update") && is_main_resource(e);
    let mut sum = json!({});
    all.iter().filter(|e| old(e)).for_each(|e| union(&mut sum, &e["fieldsV1"]));
    let first = all.iter().find(|e| old(e))?;
    let mut out: Vec<Value> = all.iter().filter(|e| !old(e)).cloned().collect();
    let own = out.iter_mut().find(|e| e["operation"] == "Apply" && e["manager"] == manager && is_main_resource(e));
    match own {
        Some(own) => union(&mut own["fieldsV1"], &sum),
        None => {
            let mut new = first.clone();
            new["manager"] = manager.into();
            new["operation"] = "Apply".into();
            new["fieldsV1"] = sum;
            out.push(new);
        }
    }
    Some(out)
}

/// Moves the annotation of client-side apply to its own manager.
async fn keep_annotation(k: &mut Kube, i: &Info, applied: &Object, options: &WriteOptions) -> Result {
    let Some(text) = applied.annotation(LAST_APPLIED) else { return Ok(()) };
    if entries(applied).iter().any(|e| owns_annotation(e, "Apply")) {
        return Ok(());
    }
    let mut only = json!({
        "apiVersion": i.resource.group_version(), "kind": i.resource.kind,
        "metadata": {"name": i.name, "annotations": {LAST_APPLIED: text}},
    });
    if !i.namespace.is_empty() {
        only["metadata"]["namespace"] = i.namespace.clone().into();
    }
    let keep_annotation = WriteOptions { field_manager: ANNOTATION_MANAGER.into(), ..options.clone() };
    let _: Object =
        k.api(&i.resource, &i.namespace).await?.patch(&i.name, &keep_annotation, &Patch::Apply(only)).await?;
    Ok(())
}

/// Migrates the annotation; a dry run does only this. If the file changed, a dry run fails here, as in upstream, because
/// the server has not stored the new annotation.
pub async fn migrate_annotation(k: &mut Kube, i: &Info, applied: &Object, options: &WriteOptions) {
    if options.field_manager == DEFAULT
        && let Err(e) = keep_annotation(k, i, applied, options).await
    {
        k.warn(format!(
            "Warning: failed to migrate {LAST_APPLIED} for Server-Side Apply. This is non-fatal and will be retried next time you apply. Error: {e}"
        ));
    }
}

/// Migrates an object that was just applied. Returns whether it changed, so that it must be applied again.
pub async fn migrate(k: &mut Kube, i: &Info, applied: &Object, manager: &str) -> Result<bool> {
    let api = k.api(&i.resource, &i.namespace).await?;
    let all = entries(applied);
    if upgraded(&all, manager).is_none() {
        return Ok(false);
    }
    let now = api.get(&i.name).await?;
    let Some(new) = upgraded(&entries(&now), manager) else { return Ok(false) };
    let patch = Patch::Json(json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": new},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": now.resource_version()},
    ]));
    let _: Object = api.patch(&i.name, &WriteOptions::default(), &patch).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_client_side_fields_to_the_manager() {
        let annotation =
            json!({"f:metadata": {"f:annotations": {format!("f:{LAST_APPLIED}"): {}}}, "f:data": {"f:a": {}}});
        let entry =
            |m: &str, op: &str, fields: &Value| json!({"manager": m, "operation": op, "fieldsV1": fields.clone()});
        let other = entry("x", "Update", &json!({"f:data": {"f:z": {}}}));
        let own = entry("kubectl", "Apply", &json!({"f:data": {"f:b": {}}}));
        let old = entry("kubectl-client-side-apply", "Update", &annotation);
        let mut sum = annotation.clone();
        sum["f:data"]["f:b"] = json!({});
        assert_eq!(upgraded(&[other.clone(), own.clone()], "kubectl"), None);
        assert_eq!(
            upgraded(&[old.clone(), other.clone(), own], "kubectl"),
            Some(vec![other.clone(), entry("kubectl", "Apply", &sum)])
        );
        assert_eq!(upgraded(&[old, other.clone()], "y"), Some(vec![other, entry("y", "Apply", &annotation)]));
    }
}
