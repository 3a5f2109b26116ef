//! Functions of named formats (`k8s.io/apiserver/pkg/cel/library/format.go`).

use super::{Price, Result, Row, no_overload, row};
use crate::libraries::format::Format;
use crate::value::{Opaque, Val};

/// `format.NAME()`.
macro_rules! constant {
    ($full:literal, $name:literal) => {
        row($full, ":format", Price::Fixed(1), |_| match Format::named($name) {
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
        Some(s) => Ok(Format::named(s).map_or(Val::Optional(None), |f| Val::some(Val::opaque(Opaque::Format(f))))),
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
