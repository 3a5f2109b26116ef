//! Validation of volume sources that pods and PersistentVolumes share: rules over several fields, and differences
//! between the two. Rules that take a single field are in the description.

use super::projected::order_errors_at;
use crate::read::{delegated, items, text};
use crate::storage::driver_name;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value, names};
use regex::Regex;
use std::sync::LazyLock;

/// The object that a source belongs to. PersistentVolumes specify the namespaces of secrets.
#[derive(Clone, Copy, PartialEq)]
pub enum Owner {
    Pod,
    PersistentVolume,
}

pub const PORTAL_MAX: usize = 64;
pub const PORTAL_TOO_LONG: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";

impl Owner {
    /// Returns the definition that contains the source.
    fn definition(self) -> &'static str {
        match self {
            Self::Pod => "io.k8s.api.core.v1.Volume",
            Self::PersistentVolume => "io.k8s.api.core.v1.PersistentVolumeSpec",
        }
    }
}

/// Validates the source `kind` of a volume, or of the specification of a PersistentVolume, at `path`.
pub fn validate(volume: &Value, kind: &str, owner: Owner, path: &FieldPath, errors: &mut ErrorList) {
    if kind == "gcePersistentDisk" {
        return gce_persistent_disk(&volume[kind], path, errors);
    }
    delegated(volume, owner.definition(), kind, path, errors);
    rules(kind, &volume[kind], owner, &path.child(kind), errors);
}

/// Upstream reports these fields under `persistentDisk`.
fn gce_persistent_disk(s: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let definition = "io.k8s.api.core.v1.GCEPersistentDiskVolumeSource";
    for field in ["pdName", "partition"] {
        order_errors_at(&path.child("gcePersistentDisk").child(field), errors, |errors| {
            delegated(s, definition, field, &path.child("persistentDisk"), errors);
        });
    }
}

/// Validates a source; `at` is its path.
fn rules(kind: &str, s: &Value, owner: Owner, at: &FieldPath, errors: &mut ErrorList) {
    match kind {
        "hostPath" if !text(s, "path").is_empty() => {
            delegated(s, "io.k8s.api.core.v1.HostPathVolumeSource", "type", at, errors);
        }
        "nfs" if !text(s, "path").starts_with('/') => {
            errors.push(FieldError::invalid(&at.child("path"), text(s, "path"), "must be an absolute path"));
        }
        "iscsi" => iscsi(s, owner, at, errors),
        "glusterfs" => {
            if let Some(ns) = s["endpointsNamespace"].as_str() {
                let at = at.child("endpointsNamespace");
                if ns.is_empty() {
                    let why = "if the endpointnamespace is set, it must be a valid namespace name";
                    errors.push(FieldError::invalid(&at, ns, why));
                } else {
                    errors.extend(names::dns_label(ns).into_iter().map(|m| FieldError::invalid(&at, ns, m)));
                }
            }
        }
        "flocker" => flocker(s, at, errors),
        "cinder" | "storageos" => {
            secret(&s["secretRef"], owner, &at.child("secretRef"), errors);
        }
        "quobyte" => quobyte(s, at, errors),
        "fc" => fibre_channel(s, at, errors),
        "flexVolume" => {
            for (k, _) in s["options"].as_object().into_iter().flatten() {
                let domain = k.split_once('/').map_or(k.as_str(), |(ns, _)| ns);
                let domain = format!(".{}", domain.to_lowercase());
                if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
                    let why = "kubernetes.io and k8s.io namespaces are reserved";
                    errors.push(FieldError::invalid(&at.child("options").key(k), k.as_str(), why));
                }
            }
        }
        "azureFile" if s["secretNamespace"] == "" => {
            errors.push(FieldError::required(&at.child("secretNamespace"), ""));
        }
        "azureDisk" => azure_disk(s, at, errors),
        "csi" => csi(s, owner, at, errors),
        _ => {}
    }
}

