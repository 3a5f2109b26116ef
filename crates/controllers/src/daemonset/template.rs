//! The pods of a DaemonSet, and on which nodes they may run (upstream `daemonset_util.go`). Pure: data to data.

use crate::history::HASH_LABEL;
use crate::pod_control::pod_from_template;
use meta::{Object, Value};
use placement::{EXCLUDING, NodeAffinity, Taint, Toleration, untolerated};
use serde::Deserialize;
use serde_json::json;

pub const GENERATION_LABEL: &str = "pod-template-generation";
const GENERATION_ANNOTATION: &str = "deprecated.daemonset.template.generation";

/// Taints that every daemon pod tolerates, whatever its template says.
const TOLERATED: &[(&str, &str)] = &[
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// The same for pods in the network of the node.
const TOLERATED_ON_HOST_NETWORK: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// The tolerations of a pod template and those that daemon pods have in addition.
fn tolerations(template: &Value) -> Vec<Value> {
    let mut all = template["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    let on_host = template["spec"]["hostNetwork"] == true;
    for (key, effect) in TOLERATED.iter().chain(on_host.then_some(&TOLERATED_ON_HOST_NETWORK)) {
        let new = json!({"key": key, "operator": "Exists", "effect": effect});
        let same = |t: &Value| {
            ["key", "effect"].iter().all(|k| t[*k].as_str().unwrap_or_default() == new[*k])
                && t["operator"] == new["operator"]
                && t["value"].as_str().unwrap_or_default().is_empty()
        };
        match all.iter_mut().find(|t| same(t)) {
            // Without a limit of time.
            Some(held) => *held = new,
            None => all.push(new),
        }
    }
    all
}

/// The generation of the template in the deprecated annotation, if it is a number.
fn generation(set: &Object) -> Option<i64> {
    set.annotation(GENERATION_ANNOTATION)?.parse().ok()
}

/// Where the pods of a set may run.
#[derive(Debug)]
pub struct Eligibility {
    node_name: String,
    affinity: NodeAffinity,
    tolerations: Vec<Toleration>,
}

/// Whether a pod of a set belongs on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eligible {
    Yes,
    /// One that is there may stay, and none is created: a `NoSchedule` taint is not tolerated.
    MayStay,
    No,
}

impl Eligibility {
    pub fn read(set: &Object) -> Self {
        let none = Value::Null;
        let template = set.at(&["spec", "template"]).unwrap_or(&none);
        let spec = &template["spec"];
        Self {
            node_name: spec["nodeName"].as_str().unwrap_or_default().into(),
            affinity: NodeAffinity::read(&spec["nodeSelector"], &spec["affinity"]["nodeAffinity"]),
            tolerations: tolerations(template).iter().filter_map(|t| Toleration::deserialize(t).ok()).collect(),
        }
    }

    /// Whether a pod belongs on a node with these labels and taints.
    pub fn check<'a>(&self, node: &'a str, label: impl Fn(&str) -> Option<&'a str>, taints: &[Taint]) -> Eligible {
        if !(self.node_name.is_empty() || self.node_name == node) || !self.affinity.admits(node, label) {
            return Eligible::No;
        }
        if untolerated(taints, EXCLUDING, &self.tolerations).is_none() {
            return Eligible::Yes;
        }
        match untolerated(taints, &["NoExecute"], &self.tolerations) {
            None => Eligible::MayStay,
            Some(_) => Eligible::No,
        }
    }
}

/// Recognizes and makes the pods of a set with its present template.
pub struct Template {
    pod: Object,
    hash: String,
    generation: Option<String>,
}

impl Template {
    /// `hash`: the label of the revision of the present template.
    pub fn new(set: &Object, hash: &str) -> Self {
        let mut template = set.at(&["spec", "template"]).cloned().unwrap_or_default();
        template["spec"]["tolerations"] = tolerations(&template).into();
        let mut pod = pod_from_template(&template, set);
        let generation = generation(set).map(|g| g.to_string());
        if let Some(g) = &generation {
            pod.set_label(GENERATION_LABEL, g);
        }
        pod.set_label(HASH_LABEL, hash);
        Self { pod, hash: hash.into(), generation }
    }

    /// Whether a pod with these labels has the present template.
    pub fn is_of<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        label(HASH_LABEL) == Some(&self.hash)
            || self.generation.is_some() && label(GENERATION_LABEL) == self.generation.as_deref()
    }

    /// The pod for a node, which the scheduler binds.
    pub fn pod(&self, node: &str) -> Object {
        let mut pod = self.pod.clone();
        let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
        let terms = json!([{"matchFields": [field]}]);
        let required = ["spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
        pod.set(&[&required[..], &["nodeSelectorTerms"]].concat(), terms);
        pod
    }
}

