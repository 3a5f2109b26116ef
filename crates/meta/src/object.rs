//! An API object of any kind, and its metadata.

use crate::{GroupVersion, Gvk};
use serde::{Deserialize, Serialize};

pub use serde_json::{Map, Value};

/// An object of any kind: the JSON document, with accessors for what every kind has. Keys are sorted, as in Go's maps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Object(pub Map<String, Value>);

/// A reference to an owner, as far as garbage collection and controllers read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerRef<'a> {
    /// The `apiVersion` of the owner.
    pub api_version: &'a str,
    /// The kind of the owner.
    pub kind: &'a str,
    /// The name of the owner.
    pub name: &'a str,
    /// The UID of the owner.
    pub uid: &'a str,
    /// Whether the owner is the managing controller.
    pub controller: bool,
    /// Whether the owner cannot be deleted in the foreground before this object.
    pub block_owner_deletion: bool,
}

impl Object {
    /// An object with `apiVersion` and `kind` alone.
    pub fn new(gvk: &Gvk) -> Self {
        let mut o = Self::default();
        o.set_gvk(gvk);
        o
    }

    /// Takes a JSON value; `None` unless it is an object.
    pub fn from_value(v: Value) -> Option<Self> {
        match v {
            Value::Object(m) => Some(Self(m)),
            _ => None,
        }
    }

