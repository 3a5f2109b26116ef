//! The kinds of `networking.k8s.io` with peculiarities, and address ranges.

mod cidr;
pub mod ingress;
pub mod network_policy;

pub use cidr::Cidr;

use crate::read::{items, text};
use kinds::columns::{Cell, display};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};

/// The object that an address belongs to.
pub fn ip_address(o: &Object, errors: &mut ErrorList) {
    let parent = o.at(&["spec", "parentRef"]).unwrap_or(&Value::Null);
    let at = FieldPath::new("spec.parentRef");
    if parent.is_null() {
        errors.push(FieldError::required(&at, ""));
    }
    for key in ["group", "resource", "name", "namespace"] {
        let v = text(parent, key);
        let bad = if key == "group" && !v.is_empty() { names::dns_subdomain(v) } else { names::path_segment(v) };
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child(key), v, m)));
    }
}

/// A new object has one range, or one of each family. See [`service_cidr_update`] for what may change.
pub fn service_cidr(o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
    if old.is_some() {
        return;
    }
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let at = FieldPath::new("spec.cidrs");
    match items(spec, "cidrs") {
        [] => errors.push(FieldError::required(&at, "at least one CIDR required")),
        [a, b] if !of_both_families(a, b) => {
            errors.push(FieldError::invalid(&at, vec![a.clone(), b.clone()], ONE_OF_EACH));
        }
        few @ ([_] | [_, _]) => each_range(few, &at, errors),
        many => {
            let why = "may only hold up to 2 values";
            errors.push(FieldError::invalid(&at, many, why));
        }
    }
}

/// The ranges stay; one of the other family may join the first.
pub fn service_cidr_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    let at = FieldPath::new("spec.cidrs");
    let (new, was) = (cidrs(o), cidrs(old));
    match (new.as_slice(), was.as_slice()) {
        (n, w) if n.len() == w.len() => {
            for (i, r) in n.iter().enumerate().filter(|(i, r)| **r != w[*i]) {
                errors.push(FieldError::invalid(&at.index(i), r, "field is immutable"));
            }
        }
        ([first, second], [only]) => {
            if first != only {
                errors.push(FieldError::invalid(&at.index(0), first, "field is immutable"));
            }
            each_range(&new, &at, errors);
            if !of_both_families(first, second) {
                errors.push(FieldError::invalid(&at, new, ONE_OF_EACH));
            }
        }
        _ => {
            let value = o.at(&["spec", "cidrs"]).cloned().unwrap_or_default();
            errors.push(FieldError::invalid(&at, value, "field is immutable"));
        }
    }
}

fn cidrs(o: &Object) -> Vec<Value> {
    o.at(&["spec", "cidrs"]).and_then(Value::as_array).cloned().unwrap_or_default()
}

const ONE_OF_EACH: &str = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";

/// Ranges are written in the one form that is theirs.
fn each_range(ranges: &[Value], at: &FieldPath, errors: &mut ErrorList) {
    for (i, r) in ranges.iter().enumerate() {
        let wrong = schema::rules::canonical_cidr(r.as_str().unwrap_or_default());
        errors.extend(wrong.map(|why| FieldError::invalid(&at.index(i), r, why)));
    }
}

/// What is no range is of no family.
fn of_both_families(a: &Value, b: &Value) -> bool {
    let six = |v: &Value| {
        let text = v.as_str().filter(|t| schema::rules::is_range(t))?;
        Some(text.split_once('/')?.0.contains(':'))
    };
    six(a).zip(six(b)).is_some_and(|(a, b)| a != b)
}

/// A controller is named like a path below a domain.
pub fn ingress_class(o: &Object, errors: &mut ErrorList) {
    let controller = o.str_at(&["spec", "controller"]).unwrap_or_default();
    let at = FieldPath::new("spec.controller");
    if controller.is_empty() {
        errors.push(FieldError::required(&at, ""));
    } else {
        if controller.len() > 250 {
            errors.push(FieldError::too_long(&at, 250));
        }
        domain_prefixed(controller, &at, errors);
    }
    let parameters = o.at(&["spec", "parameters"]).unwrap_or(&Value::Null);
    if parameters.is_object() {
        class_parameters(parameters, &FieldPath::new("spec.parameters"), errors);
    }
}

