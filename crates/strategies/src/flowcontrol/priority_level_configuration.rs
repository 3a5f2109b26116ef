//! PriorityLevelConfiguration: shares, queues and hand size.

use super::{EXEMPT, mandatory, same, unequal, validate_status};
use crate::Config;
use crate::plain::Ruled;
use crate::read::{delegated, text};
use crate::table::Row;
use ::flowcontrol::bootstrap::Kind;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

pub fn row(_: &Config) -> Row {
    Row::stored(
        Ruled::new(validate).with_status(validate_status).with_metadata_fixed_by_status(registry::WHOLE_METADATA),
    )
}

const SPEC: &str = "io.k8s.api.flowcontrol.v1.PriorityLevelConfigurationSpec";

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
        let why = "must be 'Exempt' if and only if `name` is 'exempt'";
        errors.push(FieldError::invalid(&path.child("type"), kind, why));
    }
    if kind == "Limited" && spec["exempt"].is_object() {
        errors.push(FieldError::forbidden(&path.child("exempt"), "must be nil if the type is Limited"));
    }
    let (limited, at) = (&spec["limited"], path.child("limited"));
    match kind {
        "Limited" if limited.is_object() => {
            delegated(spec, SPEC, "limited", &path, errors);
            queuing(limited, &at, errors);
        }
        "Limited" => errors.push(FieldError::required(&at, "must not be empty when type is Limited")),
        "Exempt" => {
            delegated(spec, SPEC, "exempt", &path, errors);
            if limited.is_object() {
                errors.push(FieldError::forbidden(&at, "must be nil if the type is not Limited"));
            }
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
            unequal(o, but, SPEC, errors);
        }
    }
}

fn queuing(limited: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let response = &limited["limitResponse"];
    let (queuing, parent) = (&response["queuing"], at.child("limitResponse"));
    let at = parent.child("queuing");
    match text(response, "type") {
        "Queue" if !queuing.is_object() => {
            errors.push(FieldError::required(&at, "must not be empty if limited.limitResponse.type is Limited"));
        }
        "Reject" if queuing.is_object() => {
            errors.push(FieldError::forbidden(&at, "must be nil if limited.limitResponse.type is not Limited"));
        }
        "Queue" => {
            delegated(response, "io.k8s.api.flowcontrol.v1.LimitResponse", "queuing", &parent, errors);
            hands(queuing, &at, errors);
        }
        _ => {}
    }
}

