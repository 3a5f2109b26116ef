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
use parking_lot::Mutex;
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
    // A conditional update is not retried after a conflict, and so needs no copy of its object.
    let conditional = !matches!(object.resource_version(), "" | "0") && !creates;
    let object = Mutex::new(Some(Box::new(object)));
    let change = |live: Option<&Object>, _: &_| {
        let mut object = object.lock();
        let new = if conditional { object.take() } else { object.clone() };
        let lost = || match live {
            Some(_) => Status::modified(&request.resource.group_resource(), &request.name),
            None => Status::not_found(&request.resource.group_resource(), &request.name),
        };
        let new = new.ok_or_else(lost)?;
        Ok(if live.is_none() && creates { Target::Create(new) } else { Target::Object(new) })
    };
    let admit = Admission::new(server, call, &request, &options);
    let updated = server.registry.update(&request, &change, &preconditions(call), &options, &admit).await?;
    let code = if matches!(updated, Updated::Created(_)) { 201 } else { 200 };
    Ok(written(server, call, &request, code, &updated.into_written()))
}
