//! One consistent state of everything at one revision.
//!
//! Invariant: a snapshot holds memory (changed objects exist twice), but no transaction of the engine.

use crate::engine::EngineError;
use crate::state::{State, Table};
use crate::transform::Damaged;
use crate::{Entry, Key, Str};
use std::sync::Arc;

/// A consistent state at one revision. Cheap to take and to clone.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) state: Arc<State>,
}

impl Snapshot {
    /// The revision of the state.
    pub fn revision(&self) -> u64 {
        self.state.revision
    }

    /// The object of a key.
    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.state.get(key).cloned()
    }

    /// The entries of a resource, of one namespace or all, in order of namespace and name, those after `after`
    /// (namespace, name), which need not exist.
    pub fn range<'a>(
        &'a self,
        resource: &str,
        namespace: Option<&'a str>,
        after: Option<(&'a str, &'a str)>,
    ) -> impl Iterator<Item = &'a Arc<Entry>> + 'a {
        self.state.table(resource).into_iter().flat_map(move |table: &'a Table| table.range(namespace, after))
    }

    /// The error of an object that exists but cannot be read, and is not in [`Snapshot::get`].
    pub fn damaged(&self, key: &Key) -> Option<Arc<Damaged>> {
        self.state.damaged(key).cloned()
    }

    /// The objects of a resource, of one namespace or all, that cannot be read, and so are not in [`Snapshot::range`].
    pub fn all_damaged<'a>(
        &'a self,
        resource: &'a str,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<Damaged>> + 'a {
        self.state.all_damaged(resource, namespace)
    }

    /// The number of objects of a resource, of one namespace or all, without walking them.
    pub fn count(&self, resource: &str, namespace: Option<&str>) -> usize {
        self.state.table(resource).map_or(0, |table| table.count(namespace))
    }

    /// Whether a resource has objects, readable or not.
    pub fn has_any(&self, resource: &str) -> bool {
        self.state.has_any(resource)
    }

    /// The resources that have objects, in order.
    pub fn resources(&self) -> impl Iterator<Item = &Str> {
        self.state.resources()
    }
}

/// The error of a read at a revision.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The revision is compacted.
    #[error("the revision is compacted; the oldest one kept is {oldest}")]
    Expired {
        /// The oldest revision that can be read.
        oldest: u64,
    },
    /// The revision does not exist yet.
    #[error("the revision is in the future; the current one is {current}")]
    Future {
        /// The newest revision.
        current: u64,
    },
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
    /// The engine failed.
    #[error("reading history")]
    Engine(#[source] Arc<EngineError>),
}
