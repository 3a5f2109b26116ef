//! Options of writes: query parameters, and `If-Match`.

use super::patch::is_apply;
use crate::call::Call;
use meta::{FieldError, FieldPath, Status};
use registry::{Preconditions, WriteOptions, check_dry_run};

/// Parses and validates the options of a write from the query (upstream `ValidateCreateOptions` and the like).
pub(super) fn write_options(call: &Call) -> Result<WriteOptions, Status> {
    let manager = call.query.get("fieldManager");
    let at = FieldPath::new("fieldManager");
    let mut errors = Vec::new();
    if call.parts.method == http::Method::PATCH {
        match is_apply(call) {
            true if manager.is_empty() => errors.push(FieldError::required(&at, "is required for apply patch")),
            false if call.query.has("force") => {
                errors
                    .push(FieldError::forbidden(&FieldPath::new("force"), "may not be specified for non-apply patch"));
            }
            _ => {}
        }
    }
    if manager.len() > MAX_MANAGER {
        errors.push(FieldError::too_long(&at, MAX_MANAGER));
    }
    let unprintable = manager.char_indices().filter(|(_, c)| c.is_control() || c.is_whitespace() && *c != ' ');
    errors.extend(unprintable.map(|(i, c)| {
        FieldError::invalid(&at, manager, format!("invalid character U+{:04X} (at position {i})", u32::from(c)))
    }));
    let dry: Vec<&str> = call.query.all("dryRun").collect();
    errors.extend(check_dry_run(&dry));
    errors.extend(read_field_validation(call).err());
    if !errors.is_empty() {
        return Err(Status::invalid(&options_kind(call), "", &errors));
    }
    Ok(WriteOptions { dry_run: !dry.is_empty(), manager: call.manager(), ..WriteOptions::default() })
}

/// Maximum bytes of a field manager.
const MAX_MANAGER: usize = 128;

/// The kind of options for a verb.
fn options_kind(call: &Call) -> meta::GroupKind {
    let kind = match call.parts.method {
        http::Method::PUT => "UpdateOptions",
        http::Method::PATCH => "PatchOptions",
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

/// How unknown and duplicate fields are treated. Errors for an unknown value.
pub(super) fn field_validation(call: &Call) -> Result<FieldValidation, Status> {
    read_field_validation(call).map_err(|e| Status::invalid(&options_kind(call), "", &[e]))
}

fn read_field_validation(call: &Call) -> Result<FieldValidation, FieldError> {
    match call.query.get("fieldValidation") {
        "Strict" => Ok(FieldValidation::Strict),
        "Ignore" => Ok(FieldValidation::Ignore),
        "" | "Warn" => Ok(FieldValidation::Warn),
        other => {
            let allowed = ["", "Ignore", "Strict", "Warn"];
            Err(FieldError::not_supported(&FieldPath::new("fieldValidation"), other, &allowed))
        }
    }
}
