//! Why a service has no endpoints.

use super::events;
use super::fields::{has_condition, is_deleting, list, name, namespace, selects, text, uid};
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
    let mut e = of_service(service, &slices, &pods, r.is_unreadable("pods", ns));
    // The controller of the load balancer reports its errors in events alone.
    if let Some(pending) = e.findings.iter_mut().find(|f| f.reason == "NoLoadBalancer") {
        pending.children.extend(events::latest(r, ns, uid(service)).await?);
    }
    Ok(e)
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
    if ready > 0 && findings.iter().any(|f| f.reason == "PortNotFound") {
        let summary = format!("has {count}, and a port that leads to no container port");
        return Explanation::new(State::NotReady, summary).because(findings);
    }
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
            match pods.len() {
                0 => format!("its selector {selector} matches nothing: the namespace has no pods"),
                1 => format!("its selector {selector} does not match the only pod of the namespace"),
                n => format!("its selector {selector} matches none of the {n} pods of the namespace"),
            },
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
        let (all, verb) = (selected.len(), if unready.len() == 1 { "is" } else { "are" });
        let message =
            format!("{} of {all} selected pod{} {verb} not ready: {}", unready.len(), plural(all), some(&unready));
        let first = unready.first().and_then(|n| n.split(' ').next()).unwrap_or_default();
        let about = ObjectName::new("v1", "Pod", namespace(service), first);
        let command = format!("kubectl why -n {} pod/{first}", namespace(service));
        findings.push(Finding::new("PodsNotReady", message).about(about).suggest(command));
    }
    for port in list(service, "/spec/ports") {
        findings.extend(target_port(port, &selected));
    }
    if findings.iter().all(|f| f.reason == "PortNotDeclared") && ready == 0 {
        let message = format!(
            "{} selected pods are ready, and the endpoint slice controller has not published them",
            selected.len()
        );
        findings.push(Finding::new("NotPublished", message));
    }
    findings
}

/// What is wrong with the port of the pods to which a port of a service leads.
fn target_port(port: &Value, selected: &[&Value]) -> Option<Finding> {
    let number = &port["port"];
    let protocol = |p: &Value| Some(text(p, "/protocol")).filter(|p| !p.is_empty()).unwrap_or("TCP").to_owned();
    if let Some(target) = port["targetPort"].as_str() {
        let has = |p: &&&Value| container_ports(p).any(|q| q["name"] == target && protocol(q) == protocol(port));
        let without: Vec<String> = selected.iter().filter(|p| !has(p)).map(|p| name(p).to_owned()).collect();
        let message = || {
            let (protocol, pods) = (protocol(port), some(&without));
            let these = if without.len() == 1 { "this pod does" } else { "these pods do" };
            format!(
                "its port {number} leads to the {protocol} container port named {target}, which {these} not have: {pods}"
            )
        };
        return (!without.is_empty()).then(|| Finding::new("PortNotFound", message()));
    }
    let target = port["targetPort"].as_i64().filter(|t| *t > 0).or_else(|| number.as_i64())?;
    let declared: Vec<&Value> = selected.iter().flat_map(|p| container_ports(p)).collect();
    let found = declared.iter().any(|q| q["containerPort"] == target && protocol(q) == protocol(port));
    let message = || {
        let mut ports: Vec<String> =
            declared.iter().map(|q| format!("{}/{}", q["containerPort"], protocol(q))).collect();
        ports.sort();
        ports.dedup();
        format!(
            "its port {number} leads to port {target}, which no container of its pods declares (declared: {}); a container may listen on a port that it does not declare",
            some(&ports)
        )
    };
    (!declared.is_empty() && !found).then(|| Finding::new("PortNotDeclared", message()))
}

/// The ports of the containers of a pod that run beside each other.
fn container_ports(pod: &Value) -> impl Iterator<Item = &Value> {
    let sidecars = list(pod, "/spec/initContainers").iter().filter(|c| c["restartPolicy"] == "Always");
    list(pod, "/spec/containers").iter().chain(sidecars).flat_map(|c| list(c, "/ports"))
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
            "service/s has no ready endpoint\n  its selector app=web,tier=a does not match the only pod of the namespace\n    a part of it matches: x\n",
        );
        check(
            &service,
            &none,
            vec![pod("x", "a", "False", "http")],
            "service/s has no ready endpoint\n  1 of 1 selected pod is not ready: x\n    => kubectl why -n d pod/x\n",
        );
        check(
            &service,
            &none,
            vec![pod("x", "a", "True", "web")],
            "service/s has no ready endpoint\n  its port 80 leads to the TCP container port named http, which this pod does not have: x\n",
        );
        check(
            &service,
            &slice,
            vec![pod("x", "a", "True", "web")],
            "service/s has 1 ready endpoint, and a port that leads to no container port\n  its port 80 leads to the TCP container port named http, which this pod does not have: x\n",
        );
        let numbered = json!({"metadata": {"name": "s", "namespace": "d"}, "spec": {"selector": {"app": "web"},
            "ports": [{"port": 80, "targetPort": 9090}]}});
        check(
            &numbered,
            &slice,
            vec![pod("x", "a", "True", "web")],
            "service/s has 1 ready endpoint\n  its port 80 leads to port 9090, which no container of its pods declares (declared: 8080/TCP); a container may listen on a port that it does not declare\n",
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
