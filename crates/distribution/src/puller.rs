//! Pulls of images: one at a time for each image and credentials, a few at a time for each registry and namespace.

use std::collections::HashMap;
use std::hash::Hash;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, Shared, WeakShared};
use futures::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use runtime::ImageStore;
use runtime::image::{Access, AccessByRepository, Credentials, Image, Pulled, Room};
use supervisor::blocking;
use tokio::time::Instant;

use crate::account::{Account, Progress, Reservation};
use crate::blob::download;
use crate::error::Error;
use crate::manifest::{self, Manifest};
use crate::reference::Reference;
use crate::registries::{Endpoint, Registries};
use crate::session::Session;
use crate::turns::Turns;
use crate::workspace::{Workspace, remove_leftovers};

/// Limits of pulls.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Pulls from one registry at a time, besides the first one of each namespace.
    pub pulls: usize,
    /// Layers of one image that are downloaded at a time.
    pub layers: usize,
    /// Time of a TCP connect, and of a TLS handshake.
    pub connect: Duration,
    /// Time until the start of a response, and of a document as a whole.
    pub response: Duration,
    /// The time in which `progress` bytes of a layer must arrive on a connection. Over all connections, five times as much is
    /// required in five times the time at first, and then twice as much in each further such time, up to sixteen times.
    pub stall: Duration,
    /// Bytes. A download that brings fewer before it breaks counts as failed.
    pub progress: u64,
    /// Tries in a row of a request that fails, and restarts of a layer that a server does not continue.
    pub tries: u32,
    /// The delay before the second try, doubled for each further one.
    pub retry_delay: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pulls: 5,
            layers: 3,
            connect: Duration::from_secs(10),
            response: Duration::from_secs(30),
            stall: Duration::from_secs(60),
            progress: 64 << 10,
            tries: 4,
            retry_delay: Duration::from_millis(500),
        }
    }
}

type Outcome = Result<Pulled, Arc<Error>>;
/// The namespace, the image and the credentials of a pull.
type Key = (String, Reference, Vec<Credentials>);
type SharedPull<T> = Shared<BoxFuture<'static, Result<T, Arc<Error>>>>;

