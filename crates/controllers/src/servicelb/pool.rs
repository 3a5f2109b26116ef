//! The addresses for load balancers.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses for load balancers, or one of each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    first: Range,
    second: Option<Range>,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    address: IpAddr,
    length: u8,
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => u32::from(a).into(),
        IpAddr::V6(a) => a.into(),
    }
}

impl Range {
    /// The first and the last address that a load balancer may have. In a range of four addresses or more, the first is none's (of IPv6, it
    /// is that of all routers), and of IPv4, neither is the last.
    fn bounds(&self) -> (u128, u128) {
        let bits: u8 = if self.address.is_ipv6() { 128 } else { 32 };
        let free = u32::from(bits - self.length);
        let first = number(self.address);
        let last = first | u128::MAX.checked_shr(128 - free).unwrap_or(0);
        match (free, self.address) {
            (..2, _) => (first, last),
            (_, IpAddr::V4(_)) => (first + 1, last - 1),
            (_, IpAddr::V6(_)) => (first + 1, last),
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        let (first, last) = self.bounds();
        address.is_ipv6() == self.address.is_ipv6() && (first..=last).contains(&number(address))
    }

    /// The lowest address that is not in use.
    pub fn free(&self, used: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        let (first, last) = self.bounds();
        let address = |n: u128| match self.address {
            // Numbers of this family have 32 bits.
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from(n as u32)),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from(n)),
        };
        (first..=last).map(address).find(|address| !used.contains(address))
    }
}

/// The family of an address, as services name it.
pub fn family(address: IpAddr) -> &'static str {
    if address.is_ipv6() { "IPv6" } else { "IPv4" }
}

impl Pool {
    fn ranges(&self) -> impl Iterator<Item = Range> + use<> {
        std::iter::once(self.first).chain(self.second)
    }

    /// The range of a family (`IPv4`, `IPv6`), if there is one.
    pub fn of(&self, name: &str) -> Option<Range> {
        self.ranges().find(|range| family(range.address) == name)
    }

    /// The first family.
    pub fn first_family(&self) -> &'static str {
        family(self.first.address)
    }

    /// Whether a load balancer may have the address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.ranges().any(|range| range.contains(address))
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("{text:?} is no range of addresses; write it as 10.97.0.0/24");
        let (address, length) = text.split_once('/').ok_or_else(error)?;
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let length: u8 = length.parse().map_err(|_| error())?;
        let bits: u8 = if address.is_ipv6() { 128 } else { 32 };
        let free = bits.checked_sub(length).ok_or_else(error)?;
        let host = u128::MAX.checked_shr(128 - u32::from(free)).unwrap_or(0);
        if number(address) & host == 0 { Ok(Self { address, length }) } else { Err(error()) }
    }
}

impl FromStr for Pool {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ranges = text.split(',').map(|range| range.trim().parse()).collect::<Result<Vec<Range>, String>>()?;
        match ranges.as_slice() {
            [first] => Ok(Self { first: *first, second: None }),
            [first, second] if first.address.is_ipv6() != second.address.is_ipv6() => {
                Ok(Self { first: *first, second: Some(*second) })
            }
            _ => Err(format!("{text:?}: give one range, or one of IPv4 and one of IPv6 addresses")),
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        self.second.map_or(Ok(()), |second| write!(f, ",{second}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_lowest_free_address_is_next() {
        for (range, used, expect) in [
            ("10.97.0.0/24", &[][..], Some("10.97.0.1")),
            ("10.97.0.0/24", &["10.97.0.1", "10.97.0.2", "10.97.0.4"], Some("10.97.0.3")),
            ("10.97.0.0/30", &["10.97.0.1"], Some("10.97.0.2")),
            ("10.97.0.0/30", &["10.97.0.1", "10.97.0.2"], None),
            ("10.97.0.0/31", &["10.97.0.0"], Some("10.97.0.1")),
            ("10.97.0.7/32", &[], Some("10.97.0.7")),
            ("10.97.0.7/32", &["10.97.0.7"], None),
            ("0.0.0.0/0", &[], Some("0.0.0.1")),
            ("fd00::/126", &["fd00::1", "fd00::2"], Some("fd00::3")),
            ("fd00::/126", &["fd00::1", "fd00::2", "fd00::3"], None),
            ("fd00::/127", &[], Some("fd00::")),
            ("fd00::8/128", &[], Some("fd00::8")),
            ("::/0", &[], Some("::1")),
        ] {
            let pool: Pool = range.parse().unwrap();
            let used = used.iter().map(|a| ip(a)).collect();
            let found = pool.first.free(&used);
            assert_eq!(found, expect.map(ip), "{range}");
            assert!(found.is_none_or(|a| pool.contains(a)));
            assert_eq!(pool.to_string(), range);
        }
        let pool: Pool = "10.97.0.0/24".parse().unwrap();
        assert!(!pool.contains(ip("10.97.0.0")) && !pool.contains(ip("10.97.0.255")) && !pool.contains(ip("fd00::1")));
        assert_eq!(pool.of("IPv6"), None);
    }

    #[test]
    fn a_pool_has_a_range_of_each_family() {
        let pool: Pool = "fd00::/64, 10.97.0.0/24".parse().unwrap();
        assert_eq!((pool.first_family(), pool.to_string().as_str()), ("IPv6", "fd00::/64,10.97.0.0/24"));
        assert!(pool.contains(ip("fd00::1")) && !pool.contains(ip("fd00::")) && pool.contains(ip("10.97.0.1")));
        let used: BTreeSet<IpAddr> = ["fd00::1", "10.97.0.1"].map(ip).into();
        assert_eq!(
            ["IPv4", "IPv6"].map(|f| pool.of(f).unwrap().free(&used)),
            [Some(ip("10.97.0.2")), Some(ip("fd00::2"))]
        );
        for bad in [
            "",
            "10.97.0.0",
            "10.97.0.1/24",
            "10.97.0.0/33",
            "fd00::/129",
            "fd00::1/64",
            "10.0.0.0/8,11.0.0.0/8",
            "fd00::/64,",
        ] {
            assert!(bad.parse::<Pool>().is_err(), "{bad}");
        }
    }
}
