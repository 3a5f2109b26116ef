//! Which claims get a volume of this node, what describes it, and when it is removed. Pure functions.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};
use std::path::Path;

use crate::file_volumes::{FileOptions, FileVolume, Format, is_volume_name};

/// The name of the provisioner in storage classes.
pub const PROVISIONER: &str = "kemudi.local/directory";
/// Keeps a volume until its directory is removed, as that of external provisioners.
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const HOSTNAME: &str = "kubernetes.io/hostname";

fn annotation<'a>(meta: &'a k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The name of the volume of a claim, and of its directory or file. None without a UID that is safe in a path.
pub fn volume_name(claim: &PersistentVolumeClaim) -> Option<String> {
    let name = format!("pvc-{}", claim.metadata.uid.as_deref()?);
    is_volume_name(&name).then_some(name)
}

/// Whether the claim waits for a volume of this node.
pub fn is_awaited(claim: &PersistentVolumeClaim, node: &str) -> bool {
    let meta = &claim.metadata;
    let volume = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
    meta.deletion_timestamp.is_none()
        && volume.is_empty()
        && annotation(meta, STORAGE_PROVISIONER) == Some(PROVISIONER)
        && annotation(meta, SELECTED_NODE) == Some(node)
}

/// What holds the files of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A directory, as large as the disk.
    Directory,
    /// A file of the size of the volume.
    File(FileOptions),
}

/// Why no volume can be made for a claim.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(String);

/// What holds the volume of a claim. Errors if the claim requests what volumes of nodes cannot be.
pub fn medium(claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<Medium, Refusal> {
    let refused = |why: &str| Err(Refusal(why.into()));
    let spec = claim.spec.clone().unwrap_or_default();
    if spec.selector.is_some() {
        return refused("claim.Spec.Selector is not supported");
    }
    let has_source = source(claim)?.is_some();
    let modes = spec.access_modes.unwrap_or_default();
    if let Some(mode) = modes.iter().find(|m| !matches!(m.as_str(), "ReadWriteOnce" | "ReadWriteOncePod")) {
        let why = "is not supported: a volume of a node is ReadWriteOnce or ReadWriteOncePod";
        return Err(Refusal(format!("access mode {mode} {why}")));
    }
    if class.mount_options.as_ref().is_some_and(|options| !options.is_empty()) {
        return refused("mount options are not supported");
    }
    let (mut is_file, mut file_system, mut allocation) = (false, None, None);
    for (name, value) in class.parameters.iter().flatten() {
        match (name.as_str(), value.as_str()) {
            ("type", "directory") => is_file = false,
            ("type", "file") => is_file = true,
            ("csi.storage.k8s.io/fstype" | "fsType", value) => file_system = Some(value),
            ("allocation", "sparse" | "full") => allocation = Some(value),
            ("type" | "allocation", value) => {
                return Err(Refusal(format!("invalid parameter {name:?} of the StorageClass: {value:?}")));
            }
            _ => return Err(Refusal(format!("unknown parameter {name:?} of the StorageClass"))),
        }
    }
    let is_block = spec.volume_mode.as_deref() == Some("Block");
    if has_source && !is_file {
        return refused("copies of claims need a StorageClass with the parameter type: file");
    }
    if !is_file {
        return match (is_block, file_system.is_some() || allocation.is_some()) {
            (true, _) => refused("block volumes need a StorageClass with the parameter type: file"),
            (_, true) => refused("parameters of the file system need the parameter type: file"),
            _ => Ok(Medium::Directory),
        };
    }
    let Some(format) = Format::parse(file_system.unwrap_or_default()) else {
        let name = file_system.unwrap_or_default();
        return Err(Refusal(format!("file system {name:?} is not supported: only ext4 and xfs are")));
    };
    let format = if is_block { Format::Raw } else { format };
    if has_source && format == Format::Xfs {
        return refused("copies of xfs are not supported");
    }
    Ok(Medium::File(FileOptions { format, is_preallocated: allocation.is_some_and(|a| a == "full") }))
}

/// Whether the volume is bound to the claim.
pub fn is_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
    reference.is_some_and(|r| r.uid.is_some() && r.uid == claim.metadata.uid)
}

/// The name of the claim, in the same namespace, whose contents the volume gets. Errors if it is not a claim.
pub fn source(claim: &PersistentVolumeClaim) -> Result<Option<String>, Refusal> {
    let Some(spec) = &claim.spec else { return Ok(None) };
    let (group, kind, name, namespace) = match (&spec.data_source_ref, &spec.data_source) {
        (Some(r), _) => (&r.api_group, &r.kind, &r.name, r.namespace.as_ref()),
        (None, Some(r)) => (&r.api_group, &r.kind, &r.name, None),
        (None, None) => return Ok(None),
    };
    if kind != "PersistentVolumeClaim" || group.as_ref().is_some_and(|g| !g.is_empty()) {
        return Err(Refusal(format!(
            "data sources of the kind {kind} are not supported: only PersistentVolumeClaim is"
        )));
    }
    if namespace.is_some() && namespace != claim.metadata.namespace.as_ref() {
        return Err(Refusal("data sources of other namespaces are not supported".into()));
    }
    Ok(Some(name.clone()))
}

