//! The kinds and their rows.

use crate::table;
use meta::{GroupVersion, Gvk, Gvr};
use schema::{Definitions, Schema, Str};
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::sync::{Arc, OnceLock};

/// What `metadata.generation` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// Changes of what is neither metadata nor status.
    Spec,
    /// Changes of what is not metadata.
    Content,
    /// Of annotations too.
    Annotations,
    /// Of labels too.
    Labels,
    /// It is 1 and stays.
    First,
    /// Changes, from none.
    Changes,
}

impl Generation {
    pub(crate) fn of(text: &str) -> Option<Self> {
        Some(match text {
            "spec" => Self::Spec,
            "annotations" => Self::Annotations,
            "labels" => Self::Labels,
            "first" => Self::First,
            "changes" => Self::Changes,
            _ => return None,
        })
    }
}

/// A kind in one version.
#[derive(Clone, Debug)]
pub struct Kind {
    pub group: Str,
    pub version: Str,
    pub kind: Str,
    pub plural: Str,
    pub singular: Str,
    /// The kind of lists, where it is not the kind with `List` behind it.
    pub list: Option<Str>,
    pub namespaced: bool,
    /// What `metadata.generation` counts; none: nothing.
    pub generation: Option<Generation>,
    /// The group and version in which objects are stored.
    pub stored: GroupVersion,
    /// Objects are deleted some time after their last change, as `--event-ttl` says.
    pub expires: bool,
    /// A deletion that names no propagation policy orphans the dependents, as it did in the first versions of the API.
    pub orphans: bool,
    /// An update must name the revision it is of.
    pub needs_revision: bool,
    /// An update of what is not there creates it.
    pub put_creates: bool,
    /// How many times an update reports errors of labels, annotations and owner references: once per validation upstream.
    pub metadata_error_repeats: u8,
    /// Finalizers need no domain, as those of Kubernetes' own kinds mostly do.
    pub any_finalizer: bool,
    /// A deletion answers with the object instead of a `Status`.
    pub answers_deleted: bool,
    /// A warning for every request to the kind.
    pub warning: Option<Str>,
    pub verbs: Vec<Str>,
    pub short_names: Vec<Str>,
    pub categories: Vec<Str>,
    pub subresources: Vec<Subresource>,
    /// Selectable fields beside `metadata.name` and `metadata.namespace`.
    pub selectable: Vec<Str>,
    /// Where selectable fields lie in the stored version, if that is elsewhere: field and path.
    pub stored_fields: Vec<(Str, Str)>,
    pub columns: Vec<Column>,
    /// The schema of the object.
    pub schema: Arc<Schema>,
}

#[derive(Clone, Debug)]
pub struct Subresource {
    pub name: Str,
    pub verbs: Vec<Str>,
    /// What it speaks, when it is not the kind itself.
    pub speaks: Option<Gvk>,
}

/// A column of a `Table`.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    pub name: Str,
    pub ty: Str,
    pub format: Str,
    pub description: Str,
    /// 0 is always shown, 1 only with `-o wide`.
    pub priority: i32,
    /// A path (`.spec.replicas`), or `@` and the name of a function of [`crate::columns`], then its arguments.
    pub value: Vec<Str>,
}

/// Every built-in kind and definition.
#[derive(Debug)]
pub struct Catalog {
    /// In the order of discovery.
    pub kinds: Vec<Kind>,
    pub definitions: Definitions,
    by_gvk: HashMap<Gvk, usize>,
    by_gvr: HashMap<Gvr, usize>,
}

impl Kind {
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion::new(&*self.group, &*self.version)
    }

    pub fn gvk(&self) -> Gvk {
        Gvk::new(&*self.group, &*self.version, &*self.kind)
    }

    pub fn gvr(&self) -> Gvr {
        self.group_version().with_resource(&*self.plural)
    }

    pub fn list_kind(&self) -> String {
        self.list.as_deref().map_or_else(|| format!("{}List", self.kind), str::to_owned)
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| &*s.name == name)
    }

    /// The path of a selectable field in the stored version.
    pub fn stored_field<'a>(&'a self, field: &'a str) -> &'a str {
        self.stored_fields.iter().find(|(name, _)| **name == *field).map_or(field, |(_, path)| path)
    }

    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| &**v == verb)
    }

    /// Whether the objects, or those of a subresource, can be read, and not only be created or changed.
    pub fn is_read(&self, subresource: &str) -> bool {
        let part = (!subresource.is_empty()).then(|| self.subresource(subresource));
        let verbs = match part {
            Some(part) => part.map(|s| &s.verbs[..]).unwrap_or_default(),
            None => &self.verbs,
        };
        verbs.iter().any(|v| matches!(&**v, "get" | "list"))
    }
}

impl Catalog {
    pub fn kind(&self, gvk: &Gvk) -> Option<&Kind> {
        self.by_gvk.get(gvk).map(|&i| &self.kinds[i])
    }

    pub fn resource(&self, gvr: &Gvr) -> Option<&Kind> {
        self.by_gvr.get(gvr).map(|&i| &self.kinds[i])
    }

    /// The schema of a kind, also of those without a resource of their own (`Scale`, `Eviction`, `DeleteOptions`).
    pub fn schema_of(&self, gvk: &Gvk) -> Option<&Arc<Schema>> {
        if let Some(k) = self.kind(gvk) {
            return Some(&k.schema);
        }
        let prefix = table::prefix(&gvk.group, &gvk.version);
        self.definitions
            .get(&format!("{prefix}.{}", gvk.kind))
            .or_else(|| self.definitions.get(&format!("{}.{}", table::META, gvk.kind)))
    }
}

/// The catalogue, read on first use (a few milliseconds) and kept.
pub fn catalog() -> &'static Catalog {
    static CATALOG: OnceLock<Catalog> = OnceLock::new();
    CATALOG.get_or_init(|| {
        let (kinds, definitions) = table::load();
        let by_gvk = kinds.iter().enumerate().map(|(i, k)| (k.gvk(), i)).collect();
        let by_gvr = kinds.iter().enumerate().map(|(i, k)| (k.gvr(), i)).collect();
        Catalog { kinds, definitions, by_gvk, by_gvr }
    })
}

/// The texts of all definitions: by definition, then by field (`""` for the definition's own). Unpacked at each call, since
/// only OpenAPI and `explain` want them.
pub fn texts() -> BTreeMap<String, BTreeMap<String, String>> {
    let packed: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/texts.bin"));
    let mut text = String::new();
    // Both were made by the build; that they can be read is tested.
    let _ = flate2::read::DeflateDecoder::new(packed).read_to_string(&mut text);
    serde_json::from_str(&text).unwrap_or_default()
}
