//! The Container Device Interface: what containers need to use a device that a driver names (`vendor.com/class=name`).
//!
//! Drivers write [`specification`]s to `/etc/cdi` and `/var/run/cdi`. [`Registry::read`] reads them, and [`Registry::edits`] returns what
//! devices add to a container. Follows version 1.1 of the specification (`tags.cncf.io/container-device-interface`).
//!
//! **Invariants.** A device is applied completely, or the container is refused: network devices, `intelRdt` and pipes are not carried out.
//! A file that is not valid is left out, with its devices, and affects no other.

mod apply;
mod specification;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::bounded::{MAX_WORD, cut};
use runtime::{DeviceRequest, Hooks, MountOptions};
use specification::{ContainerEdits, Device, DeviceNode, Hook, MountEdit, NO_PERMISSIONS, Spec, is_qualified};

/// The directories of specifications; a later one wins.
pub const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// Bytes of a specification, and specifications of a directory.
const MAX_BYTES: u64 = 4 << 20;
const MAX_FILES: usize = 1024;
/// Files that an error names.
const MAX_NAMED: usize = 3;
/// Devices that an error names.
const MAX_DEVICES: usize = 8;

/// Why devices cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CdiError {
    /// Devices, and the files that were left out.
    #[error("failed to inject CDI devices: unresolvable CDI devices {}{}", some(.0), named(.1))]
    Unresolvable(Vec<String>, Vec<String>),
    #[error("CDI device {device}: {what} cannot be carried out by this node")]
    Unsupported { device: String, what: String },
}

/// Names of devices, as a part of a message. A driver may name any number.
fn some(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(MAX_DEVICES).map(|name| cut(name, MAX_WORD)).collect();
    let more = names.len().saturating_sub(MAX_DEVICES);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} others", shown.join(", ")) }
}

/// The files that were left out, as a part of a message.
fn named(files: &[String]) -> String {
    let more = if files.len() > MAX_NAMED { ", …" } else { "" };
    let shown: Vec<&str> = files.iter().take(MAX_NAMED).map(String::as_str).collect();
    if shown.is_empty() { String::new() } else { format!(" (left out: {}{more})", shown.join(", ")) }
}

/// What devices add to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    pub env: Vec<(String, String)>,
    pub devices: Vec<DeviceRequest>,
    pub mounts: Vec<runtime::Mount>,
    pub groups: Vec<u32>,
    pub hooks: Hooks,
}

/// The specifications of the machine: by name of the device, that with its kind's edits.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    devices: BTreeMap<String, (ContainerEdits, Device)>,
    /// The files that are left out, with the reason.
    invalid: Vec<String>,
}

impl Registry {
    /// Reads the specifications of directories; those of later ones win. A device that two files of one directory have cannot be used.
    /// Blocks.
    pub fn read(directories: &[PathBuf]) -> Self {
        let mut out = Self::default();
        for directory in directories {
            out.add(directory);
        }
        out
    }

