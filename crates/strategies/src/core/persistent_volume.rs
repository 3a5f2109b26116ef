//! PersistentVolume and PersistentVolumeClaim.

use crate::core::pod_shape;
use crate::plain::said_twice;
use crate::pod_template::{amount, node_selector_terms, sources};
use crate::read::{delegated, is_set, items, shown, text};
use kinds::columns::{Cell, display, list_at};
use meta::field::{BadValue, ErrorList};
use meta::{FieldError, FieldPath, Map, Object, Quantity, Value, names};

/// Sources of a volume, in the order in which they are looked at: the first is the one that counts.
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

fn source_kinds(spec: &Value) -> Vec<&'static str> {
    KINDS.into_iter().filter(|k| spec[*k].is_object()).collect()
}

fn quantity(v: &Value) -> Option<Quantity> {
    v.as_str().and_then(|s| Quantity::parse(s).ok())
}

/// An amount of storage above zero.
fn positive(v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    if quantity(v).is_some_and(|q| q.sign() <= 0) {
        errors.push(FieldError::invalid(at, v, "must be greater than zero"));
    }
}

/// Not negative, said of the number itself.
fn basic(v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    if let Some(q) = quantity(v).filter(|q| q.value() < 0) {
        errors.push(FieldError::invalid(at, q.value(), "must be a valid resource quantity"));
    }
}

/// One pod alone excludes every other way.
pub(super) fn access_modes(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let modes = items(spec, "accessModes");
    let other = |m: &&Value| matches!(m.as_str(), Some("ReadWriteOnce" | "ReadOnlyMany" | "ReadWriteMany"));
    if modes.iter().any(|m| m == "ReadWriteOncePod") && modes.iter().any(|m| other(&m)) {
        let why = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden(&path.child("accessModes"), why));
    }
}

pub fn volume(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    for field in ["capacity", "persistentVolumeReclaimPolicy", "volumeMode"] {
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

pub(super) fn attributes_class(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    if let Some(class) = spec["volumeAttributesClassName"].as_str() {
        let at = path.child("volumeAttributesClassName");
        if class.is_empty() {
            errors.push(FieldError::required(&at, "an empty string is disallowed"));
        } else {
            errors.extend(names::dns_subdomain(class).into_iter().map(|m| FieldError::invalid(&at, class, m)));
        }
        if !spec["csi"].is_object() {
            let why = "has to be specified when using volumeAttributesClassName";
            errors.push(FieldError::required(&path.child("csi"), why));
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
            // Upstream takes it beside another source.
            "flexVolume" => delegated(spec, SPEC, k, path, errors),
            k => {
                let said = if k == "cephfs" { "cephFS" } else { k };
                errors.push(FieldError::forbidden(&path.child(said), "may not specify more than 1 volume type"));
            }
        }
    }
    let (s, at) = (&spec[*kind], path.child(kind));
    sources::validate(spec, kind, sources::Place::PersistentVolume, path, errors);
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

/// Whether a path is `/`, however it is written.
fn is_root(path: &str) -> bool {
    let mut depth = 0_usize;
    for part in path.split('/').filter(|p| !matches!(*p, "" | ".")) {
        depth = if part == ".." { depth.saturating_sub(1) } else { depth + 1 };
    }
    path.starts_with('/') && depth == 0
}

/// Labels of nodes that have a newer name: a volume may follow.
const RENAMED: [(&str, &str); 5] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
];

/// Whether the affinity is the same, but for keys that were renamed.
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

pub fn volume_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    said_twice(errors, |e| e.path.starts_with("spec"));
    let null = Value::Null;
    let (new, was) = (o.get("spec").unwrap_or(&null), old.get("spec").unwrap_or(&null));
    let source =
        |spec: &Value| -> Vec<(&str, Value)> { source_kinds(spec).into_iter().map(|k| (k, spec[k].clone())).collect() };
    let mut is = source(new);
    // Who may enlarge it can be said later.
    if !was["csi"].is_null() && was["csi"]["controllerExpandSecretRef"].is_null() {
        for (_, csi) in is.iter_mut().filter(|(k, _)| *k == "csi") {
            csi.as_object_mut().map(|m| m.remove("controllerExpandSecretRef"));
        }
    }
    if is != source(was) {
        let whole = |s: Vec<(&str, Value)>| -> Value {
            s.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Map<String, Value>>().into()
        };
        let difference = pod_shape::sources(&whole(source(was)), &whole(is));
        let why = format!("spec.persistentvolumesource is immutable after creation\n{difference}");
        errors.push(FieldError::forbidden(&FieldPath::new("spec.persistentvolumesource"), &why));
    }
    mode_stays(new, was, errors);
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

/// Said of another place than where it lies.
fn mode_stays(new: &Value, was: &Value, errors: &mut ErrorList) {
    if new["volumeMode"] != was["volumeMode"] {
        let at = FieldPath::new("volumeMode");
        errors.push(FieldError::invalid(&at, &new["volumeMode"], "field is immutable"));
    }
}

/// What a claim, or a template of one, asks for.
pub fn claim_spec(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    access_modes(spec, path, errors);
    let at = path.child("resources").key("storage");
    match &spec["resources"]["requests"]["storage"] {
        Value::Null => errors.push(FieldError::required(&at, "")),
        v if quantity(v).is_some_and(|q| q.sign() <= 0) => positive(v, &at, errors),
        v => amount("storage", v, &at, errors),
    }
    let (source, reference) = (&spec["dataSource"], &spec["dataSourceRef"]);
    for (s, key) in [(source, "dataSource"), (reference, "dataSourceRef")] {
        if s.is_object() {
            data_source(s, &path.child(key), errors);
        }
    }
    let elsewhere = !text(reference, "namespace").is_empty();
    let same = ["apiGroup", "kind", "name"].iter().all(|k| source[*k] == reference[*k]);
    let why = match source.is_object() && reference.is_object() {
        true if elsewhere => "may not be specified when dataSourceRef.namespace is specified",
        true if !same => "must match dataSourceRef",
        _ => "",
    };
    if !why.is_empty() {
        errors.push(FieldError::invalid(path, path.child("dataSource").text(), why));
    }
    let class = text(spec, "volumeAttributesClassName");
    if !class.is_empty() {
        let at = path.child("volumeAttributesClassName");
        errors.extend(names::dns_subdomain(class).into_iter().map(|m| FieldError::invalid(&at, class, m)));
    }
}

/// What a claim is filled from.
fn data_source(s: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for k in ["name", "kind"] {
        if text(s, k).is_empty() {
            errors.push(FieldError::required(&at.child(k), ""));
        }
    }
    let (group, kind, namespace) = (text(s, "apiGroup"), text(s, "kind"), text(s, "namespace"));
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errors.push(FieldError::invalid(at, kind, why));
    }
    if !group.is_empty() {
        let bad = names::dns_subdomain(group);
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child("apiGroup"), group, m)));
    }
    if !namespace.is_empty() {
        let bad = names::dns_label(namespace);
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child("namespace"), namespace, m)));
    }
}

