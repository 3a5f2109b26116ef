//! Options of writes: query parameters, and `If-Match`.

use crate::call::Call;
use meta::Status;
use registry::{Preconditions, WriteOptions};

/// Parses the options of a write from the query. Errors name the parameter, as upstream validates `CreateOptions` and
/// the like.
pub(super) fn write_options(call: &Call) -> Result<WriteOptions, Status> {
    let dry: Vec<&str> = call.query.all("dryRun").filter(|v| !v.is_empty()).collect();
    if let Some(bad) = dry.iter().find(|v| **v != "All") {
        let path = meta::FieldPath::new("dryRun");
        let e = meta::FieldError::not_supported(&path, *bad, &["All"]);
        return Err(Status::invalid(&options_kind(call), "", &[e]));
    }
    let manager = call.query.get("fieldManager");
    if manager.len() > 128 {
        let e = meta::FieldError::too_long(&meta::FieldPath::new("fieldManager"), 128);
        return Err(Status::invalid(&options_kind(call), "", &[e]));
    }
    if manager.chars().any(char::is_control) {
        let why = "should only contain printable characters";
        let e = meta::FieldError::invalid(&meta::FieldPath::new("fieldManager"), manager, why);
        return Err(Status::invalid(&options_kind(call), "", &[e]));
    }
    Ok(WriteOptions { dry_run: !dry.is_empty(), manager: call.manager(), ..WriteOptions::default() })
}

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

pub(super) fn field_validation(call: &Call) -> Result<FieldValidation, Status> {
    match call.query.get("fieldValidation") {
        "Strict" => Ok(FieldValidation::Strict),
        "Ignore" => Ok(FieldValidation::Ignore),
        "" | "Warn" => Ok(FieldValidation::Warn),
        other => {
            let e = meta::FieldError::not_supported(
                &meta::FieldPath::new("fieldValidation"),
                other,
                &["Ignore", "Strict", "Warn"],
            );
            Err(Status::invalid(&options_kind(call), "", &[e]))
        }
    }
}
