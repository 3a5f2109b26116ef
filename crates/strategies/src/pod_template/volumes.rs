//! Validation of pod volumes: names, a single source each, and sources that only pods have. `sources` validates those
//! that PersistentVolumes share.

use super::{SpecOwner, projected, sources};
use crate::core::persistent_volume_claim;
use crate::read::{items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Quantity, Value, names};
use std::collections::{HashMap, HashSet};

/// Volume sources in order of validation: upstream validates the first one that is set.
const KINDS: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];

/// Validates volumes and returns the valid ones by name; only these can be mounted.
pub fn rules<'a>(
    volumes: &'a [Value],
    owner: SpecOwner<'_>,
    path: &FieldPath,
    errors: &mut ErrorList,
) -> HashMap<&'a str, &'a Value> {
    let mut good = HashMap::new();
    let made: HashSet<String> = match owner {
        SpecOwner::Pod(pod) if !pod.is_empty() => {
            let own = volumes.iter().filter(|v| v["ephemeral"].is_object());
            own.map(|v| format!("{pod}-{}", text(v, "name"))).collect()
        }
        _ => HashSet::new(),
    };
    for (i, v) in volumes.iter().enumerate() {
        let at = path.index(i);
        let before = errors.len();
        source(v, owner, &at, errors);
        let name = text(v, "name");
        if name.is_empty() {
            errors.push(FieldError::required(&at.child("name"), ""));
        } else {
            errors.extend(names::dns_label(name).into_iter().map(|m| FieldError::invalid(&at.child("name"), name, m)));
        }
        if good.contains_key(name) {
            errors.push(FieldError::duplicate(&at.child("name"), name));
        }
        if errors.len() == before {
            good.insert(name, v);
        }
        let claim = text(&v["persistentVolumeClaim"], "claimName");
        if made.contains(claim) {
            let why = "must not reference a PVC that gets created for an ephemeral volume";
            let position = at.child("persistentVolumeClaim").child("claimName");
            errors.push(FieldError::invalid(&position, claim, why).ordered_at(&at.child("name")));
        }
    }
    good
}

fn source(v: &Value, owner: SpecOwner<'_>, at: &FieldPath, errors: &mut ErrorList) {
    let found: Vec<&str> = KINDS.into_iter().filter(|k| v[*k].is_object()).collect();
    let Some((kind, others)) = found.split_first() else {
        errors.push(FieldError::required(at, "must specify a volume type"));
        return;
    };
    for k in others {
        // Upstream misspells two fields.
        let reported = match *k {
            "downwardAPI" => "downwarAPI",
            "cephfs" => "cephFS",
            k => k,
        };
        errors.push(FieldError::forbidden(&at.child(reported), "may not specify more than 1 volume type"));
    }
    let name = text(v, "name");
    let (s, inner) = (&v[*kind], at.child(kind));
    sources::validate(v, kind, sources::Owner::Pod, at, errors);
    match *kind {
        "emptyDir" => {
            let limit = s["sizeLimit"].as_str().and_then(|s| Quantity::parse(s).ok());
            if limit.is_some_and(|q| q.sign() < 0) {
                let why = "SizeLimit field must be a valid resource quantity";
                errors.push(FieldError::forbidden(&inner.child("sizeLimit"), why));
            }
        }
        "gitRepo" => schema::rules::descending_path(text(s, "directory"), &inner.child("directory"), errors),
        "iscsi" => {
            let portal = format!("{name}:{}", text(s, "targetPortal"));
            if s["initiatorName"].is_string() && portal.len() > sources::PORTAL_MAX {
                errors.push(FieldError::invalid(&at.child("name"), name, sources::PORTAL_TOO_LONG));
            }
        }
        "downwardAPI" => {
            for (i, item) in items(s, "items").iter().enumerate() {
                let position = inner.child("items").index(i);
                projected::order_errors_at(&position, errors, |errors| projected::downward_file(item, &inner, errors));
            }
        }
        "projected" => projected::rules(s, &inner, errors),
        "ephemeral" => ephemeral(s, name, owner, at, errors),
        "image" if owner.is_pod() && text(s, "reference").is_empty() => {
            errors.push(FieldError::required(&inner.child("reference"), ""));
        }
        _ => {}
    }
}

/// Validates the template of an ephemeral volume's claim.
fn ephemeral(s: &Value, volume: &str, owner: SpecOwner<'_>, at: &FieldPath, errors: &mut ErrorList) {
    let inner = at.child("ephemeral").child("volumeClaimTemplate");
    let template = &s["volumeClaimTemplate"];
    if !template.is_object() {
        errors.push(FieldError::required(&inner, ""));
        return;
    }
    super::annotations::template_metadata(&template["metadata"], &inner.child("metadata"), errors);
    persistent_volume_claim::claim_spec(&template["spec"], &inner.child("spec"), errors);
    if let SpecOwner::Pod(pod) = owner
        && !pod.is_empty()
        && !volume.is_empty()
    {
        let claim = format!("{pod}-{volume}");
        for m in names::dns_subdomain(&claim) {
            errors.push(FieldError::invalid(&at.child("name"), volume, format!("PVC name {claim:?}: {m}")));
        }
    }
}

