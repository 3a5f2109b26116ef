//! IngressClass: controller and parameters.

use super::{domain_prefixed, ingress};
use crate::Config;
use crate::plain::Ruled;
use crate::read::text;
use crate::table::Row;
use kinds::columns::{Cell, display};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(validate).with_cells(cells))
}

/// Validates the controller name, a domain with a path.
fn validate(o: &Object, errors: &mut ErrorList) {
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

/// Validates the parameters, a cluster-scoped object or one in a named namespace.
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

/// Evaluates the table cell functions of the kind.
fn cells(cell: &Cell<'_>) -> Option<Value> {
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
        _ => return None,
    })
}
