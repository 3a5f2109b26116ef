//! HorizontalPodAutoscaler, served in two versions and stored as v2.

mod rules;

use meta::field::ErrorList;
use meta::{FieldPath, Gvk, Object, Status, Value};
use registry::Strategy;
use serde_json::json;

pub struct HorizontalPodAutoscaler;

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

impl Strategy for HorizontalPodAutoscaler {
    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        // Whatever the version, the rules are of the newest.
        let newest = Gvk::new("autoscaling", "v2", o.kind());
        let Ok(o) = self.convert(o.clone(), &newest) else { return };
        rules::validate(o.get("spec").unwrap_or(&Value::Null), &FieldPath::new("spec"), errors);
    }

    fn default(&self, o: &mut Object) {
        if o.api_version() == "autoscaling/v2" && o.at(&["spec", "metrics"]).is_none() {
            let cpu = json!([{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 80}}}]);
            o.set(&["spec", "metrics"], cpu);
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
