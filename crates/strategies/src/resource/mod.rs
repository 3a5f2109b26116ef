//! `resource.k8s.io`: devices, and claims to them (`pkg/apis/resource/validation`).

mod admin;
mod capacity;
mod claim;
mod parts;
mod slice;
mod status;

pub use admin::admin_access;
pub use claim::{claim, claim_template};
pub use slice::{slice, slice_update};
pub use status::claim_status;

use crate::read::{delegated, is_set, items, text};
use cel::{Decl, Env, Field, Type};
use kinds::columns::{Cell, list_at};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use std::sync::{Arc, LazyLock};

const EXPRESSION_MAX: usize = 10 * 1024;
/// What an expression may cost by its estimate.
const COST_MAX: u64 = 1_000_000;

/// The longest names of drivers and domains, and of what they name; the longest value; the most of them.
const DOMAIN_MAX: u64 = 63;
const ID_MAX: u64 = 32;
const VALUE_MAX: u64 = 64;
const PER_DEVICE_MAX: u64 = 32;

pub fn device_class(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    parts::every(spec, "config", &path, |c, at| parts::configuration(c, at, errors));
    if let Some(name) = spec["extendedResourceName"].as_str().filter(|n| !is_extended_resource(n)) {
        let at = path.child("extendedResourceName");
        errors.push(FieldError::invalid(&at, name, "must be a valid extended resource name"));
    }
}

/// A resource of a domain other than Kubernetes' own, which a quota can count.
fn is_extended_resource(name: &str) -> bool {
    let own = !name.contains('/') || name.contains("kubernetes.io/");
    !own && !name.starts_with("requests.") && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Selectors that were accepted once stay valid.
pub fn device_class_selectors(o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
    let of = |o: &Object| o.at(&["spec", "selectors"]).cloned();
    if old.is_none_or(|old| of(o) != of(old)) {
        let spec = o.get("spec").unwrap_or(&Value::Null);
        let path = FieldPath::new("spec");
        delegated(spec, "io.k8s.api.resource.v1.DeviceClassSpec", "selectors", &path, errors);
        selectors(spec, &path, errors);
    }
}

/// Expressions over one device that say whether it is wanted.
fn selectors(v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for (i, s) in items(v, "selectors").iter().enumerate().filter(|(_, s)| is_set(s, "cel")) {
        let at = at.child("selectors").index(i).child("cel").child("expression");
        let expression = text(&s["cel"], "expression");
        if expression.len() > EXPRESSION_MAX {
            errors.push(FieldError::too_long(&at, EXPRESSION_MAX));
            continue;
        }
        let why = match DEVICE.compile(expression) {
            Ok(c) if matches!(c.ty, Type::Bool | Type::Dyn) => {
                if c.cost.max > COST_MAX {
                    errors.push(FieldError::forbidden(&at, "too complex, exceeds cost limit"));
                }
                continue;
            }
            Ok(c) => format!("must evaluate to bool or the unknown type, not {}", c.ty),
            Err(e) => format!("compilation failed: {e}"),
        };
        errors.push(FieldError::invalid(&at, expression, why));
    }
}

/// What an expression knows of a device: attributes and capacities by domain and name.
static DEVICE: LazyLock<Env> = LazyLock::new(|| {
    let named = |max: u64, of: Decl| Decl::new(Type::map(Decl::new(Type::String, max), of), PER_DEVICE_MAX);
    let by_name = |of: Decl| named(DOMAIN_MAX, named(ID_MAX, of));
    let fields = [
        ("driver", Decl::new(Type::String, DOMAIN_MAX)),
        ("attributes", by_name(Decl::new(Type::Dyn, VALUE_MAX))),
        ("capacity", by_name(Type::Opaque("kubernetes.Quantity").into())),
        ("allowMultipleAllocations", Type::Bool.into()),
    ];
    let fields = fields.map(|(n, decl)| (n.to_owned(), Field { json: n.to_owned(), decl })).into();
    let device = cel::Object { name: "kubernetes.DRADevice".into(), fields, open: false };
    Env::default().with_bindings().with("device", Type::Object(Arc::new(device)))
});

/// The cells that only resource claims have.
pub fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "claimState" => claim_state(o).into(),
        _ => return None,
    })
}

fn claim_state(o: &Object) -> String {
    let mut states = Vec::new();
    if o.is_deleting() {
        states.push("deleted");
    }
    if o.at(&["status", "allocation"]).is_none() {
        states.push("pending");
    } else if list_at(o, &["status", "reservedFor"]).is_empty() {
        states.push("allocated");
    } else {
        states.extend(["allocated", "reserved"]);
    }
    states.join(",")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use crate::rows::ruled;
    use crate::testing::{check_create, check_update};
    use serde_json::{Value, json};

    #[test]
    fn selectors_of_a_class_stay_valid() {
        let strategy = ruled("resource.k8s.io", "deviceclasses").unwrap();
        let base = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "spec": {"selectors": [{"cel": {"expression": "1"}}]}});
        let not_bool = "spec.selectors[0].cel.expression: Invalid value: \"1\": must evaluate to bool…";
        check_create(&strategy, &base, &[("", Value::Null, &[not_bool])]);
        let extended = "spec.extendedResourceName: Invalid value: \"x\": must be a valid extended resource name";
        let again = "spec.selectors[0].cel.expression: Invalid value: \"2\": must evaluate to bool…";
        check_update(
            &strategy,
            &base,
            &[
                ("/spec/extendedResourceName", json!("x"), &[extended]),
                ("/spec/selectors/0/cel/expression", json!("2"), &[again]),
            ],
        );
    }

    #[test]
    fn a_claim_is_validated_on_create() {
        for (kind, plural, pointer, path) in [
            ("ResourceClaim", "resourceclaims", "/spec/devices", "spec.devices"),
            ("ResourceClaimTemplate", "resourceclaimtemplates", "/spec/spec/devices", "spec.spec.devices"),
        ] {
            let strategy = ruled("resource.k8s.io", plural).unwrap();
            let mut base = json!({"apiVersion": "resource.k8s.io/v1", "kind": kind});
            *crate::testing::field(&mut base, pointer) = json!({"requests": [{"name": "r"}]});
            let why =
                format!("{path}.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required");
            check_create(&strategy, &base, &[("", Value::Null, &[&why])]);
            check_update(
                &strategy,
                &base,
                &[("/metadata/labels", json!({"a": "b"}), &[]), (pointer, json!({}), &["spec: Invalid value: …"])],
            );
        }
    }
}
