//! PersistentVolume: exactly one source, which is immutable.

use super::volume::{OLD_CLASS, access_modes, annotations, basic, cells, immutable_mode, positive};
use crate::Config;
use crate::core::pod_shape;
use crate::plain::{Ruled, repeat_errors};
use crate::pod_template::{node_selector_terms, node_term_warnings, sources};
use crate::read::{delegated, is_set, items, shown, text};
use crate::table::Row;
use meta::field::{BadValue, ErrorList};
use meta::{FieldError, FieldPath, Map, Object, Value, names, time};
use registry::Env;
use serde_json::json;

pub fn row(_: &Config) -> Row {
    Row::stored(
        Ruled::new(validate)
            .with_cells(cells)
            .with_update(validate_update)
            .with_default(default_spec)
            .with_prepare(initial_status)
            .with_prepare_status(transition_time)
            .with_warnings(warnings),
    )
}

/// Sets the defaults of the spec, which inline volumes of attachments do not have (`SetDefaults_PersistentVolume`).
fn default_spec(o: &mut Object) {
    if o.str_at(&["spec", "persistentVolumeReclaimPolicy"]).unwrap_or_default().is_empty() {
        o.set(&["spec", "persistentVolumeReclaimPolicy"], "Retain");
    }
    if o.str_at(&["spec", "volumeMode"]).is_none() {
        o.set(&["spec", "volumeMode"], "Filesystem");
    }
}

fn initial_status(env: Env<'_>, o: &mut Object, old: Option<&Object>) {
    if old.is_none() {
        o.set(&["status"], json!({"phase": "Pending", "lastPhaseTransitionTime": time::format(env.clock().now())}));
    }
}

/// When the phase changed.
const TRANSITION: [&str; 2] = ["status", "lastPhaseTransitionTime"];

/// Sets the time at which the phase changed, unless the client did.
fn transition_time(env: Env<'_>, o: &mut Object, old: &Object) {
    set_transition(o, old, &time::format(env.clock().now()));
}

fn set_transition(o: &mut Object, old: &Object, now: &str) {
    let same_phase = o.at(&["status", "phase"]) == old.at(&["status", "phase"]);
    let time = |o: &Object| o.at(&TRANSITION).filter(|t| !t.is_null()).cloned();
    let (sent, before) = (time(o), time(old));
    match before {
        Some(t) if same_phase && sent.is_none() => o.set(&TRANSITION, t),
        t if !same_phase && (sent.is_none() || sent == t) => o.set(&TRANSITION, now),
        _ => {}
    }
}

/// Volume sources in order of validation: upstream validates the first one that is set.
const KINDS: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

const SPEC: &str = "io.k8s.api.core.v1.PersistentVolumeSpec";

const OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// Deprecated and removed sources: field, name in warnings, and warning.
const OLD_SOURCES: [(&str, &str, &str); 6] = [
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

fn validate(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    for field in ["capacity", "persistentVolumeReclaimPolicy", "storageClassName", "volumeMode"] {
        delegated(spec, SPEC, field, &path, errors);
    }
    access_modes(spec, &path, errors);
    let capacity = &spec["capacity"];
    let at = path.child("capacity");
    let only_storage = capacity.as_object().is_some_and(|c| c.len() == 1 && c.contains_key("storage"));
    if !only_storage {
        errors.push(FieldError::not_supported(&at, capacity, &["storage"]));
    }
    for (k, v) in capacity.as_object().into_iter().flatten() {
        basic(v, &at.key(k), errors);
        positive(v, &at.key(k), errors);
    }
    volume_source(spec, o.name(), &path, errors);
    let affinity = &spec["nodeAffinity"];
    if affinity.is_object() {
        let at = path.child("nodeAffinity").child("required");
        match &affinity["required"] {
            Value::Null => errors.push(FieldError::required(&at, "must specify required node constraints")),
            terms => node_selector_terms(terms, &at, errors),
        }
    }
    attributes_class(spec, &path, errors);
}

fn attributes_class(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    if let Some(class) = spec["volumeAttributesClassName"].as_str() {
        let at = path.child("volumeAttributesClassName");
        if class.is_empty() {
            errors.push(FieldError::required(&at, "an empty string is disallowed"));
        } else {
            errors.extend(names::dns_subdomain(class).into_iter().map(|m| FieldError::invalid(&at, class, m)));
        }
        if !spec["csi"].is_object() {
            let why = "has to be specified when using volumeAttributesClassName";
            errors.push(FieldError::required(&path.child("csi"), why).ordered_at(&at));
        }
    }
}

pub(super) fn volume_source(spec: &Value, name: &str, path: &FieldPath, errors: &mut ErrorList) {
    let found = source_kinds(spec);
    let Some((kind, others)) = found.split_first() else {
        errors.push(FieldError::required(path, "must specify a volume type"));
        return;
    };
    for k in others {
        match *k {
            // Upstream accepts it beside another source.
            "flexVolume" => delegated(spec, SPEC, k, path, errors),
            k => {
                let field = if k == "cephfs" { "cephFS" } else { k };
                errors.push(FieldError::forbidden(&path.child(field), "may not specify more than 1 volume type"));
            }
        }
    }
    let (s, at) = (&spec[*kind], path.child(kind));
    sources::validate(spec, kind, sources::Owner::PersistentVolume, path, errors);
    let policy_at = path.child("persistentVolumeReclaimPolicy");
    match *kind {
        "iscsi" => {
            let portal = text(s, "targetPortal");
            if s["initiatorName"].is_string() && name.len() + 1 + portal.len() > sources::PORTAL_MAX {
                errors.push(FieldError::invalid(&at.child("targetportal"), portal, sources::PORTAL_TOO_LONG));
            }
        }
        "local" if !spec["nodeAffinity"].is_object() => {
            errors.push(FieldError::required(&path.child("nodeAffinity"), "Local volume requires node affinity"));
        }
        "hostPath" if spec["persistentVolumeReclaimPolicy"] == "Recycle" && is_root(text(s, "path")) => {
            errors.push(FieldError::forbidden(&policy_at, "may not be 'recycle' for a hostPath mount of '/'"));
        }
        _ => {}
    }
}

fn source_kinds(spec: &Value) -> Vec<&'static str> {
    KINDS.into_iter().filter(|k| spec[*k].is_object()).collect()
}

