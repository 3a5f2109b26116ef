//! The Container Device Interface: what containers need to use a device that a driver names (`vendor.com/class=name`).
//!
//! Drivers write specifications to `/etc/cdi` and `/var/run/cdi`. [`Registry::read`] reads them, and [`Registry::edits`] returns what
//! devices add to a container. Follows version 1.0 of the specification (`tags.cncf.io/container-device-interface`). **Invariant.** A device is
//! applied completely, or the container is refused: hooks, network devices, `intelRdt`, and owners and modes of device nodes are not carried
//! out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The directories of specifications; a later one wins.
pub const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// Bytes of a specification, and specifications of a directory.
const MAX_BYTES: u64 = 4 << 20;
const MAX_FILES: usize = 1024;

/// Why devices cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CdiError {
    #[error("failed to inject CDI devices: unresolvable CDI devices {}", .0.join(", "))]
    Unresolvable(Vec<String>),
    #[error("CDI device {device}: {what} cannot be carried out by this node")]
    Unsupported { device: String, what: &'static str },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    cdi_version: String,
    kind: String,
    devices: Vec<Device>,
    container_edits: ContainerEdits,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Device {
    name: String,
    container_edits: ContainerEdits,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerEdits {
    env: Vec<String>,
    device_nodes: Vec<DeviceNode>,
    mounts: Vec<MountEdit>,
    hooks: Vec<serde_json::Value>,
    net_devices: Vec<serde_json::Value>,
    intel_rdt: Option<serde_json::Value>,
    #[serde(rename = "additionalGids")]
    additional_gids: Vec<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeviceNode {
    path: String,
    host_path: String,
    permissions: String,
    file_mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MountEdit {
    host_path: String,
    container_path: String,
    options: Vec<String>,
    #[serde(rename = "type")]
    kind: String,
}

/// What devices add to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    pub env: Vec<(String, String)>,
    pub devices: Vec<runtime::DeviceRequest>,
    pub mounts: Vec<runtime::Mount>,
    pub groups: Vec<u32>,
}

/// The specifications of the machine: by name of the device, that with its kind's edits.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    devices: BTreeMap<String, (ContainerEdits, Device)>,
}

/// Whether a name has the form `vendor.com/class=device`.
pub fn is_qualified(name: &str) -> bool {
    let plain = |text: &str, more: &str| {
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        edge(text.chars().next())
            && edge(text.chars().next_back())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    let parts = name.split_once('=').and_then(|(kind, device)| Some((kind.split_once('/')?, device)));
    parts.is_some_and(|((vendor, class), device)| plain(vendor, "_-.") && plain(class, "_-.") && plain(device, "_-.:"))
}

impl Registry {
    /// Reads the specifications of directories; those of later ones win. What cannot be read is logged and left out. Blocks.
    pub fn read(directories: &[PathBuf]) -> Self {
        let mut out = Self::default();
        for directory in directories {
            out.devices.extend(read_directory(directory));
        }
        out
    }

    /// What these devices add to a container.
    pub fn edits<'a>(&self, names: impl IntoIterator<Item = &'a String>) -> Result<Edits, CdiError> {
        let (mut out, mut unknown, mut kinds) = (Edits::default(), Vec::new(), Vec::new());
        for name in names {
            let Some((kind, device)) = self.devices.get(name) else {
                unknown.push(name.clone());
                continue;
            };
            // What a kind adds, it adds once.
            let kind_name = name.split('=').next().unwrap_or_default();
            if !kinds.contains(&kind_name) {
                kinds.push(kind_name);
                out.add(name, kind)?;
            }
            out.add(name, &device.container_edits)?;
        }
        if unknown.is_empty() { Ok(out) } else { Err(CdiError::Unresolvable(unknown)) }
    }
}

impl Edits {
    fn add(&mut self, device: &str, edits: &ContainerEdits) -> Result<(), CdiError> {
        let unsupported = |what| Err(CdiError::Unsupported { device: device.to_owned(), what });
        if !edits.hooks.is_empty() {
            return unsupported("hooks");
        }
        if !edits.net_devices.is_empty() {
            return unsupported("network devices");
        }
        if edits.intel_rdt.is_some() {
            return unsupported("intelRdt");
        }
        for variable in &edits.env {
            let Some((name, value)) = variable.split_once('=') else { return unsupported("a variable without value") };
            self.env.retain(|(n, _)| n != name);
            self.env.push((name.to_owned(), value.to_owned()));
        }
        for node in &edits.device_nodes {
            if node.file_mode.is_some() || node.uid.is_some() || node.gid.is_some() {
                return unsupported("an owner or mode of a device node");
            }
            let host = if node.host_path.is_empty() { &node.path } else { &node.host_path };
            let permissions = if node.permissions.is_empty() { "rwm" } else { &node.permissions };
            self.devices.retain(|d| d.target != Path::new(&node.path));
            self.devices.push(runtime::DeviceRequest {
                host: host.into(),
                target: (&node.path).into(),
                permissions: permissions.to_owned(),
            });
        }
        for mount in &edits.mounts {
            if !matches!(mount.kind.as_str(), "" | "bind" | "none") {
                return unsupported("a mount that binds nothing");
            }
            self.mounts.push(bind(mount));
        }
        self.groups.extend(edits.additional_gids.iter().filter(|g| **g != 0));
        Ok(())
    }
}

fn bind(mount: &MountEdit) -> runtime::Mount {
    let has = |option: &str| mount.options.iter().any(|o| o == option);
    let mut out = runtime::Mount::bind(&mount.host_path, &mount.container_path);
    out.read_only = has("ro");
    if has("rslave") || has("slave") {
        out.propagation = runtime::Propagation::HostToContainer;
    }
    out
}

/// The devices of a directory. A device that two files have is in neither.
fn read_directory(directory: &Path) -> BTreeMap<String, (ContainerEdits, Device)> {
    let mut found = BTreeMap::new();
    let mut conflicts = Vec::new();
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.path()).take(MAX_FILES).collect();
    files.sort();
    for path in files {
        let kind = path.extension().and_then(|e| e.to_str());
        if !matches!(kind, Some("json" | "yaml" | "yml")) {
            continue;
        }
        let spec = match read_file(&path) {
            Ok(spec) => spec,
            Err(error) => {
                tracing::warn!(path = %path.display(), error, "a specification of CDI devices is ignored");
                continue;
            }
        };
        for device in spec.devices {
            let name = format!("{}={}", spec.kind, device.name);
            if !is_qualified(&name) {
                tracing::warn!(path = %path.display(), device = name, "a CDI device with an invalid name is ignored");
                continue;
            }
            let edits = (spec.container_edits.clone(), device);
            if found.insert(name.clone(), edits).is_some() {
                conflicts.push(name);
            }
        }
    }
    for name in conflicts {
        tracing::warn!(device = name, directory = %directory.display(), "several specifications have a CDI device; it cannot be used");
        found.remove(&name);
    }
    found
}

fn read_file(path: &Path) -> Result<Spec, String> {
    let length = std::fs::metadata(path).map_err(|e| e.to_string())?.len();
    if length > MAX_BYTES {
        return Err(format!("it has {length} bytes"));
    }
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let (document, _) = codec::yaml::parse_first(&text, codec::yaml::DEPTH_LIMIT).map_err(|e| e.to_string())?;
    let spec: Spec = serde_json::from_value(document).map_err(|e| e.to_string())?;
    match spec.cdi_version.is_empty() {
        true => Err("it has no cdiVersion".into()),
        false => Ok(spec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn registry(files: &[(&str, Value)]) -> Registry {
        let directory = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content.to_string()).unwrap();
        }
        Registry::read(&[directory.path().join("etc"), directory.path().join("run")])
    }

    fn spec(kind: &str, device: &str, edits: Value) -> Value {
        json!({"cdiVersion": "0.6.0", "kind": kind, "devices": [{"name": device, "containerEdits": edits}]})
    }

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn devices_add_to_containers() {
        let mut gpu = spec(
            "example.com/gpu",
            "a",
            json!({"env": ["GPU=a"], "deviceNodes": [{"path": "/dev/gpu", "hostPath": "/dev/null", "permissions": "rw"}],
                "mounts": [{"hostPath": "/lib/gpu", "containerPath": "/usr/lib/gpu", "options": ["ro", "bind"]}],
                "additionalGids": [0, 7]}),
        );
        gpu["containerEdits"] = json!({"env": ["KIND=gpu"]});
        gpu["devices"].as_array_mut().unwrap().push(json!({"name": "b", "containerEdits": {"env": ["SECOND=b"]}}));
        let registry = registry(&[("etc/gpu.json", gpu), ("etc/other.txt", json!("no specification"))]);
        let edits = registry.edits(&names(&["example.com/gpu=a", "example.com/gpu=b"])).unwrap();
        let variables: Vec<String> = edits.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(variables, ["KIND=gpu", "GPU=a", "SECOND=b"]);
        let node = &edits.devices[0];
        assert_eq!(
            (node.host.to_str(), node.target.to_str(), &*node.permissions),
            (Some("/dev/null"), Some("/dev/gpu"), "rw")
        );
        assert!(edits.mounts[0].read_only);
        assert_eq!(edits.groups, [7]);
    }

    #[test]
    fn what_cannot_be_applied_is_refused() {
        let files = [
            ("etc/a.json", spec("example.com/net", "a", json!({"netDevices": [{"hostInterfaceName": "eth1"}]}))),
            (
                "etc/h.yaml",
                spec("example.com/hook", "a", json!({"hooks": [{"hookName": "createRuntime", "path": "/x"}]})),
            ),
            ("etc/o.json", spec("example.com/own", "a", json!({"deviceNodes": [{"path": "/dev/null", "uid": 7}]}))),
            ("etc/v.json", json!({"kind": "example.com/old", "devices": [{"name": "a"}]})),
            ("etc/1.json", spec("example.com/twice", "a", json!({}))),
            ("etc/2.json", spec("example.com/twice", "a", json!({}))),
            ("etc/low.json", spec("example.com/low", "a", json!({"env": ["FROM=etc"]}))),
            ("run/high.json", spec("example.com/low", "a", json!({"env": ["FROM=run"]}))),
        ];
        let registry = registry(&files);
        let error = |name: &str| registry.edits(&names(&[name])).unwrap_err().to_string();
        let unresolvable = "failed to inject CDI devices: unresolvable CDI devices ";
        assert_eq!(error("example.com/old=a"), format!("{unresolvable}example.com/old=a"));
        assert_eq!(error("example.com/twice=a"), format!("{unresolvable}example.com/twice=a"));
        assert_eq!(
            error("example.com/hook=a"),
            "CDI device example.com/hook=a: hooks cannot be carried out by this node"
        );
        assert!(error("example.com/net=a").contains("network devices"));
        assert!(error("example.com/own=a").contains("an owner or mode of a device node"));
        let low = registry.edits(&names(&["example.com/low=a"])).unwrap();
        assert_eq!(low.env, [("FROM".to_owned(), "run".to_owned())]);
        for (name, valid) in [
            ("a.b/c=d:1", true),
            ("a/b", false),
            ("a=b", false),
            ("a/b=", false),
            ("-a/b=c", false),
            ("a/b=c d", false),
        ] {
            assert_eq!(is_qualified(name), valid, "{name}");
        }
    }
}
