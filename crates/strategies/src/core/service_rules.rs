//! Validation and warnings of services (`ValidateService`, `ValidateServiceUpdate`).

use super::endpoints::special_address;
use super::service_spec::{accepts_external_traffic, is_balanced};
use crate::read::{delegated, items, repeats, shown, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use serde_json::json;
use std::collections::HashSet;
use std::net::IpAddr;

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];
const DISTRIBUTIONS: [&str; 3] = ["PreferClose", "PreferSameZone", "PreferSameNode"];
const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const MODE: &str = "service.kubernetes.io/topology-mode";
const RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
/// Maximum session affinity timeout: a day, in seconds.
const AFFINITY_MAX: i64 = 86_400;

fn spec(o: &Object) -> &Value {
    o.get("spec").unwrap_or(&Value::Null)
}

fn addresses(o: &Object) -> Vec<&str> {
    items(spec(o), "clusterIPs").iter().filter_map(Value::as_str).collect()
}

fn is_headless(o: &Object) -> bool {
    addresses(o) == ["None"]
}

fn is_external(o: &Object) -> bool {
    spec(o)["type"] == "ExternalName"
}

pub fn validate(o: &Object, errors: &mut ErrorList) {
    let (s, at) = (spec(o), FieldPath::new("spec"));
    if let (Some(mode), Some(hints)) = (o.annotation(MODE), o.annotation(HINTS))
        && mode != hints
    {
        let why = format!("must match annotations[{HINTS}] when both are specified");
        errors.push(FieldError::invalid(&FieldPath::new("metadata.annotations").key(MODE), mode, why));
    }
    ports(o, &at.child("ports"), errors);
    match text(s, "type") {
        "ExternalName" => external_name(s, &at, errors),
        ty @ ("LoadBalancer" | "NodePort") if is_headless(o) => {
            let why = format!("may not be set to 'None' for {ty} services");
            errors.push(FieldError::invalid(&at.child("clusterIPs").index(0), "None", why));
        }
        _ => {}
    }
    affinity(s, &at.child("sessionAffinityConfig"), errors);
    if !is_external(o) {
        cluster_addresses(o, &at, errors);
    }
    for (i, ip) in items(s, "externalIPs").iter().enumerate() {
        special_address(ip.as_str().unwrap_or_default(), &at.child("externalIPs").index(i), errors);
    }
    external_traffic(o, &at, errors);
    if let Some(d) = s["trafficDistribution"].as_str().filter(|d| !DISTRIBUTIONS.contains(d)) {
        errors.push(FieldError::not_supported(&at.child("trafficDistribution"), d, &DISTRIBUTIONS));
    }
}

fn external_name(s: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let set = |k: &str| s[k].is_string() || s[k].as_array().is_some_and(|a| !a.is_empty());
    for k in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"].into_iter().filter(|k| set(k)) {
        errors.push(FieldError::forbidden(&at.child(k), "may not be set for ExternalName services"));
    }
    let name = text(s, "externalName");
    let bare = name.strip_suffix('.').unwrap_or(name);
    let at = at.child("externalName");
    if bare.is_empty() {
        errors.push(FieldError::required(&at, ""));
    } else {
        errors.extend(names::dns_subdomain(bare).into_iter().map(|m| FieldError::invalid(&at, bare, m)));
    }
}

