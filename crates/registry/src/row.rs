//! Resource rows: the description of one resource.

use crate::converted::Converted;
use crate::list::ListOptions;
use crate::options::WriteOptions;
use crate::strategy::{Env, Request, Strategy};
use async_trait::async_trait;
use foldhash::HashMap;
use kinds::Kind;
use meta::{GroupKind, GroupResource, GroupVersion, Gvk, Gvr, Object, Status};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::{Key, Str};

/// One served resource in one version.
pub struct Resource {
    pub kind: Kind,
    pub backend: Backend,
    pub strategy: Arc<dyn Strategy>,
    /// Items in lists omit `kind` and `apiVersion`, as for built-in kinds.
    pub bare_items: bool,
    /// Values stored up to this revision may not conform to the current schema and are normalized on reads; 0: none.
    pub reshaped: u64,
    /// Cache of [`Self::empty`].
    pub empty: OnceLock<Object>,
    /// Cache of its converter's results.
    pub converted: Converted,
    /// The lifetime of an object after its last write; none: unlimited.
    pub lifetime: Option<Duration>,
}

pub enum Backend {
    /// Objects under this storage name, in this version.
    Stored { resource: Str, version: Gvk },
    /// Not stored: creates return a computed response (reviews, bindings, token requests).
    Function(Arc<dyn Function>),
}

/// A resource or subresource implemented by a function.
#[async_trait]
pub trait Function: Send + Sync {
    /// `object` is decoded and defaulted; for a subresource, `request.name` is the name of the parent. Must not write
    /// with `options.dry_run`.
    async fn create(
        &self,
        env: Env<'_>,
        request: &Request,
        object: Object,
        options: &WriteOptions,
    ) -> Result<Object, Status>;

    /// Whether an object sent to the subresource of the named object refers to it. Its name may be empty.
    fn check_name(&self, object: &Object, url: &str) -> Result<(), Status> {
        match object.name() {
            name if name.is_empty() || name == url => Ok(()),
            name => Err(Status::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({url})"
            ))),
        }
    }

    /// Whether the function accepts an object of another kind or version.
    fn accepts(&self, _sent: &Gvk) -> bool {
        false
    }

    async fn get(&self, _env: Env<'_>, request: &Request) -> Result<Object, Status> {
        Err(Status::method_not_supported(&request.group_resource(), "get"))
    }

    /// Lists the objects that the selectors of `options` select, all in one page.
    async fn list(&self, _env: Env<'_>, request: &Request, _options: &ListOptions) -> Result<Vec<Object>, Status> {
        Err(Status::method_not_supported(&request.group_resource(), "list"))
    }
}

impl Resource {
    pub fn group_resource(&self) -> GroupResource {
        GroupResource { group: self.kind.group.to_string(), resource: self.kind.plural.to_string() }
    }

    pub fn group_kind(&self) -> GroupKind {
        GroupKind { group: self.kind.group.to_string(), kind: self.kind.kind.to_string() }
    }

    /// The kind in validation errors: if two groups serve it, in the group of the storage version.
    pub fn named_kind(&self) -> GroupKind {
        let group = self.stored().map_or_else(|| self.kind.group.to_string(), |(_, v)| v.group.clone());
        GroupKind { group, kind: self.kind.kind.to_string() }
    }

    /// An empty object of the kind: fields that are Go structs by value always exist, so no manager owns them.
    pub fn empty(&self) -> &Object {
        self.empty.get_or_init(|| {
            let mut v = serde_json::json!({"apiVersion": self.kind.gvk().api_version(), "kind": &*self.kind.kind});
            // An object without fields cannot have a field of the wrong type.
            let _ = schema::typed(&mut v, &self.kind.schema);
            Object::from_value(v).unwrap_or_default()
        })
    }

    pub fn key(&self, namespace: &str, name: &str) -> Option<Key> {
        match &self.backend {
            Backend::Stored { resource, .. } => {
                Some(Key { resource: resource.clone(), namespace: namespace.into(), name: name.into() })
            }
            Backend::Function(_) => None,
        }
    }

