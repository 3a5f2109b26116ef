//! The scheme of a command: the kinds that it has Go types for. Objects of other kinds, and those that do not fit their type, are
//! refused before anything is done (`runtime.Scheme`).

use meta::{Gvk, Value};
use std::result::Result;

/// Of the commands that work on built-in kinds.
pub const KUBECTL: &str = "pkg/scheme/scheme.go:28";
/// Of `port-forward`.
pub const CLIENT_GO: &str = "k8s.io/client-go/kubernetes/scheme/register.go:82";

/// Groups whose types are in libraries of their own, which no scheme here has.
const APART: [&str; 2] = ["apiextensions.k8s.io", "apiregistration.k8s.io"];

/// Whether a scheme has a kind; without a scheme every kind is taken.
pub fn knows(scheme: Option<&str>, gvk: &Gvk) -> Result<(), String> {
    let Some(scheme) = scheme else { return Ok(()) };
    if !APART.contains(&gvk.group.as_str()) && kinds::catalog().schema_of(gvk).is_some() {
        return Ok(());
    }
    Err(format!("no kind {:?} is registered for version {:?} in scheme {scheme:?}", gvk.kind, gvk.api_version()))
}

/// Whether a document fits the type that a scheme has for its kind.
pub fn decodes(scheme: Option<&str>, gvk: &Gvk, document: &Value) -> Result<(), String> {
    knows(scheme, gvk)?;
    let Some(schema) = scheme.and_then(|_| kinds::catalog().schema_of(gvk)) else { return Ok(()) };
    schema::typed(&mut document.clone(), schema).map(drop).map_err(|e| e.to_string())
}