    /// The object as a JSON value.
    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    /// A member of the object.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// Follows object keys. `None` where any is missing.
    pub fn at(&self, path: &[&str]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.0.get(*first)?, |v, k| v.get(*k))
    }

    /// The string at a path.
    pub fn str_at(&self, path: &[&str]) -> Option<&str> {
        self.at(path)?.as_str()
    }

    /// The integer at a path.
    pub fn int_at(&self, path: &[&str]) -> Option<i64> {
        self.at(path)?.as_i64()
    }

    /// Sets a value, making the objects on the way; what stands in the way and is no object is replaced.
    pub fn set(&mut self, path: &[&str], value: impl Into<Value>) {
        let Some((last, way)) = path.split_last() else { return };
        let mut m = &mut self.0;
        for k in way {
            let next = m.entry(*k).or_insert_with(|| Value::Object(Map::new()));
            if !next.is_object() {
                *next = Value::Object(Map::new());
            }
            match next {
                Value::Object(o) => m = o,
                _ => return,
            }
        }
        m.insert((*last).to_owned(), value.into());
    }

    /// Removes the value at a path, and returns it.
    pub fn remove(&mut self, path: &[&str]) -> Option<Value> {
        let (last, way) = path.split_last()?;
        let mut m = &mut self.0;
        for k in way {
            m = m.get_mut(*k)?.as_object_mut()?;
        }
        m.remove(*last)
    }

    /// `apiVersion`; empty if absent.
    pub fn api_version(&self) -> &str {
        self.0.get("apiVersion").and_then(Value::as_str).unwrap_or_default()
    }

    /// `kind`; empty if absent.
    pub fn kind(&self) -> &str {
        self.0.get("kind").and_then(Value::as_str).unwrap_or_default()
    }

    /// `None` when `apiVersion` cannot be read.
    pub fn gvk(&self) -> Option<Gvk> {
        Some(GroupVersion::parse(self.api_version())?.with_kind(self.kind()))
    }

    /// Sets `apiVersion` and `kind`.
    pub fn set_gvk(&mut self, gvk: &Gvk) {
        self.0.insert("apiVersion".into(), gvk.api_version().into());
        self.0.insert("kind".into(), gvk.kind.clone().into());
    }

    /// `metadata`, if it is an object.
    pub fn metadata(&self) -> Option<&Map<String, Value>> {
        self.0.get("metadata")?.as_object()
    }

    /// `metadata`, which is created if it is absent.
    pub fn metadata_mut(&mut self) -> &mut Map<String, Value> {
        let v = self.0.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if !v.is_object() {
            *v = Value::Object(Map::new());
        }
        match v {
            Value::Object(m) => m,
            _ => unreachable!("made an object above"),
        }
    }

    fn meta_str(&self, key: &str) -> &str {
        self.metadata().and_then(|m| m.get(key)).and_then(Value::as_str).unwrap_or_default()
    }

    fn set_meta_str(&mut self, key: &str, value: &str) {
        if value.is_empty() {
            self.metadata_mut().remove(key);
        } else {
            self.metadata_mut().insert(key.into(), value.into());
        }
    }

    /// `metadata.name`; empty if absent.
    pub fn name(&self) -> &str {
        self.meta_str("name")
    }

    /// Sets `metadata.name`.
    pub fn set_name(&mut self, name: &str) {
        self.set_meta_str("name", name);
    }

    /// `metadata.generateName`; empty if absent.
    pub fn generate_name(&self) -> &str {
        self.meta_str("generateName")
    }

    /// `metadata.namespace`; empty if absent.
    pub fn namespace(&self) -> &str {
        self.meta_str("namespace")
    }

    /// Sets `metadata.namespace`.
    pub fn set_namespace(&mut self, namespace: &str) {
        self.set_meta_str("namespace", namespace);
    }

    /// `metadata.uid`; empty if absent.
    pub fn uid(&self) -> &str {
        self.meta_str("uid")
    }

    /// Sets `metadata.uid`.
    pub fn set_uid(&mut self, uid: &str) {
        self.set_meta_str("uid", uid);
    }

    /// Empty when there is none.
    pub fn resource_version(&self) -> &str {
        self.meta_str("resourceVersion")
    }

    /// Sets `metadata.resourceVersion`.
    pub fn set_resource_version(&mut self, v: &str) {
        self.set_meta_str("resourceVersion", v);
    }

    /// `metadata.creationTimestamp`; empty if absent.
    pub fn creation_timestamp(&self) -> &str {
        self.meta_str("creationTimestamp")
    }

    /// `metadata.deletionTimestamp`.
    pub fn deletion_timestamp(&self) -> Option<&str> {
        self.metadata()?.get("deletionTimestamp")?.as_str()
    }

    /// Whether the object has a `deletionTimestamp`.
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp().is_some()
    }

    /// `metadata.deletionGracePeriodSeconds`.
    pub fn deletion_grace_period_seconds(&self) -> Option<i64> {
        self.metadata()?.get("deletionGracePeriodSeconds")?.as_i64()
    }

    /// `metadata.generation`; 0 if absent.
    pub fn generation(&self) -> i64 {
        self.metadata().and_then(|m| m.get("generation")).and_then(Value::as_i64).unwrap_or(0)
    }

    /// Sets `metadata.generation`.
    pub fn set_generation(&mut self, g: i64) {
        self.metadata_mut().insert("generation".into(), g.into());
    }

    fn meta_map(&self, key: &str) -> impl Iterator<Item = (&str, &str)> {
        self.metadata()
            .and_then(|m| m.get(key))
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default()))
    }

    /// The labels.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.meta_map("labels")
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata()?.get("labels")?.get(key)?.as_str()
    }

    /// The annotations.
    pub fn annotations(&self) -> impl Iterator<Item = (&str, &str)> {
        self.meta_map("annotations")
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata()?.get("annotations")?.get(key)?.as_str()
    }

    /// Sets a label.
    pub fn set_label(&mut self, key: &str, value: &str) {
        self.set(&["metadata", "labels", key], value);
    }

    /// Sets an annotation.
    pub fn set_annotation(&mut self, key: &str, value: &str) {
        self.set(&["metadata", "annotations", key], value);
    }

    /// The finalizers.
    pub fn finalizers(&self) -> impl Iterator<Item = &str> {
        self.metadata()
            .and_then(|m| m.get("finalizers"))
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
    }

    /// Replaces the finalizers.
    pub fn set_finalizers(&mut self, finalizers: Vec<String>) {
        if finalizers.is_empty() {
            self.metadata_mut().remove("finalizers");
        } else {
            self.metadata_mut().insert("finalizers".into(), finalizers.into());
        }
    }

    /// The owner references.
    pub fn owner_references(&self) -> impl Iterator<Item = OwnerRef<'_>> {
        self.metadata().and_then(|m| m.get("ownerReferences")).and_then(Value::as_array).into_iter().flatten().map(
            |o| OwnerRef {
                api_version: o["apiVersion"].as_str().unwrap_or_default(),
                kind: o["kind"].as_str().unwrap_or_default(),
                name: o["name"].as_str().unwrap_or_default(),
                uid: o["uid"].as_str().unwrap_or_default(),
                controller: o["controller"].as_bool().unwrap_or(false),
                block_owner_deletion: o["blockOwnerDeletion"].as_bool().unwrap_or(false),
            },
        )
    }

    /// The reference to the managing controller, if there is one.
    pub fn controller_of(&self) -> Option<OwnerRef<'_>> {
        self.owner_references().find(|o| o.controller)
    }
}
