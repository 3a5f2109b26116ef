//! PodSecurity: pods keep to the level that the labels of their namespace ask for (`k8s.io/pod-security-admission`).
//!
//! `policy` reads the labels, `checks` holds the rules by level and version.

mod checks;
mod policy;

use crate::{Operation, Plugin, Review};
use meta::{FieldError, FieldPath, GroupKind, Object, Status, Value};
use policy::{LevelVersion, Policy};
use std::collections::{BTreeMap, HashSet};

pub struct PodSecurity;

/// Subresources of pods that do not change what a pod may do.
const HARMLESS: [&str; 8] = ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];

/// Pods that are looked at when a namespace asks for more.
const MOST_PODS: usize = 3_000;

/// Where kinds have their pod's metadata and spec; the part before it, empty for pods themselves.
const TEMPLATES: &[(&str, &str, &[&str])] = &[
    ("", "replicationcontrollers", &["spec", "template"]),
    ("", "podtemplates", &["template"]),
    ("apps", "deployments", &["spec", "template"]),
    ("apps", "replicasets", &["spec", "template"]),
    ("apps", "statefulsets", &["spec", "template"]),
    ("apps", "daemonsets", &["spec", "template"]),
    ("batch", "jobs", &["spec", "template"]),
    ("batch", "cronjobs", &["spec", "jobTemplate", "spec", "template"]),
];

impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let Some(object) = object.filter(|_| matches!(review.operation, Operation::Create | Operation::Update)) else {
            return Ok(());
        };
        let (group, resource) = (review.attributes.group.as_str(), review.attributes.resource.as_str());
        match (group, resource) {
            ("", "namespaces") if review.subresource.is_empty() => namespace(review, object),
            ("", "pods") if !HARMLESS.contains(&review.subresource) => pod(review, object),
            _ => match TEMPLATES.iter().find(|(g, r, _)| *g == group && *r == resource) {
                Some((_, _, path)) if review.subresource.is_empty() => {
                    template(review, object, path);
                    Ok(())
                }
                _ => Ok(()),
            },
        }
    }
}

fn pod(review: &Review<'_>, object: &Object) -> Result<(), Status> {
    let Some(labels) = review.lookup.namespace_labels(review.namespace) else {
        return Err(Status::internal(format!("failed to lookup namespace {:?}", review.namespace)));
    };
    let (policy, errors) = policy::of(|k| labels.get(k).map(String::as_str));
    review.host.annotate("pod-security.kubernetes.io/enforce-policy", &policy.enforce);
    if errors.is_empty() && policy.is_privileged() {
        return Ok(());
    }
    if let (Operation::Update, Some(old)) = (review.operation, review.old)
        && !is_significant(object, old)
    {
        return Ok(());
    }
    let pod = checks::Pod::of(object.at(&["metadata"]), object.at(&["spec"]));
    let found = checks::violations(&policy.enforce, &pod);
    audit(review, &policy, &pod);
    if !found.is_empty() {
        let why = format!("violates PodSecurity \"{}\": {}", policy.enforce, details(&found));
        return Err(review.forbidden(&why));
    }
    warn(review, &policy, &pod);
    Ok(())
}

fn template(review: &Review<'_>, object: &Object, path: &[&str]) {
    let Some(labels) = review.lookup.namespace_labels(review.namespace) else { return };
    let (policy, _) = policy::of(|k| labels.get(k).map(String::as_str));
    if let Some(t) = object.at(path) {
        let pod = checks::Pod::of(t.get("metadata"), t.get("spec"));
        audit(review, &policy, &pod);
        warn(review, &policy, &pod);
    }
}

fn warn(review: &Review<'_>, policy: &Policy, pod: &checks::Pod<'_>) {
    let found = checks::violations(&policy.warn, pod);
    if !found.is_empty() {
        review.host.warn(format!("would violate PodSecurity \"{}\": {}", policy.warn, details(&found)));
    }
}

