//! The workloads of `apps`: selector and template belong together.

use crate::{plain, pod_template};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, LabelSelector, Object};
use registry::{Env, Request, Strategy, Sub};

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// What may change in a stateful set.
const STATEFUL_MUTABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

pub struct Workload {
    pub selector_is_immutable: bool,
}

impl Strategy for Workload {
    fn default(&self, o: &mut Object) {
        pod_template::default(o, &["spec", "template", "spec"]);
        match o.kind() {
            "DaemonSet" if o.annotation(TEMPLATE_GENERATION).is_none() => o.set_annotation(TEMPLATE_GENERATION, "1"),
            "StatefulSet" => {
                let Some(meta::Value::Array(mut claims)) = o.remove(&["spec", "volumeClaimTemplates"]) else { return };
                for c in &mut claims {
                    c["apiVersion"] = "v1".into();
                    c["kind"] = "PersistentVolumeClaim".into();
                }
                o.set(&["spec", "volumeClaimTemplates"], claims);
            }
            _ => {}
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
                let before = errors.len();
                schema::rules::selector(s, &spec.child("selector"), errors);
                if errors.len() > before {
                    errors.push(FieldError::invalid(&spec.child("selector"), s.clone(), "invalid label selector"));
                } else if let (Ok(s), Some(t)) = (LabelSelector::from_value(Some(s)), template) {
                    let labels = &t["metadata"]["labels"];
                    if !s.matches(|k| labels.get(k).and_then(meta::Value::as_str)) {
                        let why = "`selector` does not match template `labels`";
                        errors.push(FieldError::invalid(&at.child("metadata").child("labels"), labels.clone(), why));
                    }
                }
            }
        }
        if let Some(t) = template {
            let mut t = t.clone();
            // A claim is mounted like a volume.
            for c in o.at(&["spec", "volumeClaimTemplates"]).and_then(meta::Value::as_array).into_iter().flatten() {
                let volume = serde_json::json!({"name": c["metadata"]["name"], "persistentVolumeClaim": {}});
                match t["spec"]["volumes"].as_array_mut() {
                    Some(v) => v.push(volume),
                    None => t["spec"]["volumes"] = vec![volume].into(),
                }
            }
            pod_template::validate(Some(&t), &at, errors);
            pod_template::always_restarts(&t, &at, errors);
        }
    }

    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        let (new, was) = (o.at(&["spec", "selector"]), old.at(&["spec", "selector"]));
        if self.selector_is_immutable && o.kind() != "StatefulSet" && new != was {
            let value = new.cloned().unwrap_or_default();
            errors.push(FieldError::invalid(&FieldPath::new("spec.selector"), value, "field is immutable"));
        }
        if o.kind() == "StatefulSet" {
            let mut allowed = old.clone();
            for k in STATEFUL_MUTABLE {
                match o.at(&["spec", k]).cloned() {
                    Some(v) => allowed.set(&["spec", k], v),
                    None => {
                        allowed.remove(&["spec", k]);
                    }
                }
            }
            if allowed.get("spec") != o.get("spec") {
                let why = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
                errors.push(FieldError::forbidden(&FieldPath::new("spec"), why));
            }
        }
    }

    fn subresource(&self, name: &str) -> Option<Sub> {
        (name == "scale").then_some(Sub::Scale { selector: plain::label_selector })
    }
}
