//! How a request reaches the server: in the same process, or over HTTPS ([`crate::https`]).
//!
//! A transport takes a request with a path and no host, and returns the response while its body is still arriving. Dropping
//! the body ends a watch. Left out: retries (callers know what is safe to repeat) and decoding.

use crate::error::{BoxError, Error};
use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use std::future::Future;
use tokio::io::{AsyncRead, AsyncWrite};

/// The body of a response, still arriving.
pub type Body = UnsyncBoxBody<Bytes, Error>;

/// The byte stream of a connection after `101 Switching Protocols`.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// An upgraded connection.
pub type Upgraded = Box<dyn Duplex>;

/// Sends requests to one server.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends a request. Returns the response once its headers are read; an error is no `Status`.
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, Error>;

    /// The server's address, as metrics label it.
    fn host(&self) -> &str {
        "in-process"
    }

    /// Sends a request to switch protocols (`Connection: Upgrade`), as exec, attach and port-forward do. Returns the stream after
    /// `101`, or any other response with its body.
    async fn upgrade(&self, request: Request<Bytes>) -> Result<Upgrade, Error> {
        let _ = request;
        Err(Error::NoUpgrade)
    }
}

/// The result of a request to switch protocols.
pub enum Upgrade {
    /// The server switched protocols: its response and the byte stream.
    Switched(http::response::Parts, Upgraded),
    /// The server sent another response.
    Refused(Response<Body>),
}

/// Calls a handler in the same process. The creator of the handler adds the caller's identity to the request as an extension that
/// no socket can set.
pub struct InProcess<F>(pub F);

#[async_trait]
impl<F, Fut, B> Transport for InProcess<F>
where
    F: Fn(Request<Bytes>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, Error> {
        let response = (self.0)(request).await;
        Ok(response.map(|b| b.map_err(|e| Error::Body(e.into())).boxed_unsync()))
    }
}
