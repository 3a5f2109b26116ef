//! The addresses for load balancers.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// A range of IPv4 addresses for load balancers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    address: Ipv4Addr,
    length: u8,
}

impl Pool {
    /// Whether a load balancer may have the address. In a range of four addresses or more, the first and the last are none's.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        let (first, last) = self.bounds();
        (first..=last).contains(&u32::from(address))
    }

    /// The lowest address that is not in use.
    pub fn free(&self, used: &BTreeSet<Ipv4Addr>) -> Option<Ipv4Addr> {
        let (first, last) = self.bounds();
        (first..=last).map(Ipv4Addr::from).find(|address| !used.contains(address))
    }

    fn bounds(&self) -> (u32, u32) {
        let first = u32::from(self.address);
        let last = first | u32::MAX.checked_shr(u32::from(self.length)).unwrap_or(0);
        if self.length <= 30 { (first + 1, last - 1) } else { (first, last) }
    }
}

impl FromStr for Pool {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("{text:?} is no range of IPv4 addresses; write it as 10.97.0.0/24");
        let (address, length) = text.split_once('/').ok_or_else(error)?;
        let address: Ipv4Addr = address.parse().map_err(|_| error())?;
        let length: u8 = length.parse().map_err(|_| error())?;
        let pool = Self { address, length };
        let is_aligned = length <= 32 && u32::from(address) & u32::MAX.checked_shr(length.into()).unwrap_or(0) == 0;
        if is_aligned { Ok(pool) } else { Err(error()) }
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_address_is_next() {
        let address = |last| Ipv4Addr::new(10, 97, 0, last);
        for (range, used, expect) in [
            ("10.97.0.0/24", vec![], Some(1)),
            ("10.97.0.0/24", vec![1, 2, 4], Some(3)),
            ("10.97.0.0/30", vec![1], Some(2)),
            ("10.97.0.0/30", vec![1, 2], None),
            ("10.97.0.0/31", vec![0], Some(1)),
            ("10.97.0.7/32", vec![], Some(7)),
            ("10.97.0.7/32", vec![7], None),
        ] {
            let pool: Pool = range.parse().unwrap();
            let used = used.into_iter().map(address).collect();
            assert_eq!(pool.free(&used), expect.map(address), "{range}");
            assert!(pool.free(&used).is_none_or(|a| pool.contains(a)));
            assert_eq!(pool.to_string(), range);
        }
        let pool: Pool = "10.97.0.0/24".parse().unwrap();
        assert!(!pool.contains(address(0)) && !pool.contains(address(255)));
        for bad in ["", "10.97.0.0", "10.97.0.1/24", "10.97.0.0/33", "fd00::/64"] {
            assert!(bad.parse::<Pool>().is_err(), "{bad}");
        }
    }
}
