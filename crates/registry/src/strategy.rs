//! Per-kind behaviour beyond the schema (`k8s.io/apiserver/pkg/registry/rest`: create, update and delete strategies).

use crate::convert::Converter;
use crate::row::{Function, Resource};
use crate::{Registry, options::DeleteOptions};
use auth::User;
use kinds::columns::Cell;
use meta::field::ErrorList;
use meta::{Clock, GroupResource, Gvk, Object, Rng, Status, names};
use std::collections::HashSet;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use store::Op;

/// The environment available to strategies.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    pub registry: &'a Registry,
}

impl Env<'_> {
    pub fn clock(&self) -> &dyn Clock {
        &*self.registry.clock
    }

    pub fn rng(&self) -> &dyn Rng {
        &*self.registry.rng
    }
}

/// One request for a resource, as the registry handles it.
pub struct Request {
    pub user: User,
    pub resource: Arc<Resource>,
    pub subresource: String,
    pub namespace: String,
    /// Empty for requests on collections.
    pub name: String,
    /// Collects warnings for the client, which are sent with errors too.
    pub warnings: Warnings,
}

impl Request {
    /// A write of the server itself, as `system:apiserver`. The namespace is empty for objects of the cluster.
    pub fn own(resource: Arc<Resource>, subresource: &str, namespace: &str, name: &str) -> Request {
        Request {
            user: User::new("system:apiserver", &[auth::user::GROUP_MASTERS]),
            resource,
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: name.into(),
            warnings: Warnings::default(),
        }
    }
}

/// An object as a client sent it, or as the server made it.
#[derive(Clone, Default)]
pub struct Sent {
    /// Typed and defaulted.
    pub object: Object,
    /// The fields that the client sent empty, for error messages.
    pub empties: schema::Empties,
}

impl From<Object> for Sent {
    fn from(object: Object) -> Self {
        Self { object, ..Self::default() }
    }
}

impl Deref for Sent {
    type Target = Object;

    fn deref(&self) -> &Object {
        &self.object
    }
}

impl DerefMut for Sent {
    fn deref_mut(&mut self) -> &mut Object {
        &mut self.object
    }
}

/// The distinct warnings of a response, of bounded length (`k8s.io/apiserver/pkg/endpoints/filters/warning.go`):
/// above 4096 characters in total, each is truncated to 256, and those beyond 4096 are dropped. Clones share them.
#[derive(Clone, Default)]
pub struct Warnings(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    texts: Vec<String>,
    known: HashSet<String>,
    /// Characters of all warnings: complete, and truncated.
    whole: usize,
    cut: usize,
}

/// Maximum total length of warnings, in characters.
const ALL_WARNINGS: usize = 4096;
/// Length that warnings are truncated to above the total limit, in characters.
const ONE_WARNING: usize = 256;

impl Recorded {
    fn too_many(&self) -> bool {
        self.whole > ALL_WARNINGS
    }
}

impl Warnings {
    pub fn push(&self, text: impl Into<String>) {
        let Ok(mut w) = self.0.lock() else { return };
        if w.too_many() && w.cut >= ALL_WARNINGS {
            return;
        }
        // Truncate early what exceeds the total limit on its own.
        let mut text: String = text.into();
        if let Some((end, _)) = text.char_indices().nth(ALL_WARNINGS + 1) {
            text.truncate(end);
        }
        if text.is_empty() || !w.known.insert(text.clone()) {
            return;
        }
        let length = text.chars().count();
        w.whole += length;
        w.cut += length.min(ONE_WARNING);
        w.texts.push(text);
    }

    pub fn take(&self) -> Vec<String> {
        let Ok(recorded) = self.0.lock().map(|mut w| std::mem::take(&mut *w)) else { return Vec::new() };
        if !recorded.too_many() {
            return recorded.texts;
        }
        let mut total = 0;
        let fitting = recorded.texts.into_iter().map(|t| t.chars().take(ONE_WARNING).collect::<String>());
        let until_enough = fitting.take_while(|t| {
            let fits = total < ALL_WARNINGS;
            total += t.chars().count();
            fits
        });
        until_enough.collect()
    }
}

