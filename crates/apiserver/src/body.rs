//! Response bodies: complete bytes, or streams.

use crate::gzip::Gzip;
use crate::joined::Joined;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use std::fmt::Display;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Buffered pieces of a relayed body. A log passes two relays, and unread pieces grow large.
const RELAYED: usize = 4;

/// Bytes of a complete body that are handed over at a time. The connection buffers a few pieces; when it has the last one, the budget of
/// the response is free again.
const PIECE: usize = 256 << 10;

/// A response body. Dropping it ends its source.
pub enum Body {
    Full(Bytes),
    /// A list that is joined while it is sent.
    Joined(Box<Joined>),
    /// Compressed while it is sent.
    Gzip(Box<Gzip>),
    Stream(Pieces),
}

/// The remaining pieces of a body, and a guard that lives as long.
pub struct Pieces {
    source: Source,
    held: Vec<Box<dyn Send + Sync>>,
}

enum Source {
    /// A stream of this server.
    Own(mpsc::Receiver<Bytes>),
    /// A body from another server.
    Relayed(mpsc::Receiver<Result<Bytes, CutOff>>),
}

impl Pieces {
    /// Returns the next piece; none at the end.
    pub async fn recv(&mut self) -> Option<Result<Bytes, CutOff>> {
        match &mut self.source {
            Source::Own(receiver) => receiver.recv().await.map(Ok),
            Source::Relayed(receiver) => receiver.recv().await,
        }
    }
}

/// A body that was truncated. The client must notice: HTTP/1 omits the last chunk, HTTP/2 resets the stream.
#[derive(Debug, thiserror::Error)]
#[error("the body was cut off: {0}")]
pub struct CutOff(String);

/// Transforms the bytes that pass a relay.
pub trait Change: Send + 'static {
    /// Maximum size of a piece for `push`, in bytes.
    const CHUNK: usize;
    /// Transforms a piece; the result may be empty.
    fn push(&mut self, piece: Bytes) -> io::Result<Bytes>;
    /// Returns the remaining bytes at the end of the body.
    fn finish(self) -> io::Result<Bytes>;
}

/// Relays bytes unchanged.
struct Unchanged;

impl Change for Unchanged {
    const CHUNK: usize = usize::MAX;

    fn push(&mut self, piece: Bytes) -> io::Result<Bytes> {
        Ok(piece)
    }

    fn finish(self) -> io::Result<Bytes> {
        Ok(Bytes::new())
    }
}

impl Body {
    pub fn stream(receiver: mpsc::Receiver<Bytes>) -> Self {
        Self::Stream(Pieces { source: Source::Own(receiver), held: Vec::new() })
    }

    /// Relays a body from another server. A truncated body is truncated for the client too. Stops reading when the
    /// client is gone.
    pub fn relay(body: impl HttpBody<Data = Bytes, Error: Display + Send> + Send + Unpin + 'static) -> Self {
        Self::relay_changed(body, Unchanged)
    }

    /// Relays a transformed body. Truncates it if a piece cannot be transformed.
    pub fn relay_changed<B, C>(body: B, change: C) -> Self
    where
        B: HttpBody<Data = Bytes, Error: Display + Send> + Send + Unpin + 'static,
        C: Change,
    {
        let (sender, receiver) = mpsc::channel(RELAYED);
        tokio::spawn(async move {
            let relay = async {
                if let Err(error) = pass_on(body, change, &sender).await {
                    let _ = sender.send(Err(error)).await;
                }
            };
            tokio::select! {
                () = relay => {}
                () = sender.closed() => {}
            }
        });
        Self::Stream(Pieces { source: Source::Relayed(receiver), held: Vec::new() })
    }

    /// Keeps a guard until the body ends or is dropped; drops it at once if the body is complete.
    pub fn hold(&mut self, what: Box<dyn Send + Sync>) {
        if let Self::Stream(p) = self {
            p.held.push(what);
        }
    }