static IQN: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"iqn\.\d{4}-\d{2}\.([[:alnum:]\-.]+)(:[^,;*&$|\s]+)$").ok());
static EUI: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("^eui.[[:alnum:]]{16}$").ok());
static NAA: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("^naa.[[:alnum:]]{32}$").ok());

/// Whether an iSCSI name has a valid prefix, and is valid.
fn qualified(name: &str) -> (bool, bool) {
    let shape = match name.get(..3) {
        Some("iqn") => &IQN,
        Some("eui") => &EUI,
        Some("naa") => &NAA,
        _ => return (false, false),
    };
    (true, shape.as_ref().is_some_and(|r| r.is_match(name)))
}

fn iscsi(s: &Value, owner: Owner, at: &FieldPath, errors: &mut ErrorList) {
    let detail = |begins: bool| match (begins, owner) {
        (false, Owner::Pod) => "must be valid format starting with iqn, eui, or naa",
        _ => "must be valid format",
    };
    let iqn = text(s, "iqn");
    if !iqn.is_empty()
        && let (begins, false) = qualified(iqn)
    {
        errors.push(FieldError::invalid(&at.child("iqn"), iqn, detail(begins)));
    }
    let chap = s["chapAuthDiscovery"] == true || s["chapAuthSession"] == true;
    if chap && !s["secretRef"].is_object() {
        errors.push(FieldError::required(&at.child("secretRef"), ""));
    }
    if owner == Owner::PersistentVolume && s["secretRef"].is_object() && text(&s["secretRef"], "name").is_empty() {
        errors.push(FieldError::required(&at.child("secretRef").child("name"), ""));
    }
    if let Some(name) = s["initiatorName"].as_str()
        && let (begins, false) = qualified(name)
    {
        errors.push(FieldError::invalid(&at.child("initiatorname"), name, detail(begins)));
    }
}

fn flocker(s: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let (name, uuid) = (text(s, "datasetName"), text(s, "datasetUUID"));
    if name.is_empty() && uuid.is_empty() {
        errors.push(FieldError::required(at, "one of datasetName and datasetUUID is required"));
    }
    if !name.is_empty() && !uuid.is_empty() {
        let why = "datasetName and datasetUUID can not be specified simultaneously";
        errors.push(FieldError::invalid(at, "resource", why));
    }
    if name.contains('/') {
        errors.push(FieldError::invalid(&at.child("datasetName"), name, "must not contain '/'"));
    }
}

/// Validates a secret reference: a name, and in a PersistentVolume a namespace.
fn secret(s: &Value, owner: Owner, at: &FieldPath, errors: &mut ErrorList) {
    let parts: &[&str] = if owner == Owner::Pod { &["name"] } else { &["name", "namespace"] };
    for k in parts.iter().filter(|k| s.is_object() && text(s, k).is_empty()) {
        errors.push(FieldError::required(&at.child(k), ""));
    }
}

fn quobyte(s: &Value, at: &FieldPath, errors: &mut ErrorList) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = text(s, "registry");
    let plain = |s: &str| !s.contains([':', '[', ']']);
    let pair = |p: &str| {
        p.rsplit_once(':').is_some_and(|(host, port)| {
            let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
            plain(port) && bracketed.map_or(plain(host), |h| !h.contains(['[', ']']))
        })
    };
    if registry.is_empty() {
        errors.push(FieldError::required(&at.child("registry"), PAIRS));
    } else if text(s, "tenant").len() >= 65 {
        let why = "must be a UUID and may not exceed a length of 64 characters";
        errors.push(FieldError::required(&at.child("tenant"), why));
    } else {
        let bad = registry.split(',').filter(|p| !pair(p));
        errors.extend(bad.map(|_| FieldError::invalid(&at.child("registry"), registry, PAIRS)));
    }
}

