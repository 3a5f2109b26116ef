//! Gzip compression of large responses, for clients that accept it
//! (`k8s.io/apiserver/pkg/endpoints/handlers/responsewriters`).
//!
//! A response is compressed in pieces while it is sent. Streams are not compressed: a watch must deliver each event
//! immediately.

use crate::body::Body;
use crate::gzip::{Gzip, Source};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, VARY};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};

/// Smaller responses are sent uncompressed: compressing costs more than sending.
const OBJECTS: usize = 128 * 1024;
/// Discovery and OpenAPI documents: rarely requested, and compress well.
const DOCUMENTS: usize = 1400;

/// The response size from which to compress for this request; none if the client does not accept gzip.
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

/// Compresses a response that is large enough.
pub fn compress(response: Response<Body>, threshold: usize) -> Response<Body> {
    let size = match response.body() {
        Body::Full(b) => b.len(),
        Body::Joined(j) => usize::try_from(j.least()).unwrap_or(usize::MAX),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_who_ask_get_it() {
        let check = |wish: &'static str, expected: Option<usize>| {
            let mut h = HeaderMap::new();
            h.insert(ACCEPT_ENCODING, HeaderValue::from_static(wish));
            assert_eq!(threshold(&Method::GET, "/api/v1/pods", &h), expected, "{wish}");
        };
        check("gzip", Some(OBJECTS));
        check("br, gzip;q=0.5", Some(OBJECTS));
        check("identity, gzip;q=0", None);
        check("deflate", None);
        assert_eq!(threshold(&Method::GET, "/api", &HeaderMap::new()), None);
    }
}
