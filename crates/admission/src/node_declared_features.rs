//! NodeDeclaredFeatures: rejects updates of a running pod that need features its node does not declare
//! (`status.declaredFeatures`; upstream
//! `plugin/pkg/admission/nodedeclaredfeatures`, `k8s.io/component-helpers/nodedeclaredfeatures`).

use crate::{Lookup, Operation, Plugin, ReadScope, Review, WriteRequest};
use meta::{Object, Status, Value};

pub struct NodeDeclaredFeatureValidator;

/// A feature, and whether an update needs it. Sorted by name, as in messages.
type Feature = (&'static str, fn(&Object, &Object) -> bool);

const FEATURES: [Feature; 2] = [
    ("InPlacePodLevelResourcesVerticalScaling", |old, new| resources(old) != resources(new)),
    ("InPlacePodVerticalScalingInitContainers", resizes_init_containers),
];

impl Plugin for NodeDeclaredFeatureValidator {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatureValidator"
    }

    fn reads(&self, write: &WriteRequest<'_>, lookup: &dyn Lookup) -> usize {
        let resize = (write.group, write.resource, write.subresource) == ("", "pods", "resize");
        if resize { lookup.bytes("", "nodes", None, ReadScope::One) } else { 0 }
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let update = review.operation == Operation::Update;
        let applies = update && (review.is("", "pods") || review.is_part("", "pods", "resize"));
        let (Some(pod), Some(old)) = (object.filter(|_| applies), review.old) else { return Ok(()) };
        let name = pod.str_at(&["spec", "nodeName"]).unwrap_or_default();
        if name.is_empty() || pod.generation() == old.generation() {
            return Ok(());
        }
        let needed: Vec<&str> = FEATURES.iter().filter(|(_, needs)| needs(old, pod)).map(|(f, _)| *f).collect();
        if needed.is_empty() {
            return Ok(());
        }
        let Some(node) = review.lookup.get("", "nodes", "", name)? else {
            return Err(review.forbidden(&format!("node {name:?} not found")));
        };
        let has = |f: &str| {
            let all = node.at(&["status", "declaredFeatures"]).and_then(Value::as_array);
            all.is_some_and(|all| all.iter().any(|d| d == f))
        };
        let lacking: Vec<&str> = needed.into_iter().filter(|f| !has(f)).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let lacking = lacking.join(", ");
        Err(review
            .forbidden(&format!("pod update requires features {lacking} which are not available on node {name:?}")))
    }
}

fn resources(pod: &Object) -> Option<&Value> {
    pod.at(&["spec", "resources"]).filter(|r| !r.is_null())
}

/// Init containers that terminate; sidecars resize like other containers.
fn resizes_init_containers(old: &Object, new: &Object) -> bool {
    let list = |o: &Object| o.at(&["spec", "initContainers"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let (old, new) = (list(old), list(new));
    let ends = |c: &Value| c["restartPolicy"] != "Always";
    old.iter().zip(&new).any(|(o, n)| ends(o) && o["resources"] != n["resources"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn init_containers_that_end_need_a_node_that_resizes_them() {
        let pod = |policy: &str, cpu: &str| {
            let c = json!({"name": "i", "restartPolicy": policy, "resources": {"requests": {"cpu": cpu}}});
            Object::from_value(json!({"spec": {"initContainers": [c]}})).unwrap()
        };
        let needs = |policy: &str, cpu: &str| resizes_init_containers(&pod(policy, "1"), &pod(policy, cpu));
        assert!(needs("", "2") && !needs("", "1"));
        assert!(!needs("Always", "2"), "a sidecar is resized as containers are");
    }
}