fn fibre_channel(s: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let (targets, ids) = (items(s, "targetWWNs"), items(s, "wwids"));
    let at_targets = at.child("targetWWNs");
    if targets.is_empty() && ids.is_empty() {
        let why = "must specify either targetWWNs or wwids, but not both";
        errors.push(FieldError::required(&at_targets, why));
    }
    if targets.is_empty() {
        return;
    }
    if !ids.is_empty() {
        let why = "targetWWNs and wwids can not be specified simultaneously";
        errors.push(FieldError::invalid(&at_targets, targets, why));
    }
    match s["lun"].as_i64() {
        None => errors.push(FieldError::required(&at.child("lun"), "lun is required if targetWWNs is specified")),
        Some(n) if !(0..=255).contains(&n) => {
            errors.push(FieldError::invalid(&at.child("lun"), n, "must be between 0 and 255, inclusive"));
        }
        Some(_) => {}
    }
}

fn azure_disk(s: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let uri = text(s, "diskURI");
    let expected = match s["kind"].as_str() {
        Some("Managed") if !uri.starts_with("/subscriptions/") => {
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"
        }
        Some(kind) if kind != "Managed" && !uri.starts_with("https://") => {
            "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
        }
        _ => return,
    };
    errors.push(FieldError::not_supported(&at.child("diskURI"), uri, &[expected]).ordered_at(&at.child("kind")));
}

/// Secret references of a CSI PersistentVolume.
const CSI_SECRETS: [&str; 4] =
    ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"];