fn audit(review: &Review<'_>, policy: &Policy, pod: &checks::Pod<'_>) {
    let found = checks::violations(&policy.audit, pod);
    if !found.is_empty() {
        let why = format!("would violate PodSecurity \"{}\": {}", policy.audit, details(&found));
        review.host.annotate("pod-security.kubernetes.io/audit-violations", &why);
    }
}

fn details(found: &[checks::Violation]) -> String {
    let one = |v: &checks::Violation| {
        if v.detail.is_empty() { v.reason.clone() } else { format!("{} ({})", v.reason, v.detail) }
    };
    found.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Labels must be readable, and pods that are there already are told of.
fn namespace(review: &Review<'_>, object: &Object) -> Result<(), Status> {
    let (new, errors) = policy::of(|k| object.label(k));
    let old = review.old.filter(|_| review.operation == Operation::Update).map(|o| policy::of(|k| o.label(k)));
    if !errors.is_empty() && old.as_ref().is_none_or(|(_, before)| *before != errors) {
        let path = FieldPath::new("metadata").child("labels");
        let all: Vec<FieldError> =
            errors.iter().map(|e| FieldError::invalid(&path.key(e.label), e.value.as_str(), e.why)).collect();
        let gk = GroupKind { group: String::new(), kind: "Namespace".into() };
        return Err(Status::invalid(&gk, object.name(), &all));
    }
    let Some((old, _)) = old else { return Ok(()) };
    let same = new.enforce == old.enforce || new.enforce.is_privileged();
    if same || (new.enforce.version == old.enforce.version && new.enforce.level <= old.enforce.level) {
        return Ok(());
    }
    existing(review, object.name(), &new.enforce).into_iter().for_each(|w| review.host.warn(w));
    Ok(())
}

fn existing(review: &Review<'_>, namespace: &str, enforce: &LevelVersion) -> Vec<String> {
    let pods = review.lookup.list("", "pods", Some(namespace));
    // One pod of each controller first: its others are like it.
    let mut seen = HashSet::new();
    let (mut first, rest): (Vec<&Object>, Vec<&Object>) =
        pods.iter().partition(|p| p.controller_of().is_none_or(|o| seen.insert(o.uid.to_owned())));
    first.extend(rest);
    let mut by_reason: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for p in first.iter().take(MOST_PODS) {
        let found = checks::violations(enforce, &checks::Pod::of(p.at(&["metadata"]), p.at(&["spec"])));
        if !found.is_empty() {
            let reasons: Vec<String> = found.into_iter().map(|v| v.reason).collect();
            by_reason.entry(reasons.join(", ")).or_default().push(p.name());
        }
    }
    let mut out = Vec::new();
    if pods.len() > MOST_PODS {
        let n = pods.len();
        out.push(format!(
            "new PodSecurity enforce level only checked against the first {MOST_PODS} of {n} existing pods"
        ));
    }
    if !by_reason.is_empty() {
        out.push(format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{enforce}\""
        ));
    }
    let mut each: Vec<String> = by_reason
        .into_iter()
        .map(|(reason, names)| {
            let name = names.iter().min().copied().unwrap_or_default();
            match names.len() {
                1 => format!("{name}: {reason}"),
                2 => format!("{name} (and 1 other pod): {reason}"),
                n => format!("{name} (and {} other pods): {reason}", n - 1),
            }
        })
        .collect();
    each.sort();
    out.extend(each);
    out
}

/// Of what may change in a pod, only images and new containers matter.
fn is_significant(new: &Object, old: &Object) -> bool {
    let list = |o: &Object, l: &str| -> Vec<(Value, Value)> {
        let all = o.at(&["spec", l]).and_then(Value::as_array).into_iter().flatten();
        all.map(|c| (c["name"].clone(), c["image"].clone())).collect()
    };
    let images = |o: &Object, l: &str| -> Vec<Value> { list(o, l).into_iter().map(|(_, i)| i).collect() };
    let changed = |l: &str| images(new, l) != images(old, l);
    let before = list(old, "ephemeralContainers");
    changed("containers")
        || changed("initContainers")
        || list(new, "ephemeralContainers").iter().any(|c| !before.contains(c))
}
