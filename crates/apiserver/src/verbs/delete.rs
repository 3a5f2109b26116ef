//! Delete, and deletecollection.

use super::answer::answer;
use super::list;
use super::options::preconditions;
use crate::admit::Admission;
use crate::answer::bytes;
use crate::body::Body;
use crate::call::Call;
use crate::content;
use crate::listing::Listing;
use crate::{Server, path::Query};
use auth::Decision;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use http::Response;
use meta::{FieldError, FieldPath, Object, Status, Value};
use registry::{DeleteOptions, Deleted, IGNORE_READ_ERROR, ListOptions, Propagation, Request, Resource, WriteOptions};
use std::pin::pin;
use std::sync::Arc;
use store::Entry;
use stored::in_place::LARGE;

/// How many objects of a collection are deleted at a time: they share a write to the disk. Large ones are deleted one after the other,
/// because they take memory.
const AT_A_TIME: usize = 32;

pub async fn delete(server: &Arc<Server>, call: &Call, request: Request) -> Result<Response<Body>, Status> {
    let mut options = options(call)?;
    let revision = preconditions(call).resource_version;
    options.preconditions.resource_version = options.preconditions.resource_version.or(revision);
    let write = write(call, &options);
    let row = request.resource.clone();
    if options.ignore_read_error && server.registry.is_unreadable(&request) {
        alone(&options)?;
        return unreadable(server, call, &request).await;
    }
    warn(call, &request, &options);
    let admit = Admission::new(server, call, &request, &write);
    match server.registry.delete(&request, &options, &admit).await? {
        Deleted::Waiting(o) => {
            let is_background = options.by_orphans && options.propagation == Some(Propagation::Background);
            Ok(answer(server, call, &request, if is_background { 202 } else { 200 }, &o))
        }
        Deleted::Removed(o) if returns_object(&row) => Ok(answer(server, call, &request, 200, &o)),
        Deleted::Removed(o) => {
            let (media, body) = content::write(&call.negotiated, &success(&row, &o));
            Ok(bytes(200, media, body))
        }
    }
}

/// Deletes an object that cannot be read, which requires its own permission.
async fn unreadable(server: &Arc<Server>, call: &Call, request: &Request) -> Result<Response<Body>, Status> {
    const VERB: &str = "unsafe-delete-ignore-read-errors";
    call.trace.annotate("apiserver.k8s.io/unsafe-delete-ignore-read-error", &"");
    let mut a = (*call.attributes).clone();
    a.verb = VERB.into();
    if let Decision::Deny(why) | Decision::NoOpinion(why) = server.authorizer.decide(&a).await {
        let why = format!("not permitted to do {VERB:?}, reason: {why}");
        return Err(Status::forbidden(&request.group_resource(), &request.name, &why));
    }
    server.registry.delete_unreadable(request).await?;
    let mut object = Object::default();
    object.set_name(&request.name);
    let (media, body) = content::write(&call.negotiated, &success(&request.resource, &object));
    Ok(bytes(200, media, body))
}

/// Some kinds return the deleted object instead of a `Status`.
fn returns_object(row: &Resource) -> bool {
    row.kind.answers_deleted
}

fn success(row: &Resource, o: &Object) -> Value {
    let mut details = serde_json::json!({"name": o.name(), "kind": &*row.kind.plural});
    if !o.uid().is_empty() {
        details["uid"] = o.uid().into();
    }
    if !row.kind.group.is_empty() {
        details["group"] = (*row.kind.group).into();
    }
    serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

pub async fn collection(server: &Arc<Server>, call: &Call, request: Request) -> Result<Response<Body>, Status> {
    let options = options(call)?;
    warn(call, &request, &options);
    let write = write(call, &options);
    let list = ListOptions { readable_only: true, ..list::options(call, &request, list::ListOrWatch::List)? };
    let page = server.registry.list(&request, &list).await?;
    let row = request.resource.clone();
    let meta = list::list_meta(&page, list::ListForm::of(&row));
    let list = serde_json::json!({"kind": row.kind.list_kind(), "apiVersion": row.kind.gvk().api_version(),
        "metadata": meta});
    let mut deleted = Listing::new(&call.negotiated, list, "items");
    // Skips unreadable objects, reports them, and deletes the others.
    let mut failed = server.registry.check_readable(&request).err();
    let large = page.entries.iter().any(|e| e.value.len() >= LARGE);
    let collection = Collection { server, call, request: &request, options: &options, write: &write };
    let deletions = stream::iter(page.entries.iter().cloned()).map(|e| collection.delete(e));
    let mut deletions = pin!(deletions.buffered(if large { 1 } else { AT_A_TIME }));
    while let Some((e, done)) = deletions.next().await {
        match done {
            Ok(Deleted::Removed(mut o) | Deleted::Waiting(mut o)) => {
                if row.bare_items {
                    o.remove(&["kind"]);
                    o.remove(&["apiVersion"]);
                }
                deleted.push(vec![o.into_value()])?;
            }
            // Another request deleted it first.
            Err(s) if s.is(meta::Reason::NotFound) => {}
            Err(s) if stored::encode::decode(&e).is_err() => failed = failed.or(Some(s)),
            Err(s) => return Err(s),
        }
    }
    if let Some(s) = failed {
        return Err(s);
    }
    let (media, body) = deleted.finish();
    Ok(bytes(200, media, body))
}

/// A deletion of many objects.
#[derive(Clone, Copy)]
struct Collection<'a> {
    server: &'a Arc<Server>,
    call: &'a Call,
    request: &'a Request,
    options: &'a DeleteOptions,
    write: &'a WriteOptions,
}

