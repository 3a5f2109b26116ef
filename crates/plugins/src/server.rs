//! A gRPC server on a unix socket: the services that the kubelet offers to plugins, and plugins of tests.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::SocketPath;
use crate::api::Method;

/// Connections at a time; further ones wait.
const CONNECTIONS: usize = 256;
const STREAMS: u32 = 64;
const HEADERS: u32 = 16 << 10;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Answer = Arc<dyn Fn(http::Request<Incoming>) -> Boxed<http::Response<Body>> + Send + Sync>;

/// The messages of a response that is a stream.
pub type Answers<R> = Pin<Box<dyn Stream<Item = Result<R, Status>> + Send>>;

/// The methods of a server. Others are answered with `Unimplemented`.
#[derive(Clone, Default)]
pub struct Server {
    methods: BTreeMap<&'static str, Answer>,
}

impl Server {
    /// A server without methods.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a method.
    pub fn unary<Q, R, F>(mut self, method: &Method<Q, R>, handler: impl Fn(Q) -> F + Send + Sync + 'static) -> Self
    where
        Q: prost::Message + Default + Send + 'static,
        R: prost::Message + Send + 'static,
        F: Future<Output = Result<R, Status>> + Send + 'static,
    {
        let handler: Arc<dyn Fn(Q) -> Boxed<Result<R, Status>> + Send + Sync> = Arc::new(move |q| Box::pin(handler(q)));
        let answer = move |request: http::Request<Incoming>| -> Boxed<http::Response<Body>> {
            let handler = Handler(handler.clone());
            Box::pin(async move { Grpc::new(ProstCodec::<R, Q>::default()).unary(handler, request).await })
        };
        self.methods.insert(method.path, Arc::new(answer));
        self
    }

    /// Adds a method whose response is a stream.
    pub fn streaming<Q, R, F>(mut self, method: &Method<Q, R>, handler: impl Fn(Q) -> F + Send + Sync + 'static) -> Self
    where
        Q: prost::Message + Default + Send + 'static,
        R: prost::Message + Send + 'static,
        F: Future<Output = Result<Answers<R>, Status>> + Send + 'static,
    {
        let handler: Arc<dyn Fn(Q) -> Boxed<Result<Answers<R>, Status>> + Send + Sync> =
            Arc::new(move |q| Box::pin(handler(q)));
        let answer = move |request: http::Request<Incoming>| -> Boxed<http::Response<Body>> {
            let handler = StreamHandler(handler.clone());
            Box::pin(async move { Grpc::new(ProstCodec::<R, Q>::default()).server_streaming(handler, request).await })
        };
        self.methods.insert(method.path, Arc::new(answer));
        self
    }

    /// Serves on a new socket, which replaces an earlier one at this path, until the result is dropped.
    pub fn serve(self, socket: &SocketPath) -> io::Result<Running> {
        let listener = socket.listen()?;
        Ok(Running(tokio::spawn(accept(self, listener))))
    }

    async fn answer(&self, request: http::Request<Incoming>) -> http::Response<Body> {
        match self.methods.get(request.uri().path()) {
            Some(answer) => answer(request).await,
            None => {
                let path: String = request.uri().path().chars().take(200).collect();
                Status::unimplemented(format!("unknown method {path}")).into_http()
            }
        }
    }
}

/// A server that runs. It ends, with its connections, when this is dropped; the socket stays.
pub struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn accept(server: Server, listener: UnixListener) {
    let server = Arc::new(server);
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accepting a connection of a plugin failed");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let server = server.clone();
        connections.spawn(async move {
            let _permit = permit;
            let service = service_fn(|request| {
                let server = server.clone();
                async move { Ok::<_, Infallible>(server.answer(request).await) }
            });
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .max_header_list_size(HEADERS)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection of a plugin ended");
            }
        });
    }
}

struct Handler<Q, R>(Arc<dyn Fn(Q) -> Boxed<Result<R, Status>> + Send + Sync>);

impl<Q: Send + 'static, R: Send + 'static> UnaryService<Q> for Handler<Q, R> {
    type Response = R;
    type Future = Boxed<Result<Response<R>, Status>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let answer = (self.0)(request.into_inner());
        Box::pin(async move { answer.await.map(Response::new) })
    }
}

struct StreamHandler<Q, R>(Arc<dyn Fn(Q) -> Boxed<Result<Answers<R>, Status>> + Send + Sync>);

impl<Q: Send + 'static, R: Send + 'static> ServerStreamingService<Q> for StreamHandler<Q, R> {
    type Response = R;
    type ResponseStream = Answers<R>;
    type Future = Boxed<Result<Response<Answers<R>>, Status>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let answer = (self.0)(request.into_inner());
        Box::pin(async move { answer.await.map(Response::new) })
    }
}
