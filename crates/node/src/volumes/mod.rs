//! The volumes of a pod as directories of the host, below `DATA/pods/UID/volumes`.
//!
//! Invariant: a volume exists before any container that mounts it starts, survives restarts of containers, and goes with the
//! pod. Secrets, tokens and memory-backed directories lie on file systems in memory. Left out: volumes of storage drivers
//! (persistent volume claims, CSI and the network file systems); a pod that asks for one waits with an event that says so.

pub mod atomic;
mod contents;
mod host_path;
mod payload;
pub mod token;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, EmptyDirVolumeSource, Pod, Volume, VolumeMount};
use meta::{Clock, Quantity};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use parking_lot::Mutex;
use runtime::beneath::{self, Directory, Leaf, Links};
use runtime::{Mount, MountSource, Propagation};
use tokio::sync::Semaphore;

use crate::blocking::blocking;
use crate::env::{Once, Room, Source, expand};
use crate::fields::Place;
use contents::Contents;
use payload::Sources;
use token::Tokens;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Objects(#[from] crate::objects::Error),
    #[error(transparent)]
    Token(#[from] token::Error),
    #[error(transparent)]
    Field(#[from] crate::fields::Error),
    #[error("{0}")]
    Content(String),
    #[error("{0} is not supported by this node")]
    Unsupported(&'static str),
    #[error("{what}: {source}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}

/// Bytes that all volumes of a pod take together that are made from objects. Each item may name the same large value, and what is kept in
/// memory counts for no container.
const MOST_CONTENT: usize = 64 << 20;

/// Which volume could not be set up, and why.
#[derive(Debug, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume {volume:?} : {source}")]
pub struct SetUpError {
    pub volume: String,
    #[source]
    pub source: Error,
}

pub struct Volumes {
    /// `DATA/pods`.
    root: PathBuf,
    clock: Arc<dyn Clock>,
    /// Whether file systems in memory are mounted; without, everything is plain directories.
    memory: Memory,
    contents: Contents,
    /// For what is put together and written: many pods may want large files at once, again and again.
    writers: Semaphore,
}

/// Volumes that are put together at a time.
const WRITERS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Mounted,
    Plain,
}

impl Volumes {
    /// `most`: bytes that the files of all volumes together take that are made from objects.
    pub fn new(root: PathBuf, clock: Arc<dyn Clock>, memory: Memory, most: usize) -> Self {
        Self { root, clock, memory, contents: Contents::new(most), writers: Semaphore::new(WRITERS) }
    }

    pub fn pod_directory(&self, uid: &str) -> PathBuf {
        self.root.join(uid)
    }

    fn directory(&self, uid: &str, kind: &str, name: &str) -> PathBuf {
        self.pod_directory(uid).join("volumes").join(format!("kubernetes.io~{kind}")).join(name)
    }

    /// Makes or refreshes every volume of the pod, if what is put into them fits into [`MOST_CONTENT`]. Gives their directories by name.
    pub async fn set_up(
        &self,
        pod: &Pod,
        objects: &dyn Source,
        tokens: &dyn Tokens,
        place: &Place,
    ) -> Result<BTreeMap<String, PathBuf>, SetUpError> {
        let mut out = BTreeMap::new();
        let room = Mutex::new(Room::new(MOST_CONTENT));
        let objects = &Once::new(objects);
        for v in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
            let path = self
                .one(pod, v, objects, tokens, place, &room)
                .await
                .map_err(|source| SetUpError { volume: v.name.clone(), source })?;
            out.insert(v.name.clone(), path);
        }
        Ok(out)
    }

    async fn one(
        &self,
        pod: &Pod,
        v: &Volume,
        objects: &dyn Source,
        tokens: &dyn Tokens,
        place: &Place,
        room: &Mutex<Room>,
    ) -> Result<PathBuf, Error> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let spec = pod.spec.as_ref();
        let group = spec.and_then(|s| s.security_context.as_ref()?.fs_group).and_then(|g| u32::try_from(g).ok());
        let sources = Sources { pod, objects, tokens, place, user: one_user(pod), has_group: group.is_some(), room };
        if let Some(h) = &v.host_path {
            let source = h.clone();
            blocking(move || host_path::prepare(&source)).await?;
            return Ok(PathBuf::from(&h.path));
        }
        if let Some(e) = &v.empty_dir {
            let (path, source, memory) = (self.directory(uid, "empty-dir", &v.name), e.clone(), self.memory);
            return blocking(move || empty_dir(path, &source, group, memory)).await;
        }
        // Held while the files are in memory.
        let _writer = self.writers.acquire().await;
        let (kind, payload, memory) = if let Some(s) = &v.config_map {
            ("configmap", sources.config_map(s).await?, Memory::Plain)
        } else if let Some(s) = &v.secret {
            ("secret", sources.secret(s).await?, self.memory)
        } else if let Some(s) = &v.downward_api {
            let mode = s.default_mode.unwrap_or(0o644);
            ("downward-api", sources.downward(s.items.as_deref().unwrap_or_default(), mode)?, self.memory)
        } else if let Some(s) = &v.projected {
            ("projected", sources.projected(s).await?, self.memory)
        } else {
            return Err(Error::Unsupported("this kind of volume"));
        };
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        if !self.contents.take(uid, namespace, room.lock().taken()) {
            let why = "the files that volumes are made of take too much room on this node, of this namespace or in all";
            return Err(Error::Content(why.into()));
        }
        let directory = self.directory(uid, kind, &v.name);
        let stamp = self.clock.now();
        let stamp = format!("{}.{}", stamp.strftime("%Y_%m_%d_%H_%M_%S"), stamp.subsec_nanosecond());
        let target = directory.clone();
        blocking(move || {
            fs::create_dir_all(&directory)?;
            if memory == Memory::Mounted {
                in_memory(&directory, None)?;
            }
            atomic::write(&directory, &payload, &stamp, group)
        })
        .await
        .map_err(failed("writing files"))?;
        Ok(target)
    }

    /// Removes everything of a pod that is gone.
    pub async fn tear_down(&self, uid: &str) -> Result<(), Error> {
        let directory = self.pod_directory(uid);
        blocking(move || {
            beneath::unmount_below(&directory)?;
            beneath::remove_tree(&directory)
        })
        .await
        .map_err(failed("removing a pod's directory"))?;
        self.contents.release(uid);
        Ok(())
    }

    /// Uids of the pods that have a directory here.
    pub async fn pods(&self) -> Vec<String> {
        let root = self.root.clone();
        blocking(move || {
            let entries = fs::read_dir(&root).into_iter().flatten().flatten();
            entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
        })
        .await
    }
}

/// Makes the directory of an emptyDir volume, or leaves one that is there as it is.
fn empty_dir(
    path: PathBuf,
    source: &EmptyDirVolumeSource,
    group: Option<u32>,
    memory: Memory,
) -> Result<PathBuf, Error> {
    let what = || failed(path.display().to_string());
    let fresh = !path.exists();
    fs::create_dir_all(&path).map_err(what())?;
    let medium = source.medium.as_deref().unwrap_or_default();
    match medium {
        "" => {}
        "Memory" => {
            let size = source.size_limit.as_ref().and_then(|q| Quantity::parse(&q.0).ok());
            if memory == Memory::Mounted {
                in_memory(&path, size.map(|q| q.value()).filter(|v| *v > 0)).map_err(what())?;
            }
        }
        _ => return Err(Error::Unsupported("huge pages as the medium of an emptyDir volume")),
    }
    if fresh {
        // Everyone may write, since nobody knows as whom the containers run.
        let mode = if group.is_some() { 0o2777 } else { 0o777 };
        if let Some(gid) = group {
            chown(&path, None, Some(gid)).map_err(what())?;
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(what())?;
    }
    Ok(path)
}

/// The user that all containers run as, if it is one.
fn one_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let default = spec.security_context.as_ref().and_then(|c| c.run_as_user);
    let mut users = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .map(|c| c.security_context.as_ref().and_then(|s| s.run_as_user).or(default));
    let first = users.next()??;
    users.all(|u| u == Some(first)).then(|| u32::try_from(first).ok()).flatten()
}

fn is_mounted(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |p: &Path| fs::symlink_metadata(p).ok().map(|m| m.dev());
    path.parent().is_some_and(|parent| device(path).is_some() && device(path) != device(parent))
}

/// Mounts a file system in memory, unless there is one.
fn in_memory(path: &Path, size: Option<i64>) -> io::Result<()> {
    if is_mounted(path) {
        return Ok(());
    }
    let size = size.map(|s| format!(",size={s}")).unwrap_or_default();
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    // Secrets must not reach a swap device; older kernels do not know the word.
    let options = format!("mode=0755{size},noswap");
    if mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options.as_str())).is_ok() {
        return Ok(());
    }
    let options = format!("mode=0755{size}");
    mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options.as_str())).map_err(io::Error::from)
}

