//! The configuration of registries: mirrors, certificates, credentials of the node, plain HTTP.
//!
//! The file has the form of k3s' `registries.yaml`. It is read for each pull, so that changes need no restart.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use client::https::{ClientIdentity, Roots};
use serde::Deserialize;

use crate::error::Error;
use runtime::image::Credentials;

/// The host that serves images of `docker.io`.
const DOCKER_HUB: &str = "registry-1.docker.io";

/// The configuration of all registries. The default has none: registries are reached over TLS with the system's certificates.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Registries {
    mirrors: BTreeMap<String, Mirror>,
    configs: BTreeMap<String, Config>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Mirror {
    endpoint: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    #[serde(deserialize_with = "node_credentials")]
    auth: Option<Credentials>,
    tls: Tls,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Tls {
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    insecure_skip_verify: bool,
}

/// Credentials, whose errors do not quote them: events of pods show errors of the configuration.
fn node_credentials<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Credentials>, D::Error> {
    let credentials = Option::deserialize(deserializer);
    credentials.map_err(|_| serde::de::Error::custom("auth needs exactly a username and a password, which are strings"))
}

/// A server with the images of a registry: the registry itself, or a mirror.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// `http` or `https`.
    pub scheme: &'static str,
    /// Host and port.
    pub authority: String,
    /// The path before `/v2`.
    pub prefix: String,
    /// The registry, for a mirror.
    pub mirror_of: Option<String>,
    /// Whether it may be at any address: it is in the configuration, or its name is one of this machine.
    pub is_trusted: bool,
    /// The other servers in the configuration, which a trusted one may redirect to wherever they are.
    configured: Arc<BTreeSet<String>>,
    /// The credentials of the configuration.
    pub credentials: Option<Credentials>,
    pub roots: Roots,
    pub identity: Option<ClientIdentity>,
    pub insecure: bool,
}

impl Endpoint {
    /// Whether a server that the endpoint is or redirects to may be at any address, such as one of this machine.
    pub fn may_be_anywhere(&self, authority: &str) -> bool {
        self.is_trusted && (self.authority == authority || self.configured.contains(authority))
    }
}

impl Registries {
    /// Reads the file. One that does not exist configures nothing. Errors if it has unknown fields.
    pub fn read(path: &Path) -> Result<Registries, Error> {
        let wrong = |message: String| Error::Configuration { path: path.display().to_string(), message };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Registries::default()),
            Err(e) => return Err(wrong(e.to_string())),
        };
        Self::parse(&text).map_err(wrong)
    }

    fn parse(text: &str) -> Result<Registries, String> {
        let documents = codec::yaml::parse_strict(text).map_err(|e| e.to_string())?;
        let Some(document) = documents.into_iter().find(|d| !d.is_null()) else { return Ok(Registries::default()) };
        let registries: Registries = serde_json::from_value(document).map_err(|e| e.to_string())?;
        for (name, mirror) in &registries.mirrors {
            // A URL with a password in it is one of those that are refused, so it is not quoted.
            if mirror.endpoint.iter().any(|url| parse_url(url).is_none()) {
                return Err(format!("an endpoint of {name:?} is no URL of the form http[s]://host[:port][/path]"));
            }
        }
        Ok(registries)
    }

    /// The servers to try for a registry, in order: its mirrors, then the registry itself.
    pub(crate) fn endpoints(&self, registry: &str) -> Result<Vec<Endpoint>, Error> {
        let host = if registry == "docker.io" { DOCKER_HUB } else { registry };
        let mirrors = self.mirrors.get(registry).or_else(|| self.mirrors.get("*"));
        let mut all = Vec::new();
        for url in mirrors.into_iter().flat_map(|m| &m.endpoint) {
            let Some((scheme, authority, prefix)) = parse_url(url) else { continue };
            let mirror_of = Some(registry.to_owned()).filter(|_| authority != host);
            all.push(self.endpoint(scheme, authority, prefix, mirror_of, true)?);
        }
        if !all.iter().any(|e| e.mirror_of.is_none()) {
            let local = is_loopback(host);
            let is_trusted = local || self.configs.contains_key(host) || self.configs.contains_key(registry);
            let scheme = if local && !self.configs.contains_key(host) { "http" } else { "https" };
            all.push(self.endpoint(scheme, host, "", None, is_trusted)?);
        }
        Ok(all)
    }

    fn endpoint(
        &self,
        scheme: &'static str,
        authority: &str,
        prefix: &str,
        mirror_of: Option<String>,
        is_trusted: bool,
    ) -> Result<Endpoint, Error> {
        let mirrors =
            self.mirrors.values().flat_map(|m| &m.endpoint).filter_map(|url| Some(parse_url(url)?.1.to_owned()));
        let configured = Arc::new(self.configs.keys().cloned().chain(mirrors).collect());
        let named = if authority == DOCKER_HUB && mirror_of.is_none() { "docker.io" } else { authority };
        let config = self.configs.get(authority).or_else(|| self.configs.get(named)).cloned().unwrap_or_default();
        let read = |path: &Path| {
            let wrong =
                |e: std::io::Error| Error::Configuration { path: path.display().to_string(), message: e.to_string() };
            std::fs::read(path).map_err(wrong)
        };
        let identity = match (&config.tls.cert_file, &config.tls.key_file) {
            (Some(certificates), Some(key)) => {
                Some(ClientIdentity { certificates: read(certificates)?, key: read(key)? })
            }
            _ => None,
        };
        Ok(Endpoint {
            scheme,
            authority: authority.to_owned(),
            prefix: prefix.to_owned(),
            mirror_of,
            is_trusted,
            configured,
            credentials: config.auth,
            roots: config.tls.ca_file.as_deref().map(read).transpose()?.map_or(Roots::System, Roots::SystemAnd),
            identity,
            insecure: config.tls.insecure_skip_verify,
        })
    }
}

