//! Compresses a response in pieces while it is sent.

use crate::joined::Joined;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::task::{Context, Poll};

/// Bytes to compress at a time, between other tasks of the thread.
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

/// The rest of a response, and its encoder.
pub struct Gzip {
    /// The bytes to compress next.
    piece: Bytes,
    source: Source,
    /// None at the end.
    encoder: Option<GzEncoder<Vec<u8>>>,
    /// Bytes compressed since the last yield.
    compressed: usize,
}

/// Bytes to compress before yielding: a response that compresses extremely well would never wait for its client.
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

    /// Returns the next compressed bytes.
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

    /// Compresses one piece. The outer `None` is the end; the inner one means no output yet. Encoding to memory
    /// cannot fail.
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
        // Yields to others, however little output there is.
        assert_eq!(turns, text.len() / (TURN / PIECE * PIECE));
        assert!(gzip.is_over() && packed.len() < text.len() / 2);
        let mut back = Vec::new();
        GzDecoder::new(&packed[..]).read_to_end(&mut back).unwrap();
        assert!(back == text);
    }
}