fn ports(o: &Object, at: &FieldPath, errors: &mut ErrorList) {
    let (ports, ty) = (items(spec(o), "ports"), text(spec(o), "type"));
    if ports.is_empty() && !is_headless(o) && ty != "ExternalName" {
        errors.push(FieldError::required(at, ""));
    }
    let (mut seen, mut named, mut of_nodes) = (HashSet::new(), HashSet::new(), HashSet::new());
    for (i, p) in ports.iter().enumerate() {
        let at = at.index(i);
        let name = text(p, "name");
        if name.is_empty() && ports.len() > 1 {
            errors.push(FieldError::required(&at.child("name"), ""));
        } else if !name.is_empty() {
            errors.extend(names::dns_label(name).into_iter().map(|m| FieldError::invalid(&at.child("name"), name, m)));
            if !named.insert(name) {
                errors.push(FieldError::duplicate(&at.child("name"), name));
            }
        }
        if !seen.insert((text(p, "protocol"), p["port"].as_i64())) {
            let key = json!({"protocol": p["protocol"], "port": p["port"]});
            errors.push(FieldError::duplicate(&at, shown(&key, "io.k8s.api.core.v1.ServicePort", &at)));
        }
        let Some(n) = p["nodePort"].as_i64().filter(|n| *n != 0) else { continue };
        if ty == "ClusterIP" {
            let why = "may not be used when `type` is 'ClusterIP'";
            errors.push(FieldError::forbidden(&at.child("nodePort"), why));
        }
        if !of_nodes.insert((text(p, "protocol"), n)) {
            errors.push(FieldError::duplicate(&at.child("nodePort"), n));
        }
    }
}

fn affinity(s: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let config = &s["sessionAffinityConfig"];
    match text(s, "sessionAffinity") {
        "ClientIP" => {
            let client = at.child("clientIP");
            let seconds = client.child("timeoutSeconds");
            let missing = match &config["clientIP"] {
                _ if !config.is_object() => at,
                Value::Null => &client,
                c if c["timeoutSeconds"].is_null() => &seconds,
                c => {
                    if c["timeoutSeconds"].as_i64().is_some_and(|n| !(1..=AFFINITY_MAX).contains(&n)) {
                        let why = format!("must be greater than 0 and less than {AFFINITY_MAX}");
                        errors.push(FieldError::invalid(&seconds, &c["timeoutSeconds"], why));
                    }
                    return;
                }
            };
            errors.push(FieldError::required(missing, "when session affinity type is ClientIP"));
        }
        "None" if config.is_object() => {
            errors.push(FieldError::forbidden(at, "must not be set when session affinity is None"));
        }
        _ => {}
    }
}

/// Validates cluster IPs: at most one per family, and `clusterIP` equals the first.
pub fn cluster_addresses(o: &Object, at: &FieldPath, errors: &mut ErrorList) {
    let s = spec(o);
    let (ip, all) = (text(s, "clusterIP"), addresses(o));
    let ips = at.child("clusterIPs");
    let shown = || Value::from(all.clone());
    match (ip.is_empty(), all.first()) {
        (false, None) => errors.push(FieldError::required(&ips, "")),
        (false, Some(first)) if *first != ip => {
            errors.push(FieldError::invalid(&ips, shown(), "first value must match `clusterIP`"));
        }
        (true, Some(_)) => {
            errors.push(FieldError::invalid(&ips, shown(), "must be empty when `clusterIP` is not specified"));
        }
        _ => {}
    }
    let families: Vec<&str> = items(s, "ipFamilies").iter().filter_map(Value::as_str).collect();
    let again = repeats(&families);
    for (i, f) in families.iter().enumerate() {
        let at = at.child("ipFamilies").index(i);
        if !FAMILIES.contains(f) {
            errors.push(FieldError::not_supported(&at, *f, &FAMILIES));
        }
        if again[i] {
            errors.push(FieldError::duplicate(&at, *f));
        }
    }
    if let Some(p) = s["ipFamilyPolicy"].as_str().filter(|p| !POLICIES.contains(p)) {
        errors.push(FieldError::not_supported(&at.child("ipFamilyPolicy"), p, &POLICIES));
    }
    let before = errors.len();
    for (i, a) in all.iter().enumerate() {
        if i == 0 && *a == "None" {
            if all.len() > 1 {
                errors.push(FieldError::invalid(&ips, shown(), "'None' must be the first and only value"));
            }
        } else {
            schema::rules::ip(a, &ips.index(i), errors);
        }
    }
    let readable = errors.len() == before;
    if all.len() > 2 {
        errors.push(FieldError::invalid(&ips, shown(), "may only hold up to 2 values"));
    }
    if !readable {
        return;
    }
    let six = |a: &str| a.parse::<IpAddr>().is_ok_and(|a| a.is_ipv6());
    if all.len() > 1 && all.iter().all(|a| six(a) == six(all[0])) {
        let why = "may specify no more than one IP for each IP family";
        errors.push(FieldError::invalid(&ips, shown(), why));
    }
    if !is_headless(o) {
        for (i, (a, f)) in all.iter().zip(&families).enumerate() {
            if FAMILIES.contains(f) && six(a) != (*f == "IPv6") {
                let why = format!("expected an {f} value as indicated by `ipFamilies[{i}]`");
                errors.push(FieldError::invalid(&ips.index(i), *a, why));
            }
        }
    }
}

