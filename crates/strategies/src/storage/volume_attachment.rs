//! VolumeAttachment: source and status.

use super::driver_name;
use crate::Config;
use crate::core::inline_volume;
use crate::plain::Ruled;
use crate::read::{delegated, is_set, text};
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};

pub fn row(_: &Config) -> Row {
    Row::stored(rules())
}

fn rules() -> Ruled {
    Ruled::new(validate).with_status(validate_status).with_fixed_status_metadata()
}

const METADATA_MAX: usize = 256 * 1024;
const MESSAGE_MAX: usize = 1024;

fn validate(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    driver_name(text(spec, "attacher"), &path.child("attacher"), errors);
    let source = &spec["source"];
    let at = path.child("source");
    match (is_set(source, "inlineVolumeSpec"), is_set(source, "persistentVolumeName")) {
        (false, false) => {
            let why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            errors.push(FieldError::required(&at, why));
        }
        (true, true) => {
            let why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            errors.push(FieldError::forbidden(&at, why));
        }
        (false, true) => {
            let name = text(source, "persistentVolumeName");
            let at = at.child("persistentVolumeName");
            if name.is_empty() {
                errors.push(FieldError::required(&at, "must specify non empty persistentVolumeName"));
            }
            errors.extend(names::dns_subdomain(name).into_iter().map(|m| FieldError::invalid(&at, name, m)));
        }
        (true, false) => {
            delegated(source, "io.k8s.api.storage.v1.VolumeAttachmentSource", "inlineVolumeSpec", &at, errors);
            inline_volume::validate(&source["inlineVolumeSpec"], &at.child("inlineVolumeSpec"), errors);
        }
    }
    let null = Value::Null;
    let status = o.get("status").unwrap_or(&null);
    let at = FieldPath::new("status");
    let size: usize = status["attachmentMetadata"]
        .as_object()
        .map_or(0, |m| m.iter().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum());
    if size > METADATA_MAX {
        errors.push(FieldError::too_long(&at.child("attachmentMetadata"), METADATA_MAX));
    }
    for key in ["attachError", "detachError"] {
        let (e, at) = (&status[key], at.child(key));
        if text(e, "message").len() > MESSAGE_MAX {
            errors.push(FieldError::too_long(&at.child("message"), METADATA_MAX));
        }
        if let Some(n) = e["errorCode"].as_i64().filter(|n| *n < 0) {
            let why = format!("must be between 0 and {}, inclusive", i32::MAX);
            errors.push(FieldError::invalid(&at.child("errorCode"), n, why));
        }
    }
}

/// Validates the status by the rules of the entire object.
fn validate_status(o: &Object, _old: &Object, errors: &mut ErrorList) {
    validate(o, errors);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_create;
    use serde_json::json;

    #[test]
    fn validates_inline_volumes() {
        let strategy = rules();
        let csi = json!({"driver": "a.example", "volumeHandle": "h"});
        let source = json!({"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"], "csi": csi}});
        let base = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "spec": {"attacher": "a.example", "nodeName": "n", "source": source}});
        let at = "/spec/source/inlineVolumeSpec/";
        let forbidden = |field: &str, why: &str| format!("spec.source.inlineVolumeSpec.{field}: Forbidden: {why}");
        let capacity = forbidden("capacity", "may not be specified in the context of inline volumes");
        let mode = "may not specify volumeMode other than Filesystem in the context of inline volumes";
        check_create(
            &strategy,
            &base,
            &[
                ("", Value::Null, &[]),
                (&format!("{at}capacity"), json!({"storage": "1Gi"}), &[&capacity]),
                (&format!("{at}volumeMode"), json!("Other"), &[&forbidden("volumeMode", mode)]),
                (&format!("{at}volumeMode"), json!(""), &[&forbidden("volumeMode", mode)]),
                (&format!("{at}volumeMode"), json!("Filesystem"), &[]),
                (&format!("{at}accessModes"), json!([]), &["spec.source.inlineVolumeSpec.accessModes: Required value"]),
                (
                    "/spec/source/persistentVolumeName",
                    json!("v"),
                    &["spec.source: Forbidden: must specify exactly one of inlineVolumeSpec and persistentVolumeName"],
                ),
            ],
        );
    }
}
