//! Reading image archives and unpacking layers, with the marks of deletion ("whiteouts") turned into overlayfs' own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Component, Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{Error, Image, ImageConfig, ImageStore, Result, digest, normalize};

/// Name → path of the blobs and files of an archive, unpacked or as they were.
struct Source {
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

pub fn import(store: &ImageStore, path: &Path, name: Option<&str>) -> Result<Vec<Image>> {
    let format = |message: String| Error::Format { path: path.to_owned(), message };
    let mut scratch = None;
    let root = if path.is_dir() {
        path.to_owned()
    } else {
        let directory = store.incoming("archive")?;
        let file = File::open(path).map_err(Error::io(path.display().to_string()))?;
        let mut archive = tar::Archive::new(decompressed(file).map_err(Error::io(path.display().to_string()))?);
        archive.unpack(&directory).map_err(|e| format(e.to_string()))?;
        scratch = Some(directory.clone());
        directory
    };
    let source = Source { root };
    let found = if source.root.join("index.json").is_file() {
        from_oci(store, &source, name)
    } else if source.root.join("manifest.json").is_file() {
        from_docker(store, &source, name)
    } else {
        Err(format("no index.json and no manifest.json in it".into()))
    };
    if let Some(directory) = scratch {
        fs::remove_dir_all(&directory).map_err(Error::io(directory.display().to_string()))?;
    }
    found
}

fn from_oci(store: &ImageStore, source: &Source, name: Option<&str>) -> Result<Vec<Image>> {
    const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
    let index: OciIndex = source.json("index.json")?;
    let mut images = Vec::new();
    for descriptor in index.manifests {
        let own = NAMES.iter().find_map(|n| descriptor.annotations.get(*n)).cloned();
        let manifest: Manifest = source.manifest(&descriptor, 0)?;
        let blobs = manifest.layers.iter().map(|l| blob(&l.digest)).collect::<Result<Vec<_>>>()?;
        // A bare tag (`latest`) in the annotation is no name.
        let names = name.map(str::to_owned).or(own.filter(|n| n.contains(['/', ':'])));
        images.push(build(store, source, &blob(&manifest.config.digest)?, &blobs, names.into_iter().collect())?);
    }
    Ok(images)
}

fn from_docker(store: &ImageStore, source: &Source, name: Option<&str>) -> Result<Vec<Image>> {
    let manifests: Vec<DockerManifest> = source.json("manifest.json")?;
    let one = |m: DockerManifest| {
        let names = match name {
            Some(name) => vec![name.to_owned()],
            None => m.repo_tags.unwrap_or_default(),
        };
        let layers: Vec<PathBuf> = m.layers.iter().map(PathBuf::from).collect();
        build(store, source, Path::new(&m.config), &layers, names)
    };
    manifests.into_iter().map(one).collect()
}

fn build(store: &ImageStore, source: &Source, config: &Path, blobs: &[PathBuf], names: Vec<String>) -> Result<Image> {
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
    let names = names.iter().map(|n| normalize(n)).collect::<Result<_>>()?;
    let (mut layers, mut size) = (Vec::new(), 0);
    for (blob, diff_id) in blobs.iter().zip(&configuration.rootfs.diff_ids) {
        let expected =
            diff_id.strip_prefix("sha256:").filter(|h| h.len() == 64 && h.bytes().all(|b| b.is_ascii_hexdigit()));
        let expected = expected.ok_or_else(|| source.error(format!("unknown digest {diff_id}")))?;
        let short = expected[..16].to_owned();
        let target = store.layers_root().join(&short);
        if !target.exists() {
            let incoming = store.incoming(&short)?;
            let file = File::open(source.path(blob)?).map_err(Error::io(blob.display().to_string()))?;
            let mut reader = Hashing {
                inner: decompressed(file).map_err(Error::io(blob.display().to_string()))?,
                hash: Sha256::new(),
            };
            unpack(&mut reader, &incoming)?;
            std::io::copy(&mut reader, &mut std::io::sink()).map_err(Error::io(blob.display().to_string()))?;
            let found = super::hex(&reader.hash.finalize());
            if found != expected {
                return Err(Error::Digest { path: blob.clone(), expected: expected.to_owned(), found });
            }
            fs::rename(&incoming, &target).map_err(Error::io(target.display().to_string()))?;
        }
        size += tree_size(&target)?;
        if !layers.contains(&short) {
            layers.push(short); // overlayfs refuses the same directory twice; an equal layer adds nothing
        }
    }
    let config = configuration.config.unwrap_or_default();
    store.add(Image { id: format!("sha256:{id}"), names, config, layers, size })
}

fn blob(digest: &str) -> Result<PathBuf> {
    let hex = digest.strip_prefix("sha256:").filter(|h| h.len() == 64 && h.bytes().all(|b| b.is_ascii_hexdigit()));
    hex.map(|h| Path::new("blobs/sha256").join(h)).ok_or_else(|| Error::Index(format!("unknown digest {digest}")))
}

impl Source {
    fn error(&self, message: String) -> Error {
        Error::Format { path: self.root.clone(), message }
    }

