//! Ranges of service addresses, of both families (upstream `pkg/api/servicecidr`).

use client::ApiResource;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use serde::Deserialize;
use std::net::IpAddr;

pub fn resource() -> ApiResource {
    ApiResource::typed::<ServiceCIDR>()
}

/// A ServiceCIDR, as far as its ranges and their condition go.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    pub spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Spec {
    pub cidrs: Vec<Box<str>>,
}

impl ServiceCidr {
    pub fn prefixes(&self) -> impl Iterator<Item = Prefix> {
        self.spec.cidrs.iter().filter_map(|c| Prefix::parse(c))
    }

    pub fn has(&self, ip: IpAddr) -> bool {
        self.prefixes().any(|p| p.has(ip))
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        self.prefixes().any(|p| other.prefixes().any(|o| p.overlaps(o)))
    }

    /// Whether every address of the other is in one of the ranges of this.
    fn covers(&self, prefix: Prefix) -> bool {
        self.prefixes().any(|p| p.bits <= prefix.bits && p.overlaps(prefix))
    }
}

/// Whether a range may go: every address that services have is in another as well. `others` are all the other ranges.
pub fn may_go(leaving: &ServiceCidr, others: &[&ServiceCidr], mut used: impl Iterator<Item = IpAddr>) -> bool {
    let parent = |p: Prefix| others.iter().any(|o| o.covers(p));
    leaving.prefixes().all(parent) || used.all(|ip| !leaving.has(ip) || others.iter().any(|o| o.has(ip)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Left-aligned, whatever the family.
    base: u128,
    bits: u32,
    v6: bool,
}

fn aligned(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(a) => u128::from(u32::from(a)) << 96,
        IpAddr::V6(a) => u128::from(a),
    }
}

fn mask(bits: u32) -> u128 {
    u128::MAX.checked_shl(128 - bits).unwrap_or(0)
}

impl Prefix {
    pub fn parse(text: &str) -> Option<Self> {
        let (ip, bits) = text.split_once('/')?;
        let ip: IpAddr = ip.parse().ok()?;
        let bits = bits.parse().ok().filter(|b| *b <= if ip.is_ipv6() { 128 } else { 32 })?;
        Some(Self { base: aligned(ip) & mask(bits), bits, v6: ip.is_ipv6() })
    }

    fn overlaps(self, other: Self) -> bool {
        let wider = mask(self.bits.min(other.bits));
        self.v6 == other.v6 && self.base & wider == other.base & wider
    }

    /// Whether services may have an address: neither the range's own nor, in IPv4, the last one.
    fn has(self, ip: IpAddr) -> bool {
        let address = aligned(ip);
        let last = self.base | (!mask(self.bits) & if self.v6 { u128::MAX } else { mask(32) });
        let reserved = address == self.base || (!self.v6 && address == last);
        self.v6 == ip.is_ipv6() && address & mask(self.bits) == self.base && !reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(cidrs: &[&str]) -> ServiceCidr {
        ServiceCidr { spec: Spec { cidrs: cidrs.iter().map(|c| (*c).into()).collect() } }
    }

    #[test]
    fn what_is_within() {
        for (cidr, ip, want) in [
            ("10.0.0.0/24", "10.0.0.1", true),
            ("10.0.0.0/24", "10.0.0.0", false),
            ("10.0.0.0/24", "10.0.0.255", false),
            ("10.0.0.0/24", "10.0.1.1", false),
            ("10.0.0.0/23", "10.0.0.255", true),
            ("fd00::/112", "fd00::ffff", true),
            ("fd00::/112", "fd00::", false),
            ("fd00::/112", "10.0.0.1", false),
            ("0.0.0.0/0", "10.0.0.1", true),
        ] {
            assert_eq!(range(&[cidr]).has(ip.parse().unwrap()), want, "{cidr} {ip}");
        }
        for (a, b, want) in [
            ("10.0.0.0/24", "10.0.0.0/16", true),
            ("10.0.0.0/24", "10.0.1.0/24", false),
            ("::/0", "10.0.0.0/8", false),
            ("0.0.0.0/0", "10.0.0.0/8", true),
        ] {
            assert_eq!(
                (range(&[a]).overlaps(&range(&[b])), range(&[b]).overlaps(&range(&[a]))),
                (want, want),
                "{a} {b}"
            );
        }
        assert!(["10.0.0.0", "10.0.0.0/33", "x/1", "::/129"].iter().all(|t| Prefix::parse(t).is_none()));
    }

    #[test]
    fn a_range_goes_when_its_addresses_are_in_others() {
        let used = ["10.0.0.5", "10.1.0.5"].map(|ip| ip.parse().unwrap());
        for (leaving, others, want) in [
            (&["10.0.0.0/24"][..], &[][..], false),
            (&["10.0.0.0/24"], &[&["10.0.0.0/24"][..]][..], true),
            (&["10.0.0.0/24"], &[&["10.0.0.0/16"]], true),
            (&["10.0.0.0/24"], &[&["10.0.0.0/25"]], true),
            (&["10.0.0.0/24"], &[&["10.0.0.128/25"]], false),
            (&["10.2.0.0/24"], &[], true),
            (&["10.0.0.0/8"], &[&["10.0.0.0/24"]], false),
            (&["10.0.0.0/8"], &[&["10.0.0.0/24"], &["10.1.0.0/24"]], true),
            (&["10.0.0.0/24", "fd00::/112"], &[&["10.0.0.0/16"]], true),
        ] {
            let others: Vec<ServiceCidr> = others.iter().map(|o| range(o)).collect();
            let others: Vec<&ServiceCidr> = others.iter().collect();
            assert_eq!(may_go(&range(leaving), &others, used.into_iter()), want, "{leaving:?}");
        }
    }
}
