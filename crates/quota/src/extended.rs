//! Devices of claims as extended resources: a device class may offer its devices under a name that pods request, and every class
//! offers them under a name of its own. A quota limits those names, so claims of the class count for them, too. A claim that the
//! scheduler made for a pod with such requests holds devices which the pod counts already, and counts for the rest.

use crate::usage::{DEVICE_CLASS, DEVICES};
use crate::{Amounts, usage};
use meta::object::OwnerRef;
use meta::{Object, Quantity};

/// The annotation of claims that the scheduler made for the extended resources of a pod.
const OF_POD: &str = "resource.kubernetes.io/extended-resource-claim";

/// The pod for whose extended resources a claim was made.
pub fn made_for(claim: &Object) -> Option<OwnerRef<'_>> {
    let owner = claim.controller_of()?;
    let is_pod = owner.kind == "Pod" && owner.api_version == "v1";
    (is_pod && claim.annotation(OF_POD) == Some("true")).then_some(owner)
}

/// Orders stored claims of one pod: the first one is the pod's.
pub fn age(claim: &Object) -> (String, String) {
    let created = claim.str_at(&["metadata", "creationTimestamp"]).unwrap_or_default();
    (created.to_owned(), claim.name().to_owned())
}

/// What the pod of a claim counts already. `is_first`: whether the pod has no older claim, which decides as long as the pod does not
/// name its claim.
pub fn counted_by(pod: &Object, claim: &Object, is_first: bool, now: Option<&str>) -> Amounts {
    let is_its = match pod.str_at(&["status", "extendedResourceClaimStatus", "resourceClaimName"]) {
        Some(name) => name == claim.name(),
        None => is_first,
    };
    let is_owner = made_for(claim).is_some_and(|owner| owner.uid == pod.uid() && owner.name == pod.name());
    if is_its && is_owner { usage("", "pods", pod, now) } else { Amounts::new() }
}

/// The device classes of which a claim takes devices, from its usage.
pub fn classes(usage: &Amounts) -> impl Iterator<Item = &str> {
    usage.keys().filter_map(|name| name.strip_suffix(DEVICES)).filter(|class| !class.is_empty())
}

/// Adds to the usage of a claim what it takes of extended resources, less what its pod counts already. `resource_of` returns the
/// extended resource of a class (`spec.extendedResourceName`).
pub fn add(all: &mut Amounts, counted: &Amounts, resource_of: impl Fn(&str) -> Option<String>) {
    let mut extended = Amounts::new();
    for class in classes(all) {
        let devices = all.get(&format!("{class}{DEVICES}")).copied().unwrap_or(Quantity::from_int(0));
        let own = format!("{DEVICE_CLASS}{class}");
        for name in [Some(own), resource_of(class).filter(|n| !n.is_empty())].into_iter().flatten() {
            crate::add(&mut extended, Amounts::from([(format!("requests.{name}"), devices)]));
        }
    }
    for (name, devices) in extended {
        let rest = counted.get(&name).map_or(devices, |c| devices - *c);
        if rest.sign() > 0 {
            all.insert(name, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meta::Value;
    use serde_json::json;

    fn object(v: Value) -> Object {
        Object::from_value(v).expect("an object")
    }

    fn claim(name: &str, created: &str, devices: i64) -> Object {
        object(json!({"metadata": {"name": name, "creationTimestamp": created,
                "annotations": {OF_POD: "true"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]},
            "spec": {"devices": {"requests": [{"name": "r",
                "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": devices}}]}}}))
    }

    fn taken(claim: &Object, counted: &Amounts) -> Vec<(String, String)> {
        let mut all = usage("resource.k8s.io", "resourceclaims", claim, None);
        add(&mut all, counted, |class| (class == "gpu").then(|| "example.com/gpu".into()));
        all.retain(|k, _| k.starts_with("requests."));
        all.into_iter().map(|(k, q)| (k, q.to_string())).collect()
    }

    fn both(amount: &str) -> Vec<(String, String)> {
        ["requests.deviceclass.resource.kubernetes.io/gpu", "requests.example.com/gpu"]
            .map(|k| (k.to_owned(), amount.to_owned()))
            .into()
    }

    #[test]
    fn a_claim_takes_what_its_classes_offer() {
        assert_eq!(taken(&claim("c", "2026-01-01T00:00:00Z", 3), &Amounts::new()), both("3"));
        let mut all = usage("resource.k8s.io", "resourceclaims", &claim("c", "", 1), None);
        add(&mut all, &Amounts::new(), |_| None);
        assert!(!all.contains_key("requests.example.com/gpu"), "{all:?}");
    }

    #[test]
    fn what_the_pod_counts_is_not_counted_twice() {
        let requests = json!({"example.com/gpu": "2", "deviceclass.resource.kubernetes.io/gpu": "2"});
        let pod = |status: Value, uid: &str| {
            object(json!({"metadata": {"name": "p", "uid": uid}, "status": status,
                "spec": {"containers": [{"name": "c", "resources": {"requests": requests, "limits": requests}}]}}))
        };
        let made = claim("made", "2026-01-01T00:00:00Z", 4);
        let rest = |pod: &Object, is_first| taken(&made, &counted_by(pod, &made, is_first, None));
        let named = |name: &str| json!({"extendedResourceClaimStatus": {"resourceClaimName": name}});
        assert_eq!(rest(&pod(named("made"), "u"), false), both("2"));
        assert_eq!(rest(&pod(json!({}), "u"), true), both("2"));
        // Claims that only say that they are of the pod count in full.
        assert_eq!(rest(&pod(named("other"), "u"), true), both("4"));
        assert_eq!(rest(&pod(json!({}), "u"), false), both("4"));
        assert_eq!(rest(&pod(named("made"), "another"), true), both("4"));
        assert!(age(&claim("a", "2026-01-01T00:00:00Z", 1)) < age(&claim("b", "2026-01-01T00:00:00Z", 1)));
        assert!(age(&claim("b", "2026-01-01T00:00:00Z", 1)) < age(&claim("a", "2026-01-01T00:00:01Z", 1)));
    }
}
