//! Validation of autoscaler specs, in `v2`.

use crate::pod_template::resources;
use crate::read::{is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Quantity, Value, names};

/// Metric types and their fields, in order of validation.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];
const KINDS: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];
const WINDOW_MAX: i64 = 3600;
const PERIOD_MAX: i64 = 1800;

/// Validates a spec. Values of `old` remain valid.
pub fn validate(spec: &Value, old: Option<&Value>, path: &FieldPath, errors: &mut ErrorList) {
    let least = spec["minReplicas"].as_i64();
    let lowest = if old.is_some_and(|o| o["minReplicas"] == 0) { 0 } else { 1 };
    if let Some(n) = least.filter(|n| *n < lowest) {
        let why = format!("must be greater than or equal to {lowest}");
        errors.push(FieldError::invalid(&path.child("minReplicas"), n, why));
    }
    let most = spec["maxReplicas"].as_i64().unwrap_or(0);
    let at = path.child("maxReplicas");
    match most {
        0 => errors.push(FieldError::required(&at, "must be set and greater than 0")),
        n if n < 1 => errors.push(FieldError::invalid(&at, n, "must be greater than or equal to 1")),
        _ => {}
    }
    if least.is_some_and(|l| most < l) {
        errors.push(FieldError::invalid(&at, most, "must be greater than or equal to `minReplicas`"));
    }
    let (of, at) = (&spec["scaleTargetRef"], path.child("scaleTargetRef"));
    target(of, &at, errors);
    let scaled = |r: &Value| version(r, text(r, "kind") == "ReplicationController");
    if old.is_none_or(|o| scaled(&o["scaleTargetRef"]).is_none()) {
        errors.extend(scaled(of).map(|why| FieldError::invalid(&at.child("apiVersion"), text(of, "apiVersion"), why)));
    }
    let metrics = items(spec, "metrics");
    let at = path.child("metrics");
    let lenient = old.is_some_and(|o| items(o, "metrics").iter().any(|m| described(m).is_some()));
    for (i, m) in metrics.iter().enumerate() {
        metric(m, lenient, &at.index(i), errors);
    }
    if least == Some(0) && !metrics.iter().any(|m| matches!(text(m, "type"), "Object" | "External")) {
        let why = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.push(FieldError::forbidden(&at, why));
    }
    for side in ["scaleUp", "scaleDown"] {
        if is_set(&spec["behavior"], side) {
            scaling(&spec["behavior"][side], &path.child("behavior").child(side), errors);
        }
    }
}

fn target(r: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for key in ["kind", "name"] {
        let v = text(r, key);
        let at = at.child(key);
        if v.is_empty() {
            errors.push(FieldError::required(&at, ""));
        }
        errors.extend(names::path_segment(v).into_iter().map(|m| FieldError::invalid(&at, v, m)));
    }
}

/// Returns the error for the API version of a reference. `core` allows the core group.
fn version(r: &Value, core: bool) -> Option<String> {
    let version = text(r, "apiVersion");
    if version.matches('/').count() > 1 {
        return Some(format!("unexpected GroupVersion string: {version}"));
    }
    let group = version.split_once('/').map_or("", |(group, _)| group);
    (group.is_empty() && !core).then(|| "apiVersion must specify API group".to_string())
}

/// Like [`version`], for the object that a metric describes, which may be of any group.
fn described(m: &Value) -> Option<String> {
    let object = &m["object"]["describedObject"];
    object.is_object().then(|| version(object, true)).flatten()
}

fn metric(m: &Value, lenient: bool, at: &FieldPath, errors: &mut ErrorList) {
    let kind = text(m, "type");
    let unknown = FieldError::not_supported(&at.child("type"), kind, &KINDS);
    if kind.is_empty() {
        errors.push(FieldError::required(&at.child("type"), "must specify a metric source type"));
    }
    if !KINDS.contains(&kind) {
        errors.push(unknown.clone());
    }
    let present: Vec<(&str, &str)> = SOURCES.into_iter().filter(|(_, field)| m[*field].is_object()).collect();
    if let Some((of, field)) = present.first() {
        source(of, &m[*field], lenient, &at.child(field), errors);
    }
    let expected = SOURCES.iter().find(|(k, _)| *k == kind).map(|(_, field)| *field);
    match expected {
        Some(field) if !m[field].is_object() => {
            let why = "must populate information for the given metric source";
            errors.push(FieldError::required(&at.child(field), why));
        }
        Some(_) => {}
        None => errors.push(unknown),
    }
    if present.len() > 1 {
        let others = present.iter().filter(|(_, field)| Some(*field) != expected);
        let why = "must populate the given metric source only";
        errors.extend(others.map(|(_, field)| FieldError::forbidden(&at.child(field), why)));
    }
}

