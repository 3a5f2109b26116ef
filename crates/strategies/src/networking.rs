//! Address ranges, and the kinds of `networking.k8s.io` with peculiarities.

use meta::{Object, Value};
use registry::Strategy;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// A range of IPv4 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    base: u32,
    bits: u32,
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let fail = || format!("{s:?} is no address range such as 10.96.0.0/12");
        let (ip, bits) = s.split_once('/').ok_or_else(fail)?;
        let ip: Ipv4Addr = ip.parse().map_err(|_| fail())?;
        let bits: u32 = bits.parse().ok().filter(|b| (1..=30).contains(b)).ok_or_else(fail)?;
        let mask = u32::MAX << (32 - bits);
        Ok(Self { base: u32::from(ip) & mask, bits })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.base), self.bits)
    }
}

impl Cidr {
    pub fn contains(&self, ip: Ipv4Addr) -> bool {
        let n = u64::from(u32::from(ip).wrapping_sub(self.base));
        u32::from(ip) >= self.base && (1..self.size() - 1).contains(&n)
    }

    pub fn size(&self) -> u64 {
        1 << (32 - self.bits)
    }

    pub fn nth(&self, n: u64) -> Ipv4Addr {
        Ipv4Addr::from(self.base.wrapping_add(n as u32))
    }
}

pub struct NetworkPolicy;

impl Strategy for NetworkPolicy {
    fn default(&self, o: &mut Object) {
        if o.at(&["spec", "policyTypes"]).is_none() {
            let egress = o.at(&["spec", "egress"]).and_then(Value::as_array).is_some_and(|e| !e.is_empty());
            let types = if egress { vec!["Ingress", "Egress"] } else { vec!["Ingress"] };
            o.set(&["spec", "policyTypes"], types);
        }
    }
}
