//! Calls to a plugin.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::api::Method;
use crate::{Error, SocketPath};

/// Bytes of headers and trailers of a response, which have the message of an error.
const HEADERS: u32 = 16 << 10;
const WINDOW: u32 = 256 << 10;

/// Limits of calls.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For opening the connection.
    pub connect: Duration,
    /// Bytes of a message that the plugin sends.
    pub message: usize,
}

impl Default for Limits {
    /// 10 seconds, and the 4 MiB of Go's gRPC library.
    fn default() -> Self {
        Self { connect: Duration::from_secs(10), message: 4 << 20 }
    }
}

/// A plugin that can be called. Each call has a connection of its own: it reaches the program that has the socket now.
#[derive(Clone, Debug)]
pub struct Connection {
    socket: SocketPath,
    limits: Limits,
}

impl Connection {
    /// Calls go to `socket`, which is opened by each call.
    pub fn new(socket: SocketPath, limits: Limits) -> Self {
        Self { socket, limits }
    }

    /// Calls a method. `deadline` is for the call without the time to connect. When the future is dropped, the call is cancelled.
    pub async fn call<Q, R>(&self, method: &Method<Q, R>, request: Q, deadline: Duration) -> Result<R, Error>
    where
        Q: prost::Message + Send + Sync + 'static,
        R: prost::Message + Default + Send + Sync + 'static,
    {
        let mut open = self.open().await?;
        let mut request = Request::new(request);
        request.set_timeout(deadline);
        let call = async {
            open.ready().await?;
            open.grpc.unary(request, path(method), codec::<Q, R>()).await
        };
        match timeout(deadline, call).await {
            Ok(result) => Ok(result.map_err(plain)?.into_inner()),
            Err(_) => Err(Error::deadline()),
        }
    }

    /// Calls a method that responds with a stream of messages. `deadline` is for the beginning of the response.
    pub async fn stream<Q, R>(
        &self,
        method: &Method<Q, R>,
        request: Q,
        deadline: Duration,
    ) -> Result<Messages<R>, Error>
    where
        Q: prost::Message + Send + Sync + 'static,
        R: prost::Message + Default + Send + Sync + 'static,
    {
        let mut open = self.open().await?;
        let call = async {
            open.ready().await?;
            open.grpc.server_streaming(Request::new(request), path(method), codec::<Q, R>()).await
        };
        match timeout(deadline, call).await {
            Ok(result) => Ok(Messages { stream: result.map_err(plain)?.into_inner(), _open: open }),
            Err(_) => Err(Error::deadline()),
        }
    }

    async fn open(&self) -> Result<Open, Error> {
        let connect = async {
            let stream = self.socket.connect().await?;
            let handshake = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .initial_stream_window_size(WINDOW)
                .initial_connection_window_size(WINDOW)
                .max_header_list_size(HEADERS)
                .handshake(TokioIo::new(stream));
            handshake.await.map_err(std::io::Error::other)
        };
        let failed = |source| Error::Connect { socket: self.socket.name.clone(), source };
        let connected = timeout(self.limits.connect, connect).await;
        let (sender, connection) =
            connected.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())).map_err(failed)?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a plugin ended");
            }
        });
        let origin = http::Uri::from_static("http://localhost");
        let grpc = Grpc::with_origin(Http2(sender), origin).max_decoding_message_size(self.limits.message);
        Ok(Open { grpc, driver })
    }
}

/// The messages of a stream. The connection ends when it is dropped.
pub struct Messages<R> {
    stream: tonic::Streaming<R>,
    _open: Open,
}

impl<R> Messages<R> {
    /// The next message; `None` at the end of the stream.
    pub async fn next(&mut self) -> Result<Option<R>, Error> {
        Ok(self.stream.message().await.map_err(plain)?)
    }
}

impl<R> fmt::Debug for Messages<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Messages")
    }
}

/// An open connection.
struct Open {
    grpc: Grpc<Http2>,
    driver: JoinHandle<()>,
}

impl Open {
    async fn ready(&mut self) -> Result<(), Status> {
        self.grpc.ready().await.map_err(|e| Status::unavailable(format!("connection error: {e}")))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

struct Http2(http2::SendRequest<tonic::body::Body>);

impl tower_service::Service<http::Request<tonic::body::Body>> for Http2 {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

fn codec<Q, R>() -> ProstCodec<Q, R>
where
    Q: prost::Message + Send + 'static,
    R: prost::Message + Default + Send + 'static,
{
    ProstCodec::default()
}

fn path<Q, R>(method: &Method<Q, R>) -> http::uri::PathAndQuery {
    http::uri::PathAndQuery::from_static(method.path)
}

/// An error of the connection as Go's library reports it: the plugin may have seen the request.
fn plain(status: Status) -> Status {
    let broken = status.code() == Code::Unknown && std::error::Error::source(&status).is_some();
    if broken { Status::unavailable(format!("error reading from server: {}", status.message())) } else { status }
}
