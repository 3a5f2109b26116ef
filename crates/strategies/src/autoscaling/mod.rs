//! HorizontalPodAutoscaler, served in two versions and stored as v2.

mod rules;

use crate::replicas::not_negative;
use meta::field::ErrorList;
use meta::{FieldPath, Gvk, Object, Status, Value};
use registry::Strategy;
use serde_json::json;

pub struct HorizontalPodAutoscaler;

/// The share of requested CPU that is aimed at when nothing is said, in percent.
const TARGET: i64 = 80;

/// What a behaviour that is given leaves out.
fn default_behavior(o: &mut Object) {
    let up = json!({"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}]});
    let down = json!({"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]});
    for (side, defaults) in [("scaleUp", up), ("scaleDown", down)] {
        for (k, v) in defaults.as_object().into_iter().flatten() {
            if o.at(&["spec", "behavior", side, k]).is_none() {
                o.set(&["spec", "behavior", side, k], v.clone());
            }
        }
    }
}

impl HorizontalPodAutoscaler {
    /// The specification, whose rules are those of the newest version whatever the version.
    fn newest(&self, o: &Object) -> Value {
        let newest = Gvk::new("autoscaling", "v2", o.kind());
        let converted = self.convert(o.clone(), &newest).ok();
        converted.and_then(|o| o.get("spec").cloned()).unwrap_or_default()
    }
}

impl Strategy for HorizontalPodAutoscaler {
    fn validate_create(&self, o: &Object, errors: &mut ErrorList) {
        rules::validate(&self.newest(o), None, &FieldPath::new("spec"), errors);
    }

    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        rules::validate(&self.newest(o), Some(&self.newest(old)), &FieldPath::new("spec"), errors);
    }

    fn validate_part(&self, subresource: &str, o: &Object, _old: &Object, errors: &mut ErrorList) {
        if subresource == "status" {
            not_negative(o, &["currentReplicas", "desiredReplicas"], errors);
        }
    }

    fn default(&self, o: &mut Object) {
        if o.api_version() == "autoscaling/v2" && o.at(&["spec", "metrics"]).is_none() {
            let cpu = json!([{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": TARGET}}}]);
            o.set(&["spec", "metrics"], cpu);
        }
        // The older version has no other metric.
        let percentage = ["spec", "targetCPUUtilizationPercentage"];
        if o.api_version() == "autoscaling/v1" && o.at(&percentage).is_none() {
            o.set(&percentage, TARGET);
        }
        if o.at(&["spec", "behavior"]).is_some() {
            default_behavior(o);
        }
    }

    fn convert(&self, mut o: Object, to: &Gvk) -> Result<Object, Status> {
        if to.version == "v2" {
            if let Some(n) = o.remove(&["spec", "targetCPUUtilizationPercentage"]).filter(|n| !n.is_null()) {
                let cpu = json!([{"type": "Resource", "resource": {"name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": n}}}]);
                o.set(&["spec", "metrics"], cpu);
            }
        } else if let Some(metrics) = o.remove(&["spec", "metrics"]) {
            let cpu = metrics.as_array().into_iter().flatten().find(|m| m["resource"]["name"] == "cpu");
            if let Some(n) = cpu.map(|m| m["resource"]["target"]["averageUtilization"].clone()).filter(|n| !n.is_null())
            {
                o.set(&["spec", "targetCPUUtilizationPercentage"], n);
            }
        }
        o.set_gvk(to);
        Ok(o)
    }
}