impl Request {
    pub fn group_resource(&self) -> GroupResource {
        self.resource.group_resource()
    }

    pub fn warn(&self, text: impl Into<String>) {
        self.warnings.push(text);
    }
}

/// The source line where upstream registers its built-in kinds.
pub const LEGACY_SCHEME: &str = "pkg/api/legacyscheme/scheme.go:30";

/// The validation rule for names of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    DnsSubdomain,
    DnsLabel,
    Dns1035Label,
    /// A subdomain whose length limit is reported in bytes: the rule `k8s-long-name` of generated validation.
    LongName,
    /// One segment of a path.
    PathSegment,
    /// An IP address in its canonical form.
    IpAddress,
}

impl NameRule {
    pub fn check(self, name: &str) -> Vec<String> {
        match self {
            Self::DnsSubdomain => names::dns_subdomain(name),
            Self::LongName => names::long_name(name),
            Self::DnsLabel => names::dns_label(name),
            Self::Dns1035Label => names::dns_1035_label(name),
            Self::PathSegment => names::path_segment(name),
            Self::IpAddress => schema::rules::canonical_ip(name).into_iter().collect(),
        }
    }

    /// Validates a prefix for generated names. Returns error messages.
    pub fn check_prefix(self, prefix: &str) -> Vec<String> {
        match self {
            Self::IpAddress => Self::DnsSubdomain.check(&names::as_prefix(prefix)),
            rule => rule.check(&names::as_prefix(prefix)),
        }
    }
}

/// How a subresource is served.
pub enum Sub {
    /// A part of the object with its own validation: `status`, `finalize`, `approval`.
    Part,
    /// `autoscaling/v1` Scale over these paths.
    Scale(Scale),
    Function(Arc<dyn Function>),
    /// A stream to a backend: `log`, `exec`, `proxy`.
    Connect,
}

/// The paths of an object's scale.
#[derive(Clone, Debug)]
pub struct Scale {
    pub spec_replicas: Vec<String>,
    pub status_replicas: Vec<String>,
    pub selector: ScaleSelector,
}

#[derive(Clone, Debug)]
pub enum ScaleSelector {
    /// Computed from the object.
    Of(fn(&Object) -> String),
    /// A field with the selector as text.
    At(Vec<String>),
    None,
}

impl Scale {
    /// The paths of built-in kinds.
    pub fn usual(selector: fn(&Object) -> String) -> Self {
        let path = |a: &str| vec![a.to_owned(), "replicas".to_owned()];
        Self { spec_replicas: path("spec"), status_replicas: path("status"), selector: ScaleSelector::Of(selector) }
    }

    pub fn selector_of(&self, o: &Object) -> String {
        match &self.selector {
            ScaleSelector::Of(f) => f(o),
            ScaleSelector::At(path) => at(o, path).and_then(meta::Value::as_str).unwrap_or_default().to_owned(),
            ScaleSelector::None => String::new(),
        }
    }
}

/// The value at a path.
pub fn at<'a>(o: &'a Object, path: &[String]) -> Option<&'a meta::Value> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    o.at(&path)
}

/// The metadata that `metav1.ResetObjectMetaForStatus` keeps from the old object, besides immutable fields.
pub const ALL_METADATA: &[&str] = &["labels", "annotations", "finalizers", "ownerReferences"];

/// Keeps one field and the metadata of `object`, except the metadata keys in `fixed`; restores everything else from
/// `old`.
pub fn take_field(field: &str, object: &mut Object, old: &Object, fixed: &[&str]) {
    let metadata = object.metadata_mut();
    for key in fixed {
        match old.metadata().and_then(|m| m.get(*key)) {
            Some(v) => metadata.insert((*key).into(), v.clone()),
            None => metadata.remove(*key),
        };
    }
    let taken = |key: &str| key == field || key == "metadata";
    object.0.retain(|k, _| taken(k) || old.0.contains_key(k));
    // Usually nothing else differs.
    for (k, v) in old.0.iter().filter(|(k, _)| !taken(k)) {
        if object.get(k) != Some(v) {
            object.0.insert(k.clone(), v.clone());
        }
    }
}

