//! Get. An object in its stored version is spliced from its bytes, not decoded.

use super::answer;
use crate::Server;
use crate::body::Body;
use crate::content::{Encoding, Shape};
use crate::handle::{Call, bytes};
use http::Response;
use meta::Status;
use registry::{Backend, Request, encode};

pub async fn get(server: &Server, call: &Call, request: &Request) -> Result<Response<Body>, Status> {
    let row = &request.resource;
    let plain = call.wanted.shape == Shape::Object && call.wanted.encoding == Encoding::Json && !call.wanted.pretty;
    super::list::check_revision(call)?;
    if plain && matches!(row.backend, Backend::Stored { .. }) {
        let entry = server.registry.entry(request)?;
        if !row.serves_bytes(&entry) {
            let object = server.registry.from_stored(row, &entry).await?;
            return Ok(answer(server, call, request, 200, &object));
        }
        let mut out = Vec::new();
        encode::splice(&mut out, &entry);
        return Ok(bytes(200, "application/json", out));
    }
    let object = server.registry.get(request).await?;
    Ok(answer(server, call, request, 200, &object))
}
