//! Named formats of strings (`k8s.io/apiserver/pkg/cel/library/format.go`).

use super::url::Url;
use super::{Price, Result, Row, no_overload, row};
use crate::value::{Opaque, Val};
use base64::Engine;
use meta::names;

pub struct Format {
    pub name: &'static str,
    /// Validates a string. Returns the errors.
    check: fn(&str) -> Vec<String>,
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
    Format { name: "uuid", check: |s| unless(is_uuid(s), "does not match the UUID format") },
    Format {
        name: "byte",
        check: |s| unless(base64::engine::general_purpose::STANDARD.decode(s).is_ok(), "invalid base64"),
    },
    Format { name: "date", check: |s| unless(s.len() == 10 && s.parse::<jiff::civil::Date>().is_ok(), "invalid date") },
];

static DATETIME: Format =
    Format { name: "datetime", check: |s| unless(crate::time::timestamp(s).is_some(), "invalid datetime") };

fn unless(fine: bool, why: &str) -> Vec<String> {
    if fine { Vec::new() } else { vec![why.to_owned()] }
}

fn is_uuid(s: &str) -> bool {
    let plain: String = s.chars().filter(|c| *c != '-').collect();
    plain.len() == 32 && plain.chars().all(|c| c.is_ascii_hexdigit()) && matches!(s.len(), 32..=36)
}

fn named(name: &str) -> Option<&'static Format> {
    FORMATS.iter().chain([&DATETIME]).find(|f| f.name == name)
}

/// `format.NAME()`.
macro_rules! constant {
    ($full:literal, $name:literal) => {
        row($full, ":format", Price::Fixed(1), |_| match named($name) {
            Some(f) => Ok(Val::opaque(Opaque::Format(f))),
            None => no_overload(),
        })
    };
}

pub(super) const ROWS: &[Row] = &[
    constant!("format.dns1123Label", "dns1123Label"),
    constant!("format.dns1123Subdomain", "dns1123Subdomain"),
    constant!("format.dns1035Label", "dns1035Label"),
    constant!("format.qualifiedName", "qualifiedName"),
    constant!("format.dns1123LabelPrefix", "dns1123LabelPrefix"),
    constant!("format.dns1123SubdomainPrefix", "dns1123SubdomainPrefix"),
    constant!("format.dns1035LabelPrefix", "dns1035LabelPrefix"),
    constant!("format.labelValue", "labelValue"),
    constant!("format.uri", "uri"),
    constant!("format.uuid", "uuid"),
    constant!("format.byte", "byte"),
    constant!("format.date", "date"),
    constant!("format.datetime", "datetime"),
    row("format.named", "string:opt(format)", Price::Fixed(1), |a| match a[0].as_str() {
        Some(s) => Ok(named(s).map_or(Val::Optional(None), |f| Val::some(Val::opaque(Opaque::Format(f))))),
        None => no_overload(),
    }),
    row("validate", ".format,string:opt(list(string))", Price::Pattern(128), validate),
];

fn validate<'a>(args: &[Val<'a>]) -> Result<'a> {
    let (Val::Opaque(o), Some(s)) = (&args[0], args[1].as_str()) else { return no_overload() };
    let Opaque::Format(f) = &**o else { return no_overload() };
    let wrong = (f.check)(s);
    if wrong.is_empty() {
        return Ok(Val::Optional(None));
    }
    Ok(Val::some(Val::list(wrong.into_iter().map(Val::string).collect())))
}
