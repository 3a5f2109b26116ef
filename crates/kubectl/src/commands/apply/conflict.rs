//! Explains a conflict of server-side apply: for every field both values and both managers.

use crate::kube::Kube;
use crate::ownership::{find, owners, path_text, short};
use crate::printer::table::age;
use crate::resource::Info;
use meta::{Object, Value};

/// Returns the explanation that follows the server's message; empty if there is nothing to add.
pub async fn explain(k: &mut Kube, i: &Info, error: &client::Error, manager: &str) -> String {
    let fields: Vec<String> = error
        .status()
        .and_then(|s| s.details.as_ref())
        .map(|d| d.causes.iter().filter(|c| !c.field.is_empty()).map(|c| c.field.clone()).collect())
        .unwrap_or_default();
    let (Some(desired), false) = (&i.object, fields.is_empty()) else { return String::new() };
    let Ok(live) = i.fetch(k).await else { return String::new() };
    let secret = i.resource.kind == "Secret" && i.resource.group.is_empty();
    let mut out = String::new();
    let mut seen: Vec<&String> = Vec::new();
    for field in &fields {
        if !seen.contains(&field) {
            seen.push(field);
            out.push_str(&describe_conflict(k, field, desired, &live, manager, secret));
        }
    }
    out
}

fn describe_conflict(k: &Kube, field: &str, desired: &Object, live: &Object, manager: &str, secret: bool) -> String {
    let (ours, theirs) = (Value::Object(desired.0.clone()), Value::Object(live.0.clone()));
    let mut out = format!("  {field}\n");
    let hidden = secret && (field.starts_with(".data") || field.starts_with(".stringData"));
    let mut line = |value: Option<&Value>, manager_text: String| {
        let value = match value {
            Some(_) if hidden => "***".to_owned(),
            Some(v) => short(v),
            None => "nothing".to_owned(),
        };
        out.push_str(&format!("    {value} by {manager_text}\n"));
    };
    let mut mentioned = false;
    for o in owners(live).iter().filter(|o| !(o.manager == manager && o.operation == "Apply")) {
        let Some(path) = o.fields.paths().into_iter().find(|p| path_text(p) == field) else { continue };
        if !mentioned {
            line(find(&ours, &path).map(|(_, v)| v), format!("{manager:?} (this apply)"));
            mentioned = true;
        }
        let when = if o.time.is_empty() { String::new() } else { format!(", {} ago", age(&o.time, k.now())) };
        line(find(&theirs, &path).map(|(_, v)| v), format!("{:?} ({}{when})", o.manager, o.operation_name()));
    }
    out
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    /// Clauses: G02.conflicts
    #[tokio::test]
    async fn shows_both_values_and_managers() {
        let path = "/api/v1/namespaces/default/configmaps/a";
        let message = "Apply failed with 1 conflict: conflict with \"editor\" using v1: .data.k";
        let refused = json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409, "message": message,
            "details": {"causes": [{"reason": "FieldManagerConflict", "message": "conflict with \"editor\" using v1", "field": ".data.k"}]}});
        let live = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "theirs"}, "metadata": {"name": "a", "namespace": "default",
            "managedFields": [{"manager": "editor", "operation": "Update", "time": "2026-11-21T11:57:00Z", "fieldsV1": {"f:data": {"f:k": {}}}}]}});
        let patch = format!("PATCH {path}?fieldManager=kubectl&fieldValidation=Strict&force=false");
        let other = format!("PATCH {path}?fieldManager=kubectl&fieldValidation=Strict");
        let s = Server::new().on(&patch, 409, refused.clone()).on(&other, 409, refused.clone()).on(
            &format!("GET {path}"),
            200,
            live,
        );
        let file = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: mine}\n";
        let output = snapshot(&s, "apply --server-side -f -", file).await;
        let start = format!(
            "! error: {message}\n!   .data.k\n!     \"mine\" by \"kubectl\" (this apply)\n!     \"theirs\" by \"editor\" (Update, 3m ago)\n! Please review the fields above"
        );
        assert!(output.starts_with(&start) && output.contains("`--force-conflicts` flag"), "{output}");
        // Without more information the message is upstream's.
        let s = Server::new().on(&patch, 409, refused.clone()).on(&other, 409, refused);
        let output = snapshot(&s, "apply --server-side -f -", file).await;
        assert!(output.starts_with(&format!("! error: {message}\n! Please review")), "{output}");
    }
}
