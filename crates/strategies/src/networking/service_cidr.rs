//! ServiceCIDR: one range, or one per family.

use crate::Config;
use crate::plain::Ruled;
use crate::read::{items, shown};
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

pub fn row(_: &Config) -> Row {
    Row::stored(rules())
}

fn rules() -> Ruled {
    Ruled::new(|_, _| {}).with_since(validate_since).with_update(validate_update).with_fixed_status_metadata()
}

/// Validates a new object: one range, or one per family.
fn validate_since(o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
    if old.is_some() {
        return;
    }
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let at = FieldPath::new("spec.cidrs");
    match items(spec, "cidrs") {
        [] => errors.push(FieldError::required(&at, "at least one CIDR required")),
        few @ ([_] | [_, _]) => ranges(few, &at, errors),
        _ => {
            let shown = shown(spec, "io.k8s.api.networking.v1.ServiceCIDRSpec", &FieldPath::new("spec"));
            errors.push(FieldError::invalid(&at, shown, "may only hold up to 2 values"));
        }
    }
}

/// Checks that ranges are unchanged, except for an added one of the other family.
fn validate_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    let at = FieldPath::new("spec.cidrs");
    let (new, was) = (cidrs(o), cidrs(old));
    match (new.as_slice(), was.as_slice()) {
        (n, w) if n.len() == w.len() => {
            for (i, r) in n.iter().enumerate().filter(|(i, r)| **r != w[*i]) {
                errors.push(FieldError::invalid(&at.index(i), r, "field is immutable"));
            }
        }
        ([first, _], [only]) => {
            if first != only {
                errors.push(FieldError::invalid(&at.index(0), first, "field is immutable"));
            }
            ranges(&new, &at, errors);
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

/// Checks that ranges are in canonical form, and that two are of different families.
fn ranges(all: &[Value], at: &FieldPath, errors: &mut ErrorList) {
    for (i, r) in all.iter().enumerate() {
        let wrong = schema::rules::canonical_cidr(r.as_str().unwrap_or_default());
        errors.extend(wrong.map(|why| FieldError::invalid(&at.index(i), r, why)));
    }
    if let [a, b] = all
        && family(a).is_some_and(|of_a| family(b) == Some(of_a))
    {
        errors.push(FieldError::invalid(at, all, ONE_OF_EACH));
    }
}

/// The family of a range; invalid ranges have none.
fn family(range: &Value) -> Option<Family> {
    let text = range.as_str().filter(|t| schema::rules::is_range(t))?;
    Some(if text.contains(':') { Family::V6 } else { Family::V4 })
}

#[derive(PartialEq)]
enum Family {
    V4,
    V6,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_update};
    use serde_json::json;

    #[test]
    fn validates_ranges() {
        let strategy = rules();
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
                (
                    "/spec/cidrs",
                    json!(["a", "fd00::/64"]),
                    &["spec.cidrs[0]: Invalid value: \"a\": must be a valid CIDR value…"],
                ),
                (
                    "/spec/cidrs",
                    json!(["10.0.0.0/24", "10.1.0.0/24"]),
                    &["spec.cidrs: Invalid value: [\"10.0.0.0/24\",\"10.1.0.0/24\"]: may specify no more than one IP…"],
                ),
                (
                    "/spec/cidrs",
                    json!(["1", "2", "3"]),
                    &[r#"spec.cidrs: Invalid value: {"CIDRs":["1","2","3"]}: may only hold up to 2 values"#],
                ),
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
