//! The strategy that workloads share: validation of selector, template and replica counts.

use crate::read::{delegated, items, shown_selector, text};
use crate::replicas::{self, Counts};
use crate::{plain, pod_template};
use meta::field::{BadValue, ErrorList};
use meta::{FieldError, FieldPath, LabelSelector, Object, Value};
use registry::{CreateStrategy, Env, NameRule, Request, Sub, Subresources, UpdateStrategy};
use serde_json::json;
use std::collections::HashSet;

/// The strategy of a workload, with the rules of its kind.
pub struct Workload {
    pub names: NameRule,
    pub selector_is_immutable: bool,
    /// The definition of the kind's spec.
    pub definition: &'static str,
    pub empty_status: fn() -> Value,
    pub counts: &'static Counts,
    pub default: fn(&mut Object),
    pub prepare_for_update: fn(&mut Object, &Object),
    /// Validates the spec.
    pub validate: fn(&Value, &FieldPath, &mut ErrorList),
    /// See [`CreateStrategy::validate_since`].
    pub since: fn(&Object, Option<&Object>, &mut ErrorList),
    pub update: fn(&Object, &Object, &mut ErrorList),
    pub warnings: fn(&Object, Option<&Object>) -> Vec<String>,
}

impl Workload {
    /// Returns a strategy without rules of the kind.
    pub fn new(definition: &'static str, counts: &'static Counts) -> Self {
        Self {
            names: NameRule::DnsSubdomain,
            selector_is_immutable: true,
            definition,
            empty_status: || json!({"replicas": 0}),
            counts,
            default: |_| {},
            prepare_for_update: |_, _| {},
            validate: |_, _, _| {},
            since: |_, _, _| {},
            update: |_, _, _| {},
            warnings: |_, _| Vec::new(),
        }
    }
}

impl CreateStrategy for Workload {
    fn name_rule(&self) -> NameRule {
        self.names
    }

    fn default(&self, o: &mut Object) {
        pod_template::default(o, &["spec", "template", "spec"]);
        (self.default)(o);
    }

    fn prepare_for_create(&self, _env: Env<'_>, _request: &Request, o: &mut Object) {
        o.set(&["status"], (self.empty_status)());
    }

    fn warnings(&self, o: &Object, old: Option<&Object>) -> Vec<String> {
        let named = matches!(o.kind(), "Deployment" | "ReplicaSet") && old.is_none();
        let mut out = if named { pod_template::name_warnings(o.name()) } else { Vec::new() };
        out.extend(pod_template::workload_warnings(o, old, &["spec", "template"]));
        out.extend((self.warnings)(o, old));
        out
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let spec = o.get("spec").unwrap_or(&Value::Null);
        let path = FieldPath::new("spec");
        let at = path.child("template");
        let readable = selector(o.kind(), spec, &path, errors);
        let validated = readable || !matches!(o.kind(), "Deployment" | "ReplicaSet");
        if let Some(t) = spec.get("template").filter(|_| validated) {
            let of_set = (o.kind() == "StatefulSet").then(|| {
                let template = as_of_set(t, items(spec, "volumeClaimTemplates"));
                json!({"template": template})
            });
            delegated(of_set.as_ref().unwrap_or(spec), self.definition, "template", &path, errors);
            let t = of_set.as_ref().map_or(t, |s| &s["template"]);
            pod_template::validate(Some(t), &at, errors);
            if of_set.is_some() {
                schema::rules::labels(&t["metadata"]["labels"], &at.child("labels"), errors);
                registry::metadata::annotations(t["metadata"].get("annotations"), &at.child("annotations"), errors);
            }
            // Upstream reports the ReplicaSet for a Deployment.
            let controller = if o.kind() == "Deployment" { "ReplicaSet" } else { o.kind() };
            pod_template::always_restarts(controller, t, &at, errors);
        }
        (self.validate)(spec, &path, errors);
    }

    fn validate_since(&self, o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
        (self.since)(o, old, errors);
    }
}

