//! Containers: their names, images, ports, environment, mounts, probes.

use super::{resources, security};
use crate::read::{is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Map, Value, names};
use std::collections::{HashMap, HashSet};

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

pub fn rules(spec: &Value, path: &FieldPath, volumes: &HashMap<&str, &Value>, errors: &mut ErrorList) {
    let mut seen: HashSet<&str> = HashSet::new();
    let mut host_ports = HashSet::new();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, c) in items(spec, list).iter().enumerate() {
            let at = path.child(list).index(i);
            let name = text(c, "name");
            if name.is_empty() {
                errors.push(FieldError::required(&at.child("name"), ""));
            } else {
                let bad = names::dns_label(name);
                errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child("name"), name, m)));
                if !seen.insert(name) {
                    errors.push(FieldError::duplicate(&at.child("name"), name));
                }
            }
            container(c, &at, volumes, errors);
            restart(c, list, &at, errors);
            if list == "containers" {
                for (j, p) in items(c, "ports").iter().enumerate() {
                    let host = p["hostPort"].as_i64().unwrap_or(0);
                    let key = format!("{}/{}/{host}", p["protocol"], p["hostIP"]);
                    if host != 0 && !host_ports.insert(key) {
                        errors.push(FieldError::duplicate(&at.child("ports").index(j).child("hostPort"), host));
                    }
                }
            }
        }
    }
}

fn container(c: &Value, at: &FieldPath, volumes: &HashMap<&str, &Value>, errors: &mut ErrorList) {
    let image = text(c, "image");
    if image.is_empty() {
        errors.push(FieldError::required(&at.child("image"), ""));
    } else if image.trim() != image {
        errors.push(FieldError::invalid(&at.child("image"), image, "must not have leading or trailing whitespace"));
    }
    let mut port_names = HashSet::new();
    for (i, p) in items(c, "ports").iter().enumerate() {
        let name = text(p, "name");
        let at = at.child("ports").index(i).child("name");
        if !name.is_empty() {
            let bad = names::port_name(name);
            if bad.is_empty() && !port_names.insert(name) {
                errors.push(FieldError::duplicate(&at, name));
            }
            errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at, name, m)));
        }
    }
    resources::requirements(&c["resources"], &at.child("resources"), errors);
    security::container(c, at, errors);
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let p = &c[probe];
        if p.is_object() {
            let at = at.child(probe);
            handler(p, &at, errors);
            let success = p["successThreshold"].as_i64().unwrap_or(1);
            if probe != "readinessProbe" && success != 1 {
                errors.push(FieldError::invalid(&at.child("successThreshold"), success, "must be 1"));
            }
            if probe == "readinessProbe" && is_set(p, "terminationGracePeriodSeconds") {
                let value = p["terminationGracePeriodSeconds"].clone();
                let why = "must not be set for readinessProbes";
                errors.push(FieldError::invalid(&at.child("terminationGracePeriodSeconds"), value, why));
            }
        }
    }
    for hook in ["postStart", "preStop"] {
        let h = &c["lifecycle"][hook];
        if h.is_object() {
            handler(h, &at.child("lifecycle").child(hook), errors);
        }
    }
    surroundings(c, at, volumes, errors);
}

/// What a container sees of its pod: mounts and variables.
pub fn surroundings(c: &Value, at: &FieldPath, volumes: &HashMap<&str, &Value>, errors: &mut ErrorList) {
    mounts(c, at, volumes, errors);
    for (i, e) in items(c, "env").iter().enumerate() {
        env(e, &at.child("env").index(i), errors);
    }
    for (i, e) in items(c, "envFrom").iter().enumerate() {
        env_from(e, &at.child("envFrom"), i, errors);
    }
}

