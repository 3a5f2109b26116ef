//! The desired packet rules for the services.

use client::Meta;
use client::informer::or_default;
use network::{Affinity, Cidr, Endpoint, Family, Policy, Protocol, ServicePort};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::Reserved;
use crate::health_check::Health;
use crate::topology::{Candidate, Location, choose};

pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Labels of services that other proxies handle; the second is also one of slices.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
const HEADLESS: &str = "service.kubernetes.io/headless";

/// The fields of a service that the proxy uses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct View {
    spec: Spec,
    status: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    r#type: String,
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    #[serde(rename = "clusterIPs", deserialize_with = "or_default")]
    cluster_ips: Vec<String>,
    #[serde(rename = "externalIPs")]
    external_ips: Vec<String>,
    ports: Vec<Port>,
    session_affinity: String,
    session_affinity_config: Value,
    internal_traffic_policy: String,
    external_traffic_policy: String,
    health_check_node_port: u16,
    #[serde(deserialize_with = "or_default")]
    load_balancer_source_ranges: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Port {
    name: String,
    protocol: String,
    port: u16,
    node_port: u16,
}

/// The fields of an endpoint slice that the proxy uses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Slice {
    /// The addresses of other types (`FQDN`) are names, even if they look like addresses.
    address_type: Option<Box<str>>,
    endpoints: Option<Vec<SliceEndpoint>>,
    ports: Option<Vec<SlicePort>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SliceEndpoint {
    addresses: Vec<String>,
    conditions: Conditions,
    node_name: Option<String>,
    #[serde(deserialize_with = "or_default")]
    hints: Hints,
}

/// The zones and nodes that should use an endpoint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Hints {
    #[serde(deserialize_with = "or_default")]
    for_zones: Vec<Hint>,
    #[serde(deserialize_with = "or_default")]
    for_nodes: Vec<Hint>,
}

/// A zone or node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Hint {
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SlicePort {
    name: Option<String>,
    /// Not validated: clients may write any number.
    port: Option<i64>,
    protocol: Option<String>,
}

/// Maximum of endpoints of one service port, as of an Endpoints object. Of more, those on this node and then some of every slice are
/// used.
const ENDPOINTS: usize = 1000;
/// Maximum of endpoints, addresses and ports of all services of one namespace together.
const PARTS: usize = 20_000;
/// Maximum of ports with session affinity of one namespace, each of which has a table in the kernel.
const WITH_AFFINITY: usize = 128;

/// The desired rules, and what exceeds the limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    pub ports: Vec<Arc<ServicePort>>,
    /// The ports for health checks.
    pub health_checks: BTreeMap<u16, Health>,
    /// What was left out, by namespace.
    pub excess: BTreeMap<String, Excess>,
}

/// What exceeds the share of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Excess {
    /// Endpoints left out of ports that have too many.
    pub endpoints: usize,
    /// Ports without rules.
    pub ports: usize,
    /// Ports without session affinity.
    pub affinities: usize,
}

/// What a namespace uses so far.
#[derive(Default)]
struct Taken {
    parts: usize,
    with_affinity: usize,
}

