//! Variables of containers and where they come from; what the downward API can tell.

use crate::read::{is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Quantity, Value, names};
use std::collections::HashMap;

/// What a variable may take from its pod.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Every field of a pod that the downward API has a name for.
const KNOWN_FIELDS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.phase",
    "status.podIP",
    "status.podIPs",
];

const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

const HUGE: [&str; 2] = ["limits.hugepages-", "requests.hugepages-"];

const SOURCES: [&str; 5] = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];

pub fn variables(c: &Value, at: &FieldPath, volumes: &HashMap<&str, &Value>, errors: &mut ErrorList) {
    for (i, e) in items(c, "env").iter().enumerate() {
        if e["valueFrom"].is_object() {
            source(e, &at.child("env").index(i).child("valueFrom"), volumes, errors);
        }
    }
    for (i, e) in items(c, "envFrom").iter().enumerate() {
        whole_map(e, &at.child("envFrom"), i, errors);
    }
}

fn source(e: &Value, at: &FieldPath, volumes: &HashMap<&str, &Value>, errors: &mut ErrorList) {
    let from = &e["valueFrom"];
    if is_set(from, "fieldRef") {
        field_ref(&from["fieldRef"], &ENV_FIELDS, &at.child("fieldRef"), errors);
    }
    if is_set(from, "resourceFieldRef") {
        resource_ref(&from["resourceFieldRef"], Place::Container, &at.child("resourceFieldRef"), errors);
    }
    if is_set(from, "fileKeyRef") {
        let volume = text(&from["fileKeyRef"], "volumeName");
        let at = at.child("fileKeyRef").child("volumeName");
        match volumes.get(volume) {
            _ if volume.is_empty() => {}
            None => errors.push(FieldError::not_found(&at, volume)),
            Some(v) if !v["emptyDir"].is_object() => {
                errors.push(FieldError::invalid(&at, volume, "referenced volume must be of type emptyDir"));
            }
            Some(_) => {}
        }
    }
    let why = match SOURCES.iter().filter(|k| is_set(from, k)).count() {
        0 => "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        _ if !text(e, "value").is_empty() => "may not be specified when `value` is not empty",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    errors.push(FieldError::invalid(at, "", why));
}

/// Variables of a whole map. What is missing of it is said of the list.
fn whole_map(e: &Value, list: &FieldPath, i: usize, errors: &mut ErrorList) {
    let at = list.index(i);
    let prefix = text(e, "prefix");
    if !prefix.is_empty() {
        let bad = names::env_var_name(prefix);
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child("prefix"), prefix, m)));
    }
    let sources: Vec<&str> = ["configMapRef", "secretRef"].into_iter().filter(|k| is_set(e, k)).collect();
    for k in &sources {
        let name = text(&e[*k], "name");
        let at = at.child(k).child("name");
        if name.is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else {
            let bad = names::dns_subdomain(&names::as_prefix(name));
            errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at, name, m)));
        }
    }
    match sources.len() {
        0 => errors.push(FieldError::invalid(list, "", "must specify one of: `configMapRef` or `secretRef`")),
        1 => {}
        _ => errors.push(FieldError::invalid(list, "", "may not have more than one field specified at a time")),
    }
}

/// A field of the pod, of those that may be had here.
pub fn field_ref(r: &Value, allowed: &[&str], at: &FieldPath, errors: &mut ErrorList) {
    let (version, path) = (text(r, "apiVersion"), text(r, "fieldPath"));
    let at_path = at.child("fieldPath");
    if version.is_empty() {
        errors.push(FieldError::required(&at.child("apiVersion"), ""));
        return;
    }
    if path.is_empty() {
        errors.push(FieldError::required(&at_path, ""));
        return;
    }
    let subscripted = path.strip_suffix("']").and_then(|p| p.split_once("['")).filter(|(base, _)| !base.is_empty());
    let internal = if path == "spec.host" { "spec.nodeName" } else { path };
    let bad = match subscripted {
        _ if version != "v1" => Some(format!("unsupported pod version: {version}")),
        Some(("metadata.annotations" | "metadata.labels", _)) => None,
        Some(_) => Some(format!("field label does not support subscript: {path}")),
        None if !KNOWN_FIELDS.contains(&internal) => Some(format!("field label not supported: {path}")),
        None => None,
    };
    match (bad, subscripted) {
        (Some(why), _) => {
            errors.push(FieldError::invalid(&at_path, path, format!("error converting fieldPath: {why}")));
        }
        (None, Some((base, key))) => {
            let key = if base == "metadata.annotations" { key.to_lowercase() } else { key.to_owned() };
            let bad = names::qualified_name(&key);
            errors.extend(bad.into_iter().map(|m| FieldError::invalid(at, key.as_str(), m)));
        }
        (None, None) if !allowed.contains(&internal) => {
            errors.push(FieldError::not_supported(&at_path, internal, allowed));
        }
        _ => {}
    }
}

/// Where a resource is told: in a container about itself, or in a file about one that is named.
#[derive(Clone, Copy, PartialEq)]
pub enum Place {
    Container,
    Volume,
}

/// A resource of a container.
pub fn resource_ref(r: &Value, place: Place, at: &FieldPath, errors: &mut ErrorList) {
    let resource = text(r, "resource");
    let huge = HUGE.iter().any(|p| resource.starts_with(p));
    if place == Place::Volume && text(r, "containerName").is_empty() {
        errors.push(FieldError::required(&at.child("containerName"), ""));
    } else if resource.is_empty() {
        errors.push(FieldError::required(&at.child("resource"), ""));
    } else if !RESOURCES.contains(&resource) && !huge {
        errors.push(FieldError::not_supported(&at.child("resource"), resource, &RESOURCES));
    }
    divisor(r, resource, &at.child("divisor"), errors);
}

const CPU_UNITS: [&str; 2] = ["1m", "1"];
const BYTE_UNITS: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// In which unit a resource is told.
fn divisor(r: &Value, resource: &str, at: &FieldPath, errors: &mut ErrorList) {
    let Some(unit) = r["divisor"].as_str().and_then(|s| Quantity::parse(s).ok()).filter(|q| !q.is_zero()) else {
        return;
    };
    let name = ["limits.", "requests."].iter().find_map(|p| resource.strip_prefix(p));
    let (units, listed, what) = match name {
        Some("cpu") => (&CPU_UNITS[..], CPU_UNITS.join(" and "), "cpu"),
        Some("memory") => (&BYTE_UNITS[..], BYTE_UNITS.join(", "), "memory"),
        Some("ephemeral-storage") => (&BYTE_UNITS[..], BYTE_UNITS.join(", "), "local ephemeral storage"),
        Some(n) if n.starts_with("hugepages-") => (&BYTE_UNITS[..], BYTE_UNITS.join(", "), "hugepages"),
        _ => return,
    };
    if !units.contains(&unit.to_string().as_str()) {
        let why = format!("only divisor's values {listed} are supported with the {what} resource");
        errors.push(FieldError::invalid(at, resource, why));
    }
}
