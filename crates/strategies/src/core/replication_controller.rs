//! ReplicationController: selector and labels default to those of the template.

use crate::Config;
use crate::replicas::{self, Counts};
use crate::table::Row;
use crate::{plain, pod_template};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};
use registry::{CreateStrategy, Env, Request, Sub, Subresources, UpdateStrategy};

pub fn row(_: &Config) -> Row {
    Row::stored(ReplicationController)
}

pub struct ReplicationController;

impl CreateStrategy for ReplicationController {
    fn default(&self, o: &mut Object) {
        let labels = o.at(&["spec", "template", "metadata", "labels"]).cloned();
        if let Some(l) = labels {
            if o.at(&["spec", "selector"]).is_none() {
                o.set(&["spec", "selector"], l.clone());
            }
            if o.labels().next().is_none() {
                o.set(&["metadata", "labels"], l);
            }
        }
        pod_template::default(o, &["spec", "template", "spec"]);
    }

    fn prepare_for_create(&self, _env: Env<'_>, _request: &Request, o: &mut Object) {
        o.set(&["status"], serde_json::json!({"replicas": 0}));
    }

    fn warnings(&self, o: &Object, old: Option<&Object>) -> Vec<String> {
        let mut out = if old.is_none() { pod_template::name_warnings(o.name()) } else { Vec::new() };
        out.extend(pod_template::workload_warnings(o, old, &["spec", "template"]));
        out
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let spec = FieldPath::new("spec");
        let selector = o.at(&["spec", "selector"]).and_then(Value::as_object);
        if selector.is_none_or(|s| s.is_empty()) {
            errors.push(FieldError::required(&spec.child("selector"), ""));
        }
        let at = spec.child("template");
        match o.at(&["spec", "template"]) {
            None => errors.push(FieldError::required(&at, "")),
            Some(t) => {
                let labels = &t["metadata"]["labels"];
                let fits = selector.is_none_or(|s| s.iter().all(|(k, v)| labels.get(k) == Some(v)));
                if !fits {
                    let why = "`selector` does not match template `labels`";
                    errors.push(FieldError::invalid(&at.child("metadata").child("labels"), labels, why));
                }
                pod_template::validate(Some(t), &at, errors);
                pod_template::always_restarts("ReplicationController", t, &at, errors);
            }
        }
    }
}

impl UpdateStrategy for ReplicationController {
    fn validate_part(&self, subresource: &str, o: &Object, old: &Object, errors: &mut ErrorList) {
        const COUNTS: Counts = Counts {
            all: &["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"],
            parts: &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
            ready: Some("cannot be greater than readyReplicas"),
        };
        if subresource == "status" {
            replicas::status(o, old, &COUNTS, errors);
        }
    }
}

impl Subresources for ReplicationController {
    fn subresource(&self, name: &str) -> Option<Sub> {
        (name == "scale").then_some(Sub::Scale(registry::Scale::usual(plain::label_selector)))
    }
}

registry::strategy!(ReplicationController: CreateStrategy, UpdateStrategy, Subresources);