pub fn claim(o: &Object, errors: &mut ErrorList) {
    claim_spec(o.get("spec").unwrap_or(&Value::Null), &FieldPath::new("spec"), errors);
}

/// One field for what a claim is filled from, and a newer one that says more: they say the same. What the older one cannot
/// mean was never there.
pub fn same_sources(o: &mut Object) {
    const OLD: [&str; 2] = ["spec", "dataSource"];
    const NEW: [&str; 2] = ["spec", "dataSourceRef"];
    // Data of other namespaces is not to be had.
    if o.str_at(&["spec", "dataSourceRef", "namespace"]).is_some_and(|n| !n.is_empty()) {
        o.remove(&NEW);
    }
    let (source, reference) = (o.at(&OLD).cloned(), o.at(&NEW).cloned());
    match (source, reference) {
        (Some(s), None) => {
            let known = matches!(
                (text(&s, "apiGroup"), text(&s, "kind")),
                ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
            );
            if known {
                o.set(&NEW, s);
            } else {
                o.remove(&OLD);
            }
        }
        (None, Some(mut r)) => {
            if let Some(m) = r.as_object_mut() {
                m.remove("namespace");
            }
            o.set(&OLD, r);
        }
        _ => {}
    }
}

const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub fn claim_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    let mut allowed = old.get("spec").cloned().unwrap_or_default();
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let bound = o.str_at(&["status", "phase"]) == Some("Bound");
    if bound && is_set(&spec["resources"], "requests") {
        match &spec["resources"]["requests"]["storage"] {
            Value::Null => {
                allowed["resources"]["requests"].as_object_mut().map(|m| m.remove("storage"));
            }
            v => allowed["resources"]["requests"]["storage"] = v.clone(),
        }
    }
    if text(&allowed, "volumeName").is_empty() && is_set(spec, "volumeName") {
        allowed["volumeName"] = spec["volumeName"].clone();
    }
    if bound && is_set(spec, "volumeAttributesClassName") {
        allowed["volumeAttributesClassName"] = spec["volumeAttributesClassName"].clone();
    }
    // A class that was said by annotation, or not at all, may be said by field.
    let (was_class, is_class) = (old.annotation(CLASS), o.annotation(CLASS));
    let class = spec["storageClassName"].as_str();
    let unsaid = !allowed["storageClassName"].is_string();
    let moved = unsaid && was_class.is_some() && class == was_class && (is_class.is_none() || is_class == was_class);
    if let Some(c) = class.filter(|c| unsaid && was_class.is_none_or(|w| w == *c)) {
        allowed["storageClassName"] = c.into();
    }
    if !moved && was_class != is_class {
        let at = FieldPath::new("metadata.annotations").child(CLASS);
        errors.push(FieldError::invalid(&at, is_class.unwrap_or_default(), "field is immutable"));
    }
    if *spec != allowed {
        let why =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        let difference = pod_shape::difference_of(&allowed, spec, "io.k8s.api.core.v1.PersistentVolumeClaimSpec");
        errors.push(FieldError::forbidden(&FieldPath::new("spec"), &format!("{why}\n{difference}")));
    }
    let zero = Quantity::from_int(0);
    let size = |s: &Value| quantity(&s["resources"]["requests"]["storage"]).unwrap_or(zero);
    let has = o.at(&["status", "capacity", "storage"]).and_then(quantity).unwrap_or(zero);
    let was = old.get("spec").map_or(zero, size);
    // What was asked too much can be taken back, down to what is there.
    if size(spec) < was && size(spec) <= has {
        let at = FieldPath::new("spec.resources.requests.storage");
        errors.push(FieldError::forbidden(&at, "field can not be less than status.capacity"));
    }
    let null = Value::Null;
    let before = old.get("spec").unwrap_or(&null);
    mode_stays(spec, before, errors);
    if before["volumeAttributesClassName"].is_string() {
        let at = FieldPath::new("spec.volumeAttributesClassName");
        match spec["volumeAttributesClassName"].as_str() {
            None => errors.push(FieldError::forbidden(&at, "update from non-nil value to nil is forbidden")),
            Some("") if before["volumeAttributesClassName"] != "" => {
                errors.push(FieldError::forbidden(&at, "update from non-nil value to an empty string is forbidden"));
            }
            Some(_) => {}
        }
    }
}

