//! Changes of the cluster that the scheduling loop has not processed yet.
//!
//! Informers cannot wait for the loop, so their changes are merged instead of queued: one change for each object, from the version
//! that the loop has to the newest one. Invariants: there are at most as many changes as objects that the loop has or that exist;
//! the newest version of an object is never lost; objects come in the order of their first change.

use crate::cluster::NodeEntry;
use crate::dependency::Dependency;
use crate::pod::Pod;
use client::Key;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::sync::Notify;

/// A change of one object: `old` is the version that the loop has, `new` the current one; `new` is none if it was deleted.
pub(crate) enum Change {
    Pod {
        old: Option<Arc<Pod>>,
        new: Option<Arc<Pod>>,
    },
    Node {
        old: Option<Arc<NodeEntry>>,
        new: Option<Arc<NodeEntry>>,
    },
    /// `old`: whether the loop has the namespace; `new`: its labels.
    Namespace {
        name: Arc<str>,
        old: bool,
        new: Option<client::informer::Labels>,
    },
    Dependency {
        old: Option<Dependency>,
        new: Option<Dependency>,
    },
}

/// The key by which changes are merged. A recreated pod or node is another object.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Id {
    Pod(Arc<str>),
    Node(Arc<str>),
    Namespace(Arc<str>),
    Dependency(&'static str, Key),
}

impl Change {
    /// The object, for logs.
    pub fn object(&self) -> String {
        match self {
            Self::Pod { old, new } => new.as_ref().or(old.as_ref()).map(|p| format!("pod {}", p.key())),
            Self::Node { old, new } => new.as_ref().or(old.as_ref()).map(|n| format!("node {}", n.meta.name)),
            Self::Namespace { name, .. } => Some(format!("namespace {name}")),
            Self::Dependency { old, new } => {
                new.as_ref().or(old.as_ref()).map(|d| format!("{} {:?}", d.kind(), d.key()))
            }
        }
        .unwrap_or_default()
    }

    fn id(&self) -> Option<Id> {
        Some(match self {
            Self::Pod { old, new } => Id::Pod(new.as_ref().or(old.as_ref())?.meta.uid.clone()),
            Self::Node { old, new } => Id::Node(new.as_ref().or(old.as_ref())?.meta.uid.clone()),
            Self::Namespace { name, .. } => Id::Namespace(name.clone()),
            Self::Dependency { old, new } => {
                let dependency = new.as_ref().or(old.as_ref())?;
                Id::Dependency(dependency.kind(), dependency.key())
            }
        })
    }

    /// Merges this change with a later one of the same object. None if the object was created and deleted.
    fn then(self, later: Self) -> Option<Self> {
        match (self, later) {
            (Self::Pod { old, .. }, Self::Pod { new, .. }) => {
                (old.is_some() || new.is_some()).then_some(Self::Pod { old, new })
            }
            (Self::Node { old, .. }, Self::Node { new, .. }) => {
                (old.is_some() || new.is_some()).then_some(Self::Node { old, new })
            }
            (Self::Namespace { name, old, .. }, Self::Namespace { new, .. }) => {
                (old || new.is_some()).then_some(Self::Namespace { name, old, new })
            }
            (Self::Dependency { old, .. }, Self::Dependency { new, .. }) => {
                (old.is_some() || new.is_some()).then_some(Self::Dependency { old, new })
            }
            (_, later) => Some(later),
        }
    }
}

#[derive(Default)]
pub(crate) struct Changes {
    pending: Mutex<Pending>,
    arrived: Notify,
}

#[derive(Default)]
struct Pending {
    /// Keyed by the number of the first change of each object.
    changes: BTreeMap<u64, Change>,
    numbers: HashMap<Id, u64>,
    next: u64,
}

impl Changes {
    pub fn add(&self, change: Change) {
        let Some(id) = change.id() else { return };
        let mut pending = self.pending.lock();
        let pending = &mut *pending;
        let known = pending.numbers.get(&id).copied();
        let merged = match known.and_then(|n| pending.changes.remove(&n)) {
            Some(before) => before.then(change),
            None => Some(change),
        };
        match (merged, known) {
            (Some(change), Some(number)) => drop(pending.changes.insert(number, change)),
            (Some(change), None) => {
                pending.changes.insert(pending.next, change);
                pending.numbers.insert(id, pending.next);
                pending.next += 1;
            }
            (None, _) => drop(pending.numbers.remove(&id)),
        }
        self.arrived.notify_one();
    }

    /// Returns the change of the object that has waited longest.
    pub fn take(&self) -> Option<Change> {
        let mut pending = self.pending.lock();
        let (_, change) = pending.changes.pop_first()?;
        if let Some(id) = change.id() {
            pending.numbers.remove(&id);
        }
        Some(change)
    }

    /// Waits for the next change.
    pub async fn next(&self) -> Change {
        loop {
            if let Some(change) = self.take() {
                return change;
            }
            self.arrived.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, version: u32) -> Arc<Pod> {
        let metadata = json!({"name": "p", "namespace": "d", "uid": uid, "resourceVersion": version.to_string()});
        let v = json!({"metadata": metadata, "spec": {"containers": []}});
        Arc::new(Pod::new(serde_json::to_vec(&v).unwrap().into()).unwrap())
    }

    fn versions(change: Option<Change>) -> Option<(Option<String>, Option<String>)> {
        let version = |p: Option<Arc<Pod>>| p.map(|p| format!("{}{}", p.meta.uid, p.meta.resource_version));
        match change? {
            Change::Pod { old, new } => Some((version(old), version(new))),
            _ => panic!("not a pod"),
        }
    }

    /// The queue grew without a limit while the loop was busy.
    #[test]
    fn an_object_has_one_change_however_often_it_changes() {
        let changes = Changes::default();
        let change = |old, new| changes.add(Change::Pod { old, new });
        change(Some(pod("a", 0)), Some(pod("a", 1)));
        change(None, Some(pod("b", 1)));
        for i in 1..1_000 {
            change(Some(pod("a", i)), Some(pod("a", i + 1)));
        }
        // Created and deleted: no change. Deleted and created: two objects.
        change(None, Some(pod("c", 1)));
        change(Some(pod("c", 1)), None);
        change(Some(pod("b", 1)), Some(pod("b", 2)));
        change(Some(pod("a", 1000)), None);
        change(None, Some(pod("d", 1)));
        assert_eq!(changes.pending.lock().changes.len(), 3);
        let text = |t: &str| Some(t.to_owned());
        assert_eq!(versions(changes.take()), Some((text("a0"), None)));
        assert_eq!(versions(changes.take()), Some((None, text("b2"))));
        assert_eq!(versions(changes.take()), Some((None, text("d1"))));
        assert!(changes.take().is_none() && changes.pending.lock().numbers.is_empty());
    }
}
