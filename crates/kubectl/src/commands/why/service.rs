//! Why a service has no endpoints.

use super::fields::{has_condition, is_deleting, list, name, namespace, selects, text};
use super::finding::{Explanation, Finding, ObjectName, State, plural, some};
use super::reader::{Reader, escaped};
use crate::error::Result;
use meta::{LabelSelector, Value};

pub async fn explain(r: &mut Reader<'_>, service: &Value) -> Result<Explanation> {
    let ns = namespace(service);
    let slices = r
        .select(
            "discovery.k8s.io/v1",
            ns,
            "endpointslices",
            &format!("labelSelector=kubernetes.io%2Fservice-name%3D{}", escaped(name(service))),
        )
        .await?;
    let pods = r.list("v1", ns, "pods").await?;
    Ok(of_service(service, &slices, &pods, r.is_unreadable("pods", ns)))
}

/// From a service, its endpoint slices, and the pods of its namespace. Pure.
fn of_service(service: &Value, slices: &[Value], pods: &[Value], unreadable: bool) -> Explanation {
    if service["spec"]["type"] == "ExternalName" {
        let target = text(service, "/spec/externalName");
        return Explanation::new(State::Healthy, format!("is an alias of {target}"));
    }
    let endpoints = || slices.iter().flat_map(|s| list(s, "/endpoints"));
    let ready = endpoints().filter(|e| e.pointer("/conditions/ready") != Some(&Value::Bool(false))).count();
    let mut findings = Vec::new();
    let selector = service["spec"]["selector"].as_object().filter(|s| !s.is_empty());
    match selector {
        None if ready == 0 => {
            let message = "it has no selector, and its endpoint slices have no ready endpoint: the program that created the service has to maintain them";
            findings.push(Finding::new("NoSelector", message));
        }
        Some(labels) if !unreadable => {
            let pairs = labels.iter().map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default()));
            findings.extend(of_selector(service, &LabelSelector::from_map(pairs), pods, ready));
        }
        _ => {}
    }
    let pending = service["spec"]["type"] == "LoadBalancer" && list(service, "/status/loadBalancer/ingress").is_empty();
    if pending {
        findings.push(Finding::new(
            "NoLoadBalancer",
            "no load balancer has been assigned: a controller of the cloud provider, or another one, has to do so",
        ));
    }
    let count = format!("{ready} ready endpoint{}", plural(ready));
    match (ready, pending, findings.is_empty()) {
        (0, ..) => Explanation::new(State::NotReady, "has no ready endpoint"),
        (_, true, _) => Explanation::new(State::Pending, format!("has {count} and waits for a load balancer")),
        (_, _, true) => Explanation::new(State::Healthy, format!("is healthy: {count}")),
        (_, _, false) => Explanation::new(State::Healthy, format!("has {count}")),
    }
    .because(findings)
}

