//! Validation of environment variables and their sources, and of the downward API.

use crate::read::{is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Quantity, Value, names};
use std::collections::HashMap;

/// Pod fields that variables may refer to.
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

/// All pod fields of the downward API.
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

pub fn variables(c: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for (i, e) in items(c, "env").iter().enumerate() {
        if e["valueFrom"].is_object() {
            source(e, &at.child("env").index(i).child("valueFrom"), errors);
        }
    }
    for (i, e) in items(c, "envFrom").iter().enumerate() {
        env_from(e, &at.child("envFrom"), i, errors);
    }
}

/// Validates the volumes of variables from files: volumes of the pod, valid or not, of type `emptyDir` (`validateFileKeyRefVolumes`).
pub fn file_volumes(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let volumes: HashMap<&str, &Value> = items(spec, "volumes").iter().map(|v| (text(v, "name"), v)).collect();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, c) in items(spec, list).iter().enumerate() {
            for (j, e) in items(c, "env").iter().enumerate().filter(|(_, e)| is_set(&e["valueFrom"], "fileKeyRef")) {
                let name = text(&e["valueFrom"]["fileKeyRef"], "volumeName");
                let at = path.child(list).index(i).child("env").index(j);
                let at = at.child("valueFrom").child("fileKeyRef").child("volumeName");
                match volumes.get(name) {
                    None => errors.push(FieldError::not_found(&at, name)),
                    Some(v) if !v["emptyDir"].is_object() => {
                        errors.push(FieldError::invalid(&at, name, "referenced volume must be of type emptyDir"));
                    }
                    Some(_) => {}
                }
            }
        }
    }
}

fn source(e: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let from = &e["valueFrom"];
    if is_set(from, "fieldRef") {
        field_ref(&from["fieldRef"], &ENV_FIELDS, &at.child("fieldRef"), errors);
    }
    if is_set(from, "resourceFieldRef") {
        resource_ref(&from["resourceFieldRef"], Consumer::Container, &at.child("resourceFieldRef"), errors);
    }
    let why = match SOURCES.iter().filter(|k| is_set(from, k)).count() {
        0 => "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        _ if !text(e, "value").is_empty() => "may not be specified when `value` is not empty",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    errors.push(FieldError::invalid(at, "", why));
}

/// Validates an item of `envFrom`. Upstream reports a missing source at the list.
fn env_from(e: &Value, list: &FieldPath, i: usize, errors: &mut ErrorList) {
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

/// Validates a reference to a pod field, of those in `allowed`.
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

/// The consumer of a resource reference: a container's own variable, or a volume, which must name the container.
#[derive(Clone, Copy, PartialEq)]
pub enum Consumer {
    Container,
    Volume,
}

/// Validates a reference to a resource of a container.
pub fn resource_ref(r: &Value, consumer: Consumer, at: &FieldPath, errors: &mut ErrorList) {
    let resource = text(r, "resource");
    let huge = HUGE.iter().any(|p| resource.starts_with(p));
    if consumer == Consumer::Volume && text(r, "containerName").is_empty() {
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

/// Validates the divisor of a resource reference.
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

#[cfg(test)]
mod tests {
    use crate::testing::check_pod_spec;
    use serde_json::{Value, json};

    #[test]
    fn validates_variables_and_sources() {
        let field = "/containers/0/env";
        let at = "containers[0].env[0]";
        let from = |source: Value| json!([{"name": "A", "valueFrom": source}]);
        let one =
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        let path = |path: &str| from(json!({"fieldRef": {"fieldPath": path}}));
        check_pod_spec(&[
            (field, json!([{"name": "A", "value": "b"}]), &[]),
            (field, json!([{"name": "", "value": "b"}]), &[&format!("{at}.name: Required value")]),
            (field, from(json!({})), &[&format!("{at}.valueFrom: Invalid value: \"\": {one}")]),
            (
                field,
                json!([{"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
                &[&format!("{at}.valueFrom: Invalid value: \"\": may not be specified when `value` is not empty")],
            ),
            (field, path("status.podIP"), &[]),
            (field, path("metadata.labels['a']"), &[]),
            (
                field,
                path("spec.hostname"),
                &[&format!(
                    "{at}.valueFrom.fieldRef.fieldPath: Invalid value: \"spec.hostname\": error converting fieldPath: field label not supported: spec.hostname"
                )],
            ),
            (
                field,
                path("metadata.labels"),
                &[&format!(
                    "{at}.valueFrom.fieldRef.fieldPath: Unsupported value: \"metadata.labels\": supported values: …"
                )],
            ),
            (
                field,
                path("metadata.name['a']"),
                &[&format!(
                    "{at}.valueFrom.fieldRef.fieldPath: Invalid value: \"metadata.name['a']\": error converting fieldPath: field label does not support subscript: metadata.name['a']"
                )],
            ),
            (
                field,
                from(json!({"resourceFieldRef": {"resource": "limits.other"}})),
                &[&format!(
                    "{at}.valueFrom.resourceFieldRef.resource: Unsupported value: \"limits.other\": supported values: …"
                )],
            ),
            (
                field,
                from(json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}})),
                &[&format!(
                    "{at}.valueFrom.resourceFieldRef.divisor: Invalid value: \"limits.cpu\": only divisor's values 1m and 1 are supported with the cpu resource"
                )],
            ),
            ("/containers/0/envFrom", json!([{"secretRef": {"name": "s"}}]), &[]),
            (
                "/containers/0/envFrom",
                json!([{}]),
                &["containers[0].envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`"],
            ),
            (
                "/containers/0/envFrom",
                json!([{"secretRef": {"name": "s"}, "configMapRef": {"name": "c"}}]),
                &["containers[0].envFrom: Invalid value: \"\": may not have more than one field specified at a time"],
            ),
        ]);
    }
}
