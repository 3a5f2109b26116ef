//! DenyServiceExternalIPs: rejects new external IPs of services; existing ones may stay or be removed.

use crate::{Operation, Plugin, Review};
use meta::{Object, Status, Value};

pub struct DenyServiceExternalIPs;

fn addresses(o: &Object) -> &[Value] {
    o.at(&["spec", "externalIPs"]).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

impl Plugin for DenyServiceExternalIPs {
    fn name(&self) -> &'static str {
        "DenyServiceExternalIPs"
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let written = matches!(review.operation, Operation::Create | Operation::Update);
        let Some(new) = object.filter(|_| written && review.is("", "services")) else { return Ok(()) };
        let had = review.old.map(addresses).unwrap_or_default();
        if addresses(new).iter().all(|a| had.contains(a)) {
            return Ok(());
        }
        Err(review.forbidden("Use of external IPs is denied by admission control"))
    }
}
