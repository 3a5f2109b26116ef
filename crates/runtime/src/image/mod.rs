//! Images on disk: unpacked layers, a small index, and the image that is made from this program.
//!
//! ```text
//! ROOT/index.json     the index of images, replaced atomically
//! ROOT/layers/NAME/   a layer, unpacked once, shared by images and containers
//! ROOT/incoming/      layers being unpacked; emptied by whoever writes next
//! ROOT/downloads/     images being pulled, each in a directory of its own
//! ROOT/lock           held by the process that writes
//! ```
//! A layer is known by its whole digest, which the index has with the name of its directory. Names are short, because those of all
//! layers must fit into one page of mount options.
//!
//! Several processes may use one store: one writes at a time, and the others see what it wrote.
//! Left out: registries. The crate `distribution` downloads images from them, which [`ImageStore::import_pulled`] imports.

mod access;
mod budget;
mod builtin;
mod entries;
mod layer;
mod reference;
mod service;
mod sha256;
mod unpack;
mod zstd;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::{beneath, records};
pub use access::{Access, AccessByRepository, PullAccount, PullSecret, PullSource};
use budget::Budget;
pub use budget::{Reserve, Room};
pub use reference::normalize;
pub use service::{Credentials, ImageService, PullError, Pulled};
pub(crate) use sha256::{Sha256, digest};

/// Why an image was not imported, found or removed. Messages shorten texts from an archive, which have any length.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The image name is invalid.
    #[error("invalid image name {}: {message}", brief(format!("{name:?}")))]
    Name {
        /// The name as given.
        name: String,
        /// Why it is invalid.
        message: String,
    },
    /// No image has the name or id.
    #[error("image {} not found", brief(format!("{_0:?}")))]
    NotFound(String),
    /// A container that has not ended uses a layer of the image.
    #[error("image {name:?} is in use by container {container}")]
    InUse {
        /// The name as given.
        name: String,
        /// The id of a container that uses it.
        container: String,
    },
    /// The image is part of the node, or the name that of such an image.
    #[error("image {} is part of this node: it cannot be removed or replaced", brief(format!("{_0:?}")))]
    Pinned(String),
    /// The file or directory is not an image, or a part of it is missing or invalid.
    #[error("{path} is neither an OCI layout nor an archive of one or of docker save: {}", brief(message))]
    Format {
        /// The source of the import.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// The content of a file differs from its digest in the manifest.
    #[error("{}: digest is {found}, expected {expected}", brief(path.display()))]
    Digest {
        /// The file.
        path: PathBuf,
        /// The digest in the manifest.
        expected: String,
        /// The digest of the content.
        found: String,
    },
    /// The image has no name, and the caller gave none.
    #[error("an image in {0} has no name, and none was given")]
    NoName(PathBuf),
    /// The caller gave one name for several images.
    #[error("a name was given for one image, and {path} has {count}")]
    OneName {
        /// The source of the import.
        path: PathBuf,
        /// The number of images in it.
        count: usize,
    },
    /// An entry of a layer, or a file of a layout, leads out of its directory.
    #[error("layer entry {} leads out of the image", brief(format!("{_0:?}")))]
    Escape(PathBuf),
    /// A layer has a path that is longer than the kernel takes.
    #[error(
        "a layer has a path of {length} bytes ({}...): the longest that can be used has {most}",
        brief(format!("{start:?}"))
    )]
    PathTooLong {
        /// The first parts of the path.
        start: PathBuf,
        /// The bytes of the path.
        length: usize,
        /// The maximum.
        most: usize,
    },
    /// The image has more parts than the store takes.
    #[error("an image of {} has {what}", brief(path.display()))]
    TooMuch {
        /// The source of the import.
        path: PathBuf,
        /// The excess and the maximum, for users.
        what: String,
    },
    /// The index of the images has reached its maximum size.
    #[error("the index of the images would be larger than {} MiB: remove some first", MAX_INDEX >> 20)]
    Full,
    /// The unpacked image is larger than the limit of the import.
    #[error("{path} unpacks to more than {limit} bytes, the limit for this import; nothing of it was kept")]
    TooLarge {
        /// The source of the import.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
    /// A file of the store or of the source could not be read or written.
    #[error("{}: {}", brief(what), brief(source))]
    Io {
        /// The path or the step.
        what: String,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The index, or a configuration or digest for it, is invalid.
    #[error("image index: {}", brief(_0))]
    Index(String),
    /// The container runtime that has the images failed.
    #[error("{}", brief(_0))]
    Service(String),
}

/// The registry in the names of images that are part of this program.
pub const BUILTIN_REGISTRY: &str = "kemudi.local";

/// Bytes of the index: the node keeps it in memory.
const MAX_INDEX: usize = 32 << 20;

/// Removes the middle of a text that is longer than about 256 bytes.
fn brief(text: impl ToString) -> String {
    const START: usize = 192;
    const END: usize = 64;
    let text = text.to_string();
    if text.len() <= START + END {
        return text;
    }
    let (start, end) = (text.floor_char_boundary(START), text.ceil_char_boundary(text.len() - END));
    format!("{}[...]{}", &text[..start], &text[end..])
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }
}

