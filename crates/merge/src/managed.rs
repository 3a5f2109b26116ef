//! Managed fields: who owns which field of an object, kept current by every write.
//!
//! [`update()`] follows a create, update or patch, which never conflicts, and takes ownership of the changed fields. [`apply()`]
//! merges a configuration, or names the conflicts. Both follow kube-apiserver v1.36, its wrappers included: the fields that
//! are never owned, the cap on entries, tracking that starts with `before-first-apply`, and the handover from client-side
//! apply by kubectl.
//!
//! Left out: versions of a kind, times and names come from the caller ([`Context`]); validation of a client's own
//! `managedFields` belongs to the validation of metadata.

mod apply;
mod conflict;
mod entry;
mod update;

pub use apply::{Force, apply, check};
pub use conflict::{Conflict, Conflicts};
pub use entry::{Entry, Managers, Operation};
pub use update::{same_but_for_times, update, update_field};

use crate::fieldset::Set;
use crate::typed::TypeRef;
use meta::{Object, Reason, Status, Value};
use schema::Schema;
use std::sync::LazyLock;

/// Maximum entries of operation `Update`; beyond it, the oldest are merged.
pub const MAX_UPDATE_MANAGERS: usize = 10;
const ANCIENT: &str = "ancient-changes";
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// Only with this manager does apply take over from client-side apply.
const KUBECTL: &str = "kubectl";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The error of a write that cannot be tracked or applied.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An apply conflicts with other managers.
    #[error(transparent)]
    Conflict(#[from] Conflicts),
    /// The configuration has another version than the request.
    #[error("Incorrect version specified in apply patch. Specified patch version: {got}, expected: {want}")]
    Version {
        /// The version of the configuration.
        got: String,
        /// The version of the request.
        want: String,
    },
    /// The configuration has `managedFields`.
    #[error("metadata.managedFields must be nil")]
    ManagedFieldsGiven,
    /// The configuration does not fit the schema.
    #[error("failed to create typed patch object ({object}): {why}")]
    Typed {
        /// The object, as upstream names it.
        object: String,
        /// The errors.
        why: String,
    },
    /// The `managedFields` cannot be decoded.
    #[error("failed to decode managed fields: {0}")]
    Decode(#[from] entry::Error),
    /// The object cannot be converted to a version.
    #[error("{0}")]
    Convert(String),
}

impl Error {
    /// The status of the response. It is 400 for a configuration that does not fit the schema (upstream: 500), since the client has to correct it.
    pub fn status(&self) -> Status {
        match self {
            Self::Conflict(c) => c.status(),
            Self::Version { .. } | Self::ManagedFieldsGiven | Self::Typed { .. } => {
                Status::bad_request(self.to_string())
            }
            Self::Decode(_) | Self::Convert(_) => Status::new(500, Reason::Unknown, self.to_string()),
        }
    }
}

/// Other versions of the object's kind.
pub trait Versions {
    /// Converts the object to another version. `Ok(None)` if the version does not exist (any more); then its entries are dropped.
    fn convert(&self, object: &Object, api_version: &str) -> Result<Option<Object>, String>;
    /// Whether the version exists. Entries may name any, and a conversion copies the object.
    fn has(&self, _api_version: &str) -> bool {
        true
    }
    /// The schema of a version; `None` for a kind without one.
    fn schema(&self, api_version: &str) -> Option<&Schema>;
}

/// A kind with one version only.
pub struct OneVersion;

impl Versions for OneVersion {
    fn convert(&self, _: &Object, _: &str) -> Result<Option<Object>, String> {
        Ok(None)
    }

    fn schema(&self, _: &str) -> Option<&Schema> {
        None
    }
}

/// The context of a write.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The manager: `fieldManager`, or the part of the user agent before the slash.
    pub manager: &'a str,
    /// The group and version of the request: `apps/v1`.
    pub api_version: &'a str,
    /// Empty for the main resource.
    pub subresource: &'a str,
    /// The schema of the kind in the request's version.
    pub schema: Option<&'a Schema>,
    /// RFC 3339, whole seconds.
    pub time: &'a str,
    /// Fields that the resource's strategy resets, so that no write through it owns them: `status` for most main resources,
    /// `spec` for their `status`.
    pub reset_fields: &'a Set,
    /// The versions of the kind.
    pub versions: &'a dyn Versions,
}

impl<'a> Context<'a> {
    fn type_ref(&self) -> TypeRef<'a> {
        TypeRef::new(self.schema)
    }
}

/// Fields that have no owner.
fn stripped() -> &'static Set {
    static STRIPPED: LazyLock<Set> = LazyLock::new(|| {
        Set::of_fields(&[
            &["apiVersion"],
            &["kind"],
            &["metadata"],
            &["metadata", "name"],
            &["metadata", "namespace"],
            &["metadata", "creationTimestamp"],
            &["metadata", "selfLink"],
            &["metadata", "uid"],
            &["metadata", "clusterName"],
            &["metadata", "generation"],
            &["metadata", "managedFields"],
            &["metadata", "resourceVersion"],
        ])
    });
    &STRIPPED
}

/// Removes `metadata.managedFields` and returns it.
fn take_managed_fields(o: &mut Object) -> Option<Value> {
    o.0.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

fn put_managed_fields(o: &mut Object, v: Value) {
    match v {
        Value::Null => {}
        Value::Array(a) if a.is_empty() => {}
        v => _ = o.metadata_mut().insert("managedFields".to_owned(), v),
    }
}

#[cfg(test)]
#[path = "managed_tests.rs"]
mod tests;
