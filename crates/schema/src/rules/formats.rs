//! Formats of values that have rules of their own: shares, addresses, paths, labels and selectors.

use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value, names};
use std::net::IpAddr;

/// A count or a share such as `25%` (`intstr.IntOrString`), not negative.
pub fn int_or_percent(v: &Value, path: &FieldPath, errors: &mut ErrorList) {
    match v {
        Value::Number(n) if n.as_i64().is_some_and(|n| n < 0) => {
            errors.push(FieldError::invalid(path, v.clone(), "must be greater than or equal to 0"));
        }
        Value::String(s)
            if !s.strip_suffix('%').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) =>
        {
            let why = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
            errors.push(FieldError::invalid(path, v.clone(), why));
        }
        _ => {}
    }
}

/// An address (`IsValidIPForLegacyField`, strict): any way to write it that has one meaning.
pub fn ip(text: &str, path: &FieldPath, errors: &mut ErrorList) {
    let mut wrong = |why: &str| errors.push(FieldError::invalid(path, text, why));
    match sloppy(text) {
        None => wrong("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
        Some((ip, zeros)) => {
            if zeros {
                wrong("must not have leading 0s");
            } else if is_mapped(ip) {
                wrong("must not be an IPv4-mapped IPv6 address");
            }
        }
    }
}

/// An address as it was once read, with zeros before the numbers of an IPv4 address; and whether there are any.
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

/// What is warned of an address that could be written better (`GetWarningsForIP`).
pub fn ip_warning(text: &str, path: &FieldPath) -> Option<String> {
    let (ip, zeros) = sloppy(text)?;
    if zeros || is_mapped(ip) {
        let better = ip.to_canonical().to_string();
        return Some(format!("{path}: non-standard IP address {text:?} is invalid: use {better:?}"));
    }
    let better = ip.to_string();
    let why = || format!("{path}: IPv6 address {text:?} should be in RFC 5952 canonical format ({better:?})");
    (ip.is_ipv6() && better != text).then(why)
}

/// The same of a range that is valid (`GetWarningsForCIDR`).
pub fn cidr_warning(text: &str, path: &FieldPath) -> Option<String> {
    let (ip, bits, _) = range(text)?;
    let better = format!("{ip}/{bits}");
    let why = || format!("{path}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format ({better:?})");
    (ip.is_ipv6() && better != text).then(why)
}

fn is_mapped(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(a) if a.to_ipv4_mapped().is_some())
}

/// A path that does not leave where it begins.
pub fn no_backsteps(text: &str, path: &FieldPath, errors: &mut ErrorList) {
    if text.split('/').any(|s| s == "..") {
        errors.push(FieldError::invalid(path, text, "must not contain '..'"));
    }
}

/// A relative path that does not leave where it begins.
pub fn descending_path(text: &str, path: &FieldPath, errors: &mut ErrorList) {
    if text.starts_with('/') {
        errors.push(FieldError::invalid(path, text, "must be a relative path"));
    }
    no_backsteps(text, path, errors);
}

/// The same, of a file that is written there: names that begin with two dots are the writer's.
pub fn local_path(text: &str, path: &FieldPath, errors: &mut ErrorList) {
    descending_path(text, path, errors);
    if text.starts_with("..") && !text.starts_with("../") {
        errors.push(FieldError::invalid(path, text, "must not start with '..'"));
    }
}

/// An address range (`IsValidCIDRForLegacyField`, strict): it begins where its address says.
pub fn cidr(text: &str, path: &FieldPath, errors: &mut ErrorList) {
    let mut wrong = |why: &str| errors.push(FieldError::invalid(path, text, why));
    let Some((ip, bits, zeros)) = range(text) else {
        return wrong("must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)");
    };
    let (number, width) = match ip {
        IpAddr::V4(a) => (u128::from(a.to_bits()), 32),
        IpAddr::V6(a) => (a.to_bits(), 128),
    };
    if zeros {
        wrong("must not have leading 0s in IP or prefix length");
    } else if is_mapped(ip) {
        wrong("must not have an IPv4-mapped IPv6 address");
    } else if number.trailing_zeros().min(width) < width - bits {
        wrong("must not have bits set beyond the prefix length");
    }
}