/// Scheme, authority and path of a URL without user, query and fragment.
pub(crate) fn parse_url(url: &str) -> Option<(&'static str, &str, &str)> {
    let (scheme, rest) = match url.split_once("://")? {
        (s, rest) if s.eq_ignore_ascii_case("https") => ("https", rest),
        (s, rest) if s.eq_ignore_ascii_case("http") => ("http", rest),
        _ => return None,
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    if authority.is_empty() || !authority.chars().all(fits) || path.contains(['?', '#']) {
        return None;
    }
    Some((scheme, authority, path.trim_end_matches('/')))
}

/// Whether the host is this machine, by its name or address alone.
fn is_loopback(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse().is_ok_and(|a: IpAddr| a.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(config: &str, registry: &str) -> Vec<String> {
        let registries = Registries::parse(config).unwrap();
        let shown = |e: Endpoint| {
            let ns = e.mirror_of.map(|of| format!(" for {of}")).unwrap_or_default();
            format!("{}://{}{}{ns}{}", e.scheme, e.authority, e.prefix, if e.is_trusted { "" } else { " untrusted" })
        };
        registries.endpoints(registry).unwrap().into_iter().map(shown).collect()
    }

    #[test]
    fn registries_are_reached_over_tls_unless_configured() {
        assert_eq!(servers("", "docker.io"), ["https://registry-1.docker.io untrusted"]);
        assert_eq!(servers("", "a.example:5000"), ["https://a.example:5000 untrusted"]);
        for local in ["localhost", "localhost:5000", "127.0.0.1:5000", "[::1]:5000"] {
            assert_eq!(servers("", local), [format!("http://{local}")]);
        }
        assert_eq!(servers("", "localhost.example.com"), ["https://localhost.example.com untrusted"]);
        let plain = "mirrors: {\"a.example:5000\": {endpoint: [\"http://a.example:5000\"]}}";
        assert_eq!(servers(plain, "a.example:5000"), ["http://a.example:5000"]);
        let verified = "configs: {\"localhost:5000\": {tls: {insecure_skip_verify: true}}}";
        assert_eq!(servers(verified, "localhost:5000"), ["https://localhost:5000"]);
    }

    #[test]
    fn mirrors_come_first() {
        let mirrors = "
mirrors:
  docker.io: {endpoint: [\"https://m.example/hub/\", \"http://10.0.0.5:5000\"]}
  \"*\": {endpoint: [\"https://all.example\"]}
";
        assert_eq!(
            servers(mirrors, "docker.io"),
            [
                "https://m.example/hub for docker.io",
                "http://10.0.0.5:5000 for docker.io",
                "https://registry-1.docker.io untrusted"
            ]
        );
        assert_eq!(servers(mirrors, "b.example"), ["https://all.example for b.example", "https://b.example untrusted"]);
    }

    #[test]
    fn refuses_unknown_fields_and_urls() {
        for (text, message) in [
            ("mirrors: {a: {rewrite: {}}}", "unknown field `rewrite`"),
            ("configs: {a: {tls: {ca: x}}}", "unknown field `ca`"),
            ("mirrors: {a: {endpoint: [\"m.example\"]}}", "is no url"),
            ("mirrors: {a: {endpoint: [\"https://u@m.example\"]}}", "is no url"),
            ("mirrors: {a: {endpoint: [\"https://u:secret@m.example\"]}}", "is no url"),
            ("configs: {a: {auth: secret}}", "auth needs exactly"),
            ("configs: {a: {auth: {username: a, password: secret, more: secret}}}", "auth needs exactly"),
            ("mirrors: [", "yaml"),
        ] {
            let error = Registries::parse(text).unwrap_err();
            assert!(error.to_lowercase().contains(message), "{text}: {error}");
            assert!(!error.contains("secret"), "{text}: {error}");
        }
        assert!(Registries::parse("").is_ok() && Registries::parse("# nothing\n").is_ok());
    }
}
