//! `resource.k8s.io`: validation of devices and claims (`pkg/apis/resource/validation`).

mod admin;
mod capacity;
mod claim;
mod device_class;
mod parts;
mod resource_claim;
mod resource_claim_template;
mod resource_slice;
mod status;

use crate::read::{is_set, items, text};
use cel::{Decl, Env, Field, Type};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value};
use std::sync::{Arc, LazyLock};

kinds! { device_class, resource_claim, resource_claim_template, resource_slice }

const EXPRESSION_MAX: usize = 10 * 1024;
/// Maximum estimated cost of an expression.
const COST_MAX: u64 = 1_000_000;

/// Maximum lengths of driver names and domains, identifiers and attribute values, and maximum numbers of items.
const DOMAIN_MAX: u64 = 63;
const ID_MAX: u64 = 32;
const VALUE_MAX: u64 = 64;
const PER_DEVICE_MAX: u64 = 32;

/// Validates CEL selectors of devices.
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

/// The CEL environment of selectors: attributes and capacities by domain and name.
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
