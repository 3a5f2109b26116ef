//! The usage of one object by resource name.

use crate::{Amounts, add};
use meta::{Object, Quantity, Value};
use std::collections::{BTreeMap, BTreeSet};

const CLASS: &str = ".storageclass.storage.k8s.io/";
const HUGEPAGES: &str = "hugepages-";
/// The devices of a class, after the name of the class.
pub(crate) const DEVICES: &str = ".deviceclass.resource.k8s.io/devices";
/// The extended resource that every device class offers, before the name of the class.
pub(crate) const DEVICE_CLASS: &str = "deviceclass.resource.kubernetes.io/";
/// The most devices of a claim, which is what a request for all devices counts as.
const MOST_DEVICES: i64 = 32;

/// `count/<resource>.<group>`.
fn count_name(group: &str, resource: &str) -> String {
    if group.is_empty() { format!("count/{resource}") } else { format!("count/{resource}.{group}") }
}

/// The legacy name of an object count.
fn alias(group: &str, resource: &str) -> Option<&'static str> {
    let known =
        ["configmaps", "resourcequotas", "replicationcontrollers", "secrets", "services", "persistentvolumeclaims"];
    known.into_iter().find(|k| group.is_empty() && *k == resource)
}

/// Stored resources that quotas never count (upstream `pkg/quota/v1/install`).
const IGNORED: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];

/// Whether quotas never count objects of this resource.
pub fn is_ignored(group: &str, resource: &str) -> bool {
    IGNORED.contains(&(group, resource))
}

/// The group and resource that an object count name refers to, unless it is ignored.
pub fn counted(name: &str) -> Option<(&str, &str)> {
    let name = name.strip_prefix("count/")?;
    let (group, resource) = name.split_once('.').map_or(("", name), |(resource, group)| (group, resource));
    (!is_ignored(group, resource)).then_some((group, resource))
}

/// Whether a name never has usage.
pub fn is_idle(name: &str) -> bool {
    name.starts_with("count/") && counted(name).is_none()
}

/// Whether objects of this kind use a quota resource.
pub fn tracks(group: &str, resource: &str, name: &str) -> bool {
    if is_ignored(group, resource) {
        return false;
    }
    if name == count_name(group, resource) || alias(group, resource) == Some(name) {
        return true;
    }
    match (group, resource) {
        ("", "pods") => {
            let known = ["pods", "cpu", "memory", "ephemeral-storage"];
            let bare = name.strip_prefix("requests.").unwrap_or(name);
            known.contains(&name)
                || matches!(bare, "cpu" | "memory" | "ephemeral-storage")
                || matches!(name, "limits.cpu" | "limits.memory" | "limits.ephemeral-storage")
                || bare.starts_with(HUGEPAGES)
                || (name.starts_with("requests.") && is_extended(bare))
        }
        ("", "services") => matches!(name, "services.nodeports" | "services.loadbalancers"),
        ("", "persistentvolumeclaims") => {
            name == "requests.storage"
                || name
                    .split_once(CLASS)
                    .is_some_and(|(_, r)| matches!(r, "persistentvolumeclaims" | "requests.storage"))
        }
        ("resource.k8s.io", "resourceclaims") => {
            name.ends_with(DEVICES) || name.strip_prefix("requests.").is_some_and(is_extended)
        }
        _ => false,
    }
}

/// Whether a resource of pods is an extended one, which quotas limit as `requests.NAME`.
fn is_extended(name: &str) -> bool {
    name.starts_with(DEVICE_CLASS) || (name.contains('/') && !name.contains("kubernetes.io/"))
}

/// The usage of an object. `now` decides whether a pod's grace period is over.
pub fn usage(group: &str, resource: &str, o: &Object, now: Option<&str>) -> Amounts {
    let single = Quantity::from_int(1);
    let mut all = Amounts::from([(count_name(group, resource), single)]);
    all.extend(alias(group, resource).map(|a| (a.to_owned(), single)));
    match (group, resource) {
        ("", "pods") if takes_compute(o, now) => {
            all.insert("pods".into(), single);
            let of = |part| resources_of_pod(o, part, Basis::InUse);
            add(&mut all, compute(&of("requests"), &of("limits")));
        }
        ("", "services") => service(o, &mut all),
        ("", "persistentvolumeclaims") => claim(o, &mut all),
        ("resource.k8s.io", "resourceclaims") => add(&mut all, devices(o)),
        _ => {}
    }
    all
}

