//! Responses with an object.

use crate::Server;
use crate::answer::{bytes, failure_in};
use crate::body::Body;
use crate::call::Call;
use crate::content::{self, Negotiated, Shape};
use crate::joined::indented;
use crate::table;
use http::Response;
use meta::Object;
use registry::{Request, Written};
use store::Entry;
use stored::encode;

/// Responds with a written object. Sends the stored bytes if the client accepts them.
pub(super) fn written(server: &Server, call: &Call, request: &Request, code: u16, written: &Written) -> Response<Body> {
    match &written.entry {
        Some(entry) if call.negotiated.is_plain() && request.resource.serves_bytes(entry) => spliced(code, entry),
        _ => answer(server, call, request, code, &written.object),
    }
}

/// Responds with a stored object.
pub(super) fn spliced(code: u16, entry: &Entry) -> Response<Body> {
    let mut out = Vec::new();
    encode::splice(&mut out, entry);
    out.push(b'\n');
    bytes(code, "application/json", out)
}

/// Responds with an object in the negotiated representation and encoding.
pub(super) fn answer(server: &Server, call: &Call, request: &Request, code: u16, object: &Object) -> Response<Body> {
    if let Err(s) = table::check_object(&request.resource, &call.negotiated, object) {
        return failure_in(&call.negotiated, &s);
    }
    let shaped;
    let version = call.negotiated.meta;
    let v: &Object = match call.negotiated.shape {
        Shape::PartialMetadata if object.kind() != "Status" => {
            shaped = Object::from_value(table::partial(object, version)).unwrap_or_default();
            &shaped
        }
        Shape::Table if object.kind() != "Status" => {
            let now = meta::time::format(server.registry.clock.now());
            let list = serde_json::json!({"resourceVersion": object.resource_version()});
            let include = call.query.get("includeObject");
            let how = table::TableOptions { meta: version, include, headers: true, now: &now };
            let t = table::table(&request.resource, std::slice::from_ref(object), list, &how);
            shaped = Object::from_value(t).unwrap_or_default();
            &shaped
        }
        _ => object,
    };
    let (media, body) = write_object(call, v);
    bytes(code, media, body)
}

fn write_object(call: &Call, object: &Object) -> (&'static str, Body) {
    let is_json = call.negotiated.encoding == content::Encoding::Json;
    if is_json && !call.negotiated.pretty {
        let mut out = Vec::with_capacity(1024);
        let _ = serde_json::to_writer(&mut out, &object.0);
        out.push(b'\n');
        return ("application/json", out.into());
    }
    let compact = Negotiated { pretty: false, ..call.negotiated };
    let (media, mut body) = content::write(&compact, &object.clone().into_value());
    if is_json {
        body.truncate(body.trim_ascii_end().len());
        return (media, indented(body));
    }
    (media, body.into())
}
