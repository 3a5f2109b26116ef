//! Formats of strings and numbers (`k8s.io/apiextensions-apiserver/pkg/apiserver/validation/formats.go`). Unknown formats are ignored.

use meta::names;
use regex::Regex;
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

const STRINGS: [&str; 26] = [
    "bsonobjectid",
    "uri",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "cidr",
    "mac",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "isbn",
    "isbn10",
    "isbn13",
    "creditcard",
    "ssn",
    "hexcolor",
    "rgbcolor",
    "byte",
    "password",
    "date",
    "duration",
    "datetime",
    "k8sshortname",
    "k8slongname",
];

fn plain(format: &str) -> String {
    format.replace('-', "")
}

/// Whether a format applies to values of this type.
pub fn is_known(ty: &Value, format: &str) -> bool {
    match ty.as_str().unwrap_or_default() {
        "" | "string" => STRINGS.contains(&&*plain(format)),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    }
}

/// Whether a string has a format. Formats of numbers accept any string.
pub fn fits(format: &str, s: &str) -> bool {
    let digits = |s: &str| s.chars().filter(char::is_ascii_digit).collect::<String>();
    match &*plain(format) {
        "bsonobjectid" => s.len() == 24 && s.bytes().all(|b| b.is_ascii_hexdigit()),
        "uri" => uri(s),
        "email" => email(s),
        "hostname" => hostname(s),
        "ipv4" => s.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => s.parse::<Ipv6Addr>().is_ok(),
        "cidr" => cidr(s),
        "mac" => matches(0, s),
        "uuid" => matches(1, s),
        "uuid3" => matches(2, s),
        "uuid4" => matches(3, s),
        "uuid5" => matches(4, s),
        "isbn" => isbn10(s) || isbn13(s),
        "isbn10" => isbn10(s),
        "isbn13" => isbn13(s),
        "creditcard" => luhn(&digits(s)) && matches(5, &digits(s)),
        "ssn" => matches(6, s),
        "hexcolor" => matches(7, s),
        "rgbcolor" => matches(8, s),
        "byte" => crate::base64_decode(s).is_some(),
        "date" => s.len() == 10 && s.parse::<jiff::civil::Date>().is_ok(),
        "datetime" => date_time(s),
        "duration" => duration(s),
        "k8sshortname" => names::dns_label(s).is_empty(),
        "k8slongname" => names::dns_subdomain(s).is_empty(),
        _ => true,
    }
}

/// A regular expression that is compiled when it is first used.
fn matches(i: usize, s: &str) -> bool {
    const TEXTS: [&str; 9] = [
        "^(?i)([0-9a-f]{2}([:-][0-9a-f]{2}){5}([:-][0-9a-f]{2}){0,2}|[0-9a-f]{4}(\\.[0-9a-f]{4}){2,3})$",
        "^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$",
        "^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$",
        "^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$",
        "^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$",
        "^(4[0-9]{12}([0-9]{3})?|5[1-5][0-9]{14}|6(011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(0[0-5]|[68][0-9])[0-9]{11}|(2131|1800|35[0-9]{3})[0-9]{11})$",
        "^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$",
        "^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$",
        "^rgb\\(\\s*([01]?[0-9]?[0-9]|2[0-4][0-9]|25[0-5])(\\s*,\\s*([01]?[0-9]?[0-9]|2[0-4][0-9]|25[0-5])){2}\\s*\\)$",
    ];
    static COMPILED: OnceLock<Vec<OnceLock<Option<Regex>>>> = OnceLock::new();
    let all = COMPILED.get_or_init(|| TEXTS.iter().map(|_| OnceLock::new()).collect());
    let one = all[i].get_or_init(|| Regex::new(TEXTS[i]).ok());
    one.as_ref().is_some_and(|r| r.is_match(s))
}

/// A URI as Go's `url.ParseRequestURI` accepts it: an absolute path, or a scheme with something behind it.
fn uri(s: &str) -> bool {
    if s.is_empty() || s.chars().any(|c| c.is_control() || c == ' ') {
        return false;
    }
    if s.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = s.split_once(':') else { return false };
    let mut letters = scheme.chars();
    letters.next().is_some_and(|c| c.is_ascii_alphabetic())
        && letters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        && !rest.is_empty()
}

