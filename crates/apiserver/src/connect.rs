//! Connect subresources: `log`, `exec`, `attach`, `portforward` go to the kubelet of the pod's node, `proxy` to its
//! target.

use crate::Server;
use crate::admit::Admission;
use crate::authorize::forbidden;
use crate::body::Body;
use crate::call::Call;
use crate::lookup::stored_size;
use crate::path::Query;
use crate::proxy;
use async_trait::async_trait;
use bytes::Bytes;
use http::{Request as HttpRequest, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use meta::{FieldError, FieldPath, GroupKind, Object, Operation, Reason, Status};
use registry::{Admit, Request, WriteOptions};
use std::sync::Arc;

/// The transport to a kubelet. Paths: `/containerLogs/NS/POD/CONTAINER`, `/exec/NS/POD/CONTAINER`, `/attach/…`,
/// `/portForward/NS/POD`.
#[async_trait]
pub trait NodeConnector: Send + Sync {
    /// `user` is the client's user.
    async fn connect(
        &self,
        node: &str,
        user: &str,
        request: HttpRequest<Bytes>,
    ) -> Result<Response<Body>, ConnectError>;
}

/// Why a call to a kubelet failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("nodes {0:?} not found")]
    NoNode(String),
    /// The message is Go's.
    #[error("{0}")]
    Unreachable(String),
    #[error("too many streams of this user to nodes are open, please try again later")]
    Busy,
}

impl ConnectError {
    /// The client's error; `doing` is the prefix of the reason.
    pub(crate) fn status(self, doing: &str) -> Status {
        match self {
            Self::NoNode(_) => Status::new(404, Reason::NotFound, self.to_string()),
            Self::Unreachable(why) => Status::unavailable(format!("{doing}: {why}")),
            Self::Busy => Status::too_many_requests(self.to_string(), 1),
        }
    }
}

pub async fn connect(server: &Arc<Server>, call: Call, request: Request) -> Result<Response<Body>, Status> {
    if matches!(request.subresource.as_str(), "exec" | "attach" | "portforward") {
        may_create(server, &call).await?;
    }
    check_options(&call.query, &request.subresource, &request.name)?;
    admit(server, &call, &request).await?;
    if request.subresource == "proxy" {
        return proxy::proxy(server, call, request).await;
    }
    let size = stored_size(server, &request.resource, &request.namespace, &request.name).unwrap_or_default();
    let (target, user) = (server.clone(), call.user.name.clone());
    let read = async move { Ok((target.registry.get(&request).await?, request)) };
    let (object, request) = server.workers.run(&user, size, read).await?;
    let bad = |why: String| Status::bad_request(why);
    let (ns, name) = (&request.namespace, &request.name);
    let path = match request.subresource.as_str() {
        "log" => format!("/containerLogs/{ns}/{name}/{}", container(&object, &call.query)?),
        s @ ("exec" | "attach") => format!("/{s}/{ns}/{name}/{}", container(&object, &call.query)?),
        "portforward" => format!("/portForward/{ns}/{name}"),
        other => return Err(bad(format!("{other} is not served yet"))),
    };
    let node = object.str_at(&["spec", "nodeName"]).unwrap_or_default();
    if node.is_empty() {
        // The log does not exist yet, which is not an error.
        return match request.subresource.as_str() {
            "log" => Ok(no_content()),
            _ => Err(bad(format!("pod {name} does not have a host assigned"))),
        };
    }
    let query = call.parts.uri.query().map(|q| format!("?{q}")).unwrap_or_default();
    let uri: Uri = format!("{path}{query}").parse().map_err(|_| bad(format!("the path {path} cannot be sent on")))?;
    let Call { mut parts, body, user, .. } = call;
    parts.uri = uri;
    let connector = server.connector.read().clone();
    let response = match connector {
        Some(c) => c.connect(node, &user.name, HttpRequest::from_parts(parts, body)).await.map_err(|e| match e {
            ConnectError::Unreachable(why) => Status::internal(format!("error dialing backend: {why}")),
            none => none.status("error dialing backend"),
        })?,
        None => return Err(Status::unavailable(format!("no way to the agent of node {node:?}"))),
    };
    let answered = response.status().is_success() || response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if request.subresource == "log" && !answered {
        return Err(refusal(response, name).await);
    }
    Ok(response)
}