fn csi(s: &Value, owner: Owner, at: &FieldPath, errors: &mut ErrorList) {
    if text(s, "driver").is_empty() {
        errors.push(FieldError::required(&at.child("driver"), ""));
    }
    driver_name(text(s, "driver"), &at.child("driver"), errors);
    if owner == Owner::Pod {
        let r = &s["nodePublishSecretRef"];
        let name = text(r, "name");
        if r.is_object() && name.is_empty() {
            errors.push(FieldError::required(&at.child("nodePublishSecretRef").child("name"), ""));
        } else if r.is_object() {
            let bad = names::dns_subdomain(name);
            errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child("name"), name, m)));
        }
        return;
    }
    for key in CSI_SECRETS.into_iter().filter(|k| s[*k].is_object()) {
        let at = at.child(key);
        for (part, check) in
            [("name", names::dns_subdomain as fn(&str) -> Vec<String>), ("namespace", names::dns_label)]
        {
            let v = text(&s[key], part);
            if v.is_empty() {
                errors.push(FieldError::required(&at.child(part), ""));
            } else {
                errors.extend(check(v).into_iter().map(|m| FieldError::invalid(&at.child(part), v, m)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Case, check_pod_spec};
    use serde_json::{Value, json};

    /// Checks the errors of a volume of one kind; their paths are relative to the source.
    fn check(kind: &str, cases: &[(Value, &[&str])]) {
        for (source, errors) in cases {
            let errors: Vec<String> = errors.iter().map(|e| format!("volumes[0].{kind}{e}")).collect();
            let errors: Vec<&str> = errors.iter().map(String::as_str).collect();
            let case: Case<'_> = ("/volumes", json!([{"name": "v", kind: source}]), &errors);
            check_pod_spec(&[case]);
        }
    }

    #[test]
    fn validates_block_devices() {
        let iscsi = |more: Value| {
            let mut s = json!({"targetPortal": "p", "iqn": "iqn.2015-02.example.com:test", "lun": 0});
            more.as_object().into_iter().flatten().for_each(|(k, v)| s[k] = v.clone());
            s
        };
        let format = "must be valid format";
        check(
            "iscsi",
            &[
                (iscsi(json!({})), &[]),
                (iscsi(json!({"iqn": "iqn.2015"})), &[&format!(".iqn: Invalid value: \"iqn.2015\": {format}")]),
                (iscsi(json!({"chapAuthSession": true})), &[".secretRef: Required value"]),
                (iscsi(json!({"chapAuthSession": true, "secretRef": {"name": "s"}})), &[]),
                (iscsi(json!({"initiatorName": "eui.0123456789abcdef"})), &[]),
                (
                    iscsi(json!({"initiatorName": "naa.1"})),
                    &[&format!(".initiatorname: Invalid value: \"naa.1\": {format}")],
                ),
            ],
        );
        let both = "targetWWNs and wwids can not be specified simultaneously";
        check(
            "fc",
            &[
                (json!({"targetWWNs": ["a"], "lun": 255}), &[]),
                (json!({"wwids": ["w"]}), &[]),
                (json!({}), &[".targetWWNs: Required value: must specify either targetWWNs or wwids, but not both"]),
                (
                    json!({"targetWWNs": ["a"], "wwids": ["w"], "lun": 0}),
                    &[&format!(".targetWWNs: Invalid value: [\"a\"]: {both}")],
                ),
                (
                    json!({"targetWWNs": ["a"], "lun": 256}),
                    &[".lun: Invalid value: 256: must be between 0 and 255, inclusive"],
                ),
            ],
        );
        let disk = |kind: &str, uri: &str| json!({"kind": kind, "diskName": "d", "diskURI": uri});
        check(
            "azureDisk",
            &[
                (disk("Managed", "/subscriptions/a"), &[]),
                (disk("Dedicated", "https://a"), &[]),
                (disk("Managed", "/s"), &[".diskURI: Unsupported value: \"/s\": supported values: …"]),
                (disk("Shared", "http://a"), &[".diskURI: Unsupported value: \"http://a\": supported values: …"]),
            ],
        );
    }

    #[test]
    fn validates_file_systems_and_drivers() {
        let resource = "datasetName and datasetUUID can not be specified simultaneously";
        check(
            "flocker",
            &[
                (json!({"datasetName": "a"}), &[]),
                (json!({}), &[": Required value: one of datasetName and datasetUUID is required"]),
                (
                    json!({"datasetName": "a", "datasetUUID": "b"}),
                    &[&format!(": Invalid value: \"resource\": {resource}")],
                ),
                (json!({"datasetName": "a/b"}), &[".datasetName: Invalid value: \"a/b\": must not contain '/'"]),
            ],
        );
        let pairs = "must be a host:port pair or multiple pairs separated by commas";
        check(
            "quobyte",
            &[
                (json!({"registry": "a:1,[::1]:2", "volume": "v"}), &[]),
                (json!({"registry": "", "volume": "v"}), &[&format!(".registry: Required value: {pairs}")]),
                (json!({"registry": "a", "volume": "v"}), &[&format!(".registry: Invalid value: \"a\": {pairs}")]),
                (
                    json!({"registry": "a:1", "volume": "v", "tenant": "t".repeat(65)}),
                    &[".tenant: Required value: must be a UUID and may not exceed a length of 64 characters"],
                ),
            ],
        );
        let reserved = "kubernetes.io and k8s.io namespaces are reserved";
        check(
            "flexVolume",
            &[
                (json!({"driver": "a/b", "options": {"a.example/b": "c", "kubernetes.io.example/b": ""}}), &[]),
                (
                    json!({"driver": "a/b", "options": {"x.K8S.io/b": "c"}}),
                    &[&format!(".options[x.K8S.io/b]: Invalid value: \"x.K8S.io/b\": {reserved}")],
                ),
            ],
        );
        check(
            "csi",
            &[
                (json!({"driver": "d.example", "nodePublishSecretRef": {"name": "s"}}), &[]),
                (
                    json!({"driver": "d.example", "nodePublishSecretRef": {}}),
                    &[".nodePublishSecretRef.name: Required value"],
                ),
                (
                    json!({"driver": "d.example", "nodePublishSecretRef": {"name": "S"}}),
                    &[".name: Invalid value: \"S\": a lowercase RFC 1123 subdomain…"],
                ),
            ],
        );
    }
}
