//! The options of writes, as they come in queries and in `DeleteOptions`.

use meta::Object;

#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    pub dry_run: bool,
    /// The `fieldManager` parameter, or what stands before the slash of the user agent.
    pub manager: String,
    /// The object comes from server-side apply, which has already said who manages what.
    pub applied: bool,
    /// The write goes through a subresource that shows one field of the object (`scale`).
    pub through: Option<(&'static str, Vec<String>)>,
}

impl WriteOptions {
    /// A plain write by a manager.
    pub fn by(manager: &str) -> WriteOptions {
        WriteOptions { manager: manager.into(), ..WriteOptions::default() }
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

/// The delete option by which an object that cannot be read is deleted.
pub const IGNORE_READ_ERROR: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    pub dry_run: bool,
    pub grace_period_seconds: Option<i64>,
    pub preconditions: Preconditions,
    pub propagation: Option<Propagation>,
    /// The propagation was given by the deprecated `orphanDependents`.
    pub by_orphans: bool,
    /// `ignoreStoreReadErrorWithClusterBreakingPotential`: deletes what cannot be read, and nothing else.
    pub ignore_read_error: bool,
}

impl DeleteOptions {
    /// Reads `kind: DeleteOptions`. Values that no version knows are left to the validation of the caller.
    pub fn from_object(o: &Object) -> Self {
        let text = |path: &[&str]| o.str_at(path).map(str::to_owned);
        let orphan = o.get("orphanDependents").and_then(meta::Value::as_bool);
        let propagation = match (o.str_at(&["propagationPolicy"]), orphan) {
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            _ => None,
        };
        Self {
            dry_run: o.get("dryRun").and_then(meta::Value::as_array).is_some_and(|a| a.iter().any(|v| v == "All")),
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
