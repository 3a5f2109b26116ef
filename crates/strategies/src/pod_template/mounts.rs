//! Validation of volume mounts and block devices. Upstream reports some errors at the list.

use crate::read::{is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value};
use schema::rules::descending_path;
use std::collections::{HashMap, HashSet};

const PROPAGATION: [&str; 3] = ["Bidirectional", "HostToContainer", "None"];
const RECURSIVE: [&str; 3] = ["Disabled", "Enabled", "IfPossible"];

pub fn rules(c: &Value, at: &FieldPath, volumes: &HashMap<&str, &Value>, errors: &mut ErrorList) {
    let list = at.child("volumeMounts");
    let devices = |field| -> HashSet<&str> { items(c, "volumeDevices").iter().map(|d| text(d, field)).collect() };
    let (device_names, device_paths) = (devices("name"), devices("devicePath"));
    let mut paths = HashSet::new();
    for (i, m) in items(c, "volumeMounts").iter().enumerate() {
        let at = list.index(i);
        let (volume, path) = (text(m, "name"), text(m, "mountPath"));
        if volume.is_empty() {
            errors.push(FieldError::required(&at.child("name"), ""));
        }
        if !volumes.contains_key(volume) {
            errors.push(FieldError::not_found(&at.child("name"), volume));
        }
        if path.is_empty() {
            errors.push(FieldError::required(&at.child("mountPath"), ""));
        }
        if !paths.insert(path) {
            errors.push(FieldError::invalid(&at.child("mountPath"), path, "must be unique"));
        }
        if device_names.contains(volume) {
            errors.push(FieldError::invalid(&at.child("name"), volume, "must not already exist in volumeDevices"));
        }
        if device_paths.contains(path) {
            let why = "must not already exist as a path in volumeDevices";
            errors.push(FieldError::invalid(&at.child("mountPath"), path, why));
        }
        let (sub, expression) = (text(m, "subPath"), text(m, "subPathExpr"));
        descending_path(sub, &list.child("subPath"), errors);
        if !sub.is_empty() && !expression.is_empty() {
            let why = "subPathExpr and subPath are mutually exclusive";
            errors.push(FieldError::invalid(&at.child("subPathExpr"), expression, why));
        }
        descending_path(expression, &list.child("subPathExpr"), errors);
        propagation(m, c, &list.child("mountPropagation"), errors);
        recursive(m, &list.child("recursiveReadOnly"), errors);
    }
    block_devices(c, &at.child("volumeDevices"), volumes, errors);
}

fn propagation(m: &Value, c: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let Some(p) = m["mountPropagation"].as_str() else { return };
    if !PROPAGATION.contains(&p) {
        errors.push(FieldError::not_supported(at, p, &PROPAGATION));
    }
    if p == "Bidirectional" && c["securityContext"]["privileged"] != true {
        let why = "Bidirectional mount propagation is available only to privileged containers";
        errors.push(FieldError::forbidden(at, why));
    }
}

fn recursive(m: &Value, at: &FieldPath, errors: &mut ErrorList) {
    match m["recursiveReadOnly"].as_str() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if m["readOnly"] != true {
                errors.push(FieldError::forbidden(at, "may only be specified when readOnly is true"));
            }
            if m["mountPropagation"].as_str().is_some_and(|p| p != "None") {
                let why = "may only be specified when mountPropagation is None or not specified";
                errors.push(FieldError::forbidden(at, why));
            }
        }
        Some(other) => errors.push(FieldError::not_supported(at, other, &RECURSIVE)),
    }
}

