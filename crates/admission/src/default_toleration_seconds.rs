//! DefaultTolerationSeconds: pods tolerate a not ready or unreachable node for five minutes by default.

use crate::{Operation, Plugin, Review};
use meta::{Object, Status, Value};
use serde_json::json;

pub struct DefaultTolerationSeconds;

const SECONDS: i64 = 300;

impl Plugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        if !review.is("", "pods") || review.operation == Operation::Delete {
            return Ok(());
        }
        let mut list = object.at(&["spec", "tolerations"]).and_then(Value::as_array).cloned().unwrap_or_default();
        let before = list.len();
        for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
            let tolerated = list.iter().any(|t| {
                let k = t["key"].as_str().unwrap_or_default();
                let e = t["effect"].as_str().unwrap_or_default();
                (k == key || k.is_empty()) && (e == "NoExecute" || e.is_empty())
            });
            if !tolerated {
                list.push(
                    json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS}),
                );
            }
        }
        if list.len() > before {
            object.set(&["spec", "tolerations"], list);
        }
        Ok(())
    }
}
