//! The row of a built-in kind, with its subresources and columns.

use meta::{GroupVersion, Gvk, Gvr};
use schema::{Schema, Str};
use std::sync::Arc;

/// The changes that increment `metadata.generation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// Changes of anything but metadata and status.
    Spec,
    /// Changes of anything but metadata.
    Content,
    /// Also changes of annotations.
    Annotations,
    /// Also changes of labels.
    Labels,
    /// It is always 1.
    First,
    /// Changes; it is absent on creation.
    Changes,
}

impl Generation {
    pub(crate) fn parse(text: &str) -> Option<Self> {
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

/// A check of metadata in the validation of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataCheck {
    /// That of new objects (`ValidateObjectMeta`).
    Object,
    /// That of changes (`ValidateObjectMetaUpdate`).
    Change,
}

impl MetadataCheck {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "object" => Self::Object,
            "change" => Self::Change,
            _ => return None,
        })
    }
}

/// A kind in one version.
#[derive(Clone, Debug)]
pub struct Kind {
    /// The API group; empty for the core group.
    pub group: Str,
    /// The version.
    pub version: Str,
    /// The name of the kind.
    pub kind: Str,
    /// The name of the resource.
    pub plural: Str,
    /// The singular name of the resource.
    pub singular: Str,
    /// The kind of lists, if it is not the kind with the suffix `List`.
    pub list: Option<Str>,
    /// Whether objects belong to namespaces.
    pub namespaced: bool,
    /// The changes that increment `metadata.generation`; none if it is not set.
    pub generation: Option<Generation>,
    /// The group and version in which objects are stored.
    pub stored: GroupVersion,
    /// Objects are deleted when `--event-ttl` has passed since their last change.
    pub expires: bool,
    /// A deletion without a propagation policy orphans the dependents, as in the first versions of the API.
    pub orphans: bool,
    /// An update requires a `resourceVersion`.
    pub needs_revision: bool,
    /// An update of an object that does not exist creates it.
    pub put_creates: bool,
    /// The checks of metadata that upstream's validation of an update repeats for the kind, by subresource (empty: the object itself).
    /// Each adds its errors again. Absent subresources have [`MetadataCheck::Change`] alone.
    pub metadata_checks: Vec<(Str, Vec<MetadataCheck>)>,
    /// Finalizers need no domain.
    pub any_finalizer: bool,
    /// The response of a deletion is the object instead of a `Status`.
    pub answers_deleted: bool,
    /// The warning of every request for the kind.
    pub warning: Option<Str>,
    /// The verbs of the resource.
    pub verbs: Vec<Str>,
    /// The short names (`po`).
    pub short_names: Vec<Str>,
    /// The categories (`all`).
    pub categories: Vec<Str>,
    /// The subresources.
    pub subresources: Vec<Subresource>,
    /// Selectable fields beside `metadata.name` and `metadata.namespace`.
    pub selectable: Vec<Str>,
    /// Selectable fields with another path in the stored version, and this path.
    pub stored_fields: Vec<(Str, Str)>,
    /// The columns of its tables.
    pub columns: Vec<Column>,
    /// The schema of the object.
    pub schema: Arc<Schema>,
}

/// A subresource, as `status` or `scale`.
#[derive(Clone, Debug)]
pub struct Subresource {
    /// The name (`status`).
    pub name: Str,
    /// The verbs of the subresource.
    pub verbs: Vec<Str>,
    /// The kind of its objects, if it is not that of the resource.
    pub speaks: Option<Gvk>,
}

/// A column of a `Table`.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// The heading.
    pub name: Str,
    /// The OpenAPI type of the cells.
    pub ty: Str,
    /// The OpenAPI format of the cells.
    pub format: Str,
    /// The description.
    pub description: Str,
    /// 0 is always shown, 1 only with `-o wide`.
    pub priority: i32,
    /// A path (`.spec.replicas`), or `@` and the name of a function of [`crate::columns`], then its arguments.
    pub value: Vec<Str>,
}

impl Kind {
    /// The group and version.
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion::new(&*self.group, &*self.version)
    }

    /// Group, version and kind.
    pub fn gvk(&self) -> Gvk {
        Gvk::new(&*self.group, &*self.version, &*self.kind)
    }

    /// Group, version and resource.
    pub fn gvr(&self) -> Gvr {
        self.group_version().with_resource(&*self.plural)
    }

    /// The name of the list kind.
    pub fn list_kind(&self) -> String {
        self.list.as_deref().map_or_else(|| format!("{}List", self.kind), str::to_owned)
    }

    /// The subresource with this name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| &*s.name == name)
    }

    /// The path of a selectable field in the stored version.
    pub fn stored_field<'a>(&'a self, field: &'a str) -> &'a str {
        self.stored_fields.iter().find(|(name, _)| **name == *field).map_or(field, |(_, path)| path)
    }

    /// The checks of metadata when an object, or a part of it, is updated.
    pub fn metadata_checks(&self, subresource: &str) -> &[MetadataCheck] {
        let found = self.metadata_checks.iter().find(|(name, _)| **name == *subresource);
        found.map_or(&[MetadataCheck::Change], |(_, checks)| checks)
    }

    /// Whether the resource supports the verb.
    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| &**v == verb)
    }

    /// Whether the objects, or those of a subresource, can be read.
    pub fn is_read(&self, subresource: &str) -> bool {
        let part = (!subresource.is_empty()).then(|| self.subresource(subresource));
        let verbs = match part {
            Some(part) => part.map(|s| &s.verbs[..]).unwrap_or_default(),
            None => &self.verbs,
        };
        verbs.iter().any(|v| matches!(&**v, "get" | "list"))
    }
}