    /// The storage name and storage version.
    pub fn stored(&self) -> Option<(&Str, &Gvk)> {
        match &self.backend {
            Backend::Stored { resource, version } => Some((resource, version)),
            Backend::Function(_) => None,
        }
    }

    /// Whether stored bytes can be served unchanged.
    pub fn serves_bytes(&self, entry: &store::Entry) -> bool {
        !self.converts() && entry.revision > self.reshaped
    }

    /// Whether the storage version differs from the served version.
    pub fn converts(&self) -> bool {
        self.stored().is_some_and(|(_, v)| *v.version != *self.kind.version || *v.group != *self.kind.group)
    }
}

/// The storage name of a resource: `pods`, `apps/deployments`.
pub fn storage_name(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{group}/{resource}") }
}

/// Storage name of internal records: allocations.
const INTERNAL: &str = "internal/";

/// The key of an internal record, which is never served.
pub fn internal_key(kind: &str, name: &str) -> Key {
    Key { resource: format!("{INTERNAL}{kind}").into(), namespace: "".into(), name: name.into() }
}

/// Whether a storage name is that of internal records.
pub fn is_internal(resource: &str) -> bool {
    resource.starts_with(INTERNAL)
}

/// All rows, in the order of discovery.
#[derive(Clone, Default)]
pub struct Rows {
    order: Vec<Arc<Resource>>,
    by_gvr: HashMap<Gvr, Arc<Resource>>,
    by_gvk: HashMap<Gvk, Arc<Resource>>,
    /// The rows of the storage versions, by group and resource.
    by_place: HashMap<Str, HashMap<Str, Arc<Resource>>>,
    /// Change counters: per version, and in total.
    changes: HashMap<GroupVersion, u64>,
    all_changes: u64,
}

impl Rows {
    pub fn insert(&mut self, row: Resource) {
        let row = Arc::new(row);
        let gvr = row.kind.gvr();
        self.count(row.kind.group_version());
        if self.by_gvr.contains_key(&gvr) {
            self.order.retain(|r| r.kind.gvr() != gvr);
        }
        self.by_gvk.insert(row.kind.gvk(), row.clone());
        self.forget_place(&row);
        if !row.converts() {
            self.by_place.entry(row.kind.group.clone()).or_default().insert(row.kind.plural.clone(), row.clone());
        }
        self.by_gvr.insert(gvr, row.clone());
        self.order.push(row);
    }

    pub fn remove(&mut self, gvr: &Gvr) {
        if let Some(row) = self.by_gvr.remove(gvr) {
            self.count(row.kind.group_version());
            self.by_gvk.remove(&row.kind.gvk());
            self.forget_place(&row);
            self.order.retain(|r| r.kind.gvr() != *gvr);
        }
    }

    fn forget_place(&mut self, row: &Resource) {
        if let Some(group) = self.by_place.get_mut(&row.kind.group)
            && group.get(&row.kind.plural).is_some_and(|r| r.kind.version == row.kind.version)
        {
            group.remove(&row.kind.plural);
            if group.is_empty() {
                self.by_place.remove(&row.kind.group);
            }
        }
    }

    fn count(&mut self, gv: GroupVersion) {
        self.all_changes += 1;
        self.changes.insert(gv, self.all_changes);
    }

    /// A number that changes whenever the rows of a version, or any rows, change.
    pub fn change(&self, gv: Option<&GroupVersion>) -> u64 {
        gv.map_or(self.all_changes, |gv| self.changes.get(gv).copied().unwrap_or(0))
    }

    pub fn resource(&self, gvr: &Gvr) -> Option<&Arc<Resource>> {
        self.by_gvr.get(gvr)
    }

    pub fn kind(&self, gvk: &Gvk) -> Option<&Arc<Resource>> {
        self.by_gvk.get(gvk)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.order.iter()
    }

    /// The row of a group and resource in the storage version.
    pub fn stored(&self, group: &str, resource: &str) -> Option<&Arc<Resource>> {
        self.by_place.get(group)?.get(resource)
    }
}
