//! Gzip of large answers, for clients that ask for it (`k8s.io/apiserver/pkg/endpoints/handlers/responsewriters`).
//!
//! An answer is compressed piece by piece while it is sent. Streams are left alone: who watches wants every event at once.

use crate::body::Body;
use crate::joined::Joined;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, VARY};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use std::io::Write;
use std::task::{Context, Poll};

/// Smaller answers are sent as they are: packing costs more than sending.
const OBJECTS: usize = 128 * 1024;
/// Documents are asked for rarely and shrink much.
const DOCUMENTS: usize = 1400;
/// Compressed at once, between two answers to others on the same thread.
const PIECE: usize = 128 * 1024;

/// The size from which an answer to this request is compressed; none when the client does not want it.
pub fn threshold(method: &Method, path: &str, headers: &HeaderMap) -> Option<usize> {
    let accepts = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|v| v.to_str().ok());
    let mut wishes = accepts.flat_map(|v| v.split(','));
    let gzip = wishes.any(|w| {
        let mut parts = w.split(';').map(str::trim);
        parts.next() == Some("gzip") && !parts.any(|p| matches!(p, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    });
    let documents = path.starts_with("/openapi/");
    (gzip && *method == Method::GET).then_some(if documents { DOCUMENTS } else { OBJECTS })
}

/// Compresses an answer that is large enough.
pub fn compress(response: Response<Body>, threshold: usize) -> Response<Body> {
    let size = match response.body() {
        Body::Full(b) => b.len(),
        Body::Joined(j) => usize::try_from(j.left()).unwrap_or(usize::MAX),
        Body::Stream(_) | Body::Gzip(_) => 0,
    };
    if size < threshold || response.status() != StatusCode::OK {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    let source = match body {
        Body::Full(b) => Source::Full(b),
        Body::Joined(j) => Source::Joined(*j),
        other => return Response::from_parts(parts, other),
    };
    Response::from_parts(parts, Body::Gzip(Box::new(Gzip::new(source))))
}

enum Source {
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

/// What is left of an answer, and the encoder over what was sent.
pub struct Gzip {
    /// What is compressed next.
    piece: Bytes,
    source: Source,
    /// None when everything was given out.
    encoder: Option<GzEncoder<Vec<u8>>>,
    /// Bytes that were compressed in this turn.
    compressed: usize,
}

/// Bytes that are compressed before other connections of the thread have their turn: a connection whose answer becomes very small would
/// never wait for its client.
const TURN: usize = 128 << 10;

impl Gzip {
    fn new(source: Source) -> Self {
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

    #[test]
    fn only_those_who_ask_get_it() {
        let check = |wish: &'static str, want: Option<usize>| {
            let mut h = HeaderMap::new();
            h.insert(ACCEPT_ENCODING, HeaderValue::from_static(wish));
            assert_eq!(threshold(&Method::GET, "/api/v1/pods", &h), want, "{wish}");
        };
        check("gzip", Some(OBJECTS));
        check("br, gzip;q=0.5", Some(OBJECTS));
        check("identity, gzip;q=0", None);
        check("deflate", None);
        assert_eq!(threshold(&Method::GET, "/api", &HeaderMap::new()), None);
    }
}
