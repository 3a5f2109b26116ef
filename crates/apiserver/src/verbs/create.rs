//! Create, including resources implemented by a function.

use super::answer::{answer, written};
use super::decode::{read_object, take_namespace};
use super::options::write_options;
use crate::Server;
use crate::admit::Admission;
use crate::body::Body;
use crate::call::Call;
use http::Response;
use meta::{Operation, Status};
use registry::{Admit, Function, Request};
use std::sync::Arc;

pub async fn create(server: &Arc<Server>, call: &Call, mut request: Request) -> Result<Response<Body>, Status> {
    let options = write_options(call)?;
    let mut object = read_object(call, &request)?;
    take_namespace(&request, &mut object)?;
    request.name = object.name().to_owned();
    let admit = Admission::new(server, call, &request, &options);
    let made = server.registry.create(&request, object, &options, &admit).await?;
    Ok(written(server, call, &request, 201, &made))
}

/// A subresource implemented by a function (`binding`, `eviction`, `token`).
pub async fn function(
    server: &Arc<Server>,
    call: &Call,
    request: Request,
    function: &dyn Function,
) -> Result<Response<Body>, Status> {
    let options = write_options(call)?;
    let mut object = read_object(call, &request)?.object;
    take_namespace(&request, &mut object)?;
    function.check_name(&object, &request.name)?;
    object.set_name(&request.name);
    let admit = Admission::new(server, call, &request, &options);
    admit.mutate(Operation::Create, &mut object, None).await?;
    admit.validate(Operation::Create, Some(&object), None).await?;
    let object = function.create(server.registry.env_for(&call.warnings), &request, object, &options).await?;
    Ok(answer(server, call, &request, 201, &object))
}
