//! Shared informers: one per resource, scope and view in the process.

use super::cache::Shared;
use super::reflector::Reflector;
use super::sink::Views;
use super::{Informer, View};
use crate::client::{PARTIAL_METADATA, PARTIAL_METADATA_LIST};
use crate::{ApiResource, Client, Shutdown};
use meta::Rng;
use parking_lot::Mutex;
use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::Arc;
use supervisor::flag;
use tokio::sync::Notify;

/// The objects of a resource to list and watch; `Default` is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// Namespace; none for all.
    pub namespace: Option<String>,
    /// Label selector in text form; empty for all.
    pub label_selector: String,
    /// Field selector in text form; empty for all.
    pub field_selector: String,
    /// Requests metadata only.
    pub metadata_only: bool,
}

type Held = BTreeMap<(ApiResource, Scope, TypeId), (Box<dyn Any + Send>, tokio::task::AbortHandle)>;

/// Creates informers and runs them until `shutdown`. Cheap to clone; clones share their informers.
#[derive(Clone)]
pub struct Informers {
    client: Client,
    rng: Arc<dyn Rng>,
    shutdown: Shutdown,
    held: Arc<Mutex<Held>>,
    /// Wakes informers without a connection when the server answers another one.
    recoveries: Arc<Notify>,
}

impl Informers {
    /// Creates a factory without informers. `rng` spreads retries of failed watches.
    pub fn new(client: Client, rng: Arc<dyn Rng>, shutdown: Shutdown) -> Self {
        Self { client, rng, shutdown, held: Arc::default(), recoveries: Arc::default() }
    }

    /// The client that lists and watches.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The informer of a typed view's resource, with the reader's view `V`.
    pub fn typed<K, V: View>(&self) -> Informer<V>
    where
        K: k8s_openapi::Resource,
        K::Scope: 'static,
    {
        self.informer(&ApiResource::typed::<K>(), &Scope::default())
    }

    /// Returns the informer of a resource, and starts it on first use. Must be called inside the runtime.
    pub fn informer<V: View>(&self, resource: &ApiResource, scope: &Scope) -> Informer<V> {
        let mut held = self.held.lock();
        let id = (resource.clone(), scope.clone(), TypeId::of::<V>());
        if let Some(i) = held.get(&id).and_then(|(i, _)| i.downcast_ref::<Informer<V>>()) {
            return i.clone();
        }
        let (setter, synced) = flag();
        let informer = Informer { shared: Arc::new(Shared::new()), synced };
        let mut api = self.client.dynamic(resource);
        if let Some(ns) = &scope.namespace {
            api = api.namespace(ns);
        }
        let reflector = Reflector {
            api,
            accept: if scope.metadata_only { Some((PARTIAL_METADATA_LIST, PARTIAL_METADATA)) } else { None },
            label_selector: scope.label_selector.clone(),
            field_selector: scope.field_selector.clone(),
            sink: Box::new(Views { shared: informer.shared.clone(), resource: resource.clone() }),
            synced: setter,
            rng: self.rng.clone(),
            recoveries: self.recoveries.clone(),
        };
        let shutdown = self.shutdown.clone();
        let task = tokio::spawn(async move {
            shutdown.race(reflector.run()).await;
        });
        held.insert(id, (Box::new(informer.clone()), task.abort_handle()));
        informer
    }

    /// Stops the informer of a resource that is no longer served.
    pub fn stop<V: View>(&self, resource: &ApiResource, scope: &Scope) {
        if let Some((_, task)) = self.held.lock().remove(&(resource.clone(), scope.clone(), TypeId::of::<V>())) {
            task.abort();
        }
    }
}
