//! Static pods: pods from manifests of this machine, which run without the API server.
//!
//! [`source`] reads the directory of manifests, [`manifest`] makes a pod from each, and [`mirror`] keeps the mirror pods, the objects
//! of the API that show static pods. The workers are those of all pods. **Invariant.** The UID of a static pod is a hash of its
//! manifest, so that a new agent adopts its containers, and a changed manifest is a new pod, which starts when the old one has ended.
//!
//! Upstream: `pkg/kubelet/config/{file,common}.go`, `pkg/kubelet/pod/mirror_client.go`.

mod manifest;
pub(crate) mod mirror;
mod source;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use client::Key;
use k8s_openapi::api::core::v1::Pod;
use meta::Clock;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

pub(crate) use manifest::MIRROR;
pub(crate) use source::follow;

/// Where static pods come from.
pub(crate) struct StaticPodSource {
    /// A directory of manifests, or a single one.
    pub path: PathBuf,
    /// How often all manifests are read, even if no file seems to have changed.
    pub check_frequency: Duration,
    /// Decodes and validates manifests.
    pub decoder: Arc<dyn PodDecoder>,
    /// The name of the node.
    pub node: String,
    pub clock: Arc<dyn Clock>,
}

/// Decodes pods as the API server does.
pub trait PodDecoder: Send + Sync {
    /// Decodes a manifest, YAML or JSON, and sets the defaults of its fields. Errors if it is no pod.
    fn decode(&self, manifest: &str) -> Result<serde_json::Value, String>;
    /// Errors with all field errors if the API server would not create the pod.
    fn validate(&self, pod: &serde_json::Value) -> Result<(), String>;
}

/// The static pods of the node.
#[derive(Default)]
pub(crate) struct StaticPods {
    state: Mutex<State>,
    /// Notified after each change of the pods.
    changed: Notify,
    /// Whether the manifests have been read.
    read: watch::Sender<bool>,
    mirrors_changed: Notify,
}

#[derive(Default)]
struct State {
    /// The pods of the manifests; `None` until they have been read for the first time.
    desired: Option<BTreeMap<Key, Arc<Pod>>>,
    /// The pods that have a worker.
    running: BTreeMap<Key, Arc<Pod>>,
    /// The mirror pods of the API.
    mirrors: BTreeMap<Key, Arc<Pod>>,
    /// Whether `mirrors` has all of them.
    are_listed: bool,
}

impl StaticPods {
    /// The pods of the manifests; `None` until they have been read for the first time.
    pub fn desired(&self) -> Option<BTreeMap<Key, Arc<Pod>>> {
        self.state.lock().desired.clone()
    }

    fn set_desired(&self, pods: BTreeMap<Key, Arc<Pod>>) {
        self.state.lock().desired = Some(pods);
        self.read.send_replace(true);
        self.changed.notify_one();
        self.mirrors_changed.notify_one();
    }

    /// Records that the node has no manifests.
    pub fn set_none(&self) {
        self.set_desired(BTreeMap::new());
    }

    /// Waits until the manifests have been read for the first time.
    pub async fn read(&self) {
        let mut read = self.read.subscribe();
        if read.wait_for(|is_read| *is_read).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Lets pods that could not be started be tried again.
    pub fn retry(&self) {
        self.changed.notify_one();
    }

    /// Waits until the manifests have changed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The pods that have a worker.
    pub fn running(&self) -> BTreeMap<Key, Arc<Pod>> {
        self.state.lock().running.clone()
    }

    /// The UID of the pod with this name that has a worker.
    pub fn running_uid(&self, key: &Key) -> Option<String> {
        self.state.lock().running.get(key)?.metadata.uid.clone()
    }

    pub fn is_running(&self, key: &Key) -> bool {
        self.state.lock().running.contains_key(key)
    }

    /// Records that a pod has a worker.
    pub fn started(&self, key: Key, pod: Arc<Pod>) {
        self.state.lock().running.insert(key, pod);
        self.mirrors_changed.notify_one();
    }

    /// Records that the worker of a pod has ended.
    pub fn ended(&self, key: &Key) {
        self.state.lock().running.remove(key);
        self.changed.notify_one();
        self.mirrors_changed.notify_one();
    }

    /// Records a pod of the API, if it is a mirror pod, or that there is none with this name. Returns whether it concerns a static
    /// pod.
    pub fn set_mirror(&self, key: &Key, pod: Option<&Arc<Pod>>) -> bool {
        let mut state = self.state.lock();
        let mirror = pod.filter(|p| mirror::mirrored_uid(p).is_some());
        let before = match mirror {
            Some(mirror) => state.mirrors.insert(key.clone(), mirror.clone()),
            None => state.mirrors.remove(key),
        };
        let concerns = mirror.is_some() || before.is_some();
        if concerns {
            self.mirrors_changed.notify_one();
        }
        concerns
    }

    /// Records that all mirror pods of the API are known.
    pub fn set_listed(&self) {
        if !std::mem::replace(&mut self.state.lock().are_listed, true) {
            self.mirrors_changed.notify_one();
        }
    }

    /// The mirror pod that shows this static pod.
    pub fn mirror(&self, static_pod: &Pod) -> Option<Arc<Pod>> {
        let m = &static_pod.metadata;
        let key = Key::new(m.namespace.as_deref().unwrap_or_default(), m.name.as_deref().unwrap_or_default());
        self.state.lock().mirrors.get(&key).filter(|mirror| mirror::is_current(mirror, static_pod)).cloned()
    }

    /// The mirror pods of the API; `None` until all are known.
    fn mirrors(&self) -> Option<BTreeMap<Key, Arc<Pod>>> {
        let state = self.state.lock();
        state.are_listed.then(|| state.mirrors.clone())
    }

    async fn mirrors_changed(&self) {
        self.mirrors_changed.notified().await;
    }
}
