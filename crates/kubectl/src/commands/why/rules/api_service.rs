//! Why an API that another server serves is not available.

use super::backend::{self, Port};
use super::{Facts, Finding, Query, Rule, Topic, finding};
use crate::commands::why::fields::{condition, text};
use crate::commands::why::finding::State;
use meta::Value;

const SUMMARY: &str = "is not available";

pub(super) const TOPIC: Topic = Topic {
    group: "apiregistration.k8s.io",
    kind: "APIService",
    reads,
    rules: &[
        Rule { reason: "NotAvailable", state: State::NotReady, summary: SUMMARY, find: not_available },
        Rule { reason: "BackendUnavailable", state: State::NotReady, summary: SUMMARY, find: backend },
        Rule { reason: "InvalidBundle", state: State::NotReady, summary: SUMMARY, find: bundle },
    ],
    healthy,
};

fn service(object: &Value) -> Option<(&str, &str, i64)> {
    backend::of_client_config(&object["spec"])
}

fn reads(object: &Value) -> Vec<Query> {
    service(object).map_or_else(Vec::new, |(namespace, name, _)| backend::reads(namespace, name))
}

fn not_available(facts: &Facts<'_>) -> Vec<Finding> {
    let group = format!("{}/{}", text(facts.object, "/spec/group"), text(facts.object, "/spec/version"));
    let message = match condition(facts.object, "Available") {
        Some(c) if c["status"] == "True" => return Vec::new(),
        Some(c) => format!("{}: {}", text(c, "/reason"), text(c, "/message")),
        None if service(facts.object).is_none() => return Vec::new(),
        None => "the API server has not checked it yet".to_owned(),
    };
    let effect = format!("until it answers, {group} has no resources, and namespaces cannot be deleted completely");
    vec![finding(message).because([Finding::new("Effect", effect)])]
}

fn backend(facts: &Facts<'_>) -> Vec<Finding> {
    let problem = service(facts.object)
        .and_then(|(namespace, name, port)| backend::problem(facts, namespace, name, &Port::Number(port)));
    problem.into_iter().collect()
}

fn bundle(facts: &Facts<'_>) -> Vec<Finding> {
    backend::bundle_problem(text(facts.object, "/spec/caBundle"), facts.now).map(finding).into_iter().collect()
}

fn healthy(object: &Value) -> String {
    match service(object) {
        Some((namespace, name, _)) => format!("is healthy: served by the Service {namespace}/{name}"),
        None => "is healthy: served by the API server itself".into(),
    }
}