/// Whether a path is equivalent to `/`.
fn is_root(path: &str) -> bool {
    let mut depth = 0_usize;
    for part in path.split('/').filter(|p| !matches!(*p, "" | ".")) {
        depth = if part == ".." { depth.saturating_sub(1) } else { depth + 1 };
    }
    path.starts_with('/') && depth == 0
}

/// Renamed node labels, which a volume's affinity may adopt.
const RENAMED: [(&str, &str); 5] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
];

/// Whether the affinity is equal, except for renamed keys.
fn follows(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Object(n), Value::Object(o)) => {
            n.len() == o.len()
                && n.iter().all(|(k, v)| match o.get(k) {
                    Some(w) if k == "key" => v == w || RENAMED.iter().any(|(old, new)| *w == *old && *v == *new),
                    Some(w) => follows(v, w),
                    None => false,
                })
        }
        (Value::Array(n), Value::Array(o)) => n.len() == o.len() && n.iter().zip(o).all(|(n, o)| follows(n, o)),
        (n, o) => n == o,
    }
}

fn validate_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    repeat_errors(errors, |e| e.path.starts_with("spec"));
    let null = Value::Null;
    let (new, was) = (o.get("spec").unwrap_or(&null), old.get("spec").unwrap_or(&null));
    let source =
        |spec: &Value| -> Vec<(&str, Value)> { source_kinds(spec).into_iter().map(|k| (k, spec[k].clone())).collect() };
    let mut is = source(new);
    // `controllerExpandSecretRef` may be set later.
    if !was["csi"].is_null() && was["csi"]["controllerExpandSecretRef"].is_null() {
        for (_, csi) in is.iter_mut().filter(|(k, _)| *k == "csi") {
            csi.as_object_mut().map(|m| m.remove("controllerExpandSecretRef"));
        }
    }
    if is != source(was) {
        let to_object = |s: Vec<(&str, Value)>| -> Value {
            s.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Map<String, Value>>().into()
        };
        let difference = pod_shape::sources(&to_object(source(was)), &to_object(is));
        let why = format!("spec.persistentvolumesource is immutable after creation\n{difference}");
        errors.push(FieldError::forbidden(&FieldPath::new("spec.persistentvolumesource"), &why));
    }
    immutable_mode(new, was, errors);
    if was["nodeAffinity"].is_object() && !follows(&new["nodeAffinity"], &was["nodeAffinity"]) {
        let why = "field is immutable, except for updating from beta label to GA";
        let at = FieldPath::new("spec.nodeAffinity");
        let shown = match &new["nodeAffinity"] {
            Value::Null => BadValue::Null,
            affinity => shown(affinity, "io.k8s.api.core.v1.VolumeNodeAffinity", &at),
        };
        errors.push(FieldError::invalid(&FieldPath::new("nodeAffinity"), shown, why));
    }
    if was["volumeAttributesClassName"].is_string() && new["volumeAttributesClassName"].is_null() {
        let at = FieldPath::new("spec.volumeAttributesClassName");
        errors.push(FieldError::forbidden(&at, "update from non-nil value to nil is forbidden"));
    }
}