/// Checks that projected tokens have a service account.
pub fn tokens(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    if !text(spec, "serviceAccountName").is_empty() {
        return;
    }
    for (i, v) in items(spec, "volumes").iter().enumerate() {
        for (j, s) in items(&v["projected"], "sources").iter().enumerate() {
            if s["serviceAccountToken"].is_object() {
                let at = path.child("volumes").index(i).child("projected").child("sources").index(j);
                let why = "must not be specified when serviceAccountName is not set";
                errors.push(FieldError::forbidden(&at.child("serviceAccountToken"), why));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::core::pod::Pod;
    use crate::testing::{check_create, check_pod_spec};
    use serde_json::{Value, json};

    #[test]
    fn validates_volumes() {
        let volume = |source: Value| {
            let mut v = json!({"name": "v"});
            source.as_object().into_iter().flatten().for_each(|(k, s)| v[k] = s.clone());
            json!([v])
        };
        let relative = "must be a relative path";
        check_pod_spec(&[
            ("/volumes", volume(json!({})), &[]),
            ("/volumes", json!([{"name": "v"}, {"name": "v"}]), &["volumes[1].name: Duplicate value: \"v\""]),
            (
                "/volumes",
                json!([{"name": "V"}]),
                &["volumes[0].name: Invalid value: \"V\": a lowercase RFC 1123 label…"],
            ),
            (
                "/volumes",
                volume(json!({"emptyDir": {}, "cephfs": {"monitors": ["m"]}})),
                &["volumes[0].cephFS: Forbidden: may not specify more than 1 volume type"],
            ),
            (
                "/volumes",
                volume(json!({"emptyDir": {"sizeLimit": "-1"}})),
                &["volumes[0].emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity"],
            ),
            (
                "/volumes",
                volume(json!({"nfs": {"server": "s", "path": "p"}})),
                &["volumes[0].nfs.path: Invalid value: \"p\": must be an absolute path"],
            ),
            (
                "/volumes",
                volume(json!({"configMap": {"name": "c", "items": [{"key": "k", "path": "/p"}]}})),
                &[&format!("volumes[0].configMap.items[0].path: Invalid value: \"/p\": {relative}")],
            ),
            (
                "/volumes",
                volume(json!({"iscsi": {"targetPortal": "p", "iqn": "a", "lun": 0}})),
                &["volumes[0].iscsi.iqn: Invalid value: \"a\": must be valid format starting with iqn, eui, or naa"],
            ),
            (
                "/volumes",
                volume(json!({"fc": {"targetWWNs": ["a"]}})),
                &["volumes[0].fc.lun: Required value: lun is required if targetWWNs is specified"],
            ),
            ("/volumes", volume(json!({"csi": {"driver": ""}})), &["volumes[0].csi.driver: Required value"]),
            (
                "/volumes",
                volume(json!({"ephemeral": {}})),
                &["volumes[0].ephemeral.volumeClaimTemplate: Required value"],
            ),
        ]);
        let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1"}}});
        let base = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
            "volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}],
            "containers": [{"name": "c", "image": "i"}]}});
        let created = "spec.volumes[1].persistentVolumeClaim.claimName: Invalid value: \"p-v\": must not reference a PVC that gets created for an ephemeral volume";
        check_create(
            &Pod,
            &base,
            &[
                ("", Value::Null, &[]),
                ("/spec/volumes/1", json!({"name": "w", "persistentVolumeClaim": {"claimName": "p-v"}}), &[created]),
            ],
        );
    }

    #[test]
    fn validates_projected_volumes() {
        let projected = |sources: Value| json!([{"name": "v", "projected": {"sources": sources}}]);
        let at = "volumes[0].projected";
        check_pod_spec(&[
            ("/volumes", projected(json!([{"configMap": {"name": "c"}}, {"secret": {"name": "s"}}])), &[]),
            (
                "/volumes",
                projected(json!([{"secret": {"name": ""}}])),
                &[&format!("{at}.sources[0].secret.name: Required value")],
            ),
            (
                "/volumes",
                projected(json!([{"configMap": {"name": "c"}, "secret": {"name": "s"}}])),
                &[&format!("{at}.sources[0]: Forbidden: may not specify more than 1 volume type per source")],
            ),
            (
                "/volumes",
                projected(json!([
                    {"configMap": {"name": "c", "items": [{"key": "k", "path": "p"}]}},
                    {"secret": {"name": "s", "items": [{"key": "k", "path": "p"}]}},
                ])),
                &[&format!("{at}: Invalid value: \"s\": conflicting duplicate paths")],
            ),
            (
                "/volumes",
                projected(json!([{"serviceAccountToken": {"path": "t", "expirationSeconds": 599}}])),
                &[
                    &format!(
                        "{at}.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"
                    ),
                    &format!(
                        "{at}.sources[0].serviceAccountToken: Forbidden: must not be specified when serviceAccountName is not set"
                    ),
                ],
            ),
            (
                "/volumes",
                projected(
                    json!([{"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "status.podIP"}}]}}]),
                ),
                &[&format!(
                    "{at}.sources[0].downwardAPI.fieldRef.fieldPath: Unsupported value: \"status.podIP\": supported values: …"
                )],
            ),
            (
                "/volumes",
                projected(json!([{"downwardAPI": {"items": [{"path": "p"}]}}])),
                &[&format!(
                    "{at}.sources[0].downwardAPI: Required value: one of fieldRef and resourceFieldRef is required"
                )],
            ),
        ]);
    }
}