/// Validates the options of a stream before its pod is looked up.
fn check_options(query: &Query, subresource: &str, pod: &str) -> Result<(), Status> {
    let syntax = |function: &str, text: &str| format!("strconv.{function}: parsing {text:?}: invalid syntax");
    match subresource {
        "log" => {
            let mut numbers = ["sinceSeconds", "tailLines", "limitBytes"].map(|n| query.get(n)).into_iter();
            if let Some(text) = numbers.find(|t| !t.is_empty() && t.parse::<i64>().is_err()) {
                return Err(Status::bad_request(syntax("ParseInt", text)));
            }
            let since = query.get("sinceTime");
            if !matches!(since, "" | "null") && meta::time::parse(since).is_none() {
                return Err(Status::bad_request(schema::typed::time_error(since, false)));
            }
            check_log_options(query, pod)
        }
        "portforward" => match query.all("ports").find(|p| p.parse::<i32>().is_err()) {
            Some(text) => Err(Status::bad_request(format!("cannot convert to []int32: {}", syntax("ParseUint", text)))),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// The rules of log options (`ValidatePodLogOptions`).
fn check_log_options(query: &Query, pod: &str) -> Result<(), Status> {
    let number = |name: &str| Some(query.get(name)).filter(|t| !t.is_empty())?.parse::<i64>().ok();
    let mut errors = Vec::new();
    let mut at_least = |name: &str, least: i64, why: &str| {
        if let Some(n) = number(name).filter(|n| *n < least) {
            errors.push(FieldError::invalid(&FieldPath::new(name), n, why));
        }
    };
    at_least("tailLines", 0, "must be greater than or equal to 0");
    at_least("limitBytes", 1, "must be greater than 0");
    let both = number("sinceSeconds").is_some() && !query.get("sinceTime").is_empty();
    if !both {
        at_least("sinceSeconds", 1, "must be greater than 0");
    } else {
        // Upstream's path has no name.
        let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        errors.push(FieldError::forbidden(&FieldPath::new("[]"), why));
    }
    // Needs the feature gate `PodLogsQuerySplitStreams`, which is off.
    if query.has("stream") {
        errors.push(FieldError::forbidden(&FieldPath::new("stream"), "may not be specified"));
    }
    if errors.is_empty() {
        return Ok(());
    }
    let kind = GroupKind { group: String::new(), kind: "PodLogOptions".into() };
    Err(Status::invalid(&kind, pod, &errors))
}

/// A WebSocket request is a GET but requires the permission `create` (since v1.35).
async fn may_create(server: &Server, call: &Call) -> Result<(), Status> {
    if call.parts.method != http::Method::GET {
        return Ok(());
    }
    let mut a = (*call.attributes).clone();
    a.verb = "create".into();
    match server.authorizer.decide(&a).await {
        auth::Decision::Allow(_) => Ok(()),
        auth::Decision::Deny(why) | auth::Decision::NoOpinion(why) => Err(forbidden(&a, &why)),
    }
}

/// Admits the connection with its options as the object (`PodExecOptions` and the like). Reading logs is not
/// admitted.
async fn admit(server: &Arc<Server>, call: &Call, request: &Request) -> Result<(), Status> {
    if request.subresource == "log" {
        return Ok(());
    }
    let admit = Admission::new(server, call, request, &WriteOptions::default());
    let kind = crate::admit::spoken(&request.resource.kind, &request.subresource);
    let mut options = Object::new(&kind);
    for flag in ["stdin", "stdout", "stderr", "tty"].into_iter().filter(|f| call.query.is_true(f)) {
        options.set(&[flag], true);
    }
    for text in ["container", "path"].into_iter().filter(|t| !call.query.get(t).is_empty()) {
        options.set(&[text], call.query.get(text));
    }
    let command: Vec<&str> = call.query.all("command").collect();
    if !command.is_empty() {
        options.set(&["command"], command);
    }
    let ports: Vec<i64> = call.query.all("ports").filter_map(|p| p.parse().ok()).collect();
    if !ports.is_empty() {
        options.set(&["ports"], ports);
    }
    admit.mutate(Operation::Connect, &mut options, None).await?;
    admit.validate(Operation::Connect, Some(&options), None).await
}

/// Maximum size of an error response in bytes.
const MAX_ERROR: usize = 1 << 20;

/// Converts a kubelet's plain text error to a `Status` (`registry/generic/rest` `GenericHttpResponseChecker`).
async fn refusal(response: Response<Body>, pod: &str) -> Status {
    let code = response.status();
    // A kubelet is not trusted to end its response.
    let message = Limited::new(response.into_body(), MAX_ERROR).collect().await;
    let message = message.map(|b| String::from_utf8_lossy(&b.to_bytes()).trim().to_owned()).unwrap_or_default();
    match code {
        StatusCode::BAD_REQUEST => Status::bad_request(message),
        StatusCode::NOT_FOUND => {
            let why = format!("the server could not find the requested resource ( pods {pod}): {message}");
            Status::new(404, Reason::NotFound, why)
        }
        StatusCode::INTERNAL_SERVER_ERROR => Status::internal(message),
        _ => Status::new(code.as_u16(), Reason::Unknown, message),
    }
}

/// A response without a body, as upstream sends for a stream without a location.
fn no_content() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// The requested container: named, or the only one. Errors list all of the pod, in start order.
fn container(object: &Object, query: &Query) -> Result<String, Status> {
    let names = |field: &str| -> Vec<String> {
        let list = object.at(&["spec", field]).and_then(meta::Value::as_array);
        list.into_iter().flatten().filter_map(|c| c["name"].as_str()).map(str::to_owned).collect()
    };
    let main = names("containers");
    let all = [names("initContainers"), main.clone(), names("ephemeralContainers")].concat();
    let (requested, pod) = (query.get("container"), object.name());
    match &main[..] {
        _ if all.iter().any(|c| c == requested) => Ok(requested.to_owned()),
        _ if !requested.is_empty() => {
            Err(Status::bad_request(format!("container {requested} is not valid for pod {pod}")))
        }
        [single] => Ok(single.clone()),
        [] => Err(Status::bad_request(format!("a container name must be specified for pod {pod}"))),
        _ => {
            let all = all.join(" ");
            let why = format!("a container name must be specified for pod {pod}, choose one of: [{all}]");
            Err(Status::bad_request(why))
        }
    }
}
