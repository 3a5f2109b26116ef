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
            add(&mut all, compute(&pod(o, "requests"), &pod(o, "limits")));
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

/// The resources of a pod: the sum of its containers and sidecars, or the maximum during initialization
/// (`k8s.io/component-helpers/resource`).
pub fn total(o: &Object, part: &str) -> Amounts {
    let mut sum = Amounts::new();
    containers(o, "containers").for_each(|c| add(&mut sum, part_amounts(c.get("resources"), part)));
    let (mut beside, mut most) = (Amounts::new(), Amounts::new());
    for c in containers(o, "initContainers") {
        let own = part_amounts(c.get("resources"), part);
        let mut then = beside.clone();
        add(&mut then, own.clone());
        if c["restartPolicy"] == "Always" {
            add(&mut sum, own);
            beside.clone_from(&then);
        }
        max(&mut most, then);
    }
    max(&mut sum, most);
    for (k, q) in part_amounts(o.at(&["spec", "resources"]), part) {
        sum.insert(k, q);
    }
    sum
}

/// The sum of pod resources and overhead.
fn pod(o: &Object, part: &str) -> Amounts {
    let mut sum = total(o, part);
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

/// Requests and limits that containers omit although a quota on CPU or memory requires them.
pub(crate) fn missing(names: &[&str], pod: &Object) -> Option<String> {
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
