//! The workloads of `apps`: selector and template belong together.

use crate::{plain, pod_template};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, LabelSelector, Object};
use registry::{Env, Request, Strategy, Sub};

pub struct Workload {
    pub selector_is_immutable: bool,
}

impl Strategy for Workload {
    fn default(&self, o: &mut Object) {
        pod_template::default(o, &["spec", "template", "spec"]);
        if o.kind() == "ReplicaSet"
            && o.labels().next().is_none()
            && let Some(l) = o.at(&["spec", "template", "metadata", "labels"]).cloned()
        {
            o.set(&["metadata", "labels"], l);
        }
    }

    fn prepare_for_create(&self, _env: Env<'_>, _request: &Request, o: &mut Object) {
        let empty = match o.kind() {
            "Deployment" => serde_json::json!({}),
            "DaemonSet" => serde_json::json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0,
                "numberMisscheduled": 0, "numberReady": 0}),
            "StatefulSet" => serde_json::json!({"replicas": 0, "availableReplicas": 0}),
            _ => serde_json::json!({"replicas": 0}),
        };
        o.set(&["status"], empty);
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let spec = FieldPath::new("spec");
        let template = o.at(&["spec", "template"]);
        let at = spec.child("template");
        let selector = o.at(&["spec", "selector"]);
        match selector {
            None => errors.push(FieldError::required(&spec.child("selector"), "")),
            Some(s) if s.as_object().is_some_and(|m| m.is_empty()) => {
                errors.push(FieldError::invalid(
                    &spec.child("selector"),
                    s.clone(),
                    "empty selector is invalid for deployment",
                ));
            }
            Some(s) => {
                schema::rules::selector(s, &spec.child("selector"), errors);
                if let (Ok(s), Some(t)) = (LabelSelector::from_value(Some(s)), template) {
                    let labels = &t["metadata"]["labels"];
                    if !s.matches(|k| labels.get(k).and_then(meta::Value::as_str)) {
                        let why = "`selector` does not match template `labels`";
                        errors.push(FieldError::invalid(&at.child("metadata").child("labels"), labels.clone(), why));
                    }
                }
            }
        }
        if let Some(t) = template {
            pod_template::validate(Some(t), &at, errors);
            pod_template::always_restarts(t, &at, errors);
        }
    }

    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        let (new, was) = (o.at(&["spec", "selector"]), old.at(&["spec", "selector"]));
        if self.selector_is_immutable && new != was {
            let value = new.cloned().unwrap_or_default();
            errors.push(FieldError::invalid(&FieldPath::new("spec.selector"), value, "field is immutable"));
        }
    }

    fn subresource(&self, name: &str) -> Option<Sub> {
        (name == "scale").then_some(Sub::Scale { selector: plain::label_selector })
    }
}