    fn add(&mut self, directory: &Path) {
        let mut found = BTreeMap::new();
        let mut conflicts = BTreeMap::new();
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.path()).take(MAX_FILES).collect();
        files.sort();
        for path in files {
            if !matches!(path.extension().and_then(|e| e.to_str()), Some("json" | "yaml")) {
                continue;
            }
            let spec = match read_file(&path) {
                Ok(spec) => spec,
                Err(error) => {
                    tracing::warn!(path = %path.display(), error, "a specification of CDI devices is left out");
                    self.invalid.push(format!("{}: {error}", path.display()));
                    continue;
                }
            };
            for device in spec.devices {
                let name = format!("{}={}", spec.kind, device.name);
                let edits = (spec.container_edits.clone(), device);
                if found.insert(name.clone(), edits).is_some() {
                    conflicts.insert(name, path.clone());
                }
            }
        }
        self.devices.extend(found);
        for (name, path) in conflicts {
            tracing::warn!(device = name, path = %path.display(), "several specifications have a CDI device; it cannot be used");
            self.invalid.push(format!("{}: conflicting device {name:?}", path.display()));
            self.devices.remove(&name);
        }
    }

    /// What these devices add to a container. Blocks.
    pub fn edits<'a>(&self, names: impl IntoIterator<Item = &'a String>) -> Result<Edits, CdiError> {
        let (mut out, mut unknown, mut kinds) = (Edits::default(), Vec::new(), Vec::new());
        for name in names {
            let Some((kind, device)) = self.devices.get(name).filter(|_| is_qualified(name)) else {
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
        if unknown.is_empty() { Ok(out) } else { Err(CdiError::Unresolvable(unknown, self.invalid.clone())) }
    }
}

impl Edits {
    fn add(&mut self, device: &str, edits: &ContainerEdits) -> Result<(), CdiError> {
        let unsupported = |what: String| CdiError::Unsupported { device: device.to_owned(), what };
        for (is_there, what) in
            [(!edits.net_devices.is_empty(), "network devices"), (edits.intel_rdt.is_some(), "intelRdt")]
        {
            if is_there {
                return Err(unsupported(what.into()));
            }
        }
        for (name, value) in edits.env.iter().filter_map(|v| v.split_once('=')) {
            self.env.retain(|(n, _)| n != name);
            self.env.push((name.to_owned(), value.to_owned()));
        }
        for node in &edits.device_nodes {
            let node = device_node(node).map_err(unsupported)?;
            self.devices.retain(|d| d.target != node.target);
            self.devices.push(node);
        }
        for mount in &edits.mounts {
            let mount = bind(mount).map_err(unsupported)?;
            self.mounts.retain(|m| m.target != mount.target);
            self.mounts.push(mount);
        }
        for hook in &edits.hooks {
            let of_moment = match hook.hook_name.as_str() {
                "prestart" => &mut self.hooks.prestart,
                "createRuntime" => &mut self.hooks.create_runtime,
                "createContainer" => &mut self.hooks.create_container,
                "startContainer" => &mut self.hooks.start_container,
                "poststart" => &mut self.hooks.poststart,
                "poststop" => &mut self.hooks.poststop,
                other => return Err(unsupported(format!("the hook {other:?}"))),
            };
            of_moment.push(program(hook).map_err(unsupported)?);
        }
        // Outer mounts first.
        self.mounts.sort_by_key(|m| m.target.components().count());
        self.groups.extend(edits.additional_gids.iter().filter(|g| **g != 0));
        Ok(())
    }
}

/// The request for a device node. Errors with what cannot be carried out.
fn device_node(node: &DeviceNode) -> Result<DeviceRequest, String> {
    if node.kind == "p" {
        return Err("a pipe as device node".into());
    }
    if node.permissions == NO_PERMISSIONS {
        return Err("a device node without permissions".into());
    }
    let host = PathBuf::from(if node.host_path.is_empty() { &node.path } else { &node.host_path });
    // The node of the host decides. Where there is none, the runtime says so.
    if let Some(found) = std::fs::metadata(&host).ok().filter(|_| node.major != 0) {
        let number = (nix::sys::stat::major(found.rdev()), nix::sys::stat::minor(found.rdev()));
        if (i64::try_from(number.0), i64::try_from(number.1)) != (Ok(node.major), Ok(node.minor)) {
            return Err(format!("a device number other than that of {}", host.display()));
        }
    }
    Ok(DeviceRequest {
        host,
        target: (&node.path).into(),
        permissions: if node.permissions.is_empty() { "rwm".to_owned() } else { node.permissions.clone() },
        mode: node.file_mode,
        uid: node.uid,
        gid: node.gid,
        for_user: true,
    })
}

/// The program of a hook. Errors with what cannot be carried out.
fn program(hook: &Hook) -> Result<runtime::Hook, String> {
    let path = PathBuf::from(&hook.path);
    if !path.is_absolute() {
        return Err(format!("the hook path {:?}, which is not absolute,", hook.path));
    }
    let timeout = match hook.timeout {
        None => None,
        Some(seconds) => match u64::try_from(seconds) {
            Ok(seconds) if seconds > 0 => Some(seconds),
            _ => return Err(format!("the hook timeout {seconds}")),
        },
    };
    Ok(runtime::Hook { path, args: hook.args.clone(), env: hook.env.clone(), timeout })
}

/// The bind mount. Errors with what cannot be carried out.
fn bind(mount: &MountEdit) -> Result<runtime::Mount, String> {
    if !matches!(mount.kind.as_str(), "" | "bind" | "none") {
        return Err(format!("a mount of type {:?}", mount.kind));
    }
    let mut out = runtime::Mount::bind(&mount.host_path, &mount.container_path);
    let mut options = MountOptions::default();
    for option in &mount.options {
        match option.as_str() {
            "ro" => out.read_only = true,
            "rw" => out.read_only = false,
            "rslave" | "slave" => out.propagation = runtime::Propagation::HostToContainer,
            "rprivate" | "private" => out.propagation = runtime::Propagation::Private,
            "nosuid" => options.no_suid = true,
            "suid" => options.no_suid = false,
            "noexec" => options.no_exec = true,
            "exec" => options.no_exec = false,
            // Mounts of containers have these without asking.
            "bind" | "rbind" | "nodev" | "relatime" => {}
            other => return Err(format!("the mount option {other:?}")),
        }
    }
    out.options = options;
    Ok(out)
}

fn read_file(path: &Path) -> Result<Spec, String> {
    let length = std::fs::metadata(path).map_err(|e| e.to_string())?.len();
    if length > MAX_BYTES {
        return Err(format!("it has {length} bytes"));
    }
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let (document, _) = codec::yaml::parse_first(&text, codec::yaml::DEPTH_LIMIT).map_err(|e| e.to_string())?;
    let spec: Spec = serde_json::from_value(document).map_err(|e| format!("failed to unmarshal CDI Spec: {e}"))?;
    spec.validate().map_err(|e| format!("invalid CDI Spec: {e}"))?;
    Ok(spec)
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
            let text = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
            std::fs::write(path, text).unwrap();
        }
        Registry::read(&[directory.path().join("etc"), directory.path().join("run")])
    }

    fn spec(kind: &str, device: &str, edits: Value) -> Value {
        json!({"cdiVersion": "1.1.0", "kind": kind, "devices": [{"name": device, "containerEdits": edits}]})
    }

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn devices_add_to_containers() {
        let node = json!({"path": "/dev/gpu", "hostPath": "/dev/null", "permissions": "rw", "type": "c", "major": 1, "minor": 3,
            "fileMode": 0o660, "uid": 5, "gid": 6});
        let options = ["ro", "nosuid", "nodev", "rbind", "rprivate", "noexec"];
        let mut gpu = spec(
            "example.com/gpu",
            "a",
            json!({"env": ["GPU=a"], "deviceNodes": [node, {"path": "/dev/zero"}],
                "mounts": [{"hostPath": "/lib/gpu/x", "containerPath": "/usr/lib/gpu/x", "options": options},
                    {"hostPath": "/lib/gpu", "containerPath": "/usr/lib/gpu"}],
                "hooks": [
                    {"hookName": "createContainer", "path": "/usr/bin/gpu", "args": ["gpu", "ldcache"], "env": ["A=b"], "timeout": 9},
                    {"hookName": "poststop", "path": "/usr/bin/gpu-off"}
                ],
                "additionalGids": [0, 7]}),
        );
        gpu["containerEdits"] = json!({"env": ["KIND=gpu", "GPU=none"],
            "hooks": [{"hookName": "createContainer", "path": "/usr/bin/all"}]});
        gpu["devices"].as_array_mut().unwrap().push(json!({"name": "b", "containerEdits": {"env": ["SECOND=b"]}}));
        let registry = registry(&[("etc/gpu.json", gpu), ("etc/other.txt", json!("no specification"))]);
        let edits = registry.edits(&names(&["example.com/gpu=a", "example.com/gpu=b"])).unwrap();
        let variables: Vec<String> = edits.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(variables, ["KIND=gpu", "GPU=a", "SECOND=b"]);
        let expected = DeviceRequest {
            host: "/dev/null".into(),
            target: "/dev/gpu".into(),
            permissions: "rw".into(),
            mode: Some(0o660),
            uid: Some(5),
            gid: Some(6),
            for_user: true,
        };
        assert_eq!(edits.devices[0], expected);
        assert_eq!((&*edits.devices[1].permissions, edits.devices[1].mode), ("rwm", None));
        let [outer, inner] = &edits.mounts[..] else { panic!("{:?}", edits.mounts) };
        assert_eq!((outer.target.to_str(), outer.read_only), (Some("/usr/lib/gpu"), false));
        assert!(inner.read_only && inner.options == MountOptions { no_suid: true, no_exec: true });
        assert_eq!(edits.groups, [7]);
        let [all, ldcache] = &edits.hooks.create_container[..] else { panic!("{:?}", edits.hooks) };
        assert_eq!(all.path.to_str(), Some("/usr/bin/all"), "the kind's comes first, once");
        assert_eq!((ldcache.args.len(), ldcache.env.len(), ldcache.timeout), (2, 1, Some(9)));
        assert_eq!((edits.hooks.iter().count(), edits.hooks.poststop.len()), (3, 1));
    }

    #[test]
    fn what_cannot_be_applied_is_refused() {
        let with_node = |kind: &str, node: Value| spec(kind, "a", json!({"deviceNodes": [node]}));
        let with_mount = |kind: &str, more: Value| {
            let mut mount = json!({"hostPath": "/a", "containerPath": "/b"});
            mount.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec(kind, "a", json!({"mounts": [mount]}))
        };
        let env = |value: &str| json!({"env": [format!("FROM={value}")]});
        let files = [
            (
                "etc/a.json",
                spec("example.com/net", "a", json!({"netDevices": [{"hostInterfaceName": "eth1", "name": "e"}]})),
            ),
            (
                "etc/h.yaml",
                spec("example.com/hook", "a", json!({"hooks": [{"hookName": "createRuntime", "path": "x"}]})),
            ),
            (
                "etc/late.yaml",
                spec("example.com/late", "a", json!({"hooks": [{"hookName": "poststop", "path": "/x", "timeout": 0}]})),
            ),
            ("etc/rdt.yaml", spec("example.com/rdt", "a", json!({"intelRdt": {"closID": "x"}}))),
            ("etc/n.json", with_node("example.com/none", json!({"path": "/dev/null", "permissions": "none"}))),
            ("etc/p.json", with_node("example.com/pipe", json!({"path": "/dev/pipe", "type": "p"}))),
            ("etc/o.json", with_node("example.com/other", json!({"path": "/dev/null", "major": 1, "minor": 5}))),
            ("etc/t.json", with_mount("example.com/tmpfs", json!({"type": "tmpfs"}))),
            ("etc/s.json", with_mount("example.com/shared", json!({"options": ["rshared"]}))),
            ("etc/1.json", spec("example.com/twice", "a", env("1"))),
            ("etc/2.json", spec("example.com/twice", "a", env("2"))),
            ("etc/low.json", spec("example.com/low", "a", env("etc"))),
            ("run/high.json", spec("example.com/low", "a", env("run"))),
        ];
        let registry = registry(&files);
        let error = |name: &str| registry.edits(&names(&[&format!("example.com/{name}=a")])).unwrap_err().to_string();
        for (name, what) in [
            ("net", "network devices"),
            ("hook", "the hook path \"x\", which is not absolute,"),
            ("late", "the hook timeout 0"),
            ("rdt", "intelRdt"),
            ("none", "a device node without permissions"),
            ("pipe", "a pipe as device node"),
            ("other", "a device number other than that of /dev/null"),
            ("tmpfs", "a mount of type \"tmpfs\""),
            ("shared", "the mount option \"rshared\""),
        ] {
            assert_eq!(
                error(name),
                format!("CDI device example.com/{name}=a: {what} cannot be carried out by this node")
            );
        }
        let twice = error("twice");
        assert!(
            twice.starts_with("failed to inject CDI devices: unresolvable CDI devices example.com/twice=a (left out: ")
                && twice.ends_with("/etc/2.json: conflicting device \"example.com/twice=a\")"),
            "{twice}"
        );
        let low = registry.edits(&names(&["example.com/low=a"])).unwrap();
        assert_eq!(low.env, [("FROM".to_owned(), "run".to_owned())]);
    }

    /// A driver that writes nonsense affects no other.
    #[test]
    fn invalid_files_are_left_out_and_named() {
        let good = spec("example.com/good", "a", json!({"env": ["A=b"]}));
        let mut old = spec("example.com/old", "a", json!({"additionalGids": [7]}));
        old["cdiVersion"] = "0.6.0".into();
        let mut typo = spec("example.com/typo", "a", json!({"env": ["A=b"]}));
        typo["devices"][0]["containerEdits"]["deviceNode"] = json!([]);
        let files = [
            ("etc/broken.json", json!("{\"cdiVersion\": ")),
            ("etc/good.json", good),
            ("etc/old.json", old),
            ("etc/typo.yaml", typo),
            ("etc/empty.json", json!("")),
        ];
        let registry = registry(&files);
        assert!(registry.edits(&names(&["example.com/good=a"])).is_ok());
        let error = registry.edits(&names(&["example.com/old=a", "example.com/typo=a"])).unwrap_err().to_string();
        assert!(
            error.contains("unresolvable CDI devices example.com/old=a, example.com/typo=a (left out: "),
            "{error}"
        );
        assert!(error.contains("old.json: invalid CDI Spec: the spec version must be at least v0.7.0"), "{error}");
        assert!(error.ends_with(", …)"), "{error}");
        let many: Vec<String> = (0..50_000).map(|n| format!("example.com/old={n}")).collect();
        let error = registry.edits(&many).unwrap_err().to_string();
        assert!(error.contains("=7 and 49992 others (left out: ") && error.len() < 4096, "{error}");
        assert_eq!(registry.invalid.len(), 4, "{:?}", registry.invalid);
        assert!(registry.invalid.iter().any(|e| e.contains("typo.yaml") && e.contains("unknown field `deviceNode`")));
    }
}
