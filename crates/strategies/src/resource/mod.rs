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
mod status_access;

use crate::read::{is_set, items, text};
use cel::Type;
use expressions::DEVICE_ENV;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value};

kinds! { device_class, resource_claim, resource_claim_template, resource_slice }

const EXPRESSION_MAX: usize = 10 * 1024;
/// Maximum estimated cost of an expression.
const COST_MAX: u64 = 1_000_000;

/// Validates CEL selectors of devices.
fn selectors(v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for (i, s) in items(v, "selectors").iter().enumerate().filter(|(_, s)| is_set(s, "cel")) {
        let at = at.child("selectors").index(i).child("cel").child("expression");
        let expression = text(&s["cel"], "expression");
        if expression.len() > EXPRESSION_MAX {
            errors.push(FieldError::too_long(&at, EXPRESSION_MAX));
            continue;
        }
        let why = match DEVICE_ENV.compile(expression) {
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