fn mounts(c: &Value, at: &FieldPath, volumes: &HashMap<&str, &Value>, errors: &mut ErrorList) {
    let mut paths = HashSet::new();
    for (i, m) in items(c, "volumeMounts").iter().enumerate() {
        let at = at.child("volumeMounts").index(i);
        let volume = text(m, "name");
        if volume.is_empty() {
            errors.push(FieldError::required(&at.child("name"), ""));
        }
        if !volumes.contains_key(volume) {
            errors.push(FieldError::not_found(&at.child("name"), volume));
        }
        let path = text(m, "mountPath");
        if path.is_empty() {
            errors.push(FieldError::required(&at.child("mountPath"), ""));
        }
        if !paths.insert(path) {
            errors.push(FieldError::invalid(&at.child("mountPath"), path, "must be unique"));
        }
        for key in ["subPath", "subPathExpr"] {
            let sub = text(m, key);
            if sub.starts_with('/') {
                errors.push(FieldError::invalid(&at.child(key), sub, "must be a relative path"));
            } else if sub.split('/').any(|s| s == "..") {
                errors.push(FieldError::invalid(&at.child(key), sub, "must not contain '..'"));
            }
        }
        if !text(m, "subPath").is_empty() && !text(m, "subPathExpr").is_empty() {
            let value = m["subPathExpr"].clone();
            errors.push(FieldError::invalid(
                &at.child("subPathExpr"),
                value,
                "subPathExpr and subPath are mutually exclusive",
            ));
        }
        if let Some(p) = m["mountPropagation"].as_str() {
            if !matches!(p, "None" | "HostToContainer" | "Bidirectional") {
                let all = ["Bidirectional", "HostToContainer", "None"];
                errors.push(FieldError::not_supported(&at.child("mountPropagation"), p, &all));
            } else if p == "Bidirectional" && c["securityContext"]["privileged"] != true {
                let why = "Bidirectional mount propagation is available only to privileged containers";
                errors.push(FieldError::forbidden(&at.child("mountPropagation"), why));
            }
        }
    }
}

/// Init containers are not probed, unless they go on running.
fn restart(c: &Value, list: &str, at: &FieldPath, errors: &mut ErrorList) {
    let policy = c["restartPolicy"].as_str();
    if let Some(p) = policy
        && list != "ephemeralContainers"
        && !matches!(p, "Always" | "Never" | "OnFailure")
    {
        let all = ["Always", "Never", "OnFailure"];
        errors.push(FieldError::not_supported(&at.child("restartPolicy"), p, &all));
    }
    let forbidden: &[&str] = match list {
        "initContainers" if policy != Some("Always") => {
            &["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"]
        }
        "ephemeralContainers" => {
            &["ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resizePolicy", "restartPolicy"]
        }
        _ => &[],
    };
    for k in forbidden.iter().filter(|k| is_set(c, k)) {
        let why = if list == "initContainers" {
            "may not be set for init containers without restartPolicy=Always"
        } else {
            "cannot be set for an Ephemeral Container"
        };
        errors.push(FieldError::forbidden(&at.child(k), why));
    }
    if list == "ephemeralContainers" && c["resources"].as_object().is_some_and(|r| !r.is_empty()) {
        let why = "cannot be set for an Ephemeral Container";
        errors.push(FieldError::forbidden(&at.child("resources"), why));
    }
}

fn env(e: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let from = &e["valueFrom"];
    if !from.is_object() {
        return;
    }
    let at = at.child("valueFrom");
    if !text(e, "value").is_empty() {
        errors.push(FieldError::invalid(&at, "", "may not be specified when `value` is not empty"));
    }
    match from.as_object().map_or(0, Map::len) {
        0 => errors.push(FieldError::invalid(
            &at,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        )),
        1 => {}
        _ => errors.push(FieldError::invalid(&at, "", "may not have more than one field specified at a time")),
    }
    if is_set(from, "fieldRef") {
        field_ref(&from["fieldRef"], &ENV_FIELDS, &at.child("fieldRef"), errors);
    }
    if is_set(from, "resourceFieldRef") {
        resource_ref(&from["resourceFieldRef"], &at.child("resourceFieldRef"), errors);
    }
}

