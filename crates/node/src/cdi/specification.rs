//! The files of the Container Device Interface: their types, versions and rules (`specs-go` and `pkg/cdi` of
//! `tags.cncf.io/container-device-interface`). Decoding is strict: an unknown field may be one without which a device does not work.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// Known versions of the specification. What is not in the version that a file names is an error.
const VERSIONS: [(u32, u32); 10] = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6), (0, 7), (0, 8), (1, 0), (1, 1)];
const HOOKS: [&str; 6] = ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];
/// The permissions of a device that the container sees but may not open.
pub const NO_PERMISSIONS: &str = "none";

/// A file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Spec {
    pub cdi_version: String,
    pub kind: String,
    pub annotations: BTreeMap<String, String>,
    pub devices: Vec<Device>,
    pub container_edits: ContainerEdits,
}

/// A device of the kind of its file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Device {
    pub name: String,
    pub annotations: BTreeMap<String, String>,
    pub container_edits: ContainerEdits,
}

/// What a container needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ContainerEdits {
    pub env: Vec<String>,
    pub device_nodes: Vec<DeviceNode>,
    pub net_devices: Vec<NetDevice>,
    pub mounts: Vec<MountEdit>,
    pub hooks: Vec<Hook>,
    pub intel_rdt: Option<IntelRdt>,
    pub additional_gids: Vec<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct DeviceNode {
    pub path: String,
    pub host_path: String,
    /// `b`, `c`, `u` (a character device), or `p` (a pipe).
    #[serde(rename = "type")]
    pub kind: String,
    pub major: i64,
    pub minor: i64,
    pub file_mode: Option<u32>,
    pub permissions: String,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct NetDevice {
    pub host_interface_name: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct MountEdit {
    pub host_path: String,
    pub container_path: String,
    pub options: Vec<String>,
    #[serde(rename = "type")]
    pub kind: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Hook {
    pub hook_name: String,
    pub path: String,
    pub args: Vec<String>,
    pub env: Vec<String>,
    pub timeout: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IntelRdt {
    #[serde(rename = "closID")]
    pub clos_id: String,
    #[serde(rename = "l3CacheSchema")]
    pub l3_cache_schema: String,
    #[serde(rename = "memBwSchema")]
    pub mem_bw_schema: String,
    pub schemata: Vec<String>,
    #[serde(rename = "enableMonitoring")]
    pub enable_monitoring: bool,
    #[serde(rename = "enableCMT")]
    pub enable_cmt: bool,
    #[serde(rename = "enableMBM")]
    pub enable_mbm: bool,
}

/// Whether a text begins with a character of one kind, ends with a letter or digit, and has no others than letters, digits and `more`.
fn has_form(text: &str, begins: fn(&char) -> bool, more: &str) -> bool {
    text.chars().next().is_some_and(|c| begins(&c))
        && text.chars().next_back().is_some_and(|c| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
}

/// Vendor and class of a kind, if it has the form `vendor.com/class`.
fn kind_parts(kind: &str) -> Option<(&str, &str)> {
    let (vendor, class) = kind.split_once('/')?;
    let is_name = |text: &str| has_form(text, char::is_ascii_alphabetic, "_-.");
    (is_name(vendor) && is_name(class)).then_some((vendor, class))
}

fn is_device_name(name: &str) -> bool {
    has_form(name, char::is_ascii_alphanumeric, "_-.:")
}

/// Whether a name has the form `vendor.com/class=device`.
pub fn is_qualified(name: &str) -> bool {
    name.split_once('=').is_some_and(|(kind, device)| kind_parts(kind).is_some() && is_device_name(device))
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix('v').unwrap_or(text).split('.');
    let mut number = || parts.next()?.parse::<u32>().ok();
    let found = (number()?, number()?);
    (number() == Some(0) && parts.next().is_none() && VERSIONS.contains(&found)).then_some(found)
}

impl Spec {
    /// The edits of the file and of its devices.
    fn edits(&self) -> impl Iterator<Item = &ContainerEdits> {
        [&self.container_edits].into_iter().chain(self.devices.iter().map(|d| &d.container_edits))
    }

    /// The first version that has everything that is in the file.
    fn needs_version(&self) -> (u32, u32) {
        let any = |is: fn(&ContainerEdits) -> bool| self.edits().any(is);
        let rdt = |r: &IntelRdt| !r.schemata.is_empty() || r.enable_monitoring;
        let has_dot = kind_parts(&self.kind).is_some_and(|(_, class)| class.contains('.'));
        if any(|e| !e.net_devices.is_empty()) || self.edits().any(|e| e.intel_rdt.as_ref().is_some_and(rdt)) {
            (1, 1)
        } else if any(|e| e.intel_rdt.is_some() || !e.additional_gids.is_empty()) {
            (0, 7)
        } else if has_dot || !self.annotations.is_empty() || self.devices.iter().any(|d| !d.annotations.is_empty()) {
            (0, 6)
        } else if any(|e| e.device_nodes.iter().any(|n| !n.host_path.is_empty()))
            || self.devices.iter().any(|d| !d.name.starts_with(|c: char| c.is_ascii_alphabetic()))
        {
            (0, 5)
        } else if any(|e| e.mounts.iter().any(|m| !m.kind.is_empty())) {
            (0, 4)
        } else {
            (0, 3)
        }
    }

    /// Errors with the first violation of a rule.
    pub fn validate(&self) -> Result<(), String> {
        let Some(version) = version(&self.cdi_version) else {
            return Err(format!("invalid version {:?}", self.cdi_version));
        };
        let (major, minor) = self.needs_version();
        if version < (major, minor) {
            return Err(format!("the spec version must be at least v{major}.{minor}.0"));
        }
        if kind_parts(&self.kind).is_none() {
            return Err(format!("invalid kind {:?}", self.kind));
        }
        self.container_edits.validate()?;
        let mut names = BTreeSet::new();
        for device in &self.devices {
            let name = &device.name;
            let failed = |why: String| format!("failed add device {name:?}: {why}");
            if !is_device_name(name) {
                return Err(failed("invalid name".into()));
            }
            if device.container_edits == ContainerEdits::default() {
                return Err(failed("invalid device, empty device edits".into()));
            }
            device.container_edits.validate().map_err(failed)?;
            if !names.insert(name) {
                return Err(format!("invalid spec, multiple device {name:?}"));
            }
        }
        if names.is_empty() { Err("invalid spec, no devices".into()) } else { Ok(()) }
    }
}

/// Errors unless all are `NAME=VALUE`.
fn validate_env(env: &[String]) -> Result<(), String> {
    match env.iter().find(|v| v.split_once('=').is_none_or(|(name, _)| name.is_empty())) {
        Some(variable) => Err(format!("invalid environment variable {variable:?}")),
        None => Ok(()),
    }
}

impl ContainerEdits {
    fn validate(&self) -> Result<(), String> {
        validate_env(&self.env).map_err(|e| format!("invalid container edits: {e}"))?;
        for d in &self.device_nodes {
            let path = &d.path;
            if path.is_empty() {
                return Err("invalid (empty) device path".into());
            }
            if !["", "b", "c", "u", "p"].contains(&d.kind.as_str()) {
                return Err(format!("device {path:?}: invalid type {:?}", d.kind));
            }
            if d.major < 0 || d.minor < 0 {
                return Err(format!("device {path:?}: invalid (negative) device number {}:{}", d.major, d.minor));
            }
            if d.permissions != NO_PERMISSIONS && d.permissions.chars().any(|c| !"rwm".contains(c)) {
                return Err(format!("device {path:?}: invalid permissions {:?}", d.permissions));
            }
        }
        for h in &self.hooks {
            if !HOOKS.contains(&h.hook_name.as_str()) {
                return Err(format!("invalid hook name {:?}", h.hook_name));
            }
            if h.path.is_empty() {
                return Err(format!("invalid hook {:?} with empty path", h.hook_name));
            }
            validate_env(&h.env).map_err(|e| format!("invalid hook {:?}: {e}", h.hook_name))?;
        }
        for m in &self.mounts {
            if m.host_path.is_empty() {
                return Err("invalid mount, empty host path".into());
            }
            if m.container_path.is_empty() {
                return Err("invalid mount, empty container path".into());
            }
        }
        if self.net_devices.iter().any(|d| d.host_interface_name.is_empty() || d.name.is_empty()) {
            return Err("invalid linux net device, empty HostInterfaceName or Name".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(mut file: Value, changes: Value) -> Result<(), String> {
        file.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let spec: Spec = serde_json::from_value(file).map_err(|e| e.to_string())?;
        spec.validate()
    }

    #[test]
    fn rules_and_versions_are_those_of_the_specification() {
        let device = |edits: Value| json!({"devices": [{"name": "a", "containerEdits": edits}]});
        let plain = json!({"cdiVersion": "0.3.0", "kind": "example.com/gpu"});
        let env = json!({"env": ["A=b"]});
        let node = |more: Value| {
            let mut node = json!({"path": "/dev/gpu"});
            node.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            device(json!({"deviceNodes": [node]}))
        };
        for (changes, expected) in [
            (device(env.clone()), ""),
            (json!({"devices": [], "cdiVersion": "1.0.0"}), "invalid spec, no devices"),
            (json!({"cdiVersion": "0.2.5"}), "invalid version \"0.2.5\""),
            (json!({"cdiVersion": "2.0.0"}), "invalid version \"2.0.0\""),
            (json!({"cdiVersion": ""}), "invalid version \"\""),
            (json!({"kind": "gpu"}), "invalid kind \"gpu\""),
            (json!({"kind": "1example/gpu"}), "invalid kind \"1example/gpu\""),
            (
                json!({"devices": [{"name": "a", "containerEdits": {}}]}),
                "failed add device \"a\": invalid device, empty device edits",
            ),
            (json!({"devices": [{"name": "a b", "containerEdits": env}]}), "failed add device \"a b\": invalid name"),
            (
                json!({"devices": [{"name": "a", "containerEdits": env}, {"name": "a", "containerEdits": env}]}),
                "invalid spec, multiple device \"a\"",
            ),
            // What later versions have brought.
            (json!({"devices": [{"name": "0", "containerEdits": env}]}), "the spec version must be at least v0.5.0"),
            (node(json!({"hostPath": "/dev/null"})), "the spec version must be at least v0.5.0"),
            (
                device(json!({"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "bind"}]})),
                "the spec version must be at least v0.4.0",
            ),
            (json!({"kind": "example.com/gpu.large"}), "the spec version must be at least v0.6.0"),
            (json!({"annotations": {"a": "b"}}), "the spec version must be at least v0.6.0"),
            (device(json!({"additionalGids": [1]})), "the spec version must be at least v0.7.0"),
            (device(json!({"intelRdt": {"closID": "x"}})), "the spec version must be at least v0.7.0"),
            (
                device(json!({"netDevices": [{"hostInterfaceName": "a", "name": "b"}]})),
                "the spec version must be at least v1.1.0",
            ),
            (
                device(json!({"env": ["A"]})),
                "failed add device \"a\": invalid container edits: invalid environment variable \"A\"",
            ),
            (node(json!({"type": "x"})), "failed add device \"a\": device \"/dev/gpu\": invalid type \"x\""),
            (
                node(json!({"major": -1})),
                "failed add device \"a\": device \"/dev/gpu\": invalid (negative) device number -1:0",
            ),
            (
                node(json!({"permissions": "rx"})),
                "failed add device \"a\": device \"/dev/gpu\": invalid permissions \"rx\"",
            ),
            (node(json!({"permissions": "none"})), ""),
            (
                device(json!({"hooks": [{"hookName": "later", "path": "/x"}]})),
                "failed add device \"a\": invalid hook name \"later\"",
            ),
            (
                device(json!({"mounts": [{"hostPath": "/a"}]})),
                "failed add device \"a\": invalid mount, empty container path",
            ),
        ] {
            let outcome = check(plain.clone(), changes.clone());
            assert_eq!(outcome.err().unwrap_or_default(), expected, "{changes}");
        }
        let unknown = check(plain, json!({"device": []})).unwrap_err();
        assert!(unknown.starts_with("unknown field `device`"), "{unknown}");
    }

    #[test]
    fn qualified_names_have_three_parts() {
        for (name, valid) in [
            ("a.b/c=d:1", true),
            ("a/b=0", true),
            ("a/b", false),
            ("a=b", false),
            ("a/b=", false),
            ("-a/b=c", false),
            ("1a/b=c", false),
            ("a/b=c d", false),
        ] {
            assert_eq!(is_qualified(name), valid, "{name}");
        }
    }
}
