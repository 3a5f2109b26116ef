//! Limits the growth of an object in admission.

use meta::Value;

/// Maximum size as JSON in bytes, approximately: twice the request limit. The store enforces its own limit later.
const LARGEST: usize = 6 << 20;

/// Rejects an object that policies or webhooks have made too large: several in sequence could otherwise grow it to
/// gigabytes.
pub(crate) fn check(object: &Value) -> Result<(), String> {
    match schema::size(object) > LARGEST {
        true => Err(format!("the object would have more than {} MiB", LARGEST >> 20)),
        false => Ok(()),
    }
}
