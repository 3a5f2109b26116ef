//! The provisioner `kemudi.local/directory`: persistent volumes that are directories or files of this node.
//!
//! A claim for which the scheduler has selected this node gets a directory below the data directory, with a mode that lets every user
//! write, or a file of its size (`crate::file_volumes`), as the class says, and a `local` volume with the affinity to the node. A claim that
//! requests more later grows. When the volume is released and its reclaim policy is `Delete`, directory or file is removed, then the volume.
//! **Invariant.** The name of a directory or file comes from the UID of the claim alone, and no other one is ever removed, whatever a
//! volume says. It exists before its volume, and a volume until it is gone.
//!
//! A claim may be a copy of another one (`dataSource`). Left out: snapshots; the size of a directory is not enforced.

mod decide;
mod directories;
mod grow;
pub(crate) mod growth;
mod turns;

pub use decide::PROVISIONER;
pub use directories::Directories;

use client::{ApiResource, Client, DeleteOptions, Informer, Informers, Key, Outcome, RateLimit, Recorder, Regarding};
use client::{Scope, Shutdown, Source, WorkQueue, WriteOptions};
use decide::{FINALIZER, Medium, Refusal, Step};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use meta::{Clock, Object};
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use turns::Turns;

use crate::file_volumes::{self, FileVolume, FileVolumes, Format};

/// What the provisioner of a node needs.
#[derive(Clone)]
pub struct ProvisionerOptions {
    /// May write volumes and events, and read claims and storage classes.
    pub client: Client,
    pub informers: Informers,
    pub node_name: String,
    /// The directory of the volumes of the node, an absolute path without links.
    pub directory: PathBuf,
    /// Volumes in files, which the agent mounts.
    pub files: Arc<FileVolumes>,
    pub clock: Arc<dyn Clock>,
    pub shutdown: Shutdown,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Claim(Key),
    Volume(Key),
}

