//! URLs, as Go's `url.ParseRequestURI` takes them (`k8s.io/apiserver/pkg/cel/library/urls.go`).

use super::{Price, Result, Row, no_overload, row};
use crate::value::{Opaque, Val};
use crate::work;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    host: String,
    path: String,
    query: String,
}

pub(super) const ROWS: &[Row] = &[
    row("url", "string:url", Price::Walk(0, 1.0), |a| match a[0].as_str() {
        Some(s) => match Url::parse(s) {
            Some(u) => Ok(Val::opaque(Opaque::Url(u))),
            None => {
                Err(format!("URL parse error during conversion from string: parse {s:?}: invalid URI for request")
                    .into())
            }
        },
        None => no_overload(),
    }),
    row("isURL", "string:bool", Price::Fixed(1), |a| match a[0].as_str() {
        Some(s) => Ok(Val::Bool(Url::parse(s).is_some())),
        None => no_overload(),
    }),
    row("getScheme", ".url:string", Price::Fixed(1), |a| part(a, |u| Val::string(&*u.scheme))),
    row("getHost", ".url:string", Price::Fixed(1), |a| part(a, |u| Val::string(&*u.host))),
    row("getHostname", ".url:string", Price::Fixed(1), |a| part(a, |u| Val::string(u.host_and_port().0))),
    row("getPort", ".url:string", Price::Fixed(1), |a| part(a, |u| Val::string(u.host_and_port().1))),
    row("getEscapedPath", ".url:string", Price::Fixed(1), |a| part(a, |u| Val::string(&*u.path))),
    row("getQuery", ".url:map(string,list(string))", Price::Fixed(1), |a| part(a, query)),
];

fn part<'a>(args: &[Val<'a>], f: fn(&Url) -> Val<'static>) -> Result<'a> {
    match &args[0] {
        Val::Opaque(o) => match &**o {
            Opaque::Url(u) => Ok(f(u)),
            _ => no_overload(),
        },
        _ => no_overload(),
    }
}

fn query(u: &Url) -> Val<'static> {
    work::count(u.query.len());
    let mut all: BTreeMap<String, Vec<Val<'static>>> = BTreeMap::new();
    for pair in u.query.split('&').filter(|p| !p.is_empty() && !p.contains(';')) {
        let (k, v) = pair.split_once('=').unwrap_or((pair, ""));
        let (Some(k), Some(v)) = (unescape(k), unescape(v)) else { continue };
        all.entry(k).or_default().push(Val::string(v));
    }
    Val::record(all.into_iter().map(|(k, v)| (k, Val::list(v))))
}

fn unescape(s: &str) -> Option<String> {
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

    fn host_and_port(&self) -> (&str, &str) {
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
