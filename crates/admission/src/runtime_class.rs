//! RuntimeClass: sets the overhead and scheduling constraints of a pod's runtime class.

use crate::{Operation, Plugin, Review};
use meta::{Object, Quantity, Reason, Status, Value};
use std::sync::Arc;

pub struct RuntimeClass;

fn class(review: &Review<'_>, pod: &Object) -> Result<Option<Arc<Object>>, Status> {
    let Some(name) = pod.str_at(&["spec", "runtimeClassName"]) else { return Ok(None) };
    // Upstream's client cannot ask for it.
    if name.is_empty() {
        return Err(Status::new(500, Reason::Unknown, "resource name may not be empty"));
    }
    match review.lookup.get("node.k8s.io", "runtimeclasses", "", name)? {
        Some(c) => Ok(Some(c)),
        None => Err(review.forbidden(&format!("pod rejected: RuntimeClass {name:?} not found"))),
    }
}

fn is_new_pod(review: &Review<'_>) -> bool {
    review.is("", "pods") && review.operation == Operation::Create
}

impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        if !is_new_pod(review) {
            return Ok(());
        }
        let Some(class) = class(review, object)? else { return Ok(()) };
        if let Some(fixed) = class.at(&["overhead", "podFixed"]) {
            if object.at(&["spec", "overhead"]).is_some_and(|own| !same(own, fixed)) {
                let why = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
                return Err(review.forbidden(why));
            }
            object.set(&["spec", "overhead"], fixed.clone());
        }
        for (k, v) in class.at(&["scheduling", "nodeSelector"]).and_then(Value::as_object).into_iter().flatten() {
            match object.at(&["spec", "nodeSelector", k]) {
                Some(own) if own != v => {
                    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
                    return Err(review.forbidden(&format!(
                        "conflict: runtimeClass.scheduling.nodeSelector[{k}] = {}; pod.spec.nodeSelector[{k}] = {}",
                        text(v),
                        text(own)
                    )));
                }
                _ => object.set(&["spec", "nodeSelector", k], v.clone()),
            }
        }
        let more = class.at(&["scheduling", "tolerations"]).and_then(Value::as_array).cloned().unwrap_or_default();
        if !more.is_empty() {
            let mut all = object.at(&["spec", "tolerations"]).and_then(Value::as_array).cloned().unwrap_or_default();
            all.extend(more.into_iter().filter(|t| !object.has_toleration(t)));
            object.set(&["spec", "tolerations"], all);
        }
        Ok(())
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let Some(object) = object.filter(|_| is_new_pod(review)) else { return Ok(()) };
        let has = object.at(&["spec", "overhead"]).and_then(Value::as_object).is_some_and(|o| !o.is_empty());
        let class = class(review, object)?;
        if has && class.is_none_or(|c| c.at(&["overhead", "podFixed"]).is_none()) {
            let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
            return Err(review.forbidden(why));
        }
        Ok(())
    }
}

trait Tolerates {
    fn has_toleration(&self, t: &Value) -> bool;
}

impl Tolerates for Object {
    fn has_toleration(&self, t: &Value) -> bool {
        self.at(&["spec", "tolerations"]).and_then(Value::as_array).is_some_and(|all| all.contains(t))
    }
}

/// Whether quantities are equal, whatever their notation.
fn same(a: &Value, b: &Value) -> bool {
    let read = |v: &Value| -> Vec<(String, Option<Quantity>)> {
        let all = v.as_object().into_iter().flatten();
        let mut all: Vec<_> = all.map(|(k, q)| (k.clone(), q.as_str().and_then(|q| Quantity::parse(q).ok()))).collect();
        all.sort_by(|x, y| x.0.cmp(&y.0));
        all
    };
    read(a) == read(b)
}
