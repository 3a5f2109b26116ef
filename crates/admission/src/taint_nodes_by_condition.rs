//! TaintNodesByCondition: taints new nodes as not ready.

use crate::{Operation, Plugin, Review};
use meta::{Object, Status, Value};
use serde_json::json;

pub struct TaintNodesByCondition;

const KEY: &str = "node.kubernetes.io/not-ready";
const EFFECT: &str = "NoSchedule";

impl Plugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        if review.operation != Operation::Create || !review.is("", "nodes") {
            return Ok(());
        }
        let mut taints = object.at(&["spec", "taints"]).and_then(Value::as_array).cloned().unwrap_or_default();
        if !taints.iter().any(|t| t["key"] == KEY && t["effect"] == EFFECT) {
            taints.push(json!({"key": KEY, "effect": EFFECT}));
            object.set(&["spec", "taints"], taints);
        }
        Ok(())
    }
}
