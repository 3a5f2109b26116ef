//! Addresses and ranges of them, read strictly (`StrictIPCIDRValidation`, `k8s.io/apimachinery/pkg/util/validation/ip.go`):
//! what other programs may take for another address is refused. What an object had before that was so may stay.

use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Map, Value};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const NO_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const NO_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
const ZEROS: &str = "must not have leading 0s";
const ZEROS_OF_CIDR: &str = "must not have leading 0s in IP or prefix length";
const MAPPED: &str = "must not be an IPv4-mapped IPv6 address";
const MAPPED_CIDR: &str = "must not have an IPv4-mapped IPv6 address";
const BITS: &str = "must not have bits set beyond the prefix length";

/// An address, in any of the forms in which one can be written.
pub fn ip(text: &str, path: &FieldPath, errors: &mut ErrorList) {
    errors.extend(read_ip(text).err().map(|why| FieldError::invalid(path, text, why)));
}

/// An address range, likewise.
pub fn cidr(text: &str, path: &FieldPath, errors: &mut ErrorList) {
    errors.extend(read_cidr(text).err().map(|why| FieldError::invalid(path, text, why)));
}

/// What is wrong with an address that is to be written in the one form that is its own.
pub fn canonical_ip(text: &str) -> Option<String> {
    match read_ip(text) {
        Err(why) => Some(why.to_owned()),
        Ok(ip) => uncanonical(text, &ip.to_string()),
    }
}

/// The same of a range.
pub fn canonical_cidr(text: &str) -> Option<String> {
    match read_cidr(text) {
        Err(why) => Some(why.to_owned()),
        Ok((ip, bits)) => uncanonical(text, &format!("{ip}/{bits}")),
    }
}

/// What is said of an address that is right but not written as it is mostly (`GetWarningsForIP`).
pub fn ip_warning(text: &str, path: &FieldPath) -> Option<String> {
    let form = read_ip(text).ok().filter(IpAddr::is_ipv6)?.to_string();
    unusual("IPv6 address", text, &form, path)
}

/// The same of a range (`GetWarningsForCIDR`).
pub fn cidr_warning(text: &str, path: &FieldPath) -> Option<String> {
    let (ip, bits) = read_cidr(text).ok().filter(|(ip, _)| ip.is_ipv6())?;
    unusual("IPv6 CIDR value", text, &format!("{ip}/{bits}"), path)
}

fn unusual(what: &str, text: &str, form: &str, path: &FieldPath) -> Option<String> {
    (text != form).then(|| format!("{path}: {what} {text:?} should be in RFC 5952 canonical format ({form:?})"))
}

fn uncanonical(text: &str, form: &str) -> Option<String> {
    (text != form).then(|| format!("must be in canonical form ({form:?})"))
}

/// Whether a text is a range to those who read less strictly, as upstream does before it compares ranges with others.
pub fn is_range(text: &str) -> bool {
    read_cidr(text).err() != Some(NO_CIDR)
}

/// Takes back what is wrong with the form of an address that the object had before.
pub fn forgive(errors: &mut ErrorList, old: &Map<String, Value>) {
    let of_form =
        |e: &FieldError| [ZEROS, ZEROS_OF_CIDR, MAPPED, MAPPED_CIDR, BITS].iter().any(|w| e.body.ends_with(w));
    if !errors.iter().any(of_form) {
        return;
    }
    let mut had = Vec::new();
    old.values().for_each(|v| texts(v, &mut had));
    let said: Vec<String> = had.iter().map(|t| format!("Invalid value: {t:?}: ")).collect();
    errors.retain(|e| !of_form(e) || !said.iter().any(|s| e.body.starts_with(s)));
}

fn texts<'a>(v: &'a Value, out: &mut Vec<&'a str>) {
    match v {
        Value::String(s) => out.push(s),
        Value::Array(a) => a.iter().for_each(|v| texts(v, out)),
        Value::Object(m) => m.values().for_each(|v| texts(v, out)),
        _ => {}
    }
}

fn read_ip(text: &str) -> Result<IpAddr, &'static str> {
    match text.parse() {
        Ok(IpAddr::V6(a)) if a.to_ipv4_mapped().is_some() => Err(MAPPED),
        Ok(ip) => Ok(ip),
        Err(_) if has_zeros(text) => Err(ZEROS),
        Err(_) => Err(NO_IP),
    }
}

