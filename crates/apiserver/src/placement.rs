//! Chooses where a call executes: on the thread that accepted it, or on a worker thread.
//!
//! A call goes to a worker if it decodes much (its body, the named object, and the objects that its strategy or an
//! admission plugin reads), or if writes of its resource are slow. The estimate decodes nothing.

use crate::Server;
use crate::body::Body;
use crate::call::Call;
use crate::content::{CBOR, Encoding, PROTOBUF, Shape};
use crate::info::is_stream;
use crate::lookup::{Stored, stored_size};
use crate::verbs;
use admission::WriteRequest;
use http::{Method, Response};
use meta::Status;
use registry::{Resource, Sub};
use std::sync::Arc;
use stored::amount;
use stored::in_place::LARGE;

/// Lists that decode at least this many objects are long.
const MANY: usize = amount::MANY;
/// Estimated bytes per object or array in a body: empty ones take hundreds of times their text in memory.
const PART: usize = 32;
/// Estimated bytes of a small but slow write.
const SLOW: usize = 1 << 20;

/// Executes a call.
pub(crate) async fn execute(server: &Arc<Server>, call: Call, row: Arc<Resource>) -> Result<Response<Body>, Status> {
    let size = if server.workers.accepts() { work_size(server, &call, &row) } else { None };
    let Some(size) = size else { return verbs::dispatch(server, call, row).await };
    let (user, target) = (call.user.name.clone(), server.clone());
    server.workers.run(&user, size.max(LARGE), async move { verbs::dispatch(&target, call, row).await }).await
}

/// Estimates how many bytes a call decodes; none if it is short.
fn work_size(server: &Server, call: &Call, row: &Resource) -> Option<usize> {
    let t = &call.target;
    if call.verb == "watch" || is_stream(&t.subresource) {
        return None;
    }
    let stored = || stored_size(server, row, &t.namespace, &t.name);
    if matches!(call.parts.method, Method::GET | Method::HEAD) {
        // Stored bytes cannot be sent unchanged if they are of another version, or older than the definition; nor can
        // a subresource's view of an object (its scale).
        let made =
            !t.subresource.is_empty() && !matches!(row.strategy.subresource(&t.subresource), None | Some(Sub::Part));
        let decodes = row.converts() || row.reshaped > 0 || made;
        let shown = match call.negotiated.shape {
            Shape::Object => call.negotiated.is_plain() && !decodes,
            Shape::PartialMetadata | Shape::PartialMetadataList => {
                call.negotiated.encoding == Encoding::Json && !decodes
            }
            Shape::Table => false,
        };
        if shown {
            return None;
        }
        let is_yaml = call.negotiated.encoding == Encoding::Yaml;
        if !t.name.is_empty() {
            let size = if is_yaml { indented_size(server, row, &t.namespace, &t.name) } else { stored() };
            return size.filter(|size| *size >= LARGE);
        }
        let (count, mut bytes) = collection(server, row, &t.namespace)?;
        if is_yaml {
            bytes = bytes.max(indented_size(server, row, &t.namespace, "")?);
        }
        let bytes = bytes + count * row.strategy.adds_defaults();
        return (count >= MANY || bytes >= LARGE).then_some(bytes.max(count << 10));
    }
    let mut size = call.body.len() + stored().unwrap_or_default() + others(server, call, row);
    if call.verb == "deletecollection" {
        // Decodes one object after the other.
        size += collection(server, row, &t.namespace).map_or(0, |(count, bytes)| bytes.max(count << 10)).min(SLOW);
    }
    if row.strategy.slow_from().is_some_and(|from| size >= from) {
        return Some((size + parts(call)).max(SLOW));
    }
    (size >= LARGE).then(|| size + parts(call))
}

/// Bytes of other objects that the strategy and admission plugins decode for a write.
fn others(server: &Server, call: &Call, row: &Resource) -> usize {
    let t = &call.target;
    let write = WriteRequest {
        verb: call.verb,
        group: &row.kind.group,
        resource: &row.kind.plural,
        subresource: &t.subresource,
        namespace: &t.namespace,
        name: &t.name,
    };
    let stored = Stored { registry: &server.registry, decoded: &server.decoded };
    row.strategy.reads(server.registry.env(), &t.subresource, &t.namespace, &t.name)
        + server.admission.reads(&write, &stored)
}

/// The number of a resource's objects, and their approximate bytes.
fn collection(server: &Server, row: &Resource, namespace: &str) -> Option<(usize, usize)> {
    let (resource, _) = row.stored()?;
    let namespace = Some(namespace).filter(|n| !n.is_empty());
    let snapshot = server.registry.store.snapshot();
    Some((snapshot.count(resource, namespace), amount::all(&snapshot, resource, namespace)))
}

/// Estimates the bytes of the named object as YAML, or of a sample of all objects: indentation multiplies nested text.
fn indented_size(server: &Server, row: &Resource, namespace: &str, name: &str) -> Option<usize> {
    let size = |e: &store::Entry| codec::json::indented_len(&e.value, "  ", 0);
    let snapshot = server.registry.store.snapshot();
    if !name.is_empty() {
        let entry = snapshot.get(&row.key(namespace, name)?)?;
        return Some(size(&entry));
    }
    let (resource, _) = row.stored()?;
    let all = snapshot.range(resource, Some(namespace).filter(|n| !n.is_empty()), None);
    Some(all.take(MANY).map(|e| size(e)).sum())
}

/// Additional size of the objects and arrays in a body: each takes far more memory than its text.
fn parts(call: &Call) -> usize {
    let count = match call.media_type() {
        PROTOBUF | CBOR => call.body.len() / 4,
        media => {
            let lines = media.ends_with("yaml").then(|| memchr::memchr_iter(b'\n', &call.body).count());
            memchr::memchr2_iter(b'{', b'[', &call.body).count() + lines.unwrap_or_default()
        }
    };
    count * PART
}
