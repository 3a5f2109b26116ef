//! PodSecurity: enforces the level that the labels of a namespace select (`k8s.io/pod-security-admission`).
//!
//! `configuration` holds defaults and exemptions, `policy` parses namespace labels, `checks` holds the checks by
//! level and version.

mod checks;
mod configuration;
mod policy;

use crate::configuration::aggregate;
use crate::plugin::Labels;
use crate::{Lookup, Operation, Plugin, ReadScope, Review, WriteRequest};
use configuration::Exemptions;

use meta::{FieldError, GroupKind, LabelSelector, Object, Status, Value};
use policy::{BadLabel, LevelVersion, Policy};
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;
use tokio::time::Instant;

pub struct PodSecurity {
    /// Policy for namespaces without labels.
    default: Policy,
    exempt: Exemptions,
}

const ENFORCE_POLICY: &str = "pod-security.kubernetes.io/enforce-policy";
const AUDIT_VIOLATIONS: &str = "pod-security.kubernetes.io/audit-violations";
const EXEMPT: &str = "pod-security.kubernetes.io/exempt";
const ERROR: &str = "pod-security.kubernetes.io/error";

/// Subresources of pods that do not affect the checks.
const HARMLESS: [&str; 8] = ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];

/// Maximum number of existing pods to evaluate when a namespace's level changes.
const MOST_PODS: usize = 3_000;
/// Time limit for evaluating existing pods.
const PATIENCE: Duration = Duration::from_secs(1);

/// Path of the pod template in each workload kind; empty for pods.
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

    fn reads(&self, write: &WriteRequest<'_>, lookup: &dyn Lookup) -> usize {
        // Evaluate existing pods against the new level.
        let level = write.is("", "namespaces") && matches!(write.verb, "update" | "patch");
        if level { lookup.bytes("", "pods", Some(write.name), ReadScope::All) } else { 0 }
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let Some(object) = object.filter(|_| matches!(review.operation, Operation::Create | Operation::Update)) else {
            return Ok(());
        };
        let (group, resource) = (review.attributes.group.as_str(), review.attributes.resource.as_str());
        match (group, resource) {
            ("", "namespaces") if review.subresource.is_empty() => self.namespace(review, object),
            ("", "pods") if !HARMLESS.contains(&review.subresource) => self.pod(review, object),
            _ => match TEMPLATES.iter().find(|(g, r, _)| *g == group && *r == resource) {
                Some((_, _, path)) if review.subresource.is_empty() => {
                    self.template(review, object, path);
                    Ok(())
                }
                _ => Ok(()),
            },
        }
    }
}

impl PodSecurity {
    fn policy(&self, labels: &Labels) -> (Policy, Vec<BadLabel>) {
        policy::read_labels(self.default, |k| labels.get(k))
    }

    /// Records an exemption in the audit log.
    fn is_exempt(&self, review: &Review<'_>) -> bool {
        let why = self.exempt.request(review.namespace, &review.attributes.user.name);
        why.inspect(|why| review.host.annotate(EXEMPT, why)).is_some()
    }

    /// Evaluates a pod, or the pod template of a workload.
    fn is_exempt_by_class(&self, review: &Review<'_>, spec: Option<&Value>) -> bool {
        let is = self.exempt.runtime_class(spec);
        if is {
            review.host.annotate(EXEMPT, &"runtimeClass");
        }
        is
    }

    fn pod(&self, review: &Review<'_>, object: &Object) -> Result<(), Status> {
        if self.is_exempt(review) {
            return Ok(());
        }
        let Some(labels) = review.lookup.namespace_labels(review.namespace) else {
            return Err(Status::internal(format!("failed to lookup namespace {:?}", review.namespace)));
        };
        let (policy, errors) = self.policy(&labels);
        if errors.is_empty() && policy.is_privileged() {
            review.host.annotate(ENFORCE_POLICY, &"privileged:latest");
            return Ok(());
        }
        if let (Operation::Update, Some(old)) = (review.operation, review.old)
            && !is_significant(object, old)
        {
            return Ok(());
        }
        if self.is_exempt_by_class(review, object.at(&["spec"])) {
            return Ok(());
        }
        unreadable(review, &errors);
        review.host.annotate(ENFORCE_POLICY, &policy.enforce);
        let pod = checks::Pod::new(object.at(&["metadata"]), object.at(&["spec"]));
        let found = checks::violations(&policy.enforce, &pod);
        audit(review, &policy, &pod);
        if !found.is_empty() {
            let why = format!("violates PodSecurity \"{}\": {}", policy.enforce, details(&found));
            return Err(review.forbidden(&why));
        }
        warn(review, &policy, &pod);
        Ok(())
    }

    fn template(&self, review: &Review<'_>, object: &Object, path: &[&str]) {
        if self.is_exempt(review) {
            return;
        }
        let Some(labels) = review.lookup.namespace_labels(review.namespace) else {
            let name = review.namespace;
            let why = format!("failed to lookup namespace {name:?}: namespaces {name:?} not found");
            return review.host.annotate(ERROR, &why);
        };
        let (policy, errors) = self.policy(&labels);
        let harmless = errors.is_empty() && policy.warn.is_privileged() && policy.audit.is_privileged();
        let Some(t) = object.at(path).filter(|_| !harmless) else { return };
        if self.is_exempt_by_class(review, t.get("spec")) {
            return;
        }
        unreadable(review, &errors);
        let pod = checks::Pod::new(t.get("metadata"), t.get("spec"));
        audit(review, &policy, &pod);
        warn(review, &policy, &pod);
    }