    /// A path of the archive, which must stay inside it.
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
        fs::read(self.path(relative)?).map_err(Error::io(relative.display().to_string()))
    }

    fn json<T: serde::de::DeserializeOwned>(&self, relative: &str) -> Result<T> {
        let text = self.read(Path::new(relative))?;
        serde_json::from_slice(&text).map_err(|e| self.error(format!("{relative}: {e}")))
    }

    /// The manifest itself, or that of this machine in a list of several.
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
        [0x28, 0xb5, 0x2f, 0xfd] => {
            Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "layers compressed with zstd are not supported"))
        }
        _ => Ok(Box::new(BufReader::new(file))),
    }
}

/// Unpacks one layer. Nothing is written outside `root`: every parent must be a real directory of the layer.
fn unpack(reader: &mut impl Read, root: &Path) -> Result<()> {
    let mut archive = tar::Archive::new(reader);
    archive.set_preserve_permissions(true);
    archive.set_preserve_mtime(true);
    archive.set_unpack_xattrs(false);
    // Set last, since a directory that is not writable or whose time is set must still be filled.
    let mut directories = Vec::new();
    for entry in archive.entries().map_err(Error::io("layer"))? {
        let mut entry = entry.map_err(Error::io("layer"))?;
        let path = entry.path().map_err(Error::io("layer"))?.into_owned();
        let relative = inside(&path)?;
        if relative.as_os_str().is_empty() {
            continue;
        }
        let target = root.join(&relative);
        let parent = target.parent().unwrap_or(root).to_owned();
        make_parents(root, &parent)?;
        let what = || relative.display().to_string();
        let name = relative.file_name().unwrap_or_default().as_bytes();
        if name == b".wh..wh..opq" {
            set_opaque(&parent).map_err(Error::io(what()))?;
            continue;
        }
        if let Some(hidden) = name.strip_prefix(b".wh.") {
            let target = parent.join(std::ffi::OsStr::from_bytes(hidden));
            clear(&target, false).map_err(Error::io(what()))?;
            mknod(&target, SFlag::S_IFCHR, Mode::empty(), makedev(0, 0)).map_err(|e| Error::io(what())(e.into()))?;
            continue;
        }
        let kind = entry.header().entry_type();
        clear(&target, kind.is_dir()).map_err(Error::io(what()))?;
        let (uid, gid) = (entry.header().uid().unwrap_or(0) as u32, entry.header().gid().unwrap_or(0) as u32);
        let mode = entry.header().mode().unwrap_or(0o755) & 0o7777;
        match kind {
            tar::EntryType::Directory => {
                fs::create_dir_all(&target).map_err(Error::io(what()))?;
                directories.push((target.clone(), mode));
            }
            tar::EntryType::Link => {
                let link = entry.link_name().map_err(Error::io(what()))?.unwrap_or_default();
                let from = root.join(inside(&link)?);
                make_parents(root, from.parent().unwrap_or(root))?;
                fs::hard_link(from, &target).map_err(Error::io(what()))?;
                continue;
            }
            tar::EntryType::Char | tar::EntryType::Block | tar::EntryType::Fifo => {
                let header = entry.header();
                let number = |n: std::io::Result<Option<u32>>| u64::from(n.ok().flatten().unwrap_or(0));
                let device = makedev(number(header.device_major()), number(header.device_minor()));
                let flag = match kind {
                    tar::EntryType::Char => SFlag::S_IFCHR,
                    tar::EntryType::Block => SFlag::S_IFBLK,
                    _ => SFlag::S_IFIFO,
                };
                mknod(&target, flag, Mode::from_bits_truncate(mode), device)
                    .map_err(|e| Error::io(what())(e.into()))?;
            }
            tar::EntryType::Symlink => {
                let link = entry.link_name().map_err(Error::io(what()))?.unwrap_or_default();
                std::os::unix::fs::symlink(link, &target).map_err(Error::io(what()))?;
            }
            kind if kind.is_file() => {
                entry.unpack(&target).map_err(Error::io(what()))?;
            }
            _ => continue, // metadata of the archive itself
        }
        lchown(&target, Some(uid), Some(gid)).map_err(Error::io(what()))?;
        if kind.is_file() {
            set_mode(&target, mode).map_err(Error::io(what()))?; // the change of owner clears set-id bits
        }
    }
    for (directory, mode) in directories.into_iter().rev() {
        set_mode(&directory, mode).map_err(Error::io(directory.display().to_string()))?;
    }
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// The path without its root and dots; one that climbs is refused.
fn inside(path: &Path) -> Result<PathBuf> {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => clean.push(part),
            Component::CurDir | Component::RootDir => {}
            _ => return Err(Error::Escape(path.to_owned())),
        }
    }
    Ok(clean)
}