/// Pulls by what they pull, while callers wait for them.
struct Running<K, T>(Mutex<HashMap<K, WeakShared<BoxFuture<'static, Result<T, Arc<Error>>>>>>);

impl<K: Eq + Hash, T: Clone> Running<K, T> {
    /// The pull that runs, or a new one.
    fn join<F>(&self, key: K, pull: impl FnOnce() -> F) -> SharedPull<T>
    where
        F: Future<Output = Result<T, Arc<Error>>> + Send + 'static,
    {
        let mut running = self.0.lock();
        running.retain(|_, pull| pull.upgrade().is_some_and(|p| p.peek().is_none()));
        if let Some(pull) = running.get(&key).and_then(WeakShared::upgrade) {
            return pull;
        }
        let pull = pull().boxed().shared();
        if let Some(weak) = pull.downgrade() {
            running.insert(key, weak);
        }
        pull
    }
}

impl<K, T> Default for Running<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// Pulls images into an image store. Cheap to clone.
#[derive(Clone)]
pub struct Puller(Arc<Inner>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requester {
    Pods,
    Administrator,
}

struct Inner {
    store: ImageStore,
    requester: Requester,
    configuration: PathBuf,
    limits: Limits,
    turns: Arc<Turns>,
    account: Arc<Account>,
    /// Pulls that wait for a turn, or have one.
    waiting: Running<Key, Pulled>,
    /// Pulls that have a turn. Those of several namespaces that pull the same share one.
    running: Running<(Reference, Vec<Credentials>), Pulled>,
}

impl Puller {
    /// Pulls into `store` for pods, with the registries of a configuration file, which need not exist. No pod may use a pulled image by
    /// the name of its repository until the caller records who may ([`ImageStore::record_access`]).
    pub fn new(store: ImageStore, configuration: PathBuf, limits: Limits) -> Puller {
        Self::with(store, configuration, limits, Requester::Pods)
    }

    /// Pulls for an administrator: every pod may use the images.
    pub fn for_administrator(store: ImageStore, configuration: PathBuf, limits: Limits) -> Puller {
        Self::with(store, configuration, limits, Requester::Administrator)
    }

    fn with(store: ImageStore, configuration: PathBuf, limits: Limits, requester: Requester) -> Puller {
        let (turns, account) = (Turns::new(limits.pulls), Account::new(store.clone()));
        let (waiting, running) = (Running::default(), Running::default());
        Puller(Arc::new(Inner { store, requester, configuration, limits, turns, account, waiting, running }))
    }

    /// Pulls the image and returns it, like [`Puller::pull_for`] for no namespace.
    pub async fn pull(&self, name: &str, credentials: &[Credentials]) -> Outcome {
        self.pull_for("", name, credentials).await
    }

    /// Pulls the image for a pod of a namespace and returns it. Tries all credentials in order, or none if there are none. Callers that
    /// request the same image with the same credentials share a pull, which ends when the last one of them drops its future.
    pub async fn pull_for(&self, namespace: &str, name: &str, credentials: &[Credentials]) -> Outcome {
        let reference = Reference::parse(name).map_err(Arc::new)?;
        let key = (namespace.to_owned(), reference, credentials.to_vec());
        let pull = self.0.waiting.join(key.clone(), || {
            let inner = self.0.clone();
            let (namespace, reference, credentials) = key;
            async move {
                let _turn = inner.turns.wait(&reference.registry, &namespace).await;
                let (key, shared) = ((reference.clone(), credentials.clone()), inner.clone());
                let pull = inner.running.join(key, || async move {
                    shared.pull(&namespace, &reference, &credentials).await.map_err(Arc::new)
                });
                pull.await
            }
        });
        pull.await
    }

    /// How much of all running pulls is downloaded.
    pub fn progress(&self) -> Progress {
        self.0.account.progress()
    }

    /// Removes what pulls of processes that were killed have left. Blocks.
    pub fn remove_leftovers(&self) {
        remove_leftovers(&self.0.store.downloads_root());
    }
}

impl Inner {
    async fn pull(&self, namespace: &str, reference: &Reference, credentials: &[Credentials]) -> Result<Pulled, Error> {
        let begun = Instant::now();
        let path = self.configuration.clone();
        let registry = reference.registry.clone();
        let endpoints = blocking(move || Registries::read(&path)?.endpoints(&registry)).await?;
        let mut all: Vec<Option<&Credentials>> = credentials.iter().map(Some).collect();
        if all.is_empty() {
            all.push(None);
        }
        let mut errors = Vec::new();
        for credentials in all {
            match self.pull_from(namespace, reference, &endpoints, credentials).await {
                Ok(image) => {
                    return Ok(Pulled { image, duration: begun.elapsed(), credentials: credentials.cloned() });
                }
                Err(error) => {
                    let is_last = !error.is_refusal();
                    errors.push(error);
                    if is_last {
                        break;
                    }
                }
            }
        }
        Err(if errors.len() == 1 { errors.remove(0) } else { Error::Several(errors) })
    }

    /// Tries the endpoints in order. Returns the error of the last one, which is the registry itself.
    async fn pull_from(
        &self,
        namespace: &str,
        reference: &Reference,
        endpoints: &[Endpoint],
        credentials: Option<&Credentials>,
    ) -> Result<Image, Error> {
        let mut last = Error::Manifest("no endpoint is configured".into());
        for endpoint in endpoints {
            let session = Session::new(endpoint, &reference.repository, credentials, &self.limits);
            match self.pull_from_endpoint(namespace, reference, &session).await {
                Ok(image) => return Ok(image),
                // Another endpoint has the same disk and the same image.
                Err(error @ (Error::NoRoom { .. } | Error::NoFiles { .. } | Error::Store(_) | Error::File { .. })) => {
                    return Err(error);
                }
                Err(error) => {
                    if endpoint.mirror_of.is_some() {
                        tracing::info!(image = %reference, mirror = session.host(), %error, "pulling from a mirror failed");
                    }
                    last = error;
                }
            }
        }
        Err(last)
    }

    async fn pull_from_endpoint(
        &self,
        namespace: &str,
        reference: &Reference,
        session: &Session<'_>,
    ) -> Result<Image, Error> {
        let raw = manifest::fetch(session, reference).await?;
        let mut names = vec![reference.with_digest(&raw.digest)];
        if reference.digest().is_none() {
            names.push(reference.to_string());
        }
        // The store has exactly this manifest of this repository, and with it all layers.
        let (store, known, access) = (self.store.clone(), names.clone(), self.access(reference));
        let present = blocking(move || {
            let image = store.add_names(&known[0], &known).ok()?;
            Some(
                access
                    .into_iter()
                    .flatten()
                    .try_fold(image, |image, (repository, access)| store.record_access(&image.id, &repository, access)),
            )
        });
        if let Some(image) = present.await {
            return image.map_err(Error::Store);
        }
        let manifest = manifest::resolve(session, raw).await?;
        let parent = self.store.downloads_root();
        // Before the room is measured, which they take.
        let left = parent.clone();
        blocking(move || remove_leftovers(&left)).await;
        let reservation = self.account.reserve(namespace, needed(&manifest))?;
        let workspace = blocking(move || Workspace::create(&parent)).await?;
        self.download(session, &manifest, &workspace, &reservation).await?;
        let (store, access) = (self.store.clone(), self.access(reference));
        blocking(move || {
            workspace.finish(&manifest)?;
            let others = || reservation.promised_to_others();
            store.import_pulled(workspace.path(), &names, access, others).map_err(Error::Store)
        })
        .await
    }

    /// The record of an image that was pulled for a pod, and that no pod may use yet.
    fn access(&self, reference: &Reference) -> Option<AccessByRepository> {
        let is_for_pods = self.requester == Requester::Pods;
        is_for_pods.then(|| [(reference.full_repository(), Access::default())].into())
    }

    /// Downloads the configuration, then the layers.
    async fn download(
        &self,
        session: &Session<'_>,
        manifest: &Manifest,
        into: &Workspace,
        reservation: &Reservation,
    ) -> Result<(), Error> {
        let path = into.blob(&manifest.config.digest);
        download(session, &manifest.config, &path, &self.limits, reservation).await?;
        let text = tokio::fs::read(&path).await.map_err(Error::file(path.display().to_string()))?;
        manifest::check_configuration(&text)?;
        let mut downloads = Vec::new();
        for layer in manifest.distinct_layers() {
            let path = into.blob(&layer.digest);
            downloads.push(async move { download(session, layer, &path, &self.limits, reservation).await }.boxed());
        }
        stream::iter(downloads).buffer_unordered(self.limits.layers).try_collect::<()>().await
    }
}

/// What the download of an image writes to the disk, according to its manifest.
fn needed(manifest: &Manifest) -> Room {
    /// Besides the blobs: the manifest, the index, the lock and the directories.
    const FILES: u64 = 6;
    let layers = manifest.distinct_layers();
    let bytes = layers.iter().fold(manifest.config.size, |sum, layer| sum.saturating_add(layer.size));
    Room { bytes, files: layers.len() as u64 + FILES }
}
