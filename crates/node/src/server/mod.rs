//! The kubelet's HTTP API as functions, which a listener calls: [`Handle::admit`] authorizes a request, [`Handle::handle`] answers
//! it.
//!
//! ```text
//! GET  /containerLogs/NS/POD/CONTAINER   follow previous tailLines sinceSeconds sinceTime timestamps limitBytes
//! *    /exec/NS/POD/CONTAINER            command… stdin stdout stderr tty   (WebSocket, SPDY)
//! *    /attach/NS/POD/CONTAINER          stdin stdout stderr tty            (WebSocket, SPDY)
//! *    /portForward/NS/POD               port…                              (WebSocket, SPDY, SPDY inside WebSocket)
//! POST /run/NS/POD/CONTAINER             cmd
//! POST /checkpoint/NS/POD/CONTAINER      always fails
//! GET  /healthz[/ping|log|syncloop]  /pods  /runningpods/  /configz  /logs/…
//! GET  /stats/summary  /metrics  /metrics/resource  /metrics/cadvisor  /metrics/probes
//! ```
//! Left out: checkpoints, profiles, flags that change while the agent runs.

mod absent;
mod access;
mod coding;
mod command_status;
mod configz;
mod forward;
mod health;
mod logs;
mod pieces;
mod pods;
mod remote;
mod run;
mod scrape;
mod stats;
mod stream;
mod system_logs;
mod target;
mod upgrade;
mod usage;

pub use access::Sender;
pub use health::run_healthz;

use client::KeyedLimit;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use runtime::{Container, ContainerState};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::counts::Known;
use crate::options::Options;
use crate::pod::container::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID};
use access::Access;
use target::Target;
use usage::{Layers, Rates};