/// The claim of a volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Bound {
    spec: BoundSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BoundSpec {
    claim_ref: Option<ClaimReference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ClaimReference {
    namespace: String,
    name: String,
}

impl Bound {
    fn claim(&self) -> Option<Key> {
        self.spec.claim_ref.as_ref().map(|r| Key::new(&*r.namespace, &*r.name))
    }
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error("{path}: {source}")]
    Directory { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    File(#[from] file_volumes::Error),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the StorageClass has the provisioner {0} now")]
    OtherProvisioner(String),
}

/// What came of the creation of a volume.
enum Created {
    New,
    Known,
    /// Another copy is being made.
    Later,
}

/// The volumes that are worked on at a time: one that is large, or damaged, delays few others.
const AT_A_TIME: usize = 8;

struct Provisioner {
    copies: Turns,
    options: ProvisionerOptions,
    directories: Directories,
    claims: Informer<()>,
    volumes: Informer<Bound>,
    recorder: Recorder,
}

/// Makes and removes directories until shutdown.
pub async fn run(options: ProvisionerOptions) {
    let scope = Scope::default();
    let claims: Informer<()> = options.informers.informer(&ApiResource::typed::<PersistentVolumeClaim>(), &scope);
    let volumes: Informer<Bound> = options.informers.informer(&ApiResource::typed::<PersistentVolume>(), &scope);
    let limit = RateLimit { base: Duration::from_secs(1), max: Duration::from_secs(300) };
    let queue = Arc::new(WorkQueue::<Item>::new(limit));
    let _subscriptions = {
        let (of_claims, of_volumes) = (queue.clone(), queue.clone());
        (
            claims.subscribe(move |change| of_claims.add(Item::Claim(change.key()))),
            volumes.subscribe(move |change| {
                of_volumes.add(Item::Volume(change.key()));
                if let Some(claim) = change.new.as_ref().and_then(|v| v.view.claim()) {
                    of_volumes.add(Item::Claim(claim));
                }
            }),
        )
    };
    let synced = async {
        claims.synced().await;
        volumes.synced().await;
    };
    let shutdown = options.shutdown.clone();
    if shutdown.race(synced).await.is_none() {
        return;
    }
    let source = Source::Core { component: PROVISIONER.into(), host: options.node_name.clone() };
    let provisioner = Arc::new(Provisioner {
        copies: Turns::default(),
        recorder: Recorder::start(&options.client, source, options.clock.clone(), shutdown.clone()),
        directories: Directories::new(options.directory.clone()),
        claims,
        volumes,
        options,
    });
    provisioner.remove_unused().await;
    client::queue::work("directory_provisioner", queue, AT_A_TIME, shutdown, move |item| {
        let provisioner = provisioner.clone();
        async move {
            match item {
                Item::Claim(key) => provisioner.provision(&key).await,
                Item::Volume(key) => provisioner.sync_volume(&key).await,
            }
        }
    })
    .await;
}

fn regarding(kind: &str, meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Regarding {
    Regarding {
        api_version: "v1".into(),
        kind: kind.into(),
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        field_path: String::new(),
    }
}

impl Provisioner {
    /// Removes empty directories and unused files without a volume: what is left if the process ended before it could create the volume,
    /// and the claim was deleted afterwards. One with data may be what a user retained.
    async fn remove_unused(&self) {
        for name in self.options.files.unused().await {
            if self.volumes.get(&Key::new("", &*name)).is_none()
                && let Err(error) = self.options.files.remove(&name).await
            {
                tracing::warn!(name, %error, "removing the unused file of a volume failed");
            }
        }
        for name in self.directories.names().await {
            if self.volumes.get(&Key::new("", &*name)).is_none() {
                self.directories.remove_empty(&name).await;
            }
        }
    }

    async fn provision(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(entry) = self.claims.get(key) else { return Ok(Outcome::Done) };
        let claim: PersistentVolumeClaim = entry.decode()?;
        if !decide::is_awaited(&claim, &self.options.node_name) {
            return self.grow(claim).await;
        }
        let about = regarding("PersistentVolumeClaim", &claim.metadata);
        let Some(name) = decide::volume_name(&claim) else { return Ok(Outcome::Done) };
        if self.volumes.get(&Key::new("", &*name)).is_some() {
            return Ok(Outcome::Done);
        }
        let class = claim.spec.as_ref().and_then(|s| s.storage_class_name.clone()).unwrap_or_default();
        match self.create(&name, &claim, &class).await {
            Ok(Created::New) => {
                self.recorder.normal(about, "ProvisioningSucceeded", format!("Successfully provisioned volume {name}"));
            }
            Ok(Created::Known) => {}
            Ok(Created::Later) => return Ok(Outcome::After(turns::WAIT)),
            Err(e) => {
                let why = format!("failed to provision volume with StorageClass \"{class}\": {e}");
                self.recorder.warning(about, "ProvisioningFailed", why);
                return Err(e);
            }
        }
        Ok(Outcome::Done)
    }

    /// Makes the directory or file and the volume of a claim.
    async fn create(&self, name: &str, claim: &PersistentVolumeClaim, class: &str) -> Result<Created, Error> {
        let client = &self.options.client;
        let class = client.api::<StorageClass>().get(class).await?;
        if class.provisioner != PROVISIONER {
            return Err(Error::OtherProvisioner(class.provisioner));
        }
        let medium = decide::medium(claim, &class)?;
        let path = match medium {
            Medium::Directory => {
                let path = self.directories.path(name);
                let failed = |source| Error::Directory { path: path.clone(), source };
                self.directories.make(name).await.map_err(failed)?;
                path
            }
            Medium::File(options) => {
                let size = options.format.size(decide::requested(claim));
                let source = self.source(claim, (options.format, size)).await?;
                let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
                let turn = source.as_ref().map(|_| self.copies.take(namespace, Instant::now()));
                if matches!(turn, Some(None)) {
                    return Ok(Created::Later);
                }
                self.options.files.make(name, size, options, source.as_ref()).await?;
                self.options.files.path(name)
            }
        };
        let volume = decide::volume(name, claim, &class, &self.options.node_name, (medium, &path));
        let volume = Object::from_value(volume).unwrap_or_default();
        let api = client.dynamic(&ApiResource::typed::<PersistentVolume>());
        match api.create(&WriteOptions::default(), &volume).await {
            Ok(_) => Ok(Created::New),
            Err(e) if e.is_already_exists() => Ok(Created::Known),
            Err(e) => Err(e.into()),
        }
    }

    /// The volume that a file of this format and size is to be a copy of.
    async fn source(&self, claim: &PersistentVolumeClaim, target: (Format, u64)) -> Result<Option<FileVolume>, Error> {
        let Some(name) = decide::source(claim)? else { return Ok(None) };
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let client = &self.options.client;
        let source = client.api::<PersistentVolumeClaim>().namespace(namespace).get(&name).await?;
        let bound = source.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|v| !v.is_empty());
        let volume = match bound {
            Some(bound) => client.api::<PersistentVolume>().get_opt(bound).await?,
            None => None,
        };
        let own = volume.filter(|v| self.is_own(v) && decide::is_for(v, &source));
        let size = own.as_ref().and_then(|v| v.spec.as_ref()?.capacity.as_ref()?.get("storage"));
        let size = decide::bytes(size);
        let file = own.as_ref().and_then(|v| self.options.files.recognize(v));
        Ok(Some(decide::copied(&name, file.as_ref(), target, size)?.clone()))
    }

    async fn sync_volume(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(entry) = self.volumes.get(key) else { return Ok(Outcome::Done) };
        if self.step(&entry.decode()?) == Step::Keep {
            return Ok(Outcome::Done);
        }
        // The cache may be old: data are only removed for what the server has now.
        let api = self.options.client.api::<PersistentVolume>();
        let Some(volume) = api.get_opt(&key.name).await? else { return Ok(Outcome::Done) };
        match self.step(&volume) {
            Step::Keep => {}
            Step::AddFinalizer => self.set_finalizer(volume, true).await?,
            Step::RemoveFinalizer => self.set_finalizer(volume, false).await?,
            Step::Remove => {
                if let Err(e) = self.remove(&key.name).await {
                    let about = regarding("PersistentVolume", &volume.metadata);
                    self.recorder.warning(about, "VolumeFailedDelete", e.to_string());
                    return Err(e);
                }
                let options = DeleteOptions::uid(volume.metadata.uid.as_deref().unwrap_or_default());
                client::optional(api.delete(&key.name, &options).await)?;
                if let Some(volume) = api.get_opt(&key.name).await? {
                    self.set_finalizer(volume, false).await?;
                }
            }
        }
        Ok(Outcome::Done)
    }

    /// Removes what holds a volume.
    async fn remove(&self, name: &str) -> Result<(), Error> {
        self.options.files.remove(name).await?;
        let failed = |source| Error::Directory { path: self.directories.path(name), source };
        self.directories.remove(name).await.map_err(failed)
    }

    fn is_own(&self, volume: &PersistentVolume) -> bool {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let paths = [self.directories.path(name), self.options.files.path(name)];
        decide::is_own(volume, &self.options.node_name, paths.each_ref().map(PathBuf::as_path))
    }

    fn step(&self, volume: &PersistentVolume) -> Step {
        if self.is_own(volume) { decide::step(volume) } else { Step::Keep }
    }

    async fn set_finalizer(&self, mut volume: PersistentVolume, is_set: bool) -> Result<(), Error> {
        let finalizers = volume.metadata.finalizers.get_or_insert_default();
        finalizers.retain(|f| f != FINALIZER);
        if is_set {
            finalizers.push(FINALIZER.into());
        }
        let name = volume.metadata.name.clone().unwrap_or_default();
        let api = self.options.client.api::<PersistentVolume>();
        client::optional(api.update(&name, &WriteOptions::default(), &volume).await)?;
        Ok(())
    }
}