/// The `scheme:name:port` segment of a proxy path, without the name; omitted parts are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyTarget {
    pub scheme: String,
    pub port: String,
}

/// The target of a proxy subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    Address {
        tls: bool,
        host: String,
        port: u16,
    },
    /// The kubelet of a node.
    Agent(String),
}

/// Per-kind behaviour. The defaults suit a kind without special rules.
pub trait Strategy: Send + Sync {
    /// The error for an unsupported field selector, if it differs from the common one.
    fn unselectable(&self, _field: &str) -> Option<String> {
        None
    }

    /// The name of upstream's scheme for the kind: the source line that creates it. Conversion errors contain it.
    fn scheme(&self) -> &'static str {
        LEGACY_SCHEME
    }

    fn name_rule(&self) -> NameRule {
        NameRule::DnsSubdomain
    }

    /// Validates the name of an object. Returns error messages. [`Self::name_rule`] also applies to prefixes of
    /// generated names.
    fn check_name(&self, object: &Object) -> Vec<String> {
        self.name_rule().check(object.name())
    }

    /// Whether the server copies all labels from another field of the object, which validates them.
    fn has_derived_labels(&self, _object: &Object) -> bool {
        false
    }

    /// Sets defaults that depend on several fields, after the schema's defaults.
    fn default(&self, _object: &mut Object) {}

    /// Resets fields that clients must not set, and sets those that the server determines.
    fn prepare_for_create(&self, _env: Env<'_>, _request: &Request, _object: &mut Object) {}

    fn prepare_for_update(&self, _env: Env<'_>, _request: &Request, _object: &mut Object, _old: &Object) {}

    /// Checks whether the user may write this object, beyond the authorization of the request (upstream's
    /// `policybased` storages). Called after mutating admission, before validation.
    fn permit(&self, _env: Env<'_>, _request: &Request, _object: &Object, _old: Option<&Object>) -> Result<(), Status> {
        Ok(())
    }

    fn validate(&self, _object: &Object, _errors: &mut ErrorList) {}

    /// Validates what depends on whether the object is new, or on its old state; `old` is none for a new object.
    /// Returns errors about the new state; errors about changes come from [`Self::validate_update`].
    fn validate_since(&self, _object: &Object, _old: Option<&Object>, _errors: &mut ErrorList) {}

    fn validate_update(&self, _object: &Object, _old: &Object, _errors: &mut ErrorList) {}

    /// Validates an update through a subresource.
    fn validate_part(&self, _subresource: &str, _object: &Object, _old: &Object, _errors: &mut ErrorList) {}

    /// Whether objects remain writable after the resource has left discovery.
    fn serves_more(&self) -> bool {
        false
    }

    /// Whether a write through `subresource` (empty: the object itself) changes the desired state, and so increments
    /// the generation.
    fn counts_generation(&self, subresource: &str) -> bool {
        subresource.is_empty()
    }

    /// Final validation of creates, updates and subresource writes, with the errors found so far. May add warnings.
    fn examine(&self, _request: &Request, _object: &Object, _old: Option<&Object>, _errors: &mut ErrorList) {}

    fn warnings(&self, _object: &Object, _old: Option<&Object>) -> Vec<String> {
        Vec::new()
    }

    /// Restores from `old` everything in `object` that `subresource` must not change. The default keeps `status`.
    fn take_part(&self, subresource: &str, object: &mut Object, old: &Object) {
        take_field(subresource, object, old, self.fixed_by_status(old));
    }

    /// The metadata keys that a status update cannot change. None for most kinds; newer kinds use [`ALL_METADATA`].
    fn fixed_by_status(&self, _old: &Object) -> &'static [&'static str] {
        &[]
    }

    /// The fields that writes through this path reset and so never own. None selects the default: `status` for the
    /// object, everything but `status` for the status.
    fn resets(&self, _subresource: &str) -> Option<&'static [&'static [&'static str]]> {
        None
    }

    fn subresource(&self, _name: &str) -> Option<Sub> {
        None
    }

    /// The target of the `proxy` subresource. `_segment` holds the scheme and port of the path.
    fn proxy(
        &self,
        _env: Env<'_>,
        request: &Request,
        _object: &Object,
        _segment: &ProxyTarget,
    ) -> Result<Upstream, Status> {
        Err(Status::method_not_supported(&request.group_resource(), "proxy"))
    }

    /// Estimates how many bytes of other stored objects a write or subresource request decodes, besides the named
    /// object. Called before the body is read, to choose the threads for the request. Decodes nothing.
    fn reads(&self, _env: Env<'_>, _subresource: &str, _namespace: &str, _name: &str) -> usize {
        0
    }

    /// Whether [`Self::allocate`] changes objects.
    fn allocates(&self) -> bool {
        false
    }

    /// Operations to commit with a new or changed object (an allocated address); not called for subresources. Called
    /// before preparation and validation, and again after a conflict.
    fn allocate(&self, _env: Env<'_>, _object: &mut Object, _old: Option<&Object>) -> Result<Vec<Op>, Status> {
        Ok(Vec::new())
    }

    /// Operations to commit with the removal of an object.
    fn release(&self, _env: Env<'_>, _object: &Object) -> Vec<Op> {
        Vec::new()
    }

    /// The grace period of a deletion; none for kinds that are deleted immediately.
    fn grace_period(&self, _object: &Object, _options: &DeleteOptions) -> Option<i64> {
        None
    }

    /// Whether an object may be deleted at all.
    fn validate_delete(&self, _object: &Object) -> Result<(), Status> {
        Ok(())
    }

    /// Whether deletion must wait for more than metadata finalizers (a namespace's `spec.finalizers`).
    fn keeps_alive(&self, _object: &Object) -> bool {
        false
    }

    /// Updates an object when its deletion starts (a namespace's phase).
    fn begin_deletion(&self, _object: &mut Object) {}

    /// The external converter between versions, if any; see [`crate::convert`].
    fn converter(&self) -> Option<&dyn Converter> {
        None
    }

    /// Converts an object between versions of the resource; with a [`Self::converter`], applies the schema to its
    /// output.
    fn convert(&self, object: Object, to: &Gvk) -> Result<Object, Status> {
        let mut object = object;
        object.set_gvk(to);
        Ok(object)
    }

    /// The object size from which writes may be slow beyond what the size suggests: their content is compiled
    /// (patterns, expressions), or expensive rules are evaluated.
    fn slow_from(&self) -> Option<usize> {
        None
    }

    /// Bytes that defaults may add to each object on reads.
    fn adds_defaults(&self) -> usize {
        0
    }

    /// Whether a stored CustomResourceDefinition defines this kind: its schema is [`Strategy::published`].
    fn is_custom(&self) -> bool {
        false
    }

    /// The schema in published OpenAPI, if the built-in description lacks it. Read on demand, to keep descriptions
    /// out of memory.
    fn published(&self, _env: Env<'_>) -> Option<meta::Value> {
        None
    }

    /// A fallback field of the stored object where a selectable field is empty.
    fn stored_instead(&self, _field: &str) -> Option<&'static str> {
        None
    }

    /// Evaluates a table cell function of this kind. None for an unknown function.
    fn cell(&self, _cell: &Cell<'_>) -> Option<meta::Value> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_told_once_and_in_bounded_length() {
        let w = Warnings::default();
        for text in ["a", "b", "a", ""] {
            w.push(text);
        }
        assert_eq!(w.take(), ["a", "b"]);
        (0..100_000).for_each(|i| w.push(format!("unknown field {i}: {}", "x".repeat(300))));
        let texts = w.take();
        assert!(texts.len() == 16 && texts.iter().all(|t| t.len() == ONE_WARNING), "{}", texts.len());
        w.push("x".repeat(1 << 20));
        assert_eq!(w.take(), ["x".repeat(ONE_WARNING)]);
        w.push("x".repeat(ALL_WARNINGS));
        assert_eq!(w.take(), ["x".repeat(ALL_WARNINGS)]);
    }
}
