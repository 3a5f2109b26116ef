//! Where the agent keeps volumes of CSI drivers: upstream's paths below the root directory of the kubelet, and the records beside them.
//!
//! A record is written before a driver is called and removed after it has undone the call, so that a new agent finds everything that a
//! driver may have mounted.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use runtime::beneath::Directory;
use serde::{Deserialize, Serialize};

/// The file of a record, in the directory that it describes.
const RECORD: &str = "vol_data.json";
/// The directory of volumes of a pod, below `pods/UID/volumes` and `pods/UID/volumeDevices`.
const TYPE_DIRECTORY: &str = "kubernetes.io~csi";
/// Bytes of a record.
const MAX_RECORD: u64 = 64 << 10;

/// A volume of a driver that is staged, or published for a pod, or may be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    pub driver_name: String,
    pub volume_handle: String,
    /// The name of the persistent volume, or of the volume in the pod.
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub attachment: String,
    /// `Persistent` or `Ephemeral`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub volume_lifecycle_mode: String,
    /// `true` if only one pod may use the volume at a time.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub single_pod: String,
}

impl Record {
    /// Reads the record in a directory; `None` if there is none.
    pub fn read(directory: &Path) -> io::Result<Option<Self>> {
        let path = directory.join(RECORD);
        match fs::symlink_metadata(&path) {
            Ok(m) if m.is_file() && m.len() <= MAX_RECORD => {}
            Ok(_) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} is no record", path.display())));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        }
        let text = fs::read(&path)?;
        let parsed = serde_json::from_slice(&text);
        parsed.map(Some).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {e}", path.display())))
    }

    /// Writes the record into a directory, which is created. A reader sees the old record or the new one.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        let temporary = directory.join(format!(".{RECORD}"));
        fs::write(&temporary, serde_json::to_vec(self)?)?;
        fs::rename(temporary, directory.join(RECORD))
    }

    /// Removes the record, then its directory, which has to be empty.
    pub fn remove(directory: &Path) -> io::Result<()> {
        absent(fs::remove_file(directory.join(format!(".{RECORD}"))))?;
        absent(fs::remove_file(directory.join(RECORD)))?;
        absent(fs::remove_dir(directory))
    }

    /// Whether another record, perhaps of another pod, is of the same volume.
    pub fn is_same_volume(&self, other: &Self) -> bool {
        self.driver_name == other.driver_name && self.volume_handle == other.volume_handle
    }

    /// The name of the volume in the status of nodes.
    pub fn unique_name(&self) -> String {
        unique_name(&self.driver_name, &self.volume_handle)
    }
}

/// What is gone is removed.
pub(super) fn absent(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The name of a volume in the status of nodes.
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

fn hash(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

/// The name of the VolumeAttachment of a volume on a node.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", hash(&format!("{handle}{driver}{node}")))
}

/// The handle of an inline volume of a pod, which its driver makes for it.
pub fn inline_handle(uid: &str, volume: &str) -> String {
    format!("csi-{}", hash(&format!("{uid}{volume}")))
}

/// Whether the name of a driver is usable as a part of paths.
pub fn is_driver_name(name: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    name.len() <= 63
        && is_end(name.chars().next())
        && is_end(name.chars().last())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
}

/// The directories of the kubelet.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub root: PathBuf,
}