/// The ports of all services with the endpoints that this node uses. Of external addresses and those of load balancers, none is used that
/// is `reserved`.
pub fn desired<'a>(
    services: impl Iterator<Item = (&'a Meta, &'a View)>,
    slices: impl Iterator<Item = (&'a Meta, &'a Slice)>,
    location: Location,
    reserved: &Reserved,
) -> Desired {
    let mut by_service: BTreeMap<(&str, &str), Vec<&Slice>> = BTreeMap::new();
    for (meta, slice) in slices {
        if let Some(name) = meta.label(SERVICE_NAME).filter(|_| meta.label(HEADLESS).is_none()) {
            by_service.entry((&meta.namespace, name)).or_default().push(slice);
        }
    }
    let is_own = |meta: &Meta| meta.label(PROXY_NAME).is_none() && meta.label(HEADLESS).is_none();
    let mut services: Vec<_> = services.filter(|(meta, _)| is_own(meta)).collect();
    services.sort_by_key(|(meta, _)| (&*meta.namespace, &*meta.name));
    let mut out = Desired::default();
    let mut taken: BTreeMap<&str, Taken> = BTreeMap::new();
    for (meta, service) in services {
        let spec = &service.spec;
        let own = by_service.get(&(&*meta.namespace, &*meta.name)).into_iter().flatten();
        let own: Vec<Numbered> = own.map(|slice| Numbered::new(slice)).collect();
        let (all_external, all_balancers) = (parsed(&spec.external_ips), balancers(service));
        let all_ranges: Vec<Cidr> = spec.load_balancer_source_ranges.iter().filter_map(|r| range(r)).collect();
        let taken = taken.entry(&meta.namespace).or_default();
        let mut excess = Excess::default();
        // Each port in each family of the service.
        let pairs = service.cluster_ips().into_iter().flat_map(|ip| spec.ports.iter().map(move |port| (ip, port)));
        for (cluster_ip, port) in pairs {
            let family = Family::of(cluster_ip);
            let of_family = |all: &[IpAddr]| -> Vec<IpAddr> {
                all.iter().copied().filter(|ip| Family::of(*ip) == family).collect()
            };
            let (external_ips, load_balancer_ips) = (of_family(&all_external), of_family(&all_balancers));
            // Ranges of one family match no address of the other one; the API server stores no invalid ones.
            let source_ranges: Vec<Cidr> = all_ranges.iter().copied().filter(|r| r.family() == family).collect();
            let is_restricted = !spec.load_balancer_source_ranges.is_empty();
            let load_balancer_ips =
                if is_restricted && source_ranges.is_empty() { Vec::new() } else { load_balancer_ips };
            let addresses = external_ips.len() + load_balancer_ips.len() + source_ranges.len();
            let Some(protocol) = protocol(&port.protocol) else { continue };
            let parts = taken.parts + 1 + addresses;
            let found = PARTS.checked_sub(parts).map(|room| (room, endpoints(&own, family, port, location)));
            let Some((endpoints, more)) = found.filter(|(room, (e, _))| e.len() <= *room).map(|(_, found)| found)
            else {
                // Further ports are not read.
                taken.parts = PARTS;
                excess.ports += 1;
                continue;
            };
            taken.parts += 1 + addresses + endpoints.len();
            excess.endpoints += more;
            let mut affinity = affinity(spec);
            if affinity != Affinity::None {
                taken.with_affinity += 1;
                if taken.with_affinity > WITH_AFFINITY {
                    excess.affinities += 1;
                    affinity = Affinity::None;
                }
            }
            let allowed = |all: &[IpAddr]| -> Vec<IpAddr> {
                all.iter().copied().filter(|ip| reserved.allows(*ip, protocol, port.port)).collect()
            };
            out.ports.push(Arc::new(ServicePort {
                name: format!("{}/{}:{}", meta.namespace, meta.name, port_name(port)).into(),
                cluster_ip,
                protocol,
                port: port.port,
                node_port: Some(port.node_port).filter(|p| *p > 0),
                external_ips: allowed(&external_ips),
                load_balancer_ips: allowed(&load_balancer_ips),
                source_ranges: source_ranges.clone(),
                endpoints,
                affinity,
                internal_policy: policy(&spec.internal_traffic_policy),
                external_policy: policy(&spec.external_traffic_policy),
            }));
        }
        if spec.health_check_node_port > 0 && policy(&spec.external_traffic_policy) == Policy::Local {
            let (namespace, name) = (meta.namespace.to_string(), meta.name.to_string());
            let health = Health { namespace, name, local_endpoints: ready_here(&own, location.node) };
            out.health_checks.insert(spec.health_check_node_port, health);
        }
        if excess != Excess::default() {
            let all = out.excess.entry(meta.namespace.to_string()).or_default();
            all.endpoints += excess.endpoints;
            all.ports += excess.ports;
            all.affinities += excess.affinities;
        }
    }
    out.ports.sort_by(|a, b| a.name.cmp(&b.name));
    out
}