/// A field of the pod, of those that may be had here.
pub fn field_ref(r: &Value, allowed: &[&str], at: &FieldPath, errors: &mut ErrorList) {
    let path = text(r, "fieldPath");
    let at_path = at.child("fieldPath");
    if text(r, "apiVersion").is_empty() {
        errors.push(FieldError::required(&at.child("apiVersion"), ""));
        return;
    }
    if path.is_empty() {
        errors.push(FieldError::required(&at_path, ""));
        return;
    }
    if let Some((base, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        match base {
            "metadata.annotations" | "metadata.labels" => {
                let key = if base == "metadata.annotations" { key.to_lowercase() } else { key.to_owned() };
                errors.extend(names::qualified_name(&key).into_iter().map(|m| FieldError::invalid(&at_path, path, m)));
            }
            _ => errors.push(FieldError::invalid(&at_path, path, "does not support subscript")),
        }
        return;
    }
    let internal = if path == "spec.host" { "spec.nodeName" } else { path };
    if text(r, "apiVersion") != "v1" {
        let why = format!("error converting fieldPath: unsupported pod version: {}", text(r, "apiVersion"));
        errors.push(FieldError::invalid(&at_path, path, why));
    } else if !KNOWN_FIELDS.contains(&internal) {
        let why = format!("error converting fieldPath: field label not supported: {path}");
        errors.push(FieldError::invalid(&at_path, path, why));
    } else if !allowed.contains(&internal) {
        errors.push(FieldError::not_supported(&at_path, path, allowed));
    }
}

/// A resource of a container.
pub fn resource_ref(r: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let resource = text(r, "resource");
    let huge = ["limits.hugepages-", "requests.hugepages-"].iter().any(|p| resource.starts_with(p));
    if !resource.is_empty() && !RESOURCES.contains(&resource) && !huge {
        errors.push(FieldError::not_supported(&at.child("resource"), resource, &RESOURCES));
    }
}

/// Variables of a whole map. What is missing of it is said of the list.
fn env_from(e: &Value, at: &FieldPath, i: usize, errors: &mut ErrorList) {
    let sources = ["configMapRef", "secretRef"].iter().filter(|k| is_set(e, k)).count();
    match sources {
        0 => errors.push(FieldError::invalid(at, "", "must specify one of: `configMapRef` or `secretRef`")),
        1 => {}
        _ => errors.push(FieldError::invalid(at, "", "may not have more than one field specified at a time")),
    }
    let at = at.index(i);
    let prefix = text(e, "prefix");
    if !prefix.is_empty() {
        let bad = names::env_var_name(prefix);
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child("prefix"), prefix, m)));
    }
    for k in ["configMapRef", "secretRef"] {
        if is_set(e, k) {
            let name = text(&e[k], "name");
            let at = at.child(k).child("name");
            if name.is_empty() {
                errors.push(FieldError::required(&at, ""));
            } else {
                errors.extend(names::dns_subdomain(name).into_iter().map(|m| FieldError::invalid(&at, name, m)));
            }
        }
    }
}

fn handler(h: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let kinds: Vec<&str> =
        ["exec", "httpGet", "tcpSocket", "grpc", "sleep"].into_iter().filter(|k| h[*k].is_object()).collect();
    match &kinds[..] {
        [] => errors.push(FieldError::required(at, "must specify a handler type")),
        [_] => {}
        [_, rest @ ..] => {
            for k in rest {
                errors.push(FieldError::forbidden(&at.child(k), "may not specify more than 1 handler type"));
            }
        }
    }
    for header in items(&h["httpGet"], "httpHeaders") {
        let name = text(header, "name");
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            let why = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
            errors.push(FieldError::invalid(&at.child("httpGet").child("httpHeaders"), name, why));
        }
    }
}
