//! Rules for formats: percentages, paths, labels and selectors.

use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value, names};

/// A count or percentage such as `25%` (`intstr.IntOrString`), not negative.
pub fn int_or_percent(v: &Value, path: &FieldPath, errors: &mut ErrorList) {
    match v {
        Value::Number(n) if n.as_i64().is_some_and(|n| n < 0) => {
            errors.push(FieldError::invalid(path, v, "must be greater than or equal to 0"));
        }
        Value::String(s)
            if !s.strip_suffix('%').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) =>
        {
            let why = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
            errors.push(FieldError::invalid(path, v, why));
        }
        _ => {}
    }
}

/// A path without `..`.
pub fn no_backsteps(text: &str, path: &FieldPath, errors: &mut ErrorList) {
    if text.split('/').any(|s| s == "..") {
        errors.push(FieldError::invalid(path, text, "must not contain '..'"));
    }
}

/// A relative path without `..`.
pub fn descending_path(text: &str, path: &FieldPath, errors: &mut ErrorList) {
    if text.starts_with('/') {
        errors.push(FieldError::invalid(path, text, "must be a relative path"));
    }
    no_backsteps(text, path, errors);
}

/// A relative path of a written file, which may not begin with two dots: such names are reserved for the writer.
pub fn local_path(text: &str, path: &FieldPath, errors: &mut ErrorList) {
    descending_path(text, path, errors);
    if text.starts_with("..") && !text.starts_with("../") {
        errors.push(FieldError::invalid(path, text, "must not start with '..'"));
    }
}

/// Validates a map of labels.
pub fn labels(v: &Value, path: &FieldPath, errors: &mut ErrorList) {
    for (k, v) in v.as_object().into_iter().flatten() {
        errors.extend(names::qualified_name(k).into_iter().map(|m| FieldError::invalid(path, k.as_str(), m)));
        let v = v.as_str().unwrap_or_default();
        errors.extend(names::label_value(v).into_iter().map(|m| FieldError::invalid(path, v, m)));
    }
}

/// `metav1.LabelSelector` (`k8s.io/apimachinery/pkg/apis/meta/v1/validation`).
pub fn selector(v: &Value, path: &FieldPath, errors: &mut ErrorList) {
    if let Some(l) = v.get("matchLabels") {
        labels(l, &path.child("matchLabels"), errors);
    }
    for (i, e) in v["matchExpressions"].as_array().into_iter().flatten().enumerate() {
        let at = path.child("matchExpressions").index(i);
        let values = e["values"].as_array().map(Vec::as_slice).unwrap_or_default();
        match e["operator"].as_str().unwrap_or_default() {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(&at.child("values"), why));
            }
            "In" | "NotIn" => {}
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(&at.child("values"), why));
            }
            "Exists" | "DoesNotExist" => {}
            other => errors.push(FieldError::invalid(&at.child("operator"), other, "not a valid selector operator")),
        }
        let key = e["key"].as_str().unwrap_or_default();
        let bad_key = names::qualified_name(key);
        errors.extend(bad_key.into_iter().map(|m| FieldError::invalid(&at.child("key"), key, m)));
        for (j, v) in values.iter().enumerate() {
            let text = v.as_str().unwrap_or_default();
            let place = at.child("values").index(j);
            errors.extend(names::label_value(text).into_iter().map(|m| FieldError::invalid(&place, text, m)));
        }
    }
}