/// An object of the cluster, or of a namespace that is named.
fn class_parameters(p: &Value, at: &FieldPath, errors: &mut ErrorList) {
    ingress::reference(p, at, errors);
    let within = at.child("namespace");
    match (text(p, "scope"), p["namespace"].as_str()) {
        ("Namespace", None) => {
            errors.push(FieldError::required(&within, "`parameters.scope` is set to 'Namespace'"));
        }
        ("Namespace", Some(ns)) => {
            errors.extend(names::dns_label(ns).into_iter().map(|m| FieldError::invalid(&within, ns, m)));
        }
        ("Cluster", Some(_)) => {
            errors.push(FieldError::forbidden(&within, "`parameters.scope` is set to 'Cluster'"));
        }
        ("Cluster", None) => {}
        (other, _) => errors.push(FieldError::not_supported(&at.child("scope"), other, &["Cluster", "Namespace"])),
    }
}

/// What a path consists of.
const PATH: &str = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";

/// `domain/path`.
pub fn domain_prefixed(name: &str, at: &FieldPath, errors: &mut ErrorList) {
    match name.split_once('/') {
        Some((domain, path)) if !domain.is_empty() && !path.is_empty() => {
            errors.extend(names::dns_subdomain(domain).into_iter().map(|m| FieldError::invalid(at, domain, m)));
            let ok = |c: char| c.is_ascii_alphanumeric() || "/%-._~!$&'()*+,;=:".contains(c);
            if !path.chars().all(ok) {
                let why = format!("Invalid path (regex used for validation is '{PATH}')");
                errors.push(FieldError::invalid(at, path, why));
            }
        }
        _ if name.is_empty() => errors.push(FieldError::required(at, "")),
        _ => errors.push(FieldError::invalid(at, name, "must be a domain-prefixed path (such as \"acme.io/foo\")")),
    }
}

/// The cells that only the kinds of this group have.
pub fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "ingressParameters" => match o.at(&["spec", "parameters"]) {
            Some(p) => {
                let group = display(&p["apiGroup"]);
                let dot = if group.is_empty() { "" } else { "." };
                format!("{}{dot}{group}/{}", display(&p["kind"]), display(&p["name"])).into()
            }
            None => "<none>".into(),
        },
        "parentRef" => {
            let p = o.at(&["spec", "parentRef"]).cloned().unwrap_or_default();
            let parts = ["group", "resource", "namespace", "name"].map(|k| display(&p[k]));
            parts.into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join("/").into()
        }
        _ => return None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::rows::ruled;
    use crate::testing::{check_create, check_update};
    use serde_json::json;

    #[test]
    fn ranges_of_services() {
        let strategy = ruled("networking.k8s.io", "servicecidrs").unwrap();
        let base =
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "spec": {"cidrs": ["10.0.0.0/24"]}});
        let bits = r#"spec.cidrs[0]: Invalid value: "10.0.0.1/24": must not have bits set beyond the prefix length"#;
        check_create(
            &strategy,
            &base,
            &[
                ("", Value::Null, &[]),
                ("/spec/cidrs", json!([]), &["spec.cidrs: Required value: at least one CIDR required"]),
                ("/spec/cidrs", json!(["10.0.0.1/24"]), &[bits]),
            ],
        );
        check_update(
            &strategy,
            &base,
            &[
                ("", Value::Null, &[]),
                ("/spec/cidrs", json!([]), &["spec.cidrs: Invalid value: null: field is immutable"]),
                ("/spec/cidrs", json!(["x"]), &[r#"spec.cidrs[0]: Invalid value: "x": field is immutable"#]),
                ("/spec/cidrs", json!(["10.0.0.0/24", "fd00::/64"]), &[]),
            ],
        );
    }
}
