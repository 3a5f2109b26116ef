//! How large an object may become on its way through admission.

use meta::Value;

/// Bytes as JSON, about: twice what a request may send. What is stored is held against a bound of its own later.
const LARGEST: usize = 6 << 20;

/// Refuses an object that a policy or a webhook has made too large: many of them in turn would make it gigabytes before it is stored.
pub(crate) fn check(object: &Value) -> Result<(), String> {
    match schema::size(object) > LARGEST {
        true => Err(format!("the object would have more than {} MiB", LARGEST >> 20)),
        false => Ok(()),
    }
}
