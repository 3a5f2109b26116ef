//! API aggregation: proxies requests for a version to the server of its APIService, on behalf of the user
//! (`k8s.io/kube-aggregator`).
//!
//! `services` maintains the objects and the routing table, `check` checks whether a server is available, `documents`
//! merges its discovery and OpenAPI into our own. Invariant: only authenticated and authorized requests are proxied,
//! and never with the client's credentials; a service cannot route to an address of this machine
//! ([`Reach::Network`]); no part of a proxied request outlives its client's connection. Not implemented: following
//! redirects.

mod check;
mod documents;
mod local;
mod services;

pub(crate) use documents::RemoteDocuments;
pub use services::run;

use crate::Body;
use crate::answer::bytes;
use crate::header_text;
use crate::ids::AUDIT_ID;
use crate::path::Target;
use crate::services::Services;
use auth::User;
use bytes::Bytes;
use client::https::{ClientIdentity, Config, Https, Reach, Roots};
use client::{Transport, Upgrade};
use http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use http::request::Parts;
use http::{Request, Response, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use meta::GroupVersion;
use parking_lot::{Mutex, RwLock};
use registry::Registry;
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of servers with cached connections; above it, all are dropped.
const KEPT: usize = 64;

/// A version served by another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    /// The name of the APIService.
    pub name: String,
    pub group_version: GroupVersion,
    pub namespace: String,
    pub service: String,
    pub port: u16,
    ca: Vec<u8>,
    insecure: bool,
    pub group_priority: i64,
    pub version_priority: i64,
    pub available: bool,
}

/// The routing table.
#[derive(Default)]
pub(crate) struct Table {
    pub remotes: HashMap<GroupVersion, Arc<Remote>>,
    /// The discovery and OpenAPI documents of the servers.
    pub found: HashMap<GroupVersion, Arc<RemoteDocuments>>,
    /// A unique number per table.
    pub change: u64,
}

#[derive(Default)]
pub(crate) struct Aggregator {
    table: RwLock<Arc<Table>>,
    connections: Mutex<HashMap<ConnectionKey, Arc<Https>>>,
    identity: Option<ClientIdentity>,
    endpoints: Reach,
    services: Arc<Services>,
}

/// A server's address, name, CA bundle, and whether to skip TLS verification.
type ConnectionKey = (String, String, Vec<u8>, bool);

/// Why a server cannot be called.
#[derive(Debug, thiserror::Error)]
enum Unreached {
    #[error("{0}")]
    Address(String),
    /// The APIService's CA bundle is invalid.
    #[error("{0}")]
    Transport(String),
}

impl Aggregator {
    pub fn new(identity: Option<ClientIdentity>, services: Arc<Services>, endpoints: Reach) -> Self {
        Self { identity, services, endpoints, ..Self::default() }
    }

    pub fn table(&self) -> Arc<Table> {
        self.table.read().clone()
    }

    fn replace(&self, mut table: Table) {
        let mut now = self.table.write();
        table.change = now.change + 1;
        *now = Arc::new(table);
    }

    /// The server of the request's version, if it is not local.
    pub fn remote(&self, target: &Target, path: &str) -> Option<Arc<Remote>> {
        let table = self.table.read();
        if table.remotes.is_empty() || target.odd || crate::path::climbs(path) {
            return None;
        }
        match &target.group_version {
            Some(gv) => table.remotes.get(gv).cloned(),
            None => table.remotes.get(&crate::openapi::version_of(path)?).cloned(),
        }
    }

    /// Proxies a request.
    pub async fn proxy(
        &self,
        registry: &Registry,
        remote: &Remote,
        mut parts: Parts,
        body: Bytes,
        user: &User,
        id: &str,
    ) -> Response<Body> {
        if !remote.available {
            return plain(503, "service unavailable");
        }
        let (address, client) = match self.client(registry, remote) {
            Ok(found) => found,
            Err(Unreached::Address(_)) => return plain(503, "service unavailable"),
            Err(Unreached::Transport(why)) => return plain(500, &why),
        };
        let ours = parts.extensions.remove::<OnUpgrade>();
        let upgrade = parts.headers.contains_key(UPGRADE) && ours.is_some();
        crate::proxy::add_client(&mut parts);
        let mut request = Request::new(body);
        *request.method_mut() = parts.method;
        *request.uri_mut() = parts.uri;
        *request.version_mut() = Version::HTTP_11;
        *request.headers_mut() = match as_proxy(parts.headers, user, upgrade) {
            Ok(headers) => headers,
            Err(e) => return plain(500, &format!("the user {:?} cannot be told to the service: {e}", user.name)),
        };
        let headers = request.headers_mut();
        if let Ok(host) = HeaderValue::from_str(&address) {
            headers.insert(HOST, host);
        }
        if let Ok(id) = HeaderValue::from_str(id) {
            headers.insert(AUDIT_ID, id);
        }
        let failed = |e: client::Error| plain(503, &format!("error trying to reach service: {e}"));
        if !upgrade {
            return client.send(request).await.map_or_else(failed, relay);
        }
        match client.upgrade(request).await {
            Err(e) => failed(e),
            Ok(Upgrade::Refused(r)) => relay(r),
            Ok(Upgrade::Switched(parts, theirs)) => {
                tokio::spawn(async move {
                    if let Some(Ok(ours)) = async { Some(ours?.await) }.await {
                        crate::proxy::carry(TokioIo::new(ours), theirs).await;
                    }
                });
                Response::from_parts(parts, Body::empty())
            }
        }
    }