/// The node that a pod is for: where it runs, or what its affinity names.
pub fn target_node(pod: &Object) -> Option<&str> {
    if let Some(node) = pod.str_at(&["spec", "nodeName"]).filter(|n| !n.is_empty()) {
        return Some(node);
    }
    let required = ["spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = pod.at(&required)?.get("nodeSelectorTerms")?.as_array()?;
    let fields = terms.iter().filter_map(|t| t["matchFields"].as_array()).flatten();
    let name = fields.into_iter().find(|f| f["key"] == "metadata.name" && f["operator"] == "In")?;
    match name["values"].as_array()?.as_slice() {
        [one] => one.as_str(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(spec: Value) -> Object {
        Object::from_value(json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "log", "namespace": "n", "uid": "u"},
            "spec": {"template": {"metadata": {"labels": {"app": "log"}}, "spec": spec}},
        }))
        .unwrap()
    }

    /// Clauses: C09.tolerations
    #[test]
    fn pods_tolerate_the_conditions_of_nodes() {
        let set_of = |spec: Value| {
            let pod = Template::new(&set(spec), "h").pod("node-1");
            let all = pod.at(&["spec", "tolerations"]).unwrap().as_array().unwrap().clone();
            all.iter().map(|t| format!("{}:{}", t["key"].as_str().unwrap(), t["effect"].as_str().unwrap())).collect()
        };
        let usual: Vec<String> = set_of(json!({}));
        assert_eq!(
            usual,
            [
                "node.kubernetes.io/not-ready:NoExecute",
                "node.kubernetes.io/unreachable:NoExecute",
                "node.kubernetes.io/disk-pressure:NoSchedule",
                "node.kubernetes.io/memory-pressure:NoSchedule",
                "node.kubernetes.io/pid-pressure:NoSchedule",
                "node.kubernetes.io/unschedulable:NoSchedule",
            ]
        );
        let on_host = set_of(json!({"hostNetwork": true}));
        assert_eq!(on_host.last().unwrap(), "node.kubernetes.io/network-unavailable:NoSchedule");
        let limited = json!({"tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists",
            "effect": "NoExecute", "tolerationSeconds": 5}]});
        let pod = Template::new(&set(limited), "h").pod("node-1");
        assert!(pod.at(&["spec", "tolerations"]).unwrap()[0].get("tolerationSeconds").is_none(), "for ever");
    }

    /// Clauses: C09.node-affinity
    #[test]
    fn pods_are_for_one_node() {
        let expression = json!([{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]);
        let affinity = json!({"affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": expression}},
            "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
        }});
        let template = Template::new(&set(affinity), "h");
        let pod = template.pod("node-1");
        assert_eq!(target_node(&pod), Some("node-1"));
        assert!(pod.at(&["spec", "affinity", "podAffinity"]).is_some());
        assert_eq!(pod.generate_name(), "log-");
        assert!(template.is_of(|k| pod.label(k)));
        assert!(!Template::new(&set(json!({})), "other").is_of(|k| pod.label(k)));
        let mut bound = pod.clone();
        bound.set(&["spec", "nodeName"], "node-2");
        assert_eq!(target_node(&bound), Some("node-2"));
        assert_eq!(target_node(&set(json!({}))), None);
        let mut old = set(json!({}));
        old.set_annotation(GENERATION_ANNOTATION, "3");
        assert!(Template::new(&old, "h").is_of(|k| (k == GENERATION_LABEL).then_some("3")));
    }

    #[test]
    fn nodes_are_eligible_by_name_labels_and_taints() {
        let taint = |effect: &str| Taint { key: "k".into(), effect: effect.into(), ..Taint::default() };
        let cordon = Taint { key: "node.kubernetes.io/unschedulable".into(), ..taint("NoSchedule") };
        let selector = json!({"nodeSelector": {"disk": "ssd"}});
        let cases = [
            (json!({}), "x", vec![], Eligible::Yes),
            (json!({}), "x", vec![cordon], Eligible::Yes),
            (json!({}), "x", vec![taint("PreferNoSchedule")], Eligible::Yes),
            (json!({}), "x", vec![taint("NoSchedule")], Eligible::MayStay),
            (json!({}), "x", vec![taint("NoExecute")], Eligible::No),
            (json!({"tolerations": [{"operator": "Exists"}]}), "x", vec![taint("NoExecute")], Eligible::Yes),
            (selector.clone(), "ssd", vec![], Eligible::Yes),
            (selector, "hdd", vec![], Eligible::No),
            (json!({"nodeName": "a"}), "x", vec![], Eligible::Yes),
            (json!({"nodeName": "b"}), "x", vec![], Eligible::No),
        ];
        for (spec, disk, taints, expected) in cases {
            let got = Eligibility::read(&set(spec.clone())).check("a", |k| (k == "disk").then_some(disk), &taints);
            assert_eq!(got, expected, "{spec} {taints:?}");
        }
    }
}
