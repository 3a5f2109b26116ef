//! The QoS class of a pod (`k8s.io/kubernetes/pkg/apis/core/v1/helper/qos`).

use super::pod_fields::items;
use meta::{Object, Quantity, Value};

/// Returns the QoS class, from pod-level resources if set, otherwise from all containers.
pub(super) fn qos_class(o: &Object) -> &'static str {
    let quantity = |v: &Value| v.as_str().and_then(|s| Quantity::parse(s).ok()).filter(|q| q.sign() > 0);
    let own = o.at(&["spec", "resources"]).filter(|r| !r["requests"].is_null() || !r["limits"].is_null());
    let of_containers = ["containers", "initContainers"].iter().flat_map(|l| items(o, l)).map(|c| &c["resources"]);
    let all: Vec<&Value> = own.map_or_else(|| of_containers.collect(), |r| vec![r]);
    let (mut any, mut guaranteed) = (false, true);
    for r in all {
        for k in ["cpu", "memory"] {
            let request = quantity(&r["requests"][k]);
            let limit = quantity(&r["limits"][k]);
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && (request.is_none() || request == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn classifies_quality_of_service() {
        let check = |resources: Value, class: &str| {
            let pod = Object::from_value(json!({"spec": {"containers": [{"resources": resources}]}}));
            assert_eq!(qos_class(&pod.expect("an object")), class, "{resources}");
        };
        check(json!({}), "BestEffort");
        check(json!({"requests": {"cpu": "0"}}), "BestEffort");
        check(json!({"requests": {"cpu": "1"}}), "Burstable");
        check(json!({"limits": {"cpu": "1"}}), "Burstable");
        check(json!({"limits": {"cpu": "1", "memory": "1"}}), "Guaranteed");
        check(
            json!({"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "1000m", "memory": "1"}}),
            "Guaranteed",
        );
        check(json!({"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "500m"}}), "Burstable");
        let whole = json!({"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "1", "memory": "1"}});
        let pod = Object::from_value(json!({"spec": {"containers": [{"name": "c"}], "resources": whole}}));
        assert_eq!(qos_class(&pod.expect("an object")), "Guaranteed", "pod-level resources");
    }
}
