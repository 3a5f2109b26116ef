//! Query parameters and the bodies of deletes and patches.

use crate::resource::encode;
use meta::{FieldSelector, LabelSelector};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Query parameters, encoded as they are added; empty values are skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(String);

impl Query {
    /// Adds a parameter, unless its value is empty.
    pub fn add(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.add_item(name, value);
        }
    }

    /// Adds one value of a list (`command` of `exec`), even if it is empty.
    pub fn add_item(&mut self, name: &str, value: &str) {
        let mut pair = String::new();
        encode(&mut pair, name);
        pair.push('=');
        encode(&mut pair, value);
        let old = std::mem::take(&mut self.0);
        let mut pairs: Vec<&str> = old.trim_start_matches('?').split('&').filter(|p| !p.is_empty()).collect();
        let key = |p: &str| p.split('=').next().unwrap_or_default().to_owned();
        let own = key(&pair);
        let at = pairs.iter().position(|p| key(p) > own).unwrap_or(pairs.len());
        pairs.insert(at, &pair);
        self.0 = format!("?{}", pairs.join("&"));
    }

    /// Empty, or with its question mark.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// How `resourceVersion` applies to a list (`resourceVersionMatch`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VersionMatch {
    /// The server's default.
    #[default]
    Unset,
    /// Any state at least as new as the revision.
    NotOlderThan,
    /// The state at exactly the revision.
    Exact,
}

/// Which objects to list. `Default` is all of them at the newest revision in one response.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// Label selector in text form; empty for all.
    pub label_selector: String,
    /// Field selector in text form; empty for all.
    pub field_selector: String,
    /// `0`: no limit.
    pub limit: u32,
    /// Token of the previous page; empty for the first.
    pub continue_token: String,
    /// Empty: the newest; `0`: any that the server has cached.
    pub resource_version: String,
    /// How `resource_version` applies.
    pub version_match: VersionMatch,
    /// Time limit of the request on the server, in seconds.
    pub timeout_seconds: Option<u32>,
}

impl ListOptions {
    /// All objects that match a label selector.
    pub fn labels(selector: &LabelSelector) -> Self {
        Self { label_selector: selector.to_string(), ..Self::default() }
    }

    /// All objects that match a field selector.
    pub fn fields(selector: &FieldSelector) -> Self {
        Self { field_selector: selector.to_string(), ..Self::default() }
    }

    pub(crate) fn query(&self) -> Query {
        let mut q = Query::default();
        q.add("labelSelector", &self.label_selector);
        q.add("fieldSelector", &self.field_selector);
        if self.limit > 0 {
            q.add("limit", &self.limit.to_string());
        }
        q.add("continue", &self.continue_token);
        q.add("resourceVersion", &self.resource_version);
        match self.version_match {
            VersionMatch::Unset => {}
            VersionMatch::NotOlderThan => q.add("resourceVersionMatch", "NotOlderThan"),
            VersionMatch::Exact => q.add("resourceVersionMatch", "Exact"),
        }
        if let Some(t) = self.timeout_seconds {
            q.add("timeoutSeconds", &t.to_string());
        }
        q
    }
}

/// Which events to watch.
#[derive(Clone, Debug, Default)]
pub struct WatchOptions {
    /// Label selector in text form; empty for all.
    pub label_selector: String,
    /// Field selector in text form; empty for all.
    pub field_selector: String,
    /// Events after this revision. Empty: the current state as synthetic `ADDED` events first.
    pub resource_version: String,
    /// Whether the server sends bookmarks.
    pub bookmarks: bool,
    /// Streaming list: the current state first, then a bookmark with the annotation `k8s.io/initial-events-end`.
    pub send_initial_events: bool,
    /// Time after which the server ends the watch, in seconds.
    pub timeout_seconds: Option<u32>,
}

impl WatchOptions {
    pub(crate) fn query(&self) -> Query {
        let mut q = Query::default();
        q.add("watch", "true");
        q.add("labelSelector", &self.label_selector);
        q.add("fieldSelector", &self.field_selector);
        q.add("resourceVersion", &self.resource_version);
        if self.bookmarks || self.send_initial_events {
            q.add("allowWatchBookmarks", "true");
        }
        if self.send_initial_events {
            q.add("sendInitialEvents", "true");
            q.add("resourceVersionMatch", "NotOlderThan");
        }
        if let Some(t) = self.timeout_seconds {
            q.add("timeoutSeconds", &t.to_string());
        }
        q
    }
}

/// How the server handles unknown and duplicate fields (`fieldValidation`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// The server's default.
    #[default]
    Unset,
    /// Drops them silently.
    Ignore,
    /// Drops them and warns.
    Warn,
    /// Rejects the request.
    Strict,
}

/// Whether a write is only tried (`dryRun`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DryRun {
    /// The server stores the result.
    #[default]
    No,
    /// The server runs all stages but does not store the result.
    All,
}