/// Validates the number of queues that a flow may use.
fn hands(queuing: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let number = |k: &str| queuing[k].as_i64().unwrap_or(0);
    if number("handSize") > number("queues") {
        let why = format!("should not be greater than queues ({})", number("queues"));
        errors.push(FieldError::invalid(&at.child("handSize"), number("handSize"), why));
    } else if is_too_much_entropy(number("queues"), number("handSize")) {
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
    use crate::testing::check_create;
    use serde_json::json;

    fn level(name: &str, spec: Value) -> Value {
        json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
            "metadata": {"name": name}, "spec": spec})
    }

    fn queued() -> Value {
        let queuing = json!({"queues": 64, "handSize": 6, "queueLengthLimit": 50});
        json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 10, "limitResponse": {"type": "Queue", "queuing": queuing}}})
    }

    #[test]
    fn validates_types() {
        let only = "must be 'Exempt' if and only if `name` is 'exempt'";
        let exempt = format!("spec.type: Invalid value: \"Exempt\": {only}");
        check_create(
            &Ruled::new(validate),
            &level("l", queued()),
            &[
                ("", Value::Null, &[]),
                ("/spec", json!({"type": "Exempt"}), &[&exempt]),
                (
                    "/spec/type",
                    json!("Exempt"),
                    &[&exempt, "spec.limited: Forbidden: must be nil if the type is not Limited"],
                ),
                (
                    "/spec",
                    json!({"type": "Exempt", "limited": {"nominalConcurrencyShares": -1, "limitResponse": {"type": "Other"}}}),
                    &[&exempt, "spec.limited: Forbidden: must be nil if the type is not Limited"],
                ),
                (
                    "/spec/limited/limitResponse",
                    json!({"type": "Reject", "queuing": {"queues": -1}}),
                    &[
                        "spec.limited.limitResponse.queuing: Forbidden: must be nil if limited.limitResponse.type is not Limited",
                    ],
                ),
                (
                    "/spec",
                    json!({"type": "Limited"}),
                    &["spec.limited: Required value: must not be empty when type is Limited"],
                ),
                ("/spec/exempt", json!({}), &["spec.exempt: Forbidden: must be nil if the type is Limited"]),
                (
                    "/spec/type",
                    json!("Free"),
                    &["spec.type: Unsupported value: \"Free\": supported values: \"Exempt\", \"Limited\""],
                ),
                (
                    "/metadata/annotations",
                    json!({ROUND_TRIP: ""}),
                    &[&format!("metadata.annotations: Forbidden: annotation '{ROUND_TRIP}' is forbidden")],
                ),
            ],
        );
    }

    #[test]
    fn validates_shares_and_queues() {
        let (limited, at) = ("/spec/limited", "spec.limited");
        let queuing = "/spec/limited/limitResponse/queuing";
        let response = "spec.limited.limitResponse";
        let with = |parent: &str, field: &str| format!("{parent}/{field}");
        check_create(
            &Ruled::new(validate),
            &level("l", queued()),
            &[
                (&with(limited, "nominalConcurrencyShares"), json!(0), &[]),
                (
                    &with(limited, "nominalConcurrencyShares"),
                    json!(-1),
                    &[&format!("{at}.nominalConcurrencyShares: Invalid value: -1: must be a non-negative integer")],
                ),
                (&with(limited, "lendablePercent"), json!(100), &[]),
                (
                    &with(limited, "lendablePercent"),
                    json!(101),
                    &[&format!("{at}.lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive")],
                ),
                (
                    &with(limited, "borrowingLimitPercent"),
                    json!(-1),
                    &[&format!(
                        "{at}.borrowingLimitPercent: Invalid value: -1: if specified, must be a non-negative integer"
                    )],
                ),
                (&with(limited, "limitResponse"), json!({"type": "Reject"}), &[]),
                (
                    &with(limited, "limitResponse/type"),
                    json!("Reject"),
                    &[&format!(
                        "{response}.queuing: Forbidden: must be nil if limited.limitResponse.type is not Limited"
                    )],
                ),
                (
                    &with(limited, "limitResponse"),
                    json!({"type": "Queue"}),
                    &[&format!(
                        "{response}.queuing: Required value: must not be empty if limited.limitResponse.type is Limited"
                    )],
                ),
                (
                    &with(limited, "limitResponse/type"),
                    json!("Drop"),
                    &[&format!(
                        "{response}.type: Unsupported value: \"Drop\": supported values: \"Queue\", \"Reject\""
                    )],
                ),
                (
                    &with(queuing, "queueLengthLimit"),
                    json!(-1),
                    &[&format!("{response}.queuing.queueLengthLimit: Invalid value: -1: must be positive")],
                ),
                (
                    &with(queuing, "handSize"),
                    json!(-1),
                    &[&format!("{response}.queuing.handSize: Invalid value: -1: must be positive")],
                ),
                (
                    &with(queuing, "handSize"),
                    json!(65),
                    &[&format!(
                        "{response}.queuing.handSize: Invalid value: 65: should not be greater than queues (64)"
                    )],
                ),
                (
                    &with(queuing, "handSize"),
                    json!(20),
                    &[&format!(
                        "{response}.queuing.handSize: Invalid value: 20: required entropy bits of deckSize 64 and handSize 20 should not be greater than 60"
                    )],
                ),
                (
                    &with(queuing, "queues"),
                    json!(10_000_001),
                    &[
                        &format!(
                            "{response}.queuing.queues: Invalid value: 10000001: must not be greater than 10000000"
                        ),
                        &format!(
                            "{response}.queuing.handSize: Invalid value: 6: required entropy bits of deckSize 10000001 and handSize 6 should not be greater than 60"
                        ),
                    ],
                ),
            ],
        );
    }

    #[test]
    fn mandatory_levels_are_fixed() {
        for fixed in ::flowcontrol::bootstrap::objects(::flowcontrol::bootstrap::MANDATORY, Kind::Level) {
            let name = fixed.name().to_owned();
            let fixed = fixed.into_value();
            check_create(&Ruled::new(validate), &fixed, &[("", Value::Null, &[])]);
            if name == EXEMPT {
                let different = "spec: Invalid value: …: spec of 'exempt' except the 'spec.exempt' field must equal the fixed value";
                check_create(
                    &Ruled::new(validate),
                    &fixed,
                    &[
                        ("/spec/exempt", json!({"nominalConcurrencyShares": 5, "lendablePercent": 50}), &[]),
                        (
                            "/spec/exempt/lendablePercent",
                            json!(101),
                            &["spec.exempt.lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive"],
                        ),
                        (
                            "/spec",
                            queued(),
                            &[
                                "spec.type: Invalid value: \"Limited\": must be 'Exempt' if and only if `name` is 'exempt'",
                                different,
                            ],
                        ),
                    ],
                );
            } else {
                let different = format!("spec: Invalid value: …: spec of '{name}' must equal the fixed value");
                check_create(
                    &Ruled::new(validate),
                    &fixed,
                    &[("/spec/limited/nominalConcurrencyShares", json!(6), &[&different])],
                );
            }
        }
    }

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
