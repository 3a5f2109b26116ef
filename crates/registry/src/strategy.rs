//! What a kind does that its schema cannot say (`k8s.io/apiserver/pkg/registry/rest`: create, update and delete strategies).

use crate::convert::Converter;
use crate::row::{Function, Resource};
use crate::versions::Conversions;
use crate::{Registry, options::DeleteOptions};
use auth::User;
use kinds::columns::Cell;
use meta::field::ErrorList;
use meta::{Clock, GroupResource, Gvk, Object, Rng, Status, names};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use store::Op;

/// What strategies may look at.
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

/// One request for a resource, as the path to the store sees it.
pub struct Request {
    pub user: User,
    pub resource: Arc<Resource>,
    pub subresource: String,
    pub namespace: String,
    /// Empty for requests on collections.
    pub name: String,
    /// Warnings for the client; they reach it with an error as well.
    pub warnings: Warnings,
    /// What the merging of managed fields wants to know from outside.
    pub conversions: Conversions,
    /// What was sent empty, for the words of errors.
    pub empties: EmptyFields,
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
            conversions: Conversions::default(),
            empties: EmptyFields::default(),
        }
    }
}

/// What was empty in the object that was read last for a request. Clones share it.
#[derive(Clone, Default)]
pub struct EmptyFields(Arc<Mutex<schema::Empties>>);

impl EmptyFields {
    pub fn set(&self, empties: schema::Empties) {
        if let Ok(mut e) = self.0.lock() {
            *e = empties;
        }
    }

    pub fn get(&self) -> schema::Empties {
        self.0.lock().map(|e| e.clone()).unwrap_or_default()
    }
}

/// The warnings of an answer, each once, of bounded length (`k8s.io/apiserver/pkg/endpoints/filters/warning.go`): once all
/// together are longer than 4096 characters, each is cut to 256, and those beyond 4096 are left out. Clones share them.
#[derive(Clone, Default)]
pub struct Warnings(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    texts: Vec<String>,
    known: HashSet<String>,
    /// Characters of all texts, whole and cut.
    whole: usize,
    cut: usize,
}

/// Characters of all warnings of an answer.
const ALL_WARNINGS: usize = 4096;
/// Characters of a warning where there are too many.
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
        // What is longer than all may be is cut anyway.
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
        let mut said = 0;
        let fitting = recorded.texts.into_iter().map(|t| t.chars().take(ONE_WARNING).collect::<String>());
        let until_enough = fitting.take_while(|t| {
            let fits = said < ALL_WARNINGS;
            said += t.chars().count();
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

/// Where upstream registers its own kinds.
pub const LEGACY_SCHEME: &str = "pkg/api/legacyscheme/scheme.go:30";

/// How the name of an object is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    DnsSubdomain,
    DnsLabel,
    Dns1035Label,
    /// A subdomain whose length is said in bytes: the rule `k8s-long-name` of generated validation.
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

    /// What is wrong with a prefix from which names are generated.
    pub fn check_prefix(self, prefix: &str) -> Vec<String> {
        match self {
            Self::IpAddress => Self::DnsSubdomain.check(&names::as_prefix(prefix)),
            rule => rule.check(&names::as_prefix(prefix)),
        }
    }
}

/// How a subresource is served.
pub enum Sub {
    /// A part of the object with rules of its own: `status`, `finalize`, `approval`.
    Part,
    /// `autoscaling/v1` Scale over these paths.
    Scale(Scale),
    Function(Arc<dyn Function>),
    /// A stream to somewhere else: `log`, `exec`, `proxy`.
    Connect,
}

/// Where an object keeps what its scale shows.
#[derive(Clone, Debug)]
pub struct Scale {
    pub spec_replicas: Vec<String>,
    pub status_replicas: Vec<String>,
    pub selector: ScaleSelector,
}

#[derive(Clone, Debug)]
pub enum ScaleSelector {
    /// Made of the object's own.
    Of(fn(&Object) -> String),
    /// A field that holds it as text.
    At(Vec<String>),
    None,
}

impl Scale {
    /// As the kinds of Kubernetes have it.
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

/// Follows a path of names.
pub fn at<'a>(o: &'a Object, path: &[String]) -> Option<&'a meta::Value> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    o.at(&path)
}