fn make_parents(root: &Path, parent: &Path) -> Result<()> {
    let mut at = root.to_owned();
    for part in parent.strip_prefix(root).unwrap_or(parent).components() {
        at.push(part);
        match fs::symlink_metadata(&at) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Err(Error::Escape(at)),
            Err(_) => fs::create_dir(&at).map_err(Error::io(at.display().to_string()))?,
        }
    }
    Ok(())
}

/// Makes room for an entry that comes again in the same layer.
fn clear(target: &Path, keep_directory: bool) -> std::io::Result<()> {
    match fs::symlink_metadata(target) {
        Ok(metadata) if metadata.is_dir() && keep_directory => Ok(()),
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(target),
        Ok(_) => fs::remove_file(target),
        Err(_) => Ok(()),
    }
}

fn set_opaque(directory: &Path) -> std::io::Result<()> {
    let path = crate::shim::c_path(directory)?;
    // SAFETY: all pointers are to NUL-terminated strings or to the one byte whose length is given.
    let result =
        unsafe { libc::setxattr(path.as_ptr(), c"trusted.overlay.opaque".as_ptr(), c"y".as_ptr().cast(), 1, 0) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn tree_size(directory: &Path) -> Result<u64> {
    let mut size = 0;
    walk(directory, &mut |_, metadata| size += metadata.size())?;
    Ok(size)
}

/// Hashes names, kinds, sizes and times of a tree, in order; gives its size.
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

fn walk(directory: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata)) -> Result<()> {
    let what = || directory.display().to_string();
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(Error::io(what()))? {
        paths.push(entry.map_err(Error::io(what()))?.path());
    }
    paths.sort();
    for path in paths {
        let metadata = fs::symlink_metadata(&path).map_err(Error::io(path.display().to_string()))?;
        visit(&path, &metadata);
        if metadata.is_dir() {
            walk(&path, visit)?;
        }
    }
    Ok(())
}
