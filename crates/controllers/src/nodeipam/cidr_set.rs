//! Ranges of equal size in a range of the cluster, of which each node gets one (upstream `cidrset/cidr_set.go`). Pure but for metrics.

use crate::meters;
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How many bits of an IPv6 range may number nodes.
const MAX_V6_BITS: u8 = 16;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// Left-aligned in 128 bits, whatever the family.
    base: u128,
    bits: u8,
    is_v6: bool,
}

fn mask(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}

impl Cidr {
    /// Parses `address/bits`. Bits of the address beyond the prefix are ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let (ip, bits) = text.trim().split_once('/')?;
        let (ip, bits): (IpAddr, u8) = (ip.parse().ok()?, bits.parse().ok()?);
        let (base, longest) = match ip {
            IpAddr::V4(a) => (u128::from(u32::from(a)) << 96, 32),
            IpAddr::V6(a) => (u128::from(a), 128),
        };
        (bits <= longest).then(|| Self { base: base & mask(bits), bits, is_v6: ip.is_ipv6() })
    }

    pub fn is_v6(self) -> bool {
        self.is_v6
    }

    fn overlaps(self, other: Self) -> bool {
        let wider = mask(self.bits.min(other.bits));
        self.is_v6 == other.is_v6 && self.base & wider == other.base & wider
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = match self.is_v6 {
            true => IpAddr::V6(Ipv6Addr::from(self.base)),
            false => IpAddr::V4(Ipv4Addr::from((self.base >> 96) as u32)),
        };
        write!(f, "{ip}/{}", self.bits)
    }
}

/// Why a set cannot be made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("New CIDR set failed; the node CIDR size is too big")]
    TooMany,
    #[error("node CIDR mask size {0} is smaller than that of the cluster CIDR {1}")]
    TooWide(u8, String),
}

/// The ranges for nodes in one range of the cluster.
#[derive(Debug)]
pub struct CidrSet {
    cluster: Cidr,
    label: String,
    node_bits: u8,
    used: BTreeSet<u64>,
    /// Where the search for a free range begins, so that one that was given back is not used again at once.
    next: u64,
}

impl CidrSet {
    /// Ranges with prefixes of `node_bits` in `cluster`.
    pub fn new(cluster: Cidr, node_bits: u8) -> Result<Self, Error> {
        let longest = if cluster.is_v6 { 128 } else { 32 };
        if node_bits < cluster.bits || node_bits > longest {
            return Err(Error::TooWide(node_bits, cluster.to_string()));
        }
        if cluster.is_v6 && node_bits - cluster.bits > MAX_V6_BITS {
            return Err(Error::TooMany);
        }
        let set = Self { label: cluster.to_string(), cluster, node_bits, used: BTreeSet::new(), next: 0 };
        meters::set(&meters::CIDR_MAX, &[&set.label], usize::try_from(set.len()).unwrap_or(usize::MAX));
        Ok(set)
    }

    /// The number of ranges.
    fn len(&self) -> u64 {
        1 << (self.node_bits - self.cluster.bits)
    }

    fn range(&self, index: u64) -> Cidr {
        let base = self.cluster.base | u128::from(index).checked_shl(128 - u32::from(self.node_bits)).unwrap_or(0);
        Cidr { base, bits: self.node_bits, is_v6: self.cluster.is_v6 }
    }

    /// The first and last range that a range of any size overlaps; none if it is elsewhere.
    fn indexes(&self, cidr: Cidr) -> Option<(u64, u64)> {
        if !self.cluster.overlaps(cidr) {
            return None;
        }
        if cidr.bits <= self.cluster.bits {
            return Some((0, self.len() - 1));
        }
        let index = |address: u128| {
            let inner = (address ^ self.cluster.base).checked_shr(128 - u32::from(self.node_bits)).unwrap_or(0);
            u64::try_from(inner).unwrap_or(0)
        };
        Some((index(cidr.base), index(cidr.base | !mask(cidr.bits))))
    }

