//! The named formats of strings (`k8s.io/apiserver/pkg/cel/library/format.go`).

use super::url::Url;
use base64::Engine;
use meta::names;

/// A named format of strings.
pub struct Format {
    /// Its name, as `format.named` takes it.
    pub name: &'static str,
    /// Validates a string. Returns the errors.
    pub(crate) check: fn(&str) -> Vec<String>,
}

impl Format {
    /// The format with this name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        FORMATS.iter().chain([&DATETIME]).find(|f| f.name == name)
    }
}

static FORMATS: [Format; 12] = [
    Format { name: "dns1123Label", check: |s| names::dns_label(s) },
    Format { name: "dns1123Subdomain", check: |s| names::dns_subdomain(s) },
    Format { name: "dns1035Label", check: |s| names::dns_1035_label(s) },
    Format { name: "qualifiedName", check: |s| names::qualified_name(s) },
    Format { name: "dns1123LabelPrefix", check: |s| names::dns_label(&names::as_prefix(s)) },
    Format { name: "dns1123SubdomainPrefix", check: |s| names::dns_subdomain(&names::as_prefix(s)) },
    Format { name: "dns1035LabelPrefix", check: |s| names::dns_1035_label(&names::as_prefix(s)) },
    Format { name: "labelValue", check: |s| names::label_value(s) },
    Format {
        name: "uri",
        check: |s| match Url::parse(s) {
            Some(_) => Vec::new(),
            None if s.is_empty() => vec![format!("parse {s:?}: empty url")],
            None => vec![format!("parse {s:?}: invalid URI for request")],
        },
    },
    Format { name: "uuid", check: |s| error_unless(is_uuid(s), "does not match the UUID format") },
    Format {
        name: "byte",
        check: |s| error_unless(base64::engine::general_purpose::STANDARD.decode(s).is_ok(), "invalid base64"),
    },
    Format {
        name: "date",
        check: |s| error_unless(s.len() == 10 && s.parse::<jiff::civil::Date>().is_ok(), "invalid date"),
    },
];

static DATETIME: Format =
    Format { name: "datetime", check: |s| error_unless(crate::time::timestamp(s).is_some(), "invalid datetime") };

fn error_unless(valid: bool, why: &str) -> Vec<String> {
    if valid { Vec::new() } else { vec![why.to_owned()] }
}

fn is_uuid(s: &str) -> bool {
    let plain: String = s.chars().filter(|c| *c != '-').collect();
    plain.len() == 32 && plain.chars().all(|c| c.is_ascii_hexdigit()) && matches!(s.len(), 32..=36)
}