/// Validates fields of services that accept external traffic.
fn external_traffic(o: &Object, at: &FieldPath, errors: &mut ErrorList) {
    const ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
    let s = spec(o);
    let policy = text(s, "externalTrafficPolicy");
    let policy_at = at.child("externalTrafficPolicy");
    let external = accepts_external_traffic(o);
    if !policy.is_empty() && !external {
        let why = "may only be set for externally-accessible services";
        errors.push(FieldError::invalid(&policy_at, policy, why));
    } else if policy.is_empty() && external {
        errors.push(FieldError::required(&policy_at, ""));
    } else {
        delegated(s, "io.k8s.api.core.v1.ServiceSpec", "externalTrafficPolicy", at, errors);
    }
    let checked = s["healthCheckNodePort"].as_i64().filter(|n| *n != 0);
    let checks = is_balanced(o) && policy == "Local";
    let check_at = at.child("healthCheckNodePort");
    if let Some(n) = checked {
        if checks {
            errors.extend(names::port_number(n).into_iter().map(|m| FieldError::invalid(&check_at, n, m)));
        } else {
            let why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.push(FieldError::invalid(&check_at, n, why));
        }
    }
    // Upstream capitalizes the field.
    let ranges = at.child("LoadBalancerSourceRanges");
    let list = items(s, "loadBalancerSourceRanges");
    if !list.is_empty() {
        if !is_balanced(o) {
            errors.push(FieldError::forbidden(&ranges, ONLY));
        }
        for (i, r) in list.iter().enumerate() {
            schema::rules::cidr(r.as_str().unwrap_or_default().trim(), &ranges.index(i), errors);
        }
    } else if let Some(ranges_text) = o.annotation(RANGES) {
        let at = FieldPath::new("metadata.annotations").key(RANGES);
        if !is_balanced(o) {
            errors.push(FieldError::forbidden(&at, ONLY));
        }
        for r in ranges_text.trim().split(',').filter(|_| !ranges_text.trim().is_empty()) {
            schema::rules::cidr(r.trim(), &at, errors);
        }
    }
    let given = |k: &str| !s[k].is_null();
    if given("allocateLoadBalancerNodePorts") && !is_balanced(o) {
        errors.push(FieldError::forbidden(&at.child("allocateLoadBalancerNodePorts"), ONLY));
    }
    let class_at = at.child("loadBalancerClass");
    if let Some(class) = s["loadBalancerClass"].as_str() {
        if is_balanced(o) {
            errors.extend(names::qualified_name(class).into_iter().map(|m| FieldError::invalid(&class_at, class, m)));
        } else {
            errors.push(FieldError::forbidden(&class_at, ONLY));
        }
    }
}

