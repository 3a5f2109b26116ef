//! Pulls of images: one at a time for each image and credentials, a few at a time for each registry.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, Shared, WeakShared};
use futures::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use runtime::ImageStore;
use runtime::image::{Image, Room};
use supervisor::blocking;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::auth::Credentials;
use crate::blob::download;
use crate::error::Error;
use crate::manifest::{self, Descriptor, Manifest};
use crate::reference::Reference;
use crate::registries::{Endpoint, Registries};
use crate::session::Session;
use crate::workspace::Workspace;

/// Limits of pulls.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Pulls from one registry at a time.
    pub pulls: usize,
    /// Layers of one image that are downloaded at a time.
    pub layers: usize,
    /// Time of a TCP connect, and of a TLS handshake.
    pub connect: Duration,
    /// Time until the start of a response, and of a document as a whole.
    pub response: Duration,
    /// The time in which `progress` bytes of a layer must arrive.
    pub stall: Duration,
    /// Bytes. A download that brings fewer before it breaks counts as failed.
    pub progress: u64,
    /// Tries in a row of a request that fails.
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

/// A pulled image.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// The image in the store.
    pub image: Image,
    /// The duration of the pull, without the time that it waited for others.
    pub duration: Duration,
}

type Outcome = Result<Pulled, Arc<Error>>;
type Key = (Reference, Vec<Credentials>);

/// Pulls images into an image store. Cheap to clone.
#[derive(Clone)]
pub struct Puller(Arc<Inner>);

struct Inner {
    store: ImageStore,
    configuration: PathBuf,
    limits: Limits,
    /// Pulls that callers wait for.
    running: Mutex<HashMap<Key, WeakShared<BoxFuture<'static, Outcome>>>>,
    /// Permits of pulls by registry.
    permits: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Puller {
    /// Pulls into `store`, with the registries of a configuration file, which need not exist.
    pub fn new(store: ImageStore, configuration: PathBuf, limits: Limits) -> Puller {
        Puller(Arc::new(Inner { store, configuration, limits, running: Mutex::default(), permits: Mutex::default() }))
    }

    /// Pulls the image and returns it. Tries all credentials in order, or none if there are none. Callers that request the same image
    /// with the same credentials share a pull, which ends when the last one of them drops its future.
    pub async fn pull(&self, name: &str, credentials: &[Credentials]) -> Outcome {
        let reference = Reference::parse(name).map_err(Arc::new)?;
        self.join((reference, credentials.to_vec())).await
    }

    /// The pull that runs, or a new one.
    fn join(&self, key: Key) -> Shared<BoxFuture<'static, Outcome>> {
        let mut running = self.0.running.lock();
        running.retain(|_, pull| pull.upgrade().is_some_and(|p| p.peek().is_none()));
        if let Some(pull) = running.get(&key).and_then(WeakShared::upgrade) {
            return pull;
        }
        let (inner, (reference, credentials)) = (self.0.clone(), key.clone());
        let pull = async move { inner.pull(&reference, &credentials).await.map_err(Arc::new) }.boxed().shared();
        if let Some(weak) = pull.downgrade() {
            running.insert(key, weak);
        }
        pull
    }
}

impl Inner {
    async fn pull(&self, reference: &Reference, credentials: &[Credentials]) -> Result<Pulled, Error> {
        let semaphore = self.semaphore(&reference.registry);
        // A semaphore that is never closed.
        let _permit = semaphore.acquire().await.ok();
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
            match self.pull_from(reference, &endpoints, credentials).await {
                Ok(image) => return Ok(Pulled { image, duration: begun.elapsed() }),
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

    fn semaphore(&self, registry: &str) -> Arc<Semaphore> {
        let mut permits = self.permits.lock();
        permits.retain(|_, s| s.strong_count() > 0);
        if let Some(semaphore) = permits.get(registry).and_then(Weak::upgrade) {
            return semaphore;
        }
        let semaphore = Arc::new(Semaphore::new(self.limits.pulls));
        permits.insert(registry.to_owned(), Arc::downgrade(&semaphore));
        semaphore
    }

    /// Tries the endpoints in order. Returns the error of the last one, which is the registry itself.
    async fn pull_from(
        &self,
        reference: &Reference,
        endpoints: &[Endpoint],
        credentials: Option<&Credentials>,
    ) -> Result<Image, Error> {
        let mut last = Error::Manifest("no endpoint is configured".into());
        for endpoint in endpoints {
            let session = Session::new(endpoint, &reference.repository, credentials, &self.limits);
            match self.pull_from_endpoint(reference, &session).await {
                Ok(image) => return Ok(image),
                // Another endpoint has the same disk and the same image.
                Err(error @ (Error::NoRoom { .. } | Error::Store(_) | Error::File { .. })) => return Err(error),
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

    async fn pull_from_endpoint(&self, reference: &Reference, session: &Session<'_>) -> Result<Image, Error> {
        let raw = manifest::fetch(session, reference).await?;
        let mut names = vec![reference.with_digest(&raw.digest)];
        if reference.digest().is_none() {
            names.push(reference.to_string());
        }
        // The store has exactly this manifest of this repository, and with it all layers.
        let (store, known) = (self.store.clone(), names.clone());
        if let Some(image) = blocking(move || store.add_names(&known[0], &known).ok()).await {
            return Ok(image);
        }
        let manifest = manifest::resolve(session, raw).await?;
        self.check_room(&manifest)?;
        let parent = self.store.downloads_root();
        let workspace = blocking(move || Workspace::create(&parent)).await?;
        self.download(session, &manifest, &workspace).await?;
        let store = self.store.clone();
        blocking(move || {
            workspace.finish(&manifest)?;
            store.import_pulled(workspace.path(), &names, || Room { bytes: 0, files: 0 }).map_err(Error::Store)
        })
        .await
    }

    fn room(&self) -> Result<u64, Error> {
        self.store.room().map(|room| room.bytes).map_err(Error::Store)
    }

    /// Refuses an image whose compressed layers alone do not fit on the disk.
    fn check_room(&self, manifest: &Manifest) -> Result<(), Error> {
        let (needed, room) = (manifest.layers.iter().fold(0, |all: u64, l| all.saturating_add(l.size)), self.room()?);
        if needed > room { Err(Error::NoRoom { needed, room }) } else { Ok(()) }
    }

    /// Downloads the configuration, then the layers.
    async fn download(&self, session: &Session<'_>, manifest: &Manifest, into: &Workspace) -> Result<(), Error> {
        let room = || self.room();
        let path = into.blob(&manifest.config.digest);
        download(session, &manifest.config, &path, &self.limits, &room).await?;
        let text = tokio::fs::read(&path).await.map_err(Error::file(path.display().to_string()))?;
        manifest::check_configuration(&text)?;
        let mut layers: Vec<&Descriptor> = Vec::new();
        for layer in &manifest.layers {
            if !layers.iter().any(|l| l.digest == layer.digest) {
                layers.push(layer);
            }
        }
        let room: &(dyn Fn() -> Result<u64, Error> + Sync) = &room;
        let mut downloads = Vec::new();
        for layer in layers {
            let path = into.blob(&layer.digest);
            downloads.push(async move { download(session, layer, &path, &self.limits, room).await }.boxed());
        }
        stream::iter(downloads).buffer_unordered(self.limits.layers).try_collect::<()>().await
    }
}