/// Options of create, update and patch.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Empty: derived from the user agent by the server.
    pub field_manager: String,
    /// Whether the server stores the result.
    pub dry_run: DryRun,
    /// How the server handles unknown and duplicate fields.
    pub field_validation: FieldValidation,
    /// Server-side apply only: take fields from other managers (`--force-conflicts`).
    pub force: bool,
}

impl WriteOptions {
    /// Default options with a field manager.
    pub fn manager(name: &str) -> Self {
        Self { field_manager: name.into(), ..Self::default() }
    }

    pub(crate) fn query(&self) -> Query {
        let mut q = Query::default();
        q.add("fieldManager", &self.field_manager);
        if self.dry_run == DryRun::All {
            q.add("dryRun", "All");
        }
        match self.field_validation {
            FieldValidation::Unset => {}
            FieldValidation::Ignore => q.add("fieldValidation", "Ignore"),
            FieldValidation::Warn => q.add("fieldValidation", "Warn"),
            FieldValidation::Strict => q.add("fieldValidation", "Strict"),
        }
        if self.force {
            q.add("force", "true");
        }
        q
    }
}

/// What happens to dependents of a deleted object (`propagationPolicy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Propagation {
    /// Dependents stay, without the owner reference.
    Orphan,
    /// The object is deleted at once, dependents afterwards.
    Background,
    /// Dependents are deleted first.
    Foreground,
}

/// What an object must have to be deleted (`metav1.Preconditions`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preconditions {
    /// Required UID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Required resource version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

/// `metav1.DeleteOptions`, sent as the body.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteOptions {
    /// Grace period in seconds; none for that of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<i64>,
    /// What happens to dependents; none for the default of the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub propagation_policy: Option<Propagation>,
    /// Preconditions, which otherwise fail with a conflict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preconditions: Option<Preconditions>,
    /// Whether the server deletes the object.
    #[serde(skip_serializing_if = "is_no", serialize_with = "dry_run")]
    pub dry_run: DryRun,
}

fn is_no(d: &DryRun) -> bool {
    *d == DryRun::No
}

fn dry_run<S: serde::Serializer>(_: &DryRun, s: S) -> Result<S::Ok, S::Error> {
    ["All"].serialize(s)
}

impl DeleteOptions {
    /// Deletes only the object with this UID, not a later one of the same name.
    pub fn uid(uid: &str) -> Self {
        Self { preconditions: Some(Preconditions { uid: Some(uid.into()), resource_version: None }), ..Self::default() }
    }

    /// Default options with a propagation policy.
    pub fn propagation(policy: Propagation) -> Self {
        Self { propagation_policy: Some(policy), ..Self::default() }
    }

    /// Sets the grace period, in seconds.
    #[must_use]
    pub fn with_grace(mut self, seconds: i64) -> Self {
        self.grace_period_seconds = Some(seconds);
        self
    }

    pub(crate) fn body(&self) -> Result<Vec<u8>, crate::Error> {
        let encode = |source| crate::Error::Encode { what: "DeleteOptions", source };
        let mut v = serde_json::to_value(self).map_err(encode)?;
        v["kind"] = "DeleteOptions".into();
        v["apiVersion"] = "v1".into();
        serde_json::to_vec(&v).map_err(encode)
    }
}

/// A patch and its kind.
#[derive(Clone, Debug)]
pub enum Patch {
    /// RFC 6902: a list of operations.
    Json(Value),
    /// RFC 7386.
    Merge(Value),
    /// Built-in kinds only.
    Strategic(Value),
    /// Server-side apply; needs a field manager.
    Apply(Value),
}

impl Patch {
    /// The media type of the patch.
    pub fn content_type(&self) -> &'static str {
        match self {
            Self::Json(_) => "application/json-patch+json",
            Self::Merge(_) => "application/merge-patch+json",
            Self::Strategic(_) => "application/strategic-merge-patch+json",
            // JSON is YAML; every server of v1.36 accepts this media type.
            Self::Apply(_) => "application/apply-patch+yaml",
        }
    }

    /// The document of the patch, sent as the body.
    pub fn document(&self) -> &Value {
        let (Self::Json(v) | Self::Merge(v) | Self::Strategic(v) | Self::Apply(v)) = self;
        v
    }
}

/// The status of a strategic merge patch that sets a condition of an object with conditions of these types: one that it has keeps its
/// place, a new one comes last (upstream `PatchPodStatus`).
pub fn condition_patch<'a>(types: impl Iterator<Item = &'a str>, condition: Value) -> Map<String, Value> {
    let mut order: Vec<Value> = types.map(|t| json!({"type": t})).collect();
    if !order.iter().any(|o| o["type"] == condition["type"]) {
        order.push(json!({"type": condition["type"]}));
    }
    let parts = [("conditions", json!([condition])), ("$setElementOrder/conditions", order.into())];
    parts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
