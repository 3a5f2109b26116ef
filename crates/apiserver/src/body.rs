//! The bodies of answers: bytes at once, or a stream.

use crate::gzip::Gzip;
use crate::joined::Joined;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Pieces of a relayed body that wait to be taken. A log passes two relays, and pieces are large when nobody reads.
const RELAYED: usize = 4;

/// A body of an answer. Dropping it ends the stream behind it.
pub enum Body {
    Full(Bytes),
    /// A list that is joined while it is sent.
    Joined(Box<Joined>),
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

    /// A body that arrives from another server. Once nobody wants it, nothing more of it is waited for.
    pub fn relay(mut body: impl HttpBody<Data = Bytes, Error: Send> + Send + Unpin + 'static) -> Self {
        let (sender, receiver) = mpsc::channel(RELAYED);
        tokio::spawn(async move {
            let relay = async {
                // What breaks off ends here as well.
                while let Some(Ok(frame)) = body.frame().await {
                    let Ok(data) = frame.into_data() else { continue };
                    if sender.send(data).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = relay => {}
                () = sender.closed() => {}
            }
        });
        Self::stream(receiver)
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

    /// What is left of a body that is no stream, copied.
    pub fn whole(&self) -> Option<Bytes> {
        match self {
            Self::Full(b) => Some(b.clone()),
            Self::Joined(j) => {
                let mut all = j.clone();
                Some(std::iter::from_fn(|| all.next_piece()).flatten().collect())
            }
            Self::Gzip(_) | Self::Stream(_) => None,
        }
    }

    /// Everything that is left. Waits for the end of a stream.
    pub async fn collect(self) -> Bytes {
        match self {
            Self::Full(b) => b,
            Self::Joined(mut j) => std::iter::from_fn(|| j.next_piece()).flatten().collect(),
            Self::Gzip(mut g) => std::iter::from_fn(|| g.compress_piece()).flatten().flatten().collect(),
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
            Self::Joined(j) => Poll::Ready(frame(j.next_piece())),
            Self::Gzip(g) => g.poll_piece(cx).map(frame),
            Self::Stream(p) => p.receiver.poll_recv(cx).map(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(b) => b.is_empty(),
            Self::Joined(j) => j.left() == 0,
            Self::Gzip(g) => g.is_over(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(b) => SizeHint::with_exact(b.len() as u64),
            Self::Joined(j) => SizeHint::with_exact(j.left()),
            Self::Gzip(_) | Self::Stream(_) => SizeHint::default(),
        }
    }
}
