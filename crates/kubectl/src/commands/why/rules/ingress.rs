//! Why an ingress serves nothing.

use super::backend::{self, Port};
use super::{Facts, Finding, Query, Rule, Topic, finding};
use crate::commands::why::fields::{list, name, namespace, text};
use crate::commands::why::finding::{ObjectName, State, plural};
use crate::commands::why::reader::Read;
use meta::Value;

const NETWORKING: &str = "networking.k8s.io/v1";
/// The annotation that older ingresses have in place of a class.
const ANNOTATION: &str = "/metadata/annotations/kubernetes.io~1ingress.class";
const DEFAULT: &str = "/metadata/annotations/ingressclass.kubernetes.io~1is-default-class";

pub(super) const TOPIC: Topic = Topic {
    group: "networking.k8s.io",
    kind: "Ingress",
    reads,
    rules: &[
        Rule { reason: "ClassNotFound", state: State::NotReady, summary: "is served by no controller", find: class },
        Rule { reason: "NoAddress", state: State::Pending, summary: "has no address", find: address },
        Rule {
            reason: "BackendUnavailable",
            state: State::NotReady,
            summary: "has backends that cannot answer",
            find: backends,
        },
        Rule { reason: "SecretNotFound", state: State::NotReady, summary: "lacks certificates", find: secrets },
    ],
    healthy,
};

fn reads(ingress: &Value) -> Vec<Query> {
    let ns = namespace(ingress);
    let mut all = vec![Query::list(NETWORKING, "", "ingressclasses")];
    all.extend(services(ingress).into_iter().flat_map(|(_, service, _)| backend::reads(ns, service)));
    all.extend(
        list(ingress, "/spec/tls")
            .iter()
            .map(|t| text(t, "/secretName"))
            .filter(|s| !s.is_empty())
            .map(|s| Query::get("v1", ns, "secrets", s)),
    );
    all
}

/// The services of an ingress: the host and path that lead to it, its name and port.
fn services(ingress: &Value) -> Vec<(String, &str, Port<'_>)> {
    let default = ingress.pointer("/spec/defaultBackend").map(|b| ("the default backend".to_owned(), b));
    let paths = list(ingress, "/spec/rules").iter().flat_map(|rule| {
        let host = Some(text(rule, "/host")).filter(|h| !h.is_empty()).unwrap_or("*");
        list(rule, "/http/paths").iter().map(move |path| (format!("{host}{}", text(path, "/path")), &path["backend"]))
    });
    let mut all = Vec::new();
    for (from, backend) in default.into_iter().chain(paths) {
        let Some(service) = backend.get("service").filter(|s| s.is_object()) else { continue };
        let port = match (text(service, "/port/name"), service["port"]["number"].as_i64()) {
            ("", Some(number)) => Port::Number(number),
            ("", None) => Port::Any,
            (name, _) => Port::Name(name),
        };
        all.push((from, text(service, "/name"), port));
    }
    all
}

/// The name of the class, if the ingress has one.
fn class_name(ingress: &Value) -> &str {
    text(ingress, "/spec/ingressClassName")
}

/// The class of the ingress among those that exist; without a name the default one.
fn class_of<'a>(ingress: &Value, classes: &'a [Value]) -> Option<&'a Value> {
    match class_name(ingress) {
        "" => classes.iter().find(|c| text(c, DEFAULT) == "true"),
        wanted => classes.iter().find(|c| name(c) == wanted),
    }
}

fn class(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(classes) = facts.list(NETWORKING, "", "ingressclasses") else { return Vec::new() };
    let annotated = text(facts.object, ANNOTATION);
    if !annotated.is_empty() || class_of(facts.object, classes).is_some() {
        return Vec::new();
    }
    let all: Vec<String> = classes.iter().map(|c| name(c).to_owned()).collect();
    let exist = match all.is_empty() {
        true => "there is no IngressClass: no ingress controller may be installed".to_owned(),
        false => format!("these exist: {}", super::super::finding::some(&all)),
    };
    vec![match class_name(facts.object) {
        "" => finding(format!("it names no IngressClass (spec.ingressClassName), and none is the default; {exist}")),
        wanted => finding(format!("its IngressClass {wanted} does not exist; {exist}")),
    }]
}

fn address(facts: &Facts<'_>) -> Vec<Finding> {
    if !list(facts.object, "/status/loadBalancer/ingress").is_empty() {
        return Vec::new();
    }
    let annotated = text(facts.object, ANNOTATION);
    let classes = facts.list(NETWORKING, "", "ingressclasses").unwrap_or_default();
    let who = match class_of(facts.object, classes) {
        Some(class) => format!("{} of its IngressClass {}", text(class, "/spec/controller"), name(class)),
        None if !annotated.is_empty() => format!("for the class {annotated} of its annotation"),
        None => return Vec::new(),
    };
    let message =
        format!("the controller {who} has not written an address into its status: it may not be installed, or not run");
    vec![finding(message)]
}

fn backends(facts: &Facts<'_>) -> Vec<Finding> {
    let ns = namespace(facts.object);
    let mut all: Vec<Finding> = Vec::new();
    for (from, service, port) in services(facts.object) {
        let Some(problem) = backend::problem(facts, ns, service, &port) else { continue };
        // Paths with the same problem are one finding.
        match all.iter_mut().find(|f| f.object == problem.object && f.message.ends_with(&problem.message)) {
            Some(same) => same.message = format!("{from}, {}", same.message),
            None => all.push(Finding { message: format!("{from}: {}", problem.message), ..problem }),
        }
    }
    all
}

fn secrets(facts: &Facts<'_>) -> Vec<Finding> {
    let ns = namespace(facts.object);
    let names = list(facts.object, "/spec/tls").iter().map(|t| text(t, "/secretName")).filter(|s| !s.is_empty());
    let problem = |secret: &str| match facts.get("v1", ns, "secrets", secret) {
        Read::Missing => Some(format!("the Secret {secret} with its certificate does not exist")),
        Read::Found(found) if !["tls.crt", "tls.key"].iter().all(|key| found["data"].get(key).is_some()) => {
            Some(format!("the Secret {secret} has no tls.crt and tls.key"))
        }
        _ => None,
    };
    names.filter_map(|s| Some(finding(problem(s)?).about(ObjectName::new("v1", "Secret", ns, s)))).collect()
}

fn healthy(ingress: &Value) -> String {
    let addresses = list(ingress, "/status/loadBalancer/ingress").iter();
    let addresses: Vec<&str> = addresses
        .map(|a| Some(text(a, "/ip")).filter(|ip| !ip.is_empty()).unwrap_or_else(|| text(a, "/hostname")))
        .collect();
    let count = services(ingress).len();
    format!("is healthy: {count} backend{} at {}", plural(count), addresses.join(", "))
}
