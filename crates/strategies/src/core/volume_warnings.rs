//! What the writers of PersistentVolumes and of claims are warned of.

use crate::pod_template::{claim_sizes, of_node_term};
use crate::read::{is_set, items};
use meta::{FieldPath, Object, Quantity, Value};

const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// Sources that go or are gone, as they are called when it is said.
const OLD_SOURCES: [(&str, &str, &str); 8] = [
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
    ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
];

fn annotations(o: &Object, known: &[(&str, &str)]) -> Vec<String> {
    let at = FieldPath::new("metadata.annotations");
    let said = known.iter().filter(|(k, _)| o.annotation(k).is_some());
    said.map(|(k, why)| format!("{}: {why}", at.key(k))).collect()
}

const OLD_CLASS: (&str, &str) = (CLASS, "deprecated since v1.8; use \"storageClassName\" attribute instead");

pub fn of_volume(o: &Object, _old: Option<&Object>) -> Vec<String> {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let at = FieldPath::new("spec");
    let mut out =
        annotations(o, &[OLD_CLASS, (OPTIONS, "deprecated since v1.31; use \"mountOptions\" attribute instead")]);
    if spec["persistentVolumeReclaimPolicy"] == "Recycle" {
        out.push("spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.".into());
    }
    let terms = at.child("nodeAffinity").child("required").child("nodeSelectorTerms");
    for (i, t) in items(&spec["nodeAffinity"]["required"], "nodeSelectorTerms").iter().enumerate() {
        of_node_term(t, false, &terms.index(i), &mut out);
    }
    let size = spec["capacity"]["storage"].as_str().unwrap_or_default();
    if Quantity::parse(size).is_ok_and(|q| !q.is_integer()) {
        let at = at.child("capacity").key("storage");
        out.push(format!("{at}: fractional byte value {size:?} is invalid, must be an integer"));
    }
    let old = OLD_SOURCES.iter().filter(|(kind, _, _)| is_set(spec, kind));
    out.extend(old.map(|(_, said, why)| format!("{}: {why}", at.child(said))));
    out
}

pub fn of_claim(o: &Object, _old: Option<&Object>) -> Vec<String> {
    let mut out = annotations(o, &[OLD_CLASS]);
    out.extend(claim_sizes(o.get("spec").unwrap_or(&Value::Null), &FieldPath::new("spec")));
    out
}
