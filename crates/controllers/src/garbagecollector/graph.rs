//! The graph of owners and dependents of all kinds, from metadata.
//!
//! Aggregated API servers report objects of their groups with any UID. **Invariant.** An object counts as an
//! owner only if it matches the whole reference: group and kind, namespace, name and UID.

use client::informer::Owner;
use client::{ApiResource, Entry, Meta};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub const FOREGROUND: &str = "foregroundDeletion";
pub const ORPHAN: &str = "orphan";

pub type Uid = Arc<str>;

/// An object in the graph.
#[derive(Clone)]
pub struct Node {
    pub resource: ApiResource,
    pub entry: Arc<Entry<()>>,
}

impl Node {
    pub fn meta(&self) -> &Meta {
        &self.entry.meta
    }

    fn waits_with(&self, finalizer: &str) -> bool {
        self.meta().is_deleting() && self.meta().finalizers.iter().any(|f| f == finalizer)
    }

    /// It is being deleted after its dependents.
    pub fn is_foreground(&self) -> bool {
        self.waits_with(FOREGROUND)
    }

    /// It is being deleted without its dependents.
    pub fn is_orphaning(&self) -> bool {
        self.waits_with(ORPHAN)
    }

    /// The references of this object to `owner`.
    fn references<'a>(&'a self, owner: &'a Node) -> impl Iterator<Item = &'a Owner> {
        self.meta().owner_references.iter().filter(|o| self.refers_to(o, owner))
    }

    /// Whether `reference` of this object refers to `owner`.
    pub fn refers_to(&self, reference: &Owner, owner: &Node) -> bool {
        let (m, r) = (owner.meta(), &owner.resource);
        let near = !r.namespaced() || m.namespace == self.meta().namespace;
        let named = reference.uid == m.uid && *m.name == *reference.name && r.kind() == reference.kind;
        near && named && reference.api_version.split_once('/').map_or("", |(group, _)| group) == r.gvr().group
    }

    pub fn blocks(&self, owner: &Node) -> bool {
        self.references(owner).any(|o| o.block_owner_deletion)
    }

    fn is_at(&self, resource: &ApiResource, meta: &Meta) -> bool {
        let (own, other) = (self.resource.gvr(), resource.gvr());
        let same = own.group == other.group && own.resource == other.resource;
        same && self.meta().namespace == meta.namespace && self.meta().name == meta.name
    }

    fn owners(&self) -> BTreeSet<Uid> {
        self.meta().owner_references.iter().map(|o| o.uid.clone()).collect()
    }
}

/// A unit of work for the collector.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// Checks whether this object's owners still exist.
    Dependent(Uid),
    /// Continues the deletion of an owner that waits for its dependents or orphans them.
    Owner(Uid),
}

#[derive(Default)]
pub struct Graph {
    nodes: BTreeMap<Uid, Node>,
    /// Further objects with the UID of another one.
    others: BTreeMap<Uid, Vec<Node>>,
    /// Owner → dependents, including owners that are not in the graph.
    dependents: BTreeMap<Uid, BTreeSet<Uid>>,
}

impl Graph {
    /// The objects with a UID: one, unless an API server reports duplicates.
    pub fn with_uid(&self, uid: &str) -> impl Iterator<Item = &Node> {
        self.nodes.get(uid).into_iter().chain(self.others.get(uid).into_iter().flatten())
    }

    /// The dependents of an object.
    pub fn dependents<'a>(&'a self, owner: &'a Node) -> impl Iterator<Item = &'a Node> {
        let named = self.dependents.get(&owner.meta().uid).into_iter().flatten();
        named.flat_map(|u| self.with_uid(u)).filter(|d| d.references(owner).next().is_some())
    }

    /// Whether all owners are in the graph and stay, so that the server need not be read.
    pub fn is_held(&self, n: &Node) -> bool {
        let stays = |o: &Owner| self.with_uid(&o.uid).any(|owner| n.refers_to(o, owner) && !owner.is_foreground());
        n.meta().owner_references.iter().all(stays)
    }

    /// Stores the current state of an object and returns the work that follows from it.
    pub fn put(&mut self, resource: &ApiResource, entry: Arc<Entry<()>>) -> Vec<Item> {
        let uid = entry.meta.uid.clone();
        let node = Node { resource: resource.clone(), entry };
        let mut items = Vec::new();
        let old = self.replace(&uid, node.clone());
        let new_owners = node.owners();
        let old_owners = old.as_ref().map(Node::owners).unwrap_or_default();
        for o in old_owners.difference(&new_owners) {
            self.unlink(o, &uid);
            items.extend(self.waiting(o));
        }
        for o in &new_owners {
            self.dependents.entry(o.clone()).or_default().insert(uid.clone());
            // It may have stopped blocking, or its owner has not requested its deletion yet.
            items.extend(self.waiting(o));
        }
        if node.is_foreground() || node.is_orphaning() {
            items.push(Item::Owner(uid.clone()));
        }
        let same = old.is_some_and(|o| {
            o.meta().owner_references == node.meta().owner_references
                && o.meta().is_deleting() == node.meta().is_deleting()
        });
        if !new_owners.is_empty() && !same {
            items.push(Item::Dependent(uid));
        }
        items
    }

    /// Stores an object and returns its previous version, if any.
    fn replace(&mut self, uid: &Uid, node: Node) -> Option<Node> {
        let Some(first) = self.nodes.get_mut(uid) else {
            self.nodes.insert(uid.clone(), node);
            return None;
        };
        if first.is_at(&node.resource, node.meta()) {
            return Some(std::mem::replace(first, node));
        }
        let others = self.others.entry(uid.clone()).or_default();
        if let Some(same) = others.iter_mut().find(|n| n.is_at(&node.resource, node.meta())) {
            return Some(std::mem::replace(same, node));
        }
        others.push(node);
        None
    }

