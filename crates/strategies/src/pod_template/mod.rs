//! Defaults and validation of pods and pod templates (`k8s.io/kubernetes/pkg/apis/core/validation/validation.go`).
//! Rules that take a single field are in the description.

pub mod annotations;
mod claims;
mod containers;
mod dns;
mod env;
mod mounts;
mod overlaps;
mod probes;
mod projected;
mod reference;
pub mod resources;
pub mod scheduling;
mod security;
pub mod sources;
mod volumes;
mod warnings;
mod windows;

use crate::read::{is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Map, Object, Value, names};

pub use resources::{amount, default_of_pod, overcommits, overhead, resource_name};
pub use scheduling::node_selector_terms;
pub use security::apparmor;
pub use warnings::{
    apparmor_profile, claim_sizes, name_warnings, node_term_warnings, old_label, pod_warnings, warnings,
    workload_warnings,
};

/// The owner of a pod spec. Templates are validated less strictly, since their pods are validated on creation.
#[derive(Clone, Copy)]
pub enum SpecOwner<'a> {
    /// A pod, with its name, which may be empty.
    Pod(&'a str),
    Template,
}

impl SpecOwner<'_> {
    fn is_pod(self) -> bool {
        matches!(self, Self::Pod(_))
    }
}

/// Sets the defaults of the pod spec at `path`.
pub fn default(o: &mut Object, path: &[&str]) {
    let Some(mut spec) = o.remove(path) else { return };
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for c in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            container(c);
        }
    }
    for v in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(m) = v.as_object_mut()
            && !m.keys().any(|k| k != "name")
        {
            m.insert("emptyDir".into(), Value::Object(Map::new()));
        }
        if let Some(image) =
            v.get_mut("image").filter(|i| text(i, "pullPolicy").is_empty()).and_then(Value::as_object_mut)
        {
            let reference = image.get("reference").and_then(Value::as_str).unwrap_or_default();
            image.insert("pullPolicy".into(), reference::pull_policy(reference).into());
        }
    }
    // Synchronizes `serviceAccountName` and the deprecated `serviceAccount`.
    let name = |spec: &Value, k: &str| text(spec, k).to_owned();
    let (new, old) = (name(&spec, "serviceAccountName"), name(&spec, "serviceAccount"));
    match (new.as_str(), old.as_str()) {
        ("", "") => {}
        ("", old) => spec["serviceAccountName"] = old.into(),
        (new, _) => spec["serviceAccount"] = new.into(),
    }
    o.set(path, spec);
}

fn container(c: &mut Value) {
    if let Some(m) = c.as_object_mut()
        && m.get("imagePullPolicy").and_then(Value::as_str).unwrap_or_default().is_empty()
    {
        let image = m.get("image").and_then(Value::as_str).unwrap_or_default();
        m.insert("imagePullPolicy".into(), reference::pull_policy(image).into());
    }
}

/// Sets absent host ports to the container ports if the pod uses the host network.
pub fn host_network_ports(spec: &mut Value) {
    if spec["hostNetwork"] != true {
        return;
    }
    for list in ["initContainers", "containers"] {
        for c in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            for p in c.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                let has = |k: &str| p[k].as_i64().unwrap_or(0) != 0;
                if !has("hostPort") && has("containerPort") {
                    p["hostPort"] = p["containerPort"].clone();
                }
            }
        }
    }
}

/// Validates a template: labels, annotations and pod spec.
pub fn validate(template: Option<&Value>, path: &FieldPath, errors: &mut ErrorList) {
    let Some(t) = template else { return };
    let (metadata, at) = (&t["metadata"], path.child("annotations"));
    schema::rules::labels(&metadata["labels"], &path.child("labels"), errors);
    annotations::keys(&metadata["annotations"], &at, errors);
    annotations::rules(&metadata["annotations"], &t["spec"], &at, errors);
    let spec_at = path.child("spec");
    spec(&t["spec"], SpecOwner::Template, &spec_at, errors);
    annotations::agree_with_fields(&metadata["annotations"], &t["spec"], &spec_at, errors);
    if !items(&t["spec"], "ephemeralContainers").is_empty() {
        let why = "ephemeral containers not allowed in pod template";
        errors.push(FieldError::forbidden(&spec_at.child("ephemeralContainers"), why));
    }
}

/// Validates the template of a controller that restarts its pods: `restartPolicy` is `Always`, without a deadline.
pub fn always_restarts(kind: &str, template: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let policy = text(&template["spec"], "restartPolicy");
    let spec = path.child("spec");
    if policy != "Always" {
        errors.push(FieldError::not_supported(&spec.child("restartPolicy"), policy, &["Always"]));
    }
    if is_set(&template["spec"], "activeDeadlineSeconds") {
        let why = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.push(FieldError::forbidden(&spec.child("activeDeadlineSeconds"), &why));
    }
}

/// Validates volumes, mounts and variables outside a pod spec, as in a PodPreset.
pub fn surroundings(s: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let known = volumes::rules(items(s, "volumes"), SpecOwner::Template, &path.child("volumes"), errors);
    containers::surroundings(s, path, &known, errors);
}

/// Validates a pod spec. `errors` contains the errors of single-field rules.
pub fn spec(spec: &Value, owner: SpecOwner<'_>, path: &FieldPath, errors: &mut ErrorList) {
    let volumes = volumes::rules(items(spec, "volumes"), owner, &path.child("volumes"), errors);
    claims::of_pod(spec, &path.child("resourceClaims"), errors);
    if items(spec, "containers").is_empty() {
        errors.push(FieldError::required(&path.child("containers"), ""));
    }
    containers::rules(&containers::PodContext { spec, volumes: &volumes, owner }, path, errors);
    env::file_volumes(spec, path, errors);
    resources::pod(spec, &path.child("resources"), errors);
    security::pod(spec, path, errors);
    scheduling::rules(spec, path, errors);
    dns::rules(spec, path, errors);
    windows::rules(spec, path, errors);
    if owner.is_pod() {
        volumes::tokens(spec, path, errors);
    }
    for (i, h) in items(spec, "hostAliases").iter().enumerate() {
        let at = path.child("hostAliases").index(i).child("hostnames");
        for (j, name) in items(h, "hostnames").iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            errors.extend(names::dns_subdomain(name).into_iter().map(|m| FieldError::invalid(&at.index(j), name, m)));
        }
    }
    if is_set(spec, "overhead") {
        overhead(&spec["overhead"], &path.child("overhead"), errors);
    }
    hostname(spec, path, errors);
}

const HOSTNAME_MAX: usize = 64;

/// Validates `hostnameOverride`, which excludes other settings of the hostname.
fn hostname(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let Some(name) = spec["hostnameOverride"].as_str() else { return };
    let at = path.child("hostnameOverride");
    errors.extend(names::dns_subdomain(name).into_iter().map(|m| FieldError::invalid(&at, name, m)));
    if name.len() > HOSTNAME_MAX {
        errors.push(FieldError::too_long(&at, HOSTNAME_MAX));
    }
    if spec["setHostnameAsFQDN"] == true {
        errors.push(FieldError::forbidden(&at, "may not be specified when setHostnameAsFQDN is true"));
    }
    if spec["hostNetwork"] == true {
        errors.push(FieldError::forbidden(&at, "may not be specified when hostNetwork is true"));
    }
}