/// Mounts of a container: each is walked to twice, by a way that containers may have made long.
const MOST_MOUNTS: usize = 1000;

/// The mounts of a container. `env` is for `subPathExpr`. Where they lead is looked up on a thread of its own.
pub async fn mounts(
    pod: &Arc<Pod>,
    c: &Container,
    volumes: &BTreeMap<String, PathBuf>,
    env: &[(String, String)],
) -> Result<Vec<Mount>, Error> {
    let (pod, c, volumes, env) = (pod.clone(), c.clone(), volumes.clone(), env.to_owned());
    blocking(move || find_mounts(&pod, &c, &volumes, &env)).await
}

fn find_mounts(
    pod: &Pod,
    c: &Container,
    volumes: &BTreeMap<String, PathBuf>,
    env: &[(String, String)],
) -> Result<Vec<Mount>, Error> {
    let count = c.volume_mounts.as_ref().map_or(0, Vec::len);
    if count > MOST_MOUNTS {
        let why = format!("container {:?} has {count} volume mounts: this node makes at most {MOST_MOUNTS}", c.name);
        return Err(Error::Content(why));
    }
    let mut out = Vec::new();
    let env: HashMap<&str, &str> = env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    for m in c.volume_mounts.iter().flatten() {
        let Some(root) = volumes.get(&m.name) else {
            let name = &m.name;
            return Err(Error::Content(format!("volume {name:?} of mount {:?} does not exist", m.mount_path)));
        };
        let volume = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).find(|v| v.name == m.name);
        let always_read_only = volume.is_some_and(|v| {
            v.config_map.is_some() || v.secret.is_some() || v.downward_api.is_some() || v.projected.is_some()
        });
        let source = match sub_path(m, &env)? {
            Some(sub) => below(root, &sub).map_err(|e| {
                let (mount, container) = (&m.name, &c.name);
                Error::Content(format!(
                    "failed to prepare subPath for volumeMount {mount:?} of container {container:?}: {e}"
                ))
            })?,
            None => MountSource::Host(root.clone()),
        };
        let host_path = volume.and_then(|v| v.host_path.as_ref()).filter(|_| matches!(source, MountSource::Host(_)));
        let target = if m.mount_path.starts_with('/') { m.mount_path.clone() } else { format!("/{}", m.mount_path) };
        let read_only = always_read_only || m.read_only == Some(true);
        out.push(Mount {
            source,
            kind: host_path.and_then(host_path::kind),
            target: target.into(),
            read_only,
            recursive_read_only: read_only
                && matches!(m.recursive_read_only.as_deref(), Some("Enabled" | "IfPossible")),
            propagation: match m.mount_propagation.as_deref() {
                Some("HostToContainer") => Propagation::HostToContainer,
                Some("Bidirectional") => Propagation::Bidirectional,
                _ => Propagation::Private,
            },
        });
    }
    Ok(out)
}