const RESIZES: [&str; 5] = [
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

/// What the status of a claim may say: amounts, and how far enlarging it has come.
pub fn claim_status(o: &Object, _old: &Object, errors: &mut ErrorList) {
    let null = Value::Null;
    let part = |key: &str| o.at(&["status", key]).unwrap_or(&null).as_object().cloned().unwrap_or_default();
    let status = FieldPath::new("status");
    for (k, v) in &part("capacity") {
        basic(v, &status.child("capacity").key(k), errors);
    }
    let of_storage = |k: &str, at: &FieldPath, errors: &mut ErrorList| -> bool {
        let before = errors.len();
        errors.extend(names::qualified_name(k).into_iter().map(|m| FieldError::invalid(at, k, m)));
        if errors.len() == before && k != "storage" && (!k.contains('/') || k.contains("kubernetes.io/")) {
            errors.push(FieldError::not_supported(at, k, &["storage"]));
        }
        errors.len() == before
    };
    let at = status.child("allocatedResourceStatus");
    for (k, v) in &part("allocatedResourceStatuses") {
        of_storage(k, &at, errors);
        if !v.as_str().is_some_and(|v| RESIZES.contains(&v)) {
            errors.push(FieldError::not_supported(&at, k.as_str(), &RESIZES));
        }
    }
    let at = status.child("allocatedResources");
    for (k, v) in &part("allocatedResources") {
        if of_storage(k, &at, errors) {
            let before = errors.len();
            basic(v, &at.key(k), errors);
            if errors.len() == before {
                amount("storage", v, &at.key(k), errors);
            }
        }
    }
}

/// The cells that only volumes and claims have.
pub fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "accessModes" => modes(list_at(o, &["spec", "accessModes"])).into(),
        "claimModes" => {
            if bound(o) {
                modes(list_at(o, &["status", "accessModes"])).into()
            } else {
                "".into()
            }
        }
        "claimCapacity" => {
            let c = o.str_at(&["status", "capacity", "storage"]).unwrap_or_default();
            if bound(o) { c.into() } else { "".into() }
        }
        "volumeStatus" => {
            let phase = o.str_at(&["status", "phase"]).unwrap_or_default();
            if o.is_deleting() { "Terminating" } else { phase }.into()
        }
        "volumeClaim" => match o.at(&["spec", "claimRef"]) {
            Some(c) => format!("{}/{}", display(&c["namespace"]), display(&c["name"])).into(),
            None => "".into(),
        },
        "storageClass" => {
            let old = o.annotation("volume.beta.kubernetes.io/storage-class");
            old.or_else(|| o.str_at(&["spec", "storageClassName"])).unwrap_or_default().into()
        }
        _ => return None,
    })
}

fn bound(o: &Object) -> bool {
    !o.str_at(&["spec", "volumeName"]).unwrap_or_default().is_empty()
}

fn modes(list: &[Value]) -> String {
    let short = |m: &Value| match m.as_str().unwrap_or_default() {
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        "ReadWriteMany" => "RWX",
        "ReadWriteOncePod" => "RWOP",
        _ => "",
    };
    list.iter().map(short).collect::<Vec<_>>().join(",")
}
