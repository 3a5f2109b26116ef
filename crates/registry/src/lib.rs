//! Resource rows, and the generic implementation of all verbs for every kind.
//!
//! A row describes a resource ([`Resource`]), [`Strategy`] adds what its schema cannot express, [`Registry`]
//! implements the verbs. Invariant: this crate names no kind. Creating a CustomResourceDefinition inserts a row.

pub mod admit;
mod commit_observer;
pub mod convert;
pub mod converted;
mod create;
mod delete;
pub mod expiry;
mod list;
mod managed;
pub mod metadata;
pub mod options;
mod recent;
pub mod row;
pub mod strategy;
mod update;
mod versions;
mod watch;
mod written;

pub use admit::{Admit, AdmitAll, Charge};
pub use commit_observer::CommitObserver;
pub use convert::{Converter, WebhookTransport};
pub use delete::Deleted;
pub use list::{ListOptions, Page, Selector, VersionMatch, check_readable, find, not_a_number};
pub use options::{DeleteOptions, IGNORE_READ_ERROR, Preconditions, Propagation, WriteOptions, check_dry_run};
pub use row::{Backend, Function, Resource, Rows, internal_key, is_internal};
pub use strategy::*;
pub use update::{Target, Updated};
pub use versions::Conversions;
pub use watch::{Batch, Initial, ObjectEvent, ObjectEventKind, ObjectWatch, WatchOptions};
pub use written::Written;

use meta::{Clock, Rng};
use parking_lot::RwLock;
use std::sync::{Arc, OnceLock};
use store::Store;
use supervisor::Supervisor;
use tokio::sync::watch::Sender;

/// All resources and their store.
pub struct Registry {
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    rows: Arc<RwLock<Arc<Rows>>>,
    recent: recent::Recent,
    /// Notified of every change of the rows.
    changes: Sender<()>,
    /// Notified of writes to the store.
    pub commit_observer: OnceLock<Arc<dyn CommitObserver>>,
    /// The transport for conversion webhooks.
    pub webhooks: OnceLock<Arc<dyn WebhookTransport>>,
    /// The long-running parts of the process.
    pub supervisor: Supervisor,
    /// The feature gates that are enabled beside those of the release.
    pub features: OnceLock<schema::rules::Gates>,
}

impl Registry {
    fn features(&self) -> &schema::rules::Gates {
        static NONE: schema::rules::Gates = schema::rules::Gates::new();
        self.features.get().unwrap_or(&NONE)
    }

    pub fn new(store: Store, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>, rows: Rows) -> Self {
        Self {
            store,
            clock,
            rng,
            rows: Arc::new(RwLock::new(Arc::new(rows))),
            recent: recent::Recent::default(),
            changes: Sender::new(()),
            commit_observer: OnceLock::new(),
            webhooks: OnceLock::new(),
            supervisor: Supervisor::default(),
            features: OnceLock::new(),
        }
    }

    /// A snapshot of the rows; cheap to clone.
    pub fn rows(&self) -> Arc<Rows> {
        self.rows.read().clone()
    }

    /// Replaces the rows with the result of `change`.
    pub fn change_rows(&self, change: impl FnOnce(&Rows) -> Rows) {
        let mut rows = self.rows.write();
        *rows = Arc::new(change(&rows));
        drop(rows);
        self.changes.send_replace(());
    }

    /// Waits until a row is no longer served.
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

    /// The environment of strategies where no client waits for warnings.
    pub fn env(&self) -> Env<'_> {
        Env::new(self, None)
    }

    /// The environment of strategies for a request; `warnings` receives what the client is warned of.
    pub fn env_for<'a>(&'a self, warnings: &'a Warnings) -> Env<'a> {
        Env::new(self, Some(warnings))
    }
}
