//! Files that the agent puts into a volume, from objects of the API and from the pod itself.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use k8s_openapi::api::core::v1::KeyToPath;
use supervisor::blocking;
use tokio::sync::SemaphorePermit;

use super::atomic::{self, File, Payload};
use super::memory::{Memory, mount_tmpfs};
use super::{Error, MAX_CONTENT, PodContext, io_error};
use crate::objects::{Data, Kind};

/// Permission bits of files where the volume does not set any.
pub(super) const DEFAULT_MODE: i32 = 0o644;
/// Bytes that a file takes besides its content.
const FILE_OVERHEAD: usize = 512;

/// Where the files of a volume lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    Disk,
    Memory,
}

/// The keys of a config map or secret that a volume shows.
pub(super) struct Keys {
    kind: Kind,
    name: String,
    /// All keys if empty.
    items: Vec<KeyToPath>,
    optional: bool,
    mode: i32,
}

impl Keys {
    pub fn new(
        kind: Kind,
        name: Option<&str>,
        items: Option<&Vec<KeyToPath>>,
        optional: Option<bool>,
        mode: i32,
    ) -> Self {
        let (name, items) = (name.unwrap_or_default().to_owned(), items.cloned().unwrap_or_default());
        Self { kind, name, items, optional: optional == Some(true), mode }
    }

    pub fn references(&self) -> Vec<(Kind, &str)> {
        vec![(self.kind, &self.name)]
    }
}

/// What puts files into a volume: a type of volume of its own, and a source of a projected volume.
#[async_trait::async_trait]
pub(super) trait FileSource: Send + Sync {
    /// Adds its files. Errors if an object is missing that is not optional.
    async fn add_files(&self, files: &mut FileSet<'_>) -> Result<(), Error>;

    /// Kinds and names of the objects of the pod's namespace that it reads.
    fn references(&self) -> Vec<(Kind, &str)> {
        Vec::new()
    }

    /// Whether its files show metadata of the pod.
    fn shows_metadata(&self) -> bool {
        false
    }
}

/// The files of one volume while they are in memory. Few exist at a time.
pub(super) struct FileSet<'a> {
    pub context: &'a PodContext<'a>,
    payload: Payload,
    _writer: Option<SemaphorePermit<'a>>,
}

impl FileSet<'_> {
    /// Adds a file, in place of one that has the same path.
    pub fn add(&mut self, path: &str, content: impl Into<Bytes>, mode: i32) -> Result<(), Error> {
        self.add_owned(path, content, mode, None)
    }

    /// Adds a file that `user` owns (root if `None`).
    pub fn add_owned(
        &mut self,
        path: &str,
        content: impl Into<Bytes>,
        mode: i32,
        user: Option<u32>,
    ) -> Result<(), Error> {
        self.check_path(path)?;
        let content = content.into();
        if self.context.budget.lock().take(FILE_OVERHEAD + content.len()).is_err() {
            let limit = MAX_CONTENT >> 20;
            return Err(Error::Content(format!(
                "the files that the pod's volumes are made of take more than {limit} MiB"
            )));
        }
        self.payload.insert(path.to_owned(), File { content, mode: mode as u32 & 0o777, user });
        Ok(())
    }

    /// Errors if `path` leads out of the volume.
    pub fn check_path(&self, path: &str) -> Result<(), Error> {
        atomic::check_path(path).map_err(Error::Content)
    }

    /// Adds the keys of a config map or secret. Errors if the object or a key is missing and not optional.
    pub async fn add_keys(&mut self, keys: &Keys) -> Result<(), Error> {
        let namespace = self.context.pod.metadata.namespace.as_deref().unwrap_or_default();
        match self.context.objects.data(keys.kind, namespace, &keys.name).await? {
            Some(data) => self.select(&data, keys),
            None if keys.optional => Ok(()),
            None => Err(Error::Content(format!("{} \"{}\" not found", keys.kind.noun(), keys.name))),
        }
    }

    fn select(&mut self, data: &Data, keys: &Keys) -> Result<(), Error> {
        if keys.items.is_empty() {
            return data.iter().try_for_each(|(key, value)| self.add(key, value.clone(), keys.mode));
        }
        let noun = if keys.kind == Kind::ConfigMap { "config" } else { "secret" };
        for item in &keys.items {
            match data.get(&item.key) {
                Some(value) => self.add(&item.path, value.clone(), item.mode.unwrap_or(keys.mode))?,
                None if keys.optional => {}
                None => return Err(Error::Content(format!("references non-existent {noun} key: {}", item.key))),
            }
        }
        Ok(())
    }
}

/// Brings `directory` to the files of `source` and returns it. All files change together.
pub(super) async fn write(
    source: &dyn FileSource,
    context: &PodContext<'_>,
    directory: &Path,
    medium: Medium,
) -> Result<PathBuf, Error> {
    // Held while the files are in memory.
    let writer = context.volumes.writers.acquire().await.ok();
    let mut files = FileSet { context, payload: Payload::new(), _writer: writer };
    source.add_files(&mut files).await?;
    let pod = &context.pod.metadata;
    let (uid, namespace) = (pod.uid.as_deref().unwrap_or_default(), pod.namespace.as_deref().unwrap_or_default());
    let taken = context.budget.lock().taken();
    if !context.volumes.contents.take(uid, namespace, taken) {
        let why = "the files that volumes are made of take too much room on this node, of this namespace or in all";
        return Err(Error::Content(why.into()));
    }
    let now = context.volumes.clock.now();
    let stamp = format!("{}.{}", now.strftime("%Y_%m_%d_%H_%M_%S"), now.subsec_nanosecond());
    let is_mounted = medium == Medium::Memory && context.memory == Memory::Mounted;
    let (payload, target, group) = (std::mem::take(&mut files.payload), directory.to_owned(), context.group);
    let written = blocking(move || {
        fs::create_dir_all(&target)?;
        if is_mounted {
            mount_tmpfs(&target, None)?;
        }
        atomic::write(&target, &payload, &stamp, group)
    });
    written.await.map_err(io_error("writing files"))?;
    Ok(directory.to_owned())
}
