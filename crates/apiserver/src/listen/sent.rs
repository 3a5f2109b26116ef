//! The body of a response while it is sent, and the client's read progress.

use super::table::{Connection, Progress};
use crate::body::{Body, CutOff};
use crate::budget::Share;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// HTTP/1 buffers a body of this size completely.
const SMALL: u64 = 64 << 10;

pub(super) struct AnswerBody {
    body: Body,
    progress: Option<Arc<Progress>>,
    open: Open,
    _share: Option<Share>,
}

/// An open request of a connection, until its response has been sent or aborted.
pub(super) struct Open(Arc<Connection>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl AnswerBody {
    pub fn open(connection: &Arc<Connection>) -> Open {
        connection.begin();
        Open(connection.clone())
    }

    pub fn new(body: Body, open: Open, streams: bool, share: Option<Share>) -> Self {
        let small = body.size_hint().exact().is_some_and(|n| n <= SMALL);
        let progress = (streams || !small).then(|| open.0.follow(matches!(body, Body::Stream(_))));
        Self { body, progress, open, _share: share }
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Some(p) = &self.progress {
            self.open.0.mark(p, matches!(polled, Poll::Ready(Some(_))));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
