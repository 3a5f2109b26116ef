//! DeviceClass: selectors and configuration.

use super::{parts, selectors};
use crate::Config;
use crate::plain::Ruled;
use crate::read::delegated;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use registry::NameRule;

pub fn row(_: &Config) -> Row {
    Row::stored(rules())
}

fn rules() -> Ruled {
    Ruled::new(validate).with_since(validate_since).named(NameRule::LongName)
}

fn validate(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    parts::every(spec, "config", &path, |c, at| parts::configuration(c, at, errors));
    if let Some(name) = spec["extendedResourceName"].as_str().filter(|n| !is_extended_resource(n)) {
        let at = path.child("extendedResourceName");
        errors.push(FieldError::invalid(&at, name, "must be a valid extended resource name"));
    }
}

/// Whether a name is that of an extended resource that a quota can limit.
fn is_extended_resource(name: &str) -> bool {
    let own = !name.contains('/') || name.contains("kubernetes.io/");
    !own && !name.starts_with("requests.") && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Validates selectors, except for those of the old object.
fn validate_since(o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
    let of = |o: &Object| o.at(&["spec", "selectors"]).cloned();
    if old.is_none_or(|old| of(o) != of(old)) {
        let spec = o.get("spec").unwrap_or(&Value::Null);
        let path = FieldPath::new("spec");
        delegated(spec, "io.k8s.api.resource.v1.DeviceClassSpec", "selectors", &path, errors);
        selectors(spec, &path, errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_update};
    use serde_json::json;

    #[test]
    fn keeps_old_selectors_valid() {
        let strategy = rules();
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
}
