//! Ingress: rules, backends, TLS and class.

use crate::Config;
use crate::plain::Ruled;
use crate::read::{delegated, is_set, items, text};
use crate::table::Row;
use kinds::columns::{Cell, display, limited, list_at};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};

pub fn row(_: &Config) -> Row {
    Row::stored(
        Ruled::new(validate)
            .with_cells(cells)
            .with_since(validate_since)
            .with_warnings(warnings)
            .with_status_warnings(super::balancer_warnings)
            .with_status(validate_status),
    )
}

/// The deprecated class annotation.
const CLASS: &str = "kubernetes.io/ingress.class";

/// Checks that class field and annotation of a new ingress agree.
fn validate_since(o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
    let Some(class) = o.str_at(&["metadata", "annotations", CLASS]).filter(|_| old.is_none()) else { return };
    if o.str_at(&["spec", "ingressClassName"]).is_some_and(|c| c != class) {
        let at = FieldPath::new("annotations").child(CLASS);
        errors.push(FieldError::invalid(&at, class, "must match `ingressClassName` when both are specified"));
    }
}

/// Returns the warning for a class set only by annotation.
fn warnings(o: &Object, old: Option<&Object>) -> Vec<String> {
    let only = o.annotation(CLASS).is_some() && o.at(&["spec", "ingressClassName"]).is_none_or(Value::is_null);
    if old.is_some() || !only {
        return Vec::new();
    }
    vec![format!("annotation {CLASS:?} is deprecated, please use 'spec.ingressClassName' instead")]
}

fn validate(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    if items(spec, "rules").is_empty() && !is_set(spec, "defaultBackend") {
        let why = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid(&path, schema::sent::at("spec.rules"), why));
    }
    if is_set(spec, "defaultBackend") {
        backend(&spec["defaultBackend"], &path.child("defaultBackend"), errors);
    }
    for (i, r) in items(spec, "rules").iter().enumerate() {
        let at = path.child("rules").index(i);
        let name = text(r, "host");
        if name.parse::<std::net::IpAddr>().is_ok() {
            errors.push(FieldError::invalid(&at.child("host"), name, "must be a DNS name, not an IP address"));
        }
        if !name.is_empty() {
            host(name, &at.child("host"), errors);
        }
        for (j, p) in items(&r["http"], "paths").iter().enumerate() {
            http_path(p, &at.child("http").child("paths").index(j), errors);
        }
    }
    for (i, t) in items(spec, "tls").iter().enumerate() {
        let at = path.child("tls").index(i);
        for (j, h) in items(t, "hosts").iter().enumerate() {
            host(h.as_str().unwrap_or_default(), &at.child("hosts").index(j), errors);
        }
        let secret = text(t, "secretName");
        if !secret.is_empty() {
            let at = at.child("secretName");
            errors.extend(names::dns_subdomain(secret).into_iter().map(|m| FieldError::invalid(&at, secret, m)));
        }
    }
}

/// Validates the load balancer status.
fn validate_status(o: &Object, _old: &Object, errors: &mut ErrorList) {
    let balancer = o.at(&["status", "loadBalancer"]).unwrap_or(&Value::Null);
    let path = FieldPath::new("status.loadBalancer.ingress");
    for (i, point) in items(balancer, "ingress").iter().enumerate() {
        let (ip, name) = (text(point, "ip"), text(point, "hostname"));
        if !ip.is_empty() {
            schema::rules::ip(ip, &path.index(i).child("ip"), errors);
        }
        if !name.is_empty() {
            let at = path.index(i).child("hostname");
            errors.extend(names::dns_subdomain(name).into_iter().map(|m| FieldError::invalid(&at, name, m)));
            if name.parse::<std::net::IpAddr>().is_ok() {
                errors.push(FieldError::invalid(&at, name, "must be a DNS name, not an IP address"));
            }
        }
    }
}

/// Validates a reference by group, kind and name.
pub fn reference(r: &Value, at: &FieldPath, errors: &mut ErrorList) {
    if let Some(group) = r["apiGroup"].as_str() {
        let at = at.child("apiGroup");
        errors.extend(names::dns_subdomain(group).into_iter().map(|m| FieldError::invalid(&at, group, m)));
    }
    for key in ["kind", "name"] {
        let (v, at) = (text(r, key), at.child(key));
        if v.is_empty() {
            errors.push(FieldError::required(&at, ""));
        }
        errors.extend(names::path_segment(v).into_iter().map(|m| FieldError::invalid(&at, v, m)));
    }
}

fn host(name: &str, at: &FieldPath, errors: &mut ErrorList) {
    let why = if name.contains('*') { names::wildcard_dns_subdomain(name) } else { names::dns_subdomain(name) };
    errors.extend(why.into_iter().map(|m| FieldError::invalid(at, name, m)));
}

fn http_path(p: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let path = text(p, "path");
    let Some(kind) = p["pathType"].as_str() else { return };
    let matches = matches!(kind, "Exact" | "Prefix");
    let validated = matches || (kind == "ImplementationSpecific" && !path.is_empty());
    if validated && !path.starts_with('/') {
        errors.push(FieldError::invalid(&at.child("path"), path, "must be an absolute path"));
    }
    if matches {
        for bad in ["//", "/./", "/../", "%2f", "%2F"].iter().filter(|b| path.contains(**b)) {
            errors.push(FieldError::invalid(&at.child("path"), path, format!("must not contain '{bad}'")));
        }
        for bad in ["/..", "/."].iter().filter(|b| path.ends_with(**b)) {
            errors.push(FieldError::invalid(&at.child("path"), path, format!("cannot end with '{bad}'")));
        }
    }
    backend(&p["backend"], &at.child("backend"), errors);
}

