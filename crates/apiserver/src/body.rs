//! The bodies of answers: bytes at once, or a stream.

use crate::compress::Gzip;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// A body of an answer. Dropping it ends the stream behind it.
pub enum Body {
    Full(Bytes),
    /// Large answers in pieces, so that no second copy of the whole is made.
    Chunks(VecDeque<Bytes>),
    /// Compressed on its way out.
    Gzip(Box<Gzip>),
    Stream(Pieces),
}

/// Pieces of a body that still come, and what lasts as long as they do.
pub struct Pieces {
    receiver: mpsc::Receiver<Bytes>,
    held: Vec<Box<dyn Send + Sync>>,
}

impl Pieces {
    /// The next piece; none at the end.
    pub async fn recv(&mut self) -> Option<Bytes> {
        self.receiver.recv().await
    }
}

impl Body {
    pub fn stream(receiver: mpsc::Receiver<Bytes>) -> Self {
        Self::Stream(Pieces { receiver, held: Vec::new() })
    }

    /// Keeps something until the last of the body has come or nobody wants it any more. What is there already is over.
    pub fn hold(&mut self, what: Box<dyn Send + Sync>) {
        if let Self::Stream(p) = self {
            p.held.push(what);
        }
    }

    pub fn empty() -> Self {
        Self::Full(Bytes::new())
    }

    /// Everything that is left. Waits for the end of a stream.
    pub async fn collect(self) -> Bytes {
        match self {
            Self::Full(b) => b,
            Self::Chunks(c) => c.into_iter().flatten().collect(),
            Self::Gzip(mut g) => std::iter::from_fn(|| g.next_piece()).flatten().collect(),
            Self::Stream(mut r) => {
                let mut all = Vec::new();
                while let Some(b) = r.recv().await {
                    all.extend_from_slice(&b);
                }
                all.into()
            }
        }
    }
}

impl From<Vec<u8>> for Body {
    fn from(v: Vec<u8>) -> Self {
        Self::Full(v.into())
    }
}

impl From<String> for Body {
    fn from(v: String) -> Self {
        Self::Full(v.into())
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = |b: Option<Bytes>| b.map(|b| Ok(Frame::data(b)));
        match self.get_mut() {
            Self::Full(b) => Poll::Ready(frame(Some(std::mem::take(b)).filter(|b| !b.is_empty()))),
            Self::Chunks(c) => Poll::Ready(frame(c.pop_front())),
            Self::Gzip(g) => Poll::Ready(frame(g.next_piece())),
            Self::Stream(p) => p.receiver.poll_recv(cx).map(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(b) => b.is_empty(),
            Self::Chunks(c) => c.is_empty(),
            Self::Gzip(g) => g.is_over(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(b) => SizeHint::with_exact(b.len() as u64),
            Self::Chunks(c) => SizeHint::with_exact(c.iter().map(|b| b.len() as u64).sum()),
            Self::Gzip(_) | Self::Stream(_) => SizeHint::default(),
        }
    }
}
