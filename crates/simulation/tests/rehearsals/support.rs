//! Copies and scenarios of tests.

use codec::yaml;
use meta::Object;
use serde_json::{Value, json};
use simulation::copy::Source;
use simulation::rehearsal::{Error, Options};
use simulation::{Copy, Rehearsal, Scenario, rehearse};

/// A copy of manifests, each named by its number.
pub fn copy(manifests: &str) -> Copy {
    let documents = yaml::parse(manifests).unwrap();
    let source = |(i, v): (usize, Value)| Source {
        object: Object::from_value(v).unwrap(),
        origin: format!("a.yaml, document {}", i + 1),
    };
    Copy {
        sources: documents.into_iter().enumerate().map(source).collect(),
        namespace: "default".into(),
        ..Copy::default()
    }
}

/// A deployment with a service and the spec of a budget, if it has one.
pub fn web(replicas: u32, strategy: Value, budget: Value) -> Copy {
    let labels = json!({"app": "web"});
    let mut deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": labels}, "strategy": strategy, "template": {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "c", "image": "web:1", "resources": {"requests": {"cpu": "1", "memory": "128Mi"}}}]}}}});
    if strategy.is_null() {
        deployment["spec"].as_object_mut().unwrap().remove("strategy");
    }
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"selector": labels, "ports": [{"port": 80}]}});
    let mut objects = vec![deployment, service];
    if !budget.is_null() {
        let mut spec = json!({"selector": {"matchLabels": labels}});
        spec.as_object_mut().unwrap().extend(budget.as_object().unwrap().clone());
        objects.push(json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}, "spec": spec}));
    }
    let source = |v| Source { object: Object::from_value(v).unwrap(), origin: "web".into() };
    Copy { sources: objects.into_iter().map(source).collect(), namespace: "default".into(), ..Copy::default() }
}

/// Rehearses a scenario in YAML.
pub fn run(copy: &Copy, scenario: &str) -> Rehearsal {
    try_run(copy, scenario).unwrap_or_else(|e| panic!("{e}"))
}

pub fn try_run(copy: &Copy, scenario: &str) -> Result<Rehearsal, Error> {
    rehearse(Scenario::decode(scenario).unwrap(), copy, &Options::default())
}
