//! Conversion of HorizontalPodAutoscaler (`pkg/apis/autoscaling/v1/conversion.go`). `v1` has a field for CPU only, and
//! keeps everything else in annotations.

use meta::{Map, Object, Value};
use serde_json::json;

/// Default target CPU utilization, in percent.
pub const TARGET: i64 = 80;

pub const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

const PERCENTAGE: [&str; 2] = ["spec", "targetCPUUtilizationPercentage"];
const CURRENT_PERCENTAGE: [&str; 2] = ["status", "currentCPUUtilizationPercentage"];

/// A field of `v1`, its path in `v2`, and whether it is always written.
type Part = (&'static str, &'static [&'static str], bool);

/// A metric source: its name, and its fields in spec and status, in the order written.
struct Source {
    name: &'static str,
    spec: &'static [Part],
    status: &'static [Part],
}

const ABOUT: Part = ("target", &["describedObject"], true);
const METRIC: Part = ("metricName", &["metric", "name"], true);
const SELECTOR: Part = ("selector", &["metric", "selector"], false);
const NAME: Part = ("name", &["name"], true);
const CONTAINER: Part = ("container", &["container"], true);
const UTILIZATION: Part = ("targetAverageUtilization", &["target", "averageUtilization"], false);
const AVERAGE: Part = ("targetAverageValue", &["target", "averageValue"], false);
const CURRENT_UTILIZATION: Part = ("currentAverageUtilization", &["current", "averageUtilization"], false);
const CURRENT_AVERAGE: Part = ("currentAverageValue", &["current", "averageValue"], true);

const SOURCES: [Source; 5] = [
    Source {
        name: "object",
        spec: &[
            ABOUT,
            METRIC,
            ("targetValue", &["target", "value"], true),
            SELECTOR,
            ("averageValue", &["target", "averageValue"], false),
        ],
        status: &[
            ABOUT,
            METRIC,
            ("currentValue", &["current", "value"], true),
            SELECTOR,
            ("averageValue", &["current", "averageValue"], false),
        ],
    },
    Source {
        name: "pods",
        spec: &[METRIC, ("targetAverageValue", &["target", "averageValue"], true), SELECTOR],
        status: &[METRIC, CURRENT_AVERAGE, SELECTOR],
    },
    Source {
        name: "resource",
        spec: &[NAME, UTILIZATION, AVERAGE],
        status: &[NAME, CURRENT_UTILIZATION, CURRENT_AVERAGE],
    },
    Source {
        name: "containerResource",
        spec: &[NAME, UTILIZATION, AVERAGE, CONTAINER],
        status: &[NAME, CURRENT_UTILIZATION, CURRENT_AVERAGE, CONTAINER],
    },
    Source {
        name: "external",
        spec: &[
            METRIC,
            ("metricSelector", &["metric", "selector"], false),
            ("targetValue", &["target", "value"], false),
            AVERAGE,
        ],
        status: &[
            METRIC,
            ("metricSelector", &["metric", "selector"], false),
            ("currentValue", &["current", "value"], true),
            ("currentAverageValue", &["current", "averageValue"], false),
        ],
    },
];

/// Whether a metric is in the spec or the status.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Spec,
    Status,
}

impl Source {
    fn parts(&self, section: Section) -> &'static [Part] {
        if section == Section::Spec { self.spec } else { self.status }
    }
}

fn items(v: Option<Value>) -> Vec<Value> {
    match v {
        Some(Value::Array(a)) => a,
        _ => Vec::new(),
    }
}

fn is_cpu(m: &Value) -> bool {
    m["type"] == "Resource" && m["resource"]["name"] == "cpu"
}

/// Converts to `v1`. Existing conversion annotations are dropped.
pub fn to_v1(o: &mut Object) {
    remove_annotations(o);
    let metrics = items(o.remove(&["spec", "metrics"]));
    let utilization = |m: &Value| m["resource"]["target"]["averageUtilization"].as_i64().filter(|_| is_cpu(m));
    let own = metrics.iter().position(|m| utilization(m).is_some());
    if let Some(n) = own.and_then(|i| utilization(&metrics[i])) {
        o.set(&PERCENTAGE, n);
    }
    let others = metrics.iter().enumerate().filter(|(i, _)| Some(*i) != own).map(|(_, m)| m);
    annotate(o, METRICS, others.map(|m| metric_to_v1(m, Section::Spec)).collect());
    let current = items(o.remove(&["status", "currentMetrics"]));
    let now = |m: &Value| m["resource"]["current"]["averageUtilization"].as_i64();
    if let Some(n) = current.iter().filter(|m| is_cpu(m)).filter_map(now).next_back() {
        o.set(&CURRENT_PERCENTAGE, n);
    }
    annotate(o, CURRENT, current.iter().map(|m| metric_to_v1(m, Section::Status)).collect());
    let conditions = items(o.remove(&["status", "conditions"]));
    let condition = |c: &Value| {
        let keys = ["type", "status", "lastTransitionTime", "reason", "message"];
        format_members(keys.map(|k| (k, c.get(k).cloned())))
    };
    annotate(o, CONDITIONS, conditions.iter().map(condition).collect());
    if let Some(behavior) = o.remove(&["spec", "behavior"]).filter(|b| !b.is_null()) {
        o.set_annotation(BEHAVIOR, &capitalized(&behavior).to_string());
    }
}

