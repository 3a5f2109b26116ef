//! Validation of the pod status (`ValidatePodStatusUpdate`).

use super::container_status;
use super::pod_fields::items;
use crate::pod_template::annotations;
use crate::read::{shown, shown_list, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use std::collections::HashSet;
use std::net::IpAddr;

const STATUSES: [&str; 3] = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];

/// Conditions of the system, which have no domain.
const OWN_CONDITIONS: [&str; 3] = ["PodScheduled", "Ready", "Initialized"];

/// Keeps the QoS class and observed generations that an older client omits.
pub fn keep(o: &mut Object, old: &Object) {
    let class = |o: &Object| o.str_at(&["status", "qosClass"]).unwrap_or_default().to_owned();
    if o.get("status").is_some() && class(o).is_empty() && !class(old).is_empty() {
        o.set(&["status", "qosClass"], class(old));
    }
    const OBSERVED: &str = "observedGeneration";
    if let Some(n) = old.int_at(&["status", OBSERVED]).filter(|_| o.get("status").is_some())
        && o.int_at(&["status", OBSERVED]).unwrap_or(0) == 0
    {
        o.set(&["status", OBSERVED], n);
    }
    let mut was = old.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(Value::Array(mut all)) = o.at(&["status", "conditions"]).cloned() else { return };
    for c in &mut all {
        let Some(i) = was.iter().position(|w| w["type"] == c["type"]) else { continue };
        let before = was.remove(i)[OBSERVED].as_i64().unwrap_or(0);
        if c[OBSERVED].as_i64().unwrap_or(0) == 0 && before != 0 {
            c[OBSERVED] = before.into();
        }
    }
    o.set(&["status", "conditions"], all);
}

pub fn validate(o: &Object, old: &Object, errors: &mut ErrorList) {
    let list = |p: &Object, key: &str| p.at(&["status", key]).and_then(Value::as_array).cloned().unwrap_or_default();
    let status = FieldPath::new("status");
    let of = |p: &Object| p.at(&["metadata", "annotations"]).cloned().unwrap_or_default();
    let at = FieldPath::new("metadata.annotations");
    annotations::update(&of(o), &of(old), &at, errors);
    annotations::rules(&of(o), o.get("spec").unwrap_or(&Value::Null), &at, errors);
    for (i, c) in list(o, "conditions").iter().enumerate() {
        let ty = text(c, "type");
        if !OWN_CONDITIONS.contains(&ty) {
            let at = FieldPath::new("metadata.conditions").index(i).child("Type");
            errors.extend(names::qualified_name(ty).into_iter().map(|m| FieldError::invalid(&at, ty, m)));
        }
    }
    let nominated = |p: &Object| p.str_at(&["status", "nominatedNodeName"]).unwrap_or_default().to_owned();
    let node = nominated(o);
    if !node.is_empty() && node != nominated(old) {
        let at = status.child("nominatedNodeName");
        errors.extend(names::dns_subdomain(&node).into_iter().map(|m| FieldError::invalid(&at, node.as_str(), m)));
    }
    let class = |p: &Object| p.at(&["status", "qosClass"]).cloned().unwrap_or_default();
    if class(o) != class(old) {
        errors.push(FieldError::invalid(&status.child("qosClass"), class(o), "field is immutable"));
    }
    for (of, key) in [
        ("containers", "containerStatuses"),
        ("initContainers", "initContainerStatuses"),
        ("", "ephemeralContainerStatuses"),
    ] {
        terminated_stays(old, of, &list(o, key), &list(old, key), &status.child(key), errors);
    }
    let mut seen = HashSet::new();
    let claims: HashSet<&str> = items(o, "resourceClaims").iter().map(|c| text(c, "name")).collect();
    for (i, c) in list(o, "resourceClaimStatuses").iter().enumerate() {
        let at = status.child("resourceClaimStatuses").index(i).child("name");
        let name = text(c, "name");
        if !claims.contains(name) {
            let why = "must match the name of an entry in `spec.resourceClaims`";
            errors.push(FieldError::invalid(&at, name, why));
        }
        if !seen.insert(name.to_owned()) {
            errors.push(FieldError::duplicate(&at, name));
        }
        if let Some(claim) = c["resourceClaimName"].as_str() {
            errors.extend(names::dns_subdomain(claim).into_iter().map(|m| FieldError::invalid(&at, claim, m)));
        }
    }
    addresses(&list(o, "podIPs"), &status.child("podIPs"), errors);
    let hosts = list(o, "hostIPs");
    if let Some(first) = hosts.first()
        && Some(text(first, "ip")) != o.str_at(&["status", "hostIP"])
    {
        let at = status.child("hostIPs").index(0).child("ip");
        errors.push(FieldError::invalid(&at, text(first, "ip"), "must be equal to `hostIP`"));
    }
    addresses(&hosts, &status.child("hostIPs"), errors);
    for key in STATUSES {
        container_status::users(o, &list(o, key), &status.child(key), errors);
    }
    for (of, key) in ["containers", "initContainers", ""].into_iter().zip(STATUSES) {
        container_status::devices(items(o, of), &list(o, key), &status.child(key), errors);
    }
}

const ADDRESS: &str = "io.k8s.api.core.v1.PodIP";

/// Validates pod IPs: at most one per address family.
fn addresses(all: &[Value], at: &FieldPath, errors: &mut ErrorList) {
    let mut seen = HashSet::new();
    for (i, a) in all.iter().enumerate() {
        schema::rules::ip(text(a, "ip"), &at.index(i), errors);
        if !seen.insert(text(a, "ip")) {
            let at = at.index(i);
            errors.push(FieldError::duplicate(&at, shown(a, ADDRESS, &at)));
        }
    }
    let sixes = all.iter().filter(|a| text(a, "ip").parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6())).count();
    if all.len() > 2 || (all.len() == 2 && sixes != 1) {
        let why = "may specify no more than one IP for each IP family";
        errors.push(FieldError::invalid(at, shown_list(all, ADDRESS, at), why));
    }
}

/// Checks that terminated containers without restart stay terminated. A container's own restart policy overrides the
/// pod's.
fn terminated_stays(old: &Object, of: &str, now: &[Value], was: &[Value], at: &FieldPath, errors: &mut ErrorList) {
    let policy = if of.is_empty() { "Never" } else { old.str_at(&["spec", "restartPolicy"]).unwrap_or_default() };
    if policy == "Always" {
        return;
    }
    for (i, w) in was.iter().enumerate() {
        let over = &w["state"]["terminated"];
        let again = policy == "OnFailure" && over["exitCode"].as_i64() != Some(0);
        let own =
            items(old, of).iter().find(|c| c["name"] == w["name"]).is_some_and(|c| c["restartPolicy"].is_string());
        if !over.is_object() || again || own {
            continue;
        }
        for _ in now.iter().filter(|n| n["name"] == w["name"] && !n["state"]["terminated"].is_object()) {
            let why = "may not be transitioned to non-terminated state";
            errors.push(FieldError::forbidden(&at.index(i).child("state"), why));
        }
    }
}
