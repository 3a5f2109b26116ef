//! PriorityClass: system classes are fixed.

use crate::Config;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, GroupResource, Object, Status};
use registry::{CreateStrategy, DeleteStrategy};

pub fn row(_: &Config) -> Row {
    Row::stored(PriorityClass)
}

const POLICIES: [&str; 2] = ["PreemptLowerPriority", "Never"];
/// Maximum value of user-defined classes.
const VALUE_MAX: i64 = 1_000_000_000;
/// Prefix of system classes.
const RESERVED: &str = "system-";
const SYSTEM: [(&str, i64); 2] = [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

pub struct PriorityClass;

impl CreateStrategy for PriorityClass {
    fn validate_since(&self, o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
        // Immutable fields are not validated again.
        if old.is_some() {
            return;
        }
        if o.name().starts_with(RESERVED) {
            if let Some(why) = differs_from_system(o) {
                let why = format!(
                    "priority class names with '{RESERVED}' prefix are reserved for system use only. error: {why}"
                );
                errors.push(FieldError::forbidden(&FieldPath::new("metadata.name"), &why));
            }
        } else if value(o) > VALUE_MAX {
            let why = format!("maximum allowed value of a user defined priority is {VALUE_MAX}");
            errors.push(FieldError::forbidden(&FieldPath::new("value"), &why));
        }
        let at = FieldPath::new("preemptionPolicy");
        match o.str_at(&["preemptionPolicy"]).unwrap_or_default() {
            "" => errors.push(FieldError::required(&at, "")),
            p if !POLICIES.contains(&p) => errors.push(FieldError::not_supported(&at, p, &POLICIES)),
            _ => {}
        }
    }
}

impl DeleteStrategy for PriorityClass {
    fn validate_delete(&self, o: &Object) -> Result<(), Status> {
        if SYSTEM.iter().any(|(name, _)| *name == o.name()) {
            let gr = GroupResource { group: "scheduling.k8s.io".into(), resource: "priorityclasses".into() };
            return Err(Status::forbidden(&gr, o.name(), "this is a system priority class and cannot be deleted"));
        }
        Ok(())
    }
}

registry::strategy!(PriorityClass: CreateStrategy, DeleteStrategy);

fn value(o: &Object) -> i64 {
    o.int_at(&["value"]).unwrap_or(0)
}

/// Returns the difference of a class from the system class of its name.
fn differs_from_system(o: &Object) -> Option<String> {
    let name = o.name();
    let Some((_, fixed)) = SYSTEM.iter().find(|(n, _)| *n == name) else {
        return Some(format!("{name} is not a known system priority class"));
    };
    if value(o) != *fixed {
        return Some(format!("value of {name} PriorityClass must be {fixed}"));
    }
    let default = o.get("globalDefault").and_then(meta::Value::as_bool).unwrap_or(false);
    default.then(|| format!("globalDefault of {name} PriorityClass must be false"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_update};
    use meta::Value;
    use serde_json::json;

    #[test]
    fn validates_values_and_system_classes() {
        let base = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "x"}, "value": 5});
        let high = "value: Forbidden: maximum allowed value of a user defined priority is 1000000000";
        let policy =
            r#"preemptionPolicy: Unsupported value: "Other": supported values: "PreemptLowerPriority", "Never""#;
        check_create(
            &PriorityClass,
            &base,
            &[
                ("", Value::Null, &[]),
                ("/value", json!(1_000_000_001), &[high]),
                ("/preemptionPolicy", json!("Other"), &[policy]),
                (
                    "/metadata/name",
                    json!("system-x"),
                    &["metadata.name: Forbidden: priority class names with 'system-'…"],
                ),
            ],
        );
        check_update(
            &PriorityClass,
            &base,
            &[
                ("/value", json!(1_000_000_001), &["value: Forbidden: may not be changed in an update."]),
                (
                    "/preemptionPolicy",
                    json!("Other"),
                    &[r#"preemptionPolicy: Invalid value: "Other": field is immutable"#],
                ),
            ],
        );
    }
}
