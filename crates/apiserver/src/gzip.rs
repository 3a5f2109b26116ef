//! An answer that is compressed piece by piece while it is sent.

use crate::joined::Joined;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::task::{Context, Poll};

/// Bytes that are compressed at once, between two answers of other connections on the same thread.
const PIECE: usize = 128 * 1024;

pub enum Source {
    Full(Bytes),
    Joined(Joined),
}

impl Source {
    fn next_piece(&mut self) -> Option<Bytes> {
        match self {
            Self::Full(b) => Some(std::mem::take(b)).filter(|b| !b.is_empty()),
            Self::Joined(j) => j.next_piece(),
        }
    }
}

/// The rest of an answer, and the encoder of what was sent.
pub struct Gzip {
    /// The bytes to compress next.
    piece: Bytes,
    source: Source,
    /// None at the end.
    encoder: Option<GzEncoder<Vec<u8>>>,
    /// Bytes that were compressed in this turn.
    compressed: usize,
}

/// Bytes that are compressed before other connections of the thread have their turn: a connection whose answer becomes very small would
/// never wait for its client.
const TURN: usize = 128 << 10;

impl Gzip {
    pub fn new(source: Source) -> Self {
        Self {
            piece: Bytes::new(),
            source,
            encoder: Some(GzEncoder::new(Vec::new(), Compression::fast())),
            compressed: 0,
        }
    }

    pub fn is_over(&self) -> bool {
        self.encoder.is_none()
    }

    /// The next compressed bytes.
    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if self.compressed >= TURN {
                self.compressed = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match self.compress_piece() {
                None => return Poll::Ready(None),
                Some(Some(out)) => return Poll::Ready(Some(out)),
                Some(None) => {}
            }
        }
    }

    /// Compresses one piece. The outer `None` is the end; the inner one, that the encoder has given out nothing yet. An encoder over memory
    /// does not fail.
    pub fn compress_piece(&mut self) -> Option<Option<Bytes>> {
        if self.piece.is_empty() {
            match self.source.next_piece() {
                Some(piece) => self.piece = piece,
                None => return self.encoder.take()?.finish().ok().map(|end| Some(end.into())),
            }
        }
        let piece = self.piece.split_to(self.piece.len().min(PIECE));
        self.compressed += piece.len();
        let encoder = self.encoder.as_mut()?;
        encoder.write_all(&piece).ok()?;
        let out = std::mem::take(encoder.get_mut());
        Some((!out.is_empty()).then(|| out.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read;
    use std::task::Waker;

    #[test]
    fn pieces_join_to_the_whole() {
        let text: Vec<u8> = (0..1_000_000u32).flat_map(|i| (i % 977).to_string().into_bytes()).collect();
        let mut gzip = Gzip::new(Source::Full(Bytes::from(text.clone())));
        let mut packed = Vec::new();
        let (mut turns, mut cx) = (0, Context::from_waker(Waker::noop()));
        loop {
            match gzip.poll_piece(&mut cx) {
                Poll::Ready(Some(p)) => packed.extend_from_slice(&p),
                Poll::Ready(None) => break,
                Poll::Pending => turns += 1,
            }
        }
        // Others have their turns meanwhile, however little comes out.
        assert_eq!(turns, text.len() / (TURN / PIECE * PIECE));
        assert!(gzip.is_over() && packed.len() < text.len() / 2);
        let mut back = Vec::new();
        GzDecoder::new(&packed[..]).read_to_end(&mut back).unwrap();
        assert!(back == text);
    }
}
