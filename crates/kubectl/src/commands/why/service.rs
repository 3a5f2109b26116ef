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
    let policies = r.list("networking.k8s.io/v1", ns, "networkpolicies").await?;
    let limited = policies_of(service, &pods, &policies);
    if limited.iter().any(|f| f.reason == "PortIsolated") && e.state.is_healthy() {
        e.state = State::NotReady;
        e.summary = e.summary.replacen("is healthy:", "has", 1) + ", and a port to which no policy allows connections";
    }
    e.findings.extend(limited);
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

/// The network policies that isolate the pods of a service, and the ports that none of them allows. Pure.
fn policies_of(service: &Value, pods: &[Value], policies: &[Value]) -> Vec<Finding> {
    let Some(labels) = service["spec"]["selector"].as_object().filter(|s| !s.is_empty()) else { return Vec::new() };
    let labels = labels.iter().map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default()));
    let selector = LabelSelector::from_map(labels);
    let selected: Vec<&Value> = pods.iter().filter(|p| selects(&selector, p)).collect();
    let isolates = |policy: &&Value| {
        let types = list(policy, "/spec/policyTypes");
        let of = super::fields::selector(policy, "/spec/podSelector");
        (types.is_empty() || types.iter().any(|t| t == "Ingress")) && selected.iter().any(|p| selects(&of, p))
    };
    let isolating: Vec<&Value> = policies.iter().filter(isolates).collect();
    if isolating.is_empty() {
        return Vec::new();
    }
    let names: Vec<String> = isolating.iter().map(|p| name(p).to_owned()).collect();
    let rules: Vec<&Value> = isolating.iter().flat_map(|p| list(p, "/spec/ingress")).collect();
    let protocol = |p: &Value| Some(text(p, "/protocol")).filter(|p| !p.is_empty()).unwrap_or("TCP").to_owned();
    let mut findings = Vec::new();
    for port in list(service, "/spec/ports") {
        let target = match &port["targetPort"] {
            Value::Null => &port["port"],
            target => target,
        };
        let numbers: Vec<i64> = match target.as_str() {
            Some(named) => {
                let ports = selected.iter().flat_map(|p| container_ports(p)).filter(|q| q["name"] == named);
                ports.filter_map(|q| q["containerPort"].as_i64()).collect()
            }
            None => target.as_i64().into_iter().collect(),
        };
        let allows = |allowed: &Value| {
            let first = &allowed["port"];
            let last = allowed["endPort"].as_i64().or_else(|| first.as_i64());
            let covers = |n: &i64| first.as_i64().zip(last).is_some_and(|(a, b)| (a..=b).contains(n));
            let named = first.is_string() && first == target;
            protocol(allowed) == protocol(port) && (first.is_null() || named || numbers.iter().any(covers))
        };
        let open = rules.iter().any(|rule| list(rule, "/ports").is_empty() || list(rule, "/ports").iter().any(allows));
        if !open && !numbers.is_empty() {
            let message = format!(
                "its port {} leads to port {target}, to which no network policy allows connections; its pods are isolated by {}",
                port["port"],
                some(&names)
            );
            findings.push(Finding::new("PortIsolated", message));
        }
    }
    if findings.is_empty() {
        let (verb, these) = if names.len() == 1 { ("isolates", "this policy") } else { ("isolate", "these policies") };
        let message = format!("{} {verb} its pods: only connections that {these} allow reach them", some(&names));
        let message = if names.len() == 1 { message.replace("policy allow ", "policy allows ") } else { message };
        findings.push(Finding::new("Isolated", message));
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

    /// Clauses: G01.other-kinds
    #[test]
    fn explains_isolated_ports() {
        let service = json!({"spec": {"selector": {"a": "b"}, "ports": [{"port": 80, "targetPort": "http"}]}});
        let pod = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]}});
        let policy = |spec: Value| json!({"metadata": {"name": "p"}, "spec": spec});
        let all = "p isolates its pods: only connections that this policy allows reach them";
        let none = "its port 80 leads to port \"http\", to which no network policy allows connections; its pods are isolated by p";
        for (spec, expect) in [
            (json!({"podSelector": {}, "policyTypes": ["Egress"]}), None),
            (json!({"podSelector": {"matchLabels": {"a": "c"}}}), None),
            (json!({"podSelector": {}}), Some(none)),
            (json!({"podSelector": {}, "ingress": [{}]}), Some(all)),
            (json!({"podSelector": {}, "ingress": [{"ports": [{"port": 8081}]}]}), Some(none)),
            (json!({"podSelector": {}, "ingress": [{"ports": [{"port": 8000, "endPort": 8081}]}]}), Some(all)),
            (json!({"podSelector": {}, "ingress": [{"ports": [{"port": 8080, "protocol": "UDP"}]}]}), Some(none)),
            (json!({"podSelector": {}, "ingress": [{"ports": [{"port": "http"}]}]}), Some(all)),
        ] {
            let found = policies_of(&service, std::slice::from_ref(&pod), &[policy(spec.clone())]);
            assert_eq!(found.first().map(|f| f.message.as_str()), expect, "{spec}");
        }
    }

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