/// The volume of the claim `source`, if it can be copied into a file of this format and size. `volume`: None if it is not on this node.
pub fn copied<'a>(
    source: &str,
    volume: Option<&'a FileVolume>,
    (format, size): (Format, u64),
    source_size: u64,
) -> Result<&'a FileVolume, Refusal> {
    let Some(volume) = volume else {
        let why =
            "the volume of the source claim is not a file of this node: the first pod of a copy needs the same node";
        return Err(Refusal(format!("claim {source:?} cannot be copied: {why}")));
    };
    if volume.format != format {
        return Err(Refusal(format!(
            "claim {source:?} cannot be copied: its volume mode or file system is another one"
        )));
    }
    if source_size > size {
        return Err(Refusal(format!("claim {source:?} cannot be copied: it has {source_size} bytes, which is more")));
    }
    Ok(volume)
}

/// The bytes that a claim requests; 0 if that cannot be read.
pub fn requested(claim: &PersistentVolumeClaim) -> u64 {
    let requests = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref());
    bytes(requests.and_then(|r| r.get("storage")))
}

/// The bytes of a quantity; 0 for one that is missing or cannot be read.
pub fn bytes(quantity: Option<&Quantity>) -> u64 {
    let parsed = quantity.and_then(|q| meta::Quantity::parse(&q.0).ok());
    parsed.and_then(|q| u64::try_from(q.value()).ok()).unwrap_or(0)
}

/// The size of the volume of a claim that requests so much: in the claim's notation if it is the same.
pub fn capacity(medium: Medium, requested: &Quantity) -> Quantity {
    let Medium::File(options) = medium else { return requested.clone() };
    let requested_size = bytes(Some(requested));
    match options.format.size(requested_size) {
        size if size == requested_size => requested.clone(),
        size => Quantity(meta::Quantity::from_int(i64::try_from(size).unwrap_or(i64::MAX)).to_string()),
    }
}

/// The volume of a claim, at a path of this node.
pub fn volume(
    name: &str,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &str,
    (medium, path): (Medium, &Path),
) -> Value {
    let (meta, spec) = (&claim.metadata, claim.spec.clone().unwrap_or_default());
    let size = spec.resources.and_then(|r| r.requests?.get("storage").cloned());
    let size = size.map(|requested| capacity(medium, &requested));
    let policy = class.reclaim_policy.as_deref().unwrap_or("Delete");
    let here = json!({"key": HOSTNAME, "operator": "In", "values": [node]});
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": spec.access_modes,
            "volumeMode": spec.volume_mode.as_deref().unwrap_or("Filesystem"),
            "persistentVolumeReclaimPolicy": policy,
            "storageClassName": spec.storage_class_name,
            "volumeAttributesClassName": spec.volume_attributes_class_name,
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta.namespace, "name": meta.name,
                "uid": meta.uid, "resourceVersion": meta.resource_version},
            "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    });
    if let Medium::File(FileOptions { format, .. }) = medium
        && let Some(file_system) = format.file_system()
    {
        volume["spec"]["local"]["fsType"] = file_system.into();
    }
    if policy == "Delete" {
        volume["metadata"]["finalizers"] = json!([FINALIZER]);
    }
    volume
}

/// Whether a volume is one of this node: it has been provisioned here, and its path is one of `paths`, which belong to its name.
///
/// Users may create volumes that claim to be provisioned here: only what belongs to the name is ever changed or removed.
pub fn is_own(volume: &PersistentVolume, node: &str, paths: [&Path; 2]) -> bool {
    let (meta, spec) = (&volume.metadata, volume.spec.clone().unwrap_or_default());
    annotation(meta, PROVISIONED_BY) == Some(PROVISIONER)
        && is_volume_name(meta.name.as_deref().unwrap_or_default())
        && spec.local.as_ref().is_some_and(|l| paths.contains(&Path::new(&l.path)))
        && nodes(&spec).is_some_and(|nodes| nodes == [node])
}

/// The next step of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Keep,
    /// Remove the directory or the file, then the volume.
    Remove,
    /// The reclaim policy is `Delete`: add the finalizer, which others lack.
    AddFinalizer,
    /// The reclaim policy is another one: the data stay.
    RemoveFinalizer,
}