    /// Takes a free range. None if there is none left.
    pub fn allocate(&mut self) -> Option<Cidr> {
        let all = self.len();
        if self.used.len() as u64 == all {
            return None;
        }
        let mut candidate = self.next;
        let mut tries = 0u32;
        while self.used.contains(&candidate) {
            candidate = (candidate + 1) % all;
            tries += 1;
        }
        self.next = (candidate + 1) % all;
        self.used.insert(candidate);
        meters::count(&meters::CIDR_ALLOCATIONS, &[&self.label]);
        meters::observe(&meters::CIDR_TRIES, &[&self.label], tries.into());
        self.report();
        Some(self.range(candidate))
    }

    /// Marks the ranges that a range overlaps as used. Returns whether it is of this set.
    pub fn occupy(&mut self, cidr: Cidr) -> bool {
        let Some((first, last)) = self.indexes(cidr) else { return false };
        for index in first..=last {
            if self.used.insert(index) {
                meters::count(&meters::CIDR_ALLOCATIONS, &[&self.label]);
            }
        }
        self.report();
        true
    }

    /// Gives the ranges back that a range overlaps. Returns whether it is of this set.
    pub fn release(&mut self, cidr: Cidr) -> bool {
        let Some((first, last)) = self.indexes(cidr) else { return false };
        for index in first..=last {
            if self.used.remove(&index) {
                meters::count(&meters::CIDR_RELEASES, &[&self.label]);
            }
        }
        self.report();
        true
    }

    fn report(&self) {
        meters::set_real(&meters::CIDR_USAGE, &[&self.label], self.used.len() as f64 / self.len() as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cluster: &str, bits: u8) -> CidrSet {
        CidrSet::new(Cidr::parse(cluster).unwrap(), bits).unwrap()
    }

    fn taken(s: &mut CidrSet, n: usize) -> Vec<String> {
        (0..n).map(|_| s.allocate().map_or("-".into(), |c| c.to_string())).collect()
    }

    #[test]
    fn ranges_are_given_in_turn() {
        let cases = [
            ("10.244.0.0/16", 24, ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24"]),
            ("10.0.0.0/30", 31, ["10.0.0.0/31", "10.0.0.2/31", "-"]),
            ("10.0.0.5/32", 32, ["10.0.0.5/32", "-", "-"]),
            ("fd00::/48", 64, ["fd00::/64", "fd00:0:0:1::/64", "fd00:0:0:2::/64"]),
            ("fd00::/112", 120, ["fd00::/120", "fd00::100/120", "fd00::200/120"]),
        ];
        for (cluster, bits, expect) in cases {
            assert_eq!(taken(&mut set(cluster, bits), 3), expect, "{cluster}");
        }
    }

    #[test]
    fn used_ranges_are_left_out_and_come_back_last() {
        let mut s = set("10.0.0.0/22", 24);
        let cidr = |text: &str| Cidr::parse(text).unwrap();
        assert!(s.occupy(cidr("10.0.0.0/23")) && !s.occupy(cidr("10.1.0.0/24")) && !s.release(cidr("fd00::/64")));
        assert_eq!(taken(&mut s, 3), ["10.0.2.0/24", "10.0.3.0/24", "-"]);
        assert!(s.release(cidr("10.0.2.0/24")) && s.release(cidr("10.0.1.128/25")));
        assert_eq!(taken(&mut s, 3), ["10.0.1.0/24", "10.0.2.0/24", "-"]);
        assert!(s.release(cidr("10.0.0.0/8")));
        assert_eq!(taken(&mut s, 1), ["10.0.3.0/24"], "the search goes on where it ended");
    }

    #[test]
    fn sizes_are_checked() {
        let new = |cluster: &str, bits| CidrSet::new(Cidr::parse(cluster).unwrap(), bits).map(drop);
        assert!(new("10.0.0.0/16", 15).is_err() && new("10.0.0.0/16", 33).is_err());
        assert_eq!(new("fd00::/40", 64), Err(Error::TooMany));
        assert_eq!(new("fd00::/48", 64), Ok(()));
        for text in ["10.0.0.0", "10.0.0.0/33", "x/8", "fd00::/129", ""] {
            assert_eq!(Cidr::parse(text), None, "{text}");
        }
    }
}
