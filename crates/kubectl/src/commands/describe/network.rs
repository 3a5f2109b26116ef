//! Describes ingresses, endpoints and network policies.

use super::page::{Page, list, selector, show};
use super::service::{endpoints, slices};
use crate::error::Result;
use crate::kube::Kube;
use meta::{Object, Value};
use std::collections::BTreeSet;

pub async fn ingress(p: &mut Page, o: &Object, k: &mut Kube) -> Result {
    p.field("Name", o.name());
    p.labels(0, "Labels", o.at(&["metadata", "labels"]));
    p.field("Namespace", o.namespace());
    let address = |i: &Value| [show(&i["ip"]), show(&i["hostname"])].into_iter().find(|a| !a.is_empty());
    let addresses = list(o.at(&["status", "loadBalancer", "ingress"])).iter().filter_map(address);
    p.field("Address", addresses.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(","));
    p.field("Ingress Class", o.str_at(&["spec", "ingressClassName"]).unwrap_or("<none>"));
    let default = match o.at(&["spec", "defaultBackend"]) {
        Some(b) => backend(k, o, b).await?,
        None => "<default>".to_owned(),
    };
    p.field("Default backend", &default);
    let tls = list(o.at(&["spec", "tls"]));
    if !tls.is_empty() {
        p.line(0, "TLS:");
        for t in tls {
            let hosts: Vec<String> = list(t.get("hosts")).iter().map(show).collect();
            match t["secretName"].as_str().unwrap_or_default() {
                "" => p.line(1, format!("SNI routes {}", hosts.join(","))),
                secret => p.line(1, format!("{secret} terminates {}", hosts.join(","))),
            }
        }
    }
    p.line(0, "Rules:\n  Host\tPath\tBackends\n  ----\t----\t--------");
    let rules = list(o.at(&["spec", "rules"]));
    let mut any = false;
    for r in rules.iter().filter(|r| r.get("http").is_some()) {
        any = true;
        p.line(1, format!("{}\t", r["host"].as_str().filter(|h| !h.is_empty()).unwrap_or("*")));
        for path in list(r["http"].get("paths")) {
            let to = backend(k, o, &path["backend"]).await?;
            p.line(2, format!("\t{} \t{to}", show(&path["path"])));
        }
    }
    if !any {
        p.line(1, format!("*\t*\t{default}"));
    }
    p.annotations(0, "Annotations", o.at(&["metadata", "annotations"]));
    Ok(())
}

async fn backend(k: &mut Kube, o: &Object, b: &Value) -> Result<String> {
    let Some(s) = b.get("service") else {
        let r = &b["resource"];
        let group = r["apiGroup"].as_str().unwrap_or("<none>");
        let (kind, name) = (show(&r["kind"]), show(&r["name"]));
        return Ok(format!("APIGroup: {group}, Kind: {kind}, Name: {name}"));
    };
    let port = &s["port"];
    let shown =
        format!("{}:{}", show(&s["name"]), show(if port["number"].is_i64() { &port["number"] } else { &port["name"] }));
    let services = k.resource("services").await?;
    let found = k.api(&services, o.namespace()).await?.get(s["name"].as_str().unwrap_or_default()).await;
    let address = match found {
        Ok(service) => {
            let is = |q: &&Value| q["name"] == port["name"] && port["name"].is_string() || q["port"] == port["number"];
            let name =
                list(service.at(&["spec", "ports"])).iter().find(is).map(|q| show(&q["name"])).unwrap_or_default();
            endpoints(&slices(k, &service).await, &name)
        }
        Err(e) => format!(
            "<error: {}>",
            crate::error::Error::from(e).to_string().trim_start_matches("Error from server (NotFound): ")
        ),
    };
    Ok(format!("{shown} ({address})"))
}

pub fn class(p: &mut Page, o: &Object) {
    p.field("Name", o.name());
    p.metadata(o);
    p.field("Controller", o.str_at(&["spec", "controller"]).unwrap_or_default());
    if let Some(v) = o.at(&["spec", "parameters"]) {
        p.line(0, "Parameters:");
        for (title, key) in [("APIGroup", "apiGroup"), ("Kind", "kind"), ("Name", "name")] {
            if !v[key].is_null() {
                p.at(1, title, show(&v[key]));
            }
        }
    }
}

fn port_table(p: &mut Page, level: usize, ports: &[Value]) {
    p.line(level, "Name\tPort\tProtocol");
    p.line(level, "----\t----\t--------");
    for q in ports {
        let name = q["name"].as_str().filter(|n| !n.is_empty()).unwrap_or("<unset>");
        p.line(level, format!("{name}\t{}\t{}", port(q), show(&q["protocol"])));
    }
}

/// A slice's port without a number means any port.
fn port(q: &Value) -> String {
    if q["port"].is_null() { "<unset>".into() } else { show(&q["port"]) }
}

pub fn old_endpoints(p: &mut Page, o: &Object) {
    p.name_and_namespace(o);
    p.metadata(o);
    p.line(0, "Subsets:");
    for s in list(o.get("subsets")) {
        for (title, key) in [("Addresses", "addresses"), ("NotReadyAddresses", "notReadyAddresses")] {
            let all: Vec<String> = list(s.get(key)).iter().map(|a| show(&a["ip"])).collect();
            p.at(1, title, if all.is_empty() { "<none>".into() } else { all.join(",") });
        }
        let ports = list(s.get("ports"));
        if !ports.is_empty() {
            p.line(1, "Ports:");
            port_table(p, 2, ports);
        }
        p.line(0, "");
    }
}