impl<'a> Collection<'a> {
    fn delete(self, e: Arc<Entry>) -> BoxFuture<'a, (Arc<Entry>, Result<Deleted, Status>)> {
        Box::pin(async move {
            let one = Request {
                user: self.request.user.clone(),
                verb: self.request.verb,
                resource: self.request.resource.clone(),
                subresource: String::new(),
                namespace: e.key.namespace.to_string(),
                name: e.key.name.to_string(),
            };
            let admit = Admission::new(self.server, self.call, &one, self.write);
            let done = self.server.registry.delete(&one, self.options, &admit).await;
            tokio::task::yield_now().await;
            (e, done)
        })
    }
}

/// Rejects a body of another kind: a client that sends an object instead of options does not intend a deletion with
/// default options. `DeleteOptions` exist in each group and version.
fn check_kind(sent: &Value) -> Result<(), Status> {
    let text = |k: &str| sent.get(k).and_then(Value::as_str).unwrap_or_default();
    let (kind, version) = (text("kind"), text("apiVersion"));
    match kind {
        "" | "DeleteOptions" => Ok(()),
        "ListOptions" | "GetOptions" | "CreateOptions" | "UpdateOptions" | "PatchOptions" => {
            Err(Status::bad_request("decoded object cannot be converted to DeleteOptions"))
        }
        _ => {
            let version = if version.is_empty() { "meta.k8s.io/v1" } else { version };
            let scheme = "pkg/apis/meta/internalversion/scheme/register.go:27";
            let why = format!("no kind {kind:?} is registered for version {version:?} in scheme {scheme:?}");
            Err(Status::bad_request(why))
        }
    }
}

/// The options of a deletion: from the body if there is one, else from the query, as upstream.
fn options(call: &Call) -> Result<DeleteOptions, Status> {
    let object = match call.body.is_empty() {
        true => from_query(&call.query)?,
        false => from_body(call)?,
    };
    DeleteOptions::read(&object)
}

/// Warns of a deletion that leaves to the kind what happens to dependents.
fn warn(call: &Call, request: &Request, options: &DeleteOptions) {
    if let Some(w) = request.resource.strategy.propagation_warning().filter(|_| options.propagation.is_none()) {
        call.warnings.push(w);
    }
}

fn from_body(call: &Call) -> Result<Object, Status> {
    let sent = call.sent()?;
    check_kind(&sent.value)?;
    let schema = kinds::catalog().definitions.get("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions");
    let mut value = sent.value;
    if let Some(schema) = schema {
        schema::typed(&mut value, schema).map_err(|e| Status::bad_request(e.to_string()))?;
    }
    Object::from_value(value).ok_or_else(|| Status::bad_request("the options are no object"))
}

fn from_query(query: &Query) -> Result<Object, Status> {
    let mut options = Object::default();
    let mut set = |name: &str, value: Value| {
        options.0.insert(name.into(), value);
    };
    if query.has("dryRun") {
        set("dryRun", query.all("dryRun").collect());
    }
    let grace = query.get("gracePeriodSeconds");
    if !grace.is_empty() {
        let wrong = |_| Status::bad_request(format!("strconv.ParseInt: parsing {grace:?}: invalid syntax"));
        set("gracePeriodSeconds", grace.parse::<i64>().map_err(wrong)?.into());
    }
    if query.has("propagationPolicy") {
        set("propagationPolicy", query.get("propagationPolicy").into());
    }
    for name in ["orphanDependents", IGNORE_READ_ERROR] {
        if query.has(name) {
            set(name, query.is_true(name).into());
        }
    }
    Ok(options)
}

/// How the deletion is written. Managed fields of an object that stays name the client.
fn write(call: &Call, options: &DeleteOptions) -> WriteOptions {
    WriteOptions { dry_run: options.dry_run, ..WriteOptions::by(&call.manager()) }
}

/// An unreadable object is deleted immediately, without a grace period.
fn alone(o: &DeleteOptions) -> Result<(), Status> {
    if !o.ignore_read_error {
        return Ok(());
    }
    let others = [
        (".dryRun", o.dry_run),
        (".propagationPolicy", o.propagation.is_some() && !o.by_orphans),
        (".orphanDependents", o.by_orphans),
        (".gracePeriodSeconds", o.grace_period_seconds.is_some()),
        (".preconditions", o.preconditions.uid.is_some() || o.preconditions.resource_version.is_some()),
    ];
    let at = FieldPath::new(IGNORE_READ_ERROR);
    let why = |(other, _): &(&str, bool)| format!("cannot be set together with {other}");
    let errors: Vec<FieldError> =
        others.iter().filter(|(_, set)| *set).map(|o| FieldError::invalid(&at, true, why(o))).collect();
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid(&DeleteOptions::group_kind(), "", &errors)) }
}
