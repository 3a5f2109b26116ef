//! What admission webhooks refuse because they do not answer.

use super::backend::{self, Port};
use super::{Facts, Finding, Query, Rule, Topic, finding};
use crate::commands::why::fields::{list, text};
use crate::commands::why::finding::{State, plural};
use meta::Value;

const RULES: &[Rule] = &[
    Rule {
        reason: "WebhookUnavailable",
        state: State::NotReady,
        summary: "has webhooks that do not answer",
        find: unavailable,
    },
    Rule {
        reason: "InvalidBundle",
        state: State::NotReady,
        summary: "has webhooks that are not trusted",
        find: bundles,
    },
    Rule {
        reason: "MatchesItself",
        state: State::Healthy,
        summary: "is healthy, and can keep itself from starting again",
        find: itself,
    },
];

pub(super) const MUTATING: Topic =
    Topic { group: "admissionregistration.k8s.io", kind: "MutatingWebhookConfiguration", reads, rules: RULES, healthy };

pub(super) const VALIDATING: Topic = Topic { kind: "ValidatingWebhookConfiguration", ..MUTATING };

fn webhooks(object: &Value) -> &[Value] {
    list(object, "/webhooks")
}

fn reads(object: &Value) -> Vec<Query> {
    let services = webhooks(object).iter().filter_map(|w| backend::of_client_config(&w["clientConfig"]));
    services.flat_map(|(namespace, name, _)| backend::reads(namespace, name)).collect()
}

/// What a webhook that does not answer does to requests.
fn effect(webhook: &Value) -> String {
    let rules: Vec<String> = list(webhook, "/rules")
        .iter()
        .map(|rule| {
            let all = |field: &str| list(rule, field).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
            format!("{} of {}", all("/operations").to_lowercase(), all("/resources"))
        })
        .collect();
    match text(webhook, "/failurePolicy") {
        "Ignore" => format!("these requests go on without it (failurePolicy Ignore): {}", rules.join("; ")),
        _ => format!("these requests are refused (failurePolicy Fail): {}", rules.join("; ")),
    }
}

fn unavailable(facts: &Facts<'_>) -> Vec<Finding> {
    let problem = |webhook: &Value| {
        let (namespace, name, port) = backend::of_client_config(&webhook["clientConfig"])?;
        let problem = backend::problem(facts, namespace, name, &Port::Number(port))?;
        let message = format!("webhook {}: {}", text(webhook, "/name"), problem.message);
        Some(Finding { message, ..problem }.because([Finding::new("Effect", effect(webhook))]))
    };
    webhooks(facts.object).iter().filter_map(problem).collect()
}

fn bundles(facts: &Facts<'_>) -> Vec<Finding> {
    let problem = |webhook: &Value| {
        let why = backend::bundle_problem(text(webhook, "/clientConfig/caBundle"), facts.now)?;
        let message = format!("webhook {}: {why}", text(webhook, "/name"));
        Some(finding(message).because([Finding::new("Effect", effect(webhook))]))
    };
    webhooks(facts.object).iter().filter_map(problem).collect()
}

/// Webhooks that have to admit the pods behind themselves.
fn itself(facts: &Facts<'_>) -> Vec<Finding> {
    let problem = |webhook: &Value| {
        let (namespace, ..) = backend::of_client_config(&webhook["clientConfig"])?;
        let named = |values: &[Value], name: &str| values.iter().any(|v| v == name || v == "*" || v == "*/*");
        let matches_pods = list(webhook, "/rules").iter().any(|rule| {
            named(list(rule, "/resources"), "pods")
                && named(list(rule, "/operations"), "CREATE")
                && list(rule, "/apiGroups").iter().any(|g| g == "" || g == "*")
        });
        let selects_all = ["/namespaceSelector", "/objectSelector"]
            .iter()
            .all(|s| webhook.pointer(s).is_none_or(|s| s.as_object().is_none_or(serde_json::Map::is_empty)));
        let fails = text(webhook, "/failurePolicy") != "Ignore" && list(webhook, "/matchConditions").is_empty();
        let message = format!(
            "webhook {} must admit every new pod, its own in {namespace} too: once none of these run, none can be created",
            text(webhook, "/name")
        );
        (matches_pods && selects_all && fails)
            .then(|| finding(message).suggest(format!("exclude the namespace {namespace} with its namespaceSelector")))
    };
    webhooks(facts.object).iter().filter_map(problem).collect()
}

fn healthy(object: &Value) -> String {
    let count = webhooks(object).len();
    format!("is healthy: {count} webhook{}", plural(count))
}
