//! IPv4 ranges.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// An IPv4 range without host bits, written `10.0.0.0/8`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    address: Ipv4Addr,
    length: u8,
}

impl Cidr {
    /// The first address of the range.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The length of the prefix in bits.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether the address is in the range.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        mask(self.length) & u32::from(address) == u32::from(self.address)
    }

    /// Whether all addresses of the other range are in this one.
    pub fn contains_range(&self, other: &Cidr) -> bool {
        self.length <= other.length && self.contains(other.address)
    }

    /// The range of this prefix length around an address.
    pub fn around(address: Ipv4Addr, length: u8) -> Cidr {
        let length = length.min(32);
        Cidr { address: Ipv4Addr::from(u32::from(address) & mask(length)), length }
    }

    /// The `index`th address; `None` beyond the end.
    pub fn nth(&self, index: u32) -> Option<Ipv4Addr> {
        (u64::from(index) < self.size()).then(|| Ipv4Addr::from(u32::from(self.address) + index))
    }

    /// The number of addresses.
    pub fn size(&self) -> u64 {
        1 << (32 - self.length)
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

fn mask(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
}

impl FromStr for Cidr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Cidr, Error> {
        let error = || Error::Cidr(text.to_owned());
        let (address, length) = text.split_once('/').ok_or_else(error)?;
        let address: Ipv4Addr = address.parse().map_err(|_| error())?;
        let length: u8 = length.parse().map_err(|_| error())?;
        if length > 32 || u32::from(address) & !mask(length) != 0 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_strict_and_contain() {
        let range: Cidr = "10.1.2.0/24".parse().unwrap();
        assert!(range.contains(Ipv4Addr::new(10, 1, 2, 255)) && !range.contains(Ipv4Addr::new(10, 1, 3, 0)));
        assert_eq!((range.nth(255), range.nth(256)), (Some(Ipv4Addr::new(10, 1, 2, 255)), None));
        assert_eq!("0.0.0.0/0".parse::<Cidr>().unwrap().size(), 1 << 32);
        for bad in ["10.1.2.3/24", "10.1.2.0", "10.1.2.0/33", "::/0", "/"] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }
}
