//! Pod: defaults, quality of service, what may change while it runs, graceful deletion.

use super::{binding, eviction, pod_parts, proxy};
use crate::pod_template;
use crate::read::text;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Quantity, Status, Value};
use registry::{DeleteOptions, Env, Place, Request, Strategy, Sub, Upstream, take_field};
use serde_json::json;
use std::sync::Arc;

pub struct Pod;

impl Strategy for Pod {
    fn default(&self, o: &mut Object) {
        if o.at(&["spec", "enableServiceLinks"]).is_none() {
            o.set(&["spec", "enableServiceLinks"], true);
        }
        pod_template::default(o, &["spec"]);
        requests_from_limits(o);
        // A negative grace is the shortest.
        if o.int_at(&["spec", "terminationGracePeriodSeconds"]).is_some_and(|n| n < 0) {
            o.set(&["spec", "terminationGracePeriodSeconds"], 1);
        }
    }

    fn prepare_for_create(&self, _env: Env<'_>, _request: &Request, o: &mut Object) {
        let qos = qos_class(o);
        o.set(&["status"], json!({"phase": "Pending", "qosClass": qos}));
        if o.at(&["spec", "schedulingGates"]).and_then(Value::as_array).is_some_and(|g| !g.is_empty()) {
            let c = json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates"}]);
            o.set(&["status", "conditions"], c);
        }
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        pod_template::spec(o.get("spec").unwrap_or(&Value::Null), &FieldPath::new("spec"), errors);
    }

    fn warnings(&self, o: &Object, _old: Option<&Object>) -> Vec<String> {
        let part = |k: &str| o.get(k).unwrap_or(&Value::Null);
        pod_template::warnings_of_parts(part("metadata"), part("spec"), &FieldPath::root())
    }

    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        let spec = FieldPath::new("spec");
        for list in ["containers", "initContainers"] {
            let at = spec.child(list);
            if items(o, list).len() != items(old, list).len() {
                let why = "pod updates may not add or remove containers";
                errors.push(FieldError::forbidden(&at, why));
                return;
            }
            for (i, c) in items(o, list).iter().enumerate() {
                if text(c, "image").is_empty() {
                    errors.push(FieldError::required(&at.index(i).child("image"), ""));
                }
            }
        }
        if !deadline_may_be(o, old, errors) {
            return;
        }
        // What may change: images, deadlines, tolerations that are added, gates that are taken, grace of a terminated pod.
        let mut allowed = old.clone();
        let mut take = |path: &[&str]| match o.at(path).cloned() {
            Some(v) => allowed.set(path, v),
            None => {
                allowed.remove(path);
            }
        };
        take(&["spec", "activeDeadlineSeconds"]);
        take(&["spec", "tolerations"]);
        take(&["spec", "schedulingGates"]);
        if old.at(&["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64).is_some_and(|g| g < 0) {
            take(&["spec", "terminationGracePeriodSeconds"]);
        }
        for list in ["containers", "initContainers"] {
            let images: Vec<Option<Value>> = items(o, list).iter().map(|c| c.get("image").cloned()).collect();
            if let Some(Value::Array(mut all)) = allowed.remove(&["spec", list]) {
                for (c, image) in all.iter_mut().zip(images).filter_map(|(c, i)| Some((c.as_object_mut()?, i))) {
                    match image {
                        Some(i) => c.insert("image".into(), i),
                        None => c.remove("image"),
                    };
                }
                allowed.set(&["spec", list], all);
            }
        }
        if o.get("spec") != allowed.get("spec") {
            let why = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
            errors.push(FieldError::forbidden(&FieldPath::new("spec"), why));
        }
        let tolerations =
            |p: &Object| p.at(&["spec", "tolerations"]).and_then(Value::as_array).cloned().unwrap_or_default();
        let now = tolerations(o);
        if tolerations(old).iter().any(|t| !now.iter().any(|n| same_but_seconds(n, t))) {
            let why = "existing toleration can not be modified except its tolerationSeconds";
            errors.push(FieldError::forbidden(&FieldPath::new("spec.tolerations"), why));
        }
    }

    fn validate_part(&self, subresource: &str, o: &Object, old: &Object, errors: &mut ErrorList) {
        let rule = match subresource {
            "ephemeralcontainers" => pod_parts::ephemeral_containers,
            "resize" => pod_parts::resize,
            _ => return,
        };
        if let Some(schema) = kinds::catalog().schema_of(&meta::Gvk::new("", "v1", "Pod")) {
            schema::rules::validate(&o.0, schema, errors);
        }
        self.validate(o, errors);
        rule(o, old, errors);
    }

    fn counts_generation(&self, subresource: &str) -> bool {
        matches!(subresource, "" | "ephemeralcontainers" | "resize")
    }

