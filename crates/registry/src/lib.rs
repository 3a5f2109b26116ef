//! Resource rows and the one generic path on which every kind is read and written.
//!
//! A row says what a resource is ([`Resource`]); [`Strategy`] says what its schema cannot; [`Registry`] does the rest, the same
//! for all. Invariant: no kind is named here. Creating a custom resource definition inserts a row.

pub mod admit;
pub mod amount;
mod commit_observer;
mod components;
pub mod convert;
pub mod converted;
mod create;
mod delete;
pub mod encode;
pub mod expiry;
mod list;
mod managed;
pub mod metadata;
pub mod options;
mod pool;
mod recent;
pub mod row;
mod scan;
pub mod strategy;
mod update;
mod versions;
mod views;
mod watch;

pub use admit::{Admit, AdmitAll, Charge};
pub use commit_observer::CommitObserver;
pub use components::{Components, Running};
pub use convert::{Converter, WebhookTransport};
pub use delete::Deleted;
pub use list::{ListOptions, Page, Selector, VersionMatch, check_readable, find, not_a_number};
pub use options::{DeleteOptions, IGNORE_READ_ERROR, Preconditions, Propagation, WriteOptions};
pub use row::{Backend, Function, Resource, Rows, internal_key, is_internal};
pub use strategy::{
    ALL_METADATA, EmptyFields, Env, LEGACY_SCHEME, NameRule, ProxyTarget, Request, Scale, ScaleSelector, Strategy, Sub,
    Upstream, Warnings, take_field,
};
pub use update::{Target, Updated, Written};
pub use versions::Conversions;
pub use views::Views;
pub use watch::{Batch, Initial, ObjectEvent, ObjectEventKind, ObjectWatch, WatchOptions};

use meta::{Clock, Rng};
use parking_lot::RwLock;
use std::sync::{Arc, OnceLock};
use store::Store;
use tokio::sync::watch::Sender;

/// All resources and the store under them.
pub struct Registry {
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    rows: Arc<RwLock<Arc<Rows>>>,
    recent: recent::Recent,
    /// Told of every change of the rows.
    changes: Sender<()>,
    /// Who is told of writes to the store.
    pub commit_observer: OnceLock<Arc<dyn CommitObserver>>,
    /// The way to webhooks.
    pub outside: OnceLock<Arc<dyn WebhookTransport>>,
    pub components: Components,
}

impl Registry {
    pub fn new(store: Store, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>, rows: Rows) -> Self {
        Self {
            store,
            clock,
            rng,
            rows: Arc::new(RwLock::new(Arc::new(rows))),
            recent: recent::Recent::default(),
            changes: Sender::new(()),
            commit_observer: OnceLock::new(),
            outside: OnceLock::new(),
            components: Components::default(),
        }
    }

    /// The rows as they are now; a cheap clone that does not change any more.
    pub fn rows(&self) -> Arc<Rows> {
        self.rows.read().clone()
    }

    /// Replaces the rows by what `change` makes of them.
    pub fn change_rows(&self, change: impl FnOnce(&Rows) -> Rows) {
        let mut rows = self.rows.write();
        *rows = Arc::new(change(&rows));
        drop(rows);
        self.changes.send_replace(());
    }

    /// Returns when a row is not served any more.
    pub fn gone(&self, row: &Resource) -> impl Future<Output = ()> + use<> {
        let (mut changes, rows, gvr) = (self.changes.subscribe(), self.rows.clone(), row.kind.gvr());
        async move {
            while rows.read().resource(&gvr).is_some() {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        }
    }

    pub fn env(&self) -> Env<'_> {
        Env { registry: self }
    }
}
