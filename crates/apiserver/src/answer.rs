//! Complete responses: errors and documents.

use crate::body::Body;
use crate::content::{self, Negotiated};
use crate::order;
use http::{HeaderValue, Response, StatusCode, header};
use meta::Status;

/// Budget for large unread responses, of all users and of one.
pub(crate) const TOTAL: usize = 512 << 20;
pub(crate) const PER_USER: usize = 128 << 20;

pub(crate) fn method_not_allowed() -> Status {
    Status::new(405, meta::Reason::MethodNotAllowed, "the server does not allow this method on the requested resource")
        .with_details(meta::status::Details::default())
}

/// The response to an error.
pub(crate) fn failure(s: &Status) -> Response<Body> {
    failure_in(&Negotiated::json(), s)
}

pub(crate) fn failure_in(negotiated: &Negotiated, s: &Status) -> Response<Body> {
    let (media, body) = content::write(negotiated, &s.to_value());
    let mut r = bytes(s.code, media, body);
    if let Some(seconds) = s.details.as_ref().map(|d| d.retry_after_seconds).filter(|s| *s > 0) {
        r.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    r
}

pub(crate) fn json(code: u16, v: &meta::Value) -> Response<Body> {
    bytes(code, "application/json", order::json(v, false))
}

pub(crate) fn bytes(code: u16, media: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut r = Response::new(body.into());
    *r.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let h = r.headers_mut();
    h.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    h.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    r
}
