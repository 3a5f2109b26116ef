//! A request as the verbs see it.

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

/// A request that has passed all filters: its path is parsed, its user authenticated and authorized, its body read.
pub(crate) struct Call {
    pub parts: Parts,
    pub body: Bytes,
    pub query: Query,
    pub target: Target,
    /// The verb of RBAC.
    pub verb: &'static str,
    pub user: User,
    /// What was authorized.
    pub attributes: Arc<Attributes>,
    /// Encoding and shape of the answer.
    pub wanted: Negotiated,
    pub warnings: Warnings,
    pub trace: Arc<Trace>,
    /// Whether CBOR is accepted.
    pub cbor: bool,
}

impl Call {
    /// The `fieldManager` parameter, or the user agent up to its slash.
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

    /// Reads the object of the body.
    pub fn sent(&self) -> Result<content::DecodedBody, Status> {
        content::read(self.media_type(), &self.body, self.cbor)
    }
}

/// Gives a request of the same process an identity. No socket can set it.
pub fn as_identity(mut request: Request<Bytes>, user: User) -> Request<Bytes> {
    request.extensions_mut().insert(Identity(user));
    request
}
