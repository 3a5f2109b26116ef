//! One file per verb. Each handles a call on a resource row, without knowing any kind.

mod answer;
mod create;
mod decode;
mod delete;
mod get;
mod list;
mod options;
mod patch;
mod pipe;
mod scale;
mod shared;
mod update;
mod watch;

use crate::Server;
use crate::answer::method_not_allowed;
use crate::body::Body;
use crate::call::Call;
use crate::connect;
use crate::info::is_stream;
use http::{Method, Response};
use meta::Status;
use registry::{Request, Resource, Sub};
use std::sync::Arc;

/// Executes a call: dispatches by verb or subresource.
pub async fn dispatch(server: &Arc<Server>, call: Call, row: Arc<Resource>) -> Result<Response<Body>, Status> {
    let t = &call.target;
    let namespaced = row.kind.namespaced;
    let method = call.parts.method.clone();
    let named = !t.name.is_empty();
    let request = Request {
        user: call.user.clone(),
        verb: call.verb,
        resource: row.clone(),
        subresource: t.subresource.clone(),
        namespace: t.namespace.clone(),
        name: t.name.clone(),
    };
    let verb = call.verb;
    const METHODS: [Method; 6] = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    let reads = matches!(method, Method::GET | Method::HEAD);
    if namespaced && named && t.namespace.is_empty() {
        return Err(Status::no_such_path());
    }
    if row.bare_items {
        // Upstream has no routes for these (`k8s.io/apiserver/pkg/endpoints/installer.go`).
        let of_all_namespaces = namespaced && !named && t.namespace.is_empty() && !row.kind.has_verb("list");
        if of_all_namespaces || t.watch && !row.kind.has_verb("watch") {
            return Err(Status::no_such_path());
        }
        if method == Method::HEAD && t.subresource != "proxy" {
            return Err(method_not_allowed());
        }
    }
    if (!METHODS.contains(&method) && !is_stream(&t.subresource)) || (t.watch && !reads) {
        return Err(method_not_allowed());
    }
    if !t.subresource.is_empty() {
        return Box::pin(subresource(server, call, request, &method, verb)).await;
    }
    let served =
        row.kind.has_verb(verb) || (row.strategy.serves_more() && matches!(verb, "create" | "update" | "patch"));
    if !served || (method == Method::POST && named) {
        return Err(method_not_allowed());
    }
    if namespaced && matches!(verb, "create" | "deletecollection") && t.namespace.is_empty() && row.stored().is_some() {
        return Err(method_not_allowed());
    }
    // A write to one object requires its name.
    if !named && matches!(verb, "update" | "patch") {
        return Err(match row.bare_items || namespaced && t.namespace.is_empty() {
            true => method_not_allowed(),
            false => Status::bad_request("name must be provided"),
        });
    }
    // Boxed, so that read requests do not carry the state of writes.
    match verb {
        "get" => get::get(server, &call, &request).await,
        "list" => list::list(server, &call, &request).await,
        "watch" => watch::watch(server, &call, request),
        "create" => Box::pin(create::create(server, &call, request)).await,
        "update" => Box::pin(update::update(server, &call, request)).await,
        "patch" => Box::pin(patch::patch(server, &call, request)).await,
        "delete" => Box::pin(delete::delete(server, &call, request)).await,
        "deletecollection" => Box::pin(delete::collection(server, &call, request)).await,
        _ => Err(method_not_allowed()),
    }
}

async fn subresource(
    server: &Arc<Server>,
    call: Call,
    request: Request,
    method: &Method,
    verb: &str,
) -> Result<Response<Body>, Status> {
    let row = request.resource.clone();
    let gr = row.group_resource();
    // Custom resources have no route for each subresource: the object is what is missing.
    let missing = || if row.bare_items { Status::no_such_path() } else { Status::not_found(&gr, &request.name) };
    let described = row.kind.subresource(&request.subresource).ok_or_else(missing)?;
    let has = |v: &str| described.verbs.iter().any(|x| **x == *v);
    let not_allowed = || match row.bare_items {
        true => method_not_allowed(),
        false => Status::method_not_supported(&gr, verb),
    };
    match row.strategy.subresource(&request.subresource).unwrap_or(Sub::Part) {
        how if !(has(verb) || matches!(how, Sub::Connect) && request.subresource == "proxy") => Err(not_allowed()),
        Sub::Connect => connect::connect(server, call, request).await,
        Sub::Scale(s) => scale::scale(server, &call, request, &s).await,
        Sub::Function(f) => create::function(server, &call, request, &*f).await,
        Sub::Part => match *method {
            Method::GET | Method::HEAD => get::get(server, &call, &request).await,
            Method::PUT => update::update(server, &call, request).await,
            Method::PATCH => patch::patch(server, &call, request).await,
            _ => Err(method_not_allowed()),
        },
    }
}