fn source(kind: &str, source: &Value, lenient: bool, at: &FieldPath, errors: &mut ErrorList) {
    if matches!(kind, "Resource" | "ContainerResource") {
        let name = text(source, "name");
        if name.is_empty() {
            errors.push(FieldError::required(&at.child("name"), "must specify a resource name"));
        } else if kind == "ContainerResource" {
            resources::resource_name(name, &at.child("name"), errors);
        }
        if kind == "ContainerResource" {
            let (name, at) = (text(source, "container"), at.child("container"));
            if name.is_empty() {
                errors.push(FieldError::required(&at, "must specify a container"));
            } else {
                errors.extend(names::dns_label(name).into_iter().map(|m| FieldError::invalid(&at, name, m)));
            }
        }
    } else {
        if kind == "Object" {
            let (of, at) = (&source["describedObject"], at.child("describedObject"));
            target(of, &at, errors);
            if let Some(why) = version(of, true).filter(|_| !lenient) {
                errors.push(FieldError::invalid(&at.child("apiVersion"), text(of, "apiVersion"), why));
            }
        }
        let (name, at) = (text(&source["metric"], "name"), at.child("metric").child("name"));
        if name.is_empty() {
            errors.push(FieldError::required(&at, "must specify a metric name"));
        }
        errors.extend(names::path_segment(name).into_iter().map(|m| FieldError::invalid(&at, name, m)));
    }
    metric_target(kind, &source["target"], &at.child("target"), errors);
}

fn metric_target(kind: &str, t: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let ty = text(t, "type");
    if ty.is_empty() {
        errors.push(FieldError::required(&at.child("type"), "must specify a metric target type"));
    }
    if !matches!(ty, "Utilization" | "Value" | "AverageValue") {
        let why = "must be either Utilization, Value, or AverageValue";
        errors.push(FieldError::invalid(&at.child("type"), ty, why));
    }
    for key in ["value", "averageValue"] {
        let amount = t[key].as_str().and_then(|s| Quantity::parse(s).ok());
        if amount.is_some_and(|q| q.sign() <= 0) {
            errors.push(FieldError::invalid(&at.child(key), &t[key], "must be positive"));
        }
    }
    if t["averageUtilization"].as_i64().is_some_and(|n| n < 1) {
        let at = at.child("averageUtilization");
        errors.push(FieldError::invalid(&at, &t["averageUtilization"], "must be greater than 0"));
    }
    let (utilization, average, value) =
        (is_set(t, "averageUtilization"), is_set(t, "averageValue"), is_set(t, "value"));
    match kind {
        "Resource" | "ContainerResource" => {
            if utilization && average {
                let why = "may not set both a target raw value and a target utilization";
                errors.push(FieldError::forbidden(&at.child("averageValue"), why));
            } else if !utilization && !average {
                let why = "must set either a target raw value or a target utilization";
                errors.push(FieldError::required(&at.child("averageUtilization"), why));
            }
        }
        "Pods" if !average => {
            errors.push(FieldError::required(&at.child("averageValue"), "must specify a positive target averageValue"));
        }
        "Object" if !average && !value => {
            let why = "must set either a target value or averageValue";
            errors.push(FieldError::required(&at.child("averageValue"), why));
        }
        "External" if !average && !value => {
            let why = "must set either a target value for metric or a per-pod target";
            errors.push(FieldError::required(&at.child("averageValue"), why));
        }
        "External" if average && value => {
            let why = "may not set both a target value for metric and a per-pod target";
            errors.push(FieldError::forbidden(&at.child("value"), why));
        }
        _ => {}
    }
}