fn email(s: &str) -> bool {
    let address = match (s.rfind('<'), s.strip_suffix('>')) {
        (Some(i), Some(inner)) => &inner[i + 1..],
        _ => s,
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let atom = |s: &str| {
        let odd = |c: char| c.is_whitespace() || c.is_control() || "()<>[]:;@\\,\"".contains(c);
        !s.is_empty() && !s.starts_with('.') && !s.ends_with('.') && !s.contains("..") && !s.contains(odd)
    };
    let quoted = local.len() > 1 && local.starts_with('"') && local.ends_with('"');
    (quoted || atom(local)) && (atom(domain) || (domain.starts_with('[') && domain.ends_with(']')))
}

fn hostname(s: &str) -> bool {
    let label = |l: &str| {
        !l.is_empty()
            && l.len() <= 63
            && l.chars().all(|c| c.is_alphanumeric() || c == '-')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    s.len() <= 255 && s.strip_suffix('.').unwrap_or(s).split('.').all(label)
}

fn cidr(s: &str) -> bool {
    let Some((ip, bits)) = s.split_once('/') else { return false };
    let max = match ip.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    bits.bytes().all(|b| b.is_ascii_digit()) && bits.parse::<u8>().is_ok_and(|b| b <= max)
}

fn isbn_digits(s: &str) -> String {
    s.replace(['-', ' '], "")
}

fn isbn10(s: &str) -> bool {
    let d = isbn_digits(s);
    let value = |(i, c): (usize, char)| match c {
        'X' if i == 9 => Some(10),
        c => c.to_digit(10),
    };
    let values: Option<Vec<u32>> = d.chars().enumerate().map(value).collect();
    values.is_some_and(|v| v.len() == 10 && v.iter().zip(1..).map(|(d, i)| d * i).sum::<u32>() % 11 == 0)
}

fn isbn13(s: &str) -> bool {
    let values: Option<Vec<u32>> = isbn_digits(s).chars().map(|c| c.to_digit(10)).collect();
    let weigh = |(i, d): (usize, &u32)| if i % 2 == 0 { *d } else { 3 * d };
    values.is_some_and(|v| v.len() == 13 && v.iter().enumerate().map(weigh).sum::<u32>() % 10 == 0)
}

fn luhn(digits: &str) -> bool {
    let weigh = |(i, c): (usize, char)| match (i % 2, c.to_digit(10).unwrap_or(0)) {
        (0, d) => d,
        (_, d) => 2 * d / 10 + 2 * d % 10,
    };
    !digits.is_empty() && digits.chars().rev().enumerate().map(weigh).sum::<u32>() % 10 == 0
}

/// RFC 3339, with the relaxations of upstream: lower case letters, seconds without a zone are refused.
fn date_time(s: &str) -> bool {
    let upper = s.to_ascii_uppercase();
    upper.len() >= 20 && upper.as_bytes()[10] == b'T' && upper.parse::<jiff::Timestamp>().is_ok()
}

/// Go's durations (`1h30m`), and numbers with a unit in words (`22 ns`, `3 days`).
fn duration(s: &str) -> bool {
    const UNITS: [&str; 27] = [
        "ns", "nano", "nanos", "us", "µs", "micro", "micros", "ms", "milli", "millis", "s", "sec", "secs", "m", "min",
        "mins", "h", "hr", "hrs", "hour", "hours", "d", "day", "days", "w", "wk", "weeks",
    ];
    const LONG: [&str; 10] = [
        "nanosecond",
        "nanoseconds",
        "microsecond",
        "microseconds",
        "milliseconds",
        "second",
        "seconds",
        "minute",
        "minutes",
        "week",
    ];
    let mut rest = s.strip_prefix(['-', '+']).unwrap_or(s).trim();
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let n = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        if n == 0 || rest[..n].parse::<f64>().is_err() {
            return false;
        }
        rest = rest[n..].trim_start();
        let u = rest.find(|c: char| c.is_ascii_digit() || c == '.' || c == ' ').unwrap_or(rest.len());
        if !UNITS.contains(&&rest[..u]) && !LONG.contains(&&rest[..u]) {
            return false;
        }
        rest = rest[u..].trim_start();
    }
    true
}