    fn resets(&self, subresource: &str) -> Option<&'static [&'static [&'static str]]> {
        let of_status: &[&[&str]] = &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]];
        (subresource == "status").then_some(of_status)
    }

    fn take_part(&self, subresource: &str, o: &mut Object, old: &Object) {
        match subresource {
            // Written by the binding itself, which changed only what it may.
            "binding" => {}
            "ephemeralcontainers" => {
                let list = o.at(&["spec", "ephemeralContainers"]).cloned();
                *o = old.clone();
                match list {
                    Some(l) => o.set(&["spec", "ephemeralContainers"], l),
                    None => {
                        o.remove(&["spec", "ephemeralContainers"]);
                    }
                }
                pod_template::default(o, &["spec"]);
            }
            "resize" => {
                let sent = std::mem::replace(o, old.clone());
                pod_parts::take_resources(o, &sent);
            }
            _ => {
                take_field(subresource, o, old, &["ownerReferences"]);
                // The class was decided when the pod was made.
                if let (Some(q), true) = (old.at(&["status", "qosClass"]), o.get("status").is_some()) {
                    o.set(&["status", "qosClass"], q.clone());
                }
            }
        }
    }

    fn grace_period(&self, o: &Object, options: &DeleteOptions) -> Option<i64> {
        let asked = options.grace_period_seconds;
        let mut grace = asked.or_else(|| o.int_at(&["spec", "terminationGracePeriodSeconds"])).unwrap_or(30);
        let nowhere = o.str_at(&["spec", "nodeName"]).unwrap_or_default().is_empty();
        let over = matches!(o.str_at(&["status", "phase"]), Some("Succeeded" | "Failed"));
        if nowhere || over {
            grace = 0;
        }
        Some(if grace < 0 { 1 } else { grace })
    }

    fn returns_deleted_object(&self) -> bool {
        true
    }

    fn proxy(&self, _env: Env<'_>, _request: &Request, o: &Object, place: &Place) -> Result<Upstream, Status> {
        proxy::pod(o, place)
    }

    fn subresource(&self, name: &str) -> Option<Sub> {
        match name {
            "log" | "exec" | "attach" | "portforward" | "proxy" => Some(Sub::Connect),
            "binding" => Some(Sub::Function(Arc::new(binding::Binding))),
            "eviction" => Some(Sub::Function(Arc::new(eviction::Eviction))),
            _ => None,
        }
    }
}

/// A deadline may come or be brought nearer. Says whether the rest of an update is worth looking at.
fn deadline_may_be(o: &Object, old: &Object, errors: &mut ErrorList) -> bool {
    let path = FieldPath::new("spec.activeDeadlineSeconds");
    let deadline = |p: &Object| p.int_at(&["spec", "activeDeadlineSeconds"]);
    match (deadline(old), deadline(o)) {
        (_, Some(is)) if !(0..=i64::from(i32::MAX)).contains(&is) => {
            errors.push(FieldError::invalid(&path, is, "must be between 0 and 2147483647, inclusive"));
            false
        }
        (Some(was), Some(is)) if is > was => {
            let why = format!("must be less than or equal to previous value {was}");
            errors.push(FieldError::invalid(&path, is, why));
            false
        }
        (Some(_), None) => {
            let why = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid(&path, Value::Null, why));
            true
        }
        _ => true,
    }
}

pub(super) fn items<'a>(o: &'a Object, list: &str) -> &'a [Value] {
    o.at(&["spec", list]).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn same_but_seconds(a: &Value, b: &Value) -> bool {
    ["key", "operator", "value", "effect"].iter().all(|k| a.get(k) == b.get(k))
}

/// A limit without a request is a request as well.
fn requests_from_limits(o: &mut Object) {
    let Some(mut spec) = o.remove(&["spec"]) else { return };
    for list in ["containers", "initContainers"] {
        for c in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let limits = c["resources"]["limits"].as_object().cloned().unwrap_or_default();
            for (k, v) in limits {
                if c["resources"]["requests"].get(&k).is_none() {
                    c["resources"]["requests"][k] = v;
                }
            }
        }
    }
    o.set(&["spec"], spec);
}

/// Guaranteed, Burstable or BestEffort (`k8s.io/kubernetes/pkg/apis/core/v1/helper/qos`).
pub fn qos_class(o: &Object) -> &'static str {
    let quantity = |v: &Value| v.as_str().and_then(|s| Quantity::parse(s).ok()).filter(|q| q.sign() > 0);
    let (mut any, mut guaranteed) = (false, true);
    for list in ["containers", "initContainers"] {
        for c in items(o, list) {
            for k in ["cpu", "memory"] {
                let request = quantity(&c["resources"]["requests"][k]);
                let limit = quantity(&c["resources"]["limits"][k]);
                any |= request.is_some() || limit.is_some();
                guaranteed &= limit.is_some() && (request.is_none() || request == limit);
            }
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
