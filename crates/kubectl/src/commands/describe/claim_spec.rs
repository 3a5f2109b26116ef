//! The fields that a persistent volume claim and the claim template of a volume have in common.

use super::page::{Page, show};
use meta::Value;

/// The annotation that named the storage class before the field existed.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// Returns the storage class of a volume or claim: the annotation, or else the field.
pub fn storage_class(metadata: Option<&Value>, spec: Option<&Value>) -> String {
    let annotation = metadata.and_then(|m| m.get("annotations")?.get(CLASS_ANNOTATION));
    annotation.or_else(|| spec?.get("storageClassName")).map(show).unwrap_or_default()
}

/// Writes the spec of a claim. `metadata` writes between its fields; `bound` holds the capacity and access modes of a claim that is
/// bound.
pub fn claim_spec(p: &mut Page, level: usize, spec: &Value, metadata: impl FnOnce(&mut Page), bound: [String; 2]) {
    let volume = show(&spec["volumeName"]);
    let [capacity, modes] = if volume.is_empty() { Default::default() } else { bound };
    p.at(level, "Volume", volume);
    metadata(p);
    p.at(level, "Capacity", capacity);
    p.at(level, "Access Modes", modes);
    if let Some(m) = spec["volumeMode"].as_str() {
        p.at(level, "VolumeMode", m);
    }
    if let Some(s) = spec.get("dataSource") {
        p.line(level, "DataSource:");
        for (title, key) in [("APIGroup", "apiGroup"), ("Kind", "kind"), ("Name", "name")] {
            if !s[key].is_null() {
                p.at(level + 1, title, show(&s[key]));
            }
        }
    }
}