fn takes_compute(pod: &Object, now: Option<&str>) -> bool {
    if matches!(pod.str_at(&["status", "phase"]), Some("Succeeded" | "Failed")) {
        return false;
    }
    let parse = |t: Option<&str>| meta::time::parse(t?);
    match (parse(pod.deletion_timestamp()), pod.deletion_grace_period_seconds(), parse(now)) {
        (Some(deleted), Some(grace), Some(now)) => now.duration_since(deleted).as_secs() <= grace,
        _ => true,
    }
}

/// Adds usage under the resource names of quotas.
fn compute(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut out = Amounts::new();
    for (k, q) in requests {
        if matches!(k.as_str(), "cpu" | "memory" | "ephemeral-storage") || k.starts_with(HUGEPAGES) {
            out.insert(k.clone(), *q);
            out.insert(format!("requests.{k}"), *q);
        } else if is_extended(k) {
            out.insert(format!("requests.{k}"), *q);
        }
    }
    for (k, q) in limits.iter().filter(|(k, _)| matches!(k.as_str(), "cpu" | "memory" | "ephemeral-storage")) {
        out.insert(format!("limits.{k}"), *q);
    }
    out
}

fn part_amounts(resources: Option<&Value>, part: &str) -> Amounts {
    super::amounts(resources.and_then(|r| r.get(part)))
}

fn containers<'a>(pod: &'a Object, list: &str) -> impl Iterator<Item = &'a Value> {
    pod.at(&["spec", list]).and_then(Value::as_array).into_iter().flatten()
}

/// The resources that a pod desires: the sum of its containers and sidecars, or the maximum during initialization
/// (`k8s.io/component-helpers/resource`).
pub fn total(o: &Object, part: &str) -> Amounts {
    sum_of(o, part, |c, _| part_amounts(c.get("resources"), part))
}

/// Whether quotas charge a resource of a pod as a whole.
fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with(HUGEPAGES)
}

/// Whether a pod has requests or limits as a whole.
fn has_pod_level(pod: &Object) -> bool {
    let of = |part| part_amounts(pod.at(&["spec", "resources"]), part);
    ["requests", "limits"].into_iter().any(|part| of(part).keys().any(|name| is_pod_level(name)))
}

/// The resources of a container while it is resized: the largest of those that it should have, has, and was promised. A resize that its
/// node cannot carry out does not count.
fn in_use(pod: &Object, container: &Value, statuses: &str, part: &str) -> Amounts {
    let desired = part_amounts(container.get("resources"), part);
    let all = pod.at(&["status", statuses]).and_then(Value::as_array).into_iter().flatten();
    let status = all.into_iter().find(|s| s["name"] == container["name"]).filter(|s| s["resources"].is_object());
    let Some(status) = status else { return desired };
    let conditions = pod.at(&["status", "conditions"]).and_then(Value::as_array).into_iter().flatten();
    let pending = conditions.into_iter().find(|c| c["type"] == "PodResizePending");
    let mut most = part_amounts(status.get("resources"), part);
    if part == "requests" {
        max(&mut most, super::amounts(status.get("allocatedResources")));
    }
    if pending.is_none_or(|c| c["reason"] != "Infeasible") {
        max(&mut most, desired);
    }
    most
}

/// Sums `resources`, a function of a container and the list of its status, over the containers of a pod.
fn sum_of(o: &Object, part: &str, resources: impl Fn(&Value, Option<&str>) -> Amounts) -> Amounts {
    let mut sum = Amounts::new();
    containers(o, "containers").for_each(|c| add(&mut sum, resources(c, Some("containerStatuses"))));
    let (mut beside, mut most) = (Amounts::new(), Amounts::new());
    for c in containers(o, "initContainers") {
        let own = resources(c, (c["restartPolicy"] == "Always").then_some("initContainerStatuses"));
        let mut then = beside.clone();
        add(&mut then, own.clone());
        if c["restartPolicy"] == "Always" {
            add(&mut sum, own);
            beside.clone_from(&then);
        }
        max(&mut most, then);
    }
    max(&mut sum, most);
    let whole = part_amounts(o.at(&["spec", "resources"]), part);
    sum.extend(whole.into_iter().filter(|(name, _)| is_pod_level(name)));
    sum
}

/// Which resources of the containers of a pod count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// Those of the specification.
    Desired,
    /// While they are resized in place, the largest of those that they should have, have, and were promised.
    InUse,
}

/// The requests or limits (`part`) of a pod with its overhead (`PodRequests` and `PodLimits` of `k8s.io/component-helpers/resource`).
pub fn resources_of_pod(o: &Object, part: &str, basis: Basis) -> Amounts {
    let mut sum = sum_of(o, part, |c, statuses| match statuses.filter(|_| basis == Basis::InUse) {
        Some(statuses) => in_use(o, c, statuses, part),
        None => part_amounts(c.get("resources"), part),
    });
    let overhead = super::amounts(o.at(&["spec", "overhead"]));
    let applies = |k: &str| part == "requests" || sum.get(k).is_some_and(|q| !q.is_zero());
    let overhead = overhead.into_iter().filter(|(k, _)| applies(k)).collect();
    add(&mut sum, overhead);
    sum
}