/// The body of a response. An error ends it early.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Serves requests. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    options: Arc<Options>,
    known: Arc<Known>,
    access: Arc<Access>,
    /// Connections forwarded to pods, by namespace.
    forwarded: Arc<KeyedLimit<String>>,
    rates: Arc<Rates>,
    layers: Arc<Layers>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0}")]
    BadRequest(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Internal(String),
    /// The method that is allowed.
    #[error("Method Not Allowed")]
    MethodNotAllowed(&'static str),
    #[error("{0}")]
    Disabled(&'static str),
}

impl Error {
    fn response(&self) -> Response<Body> {
        let status = match self {
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::MethodNotAllowed(_) | Self::Disabled(_) => StatusCode::METHOD_NOT_ALLOWED,
        };
        let mut response = text(status, self.to_string());
        if let Self::MethodNotAllowed(allowed) = self {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
        }
        response
    }
}

impl From<runtime::Error> for Error {
    fn from(e: runtime::Error) -> Self {
        match e {
            runtime::Error::NotFound { .. } => Self::NotFound(e.to_string()),
            _ => Self::Internal(e.to_string()),
        }
    }
}

fn text(status: StatusCode, message: String) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(message)).map_err(|e| match e {}).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// A body of the pieces that `reader` sends. If the reader fails, the body ends with its error, so the client notices.
fn stream(pieces: mpsc::Receiver<Bytes>, reader: JoinHandle<io::Result<()>>) -> Body {
    let frames = futures::stream::unfold(Some((pieces, reader)), |state| async move {
        let (mut pieces, reader) = state?;
        match pieces.recv().await {
            Some(piece) => Some((Ok(Frame::data(piece)), Some((pieces, reader)))),
            None => reader.await.map_err(io::Error::other).flatten().err().map(|e| (Err(e), None)),
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

fn json(value: &Value) -> Response<Body> {
    let mut response = text(StatusCode::OK, value.to_string());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A response with metrics in the text format.
fn metrics(text_format: String) -> Response<Body> {
    const TYPE: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let mut response = text(StatusCode::OK, text_format);
    response.headers_mut().insert(header::CONTENT_TYPE, TYPE);
    response
}

/// The decoded parameters of a query, in order.
struct Query(Vec<(String, String)>);

impl Query {
    fn parse(request: &Request<Bytes>) -> Self {
        Self(form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes()).into_owned().collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }

    fn get_all(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(k, _)| k == name).map(|(_, v)| v.clone()).collect()
    }

    fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some("true" | "1" | "t" | "T" | "TRUE" | "True"))
    }

    fn number(&self, name: &str) -> Result<Option<i64>, Error> {
        let Some(v) = self.get(name).filter(|v| !v.is_empty()) else { return Ok(None) };
        v.parse().map(Some).map_err(|_| Error::BadRequest(format!("{name}: {v:?} is not a number")))
    }
}

impl Handle {
    pub(crate) fn new(options: Arc<Options>, known: Arc<Known>) -> Self {
        let access = Arc::new(Access::new(options.client.clone(), &options.node_name, &options.configuration));
        let forwarded = KeyedLimit::new(forward::FORWARDED, forward::FORWARDED_EACH);
        Self { options, known, access, forwarded, rates: Arc::default(), layers: Arc::default() }
    }

    /// Returns the name of the authorized user, or the error to answer.
    pub async fn admit(&self, parts: &mut Parts, sender: &Sender) -> Result<String, Response<Body>> {
        self.access.admit(parts, sender).await
    }

    /// Shuts the node down: it admits no pod any more, and ends its pods, those of the lowest priority first. Returns when all have
    /// ended, or their time is over.
    pub async fn shut_down(&self) {
        self.known.shutdown.shut_down(&self.options.configuration).await;
    }

    /// Answers one request. An upgrade request must carry a [`hyper::upgrade::OnUpgrade`] in its extensions.
    pub fn handle(&self, request: Request<Bytes>) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + '_>> {
        Box::pin(async move {
            let target = Target::parse(request.uri().path());
            let (bucket, long_running) = target.bucket();
            let _in_flight = self.known.request(request.method().as_str(), bucket, long_running);
            self.route(&target, request).await.unwrap_or_else(|e| e.response())
        })
    }

    async fn route(&self, target: &Target, request: Request<Bytes>) -> Result<Response<Body>, Error> {
        let (get, query) = (request.method() == Method::GET, Query::parse(&request));
        let path = target.segments();
        let configuration = &self.options.configuration;
        match path[..] {
            ["run" | "exec" | "attach" | "portForward" | "containerLogs" | "runningpods" | "logs" | "debug", ..]
                if !configuration.enable_debugging_handlers =>
            {
                Err(Error::Disabled("Debug endpoints are disabled.\n"))
            }
            ["logs", ..] if !configuration.enable_system_log_handler => {
                Err(Error::Disabled("logs endpoint is disabled.\n"))
            }
            ["run", ns, pod, container] | ["run", ns, pod, _, container] if request.method() == Method::POST => {
                let id = self.running(ns, pod, uid(&path, 5), container).await?;
                run::serve(self, &id, query.get("cmd").unwrap_or_default()).await
            }
            ["exec", ns, pod, container] | ["exec", ns, pod, _, container] => {
                let id = self.running(ns, pod, uid(&path, 5), container).await?;
                stream::exec(&self.options, id, request)
            }
            ["attach", ns, pod, container] | ["attach", ns, pod, _, container] => {
                let id = self.running(ns, pod, uid(&path, 5), container).await?;
                stream::attach(&self.options, id, request)
            }
            ["portForward", ns, pod] | ["portForward", ns, pod, _] => forward::serve(self, ns, pod, request).await,
            ["debug", "pprof", ..] => Err(Error::Disabled("profiling endpoint is disabled.\n")),
            ["debug", "flags", "v"] => Err(Error::Disabled("flags endpoint is disabled.\n")),
            ["healthz"] => Ok(health::check_all(&self.known, &query)),
            ["healthz", name] => health::check_one(&self.known, name),
            ["pods" | "runningpods" | "configz" | "containerLogs" | "logs" | "stats" | "metrics", ..] if !get => {
                Err(Error::MethodNotAllowed("GET"))
            }
            ["run" | "checkpoint", ..] if request.method() != Method::POST => Err(Error::MethodNotAllowed("POST")),
            ["checkpoint", ns, pod, container] => match self.containers(ns, pod, container).await?.is_empty() {
                true => Err(Error::NotFound("pod does not exist".into())),
                false => Err(Error::Internal(format!(
                    "checkpointing of {ns}/{pod}/{container} failed (this runtime cannot checkpoint containers)"
                ))),
            },
            ["pods"] => pods::bound(self),
            ["runningpods"] => pods::running(self).await,
            ["configz"] => Ok(configz::serve(&self.options)),
            ["logs", ..] => system_logs::serve(&path[1..], request.uri().path()).await,
            ["containerLogs", ns, pod, container] => logs::serve(self, ns, pod, container, request).await,
            ["stats", "summary"] => stats::summary(self, query.flag("only_cpu_and_memory")).await,
            ["metrics"] => {
                let agent = self.known.agent_text(&*self.options.runtime).await?;
                Ok(metrics(agent + &scrape::volumes(self).await))
            }
            ["metrics", "resource"] => Ok(metrics(scrape::resource(self).await)),
            ["metrics", "cadvisor"] => Ok(metrics(scrape::cadvisor(self).await)),
            ["metrics", "slis"] => Ok(metrics(self.known.checks_text())),
            ["metrics", "probes"] => Ok(metrics(self.known.probes_text())),
            _ => Err(Error::NotFound("404 page not found\n".into())),
        }
    }

    /// The containers with this name, newest last.
    async fn containers(&self, ns: &str, pod: &str, name: &str) -> Result<Vec<Container>, Error> {
        let mut all = self.options.runtime.list_containers().await?;
        let is = |c: &Container, label: &str, value: &str| c.labels.get(label).is_some_and(|v| v == value);
        all.retain(|c| is(c, POD_NAMESPACE, ns) && is(c, POD_NAME, pod) && is(c, CONTAINER_NAME, name));
        // Of successive pods with one name, only the newest.
        all.sort_by_key(|c| c.created_at);
        Ok(all)
    }

    /// The id of a running container, in the pod with this UID if one is given.
    async fn running(&self, ns: &str, pod: &str, uid: Option<&str>, name: &str) -> Result<String, Error> {
        let is = |c: &Container| uid.is_none_or(|u| c.labels.get(POD_UID).is_some_and(|v| v == u));
        match self.containers(ns, pod, name).await?.pop() {
            Some(c) if c.state == ContainerState::Running && is(&c) => Ok(c.id),
            // A container that has ended is not found, as in kubelet.
            _ => Err(Error::Internal(format!("container not found ({name:?})"))),
        }
    }
}

/// The UID of a pod in a path that has `length` segments with it.
fn uid<'a>(path: &[&'a str], with_uid: usize) -> Option<&'a str> {
    path.get(3).copied().filter(|_| path.len() == with_uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let r =
            Request::get("/exec/a/b/c?command=sh&command=-c&command=echo+%22a%20b%22&command=&tty=true&n=5&bad=%zz")
                .body(Bytes::new())
                .unwrap();
        let q = Query::parse(&r);
        assert_eq!(q.get_all("command"), ["sh", "-c", "echo \"a b\"", ""]);
        assert!(q.flag("tty") && !q.flag("stdin"));
        assert_eq!(q.number("n").unwrap(), Some(5));
        assert_eq!(q.get("bad"), Some("%zz"));
        assert!(q.number("bad").is_err());
    }
}