    /// Validates the labels of a namespace, and warns about existing pods that violate them.
    fn namespace(&self, review: &Review<'_>, object: &Object) -> Result<(), Status> {
        let (new, errors) = policy::read_labels(self.default, |k| object.label(k));
        let old = review.old.filter(|_| review.operation == Operation::Update);
        let old = old.map(|o| policy::read_labels(self.default, |k| o.label(k)));
        if !errors.is_empty() && old.as_ref().is_none_or(|(_, before)| *before != errors) {
            let all: Vec<FieldError> = errors.iter().map(BadLabel::error).collect();
            let gk = GroupKind { group: String::new(), kind: "Namespace".into() };
            return Err(Status::invalid(&gk, object.name(), &all));
        }
        if let Some((old, _)) = old {
            let same = new.enforce == old.enforce || new.enforce.is_privileged();
            if same || (new.enforce.version == old.enforce.version && new.enforce.level <= old.enforce.level) {
                return Ok(());
            }
        } else if !self.exempt.namespace(object.name()) {
            return Ok(());
        }
        if self.exempt.namespace(object.name()) {
            self.ignored(&new, object).into_iter().for_each(|w| review.host.warn(w));
        } else {
            self.existing(review, object.name(), &new.enforce).into_iter().for_each(|w| review.host.warn(w));
        }
        Ok(())
    }

    /// A warning that the labels of an exempt namespace have no effect.
    fn ignored(&self, policy: &Policy, namespace: &Object) -> Option<String> {
        if policy.is_privileged() || policy.is_like(&self.default) {
            return None;
        }
        let labelled = |mode: &str| {
            ["", "-version"].iter().any(|v| namespace.label(&format!("pod-security.kubernetes.io/{mode}{v}")).is_some())
        };
        let enforced = policy.modes().into_iter().filter(|(mode, l)| !l.is_privileged() && labelled(mode));
        let enforced: Vec<String> = enforced.map(|(mode, l)| format!("{mode}={l}")).collect();
        let (name, enforced) = (namespace.name(), enforced.join(", "));
        Some(format!("namespace {name:?} is exempt from Pod Security, and the policy ({enforced}) will be ignored"))
    }

    fn existing(&self, review: &Review<'_>, namespace: &str, enforce: &LevelVersion) -> Vec<String> {
        let begun = Instant::now();
        let pods: Vec<String> = {
            let all = review.lookup.find("", "pods", namespace, &LabelSelector::default());
            all.into_iter().map(|f| f.name).collect()
        };
        // Only for a warning: skip pods that cannot be read.
        let pod = |name: &str| review.lookup.get("", "pods", namespace, name).ok().flatten();
        let in_time = || begun.elapsed() < PATIENCE;
        // Evaluate one pod of each controller first: replicas are alike, and there may be too many pods for all.
        let mut order: Vec<&str> = pods.iter().map(String::as_str).collect();
        if order.len() > MOST_PODS {
            let mut seen = HashSet::new();
            order.sort_by_cached_key(|n| {
                let owner = pod(n).filter(|_| in_time()).and_then(|p| p.controller_of().map(|o| o.uid.to_owned()));
                owner.is_some_and(|o| !seen.insert(o))
            });
        }
        let (mut by_reason, mut checked) = (BTreeMap::<String, Vec<&str>>::new(), 0);
        for name in order.iter().take(MOST_PODS).take_while(|_| in_time()) {
            checked += 1;
            let Some(p) = pod(name).filter(|p| !self.exempt.runtime_class(p.at(&["spec"]))) else { continue };
            let found = checks::violations(enforce, &checks::Pod::new(p.at(&["metadata"]), p.at(&["spec"])));
            if !found.is_empty() {
                let reasons: Vec<String> = found.into_iter().map(|v| v.reason).collect();
                by_reason.entry(reasons.join(", ")).or_default().push(name);
            }
        }
        let mut out = Vec::new();
        if pods.len() > checked {
            let n = pods.len();
            out.push(format!(
                "new PodSecurity enforce level only checked against the first {checked} of {n} existing pods"
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
}

/// Records in the audit log why the enforced level is stricter than the labels.
fn unreadable(review: &Review<'_>, errors: &[BadLabel]) {
    let errors: Vec<FieldError> = errors.iter().map(BadLabel::error).collect();
    if let Err(why) = aggregate(&errors) {
        review.host.annotate(ERROR, &format!("Failed to parse policy: {why}"));
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
        review.host.annotate(AUDIT_VIOLATIONS, &why);
    }
}

fn details(found: &[checks::Violation]) -> String {
    let message = |v: &checks::Violation| {
        if v.detail.is_empty() { v.reason.clone() } else { format!("{} ({})", v.reason, v.detail) }
    };
    found.iter().map(message).collect::<Vec<_>>().join(", ")
}

/// Of a pod update, only images and new containers can change the result.
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
