//! Requests and limits.

use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Quantity, Value, names};

/// Resources every container may ask for.
fn is_native(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-")
}

/// Named by a domain other than Kubernetes' own.
fn is_extended(name: &str) -> bool {
    name.contains('/')
        && !name.split('/').next().unwrap_or_default().ends_with("kubernetes.io")
        && !name.starts_with("requests.")
}

fn quantity(v: &Value) -> Option<Quantity> {
    v.as_str().and_then(|s| Quantity::parse(s).ok())
}

/// The name of a resource that a container may have.
pub fn resource_name(name: &str, at: &FieldPath, errors: &mut ErrorList) {
    let bad = names::qualified_name(name);
    if !bad.is_empty() {
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(at, name, m)));
    } else if !name.contains('/') && !is_native(name) {
        for why in ["must be a standard resource type or fully qualified", "must be a standard resource for containers"]
        {
            errors.push(FieldError::invalid(at, name, why));
        }
    }
}

/// One amount: not negative, and whole where the resource cannot be divided.
fn amount(name: &str, v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let q = quantity(v);
    if q.is_some_and(|q| q.sign() < 0) {
        errors.push(FieldError::invalid(at, v.clone(), "must be greater than or equal to 0"));
    }
    if is_extended(name) && q.is_some_and(|q| !q.is_integer()) {
        errors.push(FieldError::invalid(at, v.clone(), "must be an integer"));
    }
}

/// A map of amounts of container resources.
pub fn container_amounts(amounts: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for (k, v) in amounts.as_object().into_iter().flatten() {
        resource_name(k, &at.key(k), errors);
        amount(k, v, &at.key(k), errors);
    }
}

/// Requests are not above limits; what cannot be overcommitted is limited to what is requested.
pub fn requirements(r: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let requests = at.child("requests");
    for part in ["limits", "requests"] {
        container_amounts(&r[part], &at.child(part), errors);
    }
    for (k, v) in r["requests"].as_object().into_iter().flatten() {
        let overcommits = !is_extended(k) && !k.starts_with("hugepages-");
        match (quantity(v), quantity(&r["limits"][k.as_str()])) {
            (Some(q), Some(l)) if !overcommits && q != l => {
                let why = format!("must be equal to {k} limit of {l}");
                errors.push(FieldError::invalid(&requests, v.clone(), why));
            }
            (Some(q), Some(l)) if q > l => {
                let why = format!("must be less than or equal to {k} limit of {l}");
                errors.push(FieldError::invalid(&requests, v.clone(), why));
            }
            (Some(_), None) if !overcommits => {
                let why = "Limit must be set for non overcommitable resources";
                errors.push(FieldError::required(&at.child("limits"), why));
            }
            _ => {}
        }
    }
}