/// An address, how many of its bits count, and whether zeros stand before any number.
fn range(text: &str) -> Option<(IpAddr, u32, bool)> {
    let (ip, bits) = text.split_once('/')?;
    let (ip, zeros) = sloppy(ip)?;
    let digits = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit());
    let count = bits.parse().ok().filter(|n| digits && *n <= if ip.is_ipv4() { 32 } else { 128 })?;
    Some((ip, count, zeros || (bits.len() > 1 && bits.starts_with('0'))))
}

pub fn labels(v: &Value, path: &FieldPath, errors: &mut ErrorList) {
    for (k, v) in v.as_object().into_iter().flatten() {
        errors.extend(names::qualified_name(k).into_iter().map(|m| FieldError::invalid(path, k.as_str(), m)));
        let v = v.as_str().unwrap_or_default();
        errors.extend(names::label_value(v).into_iter().map(|m| FieldError::invalid(path, v, m)));
    }
}

/// `metav1.LabelSelector` (`k8s.io/apimachinery/pkg/apis/meta/v1/validation`).
pub fn selector(v: &Value, path: &FieldPath, errors: &mut ErrorList) {
    if let Some(l) = v.get("matchLabels") {
        labels(l, &path.child("matchLabels"), errors);
    }
    for (i, e) in v["matchExpressions"].as_array().into_iter().flatten().enumerate() {
        let at = path.child("matchExpressions").index(i);
        let values = e["values"].as_array().map(Vec::as_slice).unwrap_or_default();
        match e["operator"].as_str().unwrap_or_default() {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(&at.child("values"), why));
            }
            "In" | "NotIn" => {}
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(&at.child("values"), why));
            }
            "Exists" | "DoesNotExist" => {}
            other => errors.push(FieldError::invalid(&at.child("operator"), other, "not a valid selector operator")),
        }
        let key = e["key"].as_str().unwrap_or_default();
        let bad_key = names::qualified_name(key);
        errors.extend(bad_key.into_iter().map(|m| FieldError::invalid(&at.child("key"), key, m)));
        for (j, v) in values.iter().enumerate() {
            let text = v.as_str().unwrap_or_default();
            let place = at.child("values").index(j);
            errors.extend(names::label_value(text).into_iter().map(|m| FieldError::invalid(&place, text, m)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(rule: fn(&str, &FieldPath, &mut ErrorList), text: &str) -> String {
        let mut errors = ErrorList::new();
        rule(text, &FieldPath::new("f"), &mut errors);
        errors.iter().map(|e| e.body.rsplit(": ").next().unwrap_or_default()).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn addresses_have_one_meaning() {
        const BAD: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        for (text, why) in [
            ("10.9.8.7", ""),
            ("2001:DB8:0::1", ""),
            ("010.9.8.7", "must not have leading 0s"),
            ("10.0.00.7", "must not have leading 0s"),
            ("::ffff:01.2.3.4", "must not have leading 0s"),
            ("::ffff:1.2.3.4", "must not be an IPv4-mapped IPv6 address"),
            ("::ffff:102:304", "must not be an IPv4-mapped IPv6 address"),
            ("", BAD),
            ("10.9.8", BAD),
            ("10.9.8.", BAD),
            ("10.9.8.256", BAD),
            ("fe80::1%eth0", BAD),
        ] {
            assert_eq!(said(ip, text), why, "{text}");
        }
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

    #[test]
    fn ranges_begin_at_their_address() {
        const BAD: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        for (text, why) in [
            ("10.9.8.0/24", ""),
            ("0.0.0.0/0", ""),
            ("10.9.8.7/32", ""),
            ("2001:db8::/64", ""),
            ("::/0", ""),
            ("10.9.8.1/24", "must not have bits set beyond the prefix length"),
            ("2001:db8::1/64", "must not have bits set beyond the prefix length"),
            ("10.9.08.0/24", "must not have leading 0s in IP or prefix length"),
            ("10.9.8.0/024", "must not have leading 0s in IP or prefix length"),
            ("::ffff:1.2.3.0/120", "must not have an IPv4-mapped IPv6 address"),
            ("10.9.8.0", BAD),
            ("10.9.8.0/33", BAD),
            ("10.9.8.0/+8", BAD),
            ("10.9.8.0/", BAD),
        ] {
            assert_eq!(said(cidr, text), why, "{text}");
        }
    }
}
