//! Functions of IP addresses and networks (`k8s.io/apiserver/pkg/cel/library/ip.go`, `cidr.go`).

use super::{Price, Result, Row, no_overload, row};
use crate::libraries::net::{Cidr, parse_cidr, parse_ip};
use crate::value::{Opaque, Val};
use std::net::IpAddr;

pub(super) const ROWS: &[Row] = &[
    row("ip", "string:ip;.cidr:ip", Price::Walk(0, 1.0), |a| match &a[0] {
        Val::Str(s) => Ok(Val::opaque(Opaque::Ip(parse_ip(s.as_str())?))),
        v => of_cidr(v, |c| Val::opaque(Opaque::Ip(c.ip))),
    }),
    row("isIP", "string:bool", Price::Walk(0, 1.0), |a| match a[0].as_str() {
        Some(s) => Ok(Val::Bool(parse_ip(s).is_ok())),
        None => no_overload(),
    }),
    row("ip.isCanonical", "string:bool", Price::Walk(0, 2.0), |a| match a[0].as_str() {
        Some(s) => Ok(Val::Bool(parse_ip(s)?.to_string() == s)),
        None => no_overload(),
    }),
    row("family", ".ip:int", Price::Fixed(1), |a| of_ip(&a[0], |ip| Val::Int(if ip.is_ipv4() { 4 } else { 6 }))),
    row("isUnspecified", ".ip:bool", Price::Fixed(1), |a| of_ip(&a[0], |ip| Val::Bool(ip.is_unspecified()))),
    row("isLoopback", ".ip:bool", Price::Fixed(1), |a| of_ip(&a[0], |ip| Val::Bool(ip.is_loopback()))),
    row("isLinkLocalMulticast", ".ip:bool", Price::Fixed(1), |a| of_ip(&a[0], |ip| Val::Bool(local_multicast(ip)))),
    row("isLinkLocalUnicast", ".ip:bool", Price::Fixed(1), |a| of_ip(&a[0], |ip| Val::Bool(local_unicast(ip)))),
    row("isGlobalUnicast", ".ip:bool", Price::Fixed(1), |a| {
        of_ip(&a[0], |ip| {
            let broadcast = matches!(ip, IpAddr::V4(v) if v.is_broadcast());
            let none = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || local_unicast(ip) || broadcast;
            Val::Bool(!none)
        })
    }),
    row("cidr", "string:cidr", Price::Walk(0, 1.0), |a| match a[0].as_str() {
        Some(s) => Ok(Val::opaque(Opaque::Cidr(parse_cidr(s)?))),
        None => no_overload(),
    }),
    row("isCIDR", "string:bool", Price::Walk(0, 1.0), |a| match a[0].as_str() {
        Some(s) => Ok(Val::Bool(parse_cidr(s).is_ok())),
        None => no_overload(),
    }),
    row("containsIP", ".cidr,ip:bool;.cidr,string:bool", Price::Walk(1, 2.0), |a| {
        let ip = match &a[1] {
            Val::Str(s) => parse_ip(s.as_str())?,
            Val::Opaque(o) => match &**o {
                Opaque::Ip(ip) => *ip,
                _ => return no_overload(),
            },
            _ => return no_overload(),
        };
        of_cidr(&a[0], |c| Val::Bool(c.contains(ip)))
    }),
    row("containsCIDR", ".cidr,cidr:bool;.cidr,string:bool", Price::Walk(1, 3.0), |a| {
        let other = match &a[1] {
            Val::Str(s) => parse_cidr(s.as_str())?,
            Val::Opaque(o) => match &**o {
                Opaque::Cidr(c) => *c,
                _ => return no_overload(),
            },
            _ => return no_overload(),
        };
        of_cidr(&a[0], |c| Val::Bool(c.bits <= other.bits && c.contains(other.ip)))
    }),
    row("masked", ".cidr:cidr", Price::Fixed(1), |a| of_cidr(&a[0], |c| Val::opaque(Opaque::Cidr(c.masked())))),
    row("prefixLength", ".cidr:int", Price::Fixed(1), |a| of_cidr(&a[0], |c| Val::Int(c.bits.into()))),
];

fn of_ip<'a>(v: &Val<'a>, f: impl Fn(&IpAddr) -> Val<'a>) -> Result<'a> {
    match v {
        Val::Opaque(o) => match &**o {
            Opaque::Ip(ip) => Ok(f(ip)),
            _ => no_overload(),
        },
        _ => no_overload(),
    }
}

fn of_cidr<'a>(v: &Val<'a>, f: impl Fn(&Cidr) -> Val<'a>) -> Result<'a> {
    match v {
        Val::Opaque(o) => match &**o {
            Opaque::Cidr(c) => Ok(f(c)),
            _ => no_overload(),
        },
        _ => no_overload(),
    }
}

fn local_multicast(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v) => v.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v) => v.octets()[0] == 0xff && v.octets()[1] & 0x0f == 2,
    }
}

fn local_unicast(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v) => v.is_link_local(),
        IpAddr::V6(v) => v.is_unicast_link_local(),
    }
}
