//! The address of a webhook (`WebhookClientConfig`), shared by admission and conversion.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use meta::Value;

/// The endpoint of a webhook (`clientConfig`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The address.
    pub place: EndpointAddress,
    /// PEM; empty: the system's trusted certificates.
    pub ca: Vec<u8>,
}

/// The address of a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EndpointAddress {
    /// A URL.
    Url(String),
    /// A service of the cluster.
    Service {
        /// The namespace of the service.
        namespace: String,
        /// The name of the service.
        name: String,
        /// The path of the URL.
        path: String,
        /// The port of the service.
        port: u16,
    },
}

impl Endpoint {
    /// None if the configuration has neither a service nor a URL.
    pub fn read(config: &Value) -> Option<Self> {
        let text = |v: &Value, k: &str| v[k].as_str().unwrap_or_default().to_owned();
        let mut ca = STANDARD.decode(text(config, "caBundle")).unwrap_or_default();
        // Whitespace only counts as no certificate.
        if ca.trim_ascii().is_empty() {
            ca.clear();
        }
        let place = match (config.get("service").filter(|s| s.is_object()), text(config, "url")) {
            (Some(s), _) => EndpointAddress::Service {
                namespace: text(s, "namespace"),
                name: text(s, "name"),
                path: text(s, "path"),
                port: s["port"].as_u64().and_then(|p| u16::try_from(p).ok()).unwrap_or(443),
            },
            (None, url) if url.is_empty() => return None,
            (None, url) => EndpointAddress::Url(url),
        };
        Some(Self { place, ca })
    }
}

impl EndpointAddress {
    /// The host and port, for selecting credentials.
    pub fn target(&self) -> String {
        match self {
            Self::Service { namespace, name, port, .. } => format!("{name}.{namespace}.svc:{port}"),
            Self::Url(url) => {
                let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
                let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
                let host = authority.rsplit('@').next().unwrap_or_default();
                let has_port = host.rsplit_once(':').is_some_and(|(_, p)| !p.is_empty() && !p.contains(']'));
                if has_port { host.to_owned() } else { format!("{}:443", host.trim_end_matches(':')) }
            }
        }
    }
}