    /// Connects to a server of a version. Returns the connection and its address.
    fn client(&self, registry: &Registry, remote: &Remote) -> Result<(String, Arc<Https>), Unreached> {
        let address = self.services.resolve(registry, &remote.namespace, &remote.service, remote.port);
        let address = address.map_err(Unreached::Address)?;
        let name = format!("{}.{}.svc", remote.service, remote.namespace);
        let to = (address.clone(), name.clone(), remote.ca.clone(), remote.insecure);
        let mut connections = self.connections.lock();
        if let Some(c) = connections.get(&to) {
            return Ok((address, c.clone()));
        }
        let config = Config {
            roots: if remote.ca.is_empty() { Roots::System } else { Roots::Pem(remote.ca.clone()) },
            identity: self.identity.clone(),
            server_name: Some(name),
            insecure: remote.insecure,
            reach: self.endpoints,
            ..Config::new(format!("https://{address}"))
        };
        let client = Arc::new(Https::new(&config).map_err(|e| Unreached::Transport(e.why()))?);
        if connections.len() >= KEPT {
            connections.clear();
        }
        connections.insert(to, client.clone());
        Ok((address, client))
    }
}

/// An error as Go's `http.Error` writes it.
fn plain(code: u16, text: &str) -> Response<Body> {
    let mut r = bytes(code, "text/plain; charset=utf-8", format!("{text}\n"));
    r.headers_mut().insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    r
}

/// Converts a response body.
fn relay(response: Response<client::Body>) -> Response<Body> {
    let mut r = response.map(Body::relay);
    crate::proxy::drop_hop_by_hop(r.headers_mut());
    *r.version_mut() = Version::default();
    r
}

/// The headers of a proxied request, without client credentials and identity headers.
fn as_proxy(mut headers: HeaderMap, user: &User, upgrade: bool) -> Result<HeaderMap, http::Error> {
    let protocol = headers.get(UPGRADE).cloned();
    crate::proxy::drop_hop_by_hop(&mut headers);
    headers.remove(AUTHORIZATION);
    let claims: Vec<HeaderName> = headers
        .keys()
        .filter(|k| ["x-remote-", "impersonate-"].iter().any(|p| k.as_str().starts_with(p)))
        .cloned()
        .collect();
    for c in claims {
        headers.remove(c);
    }
    if let Some(p) = protocol.filter(|_| upgrade) {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, p);
    }
    for (k, v) in identity(user)? {
        headers.append(k, v);
    }
    Ok(headers)
}

/// Adds the identity headers of a front proxy.
fn identity(user: &User) -> Result<Vec<(HeaderName, HeaderValue)>, http::Error> {
    let header = |name: String, text: &str| Ok((HeaderName::try_from(name)?, header_text::value(text)?));
    let mut out = vec![header("x-remote-user".into(), &user.name)];
    if !user.uid.is_empty() {
        out.push(header("x-remote-uid".into(), &user.uid));
    }
    out.extend(user.groups.iter().map(|g| header("x-remote-group".into(), g)));
    for (key, values) in &user.extra {
        out.extend(values.iter().map(|v| header(format!("x-remote-extra-{}", escape(key)), v)));
    }
    out.into_iter().collect()
}

/// Escapes a key for a header name (client-go `headerKeyEscape`).
fn escape(key: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&b);
    key.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_proxy_says_who_asks() {
        let mut h = HeaderMap::new();
        for (k, v) in [
            ("authorization", "Bearer secret"),
            ("x-remote-user", "root"),
            ("x-remote-extra-scopes", "all"),
            ("impersonate-user", "root"),
            ("connection", "x-private"),
            ("x-private", "1"),
            ("accept", "application/json"),
        ] {
            h.append(HeaderName::from_static(k), HeaderValue::from_static(v));
        }
        let mut user = User::new("jane", &["developers"]);
        user.uid = "u1".into();
        user.extra.insert("example.com/scope".into(), vec!["a".into(), "b".into()]);
        let h = as_proxy(h, &user, false).unwrap();
        let mut all: Vec<String> = h.iter().map(|(k, v)| format!("{k}: {}", v.to_str().unwrap())).collect();
        all.sort();
        let expected = [
            "accept: application/json",
            "x-remote-extra-example.com%2fscope: a",
            "x-remote-extra-example.com%2fscope: b",
            "x-remote-group: developers",
            "x-remote-group: system:authenticated",
            "x-remote-uid: u1",
            "x-remote-user: jane",
        ];
        assert_eq!(all, expected);

        let h = as_proxy(HeaderMap::new(), &User::new("jörg", &[]), false).unwrap();
        assert_eq!(h["x-remote-user"].as_bytes(), "jörg".as_bytes());
        // Without the user's name, the request would be the proxy's own.
        assert!(as_proxy(HeaderMap::new(), &User::new("a\nb", &[]), false).is_err());
    }
}