fn port_name(p: &Port) -> String {
    if p.name.is_empty() { format!("{}-{}", p.port, p.protocol.to_lowercase()) } else { p.name.clone() }
}

fn protocol(text: &str) -> Option<Protocol> {
    match text {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

fn policy(text: &str) -> Policy {
    if text == "Local" { Policy::Local } else { Policy::Cluster }
}

fn affinity(spec: &Spec) -> Affinity {
    if spec.session_affinity != "ClientIP" {
        return Affinity::None;
    }
    let seconds = spec.session_affinity_config["clientIP"]["timeoutSeconds"].as_i64().unwrap_or(10_800);
    Affinity::ClientIp(meta::time::seconds(seconds))
}

fn parsed(addresses: &[String]) -> Vec<IpAddr> {
    addresses.iter().filter_map(|ip| ip.parse().ok()).collect()
}

/// A range of addresses. Bits beyond the length are ignored.
pub(crate) fn range(text: &str) -> Option<Cidr> {
    let (address, length) = text.trim().split_once('/')?;
    let (address, length): (IpAddr, u8) = (address.parse().ok()?, length.parse().ok()?);
    (length <= Family::of(address).bits()).then(|| Cidr::around(address, length))
}

/// The addresses of the service's load balancer for which nodes receive packets: those of one that forwards connections by itself
/// (`ipMode: Proxy`) lead to the balancer.
fn balancers(service: &View) -> Vec<IpAddr> {
    let balanced = service.spec.r#type == "LoadBalancer";
    let ingress = service.status["loadBalancer"]["ingress"].as_array().filter(|_| balanced);
    let to_nodes = ingress.into_iter().flatten().filter(|i| i["ipMode"] != "Proxy");
    to_nodes.filter_map(|i| i["ip"].as_str()?.parse().ok()).collect()
}

impl View {
    /// The addresses of the service, at most one of each family; none of a headless service.
    fn cluster_ips(&self) -> Vec<IpAddr> {
        let Ok(first) = self.spec.cluster_ip.parse::<IpAddr>() else { return Vec::new() };
        let others = parsed(&self.spec.cluster_ips);
        std::iter::once(first).chain(others.into_iter().find(|ip| Family::of(*ip) != Family::of(first))).collect()
    }
}

impl Slice {
    /// All addresses with all port numbers.
    fn has_addresses(&self) -> bool {
        self.address_type.as_deref().is_none_or(|t| matches!(t, "IPv4" | "IPv6"))
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = (IpAddr, u16)> {
        let all = self.endpoints.iter().flatten().flat_map(|e| &e.addresses).filter_map(|a| a.parse().ok());
        let ports = || self.ports.iter().flatten().filter_map(|p| u16::try_from(p.port?).ok());
        all.flat_map(move |address| ports().map(move |port| (address, port)))
    }
}

/// A slice with its port numbers by name and protocol.
struct Numbered<'a> {
    slice: &'a Slice,
    numbers: HashMap<(&'a str, &'a str), Option<i64>>,
}

impl<'a> Numbered<'a> {
    fn new(slice: &'a Slice) -> Self {
        let mut numbers = HashMap::new();
        for p in slice.ports.iter().flatten() {
            let key = (p.name.as_deref().unwrap_or_default(), p.protocol.as_deref().unwrap_or("TCP"));
            numbers.entry(key).or_insert(p.port); // the first one counts
        }
        Self { slice, numbers }
    }
}

/// The number of ready endpoints on a node: those of one family, if a service has both.
fn ready_here(slices: &[Numbered], node: &str) -> usize {
    let all = slices.iter().flat_map(|s| s.slice.endpoints.iter().flatten());
    let here = all.filter(|e| e.conditions.ready.unwrap_or(true) && e.node_name.as_deref() == Some(node));
    let addresses: BTreeSet<&String> = here.filter_map(|e| e.addresses.first()).collect();
    let of_v6 = addresses.iter().filter(|address| address.contains(':')).count();
    of_v6.max(addresses.len() - of_v6)
}

/// The endpoints of a port in a family, and the number of those left out.
fn endpoints(slices: &[Numbered], family: Family, port: &Port, location: Location) -> (Vec<Endpoint>, usize) {
    let mut candidates = Vec::new();
    for Numbered { slice, numbers } in slices.iter().filter(|n| n.slice.has_addresses()) {
        let number = numbers.get(&(&*port.name, &*port.protocol)).and_then(|n| u16::try_from((*n)?).ok());
        let Some(number) = number.filter(|n| *n > 0) else { continue };
        for (index, e) in slice.endpoints.iter().flatten().enumerate() {
            let address = e.addresses.first().and_then(|a| a.parse().ok());
            // Those of the machine itself (loopback, link-local) are refused by the API server, too.
            let is_usable = |a: &IpAddr| Family::of(*a) == family && !meta::address::is_special(*a);
            let Some(address) = address.filter(is_usable) else { continue };
            let c = &e.conditions;
            let is_ready = c.ready.unwrap_or(true);
            if is_ready || c.serving.unwrap_or(false) && c.terminating.unwrap_or(false) {
                let is_local = e.node_name.as_deref() == Some(location.node);
                let (zones, nodes) = (&e.hints.for_zones[..], &e.hints.for_nodes[..]);
                candidates.push(Candidate { index, address, port: number, is_local, is_ready, zones, nodes });
            }
        }
    }
    let found = choose(&candidates, location);
    let mut out: Vec<Endpoint> = found.iter().map(|(_, e)| *e).collect();
    out.sort();
    out.dedup();
    let more = out.len().saturating_sub(ENDPOINTS);
    if more > 0 {
        // Local ones first, then the first of every slice, the second of every slice…
        let mut by_turns: Vec<_> = found.into_iter().map(|(index, e)| (!e.local, index, e)).collect();
        by_turns.sort();
        let mut chosen = BTreeSet::new();
        for (_, _, endpoint) in by_turns {
            if chosen.len() == ENDPOINTS {
                break;
            }
            chosen.insert(endpoint);
        }
        out = chosen.into_iter().collect();
    }
    (out, more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const HERE: Location = Location { node: "n", zone: "" };

    fn addresses(conditions: &[Value]) -> Vec<String> {
        let all: Vec<Value> = conditions
            .iter()
            .enumerate()
            .map(|(i, c)| json!({"addresses": [format!("10.0.0.{i}")], "conditions": c}))
            .collect();
        let slice: Slice = serde_json::from_value(
            json!({"endpoints": all, "ports": [{"name": "a", "port": 8080, "protocol": "TCP"}]}),
        )
        .unwrap();
        let port = Port { name: "a".into(), protocol: "TCP".into(), port: 80, node_port: 0 };
        endpoints(&[Numbered::new(&slice)], Family::V4, &port, HERE).0.iter().map(|e| e.address.to_string()).collect()
    }

    #[test]
    fn load_balancers_and_their_health_checks() {
        let spec = json!({"type": "LoadBalancer", "clusterIP": "10.96.0.9", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000,
            "loadBalancerSourceRanges": ["192.0.2.7/24", "fd00::/64"], "externalIPs": ["198.51.100.1"],
            "ports": [{"name": "a", "protocol": "TCP", "port": 80}]});
        let ingress = json!([{"ip": "10.97.0.1", "ipMode": "VIP"}, {"ip": "10.97.0.2"}, {"ip": "10.97.0.3", "ipMode": "Proxy"}, {"hostname": "x"}]);
        let (mut views, slices) = services("x", 1, &spec, 3);
        views[0].1.status = json!({"loadBalancer": {"ingress": ingress}});
        let check = |views: &[(Meta, View)]| {
            desired(views.iter().map(|(m, v)| (m, v)), slices.iter().map(|(m, s)| (m, s)), HERE, &Reserved::default())
        };
        let found = check(&views);
        let health = Health { namespace: "x".into(), name: "s00".into(), local_endpoints: 1 };
        assert_eq!(found.health_checks, [(31000, health)].into());
        let port = &found.ports[0];
        assert_eq!(port.load_balancer_ips, ["10.97.0.1", "10.97.0.2"].map(|a| a.parse::<IpAddr>().unwrap()));
        assert_eq!(port.external_ips, ["198.51.100.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(port.source_ranges, ["192.0.2.0/24".parse().unwrap()]);
        views[0].1.spec.load_balancer_source_ranges = vec!["fd00::/64".into()];
        assert!(check(&views).ports[0].load_balancer_ips.is_empty(), "no address of IPv4 may connect");
        views[0].1.spec.r#type = "NodePort".into();
        views[0].1.spec.external_traffic_policy = "Cluster".into();
        let found = check(&views);
        assert!(found.ports[0].load_balancer_ips.is_empty() && found.health_checks.is_empty());
    }

    #[test]
    fn any_number_may_stand_for_a_port() {
        let port = Port { name: String::new(), protocol: "TCP".into(), port: 80, node_port: 0 };
        for (number, reached) in [(json!(8080), 1), (json!(70_000), 0), (json!(-1), 0), (json!(0), 0), (json!(null), 0)]
        {
            let slice = json!({"endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": number}]});
            let slice: Slice = serde_json::from_value(slice).unwrap();
            assert_eq!(endpoints(&[Numbered::new(&slice)], Family::V4, &port, HERE).0.len(), reached, "{number}");
        }
    }

    #[test]
    fn terminating_endpoints_serve_only_without_ready_ones() {
        let ready = json!({"ready": true});
        let ending = json!({"ready": false, "serving": true, "terminating": true});
        let down = json!({"ready": false, "serving": false});
        assert_eq!(addresses(&[ready.clone(), ending.clone(), down.clone()]), ["10.0.0.0"]);
        assert_eq!(addresses(&[down.clone(), ending]), ["10.0.0.1"]);
        assert!(addresses(&[down]).is_empty());
        assert_eq!(addresses(&[json!({})]), ["10.0.0.0"]);
    }

    /// A slice with `count` endpoints, of which the last is on this node.
    fn slice_of(number: usize, count: usize) -> Value {
        let endpoint = |i: usize| json!({"addresses": [format!("172.16.{number}.{i}")]});
        let mut all: Vec<Value> = (0..count).map(endpoint).collect();
        all[count - 1]["nodeName"] = "n".into();
        json!({"endpoints": all, "ports": [{"name": "a", "port": 8080}]})
    }

    #[test]
    fn of_very_many_endpoints_some_of_every_slice_are_taken() {
        let slices: Vec<Slice> = (0..12).map(|n| serde_json::from_value(slice_of(n, 100 + n * 10)).unwrap()).collect();
        let port = Port { name: "a".into(), protocol: "TCP".into(), port: 80, node_port: 0 };
        let all: Vec<Numbered> = slices.iter().map(Numbered::new).collect();
        let (taken, more) = endpoints(&all, Family::V4, &port, HERE);
        assert_eq!((taken.len(), more), (ENDPOINTS, 12 * 100 + 660 - ENDPOINTS));
        assert_eq!(taken.iter().filter(|e| e.local).count(), 12, "those of this node");
        for n in 0..12 {
            let own = taken.iter().filter(|e| e.address.to_string().starts_with(&format!("172.16.{n}."))).count();
            assert!((80..90).contains(&own), "{own} of slice {n}");
        }
        let other_order: Vec<Numbered> = slices.iter().rev().map(Numbered::new).collect();
        assert_eq!(endpoints(&other_order, Family::V4, &port, HERE).0, taken);
    }

    /// Services `s00`, `s01`… of a namespace, each with a slice of so many endpoints.
    fn services(
        namespace: &str,
        count: usize,
        spec: &Value,
        endpoints: usize,
    ) -> (Vec<(Meta, View)>, Vec<(Meta, Slice)>) {
        let meta = |name: String, service: Option<String>| {
            let labels = service.map(|s| [(SERVICE_NAME.into(), s.into())].into_iter().collect());
            let labels = labels.map(client::informer::Labels::from_sorted).unwrap_or_default();
            Meta { name: name.into(), namespace: namespace.into(), labels, ..Meta::default() }
        };
        let names = (0..count).map(|n| format!("s{n:02}"));
        let view: View = serde_json::from_value(json!({"spec": spec})).unwrap();
        let views = names.clone().map(|n| (meta(n, None), view.clone())).collect();
        let slice: Slice = serde_json::from_value(slice_of(0, endpoints)).unwrap();
        (views, names.map(|n| (meta(n.clone(), Some(n)), slice.clone())).collect())
    }

    #[test]
    fn a_namespace_has_its_share_and_takes_none_of_others() {
        let port = json!({"name": "a", "protocol": "TCP", "port": 80});
        let spec = json!({"clusterIP": "10.96.0.9", "sessionAffinity": "ClientIP", "ports": [port]});
        let (mut views, mut slices) = services("greedy", 200, &spec, 150);
        let (more_views, more_slices) = services("modest", 2, &spec, 2);
        views.extend(more_views);
        slices.extend(more_slices);
        let desired =
            desired(views.iter().map(|(m, v)| (m, v)), slices.iter().map(|(m, s)| (m, s)), HERE, &Reserved::default());
        let of = |namespace: &str| desired.ports.iter().filter(|p| p.name.starts_with(namespace)).collect::<Vec<_>>();
        assert_eq!(of("greedy").len(), PARTS / 151);
        assert_eq!(of("greedy").iter().filter(|p| p.affinity != Affinity::None).count(), WITH_AFFINITY);
        let excess = Excess { endpoints: 0, ports: 200 - PARTS / 151, affinities: PARTS / 151 - WITH_AFFINITY };
        assert_eq!(desired.excess, [("greedy".to_owned(), excess)].into());
        assert!(of("modest").len() == 2 && of("modest").iter().all(|p| p.affinity != Affinity::None));
    }

    /// A name may look like an address: then connections to the service reached programs of the machine that listen to it alone.
    #[test]
    fn names_and_addresses_of_the_machine_are_no_endpoints() {
        let found = |kind: &str, address: &str| {
            let slice = json!({"addressType": kind, "endpoints": [{"addresses": [address]}],
                "ports": [{"name": "a", "port": 8080, "protocol": "TCP"}]});
            let slice: Slice = serde_json::from_value(slice).unwrap();
            let port = Port { name: "a".into(), protocol: "TCP".into(), port: 80, node_port: 0 };
            let family = if kind == "IPv6" { Family::V6 } else { Family::V4 };
            endpoints(&[Numbered::new(&slice)], family, &port, HERE).0.len()
        };
        assert_eq!((found("IPv4", "10.0.0.1"), found("IPv6", "fd00::1")), (1, 1));
        let others = [
            ("FQDN", "127.0.0.1"),
            ("FQDN", "10.0.0.1"),
            ("IPv4", "127.0.0.1"),
            ("IPv4", "169.254.1.1"),
            ("IPv6", "::1"),
        ];
        for (kind, address) in others {
            assert_eq!(found(kind, address), 0, "{kind} {address}");
        }
    }

    #[test]
    fn addresses_and_ports_without_endpoints_count_too() {
        let ports: Vec<Value> =
            (1..=100).map(|p| json!({"name": format!("p{p}"), "protocol": "TCP", "port": p})).collect();
        let addresses: Vec<String> = (0..399).map(|n| format!("192.0.{}.{}", n / 200, n % 200)).collect();
        let spec = json!({"clusterIP": "10.96.0.9", "externalIPs": addresses, "ports": ports});
        let (views, _) = services("x", 1, &spec, 1);
        let desired = desired(views.iter().map(|(m, v)| (m, v)), std::iter::empty(), HERE, &Reserved::default());
        assert_eq!(desired.ports.len(), 50);
        assert_eq!(desired.excess["x"].ports, 50);
    }

    /// As upstream's, whose informers do not even list them.
    #[test]
    fn what_has_another_proxy_is_left_to_it() {
        let spec = json!({"clusterIP": "10.96.0.9", "ports": [{"name": "a", "protocol": "TCP", "port": 80}]});
        for (label, on_slice, ports, endpoints) in [
            ("example.com/label", false, 1, 2),
            (PROXY_NAME, false, 0, 0),
            (HEADLESS, false, 0, 0),
            (HEADLESS, true, 1, 0),
        ] {
            let (mut views, mut slices) = services("x", 1, &spec, 2);
            let labelled = if on_slice { &mut slices[0].0 } else { &mut views[0].0 };
            let mut labels: Vec<(Arc<str>, Arc<str>)> =
                labelled.label(SERVICE_NAME).map(|s| (SERVICE_NAME.into(), s.into())).into_iter().collect();
            labels.push((label.into(), "".into()));
            labels.sort();
            labelled.labels = client::informer::Labels::from_sorted(labels.into());
            let desired = desired(
                views.iter().map(|(m, v)| (m, v)),
                slices.iter().map(|(m, s)| (m, s)),
                HERE,
                &Reserved::default(),
            );
            let found: usize = desired.ports.iter().map(|p| p.endpoints.len()).sum();
            assert_eq!((desired.ports.len(), found), (ports, endpoints), "{label} {on_slice}");
        }
    }

    #[test]
    fn a_service_of_both_families_has_rules_in_each() {
        let spec = json!({"type": "LoadBalancer", "clusterIP": "fd00:10:96::9", "clusterIPs": ["fd00:10:96::9", "10.96.0.9"],
            "externalIPs": ["198.51.100.1", "2001:db8::1"], "loadBalancerSourceRanges": ["2001:db8::/32"],
            "ports": [{"name": "a", "protocol": "TCP", "port": 80, "nodePort": 30080}]});
        let (mut views, mut slices) = services("x", 1, &spec, 2);
        let ingress = json!([{"ip": "10.97.0.1"}, {"ip": "fd00:10:97::1"}]);
        views[0].1.status = json!({"loadBalancer": {"ingress": ingress}});
        let mut other = slices[0].clone();
        other.0.name = "s00-v6".into();
        other.1 = serde_json::from_value(
            json!({"endpoints": [{"addresses": ["fd00::7"]}], "ports": [{"name": "a", "port": 8080}]}),
        )
        .unwrap();
        slices.push(other);
        let found =
            desired(views.iter().map(|(m, v)| (m, v)), slices.iter().map(|(m, s)| (m, s)), HERE, &Reserved::default());
        let texts = |all: &[IpAddr]| all.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ");
        let shown: Vec<_> = found
            .ports
            .iter()
            .map(|p| {
                let ends: Vec<IpAddr> = p.endpoints.iter().map(|e| e.address).collect();
                let outer = format!("{} {}", texts(&p.external_ips), texts(&p.load_balancer_ips));
                (p.cluster_ip.to_string(), outer, texts(&ends), p.source_ranges.len(), p.node_port)
            })
            .collect();
        let v6 =
            ("fd00:10:96::9".to_owned(), "2001:db8::1 fd00:10:97::1".to_owned(), "fd00::7".to_owned(), 1, Some(30080));
        // No client of IPv4 may use the load balancer.
        let v4 =
            ("10.96.0.9".to_owned(), "198.51.100.1 ".to_owned(), "172.16.0.0 172.16.0.1".to_owned(), 0, Some(30080));
        assert_eq!(shown, [v6, v4]);
    }
}