    fn take(&mut self, resource: &ApiResource, meta: &Meta) -> Option<Node> {
        let others = self.others.get_mut(&meta.uid);
        if let Some(others) = others
            && let Some(i) = others.iter().position(|n| n.is_at(resource, meta))
        {
            let taken = others.swap_remove(i);
            if others.is_empty() {
                self.others.remove(&meta.uid);
            }
            return Some(taken);
        }
        let taken = self.nodes.get(&meta.uid).filter(|n| n.is_at(resource, meta)).cloned()?;
        match self.others.get_mut(&meta.uid).and_then(Vec::pop) {
            Some(next) => drop(self.nodes.insert(meta.uid.clone(), next)),
            None => drop(self.nodes.remove(&meta.uid)),
        }
        if self.others.get(&meta.uid).is_some_and(Vec::is_empty) {
            self.others.remove(&meta.uid);
        }
        Some(taken)
    }

    /// Removes an object and returns the work that follows from it.
    pub fn remove(&mut self, resource: &ApiResource, meta: &Meta) -> Vec<Item> {
        let Some(node) = self.take(resource, meta) else { return Vec::new() };
        let mut items: Vec<Item> =
            self.dependents.get(&meta.uid).into_iter().flatten().map(|d| Item::Dependent(d.clone())).collect();
        for o in node.owners() {
            self.unlink(&o, &meta.uid);
            items.extend(self.waiting(&o));
        }
        items
    }

    fn waiting(&self, owner: &str) -> Option<Item> {
        let n = self.with_uid(owner).find(|n| n.is_foreground())?;
        Some(Item::Owner(n.meta().uid.clone()))
    }

    fn unlink(&mut self, owner: &str, dependent: &str) {
        // Another object with the same UID may have the same owner.
        if self.with_uid(dependent).any(|n| n.meta().owner_references.iter().any(|o| &*o.uid == owner)) {
            return;
        }
        if let Some(d) = self.dependents.get_mut(owner) {
            d.remove(dependent);
            if d.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn deployments() -> ApiResource {
        ApiResource::named("apps", "v1", "deployments", "Deployment", true)
    }

    fn maps() -> ApiResource {
        ApiResource::named("", "v1", "configmaps", "ConfigMap", true)
    }

    fn things() -> ApiResource {
        ApiResource::named("evil.io", "v1", "things", "Thing", true)
    }

    fn entry(name: &str, uid: &str, more: Value) -> Arc<Entry<()>> {
        let mut o = json!({"metadata": {"namespace": "victim", "name": name, "uid": uid, "resourceVersion": "1"}});
        o["metadata"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Arc::new(Entry::new(o.to_string().into()).unwrap())
    }

    fn ending(finalizer: &str) -> Value {
        json!({"deletionTimestamp": "2026-11-20T10:00:00Z", "finalizers": [finalizer]})
    }

    /// Another API server reported an object with the UID of a deployment, and the dependents of the deployment were deleted.
    #[test]
    fn an_object_of_another_group_is_not_an_owner() {
        let mut g = Graph::default();
        let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "1",
            "blockOwnerDeletion": true});
        g.put(&deployments(), entry("web", "1", json!({})));
        g.put(&maps(), entry("kept", "2", json!({"ownerReferences": [owner]})));
        let kept = g.with_uid("2").next().unwrap().clone();
        for finalizer in [FOREGROUND, ORPHAN] {
            g.put(&things(), entry("web", "1", ending(finalizer)));
            assert!(g.is_held(&kept));
            let lie = g.with_uid("1").find(|n| n.resource == things()).unwrap();
            assert_eq!((g.with_uid("1").count(), g.dependents(lie).count(), kept.blocks(lie)), (2, 0, false));
        }
        g.put(&deployments(), entry("web", "1", ending(FOREGROUND)));
        assert!(!g.is_held(&kept));
        let real = g.with_uid("1").find(|n| n.resource == deployments()).unwrap();
        assert!(g.dependents(real).count() == 1 && kept.blocks(real));
        // They are kept apart in any order of events.
        let meta = entry("web", "1", json!({}));
        assert_eq!(g.remove(&deployments(), &meta.meta), [Item::Dependent("2".into())]);
        assert!(!g.is_held(&kept) && g.with_uid("1").all(|n| n.resource == things()));
        g.put(&deployments(), entry("web", "1", json!({})));
        assert!(g.is_held(&kept));
        g.remove(&things(), &meta.meta);
        assert!(g.is_held(&kept) && g.with_uid("1").count() == 1);
        g.remove(&deployments(), &meta.meta);
        assert!(!g.is_held(&kept) && g.with_uid("1").count() == 0);
    }

    /// A false report of a dependent does not change the owners of the real one.
    #[test]
    fn dependents_with_the_same_uid_are_kept_apart() {
        let mut g = Graph::default();
        let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "1"}]);
        g.put(&deployments(), entry("web", "1", json!({})));
        g.put(&maps(), entry("kept", "2", json!({"ownerReferences": owner})));
        let gone = json!([{"apiVersion": "evil.io/v1", "kind": "Thing", "name": "none", "uid": "1"}]);
        g.put(&things(), entry("kept", "2", json!({"ownerReferences": gone})));
        let held: Vec<bool> = g.with_uid("2").map(|n| g.is_held(n)).collect();
        assert_eq!(held, [true, false]);
        let meta = entry("kept", "2", json!({}));
        g.remove(&things(), &meta.meta);
        let web = g.with_uid("1").next().unwrap();
        assert_eq!(g.dependents(web).count(), 1, "the real one still depends on it");
    }
}
