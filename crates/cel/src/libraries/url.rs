//! URLs, parsed as Go's `url.ParseRequestURI` does.

use crate::work;

/// A URL, or an absolute path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    pub(crate) scheme: String,
    /// With the port.
    pub(crate) host: String,
    /// Escaped, as it was parsed.
    pub(crate) path: String,
    /// Escaped, without `?`.
    pub(crate) query: String,
}

impl Url {
    /// Parses an absolute path, or a scheme with something behind it.
    pub fn parse(s: &str) -> Option<Self> {
        work::count(s.len());
        if s.is_empty() || s.chars().any(|c| c.is_ascii_control() || c == ' ') {
            return None;
        }
        let (front, query) = s.split_once('?').unwrap_or((s, ""));
        let (scheme, rest) = match front.split_once(':') {
            Some((scheme, rest)) if is_scheme(scheme) => (scheme.to_ascii_lowercase(), rest),
            Some((scheme, _)) if !scheme.contains('/') => return None,
            _ => (String::new(), front),
        };
        let (host, path) = match rest.strip_prefix("//") {
            Some(r) => r.split_at(r.find('/').unwrap_or(r.len())),
            None if rest.starts_with('/') => ("", rest),
            // An opaque URL (in Go's terms) has neither host nor path.
            None if !scheme.is_empty() => ("", ""),
            // Invalid without a host and a slash.
            None => return None,
        };
        let host = host.rsplit_once('@').map_or(host, |(_, h)| h);
        let port = host_and_port(host).1;
        let well =
            port.bytes().all(|b| b.is_ascii_digit()) && !host.contains(['<', '>', '"', '^', '`', '{', '}', '|', '\\']);
        let path_well = unescape(path).is_some();
        (well && path_well).then(|| Self { scheme, host: host.into(), path: path.into(), query: query.into() })
    }

    /// The host without brackets, and the port; empty if there is none.
    pub(crate) fn host_and_port(&self) -> (&str, &str) {
        host_and_port(&self.host)
    }
}

fn is_scheme(s: &str) -> bool {
    s.starts_with(|c: char| c.is_ascii_alphabetic())
        && s.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

fn host_and_port(host: &str) -> (&str, &str) {
    if let Some(inner) = host.strip_prefix('[') {
        let (ip, rest) = inner.split_once(']').unwrap_or((inner, ""));
        return (ip, rest.strip_prefix(':').unwrap_or(rest));
    }
    host.split_once(':').unwrap_or((host, ""))
}

/// Decodes `%` escapes and `+`. None if an escape is invalid, or the result is not UTF-8.
pub(crate) fn unescape(s: &str) -> Option<String> {
    let mut out = Vec::with_capacity(s.len());
    let mut bytes = s.bytes();
    while let Some(b) = bytes.next() {
        match b {
            b'+' => out.push(b' '),
            b'%' => {
                let (h, l) = (char::from(bytes.next()?).to_digit(16)?, char::from(bytes.next()?).to_digit(16)?);
                out.push(u8::try_from(h * 16 + l).ok()?);
            }
            b => out.push(b),
        }
    }
    String::from_utf8(out).ok()
}