impl Layout {
    pub fn pod_volumes(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid).join("volumes").join(TYPE_DIRECTORY)
    }

    pub fn pod_volume(&self, uid: &str, name: &str) -> PathBuf {
        self.pod_volumes(uid).join(name)
    }

    pub fn pod_devices(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid).join("volumeDevices").join(TYPE_DIRECTORY)
    }

    fn plugin(&self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/csi")
    }

    /// The directory of a staged file system; it is staged at `globalmount` in it.
    pub fn staged(&self, driver: &str, handle: &str) -> PathBuf {
        self.plugin().join(driver).join(hash(handle))
    }

    /// The staging path of a device, by the name of its persistent volume.
    pub fn staged_device(&self, name: &str) -> PathBuf {
        self.plugin().join("volumeDevices/staging").join(name)
    }

    /// Where devices of a persistent volume are published, each for a pod.
    pub fn published_devices(&self, name: &str) -> PathBuf {
        self.plugin().join("volumeDevices/publish").join(name)
    }

    /// The directory of the record of a device.
    pub fn device_record(&self, name: &str) -> PathBuf {
        self.plugin().join("volumeDevices").join(name).join("data")
    }

    /// Every volume that is published for a pod, or may be: the UID of the pod and the record. Blocks.
    pub fn published(&self) -> io::Result<Vec<(String, Record)>> {
        let mut out = Vec::new();
        for uid in names(&self.root.join("pods"))? {
            for name in names(&self.pod_volumes(&uid))? {
                if let Some(record) = Record::read(&self.pod_volume(&uid, &name))? {
                    out.push((uid.clone(), record));
                }
            }
            for name in names(&self.pod_devices(&uid))? {
                if let Some(record) = Record::read(&self.device_record(&name))? {
                    out.push((uid.clone(), record));
                }
            }
        }
        Ok(out)
    }

    /// Every volume that is staged, or may be: its directory and its record. Blocks.
    pub fn all_staged(&self) -> io::Result<Vec<(PathBuf, Record)>> {
        let mut out = Vec::new();
        let plugin = self.plugin();
        for driver in names(&plugin)? {
            let directories: BTreeMap<String, PathBuf> = match driver.as_str() {
                "volumeDevices" => {
                    let devices = names(&plugin.join(&driver))?.into_iter();
                    devices.map(|name| (name.clone(), self.device_record(&name))).collect()
                }
                _ => {
                    let hashes = names(&plugin.join(&driver))?.into_iter();
                    hashes.map(|hash| (hash.clone(), plugin.join(&driver).join(hash))).collect()
                }
            };
            for directory in directories.into_values() {
                if let Some(record) = Record::read(&directory)? {
                    out.push((directory, record));
                }
            }
        }
        Ok(out)
    }
}

/// The names in a directory; none if it does not exist.
pub(super) fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    entries.map(|e| Ok(e?.file_name().to_string_lossy().into_owned())).collect()
}

/// Whether something is mounted at `path`, which need not exist. A path whose file system does not answer counts as one.
pub(crate) fn is_mounted(path: &Path) -> bool {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return false };
    let Ok(parent) = Directory::open(parent, runtime::beneath::Links::Refuse) else { return false };
    match parent.without_mounts().resolve(Path::new(name)) {
        Ok(_) => false,
        Err(e) => e.raw_os_error() == Some(nix::libc::EXDEV),
    }
}

/// Removes a directory on which a driver has left nothing mounted, and which is empty.
pub(super) fn remove_mount_point(path: &Path) -> io::Result<()> {
    if is_mounted(path) {
        return Err(io::Error::other(format!("{} is still mounted", path.display())));
    }
    match fs::symlink_metadata(path) {
        Ok(m) if m.is_dir() => absent(fs::remove_dir(path)),
        Ok(_) => absent(fs::remove_file(path)),
        Err(e) => absent(Err(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_upstream() {
        // The hash is that of `voldrivernode`.
        let expected = "csi-4af94228ee9d441e02225497584706bfc975bdb4d2db3571d8c5db2668c1e969";
        assert_eq!(attachment_name("vol", "driver", "node"), expected);
        assert_eq!(unique_name("d", "h"), "kubernetes.io/csi/d^h");
        for (name, is) in [("hostpath.csi.k8s.io", true), ("a", true), ("", false), ("..", false), ("a/b", false)] {
            assert_eq!(is_driver_name(name), is, "{name}");
        }
    }

    #[test]
    fn records_are_found_again() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout { root: root.path().to_owned() };
        assert!(layout.published().unwrap().is_empty() && layout.all_staged().unwrap().is_empty());
        let record = Record { driver_name: "d".into(), volume_handle: "h".into(), ..Record::default() };
        record.write(&layout.pod_volume("u", "pv")).unwrap();
        record.write(&layout.staged("d", "h")).unwrap();
        record.write(&layout.device_record("pv2")).unwrap();
        fs::create_dir_all(layout.pod_devices("u").join("pv2")).unwrap();
        assert_eq!(layout.published().unwrap(), [("u".to_owned(), record.clone()), ("u".to_owned(), record.clone())]);
        assert_eq!(layout.all_staged().unwrap().len(), 2);
        Record::remove(&layout.staged("d", "h")).unwrap();
        assert_eq!(layout.all_staged().unwrap().len(), 1);
        fs::write(layout.pod_volume("u", "pv").join(RECORD), "{").unwrap();
        assert!(layout.published().is_err(), "what cannot be read is not absent");
    }
}
