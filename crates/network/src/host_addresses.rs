//! The addresses of the machine by which other machines may reach it.

use std::net::IpAddr;

use crate::Result;
use crate::address::Family;
use crate::link::Netlink;

/// An address of a device of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAddress {
    /// The number of the device.
    pub device: u32,
    /// The address, which is valid beyond its link.
    pub address: IpAddr,
    /// Whether others may rely on it: it is not temporary, deprecated or tentative.
    pub is_lasting: bool,
    /// Whether it was assigned without an end.
    pub is_permanent: bool,
}

/// The addresses of all devices in the namespace of this process, without those of loopback and of single links.
pub async fn host_addresses() -> Result<Vec<HostAddress>> {
    Netlink::open(None)?.addresses().await
}

/// The address of a family by which others reach the device that has the address `on`: the latter, if others may rely on it; else one that
/// was assigned for ever rather than for a time, and the lowest of them.
pub fn address_of_family(all: &[HostAddress], on: IpAddr, family: Family) -> Option<IpAddr> {
    let device = all.iter().find(|a| a.address == on)?.device;
    let candidates = || all.iter().filter(|a| a.device == device && a.is_lasting && Family::of(a.address) == family);
    let chosen =
        candidates().find(|a| a.address == on).or_else(|| candidates().min_by_key(|a| (!a.is_permanent, a.address)));
    chosen.map(|a| a.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_rely_on_lasting_addresses() {
        let address = |device, text: &str, is_lasting, is_permanent| HostAddress {
            device,
            address: text.parse().unwrap(),
            is_lasting,
            is_permanent,
        };
        let all = [
            address(2, "192.0.2.1", true, true),
            address(2, "2001:db8::1:9", false, false),
            address(2, "fd00::5", true, true),
            address(2, "2001:db8::5", true, false),
            address(2, "fd00::7", true, true),
            address(3, "192.0.2.9", true, true),
        ];
        let check = |on: &str, family| address_of_family(&all, on.parse().unwrap(), family).map(|a| a.to_string());
        for (on, family, expect) in [
            ("192.0.2.1", Family::V4, Some("192.0.2.1")),
            ("192.0.2.1", Family::V6, Some("fd00::5")),
            ("2001:db8::5", Family::V6, Some("2001:db8::5")),
            ("2001:db8::1:9", Family::V6, Some("fd00::5")),
            ("192.0.2.9", Family::V6, None),
            ("192.0.2.7", Family::V4, None),
        ] {
            assert_eq!(check(on, family).as_deref(), expect, "{on} {family}");
        }
    }
}