/// Checks that primary addresses and families are unchanged, and repeats the errors of the load balancer class as
/// upstream does.
pub fn update(o: &Object, old: &Object, errors: &mut ErrorList) {
    let (s, was) = (spec(o), spec(old));
    let again: ErrorList = errors.iter().filter(|e| e.path == "spec.loadBalancerClass").cloned().collect();
    if is_balanced(o) && is_balanced(old) && s["loadBalancerClass"] != was["loadBalancerClass"] {
        let at = FieldPath::new("spec.loadBalancerClass");
        errors.push(FieldError::invalid(&at, &s["loadBalancerClass"], "may not change once set"));
    }
    errors.extend(again);
    let checks = |o: &Object| is_balanced(o) && text(spec(o), "externalTrafficPolicy") == "Local";
    if checks(o) && checks(old) && s["healthCheckNodePort"] != was["healthCheckNodePort"] {
        errors.push(FieldError::forbidden(&FieldPath::new("spec.healthCheckNodePort"), "field is immutable"));
    }
    if is_external(o) || is_external(old) || (is_headless(o) && is_headless(old)) {
        return;
    }
    let single = s["ipFamilyPolicy"] == "SingleStack";
    let lists = [
        ("clusterIPs", "clusterIP", "primary clusterIP can not be unset"),
        ("ipFamilies", "ipFamily", "primary ipFamily can not be unset"),
    ];
    for (list, one, unset) in lists {
        if list == "ipFamilies" && is_headless(o) != is_headless(old) {
            continue;
        }
        // Upstream reports no further errors for an invalid address.
        if list == "clusterIPs" && is_headless(old) && text(s, "clusterIP").parse::<IpAddr>().is_err() {
            continue;
        }
        primary_unchanged(list, one, unset, single, (items(s, list), items(was, list)), s, errors);
    }
}

fn primary_unchanged(
    list: &str,
    one: &str,
    unset: &str,
    single: bool,
    (now, was): (&[Value], &[Value]),
    s: &Value,
    errors: &mut ErrorList,
) {
    const WHY: &str = "may not change once set";
    let at = FieldPath::new("spec").child(list);
    if now.len() == was.len() {
        for (i, _) in now.iter().zip(was).enumerate().filter(|(_, (n, w))| n != w) {
            let i = if list == "ipFamilies" { 0 } else { i };
            errors.push(FieldError::invalid(&at.index(i), now, WHY));
        }
        return;
    }
    if now.is_empty() {
        errors.push(FieldError::invalid(&at.index(0), now, unset));
    } else if !was.is_empty() && now[0] != was[0] {
        errors.push(FieldError::invalid(&at.index(0), now, WHY));
    }
    if was.len() > now.len() && now.len() == 1 && !single {
        let why = format!("must be set to 'SingleStack' when releasing the secondary {one}");
        errors.push(FieldError::invalid(&FieldPath::new("spec.ipFamilyPolicy"), &s["ipFamilyPolicy"], why));
    }
}

const IP_MODES: [&str; 2] = ["Proxy", "VIP"];

/// Validates the load balancer status.
pub fn status(o: &Object, errors: &mut ErrorList) {
    let null = Value::Null;
    let balancer = o.at(&["status", "loadBalancer"]).unwrap_or(&null);
    let list = FieldPath::new("status.loadBalancer.ingress");
    let all = items(balancer, "ingress");
    if !is_balanced(o) && !all.is_empty() {
        errors.push(FieldError::forbidden(&list, "may only be used when `spec.type` is 'LoadBalancer'"));
        return;
    }
    for (i, ingress) in all.iter().enumerate() {
        let at = list.index(i);
        let (ip, host) = (text(ingress, "ip"), text(ingress, "hostname"));
        if !ip.is_empty() {
            schema::rules::ip(ip, &at.child("ip"), errors);
        }
        let mode_at = at.child("ipMode");
        match ingress["ipMode"].as_str() {
            None if !ip.is_empty() => errors.push(FieldError::required(&mode_at, "must be specified when `ip` is set")),
            Some(_) if ip.is_empty() => {
                errors.push(FieldError::forbidden(&mode_at, "may not be specified when `ip` is not set"));
            }
            Some(m) if !IP_MODES.contains(&m) => errors.push(FieldError::not_supported(&mode_at, m, &IP_MODES)),
            _ => {}
        }
        if !host.is_empty() {
            let at = at.child("hostname");
            errors.extend(names::dns_subdomain(host).into_iter().map(|m| FieldError::invalid(&at, host, m)));
            if host.parse::<IpAddr>().is_ok() {
                errors.push(FieldError::invalid(&at, host, "must be a DNS name, not an IP address"));
            }
        }
    }
}