fn warnings(o: &Object, _old: Option<&Object>) -> Vec<String> {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let at = FieldPath::new("spec");
    let mut out =
        annotations(o, &[OLD_CLASS, (OPTIONS, "deprecated since v1.31; use \"mountOptions\" attribute instead")]);
    if spec["persistentVolumeReclaimPolicy"] == "Recycle" {
        out.push("spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.".into());
    }
    let terms = at.child("nodeAffinity").child("required").child("nodeSelectorTerms");
    for (i, t) in items(&spec["nodeAffinity"]["required"], "nodeSelectorTerms").iter().enumerate() {
        node_term_warnings(t, false, &terms.index(i), &mut out);
    }
    let old = OLD_SOURCES.iter().filter(|(kind, _, _)| is_set(spec, kind));
    out.extend(old.map(|(_, name, why)| format!("{}: {why}", at.child(name))));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_update};
    use serde_json::json;

    #[test]
    fn the_time_of_the_phase_is_that_of_its_change() {
        let volume = |phase: &str, time: Value| {
            Object::from_value(json!({"status": {"phase": phase, "lastPhaseTransitionTime": time}})).unwrap()
        };
        for (old, new, time, expect) in [
            ("Bound", "Bound", Value::Null, Some("1")),
            ("Bound", "Bound", json!("7"), Some("7")),
            ("Bound", "Released", Value::Null, Some("9")),
            ("Bound", "Released", json!("1"), Some("9")),
            ("Bound", "Released", json!("7"), Some("7")),
        ] {
            let mut o = volume(new, time);
            set_transition(&mut o, &volume(old, json!("1")), "9");
            assert_eq!(o.str_at(&TRANSITION), expect, "{old} {new}");
        }
    }

    fn volume() -> Value {
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/a"}}})
    }

    #[test]
    fn validates_a_new_volume() {
        let two = "spec.nfs: Forbidden: may not specify more than 1 volume type";
        let local = "spec.nodeAffinity: Required value: Local volume requires node affinity";
        let recycle = "spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'";
        check_create(
            &Ruled::new(validate),
            &volume(),
            &[
                ("", Value::Null, &[]),
                ("/spec/accessModes", json!([]), &["spec.accessModes: Required value"]),
                ("/spec/hostPath", Value::Null, &["spec: Required value: must specify a volume type"]),
                ("/spec/nfs", json!({"server": "s", "path": "/p"}), &[two]),
                (
                    "/spec/capacity",
                    json!({"cpu": "1"}),
                    &["spec.capacity: Unsupported value: {\"cpu\":\"1\"}: supported values: \"storage\""],
                ),
                (
                    "/spec/capacity/storage",
                    json!("0"),
                    &["spec.capacity[storage]: Invalid value: \"0\": must be greater than zero"],
                ),
                (
                    "/spec/nodeAffinity",
                    json!({}),
                    &["spec.nodeAffinity.required: Required value: must specify required node constraints"],
                ),
                (
                    "/spec/volumeAttributesClassName",
                    json!(""),
                    &[
                        "spec.volumeAttributesClassName: Required value: an empty string is disallowed",
                        "spec.csi: Required value: has to be specified when using volumeAttributesClassName",
                    ],
                ),
            ],
        );
        let with = |spec: Value| {
            let mut volume = volume();
            volume["spec"] = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}});
            spec.as_object().into_iter().flatten().for_each(|(k, v)| volume["spec"][k] = v.clone());
            volume
        };
        let check =
            |spec: Value, error: &str| check_create(&Ruled::new(validate), &with(spec), &[("", Value::Null, &[error])]);
        check(json!({"local": {"path": "/a"}}), local);
        check(json!({"hostPath": {"path": "//"}, "persistentVolumeReclaimPolicy": "Recycle"}), recycle);
        check(
            json!({"csi": {"driver": "a b", "volumeHandle": "h"}}),
            "spec.csi.driver: Invalid value: \"a b\": a lowercase RFC 1123 subdomain…",
        );
    }

    #[test]
    fn validates_an_update() {
        let affinity = |key: &str| json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "In", "values": ["z"]}]}]}});
        let mut old = volume();
        old["spec"]["nodeAffinity"] = affinity("failure-domain.beta.kubernetes.io/zone");
        let source =
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n…";
        check_update(
            &Ruled::new(validate).with_update(validate_update),
            &old,
            &[
                ("/spec/capacity/storage", json!("2Gi"), &[]),
                ("/spec/hostPath/path", json!("/b"), &[source]),
                ("/spec/nodeAffinity", affinity("topology.kubernetes.io/zone"), &[]),
                (
                    "/spec/nodeAffinity",
                    affinity("other"),
                    &["nodeAffinity: Invalid value: …: field is immutable, except for updating from beta label to GA"],
                ),
                ("/spec/volumeMode", json!("Block"), &["volumeMode: Invalid value: \"Block\": field is immutable"]),
            ],
        );
    }
}