fn scaling(r: &Value, at: &FieldPath, errors: &mut ErrorList) {
    if let Some(n) = r["stabilizationWindowSeconds"].as_i64() {
        let at = at.child("stabilizationWindowSeconds");
        if n < 0 {
            errors.push(FieldError::invalid(&at, n, "must be greater than or equal to zero"));
        } else if n > WINDOW_MAX {
            errors.push(FieldError::invalid(&at, n, format!("must be less than or equal to {WINDOW_MAX}")));
        }
    }
    if let Some(p) = r["selectPolicy"].as_str()
        && !matches!(p, "Max" | "Min" | "Disabled")
    {
        errors.push(FieldError::not_supported(&at.child("selectPolicy"), p, &["Disabled", "Max", "Min"]));
    }
    let at = at.child("policies");
    let policies = items(r, "policies");
    if policies.is_empty() {
        errors.push(FieldError::required(&at, "must specify at least one Policy"));
    }
    for (i, p) in policies.iter().enumerate() {
        let at = at.index(i);
        let kind = text(p, "type");
        if !matches!(kind, "Percent" | "Pods") {
            errors.push(FieldError::not_supported(&at.child("type"), kind, &["Percent", "Pods"]));
        }
        for key in ["value", "periodSeconds"] {
            if p[key].as_i64().is_none_or(|n| n <= 0) {
                errors.push(FieldError::invalid(&at.child(key), &p[key], "must be greater than zero"));
            }
        }
        if p["periodSeconds"].as_i64().is_some_and(|n| n > PERIOD_MAX) {
            let why = format!("must be less than or equal to {PERIOD_MAX}");
            errors.push(FieldError::invalid(&at.child("periodSeconds"), &p["periodSeconds"], why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(old: Option<&Value>, pointer: &str, value: Value, expected: &[&str]) {
        let mut spec = json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "maxReplicas": 2,
            "minReplicas": 1, "metrics": [{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 50}}}]});
        if !pointer.is_empty() {
            *crate::testing::field(&mut spec, pointer) = value.clone();
        }
        let mut errors = ErrorList::new();
        validate(&spec, old, &FieldPath::new("spec"), &mut errors);
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors, expected, "{pointer} {value}");
    }

    #[test]
    fn validates_specs() {
        let create = |pointer: &str, value: Value, expected: &[&str]| check(None, pointer, value, expected);
        create("", Value::Null, &[]);
        create(
            "/minReplicas",
            json!(0),
            &[
                "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1",
                "spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas",
            ],
        );
        create(
            "/maxReplicas",
            json!(0),
            &[
                "spec.maxReplicas: Required value: must be set and greater than 0",
                "spec.maxReplicas: Invalid value: 0: must be greater than or equal to `minReplicas`",
            ],
        );
        create(
            "/minReplicas",
            json!(3),
            &["spec.maxReplicas: Invalid value: 2: must be greater than or equal to `minReplicas`"],
        );
        create("/scaleTargetRef/kind", json!(""), &["spec.scaleTargetRef.kind: Required value"]);
        create(
            "/scaleTargetRef/name",
            json!("a/b"),
            &["spec.scaleTargetRef.name: Invalid value: \"a/b\": may not contain '/'"],
        );
        create(
            "/scaleTargetRef/apiVersion",
            json!("v1"),
            &["spec.scaleTargetRef.apiVersion: Invalid value: \"v1\": apiVersion must specify API group"],
        );
        create(
            "/metrics/0/type",
            json!("Pods"),
            &["spec.metrics[0].pods: Required value: must populate information for the given metric source"],
        );
        let target = "spec.metrics[0].resource.target";
        create(
            "/metrics/0/resource/target",
            json!({"type": "Utilization"}),
            &[&format!(
                "{target}.averageUtilization: Required value: must set either a target raw value or a target utilization"
            )],
        );
        create(
            "/metrics/0/resource/target",
            json!({"type": "Utilization", "averageUtilization": 0}),
            &[&format!("{target}.averageUtilization: Invalid value: 0: must be greater than 0")],
        );
        create(
            "/metrics/0/resource/target",
            json!({"type": "Utilization", "averageUtilization": 1, "averageValue": "1"}),
            &[&format!(
                "{target}.averageValue: Forbidden: may not set both a target raw value and a target utilization"
            )],
        );
        let up = "spec.behavior.scaleUp";
        create(
            "/behavior/scaleUp",
            json!({"policies": []}),
            &[&format!("{up}.policies: Required value: must specify at least one Policy")],
        );
        create(
            "/behavior/scaleUp",
            json!({"stabilizationWindowSeconds": 3601, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 1801}]}),
            &[
                &format!("{up}.stabilizationWindowSeconds: Invalid value: 3601: must be less than or equal to 3600"),
                &format!("{up}.policies[0].periodSeconds: Invalid value: 1801: must be less than or equal to 1800"),
            ],
        );
        create(
            "/behavior/scaleUp",
            json!({"selectPolicy": "Other", "policies": [{"type": "A", "value": 0, "periodSeconds": 1}]}),
            &[
                &format!(
                    r#"{up}.selectPolicy: Unsupported value: "Other": supported values: "Disabled", "Max", "Min""#
                ),
                &format!(r#"{up}.policies[0].type: Unsupported value: "A": supported values: "Percent", "Pods""#),
                &format!("{up}.policies[0].value: Invalid value: 0: must be greater than zero"),
            ],
        );
    }

    #[test]
    fn keeps_invalid_values_of_the_old_object() {
        let old = json!({"minReplicas": 0, "scaleTargetRef": {"apiVersion": "v1", "kind": "K", "name": "n"}});
        check(Some(&old), "/scaleTargetRef/apiVersion", json!("v1"), &[]);
    }
}
