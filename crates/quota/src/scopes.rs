//! Quota scopes: restrict which objects a quota counts.

use meta::{Object, Value};
use std::fmt;

/// `ScopedResourceSelectorRequirement`.
pub struct Scope {
    name: String,
    operator: String,
    values: Vec<String>,
}

/// Formats the struct as Go does.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{} {} [{}]}}", self.name, self.operator, self.values.join(" "))
    }
}

pub(crate) fn read_scopes(quota: &Object) -> Vec<Scope> {
    let list = |path: &[&str]| quota.at(path).and_then(Value::as_array).cloned().unwrap_or_default();
    let plain = list(&["spec", "scopes"]).into_iter().map(|s| Scope {
        name: s.as_str().unwrap_or_default().to_owned(),
        operator: "Exists".into(),
        values: Vec::new(),
    });
    let selected = list(&["spec", "scopeSelector", "matchExpressions"]);
    plain.chain(selected.iter().map(Scope::read)).collect()
}

/// Whether a pod has an active deadline (scope `Terminating`).
pub fn is_terminating(pod: &Object) -> bool {
    pod.int_at(&["spec", "activeDeadlineSeconds"]).is_some_and(|s| s >= 0)
}

impl Scope {
    /// Reads a `ScopedResourceSelectorRequirement`. Absent fields are empty.
    pub fn read(e: &Value) -> Self {
        let text = |k: &str| e[k].as_str().unwrap_or_default().to_owned();
        let values = e["values"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        Self { name: text("scopeName"), operator: text("operator"), values: values.collect() }
    }

    /// Name of the scope, such as `BestEffort`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the scope matches an object. Only pods and claims with volume attributes classes have scopes.
    pub fn holds(&self, group: &str, resource: &str, object: &Object) -> bool {
        match (group, resource) {
            ("", "pods") => self.holds_for_pod(object),
            ("", "persistentvolumeclaims") if self.name == "VolumeAttributesClass" => {
                let paths: [&[&str]; 3] = [
                    &["spec", "volumeAttributesClassName"],
                    &["status", "currentVolumeAttributesClassName"],
                    &["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"],
                ];
                let named: Vec<&str> =
                    paths.iter().filter_map(|p| object.str_at(p)).filter(|n| !n.is_empty()).collect();
                if named.is_empty() { self.selects(None) } else { named.iter().any(|n| self.selects(Some(n))) }
            }
            _ => false,
        }
    }

    fn holds_for_pod(&self, pod: &Object) -> bool {
        let terminating = is_terminating(pod);
        match self.name.as_str() {
            "Terminating" => terminating,
            "NotTerminating" => !terminating,
            "BestEffort" => is_best_effort(pod),
            "NotBestEffort" => !is_best_effort(pod),
            "PriorityClass" => self.selects(pod.str_at(&["spec", "priorityClassName"]).filter(|c| !c.is_empty())),
            "CrossNamespacePodAffinity" => crosses_namespaces(pod),
            _ => false,
        }
    }

    fn selects(&self, have: Option<&str>) -> bool {
        let listed = have.is_some_and(|h| self.values.iter().any(|v| v == h));
        match self.operator.as_str() {
            "Exists" => have.is_some(),
            "DoesNotExist" => have.is_none(),
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    }
}

/// Whether a pod is of the class of service `BestEffort`: it neither requests nor limits CPU or memory. Resources of the pod as a whole decide
/// alone if it has some.
fn is_best_effort(pod: &Object) -> bool {
    if let Some(class) = pod.str_at(&["status", "qosClass"]).filter(|c| !c.is_empty()) {
        return class == "BestEffort";
    }
    let has_resources = |r: Option<&Value>| {
        let parts = ["requests", "limits"].iter().filter_map(|p| r?.get(*p)?.as_object());
        let quantity = |v: &Value| v.as_str().and_then(|q| meta::Quantity::parse(q).ok());
        parts
            .flatten()
            .any(|(k, v)| matches!(k.as_str(), "cpu" | "memory") && quantity(v).is_some_and(|q| q.sign() > 0))
    };
    if let Some(whole) = pod.at(&["spec", "resources"]).filter(|r| r.is_object()) {
        return !has_resources(Some(whole));
    }
    let lists = ["containers", "initContainers"].map(|l| pod.at(&["spec", l]).and_then(Value::as_array));
    let mut containers = lists.into_iter().flatten().flatten();
    !containers.any(|c| has_resources(c.get("resources")))
}

fn crosses_namespaces(pod: &Object) -> bool {
    let crosses = |t: &Value| {
        t["namespaces"].as_array().is_some_and(|n| !n.is_empty())
            || t.get("namespaceSelector").is_some_and(|s| !s.is_null())
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let list =
            |field: &str| pod.at(&["spec", "affinity", kind, field]).and_then(Value::as_array).into_iter().flatten();
        list("requiredDuringSchedulingIgnoredDuringExecution").any(crosses)
            || list("preferredDuringSchedulingIgnoredDuringExecution").any(|t| crosses(&t["podAffinityTerm"]))
    })
}