/// The result of a call of the image store.
pub type Result<T> = std::result::Result<T, Error>;

/// The part of an OCI image configuration that containers need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ImageConfig {
    /// The program and its first arguments; replaced by the command of a container.
    #[serde(deserialize_with = "null_as_default")]
    pub entrypoint: Vec<String>,
    /// Further arguments; replaced by the arguments of a container.
    #[serde(deserialize_with = "null_as_default")]
    pub cmd: Vec<String>,
    /// `NAME=VALUE` each.
    #[serde(deserialize_with = "null_as_default")]
    pub env: Vec<String>,
    /// `USER[:GROUP]`, as names or numbers; root if empty.
    pub user: String,
    /// The working directory; `/` if empty.
    pub working_dir: String,
    /// The stop signal by name or number; `SIGTERM` if empty.
    pub stop_signal: String,
    /// Labels of the image.
    #[serde(deserialize_with = "null_as_default")]
    pub labels: BTreeMap<String, String>,
}

fn null_as_default<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(
    d: D,
) -> std::result::Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

/// An image of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// `sha256:…`, the digest of the configuration.
    pub id: String,
    /// Normalised names, e.g. `docker.io/library/busybox:latest`. A pulled image has a name with the digest of its manifest.
    pub names: BTreeSet<String>,
    /// The configuration that containers take defaults from.
    pub config: ImageConfig,
    /// Directory names below `layers/`, lowest first.
    pub layers: Vec<String>,
    /// The digests of these layers, without `sha256:`. Empty for images of a version that did not record them: their layers are used
    /// by no other image.
    #[serde(default)]
    pub diff_ids: Vec<String>,
    /// Bytes, unpacked.
    pub size: u64,
    /// Who may use it, if it was pulled for a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<AccessByRepository>,
    /// Whether the container runtime itself needs it, so that it is not removed to free space.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
}

impl Image {
    /// The reference in the status of containers that were made with this name: `repository@digest` of a pulled image, the id of
    /// another one.
    pub fn reference(&self, name: &str) -> &str {
        let mut digests = self.names.iter().filter(|n| n.contains('@'));
        let full = normalize(name).unwrap_or_default();
        let own = digests.clone().find(|d| reference::repository(d) == reference::repository(&full));
        own.or_else(|| digests.next()).unwrap_or(&self.id)
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Index {
    version: u32,
    images: Vec<Image>,
}

/// The index that was read last, and the identity of its file.
#[derive(Debug, Default)]
struct Known {
    index: Index,
    file: Option<(u64, i64, i64)>,
}

/// Cheap to clone; every clone sees the same images.
#[derive(Clone)]
pub struct ImageStore {
    root: PathBuf,
    reserve: Reserve,
    known: Arc<Mutex<Known>>,
}

/// The exclusive right to change a store.
struct Writing<'a> {
    store: &'a ImageStore,
    _lock: File,
}

impl ImageStore {
    /// Opens the store at `root` and creates missing directories. Errors if its index is invalid.
    pub fn open(root: impl Into<PathBuf>) -> Result<ImageStore> {
        let root = std::path::absolute(root.into()).map_err(Error::io("image store"))?;
        for directory in [root.join("layers"), root.join("incoming")] {
            std::fs::create_dir_all(&directory).map_err(Error::io(directory.display().to_string()))?;
        }
        let store = ImageStore { root, reserve: Reserve::default(), known: Arc::default() };
        drop(store.known()?);
        Ok(store)
    }

    /// The same store, which leaves this free on its disk.
    #[must_use]
    pub fn with_reserve(self, reserve: Reserve) -> ImageStore {
        ImageStore { reserve, ..self }
    }

    /// The directory of the unpacked layers.
    pub fn layers_root(&self) -> PathBuf {
        self.root.join("layers")
    }

