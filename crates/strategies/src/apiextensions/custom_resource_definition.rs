//! CustomResourceDefinition: validation and deletion.

use super::{CLEANUP, naming, spec, storage_version, strings};
use crate::Config;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{Object, Value};
use registry::{
    CostEstimator, CreateStrategy, DeleteOptions, DeleteStrategy, Env, ObjectConvertor, Request, UpdateStrategy,
};
use serde_json::json;

pub fn row(_: &Config) -> Row {
    Row::stored(CustomResourceDefinition)
}

pub struct CustomResourceDefinition;

impl CreateStrategy for CustomResourceDefinition {
    fn default(&self, o: &mut Object) {
        let kind = o.str_at(&["spec", "names", "kind"]).unwrap_or_default().to_owned();
        let absent = |o: &Object, k: &str| o.str_at(&["spec", "names", k]).unwrap_or_default().is_empty();
        if !kind.is_empty() && absent(o, "singular") {
            o.set(&["spec", "names", "singular"], kind.to_lowercase());
        }
        if !kind.is_empty() && absent(o, "listKind") {
            o.set(&["spec", "names", "listKind"], format!("{kind}List"));
        }
        let none = o.at(&["status", "storedVersions"]).and_then(Value::as_array).is_none_or(Vec::is_empty);
        if none {
            let versions: Vec<String> = storage_version(o).into_iter().collect();
            let v = if versions.is_empty() { Value::Null } else { versions.into() };
            o.set(&["status", "storedVersions"], v);
        }
    }

    fn prepare_for_create(&self, _: Env<'_>, _: &Request, o: &mut Object) {
        let stored: Vec<String> = storage_version(o).into_iter().collect();
        let stored = if stored.is_empty() { Value::Null } else { stored.into() };
        let names = json!({"kind": "", "plural": ""});
        o.set(&["status"], json!({"acceptedNames": names, "conditions": null, "storedVersions": stored}));
    }

    fn validate_since(&self, o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
        if old.is_some() {
            return;
        }
        spec::validate(o, None, errors);
    }

    fn warnings(&self, o: &Object, old: Option<&Object>) -> Vec<String> {
        let before = old.map(spec::warnings).unwrap_or_default();
        spec::warnings(o).into_iter().filter(|w| !before.contains(w)).collect()
    }
}

impl UpdateStrategy for CustomResourceDefinition {
    fn prepare_for_update(&self, _: Env<'_>, request: &Request, o: &mut Object, _: &Object) {
        if !request.subresource.is_empty() {
            return;
        }
        if let Some(v) = storage_version(o) {
            let mut all = strings(o.at(&["status", "storedVersions"]));
            if !all.contains(&v) {
                all.push(v);
                o.set(&["status", "storedVersions"], all);
            }
        }
    }

    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        spec::validate(o, Some(old), errors);
    }

    fn validate_part(&self, _: &str, o: &Object, _: &Object, errors: &mut ErrorList) {
        spec::status(o, errors);
    }
}

impl DeleteStrategy for CustomResourceDefinition {
    fn keeps_alive(&self, o: &Object) -> bool {
        !o.is_deleting()
    }

    fn grace_period(&self, _: &Object, _: &DeleteOptions) -> Option<i64> {
        None
    }

    fn deletes_in_phases(&self) -> bool {
        true
    }

    fn begin_deletion(&self, o: &mut Object) {
        let mut finalizers: Vec<String> = o.finalizers().map(str::to_owned).collect();
        if !finalizers.iter().any(|f| f == CLEANUP) {
            finalizers.push(CLEANUP.into());
            o.set_finalizers(finalizers);
        }
        let now = o.deletion_timestamp().unwrap_or_default().to_owned();
        let why = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
        naming::set_condition(o, "Terminating", "True", "InstanceDeletionPending", why, &now);
    }
}

impl ObjectConvertor for CustomResourceDefinition {
    fn scheme(&self) -> &'static str {
        "pkg/apiserver/apiserver.go:55"
    }
}

impl CostEstimator for CustomResourceDefinition {
    fn slow_from(&self) -> Option<usize> {
        Some(0)
    }
}

registry::strategy!(CustomResourceDefinition: CreateStrategy, UpdateStrategy, DeleteStrategy, ObjectConvertor, CostEstimator);
