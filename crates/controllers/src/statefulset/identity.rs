//! The pods and claims of a StatefulSet: their names, labels and volumes (upstream `stateful_set_utils.go`). Pure: data to data.

use crate::history::HASH_LABEL;
use crate::pod_control::pod_from_template;
use client::Meta;
use meta::{Object, Value};
use serde_json::json;

pub const POD_NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
pub const POD_INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// Splits the name of a pod into the name of its set and its ordinal. Unlike upstream's, an ordinal has no leading zeros: `web-01` is
/// never a second pod of the ordinal 1.
pub fn parent_and_ordinal(pod: &str) -> Option<(&str, i64)> {
    let (parent, ordinal) = pod.rsplit_once('-')?;
    let is_canonical = ordinal == "0" || !ordinal.starts_with('0');
    if ordinal.is_empty() || !is_canonical || !ordinal.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // More digits than an `int32` has are no ordinal.
    Some((parent, ordinal.parse::<i32>().ok()?.into()))
}

/// The revision that a pod was created with.
pub fn revision(pod: &Meta) -> &str {
    pod.label(HASH_LABEL).unwrap_or_default()
}

pub fn pod_name(set: &Object, ordinal: i64) -> String {
    format!("{}-{ordinal}", set.name())
}

fn claim_templates(set: &Object) -> impl Iterator<Item = &Value> {
    set.at(&["spec", "volumeClaimTemplates"]).and_then(Value::as_array).into_iter().flatten()
}

fn template_name(template: &Value) -> &str {
    template["metadata"]["name"].as_str().unwrap_or_default()
}

fn claim_name(set: &Object, template: &Value, ordinal: i64) -> String {
    format!("{}-{}-{ordinal}", template_name(template), set.name())
}

/// The names of the claims of a pod.
pub fn claim_names(set: &Object, ordinal: i64) -> Vec<String> {
    claim_templates(set).map(|t| claim_name(set, t, ordinal)).collect()
}

/// The claims of a pod.
pub fn claims(set: &Object, ordinal: i64) -> Vec<Object> {
    claim_templates(set)
        .map(|t| {
            let mut claim = Object::from_value(t.clone()).unwrap_or_default();
            claim.set(&["apiVersion"], "v1");
            claim.set(&["kind"], "PersistentVolumeClaim");
            claim.set_name(&claim_name(set, t, ordinal));
            claim.set_namespace(set.namespace());
            let labels = set.at(&["spec", "selector", "matchLabels"]).and_then(Value::as_object);
            for (k, v) in labels.into_iter().flatten() {
                claim.set_label(k, v.as_str().unwrap_or_default());
            }
            claim
        })
        .collect()
}

/// The volumes of a pod: those of its claims, then its others.
fn volumes(set: &Object, ordinal: i64, own: Option<&Value>) -> Vec<Value> {
    let templates: Vec<&Value> = claim_templates(set).collect();
    let claimed = templates.iter().map(
        |t| json!({"name": template_name(t), "persistentVolumeClaim": {"claimName": claim_name(set, t, ordinal)}}),
    );
    let own = own.and_then(Value::as_array).into_iter().flatten();
    let others = own.filter(|v| templates.iter().all(|t| v["name"] != template_name(t)));
    claimed.chain(others.cloned()).collect()
}

/// The labels that identify a pod.
fn set_identity(set: &Object, pod: &mut Object, ordinal: i64) {
    pod.set_label(POD_NAME_LABEL, &pod_name(set, ordinal));
    pod.set_label(POD_INDEX_LABEL, &ordinal.to_string());
}

/// Whether a pod has the label with its name.
pub fn identity_matches(pod: &Meta) -> bool {
    pod.label(POD_NAME_LABEL) == Some(&*pod.name)
}

/// Whether the volumes of a pod are those of its claims.
pub fn storage_matches(set: &Object, pod: &Object, ordinal: i64) -> bool {
    let volumes = pod.at(&["spec", "volumes"]).and_then(Value::as_array);
    claim_templates(set).all(|t| {
        let volume = volumes.into_iter().flatten().find(|v| v["name"] == template_name(t));
        volume.is_some_and(|v| v["persistentVolumeClaim"]["claimName"] == claim_name(set, t, ordinal))
    })
}

/// The pod of an ordinal. `set` has the template to use, and `revision` is the name of its revision.
pub fn new_pod(set: &Object, ordinal: i64, revision: &str) -> Object {
    let template = set.at(&["spec", "template"]).cloned().unwrap_or_default();
    let mut pod = pod_from_template(&template, set);
    let name = pod_name(set, ordinal);
    pod.remove(&["metadata", "generateName"]);
    pod.set_name(&name);
    pod.set_namespace(set.namespace());
    pod.set(&["spec", "hostname"], name);
    if let Some(service) = set.str_at(&["spec", "serviceName"]).filter(|s| !s.is_empty()) {
        pod.set(&["spec", "subdomain"], service);
    }
    conform(set, &mut pod, ordinal);
    pod.set_label(HASH_LABEL, revision);
    pod
}

/// Gives a pod the labels and volumes of its ordinal.
pub fn conform(set: &Object, pod: &mut Object, ordinal: i64) {
    set_identity(set, pod, ordinal);
    if claim_templates(set).next().is_some() {
        let all = volumes(set, ordinal, pod.at(&["spec", "volumes"]));
        pod.set(&["spec", "volumes"], all);
    }
}
