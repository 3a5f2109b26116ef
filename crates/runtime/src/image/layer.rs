//! Reads image archives, and brings their layers into the store.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{BufReader, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::budget::Budget;
use super::unpack::unpack;
use super::zstd;
use super::{AccessByRepository, Error, Image, ImageConfig, Result, Sha256, Writing, digest, entries, normalize};
use crate::beneath::remove_tree;

/// Maximum bytes of a manifest or configuration, which are read into memory.
const MAX_DOCUMENT: u64 = 4 << 20;
/// Maximum bytes that are kept of a configuration: names, variables, commands, labels.
const MAX_KEPT: usize = 256 << 10;
/// Images in one archive, and layers of one image (overlayfs takes 500).
const MAX_IMAGES: usize = 1_000;
const MAX_LAYERS: usize = 500;
/// Bytes that may be decompressed to verify existing layers, if the disk has less space.
const MAX_CHECKED: u64 = 64 << 30;

/// Paths of the blobs and files of an archive by their names.
struct Source<'a> {
    budget: &'a Budget,
    /// The budget of layers that are only verified.
    checks: Budget,
    /// Directories and sizes of the layers that were verified in the source already, by digest.
    found: RefCell<HashMap<String, (String, u64)>>,
    /// The access of pods to its images.
    access: Option<AccessByRepository>,
    /// Its name in errors.
    shown: PathBuf,
    root: PathBuf,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct OciIndex {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    digest: String,
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

/// `manifest.json` of docker save.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerManifest {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    config: Option<ImageConfig>,
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

/// Imports the images at `path`. If one fails, nothing of it stays, but images before it do.
pub fn import(store: &Writing<'_>, path: &Path, names: &[String], budget: &Budget) -> Result<Vec<Image>> {
    import_with(store, path, names, None, budget)
}

/// Imports like [`import`], and records the access of pods to the images.
pub fn import_with(
    store: &Writing<'_>,
    path: &Path,
    names: &[String],
    access: Option<AccessByRepository>,
    budget: &Budget,
) -> Result<Vec<Image>> {
    import_within(store, path, names, access, budget).map_err(|error| match budget.is_exceeded() {
        true => Error::TooLarge { path: path.to_owned(), limit: budget.limit },
        false => error,
    })
}

fn import_within(
    store: &Writing<'_>,
    path: &Path,
    names: &[String],
    access: Option<AccessByRepository>,
    budget: &Budget,
) -> Result<Vec<Image>> {
    let format = |message: String| Error::Format { path: path.to_owned(), message };
    let mut scratch = None;
    let root = if path.is_dir() {
        path.to_owned()
    } else {
        let directory = store.incoming("archive")?;
        let file = File::open(path).map_err(Error::io(path.display().to_string()))?;
        let reader = decompressed(file).map_err(Error::io(path.display().to_string()))?;
        scratch = Some(directory.clone());
        if let Err(e) = unpack_archive(budget.reader(reader), &directory, budget) {
            let _ = remove_tree(&directory); // else it goes when the store is opened again
            return Err(format(e.to_string()));
        }
        directory
    };
    let checks = Budget::for_reading(budget.limit.max(MAX_CHECKED));
    let source = Source { root, shown: path.to_owned(), budget, checks, found: RefCell::default(), access };
    let found = if source.root.join("index.json").is_file() {
        from_oci(store, &source, names)
    } else if source.root.join("manifest.json").is_file() {
        from_docker(store, &source, names)
    } else {
        Err(format("no index.json and no manifest.json in it".into()))
    };
    if let Some(directory) = scratch {
        remove_tree(&directory).map_err(Error::io(directory.display().to_string()))?;
    }
    found
}

/// Unpacks the archive (not its layers) for the duration of the import.
fn unpack_archive(reader: impl Read, into: &Path, budget: &Budget) -> std::io::Result<()> {
    entries::each(reader, std::convert::identity, |entry| {
        // At most, it creates all the directories above it.
        for _ in entry.path()?.components() {
            budget.take_entry()?;
        }
        entry.unpack_in(into).map(drop)
    })
}

fn from_oci(store: &Writing<'_>, source: &Source<'_>, given: &[String]) -> Result<Vec<Image>> {
    const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
    let index: OciIndex = source.json("index.json")?;
    let mut images = Vec::new();
    source.names_fit(given, index.manifests.len())?;
    for descriptor in index.manifests {
        let own = NAMES.iter().find_map(|n| descriptor.annotations.get(*n)).cloned();
        let manifest: Manifest = source.manifest(&descriptor, 0)?;
        let blobs = manifest.layers.iter().map(|l| blob(&l.digest)).collect::<Result<Vec<_>>>()?;
        // A bare tag (`latest`) in the annotation is no name.
        let own = own.filter(|n| n.contains(['/', ':']));
        let names = if given.is_empty() { own.into_iter().collect() } else { given.to_vec() };
        images.push(build(store, source, &blob(&manifest.config.digest)?, &blobs, names)?);
    }
    Ok(images)
}

fn from_docker(store: &Writing<'_>, source: &Source<'_>, given: &[String]) -> Result<Vec<Image>> {
    let manifests: Vec<DockerManifest> = source.json("manifest.json")?;
    source.names_fit(given, manifests.len())?;
    let one = |m: DockerManifest| {
        let names = if given.is_empty() { m.repo_tags.unwrap_or_default() } else { given.to_vec() };
        let layers: Vec<PathBuf> = m.layers.iter().map(PathBuf::from).collect();
        build(store, source, Path::new(&m.config), &layers, names)
    };
    manifests.into_iter().map(one).collect()
}

fn build(
    store: &Writing<'_>,
    source: &Source<'_>,
    config: &Path,
    blobs: &[PathBuf],
    names: Vec<String>,
) -> Result<Image> {
    if names.is_empty() {
        return Err(Error::NoName(source.shown.clone()));
    }
    let text = source.read(config)?;
    let id = digest(text.as_slice()).map_err(Error::io("configuration"))?;
    let configuration: Configuration =
        serde_json::from_slice(&text).map_err(|e| source.error(format!("{}: {e}", config.display())))?;
    if configuration.rootfs.diff_ids.len() != blobs.len() {
        return Err(source.error(format!(
            "{} layers, but {} diff_ids",
            blobs.len(),
            configuration.rootfs.diff_ids.len()
        )));
    }
    let too_much = |what: String| Error::TooMuch { path: source.shown.clone(), what };
    if blobs.len() > MAX_LAYERS {
        return Err(too_much(format!("{} layers, more than {MAX_LAYERS}", blobs.len())));
    }
    let names: BTreeSet<String> = names.iter().map(|n| normalize(n)).collect::<Result<_>>()?;
    let mut made = Vec::new();
    let config = configuration.config.clone().unwrap_or_default();
    let kept = serde_json::to_vec(&(&config, &names)).map_err(|e| source.error(e.to_string()))?.len();
    if kept > MAX_KEPT {
        return Err(too_much(format!("a configuration of {kept} bytes, more than {MAX_KEPT}")));
    }
    let id = format!("sha256:{id}");
    let added =
        layers(store, source, blobs, &configuration, &mut made).and_then(|Layers { directories, diff_ids, size }| {
            store.add(Image {
                id,
                names,
                config,
                layers: directories,
                diff_ids,
                size,
                access: source.access.clone(),
                pinned: false,
            })
        });
    if added.is_err() {
        store.forget_layers(&made);
    }
    added
}

/// The layers of an image in the store, lowest first.
#[derive(Default)]
struct Layers {
    directories: Vec<String>,
    /// The digest of each.
    diff_ids: Vec<String>,
    /// Bytes of all.
    size: u64,
}

/// Brings the layers of an image into the store. Adds the directories of new ones to `made`.
fn layers(
    store: &Writing<'_>,
    source: &Source<'_>,
    blobs: &[PathBuf],
    configuration: &Configuration,
    made: &mut Vec<String>,
) -> Result<Layers> {
    let mut layers = Layers::default();
    for (blob, diff_id) in blobs.iter().zip(&configuration.rootfs.diff_ids) {
        let expected =
            diff_id.strip_prefix("sha256:").filter(|h| h.len() == 64 && h.bytes().all(|b| b.is_ascii_hexdigit()));
        let expected = expected.ok_or_else(|| source.error(format!("unknown digest {diff_id}")))?;
        let known = source.found.borrow().get(expected).cloned();
        let (directory, size) = match known {
            Some(known) => known,
            None => {
                let found = layer(store, source, blob, expected, made)?;
                source.found.borrow_mut().insert(expected.to_owned(), found.clone());
                found
            }
        };
        layers.size += size;
        // overlayfs refuses the same directory twice; an equal layer adds nothing
        if !layers.directories.contains(&directory) {
            layers.directories.push(directory);
            layers.diff_ids.push(expected.to_owned());
        }
    }
    Ok(layers)
}

/// Brings one layer into the store, or verifies that the store and the source have it. Returns its directory and its bytes.
fn layer(
    store: &Writing<'_>,
    source: &Source<'_>,
    blob: &Path,
    expected: &str,
    made: &mut Vec<String>,
) -> Result<(String, u64)> {
    let file = File::open(source.path(blob)?).map_err(Error::io(blob.display().to_string()))?;
    if let Some(directory) = store.find_layer(expected)? {
        // A source must contain a layer to use it; its digest is not enough.
        checked(file, blob, expected, &source.checks)?;
        let size = tree_size(&store.layers_root().join(&directory))?;
        return Ok((directory, size));
    }
    let directory = store.free_directory(expected);
    let target = store.layers_root().join(&directory);
    let incoming = store.incoming(&directory)?;
    if let Err(e) = unpack_blob(file, blob, &incoming, expected, source.budget) {
        let _ = remove_tree(&incoming); // else it goes when the store is opened again
        return Err(e);
    }
    fs::rename(&incoming, &target).map_err(Error::io(target.display().to_string()))?;
    made.push(directory.clone());
    Ok((directory, tree_size(&target)?))
}

/// Unpacks a layer and verifies its digest.
fn unpack_blob(file: File, blob: &Path, into: &Path, expected: &str, budget: &Budget) -> Result<()> {
    let failed = || Error::io(blob.display().to_string());
    let inner = budget.reader(decompressed(file).map_err(failed())?);
    let mut reader = Hashing { inner, hash: Sha256::new() };
    unpack(&mut reader, into, budget)?;
    std::io::copy(&mut reader, &mut std::io::sink()).map_err(failed())?;
    let found = reader.hash.finish();
    if found == expected {
        return Ok(());
    }
    Err(Error::Digest { path: blob.to_owned(), expected: expected.to_owned(), found })
}

/// Verifies the digest of an existing layer in the source.
fn checked(file: File, blob: &Path, expected: &str, budget: &Budget) -> Result<()> {
    let failed = || Error::io(blob.display().to_string());
    let reader = budget.reader(decompressed(file).map_err(failed())?);
    let found = digest(reader).map_err(failed())?;
    if found == expected {
        return Ok(());
    }
    Err(Error::Digest { path: blob.to_owned(), expected: expected.to_owned(), found })
}

fn blob(digest: &str) -> Result<PathBuf> {
    let hex = digest.strip_prefix("sha256:").filter(|h| h.len() == 64 && h.bytes().all(|b| b.is_ascii_hexdigit()));
    hex.map(|h| Path::new("blobs/sha256").join(h)).ok_or_else(|| Error::Index(format!("unknown digest {digest}")))
}

impl Source<'_> {
    fn error(&self, message: String) -> Error {
        Error::Format { path: self.shown.clone(), message }
    }

    /// Given names fit only one image.
    fn names_fit(&self, names: &[String], count: usize) -> Result<()> {
        match names {
            [_, ..] if count > 1 => Err(Error::OneName { path: self.shown.clone(), count }),
            _ if count > MAX_IMAGES => {
                Err(self.error(format!("there are {count} images in it, more than {MAX_IMAGES}")))
            }
            _ => Ok(()),
        }
    }

    /// A path in the archive. Errors if it leads out of the archive.
    fn path(&self, relative: &Path) -> Result<PathBuf> {
        if !relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
            return Err(Error::Escape(relative.to_owned()));
        }
        let path = self.root.join(relative);
        let real = fs::canonicalize(&path).map_err(Error::io(path.display().to_string()))?;
        let root = fs::canonicalize(&self.root).map_err(Error::io(self.root.display().to_string()))?;
        if real.starts_with(root) { Ok(real) } else { Err(Error::Escape(relative.to_owned())) }
    }

    fn read(&self, relative: &Path) -> Result<Vec<u8>> {
        let failed = || Error::io(relative.display().to_string());
        let mut text = Vec::new();
        let file = File::open(self.path(relative)?).map_err(failed())?;
        file.take(MAX_DOCUMENT + 1).read_to_end(&mut text).map_err(failed())?;
        if text.len() as u64 > MAX_DOCUMENT {
            return Err(self.error(format!("{} is larger than {MAX_DOCUMENT} bytes", relative.display())));
        }
        Ok(text)
    }

    fn json<T: serde::de::DeserializeOwned>(&self, relative: &str) -> Result<T> {
        let text = self.read(Path::new(relative))?;
        serde_json::from_slice(&text).map_err(|e| self.error(format!("{relative}: {e}")))
    }

    /// The manifest, or the one for this machine from a list.
    fn manifest(&self, descriptor: &Descriptor, depth: u32) -> Result<Manifest> {
        let path = blob(&descriptor.digest)?;
        let text = self.read(&path)?;
        let found = digest(text.as_slice()).map_err(Error::io("manifest"))?;
        if format!("sha256:{found}") != descriptor.digest {
            return Err(Error::Digest { path, expected: descriptor.digest.clone(), found });
        }
        if descriptor.media_type.contains("index") || descriptor.media_type.contains("manifest.list") {
            let list: OciIndex = serde_json::from_slice(&text).map_err(|e| self.error(e.to_string()))?;
            let architecture = match std::env::consts::ARCH {
                "x86_64" => "amd64",
                "aarch64" => "arm64",
                other => other,
            };
            let fits =
                |d: &&Descriptor| d.platform.as_ref().is_none_or(|p| p.os == "linux" && p.architecture == architecture);
            let chosen = list.manifests.iter().find(fits).filter(|_| depth < 3);
            let chosen = chosen.ok_or_else(|| self.error(format!("no manifest for linux/{architecture}")))?;
            return self.manifest(chosen, depth + 1);
        }
        serde_json::from_slice(&text).map_err(|e| self.error(format!("manifest: {e}")))
    }
}

