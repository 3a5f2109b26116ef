//! `resource.k8s.io`: devices, and claims to them.

use crate::read::{is_set, items, text};
use cel::{Decl, Env, Field, Type};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use std::sync::{Arc, LazyLock};

const NODES: [&str; 4] = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];
const POOL_MAX: usize = 253;
const ATTRIBUTE_MAX: usize = 64;

pub fn slice(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    let pool = text(&spec["pool"], "name");
    let at = path.child("pool").child("name");
    if pool.len() > POOL_MAX {
        errors.push(FieldError::too_long(&at, POOL_MAX));
    }
    for part in pool.split('/').filter(|_| !pool.is_empty()) {
        errors.extend(names::dns_subdomain(part).into_iter().map(|m| FieldError::invalid(&at, part, m)));
    }
    if spec["nodeName"] == "" {
        let why = "must be either unset or set to a non-empty string";
        errors.push(FieldError::invalid(&path.child("nodeName"), "", why));
    }
    let set: Vec<&str> = NODES
        .into_iter()
        .filter(|k| match &spec[*k] {
            Value::Null => false,
            Value::Bool(b) => *b,
            Value::String(s) => !s.is_empty(),
            _ => true,
        })
        .collect();
    match &set[..] {
        [] => {
            let why = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
            errors.push(FieldError::required(&path, why));
        }
        [_] => {}
        many => {
            let why = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
            errors.push(FieldError::invalid(&path, format!("{{{}}}", many.join(", ")), why));
        }
    }
    for (i, d) in items(spec, "devices").iter().enumerate() {
        let at = path.child("devices").index(i).child("attributes");
        for (k, a) in d["attributes"].as_object().into_iter().flatten() {
            attribute(a, &at.key(k), errors);
        }
    }
}

fn attribute(a: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let n = a.as_object().map_or(0, |m| m.len());
    if n != 1 {
        errors.push(FieldError::invalid(at, "", "exactly one value must be specified"));
    }
    for key in ["string", "version"] {
        if text(a, key).len() > ATTRIBUTE_MAX {
            errors.push(FieldError::too_long(&at.child(key), ATTRIBUTE_MAX));
        }
    }
}

pub fn claim(o: &Object, errors: &mut ErrorList) {
    claim_spec(o.get("spec").unwrap_or(&Value::Null), &FieldPath::new("spec"), errors);
}

pub fn claim_template(o: &Object, errors: &mut ErrorList) {
    claim_spec(o.at(&["spec", "spec"]).unwrap_or(&Value::Null), &FieldPath::new("spec.spec"), errors);
}

fn claim_spec(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    for (i, r) in items(&spec["devices"], "requests").iter().enumerate() {
        let at = path.child("devices").child("requests").index(i);
        match (is_set(r, "exactly"), items(r, "firstAvailable").is_empty()) {
            (false, true) => {
                errors.push(FieldError::required(&at, "exactly one of `exactly` or `firstAvailable` is required"));
            }
            (true, false) => {
                let why = "exactly one of `exactly` or `firstAvailable` is required";
                errors.push(FieldError::invalid(&at, Value::Null, why));
            }
            _ => {}
        }
        let exact = &r["exactly"];
        selectors(exact, &at.child("exactly"), errors);
        for (j, sub) in items(r, "firstAvailable").iter().enumerate() {
            selectors(sub, &at.child("firstAvailable").index(j), errors);
        }
        if text(exact, "allocationMode") == "ExactCount" && exact["count"].as_i64().unwrap_or(0) <= 0 {
            let at = at.child("exactly").child("count");
            errors.push(FieldError::invalid(&at, exact["count"].clone(), "must be greater than zero"));
        }
    }
}

pub fn device_class(o: &Object, errors: &mut ErrorList) {
    selectors(o.get("spec").unwrap_or(&Value::Null), &FieldPath::new("spec"), errors);
}

/// What was taken once may stay, whatever it is.
pub fn device_class_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    let of = |o: &Object| o.at(&["spec", "selectors"]).cloned();
    if of(o) == of(old) {
        errors.retain(|e| !e.path.starts_with("spec.selectors"));
    }
}

/// Expressions over one device that say whether it is wanted.
fn selectors(v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for (i, s) in items(v, "selectors").iter().enumerate().filter(|(_, s)| is_set(s, "cel")) {
        let at = at.child("selectors").index(i).child("cel").child("expression");
        let expression = text(&s["cel"], "expression");
        let why = match DEVICE.compile(expression) {
            Ok(c) if matches!(c.ty, Type::Bool | Type::Dyn) => continue,
            Ok(c) => format!("must evaluate to bool or the unknown type, not {}", c.ty),
            Err(e) => format!("compilation failed: {e}"),
        };
        errors.push(FieldError::invalid(&at, expression, why));
    }
}

/// What an expression knows of a device: attributes and capacities by domain and name.
static DEVICE: LazyLock<Env> = LazyLock::new(|| {
    let by_name = |of: Type| Type::map(Type::String, Type::map(Type::String, of));
    let fields = [
        ("driver", Type::String),
        ("attributes", by_name(Type::Dyn)),
        ("capacity", by_name(Type::Opaque("kubernetes.Quantity"))),
        ("allowMultipleAllocations", Type::Bool),
    ];
    let fields = fields.map(|(n, t)| (n.to_owned(), Field { json: n.to_owned(), decl: Decl::from(t) })).into();
    let device = cel::Object { name: "kubernetes.DRADevice".into(), fields, open: false };
    Env::default().with_bindings().with("device", Type::Object(Arc::new(device)))
});

/// What may not change need not be right as well.
pub fn claim_update(_o: &Object, _old: &Object, errors: &mut ErrorList) {
    errors.retain(|e| !e.path.starts_with("spec."));
}