    /// All images; the last known ones if the index cannot be read.
    pub fn list(&self) -> Vec<Image> {
        match self.known() {
            Ok(known) => known.index.images.clone(),
            Err(e) => {
                tracing::warn!("{e}");
                self.lock().index.images.clone()
            }
        }
    }

    /// Finds an image by name (`busybox`, `busybox:1`, full), by `sha256:…` or by a unique start of that.
    pub fn resolve(&self, name: &str) -> Result<Image> {
        let known = self.known()?;
        let by_name = normalize(name);
        if let Ok(full) = &by_name
            && let Some(image) = known.index.images.iter().find(|i| i.names.contains(full))
        {
            return Ok(image.clone());
        }
        let hex = name.strip_prefix("sha256:").unwrap_or(name);
        let by_id = |i: &&Image| i.id.strip_prefix("sha256:").is_some_and(|id| id.starts_with(hex));
        let mut found = known.index.images.iter().filter(by_id);
        match (found.next(), found.next()) {
            (Some(image), None) if hex.len() >= 6 => Ok(image.clone()),
            _ => Err(by_name.err().unwrap_or_else(|| Error::NotFound(name.to_owned()))),
        }
    }

    /// Removes a name from its image, or with an id the image. Deletes layers that no other image uses; if `user` returns a
    /// container that uses one of them, nothing is removed. A pinned image stays. Returns the image.
    pub fn remove(&self, name: &str, user: impl Fn(&str) -> Option<String>) -> Result<Image> {
        let writing = self.writing()?;
        let image = self.resolve(name)?;
        let mut next = self.known()?.index.clone();
        let named = normalize(name).ok().filter(|n| image.names.contains(n));
        for entry in next.images.iter_mut().filter(|i| i.id == image.id) {
            match &named {
                Some(name) => remove_name(&mut entry.names, name),
                None => entry.names.clear(),
            }
        }
        next.images.retain(|i| i.id != image.id || !i.names.is_empty());
        let stays = next.images.iter().any(|i| i.id == image.id);
        let is_builtin = |name: &String| name.split('/').next() == Some(BUILTIN_REGISTRY);
        if image.pinned && (!stays || named.as_ref().is_some_and(is_builtin)) {
            return Err(Error::Pinned(name.to_owned()));
        }
        let used: BTreeSet<&String> = next.images.iter().flat_map(|i| &i.layers).collect();
        let unused: Vec<&String> = image.layers.iter().filter(|l| !used.contains(l)).collect();
        if let Some(container) = unused.iter().find_map(|l| user(l)) {
            return Err(Error::InUse { name: name.to_owned(), container });
        }
        let remove_layers = || {
            unused.iter().try_for_each(|layer| {
                let path = self.layers_root().join(layer);
                beneath::remove_tree(&path).map_err(Error::io(path.display().to_string()))
            })
        };
        match writing.save(&next) {
            // A full disk has no room for the index before the layers are gone.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::StorageFull => {
                remove_layers()?;
                writing.save(&next)?;
            }
            saved => saved.and_then(|()| remove_layers())?,
        }
        Ok(image)
    }

    /// Reads an OCI layout (directory or tar) or the tar of `docker save`. Images without a name in it get `name`. Returns the
    /// imported images. `limit` is the maximum of unpacked bytes; without one, the reserve of the disk stays
    /// free. Blocks.
    pub fn import(&self, source: &Path, name: Option<&str>, limit: Option<u64>) -> Result<Vec<Image>> {
        let names: Vec<String> = name.into_iter().map(str::to_owned).collect();
        let writing = self.writing()?;
        let budget =
            Budget::new(&self.root, &self.reserve, limit).map_err(Error::io(self.root.display().to_string()))?;
        layer::import(&writing, source, &names, &budget)
    }

    /// Imports a pulled image from a directory in the layout of an OCI image, with these names and access. It leaves to others
    /// what is `promised` to them of the disk. Blocks.
    pub fn import_pulled(
        &self,
        layout: &Path,
        names: &[String],
        access: Option<AccessByRepository>,
        promised: impl FnOnce() -> Room,
    ) -> Result<Image> {
        let writing = self.writing()?;
        let budget = Budget::beside(&self.root, &self.reserve, promised())
            .map_err(Error::io(self.root.display().to_string()))?;
        let mut images = layer::import_with(&writing, layout, names, access, &budget)?;
        images.pop().ok_or_else(|| Error::NotFound(names.first().cloned().unwrap_or_default()))
    }