fn sub_path(m: &VolumeMount, env: &HashMap<&str, &str>) -> Result<Option<String>, Error> {
    if let Some(s) = m.sub_path.as_deref().filter(|s| !s.is_empty()) {
        return Ok(Some(s.to_owned()));
    }
    let Some(expression) = m.sub_path_expr.as_deref().filter(|s| !s.is_empty()) else { return Ok(None) };
    let missing = std::cell::Cell::new(false);
    let lookup = |name: &str| {
        let value = env.get(name).copied();
        missing.set(missing.get() || value.is_none());
        value
    };
    let most = nix::libc::PATH_MAX as usize;
    let text = expand(expression, lookup, &mut Room::new(most))
        .map_err(|_| Error::Content(format!("subPathExpr {expression:?} becomes longer than {most} bytes")))?;
    if missing.get() {
        return Err(Error::Content(format!("missing value for subPathExpr {expression:?}")));
    }
    Ok(Some(text))
}

/// A path below `root`, made if missing; symbolic links must not lead out of it. Containers may change the volume at any time, so
/// it is resolved again, by the same rule, when it is mounted.
fn below(root: &Path, sub: &str) -> Result<MountSource, Error> {
    let path = Path::new(sub);
    if path.components().any(|c| !matches!(c, std::path::Component::Normal(_))) {
        return Err(Error::Content(format!("subPath {sub:?} must be relative and must not contain '..'")));
    }
    let wrong = |e: io::Error| match e.raw_os_error() {
        Some(code) if code == Errno::EXDEV as i32 => Error::Content(format!("subPath {sub:?} leads out of its volume")),
        _ => failed(root.join(path).display().to_string())(e),
    };
    // As the volume, so that whoever may write there may write here.
    let mode = fs::metadata(root).map_err(wrong)?.permissions().mode();
    let directory = Directory::open(root, Links::Inside).map_err(wrong)?;
    directory.make(path, Leaf::Directory, Mode::from_bits_truncate(mode & 0o7777)).map_err(wrong)?;
    Ok(MountSource::Below { root: root.to_owned(), path: path.to_owned() })
}

#[cfg(test)]
mod tests;
