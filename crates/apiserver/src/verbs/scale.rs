//! The `scale` subresource: `autoscaling/v1` Scale of an object with replicas.

use super::answer::answer;
use super::decode::{check_name, read_object, take_namespace};
use super::options::write_options;
use super::patch::{self, is_apply};
use crate::Server;
use crate::admit::Admission;
use crate::answer::method_not_allowed;
use crate::body::Body;
use crate::call::Call;
use async_trait::async_trait;
use http::{Method, Response};
use merge::managed;
use meta::{FieldError, FieldPath, Gvk, MutatedBy, Object, Operation, Status, Value};
use registry::strategy::at;
use registry::{Admit, Preconditions, Request, Scale, Target, Warnings, WriteOptions};
use registry::{Conversions, Sent};
use schema::Schema;
use serde_json::json;
use std::sync::Arc;

pub async fn scale(
    server: &Arc<Server>,
    call: &Call,
    request: Request,
    paths: &Scale,
) -> Result<Response<Body>, Status> {
    match call.parts.method {
        Method::GET | Method::HEAD => {
            let object = server.registry.get(&request).await?;
            Ok(answer(server, call, &request, 200, &scale_of(&object, paths)))
        }
        Method::PUT => {
            let sent = read_object(call, &request)?;
            let on = Preconditions { uid: Some(sent.uid().to_owned()).filter(|u| !u.is_empty()), ..Default::default() };
            write(server, call, request, paths, &on, |_| Ok(sent.clone())).await
        }
        Method::PATCH if is_apply(call) => apply(server, call, request, paths).await,
        Method::PATCH => {
            let (sent, kind) = (patch::read(call, &request)?, kind());
            let schema = schema_of_scale()?;
            let seen = seen_as(&request, "scale");
            let change = |live: &Object| sent.onto(call, &seen, &kind, schema, &scale_of(live, paths));
            write(server, call, request, paths, &Preconditions::default(), change).await
        }
        _ => Err(method_not_allowed()),
    }
}

fn scale_of(o: &Object, paths: &Scale) -> Object {
    let mut metadata = json!({"name": o.name(), "namespace": o.namespace(), "uid": o.uid(),
        "resourceVersion": o.resource_version(), "creationTimestamp": o.creation_timestamp()});
    if o.namespace().is_empty() {
        metadata["namespace"] = Value::Null;
    }
    let mut spec = json!({});
    if let Some(r) = at(o, &paths.spec_replicas).and_then(Value::as_i64).filter(|r| *r != 0) {
        spec["replicas"] = r.into();
    }
    let mut status = json!({"replicas": at(o, &paths.status_replicas).and_then(Value::as_i64).unwrap_or(0)});
    let text = paths.selector_of(o);
    if !text.is_empty() {
        status["selector"] = text.into();
    }
    let v =
        json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status});
    Object::from_value(v).unwrap_or_default()
}

fn kind() -> Gvk {
    Gvk::new("autoscaling", "v1", "Scale")
}

fn schema_of_scale() -> Result<&'static Schema, Status> {
    kinds::catalog().schema_of(&kind()).map(|s| &**s).ok_or_else(|| Status::internal("a scale has no schema"))
}

async fn write(
    server: &Arc<Server>,
    call: &Call,
    request: Request,
    paths: &Scale,
    preconditions: &Preconditions,
    change: impl Fn(&Object) -> Result<Sent, Status> + Send + Sync,
) -> Result<Response<Body>, Status> {
    let options = WriteOptions { through: Some(("scale", paths.spec_replicas.clone())), ..write_options(call)? };
    let whole = seen_as(&request, "");
    let apply = |live: Option<&Object>, _: &_| {
        let Some(live) = live else { return Err(Status::not_found(&request.group_resource(), &request.name)) };
        let mut scale = change(live)?;
        take_namespace(&request, &mut scale)?;
        check_name(&request, &scale)?;
        let replicas = replicas_of(&request, &scale, live.name())?;
        let mut object = live.clone();
        let path: Vec<&str> = paths.spec_replicas.iter().map(String::as_str).collect();
        object.set(&path, replicas);
        // Only a resource version from the client makes the write conditional. A kind that needs one keeps that of the object
        // (`apiextensions-apiserver/pkg/registry/customresource/etcd.go`).
        if !scale.resource_version().is_empty() || !request.resource.kind.needs_revision {
            object.set_resource_version(scale.resource_version());
        }
        Ok(Target::object(object))
    };
    let admit = ScaleAdmission { inner: Admission::new(server, call, &request, &options), paths };
    let updated = server.registry.update(&whole, &apply, preconditions, &options, &admit).await?;
    Ok(answer(server, call, &request, 200, &scale_of(&updated.into_written().object, paths)))
}