/// The step of a volume of this node.
pub fn step(volume: &PersistentVolume) -> Step {
    let (meta, spec) = (&volume.metadata, volume.spec.clone().unwrap_or_default());
    let is_deleting = meta.deletion_timestamp.is_some();
    let has_finalizer = meta.finalizers.iter().flatten().any(|f| f == FINALIZER);
    if spec.persistent_volume_reclaim_policy.as_deref() != Some("Delete") {
        return if has_finalizer { Step::RemoveFinalizer } else { Step::Keep };
    }
    match volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default() {
        "Released" | "Failed" if !is_deleting || has_finalizer => Step::Remove,
        // Deleted by a user while no claim has it.
        "Available" if is_deleting && has_finalizer => Step::Remove,
        _ if !is_deleting && !has_finalizer => Step::AddFinalizer,
        _ => Step::Keep,
    }
}

/// The host names to which the affinity of a volume of this provisioner restricts it.
fn nodes(spec: &k8s_openapi::api::core::v1::PersistentVolumeSpec) -> Option<Vec<String>> {
    let [term] = spec.node_affinity.as_ref()?.required.as_ref()?.node_selector_terms.as_slice() else { return None };
    let [here] = term.match_expressions.as_deref()? else { return None };
    (here.key == HOSTNAME && here.operator == "In").then(|| here.values.clone())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(changes: Value) -> PersistentVolumeClaim {
        let mut claim = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "1-2", "annotations": {
            STORAGE_PROVISIONER: PROVISIONER, SELECTED_NODE: "n"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "local", "resources": {"requests": {"storage": "1Gi"}}}});
        claim["spec"].as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        serde_json::from_value(claim).unwrap()
    }

    fn class(more: Value) -> StorageClass {
        let mut class = json!({"metadata": {"name": "local"}, "provisioner": PROVISIONER, "reclaimPolicy": "Delete"});
        class.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(class).unwrap()
    }

    #[test]
    fn claims_of_this_node_are_provisioned() {
        assert!(is_awaited(&claim(json!({})), "n"));
        assert!(!is_awaited(&claim(json!({})), "m"));
        assert!(!is_awaited(&claim(json!({"volumeName": "v"})), "n"));
        assert_eq!(volume_name(&claim(json!({}))).as_deref(), Some("pvc-1-2"));
        for name in ["pvc-", "pvc-..", "pvc-a/b", "x", "pvc-a.b"] {
            assert!(!is_volume_name(name), "{name}");
        }
    }

    #[test]
    fn a_class_selects_directory_or_file() {
        let file = |format, is_preallocated| Ok(Medium::File(FileOptions { format, is_preallocated }));
        let (mount, block) = (json!({}), json!({"volumeMode": "Block"}));
        for (parameters, changes, expected) in [
            (json!({}), &mount, Ok(Medium::Directory)),
            (json!({"type": "directory"}), &mount, Ok(Medium::Directory)),
            (json!({"type": "file"}), &mount, file(Format::Ext4, false)),
            (json!({"type": "file", "csi.storage.k8s.io/fstype": "xfs"}), &mount, file(Format::Xfs, false)),
            (json!({"type": "file", "fsType": "xfs", "allocation": "full"}), &mount, file(Format::Xfs, true)),
            (json!({"type": "file", "allocation": "sparse"}), &block, file(Format::Raw, false)),
        ] {
            let class = class(json!({"parameters": parameters}));
            assert_eq!(medium(&claim(changes.clone()), &class), expected, "{parameters}");
        }
        for (parameters, changes, why) in [
            (json!({}), &block, "block volumes need"),
            (json!({"fsType": "ext4"}), &mount, "need the parameter type: file"),
            (json!({"type": "file", "fsType": "btrfs"}), &mount, "\"btrfs\" is not supported"),
            (json!({"type": "disk"}), &mount, "invalid parameter \"type\""),
            (json!({"type": "file", "allocation": "thin"}), &mount, "invalid parameter \"allocation\""),
            (json!({"size": "1"}), &mount, "unknown parameter \"size\""),
        ] {
            let class = class(json!({"parameters": parameters}));
            let found = medium(&claim(changes.clone()), &class).unwrap_err().to_string();
            assert!(found.contains(why), "{parameters}: {found}");
        }
    }

    #[test]
    fn refuses_what_a_volume_of_a_node_cannot_be() {
        let plain = class(json!({}));
        assert!(medium(&claim(json!({"accessModes": ["ReadWriteOncePod"]})), &plain).is_ok());
        for changes in [
            json!({"selector": {}}),
            json!({"accessModes": ["ReadWriteMany"]}),
            json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "x"}}),
        ] {
            assert!(medium(&claim(changes.clone()), &plain).is_err(), "{changes}");
        }
        let files = class(json!({"parameters": {"type": "file"}}));
        let claimed = json!({"kind": "PersistentVolumeClaim", "name": "x"});
        let same = json!({"dataSource": claimed, "dataSourceRef": claimed});
        assert!(medium(&claim(same.clone()), &files).is_ok());
        assert_eq!(source(&claim(same)).unwrap().as_deref(), Some("x"));
        let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "x"});
        let elsewhere = json!({"kind": "PersistentVolumeClaim", "name": "x", "namespace": "other"});
        for changes in [json!({"dataSource": snapshot}), json!({"dataSourceRef": elsewhere})] {
            assert!(medium(&claim(changes.clone()), &files).is_err(), "{changes}");
        }
        assert!(medium(&claim(json!({})), &class(json!({"mountOptions": ["ro"]}))).is_err());
    }

    #[test]
    fn copies_are_of_the_same_kind_and_not_smaller() {
        let volume = FileVolume { name: "pvc-1".into(), format: Format::Ext4 };
        assert_eq!(copied("c", Some(&volume), (Format::Ext4, 2), 2), Ok(&volume));
        for (volume, target, why) in [
            (None, (Format::Ext4, 2), "is not a file of this node"),
            (Some(&volume), (Format::Raw, 2), "volume mode or file system"),
            (Some(&volume), (Format::Ext4, 1), "has 2 bytes, which is more"),
        ] {
            assert!(copied("c", volume, target, 2).unwrap_err().0.contains(why), "{why}");
        }
    }

    #[test]
    fn a_file_is_as_large_as_it_can_be() {
        let file = Medium::File(FileOptions { format: Format::Ext4, is_preallocated: false });
        let size = |medium, requested: &str| capacity(medium, &Quantity(requested.into())).0;
        assert_eq!(size(Medium::Directory, "1"), "1");
        assert_eq!(size(file, "10Mi"), "10Mi");
        assert_eq!(size(file, "1"), "1048576");
        let made = volume("pvc-1-2", &claim(json!({})), &class(json!({})), "n", (file, Path::new("/v/pvc-1-2.img")));
        assert_eq!(made["spec"]["local"], json!({"path": "/v/pvc-1-2.img", "fsType": "ext4"}));
        let raw = Medium::File(FileOptions { format: Format::Raw, is_preallocated: false });
        let block = claim(json!({"volumeMode": "Block"}));
        let made = volume("pvc-1-2", &block, &class(json!({})), "n", (raw, Path::new("/v/pvc-1-2.img")));
        assert_eq!((&made["spec"]["volumeMode"], &made["spec"]["local"]["fsType"]), (&json!("Block"), &Value::Null));
    }

    #[test]
    fn volumes_are_removed_when_they_are_released() {
        let directory = Path::new("/data/pvc-1-2");
        let file = Path::new("/data/pvc-1-2.img");
        let made = volume("pvc-1-2", &claim(json!({})), &class(json!({})), "n", (Medium::Directory, directory));
        let with = |change: &dyn Fn(&mut Value)| {
            let mut v = made.clone();
            change(&mut v);
            let volume = serde_json::from_value(v).unwrap();
            if is_own(&volume, "n", [directory, file]) { step(&volume) } else { Step::Keep }
        };
        let phase = |p: &'static str| move |v: &mut Value| v["status"] = json!({"phase": p});
        assert_eq!(with(&phase("Bound")), Step::Keep);
        assert_eq!(with(&phase("Released")), Step::Remove);
        assert_eq!(with(&phase("Failed")), Step::Remove);
        let in_file = |v: &mut Value| {
            phase("Released")(v);
            v["spec"]["local"]["path"] = "/data/pvc-1-2.img".into();
        };
        assert_eq!(with(&in_file), Step::Remove);
        let released = |more: &dyn Fn(&mut Value)| {
            with(&|v| {
                phase("Released")(v);
                more(v);
            })
        };
        assert_eq!(released(&|v| v["metadata"]["annotations"] = json!({})), Step::Keep, "made by someone else");
        assert_eq!(released(&|v| v["spec"]["local"]["path"] = "/etc".into()), Step::Keep, "another directory");
        assert_eq!(released(&|v| v["metadata"]["name"] = "pvc-../x".into()), Step::Keep, "no name of a volume");
        let elsewhere = |v: &mut Value| {
            v["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] =
                json!(["m"]);
        };
        assert_eq!(released(&elsewhere), Step::Keep, "another node");
        let retained = |v: &mut Value| v["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
        assert_eq!(released(&retained), Step::RemoveFinalizer);
        let bare = |v: &mut Value| v["metadata"]["finalizers"] = json!([]);
        assert_eq!(with(&bare), Step::AddFinalizer, "the policy was changed to Delete");
        let deleted = |v: &mut Value| v["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(released(&deleted), Step::Remove);
        assert_eq!(with(&deleted), Step::Keep, "a claim still has it");
    }
}