    /// Adds normalised names to the image that has the name `known`. Returns the image. Blocks.
    pub fn add_names(&self, known: &str, names: &[String]) -> Result<Image> {
        let has_all = |image: &Image| names.iter().all(|n| image.names.contains(n));
        let image = self.resolve(known)?;
        if has_all(&image) {
            return Ok(image);
        }
        let writing = self.writing()?;
        let mut image = self.resolve(known)?;
        image.names.extend(names.iter().cloned());
        writing.add(image)
    }

    /// The directory for images that are being pulled.
    pub fn downloads_root(&self) -> PathBuf {
        self.root.join("downloads")
    }

    /// What can be written before the disk would be too full for a node.
    pub fn room(&self) -> Result<Room> {
        self.reserve.room(&self.root).map_err(Error::io(self.root.display().to_string()))
    }

    /// Makes an image of one layer from a directory tree, which is moved into the store.
    pub fn adopt_directory(&self, name: &str, directory: &Path, config: ImageConfig) -> Result<Image> {
        self.writing()?.adopt_directory(name, directory, config, false)
    }

    /// The demo image: this program (`exe`) with exactly the shared libraries it maps, as `name`. Costs little if the program has
    /// not changed, by its size and time.
    pub fn ensure_builtin(&self, name: &str, exe: &Path) -> Result<Image> {
        builtin::ensure(self, name, exe)
    }

