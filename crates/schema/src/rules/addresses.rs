//! Addresses and ranges of them, read strictly (`StrictIPCIDRValidation`, `k8s.io/apimachinery/pkg/util/validation/ip.go`):
//! ambiguous forms are rejected, but an object may keep those that it had before.

use meta::field::{BadValue, ErrorList, Origin};
use meta::{FieldError, FieldPath, Map, Value};
use std::collections::HashSet;
use std::net::IpAddr;

const NO_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const NO_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
const ZEROS: &str = "must not have leading 0s";
const ZEROS_OF_CIDR: &str = "must not have leading 0s in IP or prefix length";
const MAPPED: &str = "must not be an IPv4-mapped IPv6 address";
const MAPPED_CIDR: &str = "must not have an IPv4-mapped IPv6 address";
const BITS: &str = "must not have bits set beyond the prefix length";

/// Validates an address in any of its forms.
pub fn ip(text: &str, path: &FieldPath, errors: &mut ErrorList) {
    errors.extend(read_ip(text).err().map(|why| wrong_address(path, text, why)));
}

/// Validates an address range in any of its forms.
pub fn cidr(text: &str, path: &FieldPath, errors: &mut ErrorList) {
    errors.extend(read_cidr(text).err().map(|why| wrong_address(path, text, why)));
}

/// The error of an invalid address: only its form is wrong if a lenient parser accepts it.
fn wrong_address(path: &FieldPath, text: &str, why: &'static str) -> FieldError {
    let error = FieldError::invalid(path, text, why);
    if matches!(why, NO_IP | NO_CIDR) { error } else { error.with_origin(Origin::AddressForm) }
}

/// Validates an address in canonical form.
pub fn canonical_ip(text: &str) -> Option<String> {
    match read_ip(text) {
        Err(why) => Some(why.to_owned()),
        Ok(ip) => uncanonical(text, &ip.to_string()),
    }
}

/// Validates an address range in canonical form.
pub fn canonical_cidr(text: &str) -> Option<String> {
    match read_cidr(text) {
        Err(why) => Some(why.to_owned()),
        Ok((ip, bits)) => uncanonical(text, &format!("{ip}/{bits}")),
    }
}

/// Warnings for an address that is not in canonical form (`GetWarningsForIP`).
pub fn ip_warning(text: &str, path: &FieldPath) -> Option<String> {
    let (ip, zeros) = sloppy(text)?;
    if zeros || is_mapped(ip) {
        let better = ip.to_canonical().to_string();
        return Some(format!("{path}: non-standard IP address {text:?} is invalid: use {better:?}"));
    }
    unusual(ip, "IPv6 address", text, &ip.to_string(), path)
}

/// Warnings for a valid range that is not in canonical form (`GetWarningsForCIDR`).
pub fn cidr_warning(text: &str, path: &FieldPath) -> Option<String> {
    let (ip, bits, _) = range(text)?;
    unusual(ip, "IPv6 CIDR value", text, &format!("{ip}/{bits}"), path)
}

fn unusual(ip: IpAddr, what: &str, text: &str, form: &str, path: &FieldPath) -> Option<String> {
    let why = || format!("{path}: {what} {text:?} should be in RFC 5952 canonical format ({form:?})");
    (ip.is_ipv6() && text != form).then(why)
}

fn uncanonical(text: &str, form: &str) -> Option<String> {
    (text != form).then(|| format!("must be in canonical form ({form:?})"))
}

/// Whether a lenient parser accepts the range, as upstream's before it compares ranges.
pub fn is_range(text: &str) -> bool {
    read_cidr(text).err() != Some(NO_CIDR)
}

/// The errors of an update of `old`, without those about the form of addresses and of values that it has already (ratcheting).
pub fn ratchet(errors: ErrorList, old: &Map<String, Value>) -> ErrorList {
    let is_of_form = |e: &FieldError| e.origin.is_some();
    if !errors.iter().any(is_of_form) {
        return errors;
    }
    let mut known = Vec::new();
    old.values().for_each(|v| texts(v, &mut known));
    let known: HashSet<&str> = known.into_iter().collect();
    let was_there = |e: &FieldError| matches!(&e.value, BadValue::String(s) if known.contains(s.as_str()));
    errors.into_iter().filter(|e| !(is_of_form(e) && was_there(e))).collect()
}

