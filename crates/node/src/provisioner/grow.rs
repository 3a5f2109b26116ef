//! Makes volumes larger whose claims request it.

use client::{Key, Outcome, Patch, WriteOptions};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::json;

use super::decide::{self, Medium};
use super::growth::{self, Growth, Progress};
use super::{Error, Provisioner, regarding};
use crate::file_volumes::{self, Contents, FileOptions, FileVolume};

/// A claim that is bound to a volume of this node.
struct Bound {
    claim: PersistentVolumeClaim,
    name: String,
    volume: PersistentVolume,
    /// `None` for a directory.
    file: Option<FileVolume>,
}

impl Provisioner {
    /// Continues the growth of a claim whose volume is here, if it requests more than it has. Each step that is recorded comes back as a
    /// change of the claim or of the volume.
    pub(super) async fn grow(&self, claim: PersistentVolumeClaim) -> Result<Outcome, Error> {
        let Some(bound) = self.bound(claim)? else { return Ok(Outcome::Done) };
        let medium = match &bound.file {
            Some(f) => Medium::File(FileOptions { format: f.format, is_preallocated: false }),
            None => Medium::Directory,
        };
        match growth::growth(&bound.claim, &bound.volume, medium) {
            Growth::None => {}
            Growth::Forget => self.report(&bound, Progress::Forgotten).await?,
            Growth::Volume(size) => self.grow_volume(&bound, &size).await?,
            Growth::FileSystem(size) => self.grow_contents(&bound, &size).await?,
        }
        Ok(Outcome::Done)
    }

    fn bound(&self, claim: PersistentVolumeClaim) -> Result<Option<Bound>, Error> {
        let Some(name) = decide::volume_name(&claim) else { return Ok(None) };
        let is_bound = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()) == Some(&*name);
        if !is_bound || claim.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let Some(entry) = self.volumes.get(&Key::new("", &*name)) else { return Ok(None) };
        let volume: PersistentVolume = entry.decode()?;
        let file = self.options.files.recognize(&volume);
        Ok(self.is_own(&volume).then_some(Bound { claim, name, volume, file }))
    }

    async fn grow_volume(&self, bound: &Bound, size: &Quantity) -> Result<(), Error> {
        let Bound { claim, name, file, .. } = bound;
        let about = || regarding("PersistentVolumeClaim", &claim.metadata);
        let is_retry = growth::is_infeasible(claim) && growth::allocated(claim) == Some(size);
        if !is_retry && self.is_news(bound, Progress::Started(size)) {
            self.report(bound, Progress::Started(size)).await?;
            self.recorder.normal(about(), "Resizing", format!("External resizer is resizing volume {name}"));
            return Ok(());
        }
        if file.is_some()
            && let Err(e) = self.options.files.grow_file(name, decide::bytes(Some(size))).await
        {
            let message = format!("resize volume {name:?} failed: {e}");
            if matches!(e, file_volumes::Error::TooLarge { .. }) {
                self.report(bound, Progress::Infeasible(&message)).await?;
            }
            self.recorder.warning(about(), "VolumeResizeFailed", message);
            return Err(e.into());
        }
        self.set_capacity(&bound.volume, size).await
    }

    async fn grow_contents(&self, bound: &Bound, size: &Quantity) -> Result<(), Error> {
        let Bound { claim, name, file, .. } = bound;
        let about = || regarding("PersistentVolumeClaim", &claim.metadata);
        let has_file_system = file.as_ref().is_some_and(|f| f.format.file_system().is_some());
        if has_file_system && self.is_news(bound, Progress::FileSystemPending) {
            self.report(bound, Progress::FileSystemPending).await?;
            let message = "Require file system resize of volume on node";
            self.recorder.normal(about(), "FileSystemResizeRequired", message);
            return Ok(());
        }
        let grown = match file {
            Some(file) => self.options.files.grow_contents(file).await,
            None => Ok(Contents::AsLargeAsFile),
        };
        match grown {
            Ok(Contents::AsLargeAsFile) => {
                self.report(bound, Progress::Finished(size)).await?;
                let (reason, message) = if has_file_system {
                    let node = &self.options.node_name;
                    let message = format!("MountVolume.NodeExpandVolume succeeded for volume {name:?} {node}");
                    ("FileSystemResizeSuccessful", message)
                } else {
                    ("VolumeResizeSuccessful", "Resize volume succeeded".to_owned())
                };
                self.recorder.normal(about(), reason, message);
                Ok(())
            }
            // The agent does it with the next mount.
            Ok(Contents::GrowsWhenMounted) => Ok(()),
            Err(e) => {
                let why = format!("MountVolume.NodeExpandVolume failed for volume {name:?} : {e}");
                self.recorder.warning(about(), "VolumeResizeFailed", why);
                Err(e.into())
            }
        }
    }

    /// Whether the claim does not say yet that its growth is so far.
    fn is_news(&self, bound: &Bound, progress: Progress<'_>) -> bool {
        growth::status(&bound.claim, progress, "").is_some()
    }

    /// Records in the claim how far its growth is.
    async fn report(&self, bound: &Bound, progress: Progress<'_>) -> Result<(), Error> {
        let now = meta::time::format(self.options.clock.now());
        let Some(status) = growth::status(&bound.claim, progress, &now) else { return Ok(()) };
        let meta = &bound.claim.metadata;
        let patch = json!({"metadata": {"resourceVersion": meta.resource_version}, "status": status});
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let api = self.options.client.api::<PersistentVolumeClaim>().namespace(namespace);
        let name = meta.name.as_deref().unwrap_or_default();
        client::optional(api.patch_status(name, &WriteOptions::default(), &Patch::Merge(patch)).await)?;
        Ok(())
    }

    /// Gives a volume a larger capacity.
    async fn set_capacity(&self, volume: &PersistentVolume, size: &Quantity) -> Result<(), Error> {
        let mut volume = volume.clone();
        let capacity = volume.spec.get_or_insert_default().capacity.get_or_insert_default();
        capacity.insert("storage".into(), size.clone());
        let name = volume.metadata.name.clone().unwrap_or_default();
        let api = self.options.client.api::<PersistentVolume>();
        client::optional(api.update(&name, &WriteOptions::default(), &volume).await)?;
        Ok(())
    }
}
