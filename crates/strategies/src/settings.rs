//! PodPreset: what is put into pods must be what a pod may have. The plugin `PodPreset` puts it there.

use crate::pod_template;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

const PARTS: [&str; 4] = ["volumes", "env", "envFrom", "volumeMounts"];

pub fn pod_preset(o: &Object, errors: &mut ErrorList) {
    let path = FieldPath::new("spec");
    let spec = o.get("spec").unwrap_or(&Value::Null);
    if PARTS.iter().all(|k| spec[*k].is_null()) {
        errors.push(FieldError::required(&path.child(&PARTS.join(".")), "must specify at least one"));
    }
    pod_template::surroundings(spec, &path, errors);
}