fn backend(b: &Value, at: &FieldPath, errors: &mut ErrorList) {
    match (is_set(b, "resource"), is_set(b, "service")) {
        (true, true) => {
            errors.push(FieldError::invalid(at, "", "cannot set both resource and service backends"));
        }
        (false, false) => errors.push(FieldError::invalid(at, "", "resource or service backend is required")),
        (true, false) => reference(&b["resource"], &at.child("resource"), errors),
        (false, true) => {
            delegated(b, "io.k8s.api.networking.v1.IngressBackend", "service", at, errors);
            let port = &b["service"]["port"];
            let name = text(port, "name");
            let number = port["number"].as_i64().unwrap_or(0);
            let at_port = at.child("service").child("port");
            match (name.is_empty(), number != 0) {
                (false, true) => errors.push(FieldError::invalid(at, "", "cannot set both port name & port number")),
                (true, false) => errors.push(FieldError::required(at, "port name or number is required")),
                (false, false) => {
                    let at = at_port.child("name");
                    errors.extend(names::port_name(name).into_iter().map(|m| FieldError::invalid(&at, name, m)));
                }
                (true, true) => {
                    let at = at_port.child("number");
                    errors.extend(names::port_number(number).into_iter().map(|m| FieldError::invalid(&at, number, m)));
                }
            }
        }
    }
}

/// Evaluates the table cell functions of the kind.
fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "ingressHosts" => {
            let hosts: Vec<String> =
                list_at(o, &["spec", "rules"]).iter().map(|r| display(&r["host"])).filter(|h| !h.is_empty()).collect();
            limited(&hosts, "*").into()
        }
        "ingressPorts" => if list_at(o, &["spec", "tls"]).is_empty() { "80" } else { "80, 443" }.into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_status};
    use serde_json::json;

    #[test]
    fn validates_rules_backends_and_tls() {
        let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
        let base = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "i"}, "spec": {
            "rules": [{"host": "a.example", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}]}});
        let path = "spec.rules[0].http.paths[0]";
        let field = "/spec/rules/0/http/paths/0";
        check_create(
            &Ruled::new(validate).with_since(validate_since),
            &base,
            &[
                ("", Value::Null, &[]),
                (
                    "/spec",
                    json!({}),
                    &["spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"],
                ),
                (
                    "/spec/rules/0/host",
                    json!("192.0.2.1"),
                    &["spec.rules[0].host: Invalid value: \"192.0.2.1\": must be a DNS name, not an IP address"],
                ),
                ("/spec/rules/0/host", json!("*.example"), &[]),
                (
                    "/spec/rules/0/host",
                    json!("a.*.example"),
                    &[
                        "spec.rules[0].host: Invalid value: \"a.*.example\": a wildcard DNS-1123 subdomain must start with '*.'…",
                    ],
                ),
                (
                    &format!("{field}/path"),
                    json!("a"),
                    &[&format!("{path}.path: Invalid value: \"a\": must be an absolute path")],
                ),
                (
                    &format!("{field}/path"),
                    json!("/a//b"),
                    &[&format!("{path}.path: Invalid value: \"/a//b\": must not contain '//'")],
                ),
                (
                    &format!("{field}/path"),
                    json!("/a/.."),
                    &[&format!("{path}.path: Invalid value: \"/a/..\": cannot end with '/..'")],
                ),
                (
                    &format!("{field}/pathType"),
                    Value::Null,
                    &[&format!("{path}.pathType: Required value: pathType must be specified")],
                ),
                (
                    &format!("{field}/pathType"),
                    json!("Other"),
                    &[&format!(
                        "{path}.pathType: Unsupported value: \"Other\": supported values: \"Exact\", \"ImplementationSpecific\", \"Prefix\""
                    )],
                ),
                (
                    &format!("{field}/backend/service/port"),
                    json!({}),
                    &[&format!("{path}.backend: Required value: port name or number is required")],
                ),
                (
                    &format!("{field}/backend/service/port"),
                    json!({"name": "a", "number": 1}),
                    &[&format!("{path}.backend: Invalid value: …: cannot set both port name & port number")],
                ),
                (
                    &format!("{field}/backend"),
                    json!({"resource": {"kind": "", "name": ""}, "service": {"name": "A"}}),
                    &[&format!("{path}.backend: Invalid value: …: cannot set both resource and service backends")],
                ),
                (
                    "/spec/tls",
                    json!([{"hosts": ["A"]}]),
                    &["spec.tls[0].hosts[0]: Invalid value: \"A\": a lowercase RFC 1123 subdomain…"],
                ),
            ],
        );
    }

    #[test]
    fn validates_the_class_and_the_status() {
        let base = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "i",
            "annotations": {"kubernetes.io/ingress.class": "a"}},
            "spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}});
        let differs = "annotations.kubernetes.io/ingress.class: Invalid value: \"a\": must match `ingressClassName` when both are specified";
        check_create(
            &Ruled::new(validate).with_since(validate_since),
            &base,
            &[("/spec/ingressClassName", json!("a"), &[]), ("/spec/ingressClassName", json!("b"), &[differs])],
        );
        let object = Object::from_value(base.clone()).expect("an object");
        let deprecated =
            "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead";
        assert_eq!(warnings(&object, None), [deprecated]);
        assert!(warnings(&object, Some(&object)).is_empty());
        let field = "/status/loadBalancer/ingress";
        check_status(
            &Ruled::new(validate).with_status(validate_status),
            &base,
            &[
                (field, json!([{"ip": "192.0.2.1"}, {"hostname": "a"}]), &[]),
                (
                    field,
                    json!([{"ip": "a"}]),
                    &["status.loadBalancer.ingress[0].ip: Invalid value: \"a\": must be a valid IP address…"],
                ),
            ],
        );
    }
}