struct Hashing<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.hash.update(&buffer[..length]);
        Ok(length)
    }
}

fn decompressed(mut file: File) -> std::io::Result<Box<dyn Read>> {
    let mut magic = [0; 4];
    let length = file.read(&mut magic)?;
    file.rewind()?;
    match &magic[..length] {
        [0x1f, 0x8b, ..] => Ok(Box::new(flate2::read::MultiGzDecoder::new(BufReader::new(file)))),
        // A frame, or one that is skipped.
        [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => {
            Ok(Box::new(zstd::Frames::new(BufReader::new(file))))
        }
        _ => Ok(Box::new(BufReader::new(file))),
    }
}

fn tree_size(directory: &Path) -> Result<u64> {
    let mut size = 0;
    walk(directory, &mut |_, metadata| size += metadata.size())?;
    Ok(size)
}

/// Hashes names, kinds, sizes and times of a tree in order, and returns its size.
pub fn fingerprint(directory: &Path, hash: &mut Sha256) -> Result<u64> {
    let mut size = 0;
    walk(directory, &mut |path, metadata| {
        let relative = path.strip_prefix(directory).unwrap_or(path);
        hash.update(relative.as_os_str().as_bytes());
        hash.update([0]);
        hash.update(metadata.mode().to_le_bytes());
        if metadata.is_file() {
            size += metadata.size();
            hash.update(metadata.size().to_le_bytes());
            hash.update(metadata.mtime_nsec().to_le_bytes());
        }
    })?;
    Ok(size)
}

/// Calls `visit` with all that is in a directory, in the order of the paths. Not recursive, since a layer decides the depth.
fn walk(directory: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata)) -> Result<()> {
    let mut pending = sorted_entries(directory)?;
    while let Some(path) = pending.pop() {
        let metadata = fs::symlink_metadata(&path).map_err(Error::io(path.display().to_string()))?;
        visit(&path, &metadata);
        if metadata.is_dir() {
            pending.append(&mut sorted_entries(&path)?);
        }
    }
    Ok(())
}

/// The paths of the entries, the first one last.
fn sorted_entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = || Error::io(directory.display().to_string());
    let entries = fs::read_dir(directory).map_err(failed())?;
    let mut paths = entries.map(|e| e.map(|e| e.path())).collect::<std::io::Result<Vec<_>>>().map_err(failed())?;
    paths.sort_by(|a, b| b.cmp(a));
    Ok(paths)
}
