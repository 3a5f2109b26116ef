//! A call: a request as the verbs receive it.

use crate::authenticate::Identity;
use crate::content::{self, Negotiated};
use crate::path::{Query, Target};
use crate::trace::Trace;
use auth::{Attributes, User};
use bytes::Bytes;
use http::request::Parts;
use http::{Request, header};
use meta::Status;
use registry::Warnings;
use std::sync::Arc;

/// A request that has passed all filters: path parsed, user authenticated and authorized, body read.
pub(crate) struct Call {
    pub parts: Parts,
    pub body: Bytes,
    pub query: Query,
    pub target: Target,
    /// The RBAC verb.
    pub verb: &'static str,
    pub user: User,
    /// The authorized attributes.
    pub attributes: Arc<Attributes>,
    /// The negotiated encoding and representation.
    pub negotiated: Negotiated,
    pub warnings: Warnings,
    pub trace: Arc<Trace>,
    /// Whether CBOR is enabled.
    pub cbor: bool,
}

impl Call {
    /// The `fieldManager` parameter, or the user agent up to the first slash.
    pub fn manager(&self) -> String {
        let manager = self.query.get("fieldManager");
        if !manager.is_empty() {
            return manager.to_owned();
        }
        let agent = self.parts.headers.get(header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("unknown");
        agent.split('/').next().unwrap_or(agent).chars().take(128).collect()
    }

    pub fn media_type(&self) -> &str {
        content::media_type(&self.parts.headers)
    }

    /// Decodes the object of the body.
    pub fn sent(&self) -> Result<content::DecodedBody, Status> {
        content::read(self.media_type(), &self.body, self.cbor)
    }
}

/// Sets the identity of an in-process request. No socket can set it.
pub fn as_identity(mut request: Request<Bytes>, user: User) -> Request<Bytes> {
    request.extensions_mut().insert(Identity(user));
    request
}
