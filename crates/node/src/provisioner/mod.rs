//! The provisioner `kemudi.local/directory`: persistent volumes that are directories of this node.
//!
//! A claim for which the scheduler has selected this node gets a directory below the data directory, with a mode that lets every user
//! write, and a `local` volume with the affinity to the node. When the volume is released and its reclaim policy is `Delete`, the
//! directory is removed, then the volume. **Invariant.** The name of a directory comes from the UID of the claim alone, and no other
//! directory is ever removed, whatever a volume says. A directory exists before its volume, and a volume until its directory is gone.
//!
//! Left out: the size of a volume is not enforced, and block volumes, snapshots and copies.

mod decide;
mod directories;

pub use decide::PROVISIONER;
pub use directories::Directories;

use client::{ApiResource, Client, DeleteOptions, Informer, Informers, Key, Outcome, RateLimit, Recorder, Regarding};
use client::{Scope, Shutdown, Source, WorkQueue, WriteOptions};
use decide::{FINALIZER, Step};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use meta::{Clock, Object};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What the provisioner of a node needs.
#[derive(Clone)]
pub struct ProvisionerOptions {
    /// May write volumes and events, and read claims and storage classes.
    pub client: Client,
    pub informers: Informers,
    pub node_name: String,
    /// The directory of the volumes of the node, an absolute path without links.
    pub directory: PathBuf,
    pub clock: Arc<dyn Clock>,
    pub shutdown: Shutdown,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Claim(Key),
    Volume(Key),
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error("{path}: {source}")]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Refused(String),
}

struct Provisioner {
    options: ProvisionerOptions,
    directories: Directories,
    claims: Informer<()>,
    volumes: Informer<()>,
    recorder: Recorder,
}

/// Makes and removes directories until shutdown.
pub async fn run(options: ProvisionerOptions) {
    let scope = Scope::default();
    let claims: Informer<()> = options.informers.informer(&ApiResource::typed::<PersistentVolumeClaim>(), &scope);
    let volumes: Informer<()> = options.informers.informer(&ApiResource::typed::<PersistentVolume>(), &scope);
    let limit = RateLimit { base: Duration::from_secs(1), max: Duration::from_secs(300) };
    let queue = Arc::new(WorkQueue::<Item>::new(limit));
    let _subscriptions = {
        let (of_claims, of_volumes) = (queue.clone(), queue.clone());
        (
            claims.subscribe(move |change| of_claims.add(Item::Claim(change.key()))),
            volumes.subscribe(move |change| of_volumes.add(Item::Volume(change.key()))),
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
        recorder: Recorder::start(&options.client, source, options.clock.clone(), shutdown.clone()),
        directories: Directories::new(options.directory.clone()),
        claims,
        volumes,
        options,
    });
    provisioner.remove_unused().await;
    client::queue::work("directory_provisioner", queue, 1, shutdown, move |item| {
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
    /// Removes empty directories without a volume: what is left if the process ended before it could create the volume, and the claim
    /// was deleted afterwards. One with files may be what a user retained.
    async fn remove_unused(&self) {
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
            return Ok(Outcome::Done);
        }
        let about = regarding("PersistentVolumeClaim", &claim.metadata);
        let Some(name) = decide::volume_name(&claim) else { return Ok(Outcome::Done) };
        if self.volumes.get(&Key::new("", &*name)).is_some() {
            return Ok(Outcome::Done);
        }
        let class = claim.spec.as_ref().and_then(|s| s.storage_class_name.clone()).unwrap_or_default();
        match self.create(&name, &claim, &class).await {
            Ok(true) => {
                self.recorder.normal(about, "ProvisioningSucceeded", format!("Successfully provisioned volume {name}"));
            }
            Ok(false) => {}
            Err(e) => {
                let why = format!("failed to provision volume with StorageClass \"{class}\": {e}");
                self.recorder.warning(about, "ProvisioningFailed", why);
                return Err(e);
            }
        }
        Ok(Outcome::Done)
    }

    /// Makes the directory and the volume of a claim. Returns whether the volume is new.
    async fn create(&self, name: &str, claim: &PersistentVolumeClaim, class: &str) -> Result<bool, Error> {
        let client = &self.options.client;
        let class = client.api::<StorageClass>().get(class).await?;
        if class.provisioner != PROVISIONER {
            return Err(Error::Refused(format!("the StorageClass has the provisioner {} now", class.provisioner)));
        }
        if let Some(why) = decide::refusal(claim, &class) {
            return Err(Error::Refused(why));
        }
        let directory = self.directories.path(name);
        let failed = |source| Error::Directory { path: directory.clone(), source };
        self.directories.make(name).await.map_err(failed)?;
        let volume = decide::volume(name, claim, &class, &self.options.node_name, &directory);
        let volume = Object::from_value(volume).unwrap_or_default();
        let api = client.dynamic(&ApiResource::typed::<PersistentVolume>());
        match api.create(&WriteOptions::default(), &volume).await {
            Ok(_) => Ok(true),
            Err(e) if e.is_already_exists() => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    async fn sync_volume(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(entry) = self.volumes.get(key) else { return Ok(Outcome::Done) };
        if self.step(&entry.decode()?) == Step::Keep {
            return Ok(Outcome::Done);
        }
        // The cache may be old: a directory is only removed for what the server has now.
        let api = self.options.client.api::<PersistentVolume>();
        let Some(volume) = api.get_opt(&key.name).await? else { return Ok(Outcome::Done) };
        match self.step(&volume) {
            Step::Keep => {}
            Step::AddFinalizer => self.set_finalizer(volume, true).await?,
            Step::RemoveFinalizer => self.set_finalizer(volume, false).await?,
            Step::Remove => {
                if let Err(source) = self.directories.remove(&key.name).await {
                    let e = Error::Directory { path: self.directories.path(&key.name), source };
                    self.recorder.warning(
                        regarding("PersistentVolume", &volume.metadata),
                        "VolumeFailedDelete",
                        e.to_string(),
                    );
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

    fn step(&self, volume: &PersistentVolume) -> Step {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        decide::step(volume, &self.options.node_name, &self.directories.path(name))
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