/// What `metav1.ResetObjectMetaForStatus` takes from the object there is, beside what no update changes.
pub const ALL_METADATA: &[&str] = &["labels", "annotations", "finalizers", "ownerReferences"];

/// Takes one field from `object` and its metadata, but for what is `fixed` of it; everything else is as in `old`.
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
    // Mostly nothing else differs.
    for (k, v) in old.0.iter().filter(|(k, _)| !taken(k)) {
        if object.get(k) != Some(v) {
            object.0.insert(k.clone(), v.clone());
        }
    }
}

/// `scheme:name:port` of a path to a proxy, without the name; empty where it is not said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyTarget {
    pub scheme: String,
    pub port: String,
}

/// What a proxy leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    Address {
        tls: bool,
        host: String,
        port: u16,
    },
    /// The agent of a node.
    Agent(String),
}

/// Per-kind behaviour. Everything has a default that is right for a kind without peculiarities.
pub trait Strategy: Send + Sync {
    /// What is said of a field that nothing can be selected by, where it is not what is said of most.
    fn unselectable(&self, _field: &str) -> Option<String> {
        None
    }

    /// The name of the registry that upstream looks the kind up in: the line of its source where that is made.
    fn scheme(&self) -> &'static str {
        LEGACY_SCHEME
    }

    fn name_rule(&self) -> NameRule {
        NameRule::DnsSubdomain
    }

    /// What is wrong with the name of an object. [`Self::name_rule`] holds for a prefix that names are generated from as well.
    fn check_name(&self, object: &Object) -> Vec<String> {
        self.name_rule().check(object.name())
    }

    /// Whether the server copied all labels of an object from another of its fields, where they are validated.
    fn has_derived_labels(&self, _object: &Object) -> bool {
        false
    }

    /// Defaults that depend on more than one field. After the schema's own.
    fn default(&self, _object: &mut Object) {}

    /// Clears what clients may not set and sets what the server decides.
    fn prepare_for_create(&self, _env: Env<'_>, _request: &Request, _object: &mut Object) {}

    fn prepare_for_update(&self, _env: Env<'_>, _request: &Request, _object: &mut Object, _old: &Object) {}

    /// Whether this user may write such an object, beyond what the request itself is authorized for (upstream's storages that
    /// are `policybased`). After mutating admission, before the object is looked at any further.
    fn permit(&self, _env: Env<'_>, _request: &Request, _object: &Object, _old: Option<&Object>) -> Result<(), Status> {
        Ok(())
    }

    fn validate(&self, _object: &Object, _errors: &mut ErrorList) {}

    /// Validates what depends on whether the object is new, or on what it was: `old` is none for a new object. Its errors are
    /// about the object as it is; those about changes come from [`Self::validate_update`].
    fn validate_since(&self, _object: &Object, _old: Option<&Object>, _errors: &mut ErrorList) {}

    fn validate_update(&self, _object: &Object, _old: &Object, _errors: &mut ErrorList) {}

    /// Checks of an update through a subresource.
    fn validate_part(&self, _subresource: &str, _object: &Object, _old: &Object, _errors: &mut ErrorList) {}

    /// Whether objects can be written although discovery no longer says so.
    fn serves_more(&self) -> bool {
        false
    }

    /// Whether a write through `subresource` (empty: of the object itself) changes what is asked for, and so the generation.
    fn counts_generation(&self, subresource: &str) -> bool {
        subresource.is_empty()
    }

    /// What is asked after all this, of new objects, updates and parts alike, knowing what was found so far. It may warn.
    fn examine(&self, _request: &Request, _object: &Object, _old: Option<&Object>, _errors: &mut ErrorList) {}

    fn warnings(&self, _object: &Object, _old: Option<&Object>) -> Vec<String> {
        Vec::new()
    }

    /// Takes from `object` only what `subresource` may change. The default is `status`: everything else stays.
    fn take_part(&self, subresource: &str, object: &mut Object, old: &Object) {
        take_field(subresource, object, old, self.fixed_by_status(old));
    }

    /// The fields of the metadata that an update of the status cannot change. Most kinds have none; the newer ones have
    /// [`ALL_METADATA`].
    fn fixed_by_status(&self, _old: &Object) -> &'static [&'static str] {
        &[]
    }

    /// The fields that no write through a path owns, since this strategy resets them, where that is not the usual: the status
    /// for the object itself, and for its status the rest.
    fn resets(&self, _subresource: &str) -> Option<&'static [&'static [&'static str]]> {
        None
    }

    fn subresource(&self, _name: &str) -> Option<Sub> {
        None
    }

    /// Where the `proxy` subresource leads. `place` is what the path says beside the object's name.
    fn proxy(
        &self,
        _env: Env<'_>,
        request: &Request,
        _object: &Object,
        _place: &ProxyTarget,
    ) -> Result<Upstream, Status> {
        Err(Status::method_not_supported(&request.group_resource(), "proxy"))
    }

    /// About how many bytes of other stored objects a write, or a request through a subresource, decodes beside the object that it names.
    /// The estimate is made before the body is read and decides which threads handle the request. It decodes nothing.
    fn reads(&self, _env: Env<'_>, _subresource: &str, _namespace: &str, _name: &str) -> usize {
        0
    }

    /// Whether [`Self::allocate`] changes objects.
    fn allocates(&self) -> bool {
        false
    }

    /// What must be written together with an object (an allocated address), new or changed other than through a subresource.
    /// It comes before everything that prepares and validates, and is tried again when another was faster.
    fn allocate(&self, _env: Env<'_>, _object: &mut Object, _old: Option<&Object>) -> Result<Vec<Op>, Status> {
        Ok(Vec::new())
    }

    /// What must be written together with the removal of an object.
    fn release(&self, _env: Env<'_>, _object: &Object) -> Vec<Op> {
        Vec::new()
    }

    /// The grace period of a deletion, for kinds that have one; none for those that are removed at once.
    fn grace_period(&self, _object: &Object, _options: &DeleteOptions) -> Option<i64> {
        None
    }

    /// Whether an object may be deleted at all.
    fn validate_delete(&self, _object: &Object) -> Result<(), Status> {
        Ok(())
    }

    /// A deletion must wait for more than finalizers of the metadata (a namespace's own).
    fn keeps_alive(&self, _object: &Object) -> bool {
        false
    }

    /// Changes an object that begins to be deleted (a namespace's phase).
    fn begin_deletion(&self, _object: &mut Object) {}

    /// Who knows how the versions differ, if that is somebody outside; see [`crate::convert`].
    fn converter(&self) -> Option<&dyn Converter> {
        None
    }

    /// Brings an object from one version of the resource to another; with a [`Self::converter`] what he has converted.
    fn convert(&self, object: Object, to: &Gvk) -> Result<Object, Status> {
        let mut object = object;
        object.set_gvk(to);
        Ok(object)
    }

    /// The size from which writes may take long, beyond what their size says: what they contain is compiled (patterns,
    /// expressions), or rules that may cost much are evaluated about it.
    fn slow_from(&self) -> Option<usize> {
        None
    }

    /// Bytes that defaults may add to each object when it is read.
    fn adds_defaults(&self) -> usize {
        0
    }

    /// Whether a definition in the store describes this kind: its schema is [`Strategy::published`].
    fn is_custom(&self) -> bool {
        false
    }

    /// The schema as OpenAPI publishes it, where the description of built-in kinds does not have it. Read when it is asked for,
    /// so that texts take no memory.
    fn published(&self, _env: Env<'_>) -> Option<meta::Value> {
        None
    }

    /// Another field of the stored object, whose value counts where a selectable field is empty.
    fn stored_instead(&self, _field: &str) -> Option<&'static str> {
        None
    }

    /// The value of a table cell with a function that only this kind has. None for an unknown function.
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
        let told = w.take();
        assert!(told.len() == 16 && told.iter().all(|t| t.len() == ONE_WARNING), "{}", told.len());
        w.push("x".repeat(1 << 20));
        assert_eq!(w.take(), ["x".repeat(ONE_WARNING)]);
        w.push("x".repeat(ALL_WARNINGS));
        assert_eq!(w.take(), ["x".repeat(ALL_WARNINGS)]);
    }
}
