//! The requests and limits of a pod as a whole, for its status (`k8s.io/component-helpers/resource`, `PodRequests` and `PodLimits`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use meta::Quantity;

use crate::resources::is_sidecar;

type Amounts = BTreeMap<String, Amount>;
type Quantities = BTreeMap<String, Quantity>;

/// Requests and limits of the pod; `None` if it has neither.
pub fn of_pod(spec: &PodSpec) -> Option<ResourceRequirements> {
    let requests = total(spec, |r| r.requests.as_ref());
    let limits = total(spec, |r| r.limits.as_ref());
    let some = |amounts: Amounts| (!amounts.is_empty()).then_some(amounts);
    let (requests, limits) = (some(requests), some(limits));
    (requests.is_some() || limits.is_some()).then_some(ResourceRequirements { requests, limits, claims: None })
}

/// The sum of the containers, or what the init containers need at a time if that is more. Resources of the pod replace those of its
/// containers.
fn total(spec: &PodSpec, side: fn(&ResourceRequirements) -> Option<&Amounts>) -> Amounts {
    let own = |resources: Option<&ResourceRequirements>| parse(resources.and_then(side));
    let mut sum = Quantities::new();
    for container in &spec.containers {
        add(&mut sum, &own(container.resources.as_ref()));
    }
    let (mut sidecars, mut init) = (Quantities::new(), Quantities::new());
    for container in spec.init_containers.iter().flatten() {
        let amounts = own(container.resources.as_ref());
        let mut at_a_time = sidecars.clone();
        add(&mut at_a_time, &amounts);
        if is_sidecar(container) {
            add(&mut sum, &amounts);
            sidecars = at_a_time.clone();
        }
        raise(&mut init, &at_a_time);
    }
    raise(&mut sum, &init);
    for (name, quantity) in own(spec.resources.as_ref()) {
        sum.insert(name, quantity);
    }
    // An overhead is no limit of a resource that has none.
    let is_requests = side(&ResourceRequirements { requests: Some(Amounts::new()), ..Default::default() }).is_some();
    for (name, quantity) in parse(spec.overhead.as_ref()) {
        if is_requests || sum.contains_key(&name) {
            add(&mut sum, &Quantities::from([(name, quantity)]));
        }
    }
    sum.into_iter().map(|(name, quantity)| (name, Amount(quantity.to_string()))).collect()
}

fn parse(amounts: Option<&Amounts>) -> Quantities {
    let parsed =
        amounts.into_iter().flatten().filter_map(|(name, amount)| Some((name.clone(), amount.0.parse().ok()?)));
    parsed.collect()
}

fn add(sum: &mut Quantities, more: &Quantities) {
    for (name, quantity) in more {
        let total = match sum.get(name) {
            Some(known) => *known + *quantity,
            None => *quantity,
        };
        sum.insert(name.clone(), total);
    }
}

fn raise(maximum: &mut Quantities, other: &Quantities) {
    for (name, quantity) in other {
        if maximum.get(name).is_none_or(|known| known < quantity) {
            maximum.insert(name.clone(), *quantity);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn totals(spec: Value) -> Value {
        serde_json::to_value(of_pod(&serde_json::from_value(spec).unwrap())).unwrap()
    }

    fn container(name: &str, requests: Value, limits: Value) -> Value {
        json!({"name": name, "resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn totals_are_upstreams() {
        let a = container("a", json!({"cpu": "100m", "memory": "64Mi"}), json!({"memory": "128Mi"}));
        let b = container("b", json!({"cpu": "250m"}), json!({}));
        assert_eq!(
            totals(json!({"containers": [a, b]})),
            json!({"requests": {"cpu": "350m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}})
        );
        assert_eq!(totals(json!({"containers": [{"name": "c"}]})), Value::Null);
        let mut sidecar = container("side", json!({"cpu": "100m"}), json!({}));
        sidecar["restartPolicy"] = "Always".into();
        let init = container("init", json!({"cpu": "1"}), json!({}));
        let spec = json!({"initContainers": [sidecar, init], "containers": [a]});
        assert_eq!(totals(spec.clone())["requests"]["cpu"], "1100m", "the init container beside the sidecar");
        let mut whole = spec;
        whole["resources"] = json!({"requests": {"cpu": "2"}});
        whole["overhead"] = json!({"cpu": "10m"});
        assert_eq!(totals(whole)["requests"], json!({"cpu": "2010m", "memory": "64Mi"}));
    }
}
