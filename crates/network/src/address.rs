//! Ranges of addresses, of IPv4 and IPv6.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// The number of bits of an address.
    pub fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }

    /// The name of the tables and of the header in `nft` scripts.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    /// The type of an address in `nft` scripts.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Family::V4 => "ipv4_addr",
            Family::V6 => "ipv6_addr",
        }
    }

    /// The loopback addresses.
    pub(crate) fn loopback(self) -> &'static str {
        match self {
            Family::V4 => "127.0.0.0/8",
            Family::V6 => "::1",
        }
    }

    /// The messages by which a packet is refused: port, host, by policy.
    pub(crate) fn refusals(self) -> [&'static str; 3] {
        match self {
            Family::V4 => ["icmp type port-unreachable", "icmp type host-unreachable", "icmp type admin-prohibited"],
            Family::V6 => {
                ["icmpv6 type port-unreachable", "icmpv6 type addr-unreachable", "icmpv6 type admin-prohibited"]
            }
        }
    }

    fn address(self, number: u128) -> IpAddr {
        match self {
            // Numbers of this family have 32 bits.
            Family::V4 => IpAddr::V4(Ipv4Addr::from(number as u32)),
            Family::V6 => IpAddr::V6(Ipv6Addr::from(number)),
        }
    }

    /// The bits of a prefix.
    fn mask(self, length: u8) -> u128 {
        let all = u128::MAX >> (128 - self.bits());
        let free = u32::from(self.bits() - length.min(self.bits()));
        all & u128::MAX.checked_shl(free).unwrap_or(0)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => u32::from(a).into(),
        IpAddr::V6(a) => a.into(),
    }
}

/// A range of addresses without host bits, written `10.0.0.0/8` or `fd00::/48`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    address: IpAddr,
    length: u8,
}

impl Cidr {
    /// The first address of the range.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The length of the prefix in bits.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// The family of its addresses.
    pub fn family(&self) -> Family {
        Family::of(self.address)
    }

    /// Whether the address is in the range.
    pub fn contains(&self, address: impl Into<IpAddr>) -> bool {
        let address = address.into();
        Family::of(address) == self.family()
            && self.family().mask(self.length) & number(address) == number(self.address)
    }

    /// Whether all addresses of the other range are in this one.
    pub fn contains_range(&self, other: &Cidr) -> bool {
        self.length <= other.length && self.contains(other.address)
    }

    /// Whether the ranges have a common address.
    pub fn overlaps(&self, other: &Cidr) -> bool {
        self.contains_range(other) || other.contains_range(self)
    }

    /// The range of this prefix length around an address.
    pub fn around(address: impl Into<IpAddr>, length: u8) -> Cidr {
        let address = address.into();
        let family = Family::of(address);
        let length = length.min(family.bits());
        Cidr { address: family.address(number(address) & family.mask(length)), length }
    }

    /// The range of this address alone.
    pub fn single(address: IpAddr) -> Cidr {
        Cidr { address, length: Family::of(address).bits() }
    }

    /// The `index`th address; `None` beyond the end.
    pub fn nth(&self, index: u32) -> Option<IpAddr> {
        (u64::from(index) < self.size()).then(|| self.family().address(number(self.address) + u128::from(index)))
    }

    /// The index of an address in the range; `None` if it is elsewhere, or beyond the first 2³².
    pub fn index(&self, address: IpAddr) -> Option<u32> {
        if !self.contains(address) {
            return None;
        }
        u32::try_from(number(address) - number(self.address)).ok()
    }

    /// The ranges of this prefix length in the range, in their order.
    pub fn parts(&self, length: u8) -> impl Iterator<Item = Cidr> + use<> {
        let (family, base) = (self.family(), number(self.address));
        let count = match length.checked_sub(self.length) {
            Some(bits) if length <= family.bits() => 1u64.checked_shl(bits.into()).unwrap_or(u64::MAX),
            _ => 0,
        };
        let free = u32::from(family.bits().saturating_sub(length));
        (0..count)
            .map(move |n| Cidr { address: family.address(base + u128::from(n).checked_shl(free).unwrap_or(0)), length })
    }

    /// The number of addresses; of very large ranges, the largest number.
    pub fn size(&self) -> u64 {
        1u64.checked_shl(u32::from(self.family().bits() - self.length)).unwrap_or(u64::MAX)
    }
}

/// The ranges that no other one contains: those in a set of nftables must not overlap.
pub(crate) fn outermost(ranges: &[Cidr]) -> Vec<Cidr> {
    let mut sorted = ranges.to_vec();
    sorted.sort_by_key(|range| (range.length(), *range));
    let mut out: Vec<Cidr> = Vec::new();
    for range in sorted {
        if !out.iter().any(|other| other.contains_range(&range)) {
            out.push(range);
        }
    }
    out
}

impl FromStr for Cidr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Cidr, Error> {
        let error = || Error::Cidr(text.to_owned());
        let (address, length) = text.split_once('/').ok_or_else(error)?;
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let length: u8 = length.parse().map_err(|_| error())?;
        let family = Family::of(address);
        let is_mapped = matches!(address, IpAddr::V6(a) if a.to_ipv4_mapped().is_some());
        if is_mapped || length > family.bits() || number(address) & !family.mask(length) != 0 {
            return Err(error());
        }
        Ok(Cidr { address, length })
    }
}

impl TryFrom<String> for Cidr {
    type Error = Error;