/// What is wrong with the pods that a service selects.
fn of_selector(service: &Value, selector: &LabelSelector, pods: &[Value], ready: usize) -> Vec<Finding> {
    let ended = |p: &Value| matches!(text(p, "/status/phase"), "Succeeded" | "Failed");
    let selected: Vec<&Value> = pods.iter().filter(|p| selects(selector, p) && !ended(p)).collect();
    if selected.is_empty() {
        let mut finding = Finding::new(
            "SelectorMatchesNothing",
            format!("its selector {selector} matches none of the {} pods of the namespace", pods.len()),
        );
        // The pods that miss the least.
        let single = |r: &meta::selector::Requirement| LabelSelector { requirements: vec![r.clone()], nothing: false };
        let near = pods.iter().filter(|p| selector.requirements.iter().any(|r| selects(&single(r), p)));
        let near: Vec<String> = near.map(|p| name(p).to_owned()).collect();
        if !near.is_empty() {
            finding = finding.because([Finding::new("PartialMatch", format!("a part of it matches: {}", some(&near)))]);
        }
        return vec![finding];
    }
    let mut findings = Vec::new();
    let unready: Vec<String> = selected
        .iter()
        .filter(|p| !has_condition(p, "Ready", "True") || is_deleting(p))
        .map(|p| format!("{}{}", name(p), if is_deleting(p) { " (terminating)" } else { "" }))
        .collect();
    if !unready.is_empty() {
        let message =
            format!("{} of {} selected pods are not ready: {}", unready.len(), selected.len(), some(&unready));
        let first = unready.first().and_then(|n| n.split(' ').next()).unwrap_or_default();
        let about = ObjectName::new("v1", "Pod", namespace(service), first);
        let command = format!("kubectl why -n {} pod/{first}", namespace(service));
        findings.push(Finding::new("PodsNotReady", message).about(about).suggest(command));
    }
    for port in list(service, "/spec/ports") {
        let Some(target) = port["targetPort"].as_str() else { continue };
        let containers = |p: &Value| [list(p, "/spec/containers"), list(p, "/spec/initContainers")].concat();
        let has = |p: &&&Value| containers(p).iter().any(|c| list(c, "/ports").iter().any(|q| q["name"] == target));
        let without: Vec<String> = selected.iter().filter(|p| !has(p)).map(|p| name(p).to_owned()).collect();
        if !without.is_empty() {
            let message = format!(
                "its port {} leads to the container port named {target}, which these pods do not have: {}",
                port["port"],
                some(&without)
            );
            findings.push(Finding::new("PortNotFound", message));
        }
    }
    if findings.is_empty() && ready == 0 {
        let message = format!(
            "{} selected pods are ready, and the endpoint slice controller has not published them",
            selected.len()
        );
        findings.push(Finding::new("NotPublished", message));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn explains_missing_endpoints() {
        let now = "2026-11-21T12:00:00Z".parse().unwrap();
        let service = json!({"metadata": {"name": "s", "namespace": "d"}, "spec": {"selector": {"app": "web", "tier": "a"},
            "ports": [{"port": 80, "targetPort": "http"}]}});
        let pod = |name: &str, tier: &str, ready: &str, port: &str| {
            json!({"metadata": {"name": name, "namespace": "d", "labels": {"app": "web", "tier": tier}},
            "spec": {"containers": [{"name": "c", "ports": [{"name": port, "containerPort": 8080}]}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}})
        };
        let slice = json!([{"endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}]}]);
        let check = |service: &Value, slices: &Value, pods: Vec<Value>, expect: &str| {
            let e = of_service(service, slices.as_array().unwrap(), &pods, false);
            assert_eq!(e.text("service/s", now), expect);
        };
        let none = json!([]);
        check(
            &service,
            &none,
            vec![pod("x", "b", "True", "http")],
            "service/s has no ready endpoint\n  its selector app=web,tier=a matches none of the 1 pods of the namespace\n    a part of it matches: x\n",
        );
        check(
            &service,
            &none,
            vec![pod("x", "a", "False", "http")],
            "service/s has no ready endpoint\n  1 of 1 selected pods are not ready: x\n    => kubectl why -n d pod/x\n",
        );
        check(
            &service,
            &none,
            vec![pod("x", "a", "True", "web")],
            "service/s has no ready endpoint\n  its port 80 leads to the container port named http, which these pods do not have: x\n",
        );
        check(&service, &slice, vec![pod("x", "a", "True", "http")], "service/s is healthy: 1 ready endpoint\n");
        check(
            &json!({"spec": {"type": "ExternalName", "externalName": "e.example"}}),
            &none,
            vec![],
            "service/s is an alias of e.example\n",
        );
        check(
            &json!({"spec": {"ports": []}}),
            &none,
            vec![],
            "service/s has no ready endpoint\n  it has no selector, and its endpoint slices have no ready endpoint: the program that created the service has to maintain them\n",
        );
    }
}
