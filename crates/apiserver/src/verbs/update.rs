//! Update (PUT).

use super::answer::written;
use super::decode::{check_name, read_object, take_namespace};
use super::options::{preconditions, write_options};
use crate::Server;
use crate::admit::Admission;
use crate::body::Body;
use crate::call::Call;
use http::Response;
use meta::{Object, Status};
use registry::{Request, Target, Updated};
use std::sync::Arc;

pub async fn update(server: &Arc<Server>, call: &Call, request: Request) -> Result<Response<Body>, Status> {
    let options = write_options(call)?;
    let mut object = read_object(call, &request)?;
    take_namespace(&request, &mut object)?;
    check_name(&request, &object)?;
    let creates = request.resource.kind.put_creates && request.subresource.is_empty();
    if creates {
        super::patch::authorize_create(server, call).await?;
    }
    let change = |live: Option<&Object>| {
        Ok(match live {
            None if creates => Target::Create(Box::new(object.clone())),
            _ => Target::Object(Box::new(object.clone())),
        })
    };
    let admit = Admission::new(server, call, &request, &options);
    let updated = server.registry.update(&request, &change, &preconditions(call), &options, &admit).await?;
    let code = if matches!(updated, Updated::Created(_)) { 201 } else { 200 };
    Ok(written(server, call, &request, code, &updated.into_written()))
}
