//! The config maps and secrets that pods of this node reference, each watched while a pod references it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{ApiResource, Informer, Informers, Key, Scope};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    ConfigMap,
    Secret,
}

impl Kind {
    /// The kind in messages.
    pub fn noun(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }

    fn resource(self) -> ApiResource {
        match self {
            Self::ConfigMap => ApiResource::typed::<ConfigMap>(),
            Self::Secret => ApiResource::typed::<Secret>(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
}

impl Reference {
    fn scope(&self) -> Scope {
        Scope {
            namespace: Some(self.namespace.clone()),
            field_selector: format!("metadata.name={}", self.name),
            ..Scope::default()
        }
    }
}

/// A cache without views: its users decode whole objects.
pub type Whole = ();

/// How long a read waits for the first list.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server cannot be reached, or denies the request.
    #[error("failed to sync {0} cache: timed out waiting for the condition")]
    NotSynced(&'static str),
    /// The objects that a pod references exceed this many MiB.
    #[error("the config maps and secrets that the pod refers to take more than {0} MiB")]
    TooMuch(usize),
    #[error("{kind} \"{namespace}/{name}\" cannot be read: {source}")]
    Decode { kind: &'static str, namespace: String, name: String, source: client::Error },
}

/// The data of a config map or secret.
pub type Data = BTreeMap<String, Bytes>;

struct Held {
    informer: Informer<Whole>,
    /// UIDs of the pods that reference it.
    users: Arc<Mutex<BTreeSet<String>>>,
}

/// Called with the UID of a pod that references an object that changed.
pub type Changed = Arc<dyn Fn(&str) + Send + Sync>;

pub struct Objects {
    informers: Informers,
    changed: Changed,
    held: Mutex<BTreeMap<Reference, Held>>,
}

impl Objects {
    pub fn new(informers: Informers, changed: Changed) -> Self {
        Self { informers, changed, held: Mutex::default() }
    }

    /// Sets what a pod references. Starts watches that are new and stops those without a pod.
    pub fn register(&self, uid: &str, references: &BTreeSet<Reference>) {
        let mut held = self.held.lock();
        for r in references.iter().filter(|r| !r.name.is_empty()) {
            let h = held.entry(r.clone()).or_insert_with(|| {
                let informer = self.informers.informer::<Whole>(&r.kind.resource(), &r.scope());
                let users: Arc<Mutex<BTreeSet<String>>> = Arc::default();
                let (of, changed) = (users.clone(), self.changed.clone());
                informer.on_change(move |_| {
                    for uid in of.lock().clone() {
                        changed(&uid);
                    }
                });
                Held { informer, users }
            });
            h.users.lock().insert(uid.to_owned());
        }
        held.retain(|r, h| {
            let mut users = h.users.lock();
            if !references.contains(r) {
                users.remove(uid);
            }
            if users.is_empty() {
                self.informers.stop::<Whole>(&r.kind.resource(), &r.scope());
                return false;
            }
            true
        });
    }

    /// Removes the references of a pod that is gone.
    pub fn forget(&self, uid: &str) {
        self.register(uid, &BTreeSet::new());
    }

    /// The data of an object; `None` if it does not exist. Errors if no pod has registered it.
    pub async fn data(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<Data>, Error> {
        Ok(match kind {
            Kind::ConfigMap => self.object(kind, namespace, name).await?.map(|o: ConfigMap| {
                let text = o.data.into_iter().flatten().map(|(k, v)| (k, v.into()));
                text.chain(o.binary_data.into_iter().flatten().map(|(k, v)| (k, v.0.into()))).collect()
            }),
            Kind::Secret => self.secret(namespace, name).await?.map(|o| {
                let data = o.data.into_iter().flatten();
                data.map(|(k, v)| (k, v.0.into())).collect()
            }),
        })
    }

    /// A secret; `None` if it does not exist. Errors if no pod has registered it.
    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Secret>, Error> {
        self.object(Kind::Secret, namespace, name).await
    }

    async fn object<T: DeserializeOwned>(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<T>, Error> {
        let reference = Reference { kind, namespace: namespace.into(), name: name.into() };
        let informer = self.held.lock().get(&reference).map(|h| h.informer.clone());
        let Some(informer) = informer else { return Err(Error::NotSynced(kind.noun())) };
        if tokio::time::timeout(PATIENCE, informer.synced()).await.is_err() {
            return Err(Error::NotSynced(kind.noun()));
        }
        let Some(entry) = informer.get(&Key::new(namespace, name)) else { return Ok(None) };
        let wrong = |source| Error::Decode {
            kind: kind.noun(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            source,
        };
        entry.decode().map(Some).map_err(wrong)
    }
}