/// Converts to `v2`.
pub fn to_v2(o: &mut Object) {
    let listed = |o: &Object, key: &str| items(o.annotation(key).and_then(|text| serde_json::from_str(text).ok()));
    let mut metrics: Vec<Value> = listed(o, METRICS).iter().filter_map(|m| metric_to_v2(m, Section::Spec)).collect();
    if let Some(n) = o.remove(&PERCENTAGE).filter(|n| !n.is_null()) {
        metrics.push(cpu(n));
    }
    if metrics.is_empty() {
        metrics.push(cpu(TARGET.into()));
    }
    o.set(&["spec", "metrics"], metrics);
    let mut current: Vec<Value> = listed(o, CURRENT).iter().filter_map(|m| metric_to_v2(m, Section::Status)).collect();
    if let Some(n) = o.remove(&CURRENT_PERCENTAGE).filter(|n| !n.is_null() && current.is_empty()) {
        let resource = json!({"name": "cpu", "current": {"averageUtilization": n}});
        current.push(json!({"type": "Resource", "resource": resource}));
    }
    if !current.is_empty() {
        o.set(&["status", "currentMetrics"], current);
    }
    let conditions = listed(o, CONDITIONS);
    if !conditions.is_empty() {
        o.set(&["status", "conditions"], conditions);
    }
    let behavior = o.annotation(BEHAVIOR).and_then(|text| serde_json::from_str::<Value>(text).ok());
    if let Some(b) = behavior.filter(Value::is_object) {
        o.set(&["spec", "behavior"], small(b));
    }
    remove_annotations(o);
}

/// Whether a `v1` object has a metric, in its field or in an annotation.
pub fn has_metrics(o: &Object) -> bool {
    let others = o.annotation(METRICS).and_then(|text| serde_json::from_str::<Value>(text).ok());
    o.at(&PERCENTAGE).is_some_and(|n| !n.is_null()) || !items(others).is_empty()
}

pub fn cpu(percent: Value) -> Value {
    let target = json!({"type": "Utilization", "averageUtilization": percent});
    json!({"type": "Resource", "resource": {"name": "cpu", "target": target}})
}

fn remove_annotations(o: &mut Object) {
    for key in [METRICS, CURRENT, CONDITIONS, BEHAVIOR] {
        if o.annotation(key).is_some() {
            o.remove(&["metadata", "annotations", key]);
        }
    }
    if o.at(&["metadata", "annotations"]).and_then(Value::as_object).is_some_and(Map::is_empty) {
        o.remove(&["metadata", "annotations"]);
    }
}

/// Writes a list of JSON objects to an annotation.
fn annotate(o: &mut Object, key: &str, list: Vec<String>) {
    if !list.is_empty() {
        o.set_annotation(key, &format!("[{}]", list.join(",")));
    }
}

/// Formats an object with its members in this order.
fn format_members<const N: usize>(members: [(&str, Option<Value>); N]) -> String {
    let known = members.into_iter().filter_map(|(k, v)| Some(format!("{}:{}", Value::from(k), v?)));
    format!("{{{}}}", known.collect::<Vec<_>>().join(","))
}

fn at<'v>(v: &'v Value, path: &[&str]) -> Option<&'v Value> {
    path.iter().try_fold(v, |v, k| v.get(*k)).filter(|v| !v.is_null())
}

fn metric_to_v1(m: &Value, section: Section) -> String {
    let kind = format_members([("type", m.get("type").cloned())]);
    let Some(source) = SOURCES.iter().find(|s| m.get(s.name).is_some_and(Value::is_object)) else { return kind };
    let part = |(name, path, always): &Part| {
        let v = at(&m[source.name], path).cloned().or_else(|| always.then(|| zero_value(name)))?;
        Some(match v {
            Value::Object(o) if *name == "target" => {
                let keys = ["kind", "name", "apiVersion"];
                format!("\"target\":{}", format_members(keys.map(|k| (k, o.get(k).cloned()))))
            }
            v => format!("{}:{v}", Value::from(*name)),
        })
    };
    let parts: Vec<String> = source.parts(section).iter().filter_map(part).collect();
    format!("{},\"{}\":{{{}}}}}", kind.trim_end_matches('}'), source.name, parts.join(","))
}

/// Returns the zero value of an absent field that is always written.
fn zero_value(name: &str) -> Value {
    if name.ends_with("Value") { "0".into() } else { "".into() }
}

