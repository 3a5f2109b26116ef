//! Patch: JSON, merge and strategic merge patches. The patch is read once and applied to whatever is live at each attempt.

use super::{
    FieldValidation, admission, field_validation, preconditions, take_namespace, to_typed, write_options, written,
};
use crate::Server;
use crate::body::Body;
use crate::content;
use crate::handle::Call;
use http::Response;
use merge::managed::Force;
use merge::{json_patch, merge_patch, strategic};
use meta::{Object, Status, Value};
use registry::{Request, Target, Updated, WriteOptions};
use std::sync::Arc;

pub(super) const JSON: &str = "application/json-patch+json";
pub(super) const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const APPLY_CBOR: &str = "application/apply-patch+cbor";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// What a patch of this kind of resource may be.
pub(super) fn supported(call: &Call, request: &Request) -> Vec<&'static str> {
    let mut all = vec![JSON, MERGE, APPLY];
    if request.resource.bare_items {
        all.push(STRATEGIC);
    }
    if call.cbor {
        all.push(APPLY_CBOR);
    }
    all
}

/// Whether a configuration is to be applied.
pub(super) fn is_apply(call: &Call) -> bool {
    call.media_type() == APPLY || call.cbor && call.media_type() == APPLY_CBOR
}

enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(meta::Map<String, Value>),
}

pub async fn patch(server: &Arc<Server>, call: &Call, request: Request) -> Result<Response<Body>, Status> {
    if is_apply(call) {
        return apply_configuration(server, call, request).await;
    }
    let options = write_options(call)?;
    if call.query.has("force") {
        let why = "may not be specified for non-apply patch";
        let e = meta::FieldError::forbidden(&meta::FieldPath::new("force"), why);
        let gk = meta::GroupKind { group: "meta.k8s.io".into(), kind: "PatchOptions".into() };
        return Err(Status::invalid(&gk, "", &[e]));
    }
    let (patch, duplicates) = read(call, &request)?;
    field_validation(call)?;
    let whose = if matches!(patch, Patch::Json(_)) { "json patch " } else { "" };
    let found: Vec<String> = duplicates.iter().map(|d| format!("{whose}duplicate field {d:?}")).collect();
    let change = |live: Option<&Object>| {
        let Some(live) = live else {
            return Err(Status::not_found(&request.group_resource(), &request.name));
        };
        let patched = apply(&patch, live, &request)?;
        let kind = request.resource.kind.gvk();
        let sent = || String::from_utf8_lossy(&call.body).into_owned();
        let mut object = to_typed(call, &request, &kind, patched, found.clone()).map_err(|s| not_typed(sent(), &s))?;
        if object.namespace().is_empty() && request.resource.kind.namespaced {
            object.set_namespace(&request.namespace);
        }
        Ok(Target::Object(Box::new(object)))
    };
    let admit = admission(server, call, &request, &options);
    let updated = server.registry.update(&request, &change, &preconditions(call), &options, &admit).await?;
    let code = if matches!(updated, Updated::Created(_)) { 201 } else { 200 };
    Ok(written(server, call, &request, code, &updated.into_written()))
}

/// What was patched cannot be read as the kind any more: the patch is to blame, and shown.
fn not_typed(patch: String, s: &Status) -> Status {
    if s.code != 400 {
        return s.clone();
    }
    let e = meta::FieldError::invalid(&meta::FieldPath::new("patch"), patch, s.message.as_str());
    Status::invalid(&meta::GroupKind::default(), "", &[e])
}

/// What is applied, by whom.
pub(super) struct Applied<'a> {
    pub configuration: Object,
    pub manager: &'a str,
    pub force: Force,
}

/// Reads a configuration that is to be applied, and how.
pub(super) fn applied<'a>(call: &'a Call, request: &Request) -> Result<(WriteOptions, Applied<'a>), Status> {
    let options = WriteOptions { applied: true, ..write_options(call)? };
    let manager = call.query.get("fieldManager");
    if manager.is_empty() {
        let e = meta::FieldError::required(&meta::FieldPath::new("fieldManager"), "is required for apply patch");
        let gk = meta::GroupKind { group: "meta.k8s.io".into(), kind: "PatchOptions".into() };
        return Err(Status::invalid(&gk, "", &[e]));
    }
    let force = if call.query.is_true("force") { Force::Yes } else { Force::No };
    let sent =
        if call.media_type() == APPLY_CBOR { content::read_cbor(&call.body)? } else { content::yaml(&call.body)? };
    for why in &sent.duplicates {
        match field_validation(call)? {
            FieldValidation::Strict => return Err(Status::bad_request(format!("error strict decoding YAML: {why}"))),
            FieldValidation::Warn => request.warn(why.as_str()),
            FieldValidation::Ignore => {}
        }
    }
    let Value::Object(map) = sent.value else { return Err(Status::bad_request("the configuration is no object")) };
    let configuration = Object(map);
    if configuration.metadata().and_then(|m| m.get("name")).is_some_and(|n| *n != *request.name) {
        let why = format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            configuration.name(),
            request.name
        );
        return Err(Status::bad_request(why));
    }
    Ok((options, Applied { configuration, manager, force }))
}

