//! PodPreset: validation of injected volumes, mounts and variables. The admission plugin `PodPreset` injects them.

use crate::Config;
use crate::plain::Ruled;
use crate::pod_template;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(validate))
}

const PARTS: [&str; 4] = ["volumes", "env", "envFrom", "volumeMounts"];

fn validate(o: &Object, errors: &mut ErrorList) {
    let path = FieldPath::new("spec");
    let spec = o.get("spec").unwrap_or(&Value::Null);
    if PARTS.iter().all(|k| spec[*k].is_null()) {
        errors.push(FieldError::required(&path.child(&PARTS.join(".")), "must specify at least one"));
    }
    pod_template::surroundings(spec, &path, errors);
}
