//! What may be a name, a label, an annotation key (`k8s.io/apimachinery/pkg/util/validation`).
//!
//! Every check returns the messages of what is wrong; an empty list means right.

/// Maximum characters of the value of a label.
pub const LABEL_VALUE_MAX: usize = 63;
/// Maximum characters of a DNS label.
pub const DNS_LABEL_MAX: usize = 63;
/// Maximum characters of a DNS subdomain.
pub const DNS_SUBDOMAIN_MAX: usize = 253;

fn alnum(b: u8) -> bool {
    b.is_ascii_alphanumeric()
}

fn lower_alnum(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn shaped(s: &str, edge: fn(u8) -> bool, inner: fn(u8) -> bool) -> bool {
    let b = s.as_bytes();
    match (b.first(), b.last()) {
        (Some(&f), Some(&l)) => edge(f) && edge(l) && b.iter().all(|&c| inner(c)),
        _ => false,
    }
}

/// Labels count bytes, everything that is older characters; both are the same number.
fn too_long(max: usize, unit: &str) -> String {
    format!("must be no more than {max} {unit}")
}

const DNS_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const DNS_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const UNDERSCORES: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')";
const DNS_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// Errors of a DNS label (RFC 1123); empty for a valid one.
pub fn dns_label(s: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if s.len() > DNS_LABEL_MAX {
        errors.push(too_long(DNS_LABEL_MAX, "characters"));
    }
    if !shaped(s, lower_alnum, |c| lower_alnum(c) || c == b'-') {
        errors.push(if is_subdomain(s) { "must not contain dots" } else { DNS_LABEL }.to_owned());
    }
    errors
}

fn is_subdomain(s: &str) -> bool {
    s.split('.').all(|l| shaped(l, lower_alnum, |c| lower_alnum(c) || c == b'-'))
}

/// Errors of a DNS subdomain (RFC 1123); empty for a valid one.
pub fn dns_subdomain(s: &str) -> Vec<String> {
    subdomain(s, "characters")
}

const WILDCARD: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// A subdomain after `*.`.
pub fn wildcard_dns_subdomain(s: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if s.len() > DNS_SUBDOMAIN_MAX {
        errors.push(too_long(DNS_SUBDOMAIN_MAX, "characters"));
    }
    if !s.strip_prefix("*.").is_some_and(is_subdomain) {
        errors.push(WILDCARD.to_owned());
    }
    errors
}

/// The message of generated validation.
pub fn long_name(s: &str) -> Vec<String> {
    subdomain(s, "bytes")
}

fn subdomain(s: &str, unit: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if s.len() > DNS_SUBDOMAIN_MAX {
        errors.push(too_long(DNS_SUBDOMAIN_MAX, unit));
    }
    if !is_subdomain(s) {
        errors.push(DNS_SUBDOMAIN.to_owned());
    }
    errors
}

/// A subdomain with underscores allowed in its labels, as in DNS search lists.
pub fn dns_subdomain_with_underscores(s: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if s.len() > DNS_SUBDOMAIN_MAX {
        errors.push(too_long(DNS_SUBDOMAIN_MAX, "characters"));
    }
    let label =
        |l: &str| shaped(l.strip_prefix('_').unwrap_or(l), lower_alnum, |c| lower_alnum(c) || matches!(c, b'-' | b'_'));
    if !s.split('.').all(label) {
        errors.push(UNDERSCORES.to_owned());
    }
    errors
}

/// Errors of a DNS label (RFC 1035), which starts with a letter; empty for a valid one.
pub fn dns_1035_label(s: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if s.len() > DNS_LABEL_MAX {
        errors.push(too_long(DNS_LABEL_MAX, "characters"));
    }
    let first = s.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    if !first || !shaped(s, lower_alnum, |c| lower_alnum(c) || c == b'-') {
        errors.push(DNS_1035.to_owned());
    }
    errors
}

/// `name` or `prefix/name`, the form of label keys, annotation keys, resource names and finalizers.
pub fn qualified_name(s: &str) -> Vec<String> {
    let parts: Vec<&str> = s.split('/').collect();
    let mut errors = Vec::new();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(subdomain(prefix, "bytes").into_iter().map(|m| format!("prefix part {m}")));
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_VALUE_MAX {
        errors.push(format!("name part {}", too_long(LABEL_VALUE_MAX, "bytes")));
    }
    if !shaped(name, alnum, |c| alnum(c) || matches!(c, b'-' | b'_' | b'.')) {
        errors.push(format!("name part {QUALIFIED}"));
    }
    errors
}

/// Errors of the value of a label; empty for a valid one.
pub fn label_value(s: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if s.len() > LABEL_VALUE_MAX {
        errors.push(too_long(LABEL_VALUE_MAX, "bytes"));
    }
    if !s.is_empty() && !shaped(s, alnum, |c| alnum(c) || matches!(c, b'-' | b'_' | b'.')) {
        errors.push(LABEL_VALUE.to_owned());
    }
    errors
}

/// A name that is one segment of a URL path and nothing more (RBAC objects).
pub fn path_segment(s: &str) -> Vec<String> {
    if s == "." || s == ".." {
        return vec![format!("may not be '{s}'")];
    }
    ['/', '%'].iter().filter(|c| s.contains(**c)).map(|c| format!("may not contain '{c}'")).collect()
}

/// A key of ConfigMap or Secret data.
pub fn config_map_key(s: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if s.len() > DNS_SUBDOMAIN_MAX {
        errors.push(too_long(DNS_SUBDOMAIN_MAX, "characters"));
    }
    if s.is_empty() || !s.bytes().all(|c| alnum(c) || matches!(c, b'-' | b'_' | b'.')) {
        errors.push("a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')".to_owned());
    }
    if s == "." || s == ".." {
        errors.push(format!("must not be '{s}'"));
    } else if s.starts_with("..") {
        errors.push("must not start with '..'".to_owned());
    }
    errors
}

/// An environment variable name: any printable ASCII except `=`.
pub fn env_var_name(s: &str) -> Vec<String> {
    if s.is_empty() {
        return vec!["environment variable name must not be empty".to_owned()];
    }
    if s.bytes().all(|b| (0x20..0x7f).contains(&b) && b != b'=') {
        Vec::new()
    } else {
        vec![
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
                .to_owned(),
        ]
    }
}

/// An IANA service name: a port's name.
pub fn port_name(s: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if s.len() > 15 {
        errors.push("must be no more than 15 characters".to_owned());
    }
    if s.is_empty() || !s.bytes().all(|c| lower_alnum(c) || c == b'-') {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !s.bytes().any(|c| c.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".to_owned());
    }
    if s.contains("--") {
        errors.push("must not contain consecutive hyphens".to_owned());
    }
    if s.starts_with('-') || s.ends_with('-') {
        errors.push("must not begin or end with a hyphen".to_owned());
    }
    errors
}

/// Errors of a port number; empty for a valid one.
pub fn port_number(n: i64) -> Vec<String> {
    if (1..=65535).contains(&n) { Vec::new() } else { vec!["must be between 1 and 65535, inclusive".to_owned()] }
}

/// `NAME` as the stem of a longer generated name: a trailing hyphen is allowed.
pub fn as_prefix(s: &str) -> String {
    if s.len() > 1 && s.ends_with('-') { format!("{}a", &s[..s.len() - 1]) } else { s.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert!(dns_label("a-1").is_empty());
        for bad in ["", "-a", "a-", "A", "a.b", &"a".repeat(64)] {
            assert!(!dns_label(bad).is_empty(), "{bad}");
        }
        assert!(dns_subdomain("a.b-c.d").is_empty());
        for bad in ["", ".a", "a..b", "a_b", "a.-b"] {
            assert!(!dns_subdomain(bad).is_empty(), "{bad}");
        }
        for ok in ["a", "example.com/A_b.c", "kubernetes.io/x"] {
            assert!(qualified_name(ok).is_empty(), "{ok}");
        }
        for bad in ["", "/a", "a/", "a/b/c", "a b", "_a", "Ex.com/a"] {
            assert!(!qualified_name(bad).is_empty(), "{bad}");
        }
        assert!(label_value("").is_empty() && label_value("v1_2.3-x").is_empty() && !label_value("-x").is_empty());
        assert!(port_name("http-1").is_empty() && !port_name("80").is_empty() && !port_name("a--b").is_empty());
        assert!(
            config_map_key(".dot").is_empty() && !config_map_key("..x").is_empty() && !config_map_key("a/b").is_empty()
        );
    }
}
