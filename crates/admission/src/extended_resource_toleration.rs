//! ExtendedResourceToleration: adds tolerations for the taints of nodes dedicated to an extended resource.

use crate::{Operation, Plugin, Review};
use meta::{Object, Status, Value};
use serde_json::json;
use std::collections::BTreeSet;

pub struct ExtendedResourceToleration;

impl Plugin for ExtendedResourceToleration {
    fn name(&self) -> &'static str {
        "ExtendedResourceToleration"
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        if !review.is("", "pods") || !matches!(review.operation, Operation::Create | Operation::Update) {
            return Ok(());
        }
        let mut requested: BTreeSet<String> = BTreeSet::new();
        for list in ["initContainers", "containers"] {
            for c in object.at(&["spec", list]).and_then(Value::as_array).into_iter().flatten() {
                let names = c["resources"]["requests"].as_object().into_iter().flatten().map(|(k, _)| k);
                requested.extend(names.filter(|k| k.contains('/') && !k.contains("kubernetes.io/")).cloned());
            }
        }
        let mut all = object.at(&["spec", "tolerations"]).and_then(Value::as_array).cloned().unwrap_or_default();
        let before = all.len();
        for key in requested {
            let t = json!({"key": key, "operator": "Exists", "effect": "NoSchedule"});
            if !all.contains(&t) {
                all.push(t);
            }
        }
        if all.len() > before {
            object.set(&["spec", "tolerations"], all);
        }
        Ok(())
    }
}
