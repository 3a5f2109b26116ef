//! The examples of docs/simulation.md.

use crate::support::*;
use serde_json::{Value, json};
use simulation::{Scenario, Source, Verdict};

/// Clauses: G05.docs
#[test]
fn every_example_of_the_documentation_runs() {
    let page = include_str!("../../../../docs/simulation.md");
    let examples: Vec<&str> = page.split("```yaml\n").skip(1).filter_map(|part| part.split("```").next()).collect();
    assert_eq!(examples.len(), 4);
    let mut copy = web(5, Value::Null, json!({"maxUnavailable": 1}));
    let cache = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "cache"}, "spec": {"serviceName": "cache", "replicas": 2,
        "selector": {"matchLabels": {"app": "cache"}}, "template": {"metadata": {"labels": {"app": "cache"}}, "spec": {"containers": [{"name": "c", "image": "x/db:1"}]}}}});
    copy.sources.push(Source { object: meta::Object::from_value(cache).unwrap(), origin: "cache".into() });
    for example in examples {
        let r = run(&copy, example);
        assert_eq!(r.verdict, Verdict::Held, "{example}\n{}", r.to_text());
    }
}

/// Clauses: G05.docs
#[test]
fn the_documentation_names_every_field_of_the_output_and_every_step() {
    let page = include_str!("../../../../docs/simulation.md");
    let r = run(&web(1, Value::Null, Value::Null), "steps: [{drain: {node: node-1}}]");
    for field in r.to_json().as_object().unwrap().keys() {
        let named = page.contains(&format!("`{field}`")) || page.contains(&format!("`{field}[]`"));
        assert!(named, "{field}");
    }
    let error = Scenario::decode("steps: [{unknown: 1}]").unwrap_err().to_string();
    let steps = error.split("expected one of ").nth(1).unwrap();
    for step in steps.split(", ").map(|s| s.trim().trim_matches('`')) {
        let shown = page.contains(&format!("`{step}")) || page.contains(&format!("{step}: "));
        // Faults of components are for tests of the project.
        assert!(shown || matches!(step, "heal" | "restart"), "{step}");
    }
}
