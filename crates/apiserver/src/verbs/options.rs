//! Options of writes: query parameters, and `If-Match`.

use crate::call::Call;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Status, Value};
use registry::{Preconditions, WriteOptions};

/// Parses the options of a write from the query. Errors name the parameter, as upstream validates `CreateOptions` and
/// the like; a parameter without a value is validated like another, as `dryRun` without one must not write.
pub(super) fn write_options(call: &Call) -> Result<WriteOptions, Status> {
    let (mut errors, kind) = (ErrorList::new(), options_kind(call));
    if kind.kind != "DeleteOptions" {
        manager(call.query.get("fieldManager"), &mut errors);
    }
    let dry: Vec<Value> = call.query.all("dryRun").map(Value::from).collect();
    if dry.iter().any(|v| v != "All") {
        errors.push(FieldError::not_supported(&FieldPath::new("dryRun"), dry.as_slice(), &["All"]));
    }
    if !errors.is_empty() {
        return Err(Status::invalid(&kind, "", &errors));
    }
    Ok(WriteOptions { dry_run: !dry.is_empty(), manager: call.manager(), ..WriteOptions::default() })
}

/// Maximum length of the name of a manager, in bytes.
const MANAGER_MAX: usize = 128;

fn manager(name: &str, errors: &mut ErrorList) {
    let at = FieldPath::new("fieldManager");
    if name.len() > MANAGER_MAX {
        errors.push(FieldError::too_long(&at, MANAGER_MAX));
    }
    let is_printed = |c: char| c == ' ' || !(c.is_control() || c.is_whitespace());
    for (i, c) in name.char_indices().filter(|(_, c)| !is_printed(*c)) {
        let why = format!("invalid character U+{:04X} (at position {i})", u32::from(c));
        errors.push(FieldError::invalid(&at, name, why));
    }
}

/// The kind of options for a verb.
fn options_kind(call: &Call) -> meta::GroupKind {
    let kind = match call.parts.method {
        http::Method::PUT => "UpdateOptions",
        http::Method::PATCH => "PatchOptions",
        http::Method::DELETE => "DeleteOptions",
        _ => "CreateOptions",
    };
    meta::GroupKind { group: "meta.k8s.io".into(), kind: kind.into() }
}

/// Parses `If-Match`: the expected resource version, as documented for managed fields. Quotes are optional.
pub(super) fn preconditions(call: &Call) -> Preconditions {
    let text = call.parts.headers.get(http::header::IF_MATCH).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let revision = text.trim().trim_matches('"');
    let resource_version = (!revision.is_empty() && revision != "*").then(|| revision.to_owned());
    Preconditions { uid: None, resource_version }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

pub(super) fn field_validation(call: &Call) -> Result<FieldValidation, Status> {
    match call.query.get("fieldValidation") {
        "Strict" => Ok(FieldValidation::Strict),
        "Ignore" => Ok(FieldValidation::Ignore),
        "" | "Warn" => Ok(FieldValidation::Warn),
        other => {
            let at = FieldPath::new("fieldValidation");
            let e = FieldError::not_supported(&at, other, &["", "Ignore", "Strict", "Warn"]);
            Err(Status::invalid(&options_kind(call), "", &[e]))
        }
    }
}