fn max(to: &mut Amounts, other: Amounts) {
    for (k, q) in other {
        if to.get(&k).is_none_or(|t| q > *t) {
            to.insert(k, q);
        }
    }
}

fn service(o: &Object, all: &mut Amounts) {
    let ports = o.at(&["spec", "ports"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let (all_ports, given) =
        (ports.len(), ports.iter().filter(|p| p["nodePort"].as_i64().is_some_and(|n| n != 0)).count());
    let suppressed = o.at(&["spec", "allocateLoadBalancerNodePorts"]).is_some_and(|a| a == false);
    let (balancers, node_ports) = match o.str_at(&["spec", "type"]) {
        Some("NodePort") => (0, all_ports),
        Some("LoadBalancer") if suppressed => (1, given),
        Some("LoadBalancer") => (1, all_ports),
        _ => (0, 0),
    };
    all.insert("services.loadbalancers".into(), Quantity::from_int(balancers));
    all.insert("services.nodeports".into(), Quantity::from_int(node_ports as i64));
}

fn claim(o: &Object, all: &mut Amounts) {
    let beta = o.annotation("volume.beta.kubernetes.io/storage-class");
    let class = beta.or_else(|| o.str_at(&["spec", "storageClassName"])).filter(|c| !c.is_empty());
    let mut amounts = Amounts::from([("persistentvolumeclaims".to_owned(), Quantity::from_int(1))]);
    let quantity = |path: &[&str]| o.str_at(path).and_then(|q| Quantity::parse(q).ok());
    let requested = quantity(&["spec", "resources", "requests", "storage"]);
    let given = quantity(&["status", "allocatedResources", "storage"]);
    if let Some(requested) = requested {
        let more = given.filter(|g| *g > requested).unwrap_or(requested);
        amounts.insert("requests.storage".into(), whole(more));
    }
    for (k, q) in amounts {
        all.extend(class.map(|c| (format!("{c}{CLASS}{k}"), q)));
        all.insert(k, q);
    }
}

/// The devices that a claim may get, by class. Of alternatives, the largest number of each class.
fn devices(o: &Object) -> Amounts {
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let requested = |request: &Value| {
        let count = match request["allocationMode"].as_str() {
            Some("ExactCount") => request["count"].as_i64().unwrap_or(0),
            Some("All") => MOST_DEVICES,
            _ => 0,
        };
        let class = request["deviceClassName"].as_str().unwrap_or_default();
        Amounts::from([(format!("{class}{DEVICES}"), Quantity::from_int(count))])
    };
    let mut all = Amounts::new();
    for request in o.at(&["spec", "devices", "requests"]).map(list).unwrap_or_default() {
        let alternatives = list(&request["firstAvailable"]);
        if alternatives.is_empty() {
            if request["exactly"].is_object() {
                add(&mut all, requested(&request["exactly"]));
            }
            continue;
        }
        let mut most = Amounts::new();
        alternatives.iter().for_each(|a| max(&mut most, requested(a)));
        add(&mut all, most);
    }
    all
}

/// Rounds up to whole bytes.
fn whole(q: Quantity) -> Quantity {
    if q.is_integer() { q } else { Quantity::from_int(q.value()) }
}

/// Requests and limits that containers omit although a quota on CPU or memory requires them. A pod that has some as a whole needs none.
pub(crate) fn missing(names: &[&str], pod: &Object) -> Option<String> {
    if has_pod_level(pod) {
        return None;
    }
    let must = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for c in containers(pod, "containers").chain(containers(pod, "initContainers")) {
        let r = c.get("resources");
        let amounts = compute(&part_amounts(r, "requests"), &part_amounts(r, "limits"));
        for name in names.iter().filter(|n| must.contains(n) && !amounts.contains_key(**n)) {
            missing.entry(name).or_default().insert(c["name"].as_str().unwrap_or_default());
        }
    }
    let entry = |(name, containers): (&str, BTreeSet<&str>)| {
        format!("{name} for: {}", containers.into_iter().collect::<Vec<_>>().join(","))
    };
    let all: Vec<String> = missing.into_iter().map(entry).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(spec: Value, status: Value) -> Object {
        Object::from_value(json!({"metadata": {"name": "p"}, "spec": spec, "status": status})).unwrap()
    }

    #[track_caller]
    fn check(spec: Value, status: Value, expect: &[(&str, &str)]) {
        let all = usage("", "pods", &object(spec.clone(), status), None);
        for (name, amount) in expect {
            let found = all.get(*name).map(ToString::to_string).unwrap_or_default();
            assert_eq!(found, *amount, "{name} of {spec}");
        }
    }

    #[test]
    fn pods_are_charged_as_a_whole() {
        let with = |requests: Value, limits: Value| json!({"requests": requests, "limits": limits});
        let container = |resources: Value| json!([{"name": "c", "resources": resources}]);
        // Only limits as a whole, before the defaults: there are no requests to charge.
        let limits = json!({"containers": [{"name": "c"}], "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}});
        check(limits, json!({}), &[("limits.cpu", "1"), ("limits.memory", "1Gi"), ("requests.cpu", ""), ("pods", "1")]);
        // What the pod has as a whole replaces the sum of the containers; other resources stay.
        let both = json!({"containers": container(with(json!({"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}), json!({"cpu": "2"}))),
            "resources": with(json!({"cpu": "3", "ephemeral-storage": "9Gi", "hugepages-2Mi": "4Mi"}), json!({"memory": "5Gi"}))});
        check(
            both,
            json!({}),
            &[
                ("requests.cpu", "3"),
                ("cpu", "3"),
                ("requests.memory", "1Gi"),
                ("requests.ephemeral-storage", "1Gi"),
                ("requests.hugepages-2Mi", "4Mi"),
                ("limits.cpu", "2"),
                ("limits.memory", "5Gi"),
            ],
        );
        let overhead =
            json!({"overhead": {"cpu": "100m"}, "resources": with(json!({"cpu": "1"}), json!({"cpu": "0"}))});
        check(overhead, json!({}), &[("requests.cpu", "1100m"), ("limits.cpu", "0")]);
    }

    #[test]
    fn a_resize_is_charged_with_the_larger_amount() {
        let spec =
            json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}]});
        let status = |allocated: &str, condition: &str| {
            json!({"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": allocated},
            "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "4"}}}], "conditions": [{"type": "PodResizePending", "reason": condition}]})
        };
        check(spec.clone(), status("500m", "Deferred"), &[("requests.cpu", "1"), ("limits.cpu", "4")]);
        check(spec.clone(), status("3", "Deferred"), &[("requests.cpu", "3"), ("limits.cpu", "4")]);
        check(spec.clone(), status("500m", "Infeasible"), &[("requests.cpu", "500m"), ("limits.cpu", "4")]);
        check(
            spec,
            json!({"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "9"}}]}),
            &[("requests.cpu", "1")],
        );
    }

    #[test]
    fn containers_of_a_pod_with_resources_need_none() {
        let names = ["cpu", "limits.memory", "requests.cpu", "pods"];
        let missing = |spec: Value| missing(&names, &object(spec, json!({})));
        let containers = json!([{"name": "b"}, {"name": "a", "resources": {"requests": {"cpu": "1"}}}]);
        assert_eq!(
            missing(json!({"containers": containers, "initContainers": [{"name": "i"}]})).as_deref(),
            Some("cpu for: b,i; limits.memory for: a,b,i; requests.cpu for: b,i")
        );
        for (resources, needs) in [
            (json!({"limits": {"cpu": "1"}}), false),
            (json!({"requests": {"hugepages-2Mi": "2Mi"}}), false),
            (json!({}), true),
            (json!({"limits": {}, "requests": {}}), true),
        ] {
            let found = missing(json!({"containers": containers, "resources": resources}));
            assert_eq!(found.is_some(), needs, "{resources}");
        }
    }

    #[test]
    fn scopes_follow_the_class_of_service() {
        let best_effort = crate::Scope::read(&json!({"scopeName": "BestEffort"}));
        let containers = json!([{"name": "c", "resources": {"requests": {"cpu": "1"}}}]);
        for (spec, status, expect) in [
            (json!({"containers": containers}), json!({}), false),
            (json!({"containers": [{"name": "c"}]}), json!({}), true),
            (json!({"containers": [{"name": "c"}], "resources": {"limits": {"memory": "1Gi"}}}), json!({}), false),
            // Resources of the pod as a whole decide, if it has any, and what the status says before both.
            (json!({"containers": containers, "resources": {"limits": {"hugepages-2Mi": "2Mi"}}}), json!({}), true),
            (json!({"containers": containers}), json!({"qosClass": "BestEffort"}), true),
            (json!({"containers": [{"name": "c"}]}), json!({"qosClass": "Burstable"}), false),
        ] {
            assert_eq!(best_effort.holds("", "pods", &object(spec.clone(), status)), expect, "{spec}");
        }
    }
}
