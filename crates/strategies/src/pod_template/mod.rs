//! What pods and pod templates share: defaults and rules that take more than one field
//! (`k8s.io/kubernetes/pkg/apis/core/validation/validation.go`). What takes one is in the description.

mod containers;
mod reference;
mod resources;
pub mod scheduling;
mod security;
mod volumes;
mod warnings;

use crate::read::{is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Map, Object, Value, names};

pub use resources::{container_amounts, resource_name};
pub use scheduling::node_selector_terms;
pub use volumes::rules as volume_rules;
pub use warnings::{of_parts as warnings_of_parts, of_workload, warnings};

/// Defaults of a pod spec at `path`.
pub fn default(o: &mut Object, path: &[&str]) {
    let Some(mut spec) = o.remove(path) else { return };
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for c in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            container(c);
        }
    }
    if spec["hostNetwork"] == true {
        for list in ["initContainers", "containers"] {
            for c in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                for p in c.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                    if p["hostPort"].as_i64().unwrap_or(0) == 0 {
                        p["hostPort"] = p["containerPort"].clone();
                    }
                }
            }
        }
    }
    for v in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(m) = v.as_object_mut()
            && !m.keys().any(|k| k != "name")
        {
            m.insert("emptyDir".into(), Value::Object(Map::new()));
        }
    }
    // The old name of the service account follows the new one, and the other way round.
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

/// The rules of a template: its labels and its pod spec.
pub fn validate(template: Option<&Value>, path: &FieldPath, errors: &mut ErrorList) {
    let Some(t) = template else { return };
    schema::rules::labels(&t["metadata"]["labels"], &path.child("labels"), errors);
    for (k, _) in t["metadata"]["annotations"].as_object().into_iter().flatten() {
        for m in names::qualified_name(&k.to_lowercase()) {
            errors.push(FieldError::invalid(&path.child("annotations"), k.as_str(), m));
        }
    }
    spec(&t["spec"], &path.child("spec"), errors);
}

/// Controllers that keep pods running want them restarted.
pub fn always_restarts(template: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let policy = text(&template["spec"], "restartPolicy");
    let spec = path.child("spec");
    if policy != "Always" {
        errors.push(FieldError::not_supported(&spec.child("restartPolicy"), policy, &["Always"]));
    }
    if is_set(&template["spec"], "activeDeadlineSeconds") {
        let why = "activeDeadlineSeconds in ReplicaSet is not Supported";
        errors.push(FieldError::forbidden(&spec.child("activeDeadlineSeconds"), why));
    }
}

/// Volumes, mounts and variables by themselves, as they are put into pods.
pub fn surroundings(s: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let known = volumes::rules(items(s, "volumes"), &path.child("volumes"), errors);
    containers::surroundings(s, path, &known, errors);
}

/// The rules of a pod spec. `errors` holds what the rules of single fields found already.
pub fn spec(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    if items(spec, "containers").is_empty() {
        errors.push(FieldError::required(&path.child("containers"), ""));
    }
    let volumes = volumes::rules(items(spec, "volumes"), &path.child("volumes"), errors);
    containers::rules(spec, path, &volumes, errors);
    security::pod(spec, path, errors);
    scheduling::rules(spec, path, errors);
    volumes::tokens(spec, path, errors);
    dns(spec, path, errors);
    for (i, h) in items(spec, "hostAliases").iter().enumerate() {
        let at = path.child("hostAliases").index(i).child("hostnames");
        for (j, name) in items(h, "hostnames").iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            errors.extend(names::dns_subdomain(name).into_iter().map(|m| FieldError::invalid(&at.index(j), name, m)));
        }
    }
    if spec["hostPID"] == true && spec["shareProcessNamespace"] == true {
        let why = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(&path.child("shareProcessNamespace"), true, why));
    }
}

const SEARCHES_MAX: usize = 32;
const SEARCHES_LENGTH_MAX: usize = 2048;
const NAMESERVERS_MAX: usize = 3;

fn dns(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let config = &spec["dnsConfig"];
    let at = path.child("dnsConfig");
    if spec["dnsPolicy"] == "None" {
        if !config.is_object() {
            let why = "must provide `dnsConfig` when `dnsPolicy` is None";
            errors.push(FieldError::required(&at, why));
        } else if items(config, "nameservers").is_empty() {
            let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.push(FieldError::required(&at.child("nameservers"), why));
        }
    }
    let nameservers = items(config, "nameservers");
    if nameservers.len() > NAMESERVERS_MAX {
        let why = format!("must not have more than {NAMESERVERS_MAX} nameservers");
        errors.push(FieldError::invalid(&at.child("nameservers"), nameservers.to_vec(), why));
    }
    let searches = items(config, "searches");
    if searches.len() > SEARCHES_MAX {
        let why = format!("must not have more than {SEARCHES_MAX} search paths");
        errors.push(FieldError::invalid(&at.child("searches"), searches.to_vec(), why));
    }
    let length: usize = searches.iter().map(|s| s.as_str().map_or(0, str::len) + 1).sum();
    if length > SEARCHES_LENGTH_MAX + 1 {
        let why =
            format!("must not have more than {SEARCHES_LENGTH_MAX} characters (including spaces) in the search list");
        errors.push(FieldError::invalid(&at.child("searches"), searches.to_vec(), why));
    }
    for (i, s) in searches.iter().enumerate() {
        let s = s.as_str().unwrap_or_default();
        let name = s.strip_suffix('.').filter(|n| !n.is_empty()).unwrap_or(s);
        // Underscores are seen in search paths.
        if s != "." {
            let found = names::dns_subdomain(&name.replace('_', "a"));
            errors.extend(found.into_iter().map(|m| FieldError::invalid(&at.child("searches").index(i), s, m)));
        }
    }
    for (i, option) in items(config, "options").iter().enumerate() {
        if text(option, "name").is_empty() {
            errors.push(FieldError::required(&at.child("options").index(i), "must not be empty"));
        }
    }
}