    fn try_from(text: String) -> Result<Cidr, Error> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> String {
        cidr.to_string()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One range, or one of each family, written `10.244.0.0/16,fd00:10:244::/56`. The first family is the default of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ranges {
    first: Cidr,
    second: Option<Cidr>,
}

impl Ranges {
    /// Errors if there is no range, more than two, or two of one family.
    pub fn new(ranges: &[Cidr]) -> Result<Ranges, Error> {
        match ranges {
            [first] => Ok(Ranges { first: *first, second: None }),
            [first, second] if first.family() == second.family() => Err(Error::Ranges(format!(
                "{first} and {second} are of one family: give one range of IPv4 addresses and one of IPv6 addresses"
            ))),
            [first, second] => Ok(Ranges { first: *first, second: Some(*second) }),
            other => {
                let message = "give one range, or one of IPv4 and one of IPv6 addresses separated by a comma";
                Err(Error::Ranges(format!("there are {} ranges: {message}", other.len())))
            }
        }
    }

    /// The first range.
    pub fn first(&self) -> Cidr {
        self.first
    }

    /// The ranges in their order.
    pub fn iter(&self) -> impl Iterator<Item = Cidr> + use<> {
        std::iter::once(self.first).chain(self.second)
    }

    /// The range of a family, if there is one.
    pub fn of(&self, family: Family) -> Option<Cidr> {
        self.iter().find(|range| range.family() == family)
    }

    /// The families in their order.
    pub fn families(&self) -> impl Iterator<Item = Family> + use<> {
        self.iter().map(|range| range.family())
    }

    /// The family of the packets in which nodes with these ranges of pods tunnel packets to each other: IPv4 if pods have it.
    pub fn of_tunnels(&self) -> Family {
        self.of(Family::V4).map_or(Family::V6, |range| range.family())
    }

    /// Whether one of the ranges contains the address.
    pub fn contains(&self, address: impl Into<IpAddr>) -> bool {
        let address = address.into();
        self.iter().any(|range| range.contains(address))
    }
}

impl From<Cidr> for Ranges {
    fn from(range: Cidr) -> Ranges {
        Ranges { first: range, second: None }
    }
}

impl FromStr for Ranges {
    type Err = Error;

    fn from_str(text: &str) -> Result<Ranges, Error> {
        let ranges: Vec<Cidr> = text.split(',').map(|range| range.trim().parse()).collect::<Result<_, _>>()?;
        Ranges::new(&ranges)
    }
}

impl TryFrom<String> for Ranges {
    type Error = Error;

    fn try_from(text: String) -> Result<Ranges, Error> {
        text.parse()
    }
}

impl From<Ranges> for String {
    fn from(ranges: Ranges) -> String {
        ranges.to_string()
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        self.second.map_or(Ok(()), |second| write!(f, ",{second}"))
    }
}

impl fmt::Debug for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_strict_and_contain() {
        let range: Cidr = "10.1.2.0/24".parse().unwrap();
        assert!(range.contains(Ipv4Addr::new(10, 1, 2, 255)) && !range.contains(Ipv4Addr::new(10, 1, 3, 0)));
        assert_eq!((range.nth(255), range.nth(256)), (Some(Ipv4Addr::new(10, 1, 2, 255).into()), None));
        assert_eq!("0.0.0.0/0".parse::<Cidr>().unwrap().size(), 1 << 32);
        for bad in ["10.1.2.3/24", "10.1.2.0", "10.1.2.0/33", "fd00::1/64", "fd00::/129", "::ffff:10.0.0.0/104", "/"] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges_of_ipv6_have_addresses_too() {
        let range: Cidr = "fd00:10:244:3::/64".parse().unwrap();
        let address: IpAddr = "fd00:10:244:3::2".parse().unwrap();
        assert_eq!((range.nth(2), range.index(address)), (Some(address), Some(2)));
        assert!(!range.contains(Ipv4Addr::new(10, 0, 0, 1)) && range.size() == u64::MAX);
        assert_eq!("::/0".parse::<Cidr>().unwrap().nth(0), Some(Ipv6Addr::UNSPECIFIED.into()));
        assert_eq!(Cidr::around(address, 56).to_string(), "fd00:10:244::/56");
        assert_eq!(Cidr::single(address).to_string(), "fd00:10:244:3::2/128");
        let parts = |range: &str, length| {
            range.parse::<Cidr>().unwrap().parts(length).map(|r| r.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(parts("10.0.0.0/30", 31), ["10.0.0.0/31", "10.0.0.2/31"]);
        assert_eq!(parts("fd00::/63", 64), ["fd00::/64", "fd00:0:0:1::/64"]);
        assert!(parts("fd00::/64", 63).is_empty() && parts("10.0.0.0/30", 33).is_empty());
        assert!(Cidr::around(address, 48).overlaps(&range) && !"10.0.0.0/8".parse::<Cidr>().unwrap().overlaps(&range));
    }

    #[test]
    fn ranges_are_of_two_families() {
        let check = |text: &str| text.parse::<Ranges>().map(|r| r.to_string()).map_err(|e| e.to_string());
        for good in ["10.0.0.0/8", "fd00::/48", "10.0.0.0/8,fd00::/48", "fd00::/48,10.0.0.0/8"] {
            assert_eq!(check(good).as_deref(), Ok(good));
        }
        assert!(check("10.0.0.0/8, 11.0.0.0/8").unwrap_err().contains("of one family"));
        assert!(check("10.0.0.0/8,fd00::/48,fd01::/48").unwrap_err().starts_with("there are 3 ranges"));
        assert!(check("10.0.0.0/8,").is_err() && check("").is_err());
        let both: Ranges = "fd00::/48,10.0.0.0/8".parse().unwrap();
        assert_eq!(both.families().collect::<Vec<_>>(), [Family::V6, Family::V4]);
        assert_eq!(both.of(Family::V4).unwrap().to_string(), "10.0.0.0/8");
    }
}