impl UpdateStrategy for Workload {
    fn prepare_for_update(&self, _env: Env<'_>, _request: &Request, o: &mut Object, old: &Object) {
        (self.prepare_for_update)(o, old);
    }

    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        let (new, was) = (o.at(&["spec", "selector"]), old.at(&["spec", "selector"]));
        if self.selector_is_immutable && new != was {
            let at = FieldPath::new("spec.selector");
            let value = new.map_or(BadValue::Null, |s| shown_selector(s, &at));
            errors.push(FieldError::invalid(&at, value, "field is immutable"));
        }
        (self.update)(o, old, errors);
    }

    fn validate_part(&self, subresource: &str, o: &Object, old: &Object, errors: &mut ErrorList) {
        if subresource == "status" {
            replicas::status(o, old, self.counts, errors);
        }
    }

    fn fixed_by_status(&self, old: &Object) -> &'static [&'static str] {
        if old.kind() == "Deployment" { &["labels"] } else { &[] }
    }
}

impl Subresources for Workload {
    fn subresource(&self, name: &str) -> Option<Sub> {
        (name == "scale").then_some(Sub::Scale(registry::Scale::usual(plain::label_selector)))
    }
}

registry::strategy!(Workload: CreateStrategy, UpdateStrategy, Subresources);

const CLAIM: &str = "persistentVolumeClaim";

/// Validates the selector and whether it matches the template. Returns false if the selector is invalid: upstream then
/// skips the template of Deployments and ReplicaSets.
fn selector(kind: &str, spec: &Value, path: &FieldPath, errors: &mut ErrorList) -> bool {
    let at = path.child("selector");
    let selector = spec.get("selector").filter(|s| !s.is_null());
    let before = errors.len();
    match selector {
        None if kind == "DaemonSet" => {}
        None => errors.push(FieldError::required(&at, "")),
        Some(s) => {
            schema::rules::selector(s, &at, errors);
            let value = shown_selector(s, &at);
            if s.as_object().is_some_and(|m| m.is_empty()) {
                let name = if kind == "ReplicaSet" { "deployment".to_owned() } else { kind.to_lowercase() };
                errors.push(FieldError::invalid(&at, value, format!("empty selector is invalid for {name}")));
                return true;
            }
            if errors.len() > before {
                let why = if kind == "StatefulSet" { "" } else { "invalid label selector" };
                if kind != "DaemonSet" {
                    errors.push(FieldError::invalid(&at, value, why));
                }
                return false;
            }
        }
    }
    let labels = &spec["template"]["metadata"]["labels"];
    let fits = selector.is_some()
        && LabelSelector::from_value(selector).is_ok_and(|s| s.matches(|k| labels.get(k).and_then(Value::as_str)));
    if !fits {
        let at = path.child("template").child("metadata").child("labels");
        errors.push(FieldError::invalid(&at, labels, "`selector` does not match template `labels`"));
    }
    true
}

/// Returns the template of a StatefulSet as far as it is validated: with a volume for each claim template, in place of volumes with the
/// same name, and without the names that the controller replaces.
fn as_of_set(template: &Value, claims: &[Value]) -> Value {
    let names: HashSet<&str> = claims.iter().map(|c| text(&c["metadata"], "name")).collect();
    let mut volumes: Vec<Value> = names.iter().map(|n| json!({"name": n, CLAIM: {"claimName": n}})).collect();
    let own = items(&template["spec"], "volumes");
    volumes.extend(own.iter().filter(|v| !names.contains(&text(v, "name"))).cloned());
    let mut out = template.clone();
    if let Some(spec) = out["spec"].as_object_mut() {
        spec.remove("hostname");
        spec.remove("subdomain");
        spec.insert("volumes".into(), volumes.into());
    }
    out
}

/// Returns the number or percentage of an `IntOrString`; 0 if it is neither.
pub fn count(v: &Value) -> i64 {
    match v {
        Value::Number(n) => n.as_i64().unwrap_or(0),
        Value::String(s) => percent(v).or_else(|| s.parse().ok()).unwrap_or(0),
        _ => 0,
    }
}

/// Returns the number of a percentage; the largest number in place of a larger one.
fn percent(v: &Value) -> Option<i64> {
    let digits = v.as_str()?.strip_suffix('%')?;
    let valid = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    valid.then(|| digits.parse().unwrap_or(i64::MAX))
}

/// Checks that a percentage is at most 100. `order` is where the error is ordered.
pub fn at_most_100_percent(v: &Value, at: &FieldPath, order: &FieldPath, errors: &mut ErrorList) {
    if percent(v).is_some_and(|n| n > 100) {
        errors.push(FieldError::invalid(at, v, "must not be greater than 100%").ordered_at(order));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn base(kind: &str) -> Value {
        let pod = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "x"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": pod}})
    }
}
