//! HorizontalPodAutoscaler, served in two versions and stored as v2.

use super::{rules, versions};
use crate::Config;
use crate::replicas::not_negative;
use crate::table::Row;
use kinds::columns::{Cell, display, list_at};
use meta::field::ErrorList;
use meta::{FieldPath, Gvk, Object, Status, Value};
use registry::{CreateStrategy, ObjectConvertor, TableConvertor, UpdateStrategy};
use serde_json::json;

pub fn row(_: &Config) -> Row {
    Row::stored(HorizontalPodAutoscaler)
}

pub struct HorizontalPodAutoscaler;

impl HorizontalPodAutoscaler {
    /// Returns the spec in `v2`, whose rules apply to both versions.
    fn v2_spec(&self, o: &Object) -> Value {
        let v2_spec = Gvk::new("autoscaling", "v2", o.kind());
        let converted = self.convert(o.clone(), &v2_spec).ok();
        converted.and_then(|o| o.get("spec").cloned()).unwrap_or_default()
    }
}

impl CreateStrategy for HorizontalPodAutoscaler {
    fn validate_since(&self, o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
        if old.is_some() {
            return;
        }
        rules::validate(&self.v2_spec(o), None, &FieldPath::new("spec"), errors);
    }

    fn default(&self, o: &mut Object) {
        if o.api_version() == "autoscaling/v2" && o.at(&["spec", "metrics"]).is_none() {
            o.set(&["spec", "metrics"], vec![versions::cpu(versions::TARGET.into())]);
        }
        if o.api_version() == "autoscaling/v1" && !versions::has_metrics(o) {
            o.set(&["spec", "targetCPUUtilizationPercentage"], versions::TARGET);
        }
        if o.at(&["spec", "behavior"]).is_some() {
            default_behavior(o);
        }
    }
}

impl UpdateStrategy for HorizontalPodAutoscaler {
    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        rules::validate(&self.v2_spec(o), Some(&self.v2_spec(old)), &FieldPath::new("spec"), errors);
    }

    fn validate_part(&self, subresource: &str, o: &Object, _old: &Object, errors: &mut ErrorList) {
        if subresource == "status" {
            not_negative(o, &["currentReplicas", "desiredReplicas"], errors);
        }
    }
}

impl TableConvertor for HorizontalPodAutoscaler {
    fn cell(&self, cell: &Cell<'_>) -> Option<Value> {
        cells(cell)
    }
}

impl ObjectConvertor for HorizontalPodAutoscaler {
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

registry::strategy!(HorizontalPodAutoscaler: CreateStrategy, UpdateStrategy, TableConvertor, ObjectConvertor);

/// Sets the defaults of a specified behavior.
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

/// Evaluates the table cell functions of the kind.
fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "hpaReference" => {
            let r = o.at(&["spec", "scaleTargetRef"]).cloned().unwrap_or_default();
            format!("{}/{}", display(&r["kind"]), display(&r["name"])).into()
        }
        "hpaTargets" => hpa_targets(o).into(),
        _ => return None,
    })
}

fn hpa_targets(o: &Object) -> String {
    let specs = list_at(o, &["spec", "metrics"]);
    if specs.is_empty() {
        return "<none>".into();
    }
    let current = list_at(o, &["status", "currentMetrics"]);
    let mut all = Vec::new();
    for (i, m) in specs.iter().enumerate() {
        let (ty, key) = match m["type"].as_str().unwrap_or_default() {
            "Resource" => (display(&m["resource"]["name"]), "resource"),
            "ContainerResource" => (display(&m["containerResource"]["name"]), "containerResource"),
            "Pods" => (String::new(), "pods"),
            "Object" => (String::new(), "object"),
            _ => (String::new(), "external"),
        };
        let target = &m[key]["target"];
        let now = current.get(i).map_or(&Value::Null, |c| &c[key]["current"]);
        let prefix = if ty.is_empty() { ty } else { format!("{ty}: ") };
        if !target["averageUtilization"].is_null() {
            let have = now["averageUtilization"].as_i64().map_or("<unknown>".into(), |n| format!("{n}%"));
            all.push(format!("{prefix}{have}/{}%", display(&target["averageUtilization"])));
        } else {
            let k = if target["averageValue"].is_null() { "value" } else { "averageValue" };
            let have = if now[k].is_null() { "<unknown>".into() } else { display(&now[k]) };
            let avg = if k == "averageValue" && key != "pods" && key != "resource" && key != "containerResource" {
                " (avg)"
            } else {
                ""
            };
            all.push(format!("{prefix}{have}/{}{avg}", display(&target[k])));
        }
    }
    match all.len() {
        n if n > 2 => format!("{} + {} more...", all[..2].join(", "), n - 2),
        _ => all.join(", "),
    }
}
