//! The URL of an HTTP probe, and the URL that a `Location` header refers to from it (RFC 3986, section 5.2, as Go's `net/url`
//! resolves references). Left out: user information, which is dropped.

/// An absolute URL without its fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub scheme: String,
    /// Without the brackets of an IPv6 address.
    pub host: String,
    /// As the URL names it.
    pub port: Option<u16>,
    /// Path and query; the path starts with a slash.
    pub target: String,
}

impl Url {
    /// The port to connect to, or an error in Go's words where no scheme of HTTP has one.
    pub fn dialled_port(&self) -> Result<u16, String> {
        match (self.port, self.scheme.as_str()) {
            (Some(port), "http" | "https") => Ok(port),
            (None, "http") => Ok(80),
            (None, "https") => Ok(443),
            (_, scheme) => Err(format!("unsupported protocol scheme {scheme:?}")),
        }
    }

    /// The value of a `Host` header.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        self.port.map_or(host.clone(), |port| format!("{host}:{port}"))
    }

    /// The URL that `reference` stands for in an answer from this one. Errors are a reason.
    pub fn join(&self, reference: &str) -> Result<Url, String> {
        let reference = reference.split('#').next().unwrap_or_default();
        if reference.chars().any(|c| c.is_ascii_control()) {
            return Err("invalid control character in URL".into());
        }
        let (scheme, rest) = split_scheme(reference);
        let scheme_or_own = scheme.map_or_else(|| self.scheme.clone(), str::to_ascii_lowercase);
        if let Some(rest) = rest.strip_prefix("//") {
            let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
            let (host, port) = split_authority(authority)?;
            return Ok(Url { scheme: scheme_or_own, host, port, target: normalize(target) });
        }
        if scheme.is_some() {
            return Err("no Host in request URL".into());
        }
        let (own_path, _) = split_query(&self.target);
        let (path, query) = split_query(rest);
        let target = match (path, query) {
            ("", None) => self.target.clone(),
            ("", Some(_)) => format!("{own_path}{}", &rest[path.len()..]),
            (absolute, _) if absolute.starts_with('/') => rest.to_owned(),
            _ => format!("{}{rest}", &own_path[..=own_path.rfind('/').unwrap_or(0)]),
        };
        Ok(Url { target: normalize(&target), ..self.clone() })
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority(), self.target)
    }
}

/// Whether a reference names its scheme.
pub(super) fn is_absolute(reference: &str) -> bool {
    split_scheme(reference).0.is_some()
}

/// The scheme of an absolute reference, and what follows it.
fn split_scheme(reference: &str) -> (Option<&str>, &str) {
    let valid = |s: &str| {
        s.starts_with(|c: char| c.is_ascii_alphabetic())
            && s.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
    };
    match reference.split_once(':') {
        Some((scheme, rest)) if valid(scheme) => (Some(scheme), rest),
        _ => (None, reference),
    }
}

fn split_authority(authority: &str) -> Result<(String, Option<u16>), String> {
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = match authority.strip_prefix('[').and_then(|a| a.split_once(']')) {
        Some((host, port)) => (host, port),
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    if host.is_empty() {
        return Err("no Host in request URL".into());
    }
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => None,
        Some("") => None,
        Some(number) if number.bytes().all(|b| b.is_ascii_digit()) => {
            Some(number.parse().map_err(|_| format!("invalid port {port:?} after host"))?)
        }
        _ => return Err(format!("invalid port {port:?} after host")),
    };
    Ok((host.to_owned(), port))
}

fn split_query(target: &str) -> (&str, Option<&str>) {
    target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)))
}

/// A path and query with a slash in front and without the segments `.` and `..`.
fn normalize(target: &str) -> String {
    let (path, query) = split_query(target);
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    for (i, segment) in segments.iter().enumerate() {
        let last = i + 1 == segments.len();
        match *segment {
            "." | ".." => {
                if *segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            other => kept.push(other),
        }
    }
    let query = query.map_or_else(String::new, |q| format!("?{q}"));
    format!("/{}{query}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_resolved() {
        let base = Url { scheme: "http".into(), host: "10.0.0.1".into(), port: Some(80), target: "/a/b?c=1".into() };
        for (reference, expected) in [
            ("/x?y=/../z", "http://10.0.0.1:80/x?y=/../z"),
            ("x", "http://10.0.0.1:80/a/x"),
            ("../x/./y/..", "http://10.0.0.1:80/x/"),
            ("../../../x", "http://10.0.0.1:80/x"),
            ("?d", "http://10.0.0.1:80/a/b?d"),
            ("", "http://10.0.0.1:80/a/b?c=1"),
            ("//other/x", "http://other/x"),
            ("HTTPS://user:word@10.0.0.1?q#f", "https://10.0.0.1/?q"),
            ("http://[fd00::1]:81", "http://[fd00::1]:81/"),
            ("./a:b", "http://10.0.0.1:80/a/a:b"),
        ] {
            assert_eq!(base.join(reference).map(|u| u.to_string()).as_deref(), Ok(expected), "{reference}");
        }
        for reference in ["http:x", "http:///x", "http://h:port/", "http://h:70000/", "/\r\n"] {
            assert!(base.join(reference).is_err(), "{reference}");
        }
    }

    #[test]
    fn ports_are_those_of_the_scheme() {
        let port = |scheme: &str| {
            Url { scheme: scheme.into(), host: "h".into(), port: None, target: "/".into() }.dialled_port()
        };
        assert_eq!((port("http"), port("https")), (Ok(80), Ok(443)));
        assert_eq!(port("ftp"), Err("unsupported protocol scheme \"ftp\"".into()));
    }
}
