//! PodResize: a running pod may be resized only on a Linux node, within the node's capacity (upstream
//! `plugin/pkg/admission/podresize`).

use crate::{Lookup, Operation, Plugin, ReadScope, Review, WriteRequest};
use meta::status::Cause;
use meta::{Object, Quantity, Status};

pub struct PodResizeValidator;

const OS: &str = "kubernetes.io/os";

impl Plugin for PodResizeValidator {
    fn name(&self) -> &'static str {
        "PodResizeValidator"
    }

    fn reads(&self, write: &WriteRequest<'_>, lookup: &dyn Lookup) -> usize {
        let resize = (write.group, write.resource, write.subresource) == ("", "pods", "resize");
        if resize { lookup.bytes("", "nodes", None, ReadScope::One) } else { 0 }
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let resize = review.is_part("", "pods", "resize") && review.operation == Operation::Update;
        let (Some(pod), Some(old)) = (object.filter(|_| resize), review.old) else { return Ok(()) };
        let name = pod.str_at(&["spec", "nodeName"]).unwrap_or_default();
        if name.is_empty() || pod.generation() == old.generation() {
            return Ok(());
        }
        let Some(node) = review.lookup.get("", "nodes", "", name)? else {
            return Err(review.forbidden(&format!("node {name:?} not found")));
        };
        if let Some(os) = node.label(OS).filter(|os| *os != "linux") {
            let why = format!("pod resize is only supported on linux nodes, node {name:?} is {os:?}");
            return Err(refused(review, &why, "UnsupportedPlatform"));
        }
        let lacking = lacking(pod, &node);
        if lacking.is_empty() {
            return Ok(());
        }
        let why = format!("node didn't have enough allocatable resources: {}", lacking.join("; "));
        Err(refused(review, &why, "NodeCapacity"))
    }
}

/// Resources that the pod requests beyond the node's capacity.
fn lacking(pod: &Object, node: &Object) -> Vec<String> {
    let requested = quota::resources_of_pod(pod, "requests", quota::Basis::Desired);
    let mut out = Vec::new();
    for (resource, amount) in [("cpu", Quantity::milli_value as fn(&Quantity) -> i64), ("memory", Quantity::value)] {
        let has = node.str_at(&["status", "allocatable", resource]).and_then(|q| Quantity::parse(q).ok());
        let has = has.unwrap_or(Quantity::from_int(0));
        if let Some(q) = requested.get(resource).filter(|q| **q > has) {
            out.push(format!("{resource}, requested: {}, allocatable: {}", amount(q), amount(&has)));
        }
    }
    out
}

fn refused(review: &Review<'_>, why: &str, reason: &str) -> Status {
    let mut s = review.forbidden(why);
    let details = s.details.get_or_insert_default();
    details.causes.push(Cause { reason: reason.to_owned(), ..Cause::default() });
    s
}