/// An IPv4 address but for zeros before its numbers.
fn has_zeros(text: &str) -> bool {
    let number = |part: &str| number(part, 3).is_some_and(|n| n <= 255);
    text.split('.').count() == 4 && text.split('.').all(number)
}

/// What digits say; zeros before them say nothing.
fn number(digits: &str, most: usize) -> Option<u32> {
    let rest = digits.trim_start_matches('0');
    let read = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) && rest.len() <= most;
    read.then(|| rest.parse().unwrap_or(0))
}

fn read_cidr(text: &str) -> Result<(IpAddr, u32), &'static str> {
    let (address, length) = text.split_once('/').ok_or(NO_CIDR)?;
    let bits = number(length, 3).ok_or(NO_CIDR)?;
    let ip: IpAddr = match address.parse() {
        Ok(ip) => ip,
        Err(_) if has_zeros(address) && bits <= 32 => return Err(ZEROS_OF_CIDR),
        Err(_) => return Err(NO_CIDR),
    };
    if bits > if ip.is_ipv4() { 32 } else { 128 } {
        return Err(NO_CIDR);
    }
    if length.len() > 1 && length.starts_with('0') {
        return Err(ZEROS_OF_CIDR);
    }
    let first: IpAddr = match ip {
        IpAddr::V4(a) => Ipv4Addr::from(u32::from(a) & u32::MAX.checked_shl(32 - bits).unwrap_or(0)).into(),
        IpAddr::V6(a) => Ipv6Addr::from(u128::from(a) & u128::MAX.checked_shl(128 - bits).unwrap_or(0)).into(),
    };
    match ip {
        IpAddr::V6(a) if a.to_ipv4_mapped().is_some() => Err(MAPPED_CIDR),
        ip if ip != first => Err(BITS),
        ip => Ok((ip, bits)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_strictly() {
        for (text, why) in [
            ("10.9.8.7", None),
            ("2001:DB8::1", None),
            ("", Some(NO_IP)),
            ("10.9.8", Some(NO_IP)),
            ("10.9.8.256", Some(NO_IP)),
            ("fe80::1%eth0", Some(NO_IP)),
            ("010.9.8.7", Some(ZEROS)),
            ("10.9.8.0007", Some(ZEROS)),
            ("10.9.8.0256", Some(NO_IP)),
            ("::ffff:1.2.3.4", Some(MAPPED)),
        ] {
            assert_eq!(read_ip(text).err(), why, "{text}");
        }
        for (text, why) in [
            ("10.9.8.0/24", None),
            ("0.0.0.0/0", None),
            ("2001:DB8::/64", None),
            ("::/0", None),
            ("10.9.8.0", Some(NO_CIDR)),
            ("10.9.8.0/33", Some(NO_CIDR)),
            ("10.9.8.0/+8", Some(NO_CIDR)),
            ("010.9.8.0/33", Some(NO_CIDR)),
            ("010.9.8.0/24", Some(ZEROS_OF_CIDR)),
            ("10.9.8.0/024", Some(ZEROS_OF_CIDR)),
            ("10.9.8.7/24", Some(BITS)),
            ("2001:db8::1/64", Some(BITS)),
            ("::ffff:10.0.0.0/104", Some(MAPPED_CIDR)),
        ] {
            assert_eq!(read_cidr(text).err(), why, "{text}");
        }
        let form = |f: &str| Some(format!("must be in canonical form (\"{f}\")"));
        assert_eq!(canonical_ip("2001:DB8::1"), form("2001:db8::1"));
        assert_eq!(canonical_cidr("2001:DB8::/64"), form("2001:db8::/64"));
        assert_eq!((canonical_ip("10.9.8.7"), canonical_cidr("10.9.8.0/24")), (None, None));
    }

    #[test]
    fn the_form_of_an_address_is_forgiven_where_it_was_there_before() {
        let mut errors = Vec::new();
        let at = FieldPath::new("spec.a");
        ["010.0.0.1", "10.0.0.01", "x"].iter().for_each(|t| ip(t, &at, &mut errors));
        let old = serde_json::json!({"spec": {"a": ["010.0.0.1", "x"]}});
        forgive(&mut errors, old.as_object().unwrap());
        let left: Vec<&str> = errors.iter().map(|e| &*e.body).collect();
        assert_eq!(left, [format!("Invalid value: \"10.0.0.01\": {ZEROS}"), format!("Invalid value: \"x\": {NO_IP}")]);
    }
}
