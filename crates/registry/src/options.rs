//! The options of writes, from query parameters and `DeleteOptions`.

use meta::field::ErrorList;
use meta::{FieldError, FieldPath, GroupKind, Object, Status, Value};

const POLICIES: [&str; 3] = ["Foreground", "Background", "Orphan"];
/// The policies in errors, with the name that upstream gives to none.
const LISTED_POLICIES: [&str; 4] = ["Foreground", "Background", "Orphan", "nil"];

#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    pub dry_run: bool,
    /// The `fieldManager` parameter, or else the user agent up to the first slash.
    pub manager: String,
    /// Managed fields stay as they are: server-side apply has set them already, or the write is one of those that upstream does not
    /// track (bindings, the condition of an eviction).
    pub untracked: bool,
    /// The write goes through a subresource for one field of the object (`scale`).
    pub through: Option<(&'static str, Vec<String>)>,
}

impl WriteOptions {
    /// A plain write by a manager.
    pub fn by(manager: &str) -> WriteOptions {
        WriteOptions { manager: manager.into(), ..WriteOptions::default() }
    }

    /// The same write, without a trace in managed fields.
    #[must_use]
    pub fn untracked(&self) -> WriteOptions {
        WriteOptions { untracked: true, ..self.clone() }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Preconditions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Orphan,
    Background,
    Foreground,
}

/// The delete option for objects that cannot be read.
pub const IGNORE_READ_ERROR: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    pub dry_run: bool,
    pub grace_period_seconds: Option<i64>,
    pub preconditions: Preconditions,
    pub propagation: Option<Propagation>,
    /// The propagation policy comes from the deprecated `orphanDependents`.
    pub by_orphans: bool,
    /// `ignoreStoreReadErrorWithClusterBreakingPotential`: deletes only objects that cannot be read.
    pub ignore_read_error: bool,
}

impl DeleteOptions {
    /// Validates options as they were sent.
    pub fn check(o: &Object) -> Result<(), Status> {
        let mut errors = ErrorList::new();
        let policy = o.get("propagationPolicy").filter(|v| !v.is_null());
        let at = FieldPath::new("propagationPolicy");
        if let Some(p) = policy.filter(|_| o.get("orphanDependents").is_some_and(|v| !v.is_null())) {
            errors.push(FieldError::invalid(&at, p, "orphanDependents and deletionPropagation cannot be both set"));
        }
        if let Some(p) = policy.and_then(Value::as_str).filter(|p| !POLICIES.contains(p)) {
            errors.push(FieldError::not_supported(&at, p, &LISTED_POLICIES));
        }
        let dry = o.get("dryRun").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if dry.iter().any(|d| d != "All") {
            errors.push(FieldError::not_supported(&FieldPath::new("dryRun"), dry, &["All"]));
        }
        let kind = GroupKind { group: "meta.k8s.io".into(), kind: "DeleteOptions".into() };
        if errors.is_empty() { Ok(()) } else { Err(Status::invalid(&kind, "", &errors)) }
    }

    /// Reads `kind: DeleteOptions`. Leaves unknown values to the caller's validation.
    pub fn from_object(o: &Object) -> Self {
        let text = |path: &[&str]| o.str_at(path).map(str::to_owned);
        let orphan = o.get("orphanDependents").and_then(Value::as_bool);
        let propagation = match (o.str_at(&["propagationPolicy"]), orphan) {
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            _ => None,
        };
        Self {
            dry_run: o.get("dryRun").and_then(Value::as_array).is_some_and(|a| a.iter().any(|v| v == "All")),
            grace_period_seconds: o.int_at(&["gracePeriodSeconds"]),
            preconditions: Preconditions {
                uid: text(&["preconditions", "uid"]),
                resource_version: text(&["preconditions", "resourceVersion"]),
            },
            propagation,
            by_orphans: orphan.is_some(),
            ignore_read_error: o.get(IGNORE_READ_ERROR).is_some_and(|v| *v == true),
        }
    }
}
