//! Who owns whom, over all kinds, from metadata alone.

use client::{ApiResource, Entry, Meta};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub const FOREGROUND: &str = "foregroundDeletion";
pub const ORPHAN: &str = "orphan";

pub type Uid = Arc<str>;

/// One object.
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

    /// Is being deleted after its dependents.
    pub fn is_foreground(&self) -> bool {
        self.waits_with(FOREGROUND)
    }

    /// Is being deleted, and its dependents stay.
    pub fn is_orphaning(&self) -> bool {
        self.waits_with(ORPHAN)
    }

    pub fn blocks(&self, owner: &str) -> bool {
        self.meta().owner_references.iter().any(|o| &*o.uid == owner && o.block_owner_deletion)
    }
}

/// What is to be looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// Whether this object should still be there.
    Dependent(Uid),
    /// An owner that waits for its dependents, or lets them go.
    Owner(Uid),
}

#[derive(Default)]
pub struct Graph {
    nodes: BTreeMap<Uid, Node>,
    /// Owner → dependents, also of owners that are not known.
    dependents: BTreeMap<Uid, BTreeSet<Uid>>,
}

impl Graph {
    pub fn get(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    pub fn dependents(&self, owner: &str) -> impl Iterator<Item = &Node> {
        self.dependents.get(owner).into_iter().flatten().filter_map(|u| self.nodes.get(u))
    }

    /// Whether every owner is known and stays: then nothing has to be asked of the server.
    pub fn is_held(&self, n: &Node) -> bool {
        n.meta().owner_references.iter().all(|o| {
            self.nodes.get(&o.uid).is_some_and(|owner| {
                let m = owner.meta();
                let near = !owner.resource.namespaced() || m.namespace == n.meta().namespace;
                near && *m.name == *o.name && !owner.is_foreground()
            })
        })
    }

    /// Takes an object as it is now and says what has to be looked at.
    pub fn put(&mut self, resource: &ApiResource, entry: Arc<Entry<()>>) -> Vec<Item> {
        let uid = entry.meta.uid.clone();
        let node = Node { resource: resource.clone(), entry };
        let mut items = Vec::new();
        let old = self.nodes.insert(uid.clone(), node.clone());
        let owners = |n: &Node| n.meta().owner_references.iter().map(|o| o.uid.clone()).collect::<BTreeSet<_>>();
        let new_owners = owners(&node);
        let old_owners = old.as_ref().map(owners).unwrap_or_default();
        for o in old_owners.difference(&new_owners) {
            self.unlink(o, &uid);
            items.extend(self.waiting(o));
        }
        for o in &new_owners {
            self.dependents.entry(o.clone()).or_default().insert(uid.clone());
            // It may block no longer, or be one that its owner has not asked to go yet.
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

    /// The object is gone.
    pub fn remove(&mut self, uid: &str) -> Vec<Item> {
        let Some(node) = self.nodes.remove(uid) else { return Vec::new() };
        let mut items: Vec<Item> =
            self.dependents.get(uid).into_iter().flatten().map(|d| Item::Dependent(d.clone())).collect();
        for o in &node.meta().owner_references {
            self.unlink(&o.uid, uid);
            items.extend(self.waiting(&o.uid));
        }
        items
    }

    fn waiting(&self, owner: &str) -> Option<Item> {
        let n = self.nodes.get(owner).filter(|n| n.is_foreground())?;
        Some(Item::Owner(n.meta().uid.clone()))
    }

    fn unlink(&mut self, owner: &str, dependent: &str) {
        if let Some(d) = self.dependents.get_mut(owner) {
            d.remove(dependent);
            if d.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }
}
