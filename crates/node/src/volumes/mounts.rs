//! The mounts of a container: its `volumeMounts`, with `subPath` and `subPathExpr`.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, VolumeDevice, VolumeMount};
use nix::errno::Errno;
use nix::sys::stat::Mode;
use runtime::beneath::{Directory, Leaf, Links};
use runtime::{DeviceRequest, HandlerFeatures, Mount, MountOptions, MountSource, Propagation};
use supervisor::blocking;

use super::types::{self, TYPES};
use super::{Error, io_error};
use crate::env::{Budget, expand};

/// Volume mounts of one container. Each path is resolved twice, and containers may have made it long.
const MAX_MOUNTS: usize = 1000;

/// The mounts of container `c` in a runtime with these features. `volumes` are the paths of the pod's volumes by name; `env` is for `subPathExpr`.
pub async fn mounts(
    pod: &Arc<Pod>,
    c: &Container,
    volumes: &BTreeMap<String, PathBuf>,
    env: &[(String, String)],
    handler: HandlerFeatures,
) -> Result<Vec<Mount>, Error> {
    let (pod, c, volumes, env) = (pod.clone(), c.clone(), volumes.clone(), env.to_owned());
    blocking(move || find_mounts(&pod, &c, &volumes, &env, handler)).await
}

pub(super) fn find_mounts(
    pod: &Pod,
    c: &Container,
    volumes: &BTreeMap<String, PathBuf>,
    env: &[(String, String)],
    handler: HandlerFeatures,
) -> Result<Vec<Mount>, Error> {
    let count = c.volume_mounts.as_ref().map_or(0, Vec::len);
    if count > MAX_MOUNTS {
        let why = format!("container {:?} has {count} volume mounts: this node makes at most {MAX_MOUNTS}", c.name);
        return Err(Error::Content(why));
    }
    let mut out = Vec::new();
    let specs = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let types: HashMap<&str, _> = specs.filter_map(|v| Some((v.name.as_str(), types::find(TYPES, v)?.1))).collect();
    let env: HashMap<&str, &str> = env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    for m in c.volume_mounts.iter().flatten() {
        let Some(root) = volumes.get(&m.name) else {
            let name = &m.name;
            return Err(Error::Content(format!("volume {name:?} of mount {:?} does not exist", m.mount_path)));
        };
        let volume = types.get(m.name.as_str());
        let image = volume.and_then(|v| v.image());
        let source = match (sub_path(m, &env)?, image) {
            (sub, Some(image)) => image_source(image, sub.as_deref().unwrap_or_default())?,
            (Some(sub), None) => below(root, &sub).map_err(|e| {
                let (mount, container) = (&m.name, &c.name);
                Error::Content(format!(
                    "failed to prepare subPath for volumeMount {mount:?} of container {container:?}: {e}"
                ))
            })?,
            (None, None) => MountSource::Host(root.clone()),
        };
        let is_whole = matches!(source, MountSource::Host(_));
        let target = if m.mount_path.starts_with('/') { m.mount_path.clone() } else { format!("/{}", m.mount_path) };
        let read_only = volume.is_some_and(|v| v.is_read_only()) || m.read_only == Some(true);
        out.push(Mount {
            source,
            kind: volume.and_then(|v| v.file_kind()).filter(|_| is_whole),
            target: target.into(),
            read_only,
            recursive_read_only: read_only
                && match m.recursive_read_only.as_deref() {
                    Some("Enabled") => true,
                    Some("IfPossible") => handler.recursive_read_only_mounts,
                    _ => false,
                },
            propagation: match m.mount_propagation.as_deref() {
                Some("HostToContainer") => Propagation::HostToContainer,
                Some("Bidirectional") => Propagation::Bidirectional,
                _ => Propagation::Private,
            },
            options: MountOptions::default(),
        });
    }
    Ok(out)
}

/// The devices of container `c`: its `volumeDevices`. `volumes` are the paths of the pod's volumes by name.
pub fn devices(pod: &Pod, c: &Container, volumes: &BTreeMap<String, PathBuf>) -> Result<Vec<DeviceRequest>, Error> {
    let specs = || pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let request = |device: &VolumeDevice| {
        let Some(host) = volumes.get(&device.name) else {
            let (name, path) = (&device.name, &device.device_path);
            return Err(Error::Content(format!("volume {name:?} of device {path:?} does not exist")));
        };
        let volume = specs().find(|v| v.name == device.name).and_then(|v| types::find(TYPES, v));
        let is_read_only = volume.is_some_and(|(_, v)| v.is_read_only());
        Ok(DeviceRequest {
            host: host.clone(),
            target: device.device_path.clone().into(),
            permissions: if is_read_only { "r".into() } else { "rwm".into() },
            ..DeviceRequest::default()
        })
    };
    c.volume_devices.iter().flatten().map(request).collect()
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
    let max = nix::libc::PATH_MAX as usize;
    let text = expand(expression, lookup, &mut Budget::new(max))
        .map_err(|_| Error::Content(format!("subPathExpr {expression:?} becomes longer than {max} bytes")))?;
    if missing.get() {
        return Err(Error::Content(format!("missing value for subPathExpr {expression:?}")));
    }
    Ok(Some(text))
}

/// The files of an image, or those at the path `sub` in it.
fn image_source(image: &str, sub: &str) -> Result<MountSource, Error> {
    let path = Path::new(sub);
    if path.components().any(|c| !matches!(c, Component::Normal(_))) {
        return Err(outside(sub));
    }
    Ok(MountSource::Image { image: image.to_owned(), path: path.to_owned() })
}

fn outside(sub: &str) -> Error {
    Error::Content(format!("subPath {sub:?} must be relative and must not contain '..'"))
}

/// The path `sub` below `root`, created if missing. Errors if a symbolic link leads out of `root`. Containers may change the volume
/// at any time, so the mount resolves the path again, by the same rule.
fn below(root: &Path, sub: &str) -> Result<MountSource, Error> {
    let path = Path::new(sub);
    if path.components().any(|c| !matches!(c, Component::Normal(_))) {
        return Err(outside(sub));
    }
    let error = |e: io::Error| match e.raw_os_error() {
        Some(code) if code == Errno::EXDEV as i32 => Error::Content(format!("subPath {sub:?} leads out of its volume")),
        _ => io_error(root.join(path).display().to_string())(e),
    };
    // The mode of the volume: who may write to the volume may write to the directory.
    let mode = fs::metadata(root).map_err(error)?.permissions().mode();
    let directory = Directory::open(root, Links::Inside).map_err(error)?;
    directory.make(path, Leaf::Directory, Mode::from_bits_truncate(mode & 0o7777)).map_err(error)?;
    Ok(MountSource::Below { root: root.to_owned(), path: path.to_owned() })
}
