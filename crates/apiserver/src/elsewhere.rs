//! Non-resource paths: health, version, discovery, OpenAPI, issuer keys, and unknown paths.

use crate::answer::{bytes, method_not_allowed};
use crate::body::Body;
use crate::path::Target;
use crate::{Server, content, discovery, health, openapi, order, zpages};
use http::request::Parts;
use http::{HeaderValue, Method, Response, header};
use meta::Status;
use std::sync::Arc;

/// The issuer's discovery document, in upstream's order.
const ABOUT: [&str; 5] = [
    "issuer",
    "jwks_uri",
    "response_types_supported",
    "subject_types_supported",
    "id_token_signing_alg_values_supported",
];

impl Server {
    /// Handles non-resource paths: health, version, discovery, OpenAPI.
    pub(crate) fn other(self: &Arc<Self>, parts: &Parts, target: &Target) -> Result<Response<Body>, Status> {
        let path = parts.uri.path();
        if let Some(r) = health::answer(self, parts).or_else(|| zpages::answer(self, parts)) {
            return r;
        }
        if let Some(r) = self.flow.dump(&parts.uri, self.registry.clock.now()) {
            return Ok(r);
        }
        let reads = matches!(parts.method, Method::GET | Method::HEAD);
        let known = matches!(path, "/version" | "/version/" | "/") || path.starts_with("/openapi");
        if known && !reads {
            return Err(method_not_allowed());
        }
        if let Some(r) = self.issuer(parts) {
            return r;
        }
        if let Some(r) = openapi::answer(self, parts) {
            return r;
        }
        let found = discovery::answer(self, parts, target)?;
        // As upstream, the list of groups does not depend on the method.
        match reads || path.trim_end_matches('/') == "/apis" {
            true => Ok(found),
            false => Err(method_not_allowed()),
        }
    }

    /// Responds to unknown paths: with a `Status` below the API prefixes, else in plain text.
    pub(crate) fn nowhere(&self, status: Status, path: &str) -> Result<Response<Body>, Status> {
        let mut segments = path.strip_prefix('/').unwrap_or(path).split('/');
        let api = match segments.next() {
            Some("api" | "version") => true,
            Some("apis") => {
                let group = segments.next().unwrap_or_default();
                self.registry.rows().iter().any(|r| r.bare_items && *r.kind.group == *group)
            }
            _ => false,
        };
        if api || status.code != 404 {
            return Err(status);
        }
        let mut r = bytes(404, "text/plain; charset=utf-8", "404 page not found\n".to_owned());
        r.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        Ok(r)
    }

    /// The issuer's discovery document and keys, for verifying service account tokens.
    fn issuer(&self, parts: &Parts) -> Option<Result<Response<Body>, Status>> {
        let (about, keys) = self.authenticators.issuer.as_ref()?;
        let (media, document) = match parts.uri.path().trim_end_matches('/') {
            "/.well-known/openid-configuration" => ("application/json", about),
            "/openid/v1/jwks" => ("application/jwk-set+json", keys),
            _ => return None,
        };
        if let Err(s) = content::check_route(&parts.headers, &[media]) {
            return Some(Err(s));
        }
        let mut r = bytes(200, media, order::json_listed(document, &ABOUT));
        r.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
        Some(Ok(r))
    }
}
