//! Why a custom resource is not served, or its objects cannot be converted.

use super::backend::{self, Port};
use super::{Facts, Finding, Query, Rule, Topic, finding};
use crate::commands::why::fields::{condition, is_true, list, text};
use crate::commands::why::finding::{State, some};
use meta::Value;

pub(super) const TOPIC: Topic = Topic {
    group: "apiextensions.k8s.io",
    kind: "CustomResourceDefinition",
    reads,
    rules: &[
        Rule { reason: "NotEstablished", state: State::NotReady, summary: "is not served", find: conditions },
        Rule {
            reason: "ConversionUnavailable",
            state: State::NotReady,
            summary: "cannot convert its objects",
            find: conversion,
        },
        Rule {
            reason: "NonStructuralSchema",
            state: State::NotReady,
            summary: "has a schema that is not structural",
            find: schema,
        },
        Rule {
            reason: "NotApproved",
            state: State::NotReady,
            summary: "has a group that is reserved for Kubernetes",
            find: approval,
        },
        Rule { reason: "NotServed", state: State::Paused, summary: "serves no version", find: versions },
        Rule {
            reason: "OldVersionsStored",
            state: State::Healthy,
            summary: "is healthy, and has objects in older versions",
            find: stored,
        },
    ],
    healthy,
};

fn webhook(object: &Value) -> Option<&Value> {
    let is_webhook = text(object, "/spec/conversion/strategy") == "Webhook";
    object.pointer("/spec/conversion/webhook/clientConfig").filter(|_| is_webhook)
}

fn reads(object: &Value) -> Vec<Query> {
    let service = webhook(object).and_then(backend::of_client_config);
    service.map_or_else(Vec::new, |(namespace, name, _)| backend::reads(namespace, name))
}

fn of_condition(facts: &Facts<'_>, kind: &str, bad: &str) -> Option<Finding> {
    let c = condition(facts.object, kind).filter(|c| c["status"] == bad)?;
    Some(finding(format!("{kind} is {bad}: {}: {}", text(c, "/reason"), text(c, "/message"))))
}

fn conditions(facts: &Facts<'_>) -> Vec<Finding> {
    if condition(facts.object, "Established").is_none() {
        return vec![finding("the API server has not established it yet")];
    }
    ["NamesAccepted", "Established"].iter().filter_map(|kind| of_condition(facts, kind, "False")).collect()
}

fn conversion(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(config) = webhook(facts.object) else { return Vec::new() };
    let service = backend::of_client_config(config)
        .and_then(|(namespace, name, port)| backend::problem(facts, namespace, name, &Port::Number(port)));
    let bundle = backend::bundle_problem(text(config, "/caBundle"), facts.now).map(finding);
    let say = |f: Finding| Finding { message: format!("its conversion webhook: {}", f.message), ..f };
    service.into_iter().chain(bundle).map(say).collect()
}

fn schema(facts: &Facts<'_>) -> Vec<Finding> {
    of_condition(facts, "NonStructuralSchema", "True").into_iter().collect()
}

fn approval(facts: &Facts<'_>) -> Vec<Finding> {
    of_condition(facts, "KubernetesAPIApprovalPolicyConformant", "False").into_iter().collect()
}

fn versions(facts: &Facts<'_>) -> Vec<Finding> {
    let versions = list(facts.object, "/spec/versions");
    match versions.iter().any(|v| is_true(v, "/served")) {
        true => Vec::new(),
        false => vec![finding("served is false for all of its versions")],
    }
}

fn stored(facts: &Facts<'_>) -> Vec<Finding> {
    let versions = list(facts.object, "/spec/versions");
    let storage = versions.iter().find(|v| is_true(v, "/storage")).map_or("", |v| text(v, "/name"));
    let stored = list(facts.object, "/status/storedVersions").iter().filter_map(Value::as_str);
    let older: Vec<String> = stored.filter(|v| *v != storage).map(str::to_owned).collect();
    match older.is_empty() {
        true => Vec::new(),
        false => vec![finding(format!(
            "objects may still be stored in {}: these versions cannot be removed before all objects were written again as {storage} and status.storedVersions names it alone",
            some(&older)
        ))],
    }
}

fn healthy(object: &Value) -> String {
    let served = list(object, "/spec/versions").iter().filter(|v| is_true(v, "/served"));
    let served: Vec<&str> = served.map(|v| text(v, "/name")).collect();
    format!("is healthy: serves {} as {}", text(object, "/spec/names/kind"), served.join(", "))
}
