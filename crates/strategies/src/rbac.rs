//! Roles and bindings: names are path segments.

use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object};
use registry::{NameRule, Strategy};

pub struct Rbac;

impl Strategy for Rbac {
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn default(&self, o: &mut Object) {
        // What is aggregated has no rules of its own.
        if o.get("aggregationRule").is_some() {
            o.set(&["rules"], meta::Value::Null);
        }
        let Some(meta::Value::Array(mut subjects)) = o.remove(&["subjects"]) else { return };
        for s in &mut subjects {
            if s["kind"] == "ServiceAccount" && s.get("apiGroup").is_some_and(|g| g == "") {
                s.as_object_mut().map(|m| m.remove("apiGroup"));
            }
        }
        o.set(&["subjects"], subjects);
    }

    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        if o.get("roleRef") != old.get("roleRef") {
            let value = o.get("roleRef").cloned().unwrap_or_default();
            errors.push(FieldError::invalid(&FieldPath::new("roleRef"), value, "cannot change roleRef"));
        }
    }
}
