//! A pod that asks for an extended resource may run on nodes that are kept for it.

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
        let mut asked: BTreeSet<String> = BTreeSet::new();
        for list in ["initContainers", "containers"] {
            for c in object.at(&["spec", list]).and_then(Value::as_array).into_iter().flatten() {
                let names = c["resources"]["requests"].as_object().into_iter().flatten().map(|(k, _)| k);
                asked.extend(names.filter(|k| k.contains('/') && !k.contains("kubernetes.io/")).cloned());
            }
        }
        let mut all = object.at(&["spec", "tolerations"]).and_then(Value::as_array).cloned().unwrap_or_default();
        let before = all.len();
        for key in asked {
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
