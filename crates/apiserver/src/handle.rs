//! The filters of every request, in their order.

use crate::answer::failure_in;
use crate::body::Body;
use crate::filters::{Exchange, Outer, Refusal};
use crate::request_body::RequestBody;
use crate::{Server, deadline, lifecycle};
use bytes::Bytes;
use http::{Request, Response};
use std::pin::Pin;
use std::sync::Arc;

impl Server {
    /// Handles a request. Every error becomes a `Status`. Boxed, so that callers do not compile the entire stack.
    pub fn handle(
        self: &Arc<Self>,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + '_>> {
        Box::pin(self.respond(request.map(RequestBody::Whole)))
    }

    /// Handles a request from a socket, whose body has not been read.
    pub(crate) fn answer_socket(
        self: &Arc<Self>,
        request: Request<RequestBody>,
    ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + '_>> {
        Box::pin(self.respond(request))
    }

    /// The filters around a response. They apply to errors too.
    async fn respond(self: &Arc<Self>, request: Request<RequestBody>) -> Response<Body> {
        if self.lifecycle.refuses(request.uri().path()) {
            return lifecycle::refusal();
        }
        let exchange = Exchange::new(self, request);
        let outer = Outer::new(&exchange);
        let mut response =
            self.limit_time(exchange).await.unwrap_or_else(|status| failure_in(&outer.error_format, &status));
        self.audit_response(&outer, &response).await;
        response = outer.compress(response);
        outer.add_headers(&mut response);
        outer.measure(&mut response);
        outer.settle_audit().await;
        response
    }

    /// Applies the deadline to everything but watches and streams.
    async fn limit_time(self: &Arc<Self>, exchange: Exchange) -> Result<Response<Body>, meta::Status> {
        let trace = exchange.trace.clone();
        let answered = if exchange.info.long_running {
            self.filter(exchange).await
        } else {
            let time = deadline::timeout(&exchange.info.query, self.options.request_timeout)?;
            match tokio::time::timeout(time, self.filter(exchange)).await {
                Ok(answered) => answered,
                Err(_) => {
                    trace.terminated(504);
                    return Err(deadline::passed());
                }
            }
        };
        answered.or_else(|refusal| match refusal {
            Refusal::Status(status) => Err(status),
            Refusal::Response(response) => Ok(response),
        })
    }

    /// The filters of a request. Each may refuse it.
    async fn filter(self: &Arc<Self>, mut x: Exchange) -> Result<Response<Body>, Refusal> {
        self.limit_head(&mut x).await?;
        self.authenticate(&mut x).await?;
        self.audit_request(&mut x).await?;
        self.read_body(&mut x).await?;
        self.impersonate_user(&mut x).await?;
        self.limit_in_flight(&mut x)?;
        self.take_seat(&mut x).await?;
        self.authorize_request(&mut x).await?;
        self.select_series(&x);
        self.refresh_state(&x).await?;
        self.dispatch(x).await
    }
}
