//! Formats of strings and numbers (`k8s.io/apiextensions-apiserver/pkg/apiserver/validation/formats.go`). Unknown formats are ignored.

use meta::names;
use regex::Regex;
use serde_json::Value;
use std::net::Ipv6Addr;
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
        "ipv4" => ipv4(s) || s.contains('.') && s.parse::<Ipv6Addr>().is_ok(),
        "ipv6" => s.parse::<Ipv6Addr>().is_ok(),
        "cidr" => cidr(s),
        "mac" => (matches(0, s) && !(s.contains(':') && s.contains('-'))) || matches(9, s),
        "uuid" => matches(1, s),
        "uuid3" => matches(2, s),
        "uuid4" => matches(3, s),
        "uuid5" => matches(4, s),
        "isbn" => isbn10(s) || isbn13(s),
        "isbn10" => isbn10(s),
        "isbn13" => isbn13(s),
        "creditcard" => luhn(&digits(s)) && matches(5, &digits(s)),
        "ssn" => s.len() == 11 && matches(6, s),
        "hexcolor" => matches(7, s),
        "rgbcolor" => matches(8, s),
        "byte" => base64(s),
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
    const TEXTS: [&str; 13] = [
        "^(?i)[0-9a-f]{2}([:-][0-9a-f]{2}){5}(([:-][0-9a-f]{2}){2}(([:-][0-9a-f]{2}){12})?)?$",
        "^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$",
        "^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$",
        "^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$",
        "^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$",
        "^(4[0-9]{12}([0-9]{3})?|5[1-5][0-9]{14}|6(011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(0[0-5]|[68][0-9])[0-9]{11}|(2131|1800|35[0-9]{3})[0-9]{11})$",
        "^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$",
        "^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$",
        "^rgb\\(\\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])(\\s*,\\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])){2}\\s*\\)$",
        "^(?i)[0-9a-f]{4}(\\.[0-9a-f]{4}){2}(\\.[0-9a-f]{4}|(\\.[0-9a-f]{4}){7})?$",
        r"^[a-zA-Z0-9\p{S}\p{L}]*$",
        r"^[a-zA-Z\p{L}]*$",
        "^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$",
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

/// One label, of which only the second character may be a hyphen; or labels and a top-level domain of letters.
fn hostname(s: &str) -> bool {
    let word = |w: &str| matches(10, w);
    let labels: Vec<&str> = s.split('.').collect();
    if s.len() > 255 || labels.iter().any(|l| l.len() > 63) {
        return false;
    }
    let Some((top, others)) = labels.split_last() else { return false };
    if others.is_empty() {
        let Some(first) = top.chars().next() else { return false };
        let (first, rest) = top.split_at(first.len_utf8());
        return word(first) && word(rest.strip_prefix('-').unwrap_or(rest));
    }
    let inside = |l: &str| !l.is_empty() && !l.starts_with('-') && !l.ends_with('-') && word(&l.replace('-', ""));
    others.iter().all(|l| inside(l)) && top.chars().count() >= 2 && matches(11, top)
}

/// An address with leading zeros, as Go read it before 1.17.
fn ipv4(s: &str) -> bool {
    let part = |p: &str| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()) && p.parse::<u8>().is_ok();
    s.split('.').count() == 4 && s.split('.').all(part)
}

/// Base64 that is not empty. Bits that the last character has too many do not matter.
fn base64(s: &str) -> bool {
    let digits = s.trim_end_matches('=');
    let padding = s.len() - digits.len();
    let is_digit = |b: u8| b.is_ascii_alphanumeric() || b == b'+' || b == b'/';
    !s.is_empty() && s.len().is_multiple_of(4) && padding <= 2 && digits.bytes().all(is_digit)
}

fn cidr(s: &str) -> bool {
    let Some((ip, bits)) = s.split_once('/') else { return false };
    let max = match ip.parse::<Ipv6Addr>() {
        Ok(_) => 128,
        Err(_) if ipv4(ip) => 32,
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

/// RFC 3339 in any case, of which only the first digits of the time are compared.
fn date_time(s: &str) -> bool {
    let lower = s.to_lowercase();
    let Some((date, time)) = lower.split_once('t') else { return false };
    let time = time.split('t').next().unwrap_or_default();
    let within = |range: std::ops::Range<usize>, last: &str| time.get(range).is_some_and(|t| t <= last);
    date.len() == 10
        && date.parse::<jiff::civil::Date>().is_ok()
        && matches(12, time)
        && within(0..2, "23")
        && within(3..5, "59")
        && within(6..8, "59")
}

/// Go's durations (`1h30m`), or any text with a number and a unit in it (`22 ns`, `3 days`, `P1D`).
fn duration(s: &str) -> bool {
    // The last variant of a unit is a prefix (`nanoseconds`).
    const UNITS: [&[&str]; 8] = [
        &["ns", "nano"],
        &["us", "µs", "micro"],
        &["ms", "milli"],
        &["s", "sec"],
        &["m", "min"],
        &["h", "hr", "hour"],
        &["d", "day"],
        &["w", "wk", "week"],
    ];
    if meta::time::parse_go_duration(s).is_some() {
        return true;
    }
    let is_unit = |text: &str| {
        let text = text.to_lowercase();
        UNITS.iter().any(|all| all.contains(&&*text) || all.last().is_some_and(|last| text.starts_with(last)))
    };
    let mut rest = s;
    let mut found = false;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        rest = &rest[start..];
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        rest = after;
        let after = after.trim_start_matches([' ', '\t', '\n', '\r', '\x0c']);
        let end = after.find(|c: char| !c.is_ascii_alphabetic() && c != 'µ').unwrap_or(after.len());
        if end > 0 {
            if number.parse::<i64>().is_err() {
                return false;
            }
            found |= is_unit(&after[..end]);
            rest = &after[end..];
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_those_of_upstream() {
        for (format, right, wrong) in [
            (
                "hostname",
                &["a", "a-b", "ab", "a.bc", "my-host.example.com", "é.com"][..],
                &["", "a.b", "my-host", "a.bc.", "-a.com", "a_b.com"][..],
            ),
            ("ipv4", &["1.2.3.4", "01.2.3.004", "::ffff:1.2.3.4"], &["1.2.3", "1.2.3.256", "::1", ""]),
            ("cidr", &["10.0.0.0/8", "010.0.0.1/8", "::1/128"], &["10.0.0.0/33", "x", "1.2.3.4"]),
            ("byte", &["AAA=", "AAAA", "AB=="], &["", "AAA", "A===", "!!"]),
            ("duration", &["1h", "P1D", "3 days", "22 ns", "0", "x5m"], &["", "x", "5", "1 fortnight"]),
            (
                "date-time",
                &["2020-01-01T00:00:00Z", "2020-01-01t00:00:00.5+99:99"],
                &["2020-01-01 00:00:00Z", "2020-01-01T24:00:00Z", "2020-01-01T00:00:00"],
            ),
            ("mac", &["01:02:03:04:05:06", "0102.0304.0506"], &["01:02-03:04:05:06", "01:02:03:04:05:06:07"]),
            ("rgbcolor", &["rgb(0, 12,255)"], &["rgb(00,1,2)", "rgb(256,0,0)"]),
        ] {
            for text in right {
                assert!(fits(format, text), "{format} {text}");
            }
            for text in wrong {
                assert!(!fits(format, text), "{format} {text}");
            }
        }
    }
}
