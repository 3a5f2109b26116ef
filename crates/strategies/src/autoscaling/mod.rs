//! HorizontalPodAutoscaler, served in two versions and stored as v2.

mod rules;
mod versions;

use crate::replicas::not_negative;
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

impl HorizontalPodAutoscaler {
    /// The specification, whose rules are those of the newest version whatever the version.
    fn newest(&self, o: &Object) -> Value {
        let newest = Gvk::new("autoscaling", "v2", o.kind());
        let converted = self.convert(o.clone(), &newest).ok();
        converted.and_then(|o| o.get("spec").cloned()).unwrap_or_default()
    }
}

impl Strategy for HorizontalPodAutoscaler {
    fn validate_since(&self, o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
        if old.is_some() {
            return;
        }
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
            o.set(&["spec", "metrics"], vec![versions::cpu(versions::TARGET.into())]);
        }
        if o.api_version() == "autoscaling/v1" && !versions::aims(o) {
            o.set(&["spec", "targetCPUUtilizationPercentage"], versions::TARGET);
        }
        if o.at(&["spec", "behavior"]).is_some() {
            default_behavior(o);
        }
    }

    fn convert(&self, mut o: Object, to: &Gvk) -> Result<Object, Status> {
        match (o.api_version() == to.api_version(), &*to.version) {
            (true, _) => {}
            (_, "v2") => versions::to_v2(&mut o),
            _ => versions::to_v1(&mut o),
        }
        o.set_gvk(to);
        Ok(o)
    }
}