/// Server-side apply: creates or merges, and tracks who manages what.
async fn apply_configuration(server: &Arc<Server>, call: &Call, request: Request) -> Result<Response<Body>, Status> {
    let (options, Applied { configuration, manager, force }) = applied(call, &request)?;
    if call.target.subresource.is_empty() {
        authorize_create(server, call).await?;
    }
    let kind = request.resource.kind.gvk();
    let change = |live: Option<&Object>| {
        if live.is_none() && !request.subresource.is_empty() {
            return Err(Status::not_found(&request.group_resource(), &request.name));
        }
        let merged = match server.registry.apply(&request, live, &configuration, manager, force)? {
            Some(m) => m,
            None => live.cloned().unwrap_or_default(),
        };
        let mut object = to_typed(call, &request, &kind, merged.0, Vec::new())?;
        if object.name().is_empty() {
            object.set_name(&request.name);
        }
        take_namespace(&request, &mut object)?;
        Ok(match live {
            None => Target::Create(Box::new(object)),
            Some(_) => Target::Object(Box::new(object)),
        })
    };
    let admit = admission(server, call, &request, &options);
    let updated = server.registry.update(&request, &change, &preconditions(call), &options, &admit).await?;
    let code = if matches!(updated, Updated::Created(_)) { 201 } else { 200 };
    Ok(written(server, call, &request, code, &updated.into_written()))
}

/// Applying or putting what is not there creates it, which must be allowed as well.
pub(super) async fn authorize_create(server: &Arc<Server>, call: &Call) -> Result<(), Status> {
    let mut a = crate::handle::attributes(&call.user, &call.parts, &call.target, false);
    a.verb = "create".into();
    if exists(server, call) || server.authorizer.decide(&a).await.allowed() {
        return Ok(());
    }
    Err(crate::handle::forbidden(&a, ""))
}

fn exists(server: &Arc<Server>, call: &Call) -> bool {
    let rows = server.registry.rows();
    let row = call
        .target
        .group_version
        .as_ref()
        .and_then(|gv| rows.resource(&gv.with_resource(call.target.resource.clone())));
    let key = row.and_then(|r| r.key(&call.target.namespace, &call.target.name));
    key.is_some_and(|k| server.registry.store.snapshot().get(&k).is_some())
}

fn read(call: &Call, request: &Request) -> Result<(Patch, Vec<String>), Status> {
    let media = call.media_type();
    let sent = match media {
        JSON | MERGE | STRATEGIC => content::json(&call.body)?,
        _ => return Err(content::unsupported(&supported(call, request))),
    };
    let patch = match (media, sent.value) {
        (JSON, v) => Patch::Json(json_patch::Patch::decode(v).map_err(|e| e.status())?),
        (MERGE, v) => Patch::Merge(v),
        (_, Value::Object(m)) if request.resource.bare_items => Patch::Strategic(m),
        (_, Value::Object(_)) => return Err(content::unsupported(&supported(call, request))),
        (_, _) => return Err(Status::bad_request("the patch is no object")),
    };
    Ok((patch, sent.duplicates))
}

/// The patched document, not yet typed.
fn apply(patch: &Patch, live: &Object, request: &Request) -> Result<meta::Map<String, Value>, Status> {
    match patch {
        Patch::Json(p) => {
            let mut doc = live.clone().into_value();
            p.clone().apply(&mut doc).map_err(|e| e.status())?;
            object(doc)
        }
        Patch::Merge(p) => {
            let mut doc = live.clone().into_value();
            merge_patch::apply(&mut doc, p.clone()).map_err(|e| Status::bad_request(e.to_string()))?;
            object(doc)
        }
        Patch::Strategic(p) => {
            let mut doc = live.0.clone();
            strategic::apply(&mut doc, p.clone(), Some(&request.resource.kind.schema)).map_err(|e| e.status())?;
            Ok(doc)
        }
    }
}

fn object(v: Value) -> Result<meta::Map<String, Value>, Status> {
    match v {
        Value::Object(m) => Ok(m),
        _ => Err(Status::bad_request("the patched document is no object")),
    }
}