fn texts<'a>(v: &'a Value, out: &mut Vec<&'a str>) {
    match v {
        Value::String(s) => out.push(s),
        Value::Array(a) => a.iter().for_each(|v| texts(v, out)),
        Value::Object(m) => m.values().for_each(|v| texts(v, out)),
        _ => {}
    }
}

/// Parses an address leniently, with leading zeros in IPv4 addresses; and whether there are any.
pub fn sloppy(text: &str) -> Option<(IpAddr, bool)> {
    if let Ok(ip) = text.parse() {
        return Some((ip, false));
    }
    let (before, last) = text.rsplit_once(':').map_or(("", text), |(b, l)| (&text[..=b.len()], l));
    let number = |n: &str| match n.trim_start_matches('0') {
        "" if !n.is_empty() => "0".to_owned(),
        n => n.to_owned(),
    };
    let numbers: Vec<String> = last.split('.').map(number).collect();
    (numbers.len() == 4).then(|| format!("{before}{}", numbers.join(".")).parse().ok().map(|ip| (ip, true)))?
}

/// Parses a range leniently: the address, the prefix length, and whether there are leading zeros.
fn range(text: &str) -> Option<(IpAddr, u32, bool)> {
    let (ip, bits) = text.split_once('/')?;
    let (ip, zeros) = sloppy(ip)?;
    let digits = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit());
    let count = bits.parse().ok().filter(|n| digits && *n <= if ip.is_ipv4() { 32 } else { 128 })?;
    Some((ip, count, zeros || (bits.len() > 1 && bits.starts_with('0'))))
}

fn is_mapped(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(a) if a.to_ipv4_mapped().is_some())
}

fn read_ip(text: &str) -> Result<IpAddr, &'static str> {
    match sloppy(text) {
        None => Err(NO_IP),
        Some((_, true)) => Err(ZEROS),
        Some((ip, _)) if is_mapped(ip) => Err(MAPPED),
        Some((ip, _)) => Ok(ip),
    }
}

fn read_cidr(text: &str) -> Result<(IpAddr, u32), &'static str> {
    let (ip, bits, zeros) = range(text).ok_or(NO_CIDR)?;
    let (number, width) = match ip {
        IpAddr::V4(a) => (u128::from(a.to_bits()), 32),
        IpAddr::V6(a) => (a.to_bits(), 128),
    };
    match () {
        () if zeros => Err(ZEROS_OF_CIDR),
        () if is_mapped(ip) => Err(MAPPED_CIDR),
        () if number.trailing_zeros().min(width) < width - bits => Err(BITS),
        () => Ok((ip, bits)),
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
            ("::ffff:102:304", Some(MAPPED)),
            ("::ffff:01.2.3.4", Some(ZEROS)),
            ("10.9.8.", Some(NO_IP)),
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
        let errors = ratchet(errors, old.as_object().unwrap());
        let left: Vec<String> = errors.iter().map(|e| e.body().to_string()).collect();
        assert_eq!(left, [format!("Invalid value: \"10.0.0.01\": {ZEROS}"), format!("Invalid value: \"x\": {NO_IP}")]);
    }

    #[test]
    fn what_could_be_written_better_is_warned_of() {
        let at = FieldPath::new("f");
        for (text, why) in [
            ("10.9.8.7", None),
            ("2001:db8::1", None),
            ("x", None),
            ("010.9.8.7", Some(r#"f: non-standard IP address "010.9.8.7" is invalid: use "10.9.8.7""#)),
            ("::ffff:1.2.3.4", Some(r#"f: non-standard IP address "::ffff:1.2.3.4" is invalid: use "1.2.3.4""#)),
            (
                "2001:DB8::1",
                Some(r#"f: IPv6 address "2001:DB8::1" should be in RFC 5952 canonical format ("2001:db8::1")"#),
            ),
        ] {
            assert_eq!(ip_warning(text, &at).as_deref(), why, "{text}");
        }
        let range = cidr_warning("2001:DB8::/32", &at);
        let why = r#"f: IPv6 CIDR value "2001:DB8::/32" should be in RFC 5952 canonical format ("2001:db8::/32")"#;
        assert_eq!((range.as_deref(), cidr_warning("10.0.0.0/8", &at)), (Some(why), None));
    }
}
