//! Address ranges of services, of either family.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Minimum prefix length of IPv6 ranges (upstream `NewIPAllocator`).
const MIN_IPV6_PREFIX: u32 = 64;

/// An address range. Invariant: its address is the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    base: IpAddr,
    bits: u32,
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(a) => u32::from(a).into(),
        IpAddr::V6(a) => a.into(),
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let fail = || format!("{s:?} is no address range such as 10.96.0.0/12 or fd00:10:96::/112");
        let (ip, bits) = s.split_once('/').ok_or_else(fail)?;
        let ip: IpAddr = ip.parse().map_err(|_| fail())?;
        let allowed = if ip.is_ipv6() { MIN_IPV6_PREFIX..=126 } else { 1..=30 };
        let bits: u32 = bits.parse().ok().filter(|b| allowed.contains(b)).ok_or_else(fail)?;
        let base = match ip {
            IpAddr::V4(a) => Ipv4Addr::from(u32::from(a) & (u32::MAX << (32 - bits))).into(),
            IpAddr::V6(a) => Ipv6Addr::from(u128::from(a) & (u128::MAX << (128 - bits))).into(),
        };
        Ok(Self { base, bits })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

impl Cidr {
    pub fn is_ipv6(&self) -> bool {
        self.base.is_ipv6()
    }

    /// Whether the range has an address for services: neither the first, nor in IPv4 the last.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let last = if self.is_ipv6() { self.size() } else { self.size() - 1 };
        let n = number(ip).checked_sub(number(self.base));
        self.is_ipv6() == ip.is_ipv6() && n.is_some_and(|n| (1..u128::from(last)).contains(&n))
    }

    /// Returns the number of addresses, saturating.
    pub fn size(&self) -> u64 {
        let bits = if self.is_ipv6() { 128 - self.bits } else { 32 - self.bits };
        1_u64.checked_shl(bits).unwrap_or(u64::MAX)
    }

    pub fn nth(&self, n: u64) -> IpAddr {
        match self.base {
            IpAddr::V4(a) => Ipv4Addr::from(u32::from(a).wrapping_add(n as u32)).into(),
            IpAddr::V6(a) => Ipv6Addr::from(u128::from(a).wrapping_add(n.into())).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contains_usable_addresses() {
        for (range, ip, expected) in [
            ("10.0.0.7/24", "10.0.0.1", true),
            ("10.0.0.0/24", "10.0.0.0", false),
            ("10.0.0.0/24", "10.0.0.255", false),
            ("10.0.0.0/24", "fd00::1", false),
            ("fd00::/112", "fd00::ffff", true),
            ("fd00::/112", "fd00::", false),
            ("fd00::/112", "fd00::1:0", false),
            ("fd00::/64", "fd00::ffff:ffff:ffff:fffe", true),
        ] {
            assert_eq!(range.parse::<Cidr>().unwrap().contains(ip.parse().unwrap()), expected, "{range} {ip}");
        }
        for (text, shown, size) in [("10.0.0.7/24", "10.0.0.0/24", 256), ("fd00::7/112", "fd00::/112", 65536)] {
            let range: Cidr = text.parse().unwrap();
            assert_eq!((range.to_string().as_str(), range.size()), (shown, size));
        }
        for bad in ["10.0.0.0", "10.0.0.0/31", "fd00::/63", "fd00::/127", "x/1", "10.0.0.0/0"] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }
}