pub fn warnings(o: &Object) -> Vec<String> {
    let s = spec(o);
    let mut out = Vec::new();
    if o.annotation(HINTS).is_some() {
        out.push(format!("annotation {HINTS} is deprecated, please use {MODE} instead"));
    }
    let of_list = |list: &str, warn: fn(&str, &FieldPath) -> Option<String>, out: &mut Vec<String>| {
        let at = FieldPath::new("spec").child(list);
        let each = items(s, list).iter().filter_map(Value::as_str).enumerate();
        out.extend(each.filter_map(|(i, text)| warn(text, &at.index(i))));
    };
    of_list("clusterIPs", schema::rules::ip_warning, &mut out);
    let named = !items(s, "externalIPs").is_empty();
    if s["type"] == "ClusterIP" && s["clusterIP"] == "None" {
        for (set, field) in [
            (!text(s, "loadBalancerIP").is_empty(), "loadBalancerIP"),
            (named, "externalIPs"),
            (s["sessionAffinity"] != "None", "SessionAffinity"),
        ] {
            if set {
                out.push(format!("spec.{field} is ignored for headless services"));
            }
        }
    }
    of_list("externalIPs", schema::rules::ip_warning, &mut out);
    if named && !is_external(o) && !(s["type"] == "ClusterIP" && s["clusterIP"] == "None") {
        out.push("spec.externalIPs is deprecated and may no longer be implemented in some clusters".into());
    }
    out.extend(schema::rules::ip_warning(text(s, "loadBalancerIP"), &FieldPath::new("spec.loadBalancerIP")));
    of_list("loadBalancerSourceRanges", schema::rules::cidr_warning, &mut out);
    if is_external(o) && named {
        out.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".into());
    }
    if !is_external(o) && !text(s, "externalName").is_empty() {
        out.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".into());
    }
    if s["trafficDistribution"] == "PreferClose" {
        out.push("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".into());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain::Ruled;
    use crate::testing::{check_create, check_status, check_update};

    fn service(spec: Value) -> Value {
        let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
            "spec": {"ports": [{"port": 1, "targetPort": 1}]}});
        spec.as_object().into_iter().flatten().for_each(|(k, v)| service["spec"][k] = v.clone());
        service
    }

    #[test]
    fn validates_external_traffic_policies() {
        let base = json!({"apiVersion": "v1", "kind": "Service",
            "spec": {"externalTrafficPolicy": "Other", "type": "ClusterIP", "ports": [{"port": 1, "targetPort": 1}]}});
        let unused =
            "spec.externalTrafficPolicy: Invalid value: \"Other\": may only be set for externally-accessible services";
        let unknown = r#"spec.externalTrafficPolicy: Unsupported value: "Other": supported values: "Cluster", "Local""#;
        check_create(
            &Ruled::new(validate),
            &base,
            &[("", Value::Null, &[unused]), ("/spec/type", json!("NodePort"), &[unknown])],
        );
    }

    #[test]
    fn validates_ports() {
        let base = service(json!({}));
        check_create(
            &Ruled::new(validate),
            &base,
            &[
                ("", Value::Null, &[]),
                ("/spec/ports", json!([]), &["spec.ports: Required value"]),
                (
                    "/spec/ports/1",
                    json!({"port": 2, "targetPort": 1}),
                    &["spec.ports[0].name: Required value", "spec.ports[1].name: Required value"],
                ),
                (
                    "/spec/ports",
                    json!([{"name": "a", "port": 1, "targetPort": 1}, {"name": "a", "port": 2, "targetPort": 1}]),
                    &["spec.ports[1].name: Duplicate value: \"a\""],
                ),
                (
                    "/spec/ports",
                    json!([{"name": "a", "port": 1, "targetPort": 1}, {"name": "b", "port": 1, "targetPort": 1}]),
                    &[
                        "spec.ports[1]: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\"Port\":1,\"TargetPort\":0,\"NodePort\":0}",
                    ],
                ),
                (
                    "/spec/ports/0/port",
                    json!(65536),
                    &["spec.ports[0].port: Invalid value: 65536: must be between 1 and 65535, inclusive"],
                ),
                (
                    "/spec/ports/0/nodePort",
                    json!(30000),
                    &["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"],
                ),
                (
                    "/spec/ports/0/protocol",
                    json!("ICMP"),
                    &[r#"spec.ports[0].protocol: Unsupported value: "ICMP": supported values: "SCTP", "TCP", "UDP""#],
                ),
            ],
        );
    }

    #[test]
    fn validates_types_and_addresses() {
        let name = |name: &str| service(json!({"type": "ExternalName", "externalName": name, "ports": []}));
        let check =
            |base: &Value, errors: &[&str]| check_create(&Ruled::new(validate), base, &[("", Value::Null, errors)]);
        check(&name("a.example."), &[]);
        check(&name(""), &["spec.externalName: Required value"]);
        check(&name("A"), &["spec.externalName: Invalid value: \"A\": a lowercase RFC 1123 subdomain…"]);
        let headless = json!({"clusterIP": "None", "clusterIPs": ["None"]});
        check(&service(headless.clone()), &[]);
        let mut node_port = service(headless);
        node_port["spec"]["type"] = "NodePort".into();
        node_port["spec"]["externalTrafficPolicy"] = "Cluster".into();
        check(
            &node_port,
            &["spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services"],
        );
        let ips = |ip: &str, ips: Value| service(json!({"clusterIP": ip, "clusterIPs": ips}));
        check(&ips("10.0.0.1", json!(["10.0.0.1", "fd00::1"])), &[]);
        let first = "spec.clusterIPs: Invalid value: [\"10.0.0.2\"]: first value must match `clusterIP`";
        check(&ips("10.0.0.1", json!(["10.0.0.2"])), &[first]);
        let family = "spec.clusterIPs: Invalid value: [\"10.0.0.1\",\"10.0.0.2\"]: may specify no more than one IP for each IP family";
        check(&ips("10.0.0.1", json!(["10.0.0.1", "10.0.0.2"])), &[family]);
        let none = "spec.clusterIPs: Invalid value: [\"None\",\"10.0.0.2\"]: 'None' must be the first and only value";
        check(&ips("None", json!(["None", "10.0.0.2"])), &[none]);
        let external = json!({"externalIPs": ["127.0.0.1"], "externalTrafficPolicy": "Cluster"});
        let loopback = "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)";
        check(&service(external), &[loopback]);
    }

    #[test]
    fn validates_session_affinity_and_load_balancer_fields() {
        let only = "may only be used when `type` is 'LoadBalancer'";
        check_create(
            &Ruled::new(validate),
            &service(
                json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10}}}),
            ),
            &[
                ("", Value::Null, &[]),
                (
                    "/spec/sessionAffinityConfig/clientIP/timeoutSeconds",
                    json!(86401),
                    &[
                        "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: must be greater than 0 and less than 86400",
                    ],
                ),
                (
                    "/spec/loadBalancerSourceRanges",
                    json!(["10.0.0.0/8"]),
                    &[&format!("spec.LoadBalancerSourceRanges: Forbidden: {only}")],
                ),
                ("/spec/loadBalancerClass", json!("a/b"), &[&format!("spec.loadBalancerClass: Forbidden: {only}")]),
                (
                    "/spec/allocateLoadBalancerNodePorts",
                    json!(true),
                    &[&format!("spec.allocateLoadBalancerNodePorts: Forbidden: {only}")],
                ),
                (
                    "/spec/trafficDistribution",
                    json!("Other"),
                    &["spec.trafficDistribution: Unsupported value: \"Other\": supported values: …"],
                ),
            ],
        );
    }

    #[test]
    fn keeps_primary_addresses_on_update() {
        let spec = json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"], "ipFamilyPolicy": "PreferDualStack",
            "ipFamilies": ["IPv4", "IPv6"]});
        let ips = |first: &str| {
            json!({"clusterIP": first, "clusterIPs": [first, "fd00::1"], "ipFamilyPolicy": "PreferDualStack",
            "ipFamilies": ["IPv4", "IPv6"], "ports": [{"port": 1, "targetPort": 1, "protocol": "TCP"}], "type": "ClusterIP"})
        };
        let changed = "spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\",\"fd00::1\"]: may not change once set";
        let release = "spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": must be set to 'SingleStack' when releasing the secondary clusterIP";
        check_update(
            &Ruled::new(validate).with_update(update),
            &service(spec),
            &[
                ("/metadata/labels", json!({"a": "b"}), &[]),
                ("/spec", ips("10.0.0.2"), &[changed]),
                ("/spec/clusterIPs", json!(["10.0.0.1"]), &[release]),
            ],
        );
        let class = "spec.loadBalancerClass: Invalid value: \"c/d\": may not change once set";
        let balanced =
            service(json!({"type": "LoadBalancer", "loadBalancerClass": "a/b", "externalTrafficPolicy": "Cluster"}));
        check_update(
            &Ruled::new(validate).with_update(update),
            &balanced,
            &[("/spec/loadBalancerClass", json!("c/d"), &[class])],
        );
    }

    #[test]
    fn warns_of_ignored_fields() {
        let check = |spec: Value, expected: &[&str]| {
            let service = Object::from_value(service(spec)).expect("an object");
            assert_eq!(warnings(&service), expected);
        };
        check(json!({}), &[]);
        check(
            json!({"type": "ClusterIP", "clusterIP": "None", "sessionAffinity": "ClientIP"}),
            &["spec.SessionAffinity is ignored for headless services"],
        );
        check(
            json!({"type": "ClusterIP", "externalName": "a"}),
            &["spec.externalName is ignored when spec.type is not \"ExternalName\""],
        );
        let close = "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"";
        check(json!({"trafficDistribution": "PreferClose"}), &[close]);
    }

    #[test]
    fn validates_the_status() {
        let strategy = Ruled::new(validate).with_status(|o, _, errors| status(o, errors));
        let field = "/status/loadBalancer/ingress";
        let path = "status.loadBalancer.ingress";
        check_status(
            &strategy,
            &service(json!({"type": "LoadBalancer"})),
            &[
                (field, json!([{"ip": "192.0.2.1", "ipMode": "VIP"}]), &[]),
                (
                    field,
                    json!([{"ip": "192.0.2.1"}]),
                    &[&format!("{path}[0].ipMode: Required value: must be specified when `ip` is set")],
                ),
                (
                    field,
                    json!([{"hostname": "a", "ipMode": "VIP"}]),
                    &[&format!("{path}[0].ipMode: Forbidden: may not be specified when `ip` is not set")],
                ),
                (
                    field,
                    json!([{"hostname": "192.0.2.1"}]),
                    &[&format!(
                        "{path}[0].hostname: Invalid value: \"192.0.2.1\": must be a DNS name, not an IP address"
                    )],
                ),
            ],
        );
        let only = format!("{path}: Forbidden: may only be used when `spec.type` is 'LoadBalancer'");
        check_status(
            &strategy,
            &service(json!({})),
            &[(field, json!([{"ip": "192.0.2.1", "ipMode": "VIP"}]), &[&only])],
        );
    }
}
