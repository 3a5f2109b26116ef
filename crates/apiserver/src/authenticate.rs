//! Authentication: front proxy, client certificate, bearer token, or anonymous.

pub mod bootstrap_token;
mod certificates;
mod front_proxy;

pub use certificates::{AnyCertificate, Certificates, Peer, PeerError};
pub(crate) use certificates::{Holder, user_of};
pub use front_proxy::FrontProxy;

use auth::{Tokens, User};
use http::HeaderValue;
use http::header::AUTHORIZATION;
use http::request::Parts;
use meta::{Status, Value};
use std::sync::Arc;

/// The identity of an in-process request. A request extension, which no socket can set.
#[derive(Clone, Debug)]
pub struct Identity(pub User);

#[derive(Default)]
pub struct Authenticators {
    pub tokens: Arc<Tokens>,
    pub certificates: Certificates,
    pub front_proxy: Option<FrontProxy>,
    pub anonymous: Anonymous,
    /// The issuer and keys, for verifying service account tokens.
    pub issuer: Option<(Value, Value)>,
}

/// The paths that allow anonymous requests, before authorization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anonymous {
    Nothing,
    Everything,
    /// These paths and those below them.
    Below(Vec<String>),
    /// These paths only.
    Paths(Vec<String>),
}

impl Default for Anonymous {
    /// Health checks, and the signed ConfigMap from which machines that join the cluster learn its CA.
    fn default() -> Self {
        const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
        Self::Below(["/healthz", "/livez", "/readyz", "/version", CLUSTER_INFO].map(str::to_owned).to_vec())
    }
}

impl Anonymous {
    fn may_ask(&self, path: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Below(all) => {
                all.iter().any(|p| path.strip_prefix(&**p).is_some_and(|r| r.is_empty() || r.starts_with('/')))
            }
            Self::Paths(all) => all.iter().any(|p| p == path),
        }
    }
}

impl Authenticators {
    /// Removes credentials from the request, so that no later stage sees them.
    pub(crate) async fn authenticate(&self, parts: &mut Parts) -> Result<User, Status> {
        if let Some(Identity(user)) = parts.extensions.get::<Identity>() {
            return Ok(user.clone());
        }
        let peer = parts.extensions.get::<Peer>().cloned().unwrap_or_default();
        let proxied =
            self.front_proxy.as_ref().map(|p| p.take(&mut parts.headers, peer.proxy.as_deref())).transpose()?;
        if let Some(user) = proxied.flatten() {
            return Ok(user);
        }
        if let Some(user) = peer.user {
            return Ok(user);
        }
        if let Some(token) = bearer(parts) {
            return match self.tokens.authenticate(&token, &[]).await {
                Ok(Some(found)) => Ok(found.user),
                Ok(None) => Err(Status::unauthorized()),
                Err(why) => {
                    tracing::debug!("a token was refused: {why}");
                    Err(Status::unauthorized())
                }
            };
        }
        // An unknown certificate, or a proxy's without a user, is rejected instead of anonymous.
        let shown = peer.unknown || peer.proxy.is_some();
        if !shown && self.anonymous.may_ask(parts.uri.path()) {
            Ok(User::anonymous())
        } else {
            Err(Status::unauthorized())
        }
    }
}

/// The token in the `Authorization` header, or in the protocols of a browser's WebSocket.
fn bearer(parts: &mut Parts) -> Option<String> {
    const PROTOCOLS: &str = "sec-websocket-protocol";
    const HIDDEN: &str = "base64url.bearer.authorization.k8s.io.";
    if let Some(v) = parts.headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok()) {
        let (scheme, token) = v.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned());
    }
    let protocols: Vec<String> =
        parts.headers.get_all(PROTOCOLS).iter().filter_map(|v| v.to_str().ok().map(str::to_owned)).collect();
    let all: Vec<&str> = protocols.iter().flat_map(|v| v.split(',')).map(str::trim).collect();
    let token = all.iter().find_map(|p| p.strip_prefix(HIDDEN))?;
    let others: Vec<&str> = all.iter().copied().filter(|p| !p.starts_with(HIDDEN)).collect();
    // The server must select a protocol other than the token.
    let others = HeaderValue::from_str(&others.join(", ")).ok().filter(|v| !v.is_empty())?;
    use base64::Engine;
    let token = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(token).ok()?;
    let token = String::from_utf8(token).ok()?;
    parts.headers.insert(PROTOCOLS, others);
    Some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    #[test]
    fn tokens_come_in_a_header_or_hidden_in_the_protocols_of_a_web_socket() {
        let check = |name: &str, value: &str, token: Option<&str>, left: Option<&str>| {
            let (mut parts, ()) = Request::builder().header(name, value).body(()).unwrap().into_parts();
            assert_eq!(bearer(&mut parts).as_deref(), token, "{value}");
            let protocols = parts.headers.get("sec-websocket-protocol").and_then(|v| v.to_str().ok());
            assert_eq!(protocols, left);
        };
        check("authorization", "Bearer abc", Some("abc"), None);
        check("authorization", "bearer  abc ", Some("abc"), None);
        check("authorization", "Basic abc", None, None);
        let hidden = "base64url.bearer.authorization.k8s.io.YWJj";
        check(
            "sec-websocket-protocol",
            &format!("v5.channel.k8s.io, {hidden}"),
            Some("abc"),
            Some("v5.channel.k8s.io"),
        );
        check("sec-websocket-protocol", hidden, None, Some(hidden));
    }

    #[test]
    fn nobody_may_ask_little() {
        assert!(Anonymous::default().may_ask("/livez/ping") && !Anonymous::default().may_ask("/livezx"));
        assert!(!Anonymous::default().may_ask("/api") && Anonymous::Everything.may_ask("/api"));
        let paths = Anonymous::Paths(vec!["/livez".into()]);
        assert!(paths.may_ask("/livez") && !paths.may_ask("/livez/ping") && !Anonymous::Nothing.may_ask("/livez"));
    }
}