    /// Removes what interrupted imports left: incomplete layers, and layers of no image that `user` returns no container for. Does
    /// nothing while another process or thread writes. Blocks.
    pub fn remove_leftovers(&self, user: impl Fn(&str) -> Option<String>) -> Result<()> {
        let lock = self.open_lock()?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Error(e)) => return Err(Error::io(self.root.display().to_string())(e)),
        }
        let writing = self.writing_with(lock)?;
        self.remove_unknown(&writing.known_layers()?, user);
        Ok(())
    }

    fn remove_unknown(&self, known: &BTreeSet<String>, user: impl Fn(&str) -> Option<String>) {
        for entry in std::fs::read_dir(self.layers_root()).into_iter().flatten().flatten() {
            let Ok(layer) = entry.file_name().into_string() else { continue };
            if known.contains(&layer) || user(&layer).is_some() {
                continue;
            }
            tracing::info!(layer, "removing a layer that an interrupted import left");
            if let Err(error) = beneath::remove_tree(&entry.path()) {
                tracing::warn!(layer, %error, "removing a layer of an interrupted import failed");
            }
        }
    }

    fn open_lock(&self) -> Result<File> {
        let path = self.root.join("lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        lock.map_err(Error::io(path.display().to_string()))
    }

    /// Waits until no other process or thread writes.
    fn writing(&self) -> Result<Writing<'_>> {
        let lock = self.open_lock()?;
        lock.lock().map_err(Error::io(self.root.join("lock").display().to_string()))?;
        self.writing_with(lock)
    }

    /// With the lock held.
    fn writing_with(&self, lock: File) -> Result<Writing<'_>> {
        let incoming = self.root.join("incoming");
        // An interrupted writer left these.
        let left = std::fs::read_dir(&incoming).map_err(Error::io(incoming.display().to_string()))?;
        for entry in left.flatten() {
            let path = entry.path();
            beneath::remove_tree(&path).map_err(Error::io(path.display().to_string()))?;
        }
        Ok(Writing { store: self, _lock: lock })
    }

    /// Reads the index.
    fn known(&self) -> Result<MutexGuard<'_, Known>> {
        let mut known = self.lock();
        let path = self.root.join("index.json");
        let file = match std::fs::metadata(&path) {
            Ok(m) => Some((m.ino(), m.mtime(), m.mtime_nsec())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(Error::io(path.display().to_string())(e)),
        };
        if file != known.file || known.index.version == 0 {
            let index = records::read(&path).map_err(Error::Index)?;
            known.index = index.unwrap_or(Index { version: records::VERSION, images: Vec::new() });
            known.file = file;
        }
        Ok(known)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // The index is replaced as a whole, so a panic leaves it intact.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a name. Names with a digest go with the last tag of their repository.
fn remove_name(names: &mut BTreeSet<String>, name: &str) {
    names.remove(name);
    let repository = reference::repository(name);
    let is_sibling = |n: &String| reference::repository(n) == repository;
    if !names.iter().any(|n| is_sibling(n) && !n.contains('@')) {
        names.retain(|n| !is_sibling(n));
    }
}

impl Writing<'_> {
    fn layers_root(&self) -> PathBuf {
        self.store.layers_root()
    }

    /// The directories of the layers of all images.
    fn known_layers(&self) -> Result<BTreeSet<String>> {
        Ok(self.store.known()?.index.images.iter().flat_map(|i| i.layers.iter().cloned()).collect())
    }

    fn adopt_directory(&self, name: &str, directory: &Path, config: ImageConfig, pinned: bool) -> Result<Image> {
        let name = normalize(name)?;
        let bytes = serde_json::to_vec(&config).map_err(|e| Error::Index(e.to_string()))?;
        let mut hash = Sha256::new();
        hash.update(&bytes);
        let size = layer::fingerprint(directory, &mut hash)?;
        let id = hash.finish();
        let layer = match self.find_layer(&id)? {
            Some(layer) => {
                beneath::remove_tree(directory).map_err(Error::io(directory.display().to_string()))?;
                layer
            }
            None => {
                let layer = self.free_directory(&id);
                let target = self.layers_root().join(&layer);
                std::fs::rename(directory, &target).map_err(Error::io(target.display().to_string()))?;
                layer
            }
        };
        let (names, layers, diff_ids) = ([name].into(), vec![layer], vec![id.clone()]);
        self.add(Image { id: format!("sha256:{id}"), names, config, layers, diff_ids, size, access: None, pinned })
    }

    /// The directory of the layer with a digest.
    fn find_layer(&self, diff_id: &str) -> Result<Option<String>> {
        let known = self.store.known()?;
        let mut layers = known.index.images.iter().flat_map(|i| i.layers.iter().zip(&i.diff_ids));
        let found = layers.find(|(directory, id)| *id == diff_id && self.layers_root().join(directory).is_dir());
        Ok(found.map(|(directory, _)| directory.clone()))
    }

    /// The name of a directory for a new layer: the start of its digest, and a number if there is one already.
    fn free_directory(&self, diff_id: &str) -> String {
        let start = &diff_id[..diff_id.len().min(16)];
        let numbered = (1..).map(|n: u64| format!("{start}-{n}"));
        let mut names = std::iter::once(start.to_owned()).chain(numbered);
        names.find(|name| !self.layers_root().join(name).exists()).unwrap_or_default()
    }

    /// A directory for an incomplete layer.
    fn incoming(&self, name: &str) -> Result<PathBuf> {
        let path = self.store.root.join("incoming").join(name);
        if path.exists() {
            beneath::remove_tree(&path).map_err(Error::io(path.display().to_string()))?;
        }
        std::fs::create_dir_all(&path).map_err(Error::io(path.display().to_string()))?;
        Ok(path)
    }

    /// Removes those of these layers that no image uses, after a failed import.
    fn forget_layers(&self, layers: &[String]) {
        let Ok(used) = self.known_layers() else { return };
        for layer in layers.iter().filter(|l| !used.contains(*l)) {
            if let Err(error) = beneath::remove_tree(&self.layers_root().join(layer)) {
                tracing::warn!(layer, %error, "removing a layer of a failed import failed");
            }
        }
    }

    /// Adds an image to the index. Its names are removed from other images. Errors if one of them is pinned and the image is not.
    fn add(&self, mut image: Image) -> Result<Image> {
        let mut next = self.store.known()?.index.clone();
        for other in &mut next.images {
            let taken = other.names.intersection(&image.names).next();
            if let Some(name) = taken.filter(|_| other.pinned && !image.pinned && other.id != image.id) {
                return Err(Error::Pinned(name.clone()));
            }
            if other.id == image.id {
                image.pinned |= other.pinned;
                image.names.extend(std::mem::take(&mut other.names));
                access::merge(&mut image.access, other.access.take());
            }
            other.names.retain(|n| !image.names.contains(n));
            // One of another version of the program is garbage.
            other.pinned &= !other.names.is_empty();
        }
        next.images.retain(|i| i.id != image.id);
        next.images.push(image.clone());
        self.save(&next)?;
        Ok(image)
    }

    fn save(&self, index: &Index) -> Result<()> {
        let failed = |e: serde_json::Error| Error::Index(e.to_string());
        if serde_json::to_vec(index).map_err(failed)?.len() > MAX_INDEX {
            return Err(Error::Full);
        }
        records::write(&self.store.root.join("index.json"), index).map_err(Error::io("image index"))
    }
}

/// Unpacks a layer (a tar archive) into a directory, and writes nothing elsewhere.
pub fn unpack_layer(reader: &mut impl Read, root: &Path) -> Result<()> {
    unpack::unpack(reader, root, &Budget::unlimited()).map(drop)
}