/// The request for the object itself, which is a Scale only for clients, or for another subresource.
fn seen_as(request: &Request, subresource: &str) -> Request {
    Request {
        user: request.user.clone(),
        verb: request.verb,
        resource: request.resource.clone(),
        subresource: subresource.into(),
        namespace: request.namespace.clone(),
        name: request.name.clone(),
    }
}

/// Custom resources are only held to their own schema.
fn replicas_of(request: &Request, scale: &Object, name: &str) -> Result<i64, Status> {
    let replicas = scale.int_at(&["spec", "replicas"]).unwrap_or(0);
    let mut errors = Vec::new();
    registry::metadata::embedded(scale, &FieldPath::new("metadata"), &mut errors);
    if replicas < 0 && !request.resource.strategy.is_custom() {
        let path = FieldPath::new("spec.replicas");
        errors.push(FieldError::invalid(&path, replicas, "must be greater than or equal to 0"));
    }
    if errors.is_empty() {
        return Ok(replicas);
    }
    let gk = meta::GroupKind { group: "autoscaling".into(), kind: "Scale".into() };
    Err(Status::invalid(&gk, name, &errors))
}

/// Server-side apply of a Scale: applies a configuration of the object with only its replicas; the managed fields
/// entry has the subresource.
async fn apply(server: &Arc<Server>, call: &Call, request: Request, paths: &Scale) -> Result<Response<Body>, Status> {
    let (options, applied) = patch::applied(call, &kind())?;
    if !applied.configuration.name().is_empty() {
        check_name(&request, &applied.configuration)?;
    }
    let schema = schema_of_scale()?;
    managed::check(&applied.configuration, &kind().api_version(), schema).map_err(|e| e.status())?;
    let mut scale = applied.configuration.into_value();
    schema::typed(&mut scale, schema).map_err(|e| Status::bad_request(e.to_string()))?;
    let scale = Object::from_value(scale).ok_or_else(|| Status::bad_request("the configuration is no object"))?;
    let path: Vec<&str> = paths.spec_replicas.iter().map(String::as_str).collect();
    let mut configuration = Object::default();
    configuration.set_gvk(&request.resource.kind.gvk());
    configuration.set_name(&request.name);
    configuration.set_namespace(&request.namespace);
    let replicas = replicas_of(&request, &scale, &request.name)?;
    if scale.int_at(&["spec", "replicas"]).is_some() {
        configuration.set(&path, replicas);
    }
    let (whole, part) = (seen_as(&request, ""), seen_as(&request, "scale"));
    let change = |live: Option<&Object>, conversions: &Conversions| {
        let Some(live) = live else { return Err(Status::not_found(&request.group_resource(), &request.name)) };
        let merged = server
            .registry
            .apply(&part, conversions, Some(live), &configuration, applied.manager, applied.force)
            .map_err(|e| match e {
                managed::Error::Conflict(c) => c.through(&kind().api_version(), &["spec", "replicas"]).status(),
                other => other.status(),
            })?;
        let mut object = merged.unwrap_or_else(|| live.clone());
        object.set_resource_version(scale.resource_version());
        Ok(Target::object(object))
    };
    let admit = ScaleAdmission { inner: Admission::new(server, call, &request, &options), paths };
    let updated = server.registry.update(&whole, &change, &Preconditions::default(), &options, &admit).await?;
    Ok(answer(server, call, &request, 200, &scale_of(&updated.into_written().object, paths)))
}

/// Admission receives the Scale, as the client sent it.
struct ScaleAdmission<'a> {
    inner: Admission<'a>,
    paths: &'a Scale,
}

#[async_trait]
impl Admit for ScaleAdmission<'_> {
    fn warnings(&self) -> Option<&Warnings> {
        self.inner.warnings()
    }

    async fn mutate(
        &self,
        operation: Operation,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<MutatedBy, Status> {
        let mut scale = scale_of(object, self.paths);
        let before = old.map(|o| scale_of(o, self.paths));
        if self.inner.mutate(operation, &mut scale, before.as_ref()).await? == MutatedBy::Anyone {
            let path: Vec<&str> = self.paths.spec_replicas.iter().map(String::as_str).collect();
            object.set(&path, scale.int_at(&["spec", "replicas"]).unwrap_or(0));
        }
        Ok(MutatedBy::Plugins)
    }

    async fn validate(
        &self,
        operation: Operation,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let show = |o: Option<&Object>| o.map(|o| scale_of(o, self.paths));
        self.inner.validate(operation, show(object).as_ref(), show(old).as_ref()).await
    }
}
