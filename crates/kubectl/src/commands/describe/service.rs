//! Describes services.

use super::page::{Page, list, show};
use crate::error::Result;
use crate::kube::Kube;
use client::ListOptions;
use meta::{Object, Value};

pub async fn describe(p: &mut Page, o: &Object, k: &mut Kube) -> Result {
    let at = |path: &[&str]| o.at(path).map(show).unwrap_or_default();
    let words = |path: &[&str]| list(o.at(path)).iter().map(show).collect::<Vec<_>>().join(",");
    p.name_and_namespace(o);
    p.metadata(o);
    p.field("Selector", super::page::selector(o.at(&["spec", "selector"])));
    p.field("Type", at(&["spec", "type"]));
    if o.at(&["spec", "ipFamilyPolicy"]).is_some() {
        p.field("IP Family Policy", at(&["spec", "ipFamilyPolicy"]));
    }
    if !list(o.at(&["spec", "ipFamilies"])).is_empty() {
        p.field("IP Families", words(&["spec", "ipFamilies"]));
    } else {
        p.field("IP Families", "<none>");
    }
    p.field("IP", at(&["spec", "clusterIP"]));
    let ips = words(&["spec", "clusterIPs"]);
    p.field("IPs", if ips.is_empty() { "<none>" } else { &ips });
    let external = words(&["spec", "externalIPs"]);
    if !external.is_empty() {
        p.field("External IPs", external);
    }
    for (title, key) in [("Desired LoadBalancer IP", "loadBalancerIP"), ("External Name", "externalName")] {
        if let Some(v) = o.str_at(&["spec", key]).filter(|v| !v.is_empty()) {
            p.field(title, v);
        }
    }
    let ingress = list(o.at(&["status", "loadBalancer", "ingress"]));
    if !ingress.is_empty() {
        let address = |i: &Value| match (i["ip"].as_str().unwrap_or_default(), i["ipMode"].as_str()) {
            ("", _) => show(&i["hostname"]),
            (ip, None) => ip.to_owned(),
            (ip, Some(mode)) => format!("{ip} ({mode})"),
        };
        p.field("LoadBalancer Ingress", ingress.iter().map(address).collect::<Vec<_>>().join(", "));
    }
    let slices = slices(k, o).await;
    for port in list(o.at(&["spec", "ports"])) {
        let name = port["name"].as_str().filter(|n| !n.is_empty()).unwrap_or("<unset>");
        let protocol = show(&port["protocol"]);
        p.field("Port", format!("{name}\t{}/{protocol}", show(&port["port"])));
        let target = match &port["targetPort"] {
            Value::String(s) => format!("{s}/{protocol}"),
            Value::Null => format!("0/{protocol}"),
            n => format!("{n}/{protocol}"),
        };
        p.field("TargetPort", target);
        if let Some(a) = port["appProtocol"].as_str() {
            p.field("AppProtocol", a);
        }
        if let Some(n) = port["nodePort"].as_i64().filter(|n| *n > 0) {
            p.field("NodePort", format!("{name}\t{n}/{protocol}"));
        }
        p.field("Endpoints", endpoints(&slices, port["name"].as_str().unwrap_or_default()));
    }
    p.field("Session Affinity", at(&["spec", "sessionAffinity"]));
    let ranges = words(&["spec", "loadBalancerSourceRanges"]);
    let health =
        o.int_at(&["spec", "healthCheckNodePort"]).filter(|n| *n != 0).map(|n| n.to_string()).unwrap_or_default();
    for (title, v) in [
        ("External Traffic Policy", at(&["spec", "externalTrafficPolicy"])),
        ("Internal Traffic Policy", at(&["spec", "internalTrafficPolicy"])),
        ("HealthCheck NodePort", health),
        ("LoadBalancer Source Ranges", ranges),
        ("Traffic Distribution", at(&["spec", "trafficDistribution"])),
    ] {
        if !v.is_empty() {
            p.field(title, v);
        }
    }
    Ok(())
}

pub async fn slices(k: &mut Kube, o: &Object) -> Vec<Object> {
    let Ok(r) = k.resource("endpointslices.discovery.k8s.io").await else { return Vec::new() };
    let labels = format!("kubernetes.io/service-name={}", o.name());
    match k.api(&r, o.namespace()).await {
        Ok(api) => api
            .list(&ListOptions { label_selector: labels, ..ListOptions::default() })
            .await
            .map(|l| l.items)
            .unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

/// Formats the first three addresses of a port, and how many more there are.
pub fn endpoints(slices: &[Object], port: &str) -> String {
    if slices.is_empty() {
        return "<none>".into();
    }
    let mut all = Vec::new();
    for s in slices {
        for q in list(s.get("ports")).iter().filter(|q| q["name"].as_str().unwrap_or_default() == port) {
            for e in list(s.get("endpoints")) {
                if e["conditions"]["ready"].as_bool().unwrap_or(true) {
                    for a in list(e.get("addresses")) {
                        let a = show(a);
                        let host = if a.contains(':') { format!("[{a}]") } else { a };
                        all.push(format!("{host}:{}", show(&q["port"])));
                    }
                }
            }
        }
    }
    let more = all.len().saturating_sub(3);
    all.truncate(3);
    let text = all.join(",");
    if more > 0 { format!("{text} + {more} more...") } else { text }
}
