//! PriorityLevelConfiguration: shares, queues and hand size.

use super::{EXEMPT, mandatory, same, unequal, validate_status};
use crate::Config;
use crate::plain::Ruled;
use crate::read::text;
use crate::table::Row;
use ::flowcontrol::bootstrap::Kind;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(validate).with_status(validate_status).with_fixed_status_metadata())
}

/// An annotation that only conversions between older versions write.
const ROUND_TRIP: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";

fn validate(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    if o.annotation(ROUND_TRIP).is_some() {
        let why = format!("annotation '{ROUND_TRIP}' is forbidden");
        errors.push(FieldError::forbidden(&FieldPath::new("metadata.annotations"), &why));
    }
    let kind = text(spec, "type");
    if (o.name() == EXEMPT) != (kind == "Exempt") {
        let why = "type must be 'Exempt' if and only if name is 'exempt'";
        errors.push(FieldError::invalid(&path.child("type"), kind, why));
    }
    if kind == "Limited" && spec["exempt"].is_object() {
        errors.push(FieldError::forbidden(&path.child("exempt"), "must be nil if the type is Limited"));
    }
    let (limited, at) = (&spec["limited"], path.child("limited"));
    match kind {
        "Limited" if !limited.is_object() => {
            errors.push(FieldError::required(&at, "must not be empty when type is Limited"));
        }
        "Exempt" if limited.is_object() => {
            errors.push(FieldError::forbidden(&at, "must be nil if the type is not Limited"));
        }
        _ => {}
    }
    if let Some(mut fixed) = mandatory(o, Kind::Level) {
        // The `exempt` field of the mandatory level is mutable.
        let but = if o.name() == EXEMPT { " except the 'spec.exempt' field" } else { "" };
        if o.name() == EXEMPT {
            fixed["exempt"] = spec["exempt"].clone();
        }
        if !same(spec, &fixed) {
            unequal(o, but, "io.k8s.api.flowcontrol.v1.PriorityLevelConfigurationSpec", errors);
        }
    }
    if limited.is_object() {
        queuing(limited, &at, errors);
    }
}

fn queuing(limited: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let response = &limited["limitResponse"];
    let (queuing, at) = (&response["queuing"], at.child("limitResponse").child("queuing"));
    match text(response, "type") {
        "Queue" if !queuing.is_object() => {
            errors.push(FieldError::required(&at, "must not be empty if limited.limitResponse.type is Limited"));
        }
        "Reject" if queuing.is_object() => {
            errors.push(FieldError::forbidden(&at, "must be nil if limited.limitResponse.type is not Limited"));
        }
        _ => {}
    }
    let number = |k: &str| queuing[k].as_i64().unwrap_or(0);
    if queuing.is_object() && number("handSize") > number("queues") {
        let why = format!("should not be greater than queues ({})", number("queues"));
        errors.push(FieldError::invalid(&at.child("handSize"), number("handSize"), why));
    } else if queuing.is_object() && is_too_much_entropy(number("queues"), number("handSize")) {
        let why = format!(
            "required entropy bits of deckSize {} and handSize {} should not be greater than {ENTROPY_MAX}",
            number("queues"),
            number("handSize")
        );
        errors.push(FieldError::invalid(&at.child("handSize"), number("handSize"), why));
    }
}

/// Maximum entropy of a hand of queues, in bits of a hash.
const ENTROPY_MAX: i64 = 60;

/// Whether choosing a hand from a deck takes more than [`ENTROPY_MAX`] bits.
fn is_too_much_entropy(deck: i64, hand: i64) -> bool {
    let cards = (1..=deck).rev().take(usize::try_from(hand).unwrap_or_default());
    let mut bits = 0.0;
    // Every card but the last takes at least one bit, so sixty cards decide.
    cards.take(ENTROPY_MAX as usize + 2).any(|left| {
        bits += (left as f64).log2();
        bits.ceil() as i64 > ENTROPY_MAX
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_entropy() {
        let check = |deck, hand, expect| assert_eq!(is_too_much_entropy(deck, hand), expect, "{deck} {hand}");
        check(128, 6, false);
        check(512, 6, false);
        check(1 << 10, 6, false);
        check(1 << 10, 7, true);
        check(10, 10, false);
        check(20, 20, true);
        check(60, 1, false);
        // Regression: the largest took ten seconds, and the smallest aborted the request.
        check(i64::from(i32::MAX), i64::from(i32::MAX), true);
        check(-1, -1, false);
        check(i64::MIN, i64::MAX, false);
    }
}
