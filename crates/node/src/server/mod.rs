//! What the kubelet's HTTP service answers, as a plain function: the API server of the same process calls it directly, and a
//! listener for other machines wraps it.
//!
//! ```text
//! GET  /containerLogs/NS/POD/CONTAINER   follow previous tailLines sinceSeconds sinceTime timestamps limitBytes
//! *    /exec/NS/POD/CONTAINER            command… stdin stdout stderr tty   (WebSocket, SPDY)
//! *    /attach/NS/POD/CONTAINER          stdin stdout stderr tty            (WebSocket, SPDY)
//! *    /portForward/NS/POD               port…                              (WebSocket, SPDY, SPDY inside WebSocket)
//! GET  /healthz  /stats/summary
//! ```
//! Who may call is the caller's business.

mod absent;
mod forward;
mod logs;
mod remote;
mod stats;
mod stream;
mod upgrade;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use runtime::{Container, ContainerState};

use crate::agent::Options;
use crate::pod::container::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE};

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Answers requests. Cheap to clone; calls go to the runtime.
#[derive(Clone)]
pub struct Handle {
    options: Arc<Options>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0}")]
    BadRequest(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Internal(String),
}

impl Error {
    fn response(&self) -> Response<Body> {
        let status = match self {
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        text(status, self.to_string())
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
    let mut response = Response::new(Full::new(Bytes::from(message)).boxed_unsync());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// The parameters of a query, decoded, in order.
struct Query(Vec<(String, String)>);

impl Query {
    fn of(request: &Request<Bytes>) -> Self {
        let pairs = request.uri().query().unwrap_or_default().split('&').filter(|p| !p.is_empty());
        let both = |p: &str| {
            let (k, v) = p.split_once('=').unwrap_or((p, ""));
            (decode(k), decode(v))
        };
        Self(pairs.map(both).collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }

    fn all(&self, name: &str) -> Vec<String> {
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

fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.as_bytes().iter();
    while let Some(b) = bytes.next() {
        match b {
            b'+' => out.push(b' '),
            b'%' => {
                let rest = bytes.as_slice();
                let code = rest.get(..2).and_then(|h| std::str::from_utf8(h).ok());
                match code.and_then(|h| u8::from_str_radix(h, 16).ok()) {
                    Some(code) => {
                        out.push(code);
                        bytes.nth(1);
                    }
                    None => out.push(b'%'),
                }
            }
            b => out.push(*b),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

impl Handle {
    pub(crate) fn new(options: Arc<Options>) -> Self {
        Self { options }
    }

    /// Answers one request. One that asks for another protocol must carry a [`hyper::upgrade::OnUpgrade`] in its extensions.
    pub fn handle(&self, request: Request<Bytes>) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + '_>> {
        Box::pin(async move { self.route(request).await.unwrap_or_else(|e| e.response()) })
    }

    async fn route(&self, request: Request<Bytes>) -> Result<Response<Body>, Error> {
        let path: Vec<String> = request.uri().path().trim_matches('/').split('/').map(decode).collect();
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        match path[..] {
            ["healthz"] => Ok(text(StatusCode::OK, "ok".into())),
            ["stats", "summary"] => stats::summary(&self.options).await,
            ["containerLogs", ns, pod, container] => logs::serve(self, ns, pod, container, request).await,
            ["exec", ns, pod, container] | ["exec", ns, pod, _, container] => {
                let id = self.running(ns, pod, container).await?;
                stream::exec(&self.options, id, request)
            }
            ["attach", ns, pod, container] | ["attach", ns, pod, _, container] => {
                let id = self.running(ns, pod, container).await?;
                stream::attach(&self.options, id, request)
            }
            ["portForward", ns, pod] | ["portForward", ns, pod, _] => forward::serve(self, ns, pod, request).await,
            _ => Err(Error::NotFound("404 page not found".into())),
        }
    }

    /// The containers of that name, newest last.
    async fn containers(&self, ns: &str, pod: &str, name: &str) -> Result<Vec<Container>, Error> {
        let mut all = self.options.runtime.list_containers().await?;
        let is = |c: &Container, label: &str, value: &str| c.labels.get(label).is_some_and(|v| v == value);
        all.retain(|c| is(c, POD_NAMESPACE, ns) && is(c, POD_NAME, pod) && is(c, CONTAINER_NAME, name));
        // Of pods of one name that followed each other, only the newest.
        all.sort_by_key(|c| c.created_at);
        Ok(all)
    }

    async fn running(&self, ns: &str, pod: &str, name: &str) -> Result<String, Error> {
        match self.containers(ns, pod, name).await?.pop() {
            Some(c) if c.state == ContainerState::Running => Ok(c.id),
            // What ended is not found either, as the kubelet has it.
            _ => Err(Error::Internal(format!("container not found ({name:?})"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let r = Request::get("/exec/a/b/c?command=sh&command=-c&command=echo+%22a%20b%22&tty=true&n=5&bad=%zz")
            .body(Bytes::new())
            .unwrap();
        let q = Query::of(&r);
        assert_eq!(q.all("command"), ["sh", "-c", "echo \"a b\""]);
        assert!(q.flag("tty") && !q.flag("stdin"));
        assert_eq!(q.number("n").unwrap(), Some(5));
        assert_eq!(q.get("bad"), Some("%zz"));
        assert!(q.number("bad").is_err());
    }
}
