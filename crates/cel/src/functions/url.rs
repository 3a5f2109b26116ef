//! Functions of URLs (`k8s.io/apiserver/pkg/cel/library/urls.go`).

use super::{Price, Result, Row, no_overload, row};
use crate::libraries::url::{Url, unescape};
use crate::value::{Opaque, Val};
use crate::work;
use std::collections::BTreeMap;

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
