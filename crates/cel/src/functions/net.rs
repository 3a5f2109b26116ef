//! IP addresses and networks (`k8s.io/apiserver/pkg/cel/library/ip.go`, `cidr.go`). Addresses with zones, and IPv4 addresses
//! mapped to IPv6, are invalid.

use super::{Fault, Price, Result, Row, no_overload, row};
use crate::value::{Opaque, Val};
use std::fmt;
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    ip: IpAddr,
    bits: u8,
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.bits)
    }
}

pub(super) const ROWS: &[Row] = &[
    row("ip", "string:ip;.cidr:ip", Price::Walk(0, 1.0), |a| match &a[0] {
        Val::Str(s) => parse_ip(s.as_str()).map(|ip| Val::opaque(Opaque::Ip(ip))),
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
        Some(s) => parse_cidr(s).map(|c| Val::opaque(Opaque::Cidr(c))),
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
    row("masked", ".cidr:cidr", Price::Fixed(1), |a| {
        of_cidr(&a[0], |c| Val::opaque(Opaque::Cidr(Cidr { ip: c.network(c.ip), bits: c.bits })))
    }),
    row("prefixLength", ".cidr:int", Price::Fixed(1), |a| of_cidr(&a[0], |c| Val::Int(c.bits.into()))),
];

impl Cidr {
    fn network(&self, ip: IpAddr) -> IpAddr {
        match ip {
            IpAddr::V4(v) => {
                IpAddr::V4((v.to_bits() & u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0)).into())
            }
            IpAddr::V6(v) => {
                IpAddr::V6((v.to_bits() & u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0)).into())
            }
        }
    }

    fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.ip.is_ipv4() && self.network(ip) == self.network(self.ip)
    }
}

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

fn parse_ip(s: &str) -> std::result::Result<IpAddr, Fault> {
    if s.contains('%') {
        return Err(format!("IP address {s:?} with zone value is not allowed").into());
    }
    let bad =
        |_| format!("IP Address {s:?} parse error during conversion from string: ParseAddr({s:?}): unable to parse IP");
    let ip: IpAddr = s.parse().map_err(bad)?;
    mapped(s, ip)
}

fn mapped(s: &str, ip: IpAddr) -> std::result::Result<IpAddr, Fault> {
    match ip {
        IpAddr::V6(v) if v.to_ipv4_mapped().is_some() => {
            Err(format!("IPv4-mapped IPv6 address {s:?} is not allowed").into())
        }
        ip => Ok(ip),
    }
}

fn parse_cidr(s: &str) -> std::result::Result<Cidr, Fault> {
    let bad = || -> Fault {
        format!("network address parse error during conversion from string: netip.ParsePrefix({s:?}): no '/'").into()
    };
    let (ip, bits) = s.split_once('/').ok_or_else(bad)?;
    let ip: IpAddr = ip.parse().map_err(|_| bad())?;
    let ip = mapped(s, ip)?;
    let plain = bits.bytes().all(|b| b.is_ascii_digit()) && (bits == "0" || !bits.starts_with('0'));
    let bits: u8 = bits.parse().ok().filter(|_| plain).ok_or_else(bad)?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    if bits > most {
        return Err(bad());
    }
    Ok(Cidr { ip, bits })
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
