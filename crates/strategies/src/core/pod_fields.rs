//! Fields of a pod that rules of several subresources read.

use meta::{Object, Value};

/// The path of errors about the whole pod: as Go prints a field without a name.
pub(super) const POD: &str = "[]";
/// Marks a mirror pod, which the kubelet created from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Returns a list of the pod's spec; empty if absent.
pub(super) fn items<'a>(o: &'a Object, list: &str) -> &'a [Value] {
    o.at(&["spec", list]).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Whether a pod is a mirror pod.
pub(super) fn is_mirror(o: &Object) -> bool {
    o.at(&["metadata", "annotations", MIRROR]).is_some()
}