/// Validates volume devices, which must be claims, and may not be mounted as well.
fn block_devices(c: &Value, list: &FieldPath, volumes: &HashMap<&str, &Value>, errors: &mut ErrorList) {
    let mounts = |field| -> HashSet<&str> { items(c, "volumeMounts").iter().map(|m| text(m, field)).collect() };
    let (mount_names, mount_paths) = (mounts("name"), mounts("mountPath"));
    let (mut used, mut paths) = (HashSet::new(), HashSet::new());
    for (i, d) in items(c, "volumeDevices").iter().enumerate() {
        let at = list.index(i);
        let (name, path) = (text(d, "name"), text(d, "devicePath"));
        if name.is_empty() {
            errors.push(FieldError::required(&at.child("name"), ""));
        }
        if used.contains(name) {
            errors.push(FieldError::invalid(&at.child("name"), name, "must be unique"));
        }
        match volumes.get(name) {
            None => errors.push(FieldError::not_found(&at.child("name"), name)),
            Some(v) if !is_set(v, "persistentVolumeClaim") && !is_set(v, "ephemeral") => {
                let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.push(FieldError::invalid(&at.child("name"), name, why));
            }
            Some(_) => {}
        }
        if path.is_empty() {
            errors.push(FieldError::required(&at.child("devicePath"), ""));
        }
        if paths.contains(path) {
            errors.push(FieldError::invalid(&at.child("devicePath"), path, "must be unique"));
        }
        if path.split('/').any(|s| s == "..") {
            errors.push(FieldError::invalid(&at.child("devicePath"), path, "can not contain backsteps ('..')"));
        } else {
            paths.insert(path);
        }
        if mount_names.contains(name) {
            errors.push(FieldError::invalid(&at.child("name"), name, "must not already exist in volumeMounts"));
        }
        if mount_paths.contains(path) {
            let why = "must not already exist as a path in volumeMounts";
            errors.push(FieldError::invalid(&at.child("devicePath"), path, why));
        }
        if !name.is_empty() {
            used.insert(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::check_create;
    use serde_json::json;

    #[test]
    fn validates_mounts_and_devices() {
        let base = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "d", "persistentVolumeClaim": {"claimName": "c"}}],
            "containers": [{"name": "c", "image": "i"}]}});
        let mounts = "spec.containers[0].volumeMounts";
        let devices = "spec.containers[0].volumeDevices";
        let mount = |extra: serde_json::Value| {
            let mut m = json!({"name": "v", "mountPath": "/a"});
            extra.as_object().into_iter().flatten().for_each(|(k, v)| m[k] = v.clone());
            json!([m])
        };
        let field = "/spec/containers/0/volumeMounts";
        check_create(
            &crate::core::pod::Pod,
            &base,
            &[
                (field, mount(json!({})), &[]),
                (field, mount(json!({"name": "w"})), &[&format!("{mounts}[0].name: Not found: \"w\"")]),
                (field, mount(json!({"mountPath": ""})), &[&format!("{mounts}[0].mountPath: Required value")]),
                (
                    field,
                    json!([{"name": "v", "mountPath": "/a"}, {"name": "d", "mountPath": "/a"}]),
                    &[&format!("{mounts}[1].mountPath: Invalid value: \"/a\": must be unique")],
                ),
                (
                    field,
                    mount(json!({"subPath": "../b"})),
                    &[&format!("{mounts}.subPath: Invalid value: \"../b\": must not contain '..'")],
                ),
                (
                    field,
                    mount(json!({"subPath": "a", "subPathExpr": "b"})),
                    &[&format!(
                        "{mounts}[0].subPathExpr: Invalid value: \"b\": subPathExpr and subPath are mutually exclusive"
                    )],
                ),
                (
                    field,
                    mount(json!({"mountPropagation": "Bidirectional"})),
                    &[&format!(
                        "{mounts}.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers"
                    )],
                ),
                (
                    field,
                    mount(json!({"recursiveReadOnly": "Enabled"})),
                    &[&format!("{mounts}.recursiveReadOnly: Forbidden: may only be specified when readOnly is true")],
                ),
                ("/spec/containers/0/volumeDevices", json!([{"name": "d", "devicePath": "/dev/a"}]), &[]),
                (
                    "/spec/containers/0/volumeDevices",
                    json!([{"name": "v", "devicePath": "/dev/a"}]),
                    &[&format!(
                        "{devices}[0].name: Invalid value: \"v\": can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
                    )],
                ),
                (
                    "/spec/containers/0/volumeDevices",
                    json!([{"name": "d", "devicePath": "/dev/../a"}]),
                    &[&format!(
                        "{devices}[0].devicePath: Invalid value: \"/dev/../a\": can not contain backsteps ('..')"
                    )],
                ),
            ],
        );
    }
}
