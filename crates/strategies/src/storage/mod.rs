//! `storage.k8s.io`: validation of driver names and parameters.

mod csi_driver;
mod csi_node;
mod csi_storage_capacity;
mod storage_class;
mod volume_attachment;
mod volume_attributes_class;

use crate::pod_template::old_label;
use crate::read::text;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};

kinds! {
    csi_driver,
    csi_node,
    csi_storage_capacity,
    storage_class,
    volume_attachment,
    volume_attributes_class,
}

/// Validates a CSI driver name: a domain, case-insensitive, of at most 63 bytes.
pub fn driver_name(name: &str, at: &FieldPath, errors: &mut ErrorList) {
    if name.is_empty() {
        return;
    }
    if name.len() > 63 {
        errors.push(FieldError::too_long(at, 63));
    }
    errors.extend(names::dns_subdomain(&name.to_lowercase()).into_iter().map(|m| FieldError::invalid(at, name, m)));
}

const PARAMETERS_MAX: usize = 512;
const PARAMETERS_SIZE_MAX: usize = 256 * 1024;

/// Validates the parameters of a class: non-empty names, and total size.
fn parameters(o: &Object, errors: &mut ErrorList) {
    let at = FieldPath::new("parameters");
    let Some(all) = o.get("parameters").and_then(Value::as_object) else { return };
    if all.len() > PARAMETERS_MAX {
        errors.push(FieldError::too_long(&at, PARAMETERS_MAX));
        return;
    }
    if all.contains_key("") {
        errors.push(FieldError::invalid(&at, "", "field can not be empty."));
    }
    let size: usize = all.iter().map(|(k, v)| k.len() + v.as_str().unwrap_or_default().len()).sum();
    if size > PARAMETERS_SIZE_MAX {
        errors.push(FieldError::too_long(&at, PARAMETERS_SIZE_MAX));
    }
}

fn old_keys(expressions: &[Value], at: &FieldPath, out: &mut Vec<String>) {
    let keys = expressions.iter().map(|e| text(e, "key")).enumerate();
    out.extend(keys.filter_map(|(i, k)| Some(format!("{}: {}", at.index(i).child("key"), old_label(k)?))));
}
