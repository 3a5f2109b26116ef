//! User and group names in headers: UTF-8, as Go's clients and servers send them.
//!
//! **Invariant**: an unreadable name is an error, never omitted: the request would otherwise be another user's.

use http::header::InvalidHeaderValue;
use http::{HeaderMap, HeaderValue};
use meta::Status;

/// All values of a header.
pub(crate) fn values(headers: &HeaderMap, name: &str) -> Result<Vec<String>, Status> {
    let text = |v: &HeaderValue| String::from_utf8(v.as_bytes().to_vec());
    let all: Result<_, _> = headers.get_all(name).iter().map(text).collect();
    all.map_err(|_| Status::bad_request(format!("the value of the header {name:?} is not UTF-8")))
}

/// Encodes a header value. Errors for control characters.
pub(crate) fn value(text: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    HeaderValue::from_bytes(text.as_bytes())
}
