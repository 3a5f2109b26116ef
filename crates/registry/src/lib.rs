//! Resource rows and the one generic path on which every kind is read and written.
//!
//! A row says what a resource is ([`Resource`]); [`Strategy`] says what its schema cannot; [`Registry`] does the rest, the same
//! for all. Invariant: no kind is named here. Creating a custom resource definition inserts a row.

pub mod admit;
mod create;
mod delete;
pub mod encode;
mod list;
mod managed;
pub mod metadata;
pub mod options;
mod pool;
pub mod row;
pub mod strategy;
mod update;
mod watch;

pub use admit::{Admit, AdmitAll, Charge, Mutated, Operation};
pub use delete::Deleted;
pub use list::{ListOptions, Page, Selector, VersionMatch};
pub use options::{DeleteOptions, Preconditions, Propagation, WriteOptions};
pub use row::{Backend, Function, Resource, Rows};
pub use strategy::{
    ALL_METADATA, Env, NameRule, Place, Request, Scale, ScaleSelector, Strategy, Sub, Upstream, Warnings,
};
pub use update::{Target, Updated};
pub use watch::{Batch, Initial, ObjectEvent, ObjectEventKind, ObjectWatch, WatchOptions};

use meta::{Clock, Rng};
use parking_lot::RwLock;
use std::sync::Arc;
use store::Store;

/// All resources and the store under them.
pub struct Registry {
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    rows: RwLock<Arc<Rows>>,
}

impl Registry {
    pub fn new(store: Store, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>, rows: Rows) -> Self {
        Self { store, clock, rng, rows: RwLock::new(Arc::new(rows)) }
    }

    /// The rows as they are now; a cheap clone that does not change any more.
    pub fn rows(&self) -> Arc<Rows> {
        self.rows.read().clone()
    }

    /// Replaces the rows by what `change` makes of them.
    pub fn change_rows(&self, change: impl FnOnce(&Rows) -> Rows) {
        let mut rows = self.rows.write();
        *rows = Arc::new(change(&rows));
    }

    pub fn env(&self) -> Env<'_> {
        Env { registry: self }
    }
}