fn metric_to_v2(m: &Value, section: Section) -> Option<Value> {
    let source = SOURCES.iter().find(|s| m.get(s.name).is_some_and(Value::is_object))?;
    let mut inner = Object(Map::new());
    for (name, path, _) in source.parts(section) {
        // A zero amount stands for an absent one beside an average.
        let beside = matches!(*name, "targetValue" | "currentValue") && m[source.name].get("averageValue").is_some();
        match at(&m[source.name], &[name]) {
            Some(v) if !(beside && *v == "0") => inner.set(path, v.clone()),
            _ => {}
        }
    }
    if section == Section::Spec {
        let has = |k: &str| inner.at(&["target", k]).is_some();
        let kind = match source.name {
            "pods" => "AverageValue",
            "object" if has("averageValue") => "AverageValue",
            "resource" | "containerResource" if has("averageUtilization") => "Utilization",
            "external" | "object" if has("value") => "Value",
            _ => "AverageValue",
        };
        inner.set(&["target", "type"], kind);
    }
    Some(json!({"type": m["type"], source.name: inner.into_value()}))
}

/// Returns a value with Go's field names: upstream writes its internal type here.
fn capitalized(v: &Value) -> Value {
    renamed(v.clone(), &|k| k[..1].to_uppercase() + &k[1..])
}

fn small(v: Value) -> Value {
    renamed(v, &|k| k[..1].to_lowercase() + &k[1..])
}

fn renamed(v: Value, name: &impl Fn(&str) -> String) -> Value {
    match v {
        Value::Object(m) => {
            let one =
                |(k, v): (String, Value)| (if k.is_ascii() && !k.is_empty() { name(&k) } else { k }, renamed(v, name));
            Value::Object(m.into_iter().map(one).collect())
        }
        Value::Array(a) => Value::Array(a.into_iter().map(|v| renamed(v, name)).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_through_v1() {
        let selector = json!({"matchLabels": {"a": "b"}});
        let about = json!({"kind": "Ingress", "name": "i", "apiVersion": "networking.k8s.io/v1"});
        let o = json!({"metadata": {"name": "h", "annotations": {"kept": "yes"}}, "spec": {
            "maxReplicas": 3,
            "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}], "selectPolicy": "Max"}},
            "metrics": [
                {"type": "Pods", "pods": {"metric": {"name": "q", "selector": selector}, "target": {"type": "AverageValue", "averageValue": "10"}}},
                {"type": "Object", "object": {"describedObject": about, "metric": {"name": "r"}, "target": {"type": "AverageValue", "averageValue": "2"}}},
                {"type": "Object", "object": {"describedObject": about, "metric": {"name": "s"}, "target": {"type": "Value", "value": "2k"}}},
                {"type": "External", "external": {"metric": {"name": "e"}, "target": {"type": "Value", "value": "1"}}},
                {"type": "ContainerResource", "containerResource": {"name": "memory", "container": "c", "target": {"type": "Utilization", "averageUtilization": 5}}},
                {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "100m"}}},
                cpu(60.into()),
            ]}, "status": {
            "conditions": [{"type": "AbleToScale", "status": "True", "reason": "r", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 7, "averageValue": "7m"}}}]}});
        let mut there = Object::from_value(o.clone()).unwrap();
        to_v1(&mut there);
        assert_eq!((there.int_at(&PERCENTAGE), there.int_at(&CURRENT_PERCENTAGE)), (Some(60), Some(7)));
        assert!(there.at(&["spec", "metrics"]).is_none() && there.at(&["spec", "behavior"]).is_none());
        let metrics = there.annotation(METRICS).unwrap();
        let first = r#"[{"type":"Pods","pods":{"metricName":"q","targetAverageValue":"10","selector":{"matchLabels":{"a":"b"}}}},{"type":"Object","object":{"target":{"kind":"Ingress","name":"i","apiVersion":"networking.k8s.io/v1"},"metricName":"r","targetValue":"0","averageValue":"2"}}"#;
        assert!(metrics.starts_with(first), "{metrics}");
        let current = there.annotation(CURRENT).unwrap();
        assert_eq!(
            current,
            r#"[{"type":"Resource","resource":{"name":"cpu","currentAverageUtilization":7,"currentAverageValue":"7m"}}]"#
        );
        assert!(there.annotation(BEHAVIOR).unwrap().starts_with(r#"{"ScaleUp":{"Policies":[{"PeriodSeconds":15,"#));
        to_v2(&mut there);
        assert_eq!(there.into_value(), o);
    }

    #[test]
    fn defaults_to_cpu_utilization() {
        let mut o =
            Object::from_value(json!({"metadata": {"annotations": {METRICS: "nonsense"}}, "spec": {}})).unwrap();
        assert!(!has_metrics(&o));
        to_v2(&mut o);
        assert_eq!(o.into_value(), json!({"metadata": {}, "spec": {"metrics": [cpu(TARGET.into())]}}));
    }
}
