//! Which claims get a directory of this node, what volume describes it, and when it is removed. Pure functions.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};
use std::path::Path;

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

/// The name of the volume, and of its directory, of a claim. None without a UID that is safe in a path.
pub fn volume_name(claim: &PersistentVolumeClaim) -> Option<String> {
    let name = format!("pvc-{}", claim.metadata.uid.as_deref()?);
    is_volume_name(&name).then_some(name)
}

/// Whether a directory can have this name: `pvc-` and a UID.
pub fn is_volume_name(name: &str) -> bool {
    let uid = name.strip_prefix("pvc-").unwrap_or_default();
    (1..=64).contains(&uid.len()) && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Whether the claim waits for a directory of this node.
pub fn is_awaited(claim: &PersistentVolumeClaim, node: &str) -> bool {
    let meta = &claim.metadata;
    let volume = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
    meta.deletion_timestamp.is_none()
        && volume.is_empty()
        && annotation(meta, STORAGE_PROVISIONER) == Some(PROVISIONER)
        && annotation(meta, SELECTED_NODE) == Some(node)
}

/// Why no volume can be made for the claim; none if one can.
pub fn refusal(claim: &PersistentVolumeClaim, class: &StorageClass) -> Option<String> {
    let spec = claim.spec.clone().unwrap_or_default();
    if spec.volume_mode.as_deref() == Some("Block") {
        return Some("block volumes are not supported".into());
    }
    if spec.selector.is_some() {
        return Some("claim.Spec.Selector is not supported".into());
    }
    if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        return Some("data sources are not supported".into());
    }
    let modes = spec.access_modes.unwrap_or_default();
    if let Some(mode) = modes.iter().find(|m| !matches!(m.as_str(), "ReadWriteOnce" | "ReadWriteOncePod")) {
        return Some(format!(
            "access mode {mode} is not supported: a directory of a node is ReadWriteOnce or ReadWriteOncePod"
        ));
    }
    if let Some(name) = class.parameters.iter().flatten().next().map(|(name, _)| name) {
        return Some(format!("unknown parameter {name:?} of the StorageClass"));
    }
    if class.mount_options.as_ref().is_some_and(|options| !options.is_empty()) {
        return Some("mount options are not supported".into());
    }
    None
}

/// The volume of a claim: a directory of this node.
pub fn volume(name: &str, claim: &PersistentVolumeClaim, class: &StorageClass, node: &str, directory: &Path) -> Value {
    let (meta, spec) = (&claim.metadata, claim.spec.clone().unwrap_or_default());
    let size = spec.resources.and_then(|r| r.requests?.get("storage").cloned());
    let policy = class.reclaim_policy.as_deref().unwrap_or("Delete");
    let here = json!({"key": HOSTNAME, "operator": "In", "values": [node]});
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": spec.access_modes,
            "volumeMode": "Filesystem",
            "persistentVolumeReclaimPolicy": policy,
            "storageClassName": spec.storage_class_name,
            "volumeAttributesClassName": spec.volume_attributes_class_name,
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta.namespace, "name": meta.name,
                "uid": meta.uid, "resourceVersion": meta.resource_version},
            "local": {"path": directory},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    });
    if policy == "Delete" {
        volume["metadata"]["finalizers"] = json!([FINALIZER]);
    }
    volume
}

/// The next step of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, or it is not a volume of this node.
    Keep,
    /// Remove the directory, then the volume.
    Remove,
    /// The reclaim policy is `Delete`: add the finalizer, which others lack.
    AddFinalizer,
    /// The reclaim policy is another one: the directory stays.
    RemoveFinalizer,
}

/// The step of a volume. `directory` is that of this name on this node.
///
/// Users may create volumes that claim to be provisioned here: only the directory that belongs to the name is ever removed.
pub fn step(volume: &PersistentVolume, node: &str, directory: &Path) -> Step {
    let (meta, spec) = (&volume.metadata, volume.spec.clone().unwrap_or_default());
    let is_own = annotation(meta, PROVISIONED_BY) == Some(PROVISIONER)
        && is_volume_name(meta.name.as_deref().unwrap_or_default())
        && spec.local.as_ref().is_some_and(|l| Path::new(&l.path) == directory)
        && nodes(&spec).is_some_and(|nodes| nodes == [node]);
    if !is_own {
        return Step::Keep;
    }
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
    fn refuses_what_a_directory_cannot_be() {
        let plain = class(json!({}));
        assert_eq!(refusal(&claim(json!({})), &plain), None);
        assert_eq!(refusal(&claim(json!({"accessModes": ["ReadWriteOncePod"]})), &plain), None);
        for changes in [
            json!({"volumeMode": "Block"}),
            json!({"selector": {}}),
            json!({"accessModes": ["ReadWriteMany"]}),
            json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "x"}}),
        ] {
            assert!(refusal(&claim(changes.clone()), &plain).is_some(), "{changes}");
        }
        for more in [json!({"parameters": {"size": "1"}}), json!({"mountOptions": ["ro"]})] {
            assert!(refusal(&claim(json!({})), &class(more.clone())).is_some(), "{more}");
        }
    }

    #[test]
    fn volumes_are_removed_when_they_are_released() {
        let directory = Path::new("/data/pvc-1-2");
        let made = volume("pvc-1-2", &claim(json!({})), &class(json!({})), "n", directory);
        let with = |change: &dyn Fn(&mut Value)| {
            let mut v = made.clone();
            change(&mut v);
            step(&serde_json::from_value(v).unwrap(), "n", directory)
        };
        let phase = |p: &'static str| move |v: &mut Value| v["status"] = json!({"phase": p});
        assert_eq!(with(&phase("Bound")), Step::Keep);
        assert_eq!(with(&phase("Released")), Step::Remove);
        assert_eq!(with(&phase("Failed")), Step::Remove);
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
