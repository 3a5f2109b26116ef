//! IP addresses that mean something else on every machine.

use std::net::IpAddr;

/// Whether users of the cluster may not direct connections to an address: loopback, link-local, multicast and unspecified ones.
/// Also as an IPv4 address inside of one of IPv6 (mapped, compatible, translated, 6to4).
pub fn is_special(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(a) => {
            a.is_loopback() || a.is_link_local() || a.is_multicast() || a.is_broadcast() || a.octets()[0] == 0
        }
        IpAddr::V6(a) => {
            let inner = match a.segments() {
                [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => Some((high, low)),
                [0x64, 0xff9b, 0 | 1, .., high, low] => Some((high, low)),
                [0x2002, high, low, ..] => Some((high, low)),
                _ => None,
            };
            let inner = inner.map(|(high, low)| IpAddr::from((u32::from(high) << 16 | u32::from(low)).to_be_bytes()));
            let own = a.is_loopback() || a.is_unicast_link_local() || a.is_multicast() || a.is_unspecified();
            own || inner.is_some_and(is_special)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_known_in_every_form() {
        for special in [
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "0.0.0.0",
            "0.0.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "::ffff:0:127.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b:1::7f00:1",
            "2002:7f00:1::",
            "::ffff:0.0.0.0",
        ] {
            assert!(is_special(special.parse().unwrap()), "{special}");
        }
        for plain in
            ["10.1.2.3", "192.168.0.1", "8.8.8.8", "fd00::1", "2001:db8::1", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3"]
        {
            assert!(!is_special(plain.parse().unwrap()), "{plain}");
        }
    }
}
