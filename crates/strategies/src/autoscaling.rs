//! HorizontalPodAutoscaler, served in two versions and stored as v2.

use meta::{Gvk, Object, Status};
use registry::Strategy;
use serde_json::json;

pub struct HorizontalPodAutoscaler;

impl Strategy for HorizontalPodAutoscaler {
    fn default(&self, o: &mut Object) {
        if o.api_version() == "autoscaling/v2" && o.at(&["spec", "metrics"]).is_none() {
            let cpu = json!([{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 80}}}]);
            o.set(&["spec", "metrics"], cpu);
        }
    }

    fn convert(&self, mut o: Object, to: &Gvk) -> Result<Object, Status> {
        if to.version == "v2" {
            if let Some(n) = o.remove(&["spec", "targetCPUUtilizationPercentage"]) {
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
