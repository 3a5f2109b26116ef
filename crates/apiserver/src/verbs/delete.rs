//! Delete, of one object and of a collection.

use super::{admission, answer, list, preconditions, write_options};
use crate::answer::bytes;
use crate::body::Body;
use crate::content;
use crate::handle::Call;
use crate::{Server, path::Query};
use http::Response;
use meta::{FieldError, FieldPath, GroupKind, Object, Status, Value};
use registry::{DeleteOptions, Deleted, Propagation, Request, Resource};
use std::sync::Arc;

pub async fn delete(server: &Arc<Server>, call: &Call, request: Request) -> Result<Response<Body>, Status> {
    let mut options = options(call)?;
    let revision = preconditions(call).resource_version;
    options.preconditions.resource_version = options.preconditions.resource_version.or(revision);
    let write = write_options(call)?;
    let admit = admission(server, call, &request, &write);
    let row = request.resource.clone();
    match server.registry.delete(&request, &options, &admit).await? {
        Deleted::Waiting(o) => Ok(answer(server, call, &request, 200, &o)),
        Deleted::Removed(o) if returns_object(&row) => Ok(answer(server, call, &request, 200, &o)),
        Deleted::Removed(o) => {
            let (media, body) = content::write(&call.wanted, &success(&row, &o));
            Ok(bytes(200, media, body))
        }
    }
}

/// Some kinds answer a deletion with the object that was deleted.
fn returns_object(row: &Resource) -> bool {
    row.strategy.returns_deleted_object()
}

fn success(row: &Resource, o: &Object) -> Value {
    let mut details = serde_json::json!({"name": o.name(), "kind": &*row.kind.plural, "uid": o.uid()});
    if !row.kind.group.is_empty() {
        details["group"] = (*row.kind.group).into();
    }
    serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

pub async fn collection(server: &Arc<Server>, call: &Call, request: Request) -> Result<Response<Body>, Status> {
    let options = options(call)?;
    let write = write_options(call)?;
    let list = list::options(call, &request, list::For::List)?;
    let page = server.registry.list(&request, &list).await?;
    let row = request.resource.clone();
    let mut deleted = Vec::new();
    for e in &page.entries {
        let one = Request {
            user: request.user.clone(),
            resource: row.clone(),
            subresource: String::new(),
            namespace: e.key.namespace.to_string(),
            name: e.key.name.to_string(),
            warnings: request.warnings.clone(),
            conversions: registry::Conversions::default(),
            empties: registry::Sent::default(),
        };
        let admit = admission(server, call, &one, &write);
        match server.registry.delete(&one, &options, &admit).await {
            Ok(Deleted::Removed(o) | Deleted::Waiting(o)) => deleted.push(o.into_value()),
            // Somebody else was faster.
            Err(s) if s.is(meta::Reason::NotFound) => {}
            Err(s) => return Err(s),
        }
    }
    let v = serde_json::json!({"kind": format!("{}List", row.kind.kind), "apiVersion": row.kind.gvk().api_version(),
        "metadata": {"resourceVersion": page.revision.to_string()}, "items": deleted});
    let (media, body) = content::write(&call.wanted, &v);
    Ok(bytes(200, media, body))
}

/// The options of a deletion: the body's, then the query's.
fn options(call: &Call) -> Result<DeleteOptions, Status> {
    let mut options = DeleteOptions::default();
    if !call.body.is_empty() {
        let sent = call.sent()?;
        let schema = kinds::catalog().definitions.get("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions");
        let mut value = sent.value;
        if let Some(schema) = schema {
            schema::typed(&mut value, schema).map_err(|e| Status::bad_request(e.to_string()))?;
        }
        let object = Object::from_value(value).ok_or_else(|| Status::bad_request("the options are no object"))?;
        check(&object)?;
        options = DeleteOptions::from_object(&object);
    }
    query(&call.query, &mut options)?;
    Ok(options)
}

fn check(o: &Object) -> Result<(), Status> {
    let mut errors = Vec::new();
    let policy = o.get("propagationPolicy").filter(|v| !v.is_null());
    if policy.is_some() && o.get("orphanDependents").is_some_and(|v| !v.is_null()) {
        let why = "orphanDependents and deletionPropagation cannot be both set";
        errors.push(FieldError::invalid(
            &FieldPath::new("propagationPolicy"),
            policy.cloned().unwrap_or_default(),
            why,
        ));
    }
    if let Some(p) = policy.and_then(Value::as_str).filter(|p| !POLICIES.contains(p)) {
        errors.push(FieldError::not_supported(&FieldPath::new("propagationPolicy"), p, &POLICIES));
    }
    let dry = o.get("dryRun").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    for d in dry.filter(|d| *d != "All") {
        errors.push(FieldError::not_supported(&FieldPath::new("dryRun"), d, &["All"]));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&group_kind(), "", &errors))
}

const POLICIES: [&str; 3] = ["Background", "Foreground", "Orphan"];

fn group_kind() -> GroupKind {
    GroupKind { group: "meta.k8s.io".into(), kind: "DeleteOptions".into() }
}

fn query(q: &Query, options: &mut DeleteOptions) -> Result<(), Status> {
    if q.get("dryRun") == "All" {
        options.dry_run = true;
    }
    let grace = q.get("gracePeriodSeconds");
    if !grace.is_empty() {
        let n =
            grace.parse().map_err(|_| Status::bad_request(format!("gracePeriodSeconds: {grace:?} is no number")))?;
        options.grace_period_seconds = Some(n);
    }
    match q.get("propagationPolicy") {
        "" => {}
        "Orphan" => options.propagation = Some(Propagation::Orphan),
        "Background" => options.propagation = Some(Propagation::Background),
        "Foreground" => options.propagation = Some(Propagation::Foreground),
        other => {
            let e = FieldError::not_supported(&FieldPath::new("propagationPolicy"), other, &POLICIES);
            return Err(Status::invalid(&group_kind(), "", &[e]));
        }
    }
    if q.has("orphanDependents") {
        let orphan = q.is_true("orphanDependents");
        options.propagation = Some(if orphan { Propagation::Orphan } else { Propagation::Background });
    }
    Ok(())
}
