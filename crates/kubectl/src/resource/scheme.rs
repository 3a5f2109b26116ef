//! The Go scheme of a command: the kinds that it has Go types for. Objects of other kinds, and objects that do not fit
//! their type, are rejected before anything is written (`runtime.Scheme`).

use meta::{Gvk, Value};
use std::result::Result;

/// The scheme of commands on built-in kinds.
pub const KUBECTL: &str = "pkg/scheme/scheme.go:28";
/// The scheme of `port-forward`.
pub const CLIENT_GO: &str = "k8s.io/client-go/kubernetes/scheme/register.go:82";

/// Groups whose types belong to neither scheme.
const OTHER_LIBRARIES: [&str; 2] = ["apiextensions.k8s.io", "apiregistration.k8s.io"];

/// Versions whose types both schemes still have, although no server serves them.
const UNSERVED: [(&str, &str); 2] =
    [("rbac.authorization.k8s.io", "v1alpha1"), ("rbac.authorization.k8s.io", "v1beta1")];

/// Whether the types of a version that is not served any more include the kind.
fn unserved(gvk: &Gvk) -> bool {
    UNSERVED.contains(&(gvk.group.as_str(), gvk.version.as_str()))
        && kinds::catalog().schema_of(&Gvk::new(&gvk.group, "v1", &gvk.kind)).is_some()
}

/// Checks whether a scheme has a kind. Without a scheme every kind is accepted.
pub fn knows(scheme: Option<&str>, gvk: &Gvk) -> Result<(), String> {
    let Some(scheme) = scheme else { return Ok(()) };
    let known = kinds::catalog().schema_of(gvk).is_some() || unserved(gvk);
    if known && !OTHER_LIBRARIES.contains(&gvk.group.as_str()) {
        return Ok(());
    }
    Err(format!("no kind {:?} is registered for version {:?} in scheme {scheme:?}", gvk.kind, gvk.api_version()))
}

/// Checks whether a document fits the type of its kind in a scheme.
pub fn decodes(scheme: Option<&str>, gvk: &Gvk, document: &Value) -> Result<(), String> {
    knows(scheme, gvk)?;
    let Some(schema) = scheme.and_then(|_| kinds::catalog().schema_of(gvk)) else { return Ok(()) };
    schema::typed(&mut document.clone(), schema).map(drop).map_err(|e| e.to_string())
}
