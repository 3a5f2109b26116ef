//! The rules of an autoscaler's specification, in `v2`.

use crate::read::{is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Quantity, Value, names};

/// Kinds of metrics, and the field that each of them fills.
const SOURCES: [(&str, &str); 5] = [
    ("ContainerResource", "containerResource"),
    ("External", "external"),
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
];
const WINDOW_MAX: i64 = 3600;
const PERIOD_MAX: i64 = 1800;

pub fn validate(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let least = spec["minReplicas"].as_i64();
    let most = spec["maxReplicas"].as_i64().unwrap_or(0);
    if let Some(n) = least.filter(|n| *n < 1) {
        errors.push(FieldError::invalid(&path.child("minReplicas"), n, "must be greater than or equal to 1"));
    }
    let at = path.child("maxReplicas");
    match most {
        0 => errors.push(FieldError::required(&at, "must be set and greater than 0")),
        n if n < 1 => errors.push(FieldError::invalid(&at, n, "must be greater than or equal to 1")),
        _ => {}
    }
    if least.is_some_and(|l| most < l) {
        errors.push(FieldError::invalid(&at, most, "must be greater than or equal to `minReplicas`"));
    }
    target(&spec["scaleTargetRef"], &path.child("scaleTargetRef"), errors);
    let metrics = items(spec, "metrics");
    let at = path.child("metrics");
    if least == Some(0) && !metrics.iter().any(|m| matches!(text(m, "type"), "Object" | "External")) {
        let why = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.push(FieldError::forbidden(&at, why));
    }
    for (i, m) in metrics.iter().enumerate() {
        metric(m, &at.index(i), errors);
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
    let version = text(r, "apiVersion");
    let legacy = text(r, "kind") == "ReplicationController" && version == "v1";
    if version.split('/').count() > 2 || (!version.contains('/') && !legacy) {
        let why = "apiVersion must specify API group";
        errors.push(FieldError::invalid(&at.child("apiVersion"), version, why));
    }
}

fn metric(m: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let kind = text(m, "type");
    let at_type = at.child("type");
    let kinds: Vec<&str> = SOURCES.iter().map(|(k, _)| *k).collect();
    if kind.is_empty() {
        errors.push(FieldError::required(&at_type, "must specify a metric source type"));
    }
    let Some((_, field)) = SOURCES.iter().find(|(k, _)| *k == kind) else {
        // Not known, and so none of those whose field would be looked at.
        for _ in 0..2 {
            errors.push(FieldError::not_supported(&at_type, kind, &kinds));
        }
        return;
    };
    for (_, other) in SOURCES.iter().filter(|(k, f)| *k != kind && is_set(m, f)) {
        let why = "must populate the given metric source only";
        errors.push(FieldError::forbidden(&at.child(other), why));
    }
    let source = &m[*field];
    let at = at.child(field);
    if !source.is_object() {
        errors.push(FieldError::required(&at, "must populate information for the given metric source"));
        return;
    }
    if matches!(kind, "Resource" | "ContainerResource") {
        if text(source, "name").is_empty() {
            errors.push(FieldError::required(&at.child("name"), "must specify a resource name"));
        }
        if kind == "ContainerResource" && text(source, "container").is_empty() {
            errors.push(FieldError::required(&at.child("container"), "must specify a container"));
        }
    } else if text(&source["metric"], "name").is_empty() {
        errors.push(FieldError::required(&at.child("metric").child("name"), "must specify a metric name"));
    }
    if kind == "Object" {
        target(&source["describedObject"], &at.child("describedObject"), errors);
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
            errors.push(FieldError::invalid(&at.child(key), t[key].clone(), "must be positive"));
        }
    }
    if t["averageUtilization"].as_i64().is_some_and(|n| n < 1) {
        let at = at.child("averageUtilization");
        errors.push(FieldError::invalid(&at, t["averageUtilization"].clone(), "must be greater than 0"));
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
        "Object" | "External" if !average && !value => {
            let why = "must set either a target value or averageValue";
            errors.push(FieldError::required(&at.child("averageValue"), why));
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
                errors.push(FieldError::invalid(&at.child(key), p[key].clone(), "must be greater than zero"));
            }
        }
        if p["periodSeconds"].as_i64().is_some_and(|n| n > PERIOD_MAX) {
            let why = format!("must be less than or equal to {PERIOD_MAX}");
            errors.push(FieldError::invalid(&at.child("periodSeconds"), p["periodSeconds"].clone(), why));
        }
    }
}
