//! Proxies from the environment, as Go's `net/http` reads it: `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`, in either case.

use crate::error::Error;
use crate::https::Proxy;
use std::net::IpAddr;

/// Returns the proxy that the environment of this process configures for a server.
pub fn from_environment(server: &str) -> Result<Option<Proxy>, Error> {
    find(server, |name| std::env::var(name).ok())
}

/// Returns the proxy that the environment configures for a server.
pub(super) fn find(server: &str, environment: impl Fn(&str) -> Option<String>) -> Result<Option<Proxy>, Error> {
    let value = |name: &str| {
        let found = environment(name).filter(|v| !v.is_empty());
        found.or_else(|| environment(&name.to_lowercase()).filter(|v| !v.is_empty()))
    };
    let Ok(uri) = server.parse::<http::Uri>() else { return Ok(None) };
    let secure = uri.scheme_str() != Some("http");
    let Some(url) = value(if secure { "HTTPS_PROXY" } else { "HTTP_PROXY" }) else { return Ok(None) };
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_lowercase();
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    if direct(&host, port, &value("NO_PROXY").unwrap_or_default()) {
        return Ok(None);
    }
    let url = if url.contains("://") { url } else { format!("http://{url}") };
    Proxy::parse(&url).map(Some)
}

/// Whether a host is reached without a proxy; always true for this machine.
fn direct(host: &str, port: u16, exceptions: &str) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|a| a.is_loopback()) {
        return true;
    }
    exceptions.split(',').map(|e| e.trim().to_lowercase()).filter(|e| !e.is_empty()).any(|e| {
        if e == "*" {
            return true;
        }
        if let Some((net, bits)) = e.split_once('/') {
            let (Ok(net), Ok(bits)) = (net.parse::<IpAddr>(), bits.parse::<u32>()) else { return false };
            return address.is_some_and(|a| within(a, net, bits));
        }
        let (name, only) = match e.rsplit_once(':') {
            Some((n, p)) if !n.contains(':') => (n, p.parse::<u16>().ok()),
            _ => (e.as_str(), None),
        };
        if only.is_some_and(|p| p != port) {
            return false;
        }
        if let Ok(a) = name.parse::<IpAddr>() {
            return address == Some(a);
        }
        // A name matches itself and its subdomains; with a leading dot only the subdomains.
        let name = name.strip_prefix('*').unwrap_or(name);
        match name.strip_prefix('.') {
            Some(below) => host.ends_with(name) && host != below,
            None => host == name || host.strip_suffix(name).is_some_and(|h| h.ends_with('.')),
        }
    })
}

fn within(a: IpAddr, net: IpAddr, bits: u32) -> bool {
    match (a, net) {
        (IpAddr::V4(a), IpAddr::V4(n)) if bits <= 32 => {
            (a.to_bits() ^ n.to_bits()).checked_shr(32 - bits).unwrap_or(0) == 0
        }
        (IpAddr::V6(a), IpAddr::V6(n)) if bits <= 128 => {
            (a.to_bits() ^ n.to_bits()).checked_shr(128 - bits).unwrap_or(0) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clauses: K11.proxy-environment
    #[test]
    fn the_environment_names_proxies_and_exceptions() {
        let proxied = |server: &str, none: &str| {
            let found = find(server, |n| match n {
                "HTTPS_PROXY" => Some("http://proxy:3128".into()),
                "http_proxy" => Some("plain:80".into()),
                "NO_PROXY" => Some(none.into()),
                _ => None,
            });
            found.unwrap().is_some()
        };
        for (server, none, expected) in [
            ("https://api.example.com:6443", "", true),
            ("http://api.example.com", "", true),
            ("https://localhost:6443", "", false),
            ("https://127.0.0.1:6443", "", false),
            ("https://[::1]:6443", "", false),
            ("https://api.example.com", "*", false),
            ("https://api.example.com", "example.com", false),
            ("https://example.com", "example.com", false),
            ("https://example.com", ".example.com", true),
            ("https://api.example.com", ".example.com", false),
            ("https://notexample.com", "example.com", true),
            ("https://api.example.com:6443", "a.b, example.com:6443", false),
            ("https://api.example.com:6443", "example.com:443", true),
            ("https://10.1.2.3", "10.0.0.0/8", false),
            ("https://11.1.2.3", "10.0.0.0/8", true),
            ("https://11.1.2.3", "0.0.0.0/0", false),
            ("https://10.1.2.3", "10.1.2.3", false),
            ("https://[fd00::1]", "fd00::/8", false),
        ] {
            assert_eq!(proxied(server, none), expected, "{server} with NO_PROXY={none}");
        }
        assert!(find("https://a", |n| (n == "HTTPS_PROXY").then(|| "ftp://x".into())).is_err());
    }
}
