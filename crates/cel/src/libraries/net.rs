//! IP networks, and parsing of addresses. Addresses with zones, and IPv4 addresses mapped to IPv6, are invalid.

use std::fmt;
use std::net::IpAddr;

/// An IP network, or an address with a prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    pub(crate) ip: IpAddr,
    pub(crate) bits: u8,
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.bits)
    }
}

impl Cidr {
    /// The network of an address that has this prefix length.
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

    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.ip.is_ipv4() && self.network(ip) == self.network(self.ip)
    }

    /// The network itself, without bits beyond the prefix length.
    pub(crate) fn masked(&self) -> Self {
        Self { ip: self.network(self.ip), bits: self.bits }
    }
}

/// Parses an address. Errors are those of the function `ip`.
pub(crate) fn parse_ip(s: &str) -> Result<IpAddr, String> {
    if s.contains('%') {
        return Err(format!("IP address {s:?} with zone value is not allowed"));
    }
    let bad =
        |_| format!("IP Address {s:?} parse error during conversion from string: ParseAddr({s:?}): unable to parse IP");
    let ip: IpAddr = s.parse().map_err(bad)?;
    reject_mapped(s, ip)
}

/// Rejects IPv4 addresses mapped to IPv6.
fn reject_mapped(s: &str, ip: IpAddr) -> Result<IpAddr, String> {
    match ip {
        IpAddr::V6(v) if v.to_ipv4_mapped().is_some() => Err(format!("IPv4-mapped IPv6 address {s:?} is not allowed")),
        ip => Ok(ip),
    }
}

/// Parses a network. Errors are those of the function `cidr`.
pub(crate) fn parse_cidr(s: &str) -> Result<Cidr, String> {
    let bad = || format!("network address parse error during conversion from string: netip.ParsePrefix({s:?}): no '/'");
    let (ip, bits) = s.split_once('/').ok_or_else(bad)?;
    let ip: IpAddr = ip.parse().map_err(|_| bad())?;
    let ip = reject_mapped(s, ip)?;
    let plain = bits.bytes().all(|b| b.is_ascii_digit()) && (bits == "0" || !bits.starts_with('0'));
    let bits: u8 = bits.parse().ok().filter(|_| plain).ok_or_else(bad)?;
    let max = if ip.is_ipv4() { 32 } else { 128 };
    if bits > max {
        return Err(bad());
    }
    Ok(Cidr { ip, bits })
}