    pub fn empty() -> Self {
        Self::Full(Bytes::new())
    }

    /// Copies the rest of a body that is not a stream.
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

    /// Collects the rest. Waits for the end of a stream; errors if it is truncated.
    pub async fn collect(self) -> Result<Bytes, CutOff> {
        Ok(BodyExt::collect(self).await?.to_bytes())
    }
}

/// Sends transformed pieces until the body ends. Errors if it is truncated; a dropped receiver is not an error.
async fn pass_on<B, C>(mut body: B, mut change: C, to: &mpsc::Sender<Result<Bytes, CutOff>>) -> Result<(), CutOff>
where
    B: HttpBody<Data = Bytes, Error: Display> + Unpin,
    C: Change,
{
    let unchangeable = |e: io::Error| CutOff(e.to_string());
    while let Some(frame) = body.frame().await {
        // Trailers are hop-by-hop.
        let Ok(mut data) = frame.map_err(|e| CutOff(e.to_string()))?.into_data() else { continue };
        while !data.is_empty() {
            let piece = change.push(data.split_to(data.len().min(C::CHUNK))).map_err(unchangeable)?;
            if !piece.is_empty() && to.send(Ok(piece)).await.is_err() {
                return Ok(());
            }
        }
    }
    let last = change.finish().map_err(unchangeable)?;
    if !last.is_empty() {
        let _ = to.send(Ok(last)).await;
    }
    Ok(())
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
    type Error = CutOff;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let frame = |b: Option<Bytes>| b.map(|b| Ok(Frame::data(b)));
        match self.get_mut() {
            Self::Full(b) => Poll::Ready(frame(Some(b.split_to(b.len().min(PIECE))).filter(|b| !b.is_empty()))),
            Self::Joined(j) => Poll::Ready(frame(j.next_piece())),
            Self::Gzip(g) => g.poll_piece(cx).map(frame),
            Self::Stream(p) => match &mut p.source {
                Source::Own(receiver) => receiver.poll_recv(cx).map(frame),
                Source::Relayed(receiver) => receiver.poll_recv(cx).map(|piece| piece.map(|p| p.map(Frame::data))),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(b) => b.is_empty(),
            Self::Joined(j) => j.least() == 0,
            Self::Gzip(g) => g.is_over(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(b) => SizeHint::with_exact(b.len() as u64),
            Self::Joined(j) => j.exact().map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Gzip(_) | Self::Stream(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use http_body_util::StreamBody;

    /// The connection took a complete body at once, and its budget was free while nothing of it had been read.
    #[tokio::test]
    async fn complete_bodies_are_handed_over_in_pieces() {
        let mut body = Body::from(vec![b'x'; 2 * PIECE + 1]);
        let mut sizes = Vec::new();
        while !body.is_end_stream() {
            sizes.push(body.frame().await.unwrap().unwrap().into_data().unwrap().len());
        }
        assert_eq!(sizes, [PIECE, PIECE, 1]);
    }

    #[tokio::test]
    async fn what_is_cut_off_is_cut_off_behind_the_relay() {
        let upstream = |pieces: Vec<Result<&'static str, &'static str>>| {
            let frames = pieces.into_iter().map(|p| p.map(|p| Frame::data(Bytes::from_static(p.as_bytes()))));
            Body::relay(StreamBody::new(stream::iter(frames.collect::<Vec<_>>())))
        };
        assert_eq!(upstream(vec![Ok("a"), Ok("b")]).collect().await.unwrap(), "ab");
        let mut cut = upstream(vec![Ok("a"), Err("reset")]);
        assert_eq!(cut.frame().await.unwrap().unwrap().into_data().unwrap(), "a");
        assert_eq!(cut.frame().await.unwrap().unwrap_err().to_string(), "the body was cut off: reset");
        // The error passes a second relay.
        let twice = Body::relay(upstream(vec![Ok("a"), Err("reset")]));
        assert!(twice.collect().await.is_err());
    }
}
