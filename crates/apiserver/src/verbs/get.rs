//! Get. An object in its storage version is spliced from its bytes, not decoded.

use super::answer::{answer, spliced};
use crate::Server;
use crate::body::Body;
use crate::call::Call;
use http::Response;
use meta::Status;
use registry::{Backend, Request};

pub async fn get(server: &Server, call: &Call, request: &Request) -> Result<Response<Body>, Status> {
    let row = &request.resource;
    if call.query.is_true("export") {
        let why = "the export parameter, deprecated since v1.14, is no longer supported";
        return Err(Status::bad_request(why));
    }
    super::list::check_revision(call)?;
    if matches!(row.backend, Backend::Stored { .. }) {
        server.registry.check_not_older(call.query.get("resourceVersion"))?;
    }
    if call.negotiated.is_plain() && matches!(row.backend, Backend::Stored { .. }) {
        let entry = server.registry.entry(request)?;
        if !row.serves_bytes(&entry) {
            let object = server.registry.from_stored(row, &entry).await?;
            return Ok(answer(server, call, request, 200, &object));
        }
        return Ok(spliced(200, &entry));
    }
    let object = server.registry.get(request).await?;
    Ok(answer(server, call, request, 200, &object))
}
