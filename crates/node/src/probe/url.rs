//! The URL of an HTTP probe, and the URL that a `Location` header refers to from it (RFC 3986, section 5.2, as Go's `net/url`
//! resolves references).

/// An absolute URL without its fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub scheme: String,
    /// Without the brackets of an IPv6 address.
    pub host: String,
    /// As the URL names it.
    pub port: Option<u16>,
    /// `USER:PASSWORD`, never printed.
    pub user: Option<String>,
    /// Path and query; the path starts with a slash.
    pub target: String,
}

impl Url {
    /// The port to connect to. Errors, as Go does, for a scheme other than HTTP and HTTPS.
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

    /// Resolves `reference`, a `Location` in an answer from this URL. The host may be empty. An error is a message of Go's.
    pub fn join(&self, reference: &str) -> Result<Url, String> {
        let reference = reference.split('#').next().unwrap_or_default();
        if reference.chars().any(|c| c.is_ascii_control()) {
            return Err("invalid control character in URL".into());
        }
        let (scheme, rest) = split_scheme(reference);
        let scheme_or_own = scheme.map_or_else(|| self.scheme.clone(), str::to_ascii_lowercase);
        if let Some(rest) = rest.strip_prefix("//") {
            let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
            let (user, host, port) = split_authority(authority)?;
            return Ok(Url { scheme: scheme_or_own, host, port, user, target: normalize(target)? });
        }
        if let Some(scheme) = scheme {
            // It names no host: `mailto:x`.
            let (scheme, host) = (scheme.to_ascii_lowercase(), String::new());
            return Ok(Url { scheme, host, port: None, user: None, target: normalize(rest)? });
        }
        let (own_path, _) = split_query(&self.target);
        let (path, query) = split_query(rest);
        let target = match (path, query) {
            ("", None) => self.target.clone(),
            ("", Some(_)) => format!("{own_path}{}", &rest[path.len()..]),
            (absolute, _) if absolute.starts_with('/') => rest.to_owned(),
            _ => format!("{}{rest}", &own_path[..=own_path.rfind('/').unwrap_or(0)]),
        };
        Ok(Url { target: normalize(&target)?, ..self.clone() })
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

/// Splits `[USER[:PASSWORD]@]HOST[:PORT]` into the user information, the host and the port.
fn split_authority(authority: &str) -> Result<(Option<String>, String, Option<u16>), String> {
    let (user, authority) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    let user = user.map(|user| {
        let (name, password) = user.split_once(':').unwrap_or((user, ""));
        format!("{}:{}", unescape(name), unescape(password))
    });
    let (host, port) = match authority.strip_prefix('[').and_then(|a| a.split_once(']')) {
        Some((host, port)) => (host, port),
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => None,
        Some("") => None,
        Some(number) if number.bytes().all(|b| b.is_ascii_digit()) => {
            Some(number.parse().map_err(|_| format!("invalid port {port:?} after host"))?)
        }
        _ => return Err(format!("invalid port {port:?} after host")),
    };
    Ok((user, host.to_owned(), port))
}

fn split_query(target: &str) -> (&str, Option<&str>) {
    target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)))
}

/// Replaces `%XX` by the byte.
fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let byte = tail.get(..2).and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok());
        match byte.filter(|_| *first == b'%') {
            Some(byte) => {
                out.push(byte);
                rest = &tail[2..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Escapes what a request line cannot hold: white space, text that is not ASCII, and in the path what Go escapes there.
pub(super) fn escape(target: &str) -> String {
    let path_length = split_query(target).0.len();
    let mut out = String::with_capacity(target.len());
    for (i, byte) in target.bytes().enumerate() {
        let is_kept = match byte {
            b'"' | b'<' | b'>' | b'#' => false,
            b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' => i >= path_length,
            _ => byte.is_ascii_graphic(),
        };
        if is_kept {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The first `%` of a path that two hexadecimal digits do not follow, with what follows it.
fn invalid_escape(path: &str) -> Option<&str> {
    let is_valid = |i: usize| path.as_bytes().get(i + 1..i + 3).is_some_and(|d| d.iter().all(u8::is_ascii_hexdigit));
    let (start, _) = path.match_indices('%').find(|(i, _)| !is_valid(*i))?;
    Some(path[start..].split_at_checked(3).map_or(&path[start..], |(escape, _)| escape))
}

/// A path and query with a slash in front, without the segments `.` and `..`, and escaped. Errors for an invalid escape.
fn normalize(target: &str) -> Result<String, String> {
    let (path, query) = split_query(target);
    if let Some(escape) = invalid_escape(path) {
        return Err(format!("invalid URL escape {escape:?}"));
    }
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
    Ok(escape(&format!("/{}{query}", kept.join("/"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_resolved() {
        let base = Url {
            scheme: "http".into(),
            host: "10.0.0.1".into(),
            port: Some(80),
            user: None,
            target: "/a/b?c=1".into(),
        };
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
            ("/café |?a|b c", "http://10.0.0.1:80/caf%C3%A9%20%7C?a|b%20c"),
            ("/%41%c3?%zz", "http://10.0.0.1:80/%41%c3?%zz"),
            // Without a host they lead nowhere that is followed.
            ("http:x", "http:///x"),
            ("mailto:a@b", "mailto:///a@b"),
            ("http:///x", "http:///x"),
        ] {
            assert_eq!(base.join(reference).map(|u| u.to_string()).as_deref(), Ok(expected), "{reference}");
        }
        for reference in ["http://h:port/", "http://h:70000/", "/\r\n", "/%4", "/%4é", "/%"] {
            assert!(base.join(reference).is_err(), "{reference}");
        }
        let user = |reference| base.join(reference).unwrap().user;
        assert_eq!(user("http://us%40er:pass%3aword@10.0.0.1/").as_deref(), Some("us@er:pass:word"));
        assert_eq!(user("//user@10.0.0.1").as_deref(), Some("user:"));
        let joined = base.join("http://user:word@10.0.0.1/").unwrap();
        assert_eq!(joined.join("x").unwrap().user, joined.user, "kept by what is relative");
        assert_eq!(joined.join("http://10.0.0.1/").unwrap().user, None);
    }

    #[test]
    fn ports_are_those_of_the_scheme() {
        let port = |scheme: &str| {
            Url { scheme: scheme.into(), host: "h".into(), port: None, user: None, target: "/".into() }.dialled_port()
        };
        assert_eq!((port("http"), port("https")), (Ok(80), Ok(443)));
        assert_eq!(port("ftp"), Err("unsupported protocol scheme \"ftp\"".into()));
    }
}