pub fn slice(p: &mut Page, o: &Object) {
    p.name_and_namespace(o);
    p.metadata(o);
    p.field("AddressType", o.get("addressType").map(show).unwrap_or_default());
    let ports = list(o.get("ports"));
    if ports.is_empty() {
        p.line(0, "Ports: <unset>");
    } else {
        p.line(0, "Ports:");
        port_table(p, 1, ports);
    }
    let all = list(o.get("endpoints"));
    if all.is_empty() {
        p.line(0, "Endpoints: <none>");
        return;
    }
    p.line(0, "Endpoints:");
    for e in all {
        let addresses: Vec<String> = list(e.get("addresses")).iter().map(show).collect();
        let addresses = if addresses.is_empty() { "<none>".to_owned() } else { addresses.join(", ") };
        p.line(1, format!("- Addresses:\t{addresses}"));
        p.line(2, "Conditions:");
        p.at(3, "Ready", e["conditions"]["ready"].as_bool().map_or("<unset>".into(), |r| r.to_string()));
        p.at(2, "Hostname", e["hostname"].as_str().unwrap_or("<unset>"));
        if let Some(t) = e.get("targetRef") {
            p.at(2, "TargetRef", format!("{}/{}", show(&t["kind"]), show(&t["name"])));
        }
        p.at(2, "NodeName", e["nodeName"].as_str().unwrap_or("<unset>"));
        p.at(2, "Zone", e["zone"].as_str().unwrap_or("<unset>"));
    }
}

pub fn policy(p: &mut Page, o: &Object) {
    p.name_and_namespace(o);
    let created = meta::time::parse(o.creation_timestamp());
    p.field(
        "Created on",
        created.map(|t| t.to_zoned(p.zone.clone()).strftime("%Y-%m-%d %H:%M:%S %z %Z").to_string()).unwrap_or_default(),
    );
    p.metadata(o);
    p.line(0, "Spec:");
    let chosen = match selector(o.at(&["spec", "podSelector"])) {
        none if none.is_empty() || none == "<none>" => {
            "<none> (Allowing the specific traffic to all pods in this namespace)".to_owned()
        }
        some => some,
    };
    p.line(1, format!("PodSelector:     {chosen}"));
    let types: Vec<String> = list(o.at(&["spec", "policyTypes"])).iter().map(show).collect();
    for (name, word, peers, key, bound) in
        [("Ingress", "ingress", "From", "from", "source"), ("Egress", "egress", "To", "to", "destination")]
    {
        if !types.iter().any(|t| t == name) {
            p.line(1, format!("Not affecting {word} traffic"));
            continue;
        }
        p.line(1, format!("Allowing {word} traffic:"));
        let rules = list(o.at(&["spec", word]));
        if rules.is_empty() {
            p.line(2, format!("<none> (Selected pods are isolated for {word} connectivity)"));
        }
        for (i, r) in rules.iter().enumerate() {
            if i > 0 {
                p.line(2, "----------");
            }
            ports(p, list(r.get("ports")));
            let all = list(r.get(key));
            if all.is_empty() {
                p.line(2, format!("{peers}: <any> (traffic not restricted by {bound})"));
            }
            for peer in all {
                p.line(2, format!("{peers}:"));
                talks_to(p, peer);
            }
        }
    }
    p.line(1, format!("Policy Types: {}", if types.is_empty() { "<none>".into() } else { types.join(", ") }));
}

fn ports(p: &mut Page, all: &[Value]) {
    if all.is_empty() {
        p.line(2, "To Port: <any> (traffic allowed to all ports)");
    }
    for q in all {
        let protocol = q["protocol"].as_str().unwrap_or("TCP");
        let from = q.get("port").map_or("<nil>".into(), show);
        match q["endPort"].as_i64() {
            Some(end) => p.line(2, format!("To Port Range: {from}-{end}/{protocol}")),
            None => p.line(2, format!("To Port: {from}/{protocol}")),
        }
    }
}

fn talks_to(p: &mut Page, peer: &Value) {
    let labels = |v: &Value| match selector(Some(v)) {
        none if none.is_empty() => "<none>".to_owned(),
        some => some,
    };
    if let Some(n) = peer.get("namespaceSelector") {
        p.line(3, format!("NamespaceSelector: {}", labels(n)));
    }
    if let Some(s) = peer.get("podSelector") {
        p.line(3, format!("PodSelector: {}", labels(s)));
    }
    let has_selector = peer.get("namespaceSelector").or_else(|| peer.get("podSelector")).is_some();
    if let Some(b) = peer.get("ipBlock").filter(|_| !has_selector) {
        p.line(3, "IPBlock:");
        p.line(4, format!("CIDR: {}", show(&b["cidr"])));
        let except: Vec<String> = list(b.get("except")).iter().map(show).collect();
        p.line(4, format!("Except: {}", except.join(", ")));
    }
}
