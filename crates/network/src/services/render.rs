//! Renders the desired services as a table of nftables.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};

use super::{Affinity, Endpoint, FamilyOptions, Policy, ServicePort, table};
use crate::address::{Cidr, Family, outermost};
use crate::conntrack::Flows;
use crate::host_ports::HostPort;
use crate::protocol::Protocol;
use crate::ruleset::{Chain, Container, Ruleset};

/// The mark of packets to forward with the node's address, so that the answer comes back through it.
const MARK: u32 = 0x4000;

/// Clients with affinity of one service port; more get no affinity. The kernel allocates the table for all of them at once: 256 KiB.
const CLIENTS: u32 = 24_576;

/// The service port without external addresses that no service may have. A user may write any address into a service; these belong to
/// pods, the node, other services or the machine's links, or are reserved. (For ports of the node itself see [`exempt`].)
pub fn without_taken(options: &FamilyOptions, service: &Arc<ServicePort>) -> Arc<ServicePort> {
    let reserved = |ip: &IpAddr| {
        let is_special = match ip {
            IpAddr::V4(a) => a.is_link_local() || a.is_broadcast() || a.octets()[0] == 0,
            IpAddr::V6(a) => a.is_unicast_link_local() || a.is_unspecified() || a.to_ipv4_mapped().is_some(),
        };
        is_special
            || options.cluster_range.contains(*ip)
            || options.service_range.contains(*ip)
            || ip.is_loopback()
            || ip.is_multicast()
    };
    // Those of load balancers are given away by a controller.
    let taken = |ip: &IpAddr| reserved(ip) || options.load_balancer_range.is_some_and(|range| range.contains(*ip));
    let mut service = service.clone();
    if service.external_ips.iter().any(taken) || service.load_balancer_ips.iter().any(reserved) {
        let own = Arc::make_mut(&mut service);
        own.external_ips.retain(|ip| !taken(ip));
        own.load_balancer_ips.retain(|ip| !reserved(ip));
    }
    service
}

/// Maps with elements of several services.
pub const SHARED_MAPS: [&str; 5] =
    ["service-ips", "service-nodeports", "no-endpoint-services", "no-endpoint-nodeports", ENDPOINTS];

/// The declaration of such a map, or of such a set.
fn declaration(family: Family, name: &str) -> String {
    let kind = family.kind();
    match name {
        "service-ips" | "no-endpoint-services" => format!("{{ type {kind} . inet_proto . inet_service : verdict; }}"),
        "service-nodeports" | "no-endpoint-nodeports" => "{ type inet_proto . inet_service : verdict; }".to_owned(),
        ENDPOINTS => format!("{{ type {kind} . inet_proto . inet_service . classid : {kind} . inet_service; }}"),
        _ => format!("{{ type {kind} . {kind}; }}"),
    }
}

/// The map of the endpoints of services by the services' addresses and ports, and numbers from 0.
const ENDPOINTS: &str = "endpoints";
/// The beginning of names of the chains that pick one of so many endpoints of this map.
const NUMBERED_PICKER: &str = "pick-";

/// Sets with elements of several services.
pub const SHARED_SETS: [&str; 1] = ["hairpin"];

/// Whether several services have elements in this map or set.
pub fn is_shared(name: &str) -> bool {
    SHARED_MAPS.iter().chain(&SHARED_SETS).any(|shared| *shared == name)
}

/// Whether several services use this chain.
pub fn is_shared_chain(name: &str) -> bool {
    name.starts_with(NUMBERED_PICKER)
}

/// The chain of this name that several services use. The number of the endpoint is in the packet's priority, as with [`sticky`].
pub fn shared_chain(family: Family, name: &str) -> Chain {
    let ip = family.word();
    let count: u32 = name.strip_prefix(NUMBERED_PICKER).and_then(|n| n.parse().ok()).unwrap_or(1);
    let choices: Vec<String> = (0..count).map(|n| format!("{n} : {}", numbered(n))).collect();
    let go = format!("dnat {ip} addr . port to {ip} daddr . meta l4proto . th dport . meta priority map @{ENDPOINTS}");
    let protocols = "meta l4proto { tcp, udp, sctp }";
    let rules = [
        format!("{protocols} meta priority set numgen random mod {count} map {{ {} }} {go}", choices.join(", ")),
        // While the map changes, a packet may see the old number; the first endpoint exists in any case.
        format!("{protocols} meta priority set {} {go}", numbered(0)),
    ];
    Chain { declaration: String::new(), rules: rules.to_vec() }
}

/// The number of an endpoint, from 0, as `nft` writes it in a priority: the lowest one has a name of its own.
fn numbered(number: u32) -> String {
    class(number.wrapping_add(1))
}

/// The rules of one service port: its chains and maps, and its elements of shared maps and sets.
pub fn render_port(options: &FamilyOptions, service: &ServicePort) -> Ruleset {
    let mut out = containers(options);
    render_service(&mut out, options, service);
    out
}

fn containers(options: &FamilyOptions) -> Ruleset {
    let mut out = Ruleset::new(options.family, table(&options.id));
    let container = |name: &str| Container { declaration: declaration(options.family, name), ..Container::default() };
    out.maps.extend(SHARED_MAPS.map(|name| (name.to_owned(), container(name))));
    out.sets.extend(SHARED_SETS.map(|name| (name.to_owned(), container(name))));
    out
}

/// The rules of all services.
#[cfg(test)]
pub fn render<'a>(options: &FamilyOptions, services: impl IntoIterator<Item = &'a ServicePort>) -> Ruleset {
    let mut out = frame(options);
    for service in services {
        render_service(&mut out, options, service);
    }
    out
}

/// The destinations of UDP packets, with their endpoints.
pub fn flows<'a>(services: impl IntoIterator<Item = &'a ServicePort>) -> Flows {
    let mut flows = Flows::default();
    for service in services.into_iter().filter(|s| s.protocol == Protocol::Udp) {
        let endpoints: Arc<BTreeSet<_>> = Arc::new(service.endpoints.iter().map(|e| (e.address, e.port)).collect());
        for ip in std::iter::once(&service.cluster_ip).chain(outer_ips(service)) {
            flows.services.insert((*ip, service.port), endpoints.clone());
        }
        if let Some(port) = service.node_port {
            flows.node_ports.insert((Family::of(service.cluster_ip), port), endpoints);
        }
    }
    flows
}

fn chain(out: &mut Ruleset, name: &str, declaration: &str, rules: Vec<String>) {
    out.chains.insert(name.to_owned(), Chain { declaration: declaration.to_owned(), rules });
}

/// The table without services.
pub fn frame(options: &FamilyOptions) -> Ruleset {
    let mut all = containers(options);
    let out = &mut all;
    let ip = options.family.word();
    let [no_port, ..] = options.family.refusals();
    let rules = |rules: &[&str]| rules.iter().map(|r| (*r).to_owned()).collect::<Vec<_>>();
    let local = "fib daddr type local meta l4proto . th dport vmap";
    let mut services = exempt(options);
    services.push(format!("{ip} daddr . meta l4proto . th dport vmap @service-ips"));
    services.push(format!("{local} @service-nodeports"));
    chain(out, "services", "", services);
    let refuse = ["meta l4proto tcp reject with tcp reset".to_owned(), format!("reject with {no_port}")];
    chain(out, "refuse", "", refuse.to_vec());
    chain(out, "discard", "", rules(&["drop"]));
    let ranges: Vec<String> =
        std::iter::once(options.service_range).chain(options.load_balancer_range).map(|r| r.to_string()).collect();
    let mut check = exempt(options);
    check.push(format!("{ip} daddr . meta l4proto . th dport vmap @no-endpoint-services"));
    check.push(format!("{local} @no-endpoint-nodeports"));
    // An untranslated packet: the service port does not exist.
    check.push(format!("{ip} daddr {{ {} }} goto refuse", ranges.join(", ")));
    chain(out, "check", "", check);
    for (hook, name) in [("input", "check-input"), ("forward", "check-forward"), ("output", "check-output")] {
        let declaration = format!("{{ type filter hook {hook} priority filter; policy accept; }}");
        chain(out, name, &declaration, rules(&["ct state new jump check"]));
    }
    for (hook, name) in [("prerouting", "nat-prerouting"), ("output", "nat-output")] {
        let declaration = format!("{{ type nat hook {hook} priority -100; policy accept; }}");
        chain(out, name, &declaration, rules(&["jump services"]));
    }
    let declaration = "{ type nat hook postrouting priority 90; policy accept; }";
    let masquerade = [
        format!("meta mark and {MARK:#x} == {MARK:#x} meta mark set meta mark xor {MARK:#x} masquerade fully-random"),
        // A pod that reaches itself through a service.
        format!("{ip} saddr . {ip} daddr @hairpin masquerade fully-random"),
    ];
    chain(out, "nat-postrouting", declaration, masquerade.to_vec());
    let mark = format!("meta mark set meta mark or {MARK:#x}");
    chain(out, "mark-for-masquerade", "", vec![mark]);
    all
}

/// Rules that exempt what the node itself serves from all services: its loopback, and its own ports on every address that it has at
/// the time of the packet.
fn exempt(options: &FamilyOptions) -> Vec<String> {
    let port = |p: &HostPort| format!("{} . {}", p.protocol.word(), p.port);
    let (mut everywhere, mut at_address) = (BTreeSet::new(), BTreeSet::new());
    let (ip, loopback) = (options.family.word(), options.family.loopback());
    for own in &options.own_ports {
        match own.address {
            Some(address) if Family::of(address) != options.family => continue,
            None => everywhere.insert(port(own)),
            Some(address) => at_address.insert(format!("{address} . {}", port(own))),
        };
    }
    let list = |set: BTreeSet<String>| set.into_iter().collect::<Vec<_>>().join(", ");
    let mut rules = vec![format!("{ip} daddr {loopback} return")];
    if !everywhere.is_empty() {
        rules.push(format!("meta l4proto . th dport {{ {} }} fib daddr type local return", list(everywhere)));
    }
    if !at_address.is_empty() {
        rules.push(format!("{ip} daddr . meta l4proto . th dport {{ {} }} return", list(at_address)));
    }
    rules
}

/// The chain that picks one of these endpoints, created if it does not exist.
fn picker(out: &mut Ruleset, service: &ServicePort, endpoints: &BTreeSet<Endpoint>, kind: &str) -> Option<String> {
    let first = endpoints.first()?;
    let name = format!("{kind}-{}", short(&service.name));
    let (protocol, ip) = (service.protocol.word(), out.family.word());
    let count = endpoints.len();
    allow_hairpins(out, endpoints);
    let mut rules = match service.affinity {
        Affinity::None => {
            let choices: Vec<String> =
                endpoints.iter().enumerate().map(|(i, e)| format!("{i} : {} . {}", e.address, e.port)).collect();
            let choices = choices.join(", ");
            vec![format!(
                "meta l4proto {protocol} dnat {ip} addr . port to numgen random mod {count} map {{ {choices} }}"
            )]
        }
        Affinity::ClientIp(timeout) => sticky(out, &name, protocol, endpoints, timeout),
    };
    // While the rules change, a packet may see the old rule without its map.
    rules.push(format!("meta l4proto {protocol} dnat to {}", SocketAddr::from((first.address, first.port))));
    chain(out, &name, "", rules);
    Some(name)
}

/// The chain that picks one of these endpoints of the service with this key. The endpoints are elements of a map of all services: with a chain for each
/// service, the kernel and `nft` read thousands of them for every change.
fn numbered_picker(out: &mut Ruleset, key: &str, endpoints: &BTreeSet<Endpoint>) -> Option<String> {
    endpoints.first()?;
    for (number, endpoint) in (0..).zip(endpoints) {
        let value = format!("{} . {}", endpoint.address, endpoint.port);
        put(out, ENDPOINTS, format!("{key} . {}", numbered(number)), value);
    }
    allow_hairpins(out, endpoints);
    let name = format!("{NUMBERED_PICKER}{}", endpoints.len());
    let family = out.family;
    out.chains.entry(name.clone()).or_insert_with(|| shared_chain(family, &name));
    Some(name)
}

/// Lets endpoints reach themselves.
fn allow_hairpins(out: &mut Ruleset, endpoints: &BTreeSet<Endpoint>) {
    for endpoint in endpoints {
        if let Some(set) = out.sets.get_mut("hairpin") {
            set.elements.insert(format!("{0} . {0}", endpoint.address), String::new());
        }
    }
}

/// Rules for session affinity: a client gets its previous endpoint, from one table of clients per port.
///
/// The table has the number of a client's endpoint; a second map has the endpoint, so removed endpoints are not used. Between the
/// two lookups the number is in the packet's priority, a field that affects neither marks nor routes: forwarded packets get another
/// priority afterwards, and of others only the first of a connection passes here.
fn sticky(
    out: &mut Ruleset,
    name: &str,
    protocol: &str,
    endpoints: &BTreeSet<Endpoint>,
    timeout: Duration,
) -> Vec<String> {
    let (numbers, ip, kind) = (numbers(endpoints), out.family.word(), out.family.kind());
    let (clients, ends) = (format!("clients-{name}"), format!("ends-{name}"));
    let declaration = format!("{{ type {kind} : classid; flags dynamic,timeout; size {CLIENTS}; }}");
    out.maps.insert(clients.clone(), Container { declaration, ..Container::default() });
    let declaration = format!("{{ type classid : {kind} . inet_service; }}");
    let elements = numbers.iter().map(|(n, e)| (class(*n), format!("{} . {}", e.address, e.port))).collect();
    out.maps.insert(ends.clone(), Container { declaration, elements });
    let (count, seconds) = (numbers.len(), timeout.as_secs().clamp(1, 86_400));
    let choices: Vec<String> = numbers.keys().enumerate().map(|(i, n)| format!("{i} : {}", class(*n))).collect();
    let go = format!("dnat {ip} addr . port to meta priority map @{ends}");
    let client = format!("{ip} saddr timeout {seconds}s : meta priority");
    vec![
        // A rule ends at the first map without the key.
        format!(
            "meta l4proto {protocol} meta priority set {ip} saddr map @{clients} update @{clients} {{ {client} }} {go}"
        ),
        format!("delete @{clients} {{ {ip} saddr : meta priority }}"),
        format!("meta priority set numgen random mod {count} map {{ {} }}", choices.join(", ")),
        format!("add @{clients} {{ {client} }}"),
        format!("meta l4proto {protocol} {go}"),
    ]
}

/// Endpoints by numbers that do not change with other endpoints.
fn numbers(endpoints: &BTreeSet<Endpoint>) -> BTreeMap<u32, Endpoint> {
    let mut numbers = BTreeMap::new();
    for endpoint in endpoints {
        let own = match endpoint.address {
            IpAddr::V4(a) => u32::from(a),
            // The beginning is the same for many endpoints, so all parts count.
            IpAddr::V6(a) => a
                .segments()
                .chunks(2)
                .fold(0u32, |all, pair| all.rotate_left(7) ^ (u32::from(pair[0]) << 16 | u32::from(pair[1]))),
        };
        let mut number = own ^ u32::from(endpoint.port).rotate_left(16);
        // The lowest and the highest have names of their own.
        while number == 0 || number == u32::MAX || numbers.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        numbers.insert(number, *endpoint);
    }
    numbers
}

/// A number as `nft` writes it in a priority.
fn class(number: u32) -> String {
    format!("{:x}:{:x}", number >> 16, number & 0xffff)
}

/// The addresses by which a service is reached from outside of the cluster.
fn outer_ips(service: &ServicePort) -> impl Iterator<Item = &IpAddr> {
    service.external_ips.iter().chain(&service.load_balancer_ips)
}

/// Adds an element, unless another service has the key.
fn put(out: &mut Ruleset, map: &str, key: String, value: String) {
    if let Some(map) = out.maps.get_mut(map) {
        map.elements.entry(key).or_insert(value);
    }
}

fn render_service(out: &mut Ruleset, options: &FamilyOptions, service: &ServicePort) {
    let ip = options.family.word();
    let all: BTreeSet<Endpoint> = service.endpoints.iter().copied().filter(|e| e.cluster).collect();
    let local: BTreeSet<Endpoint> = service.endpoints.iter().copied().filter(|e| e.local).collect();
    let key = |ip: &IpAddr| format!("{ip} . {} . {}", service.protocol.word(), service.port);
    let node_port = service.node_port.map(|port| format!("{} . {port}", service.protocol.word()));
    // Without any endpoint: refuse. With endpoints, but none here where only those count: drop, so that a load balancer without this
    // information tries another node.
    let refusal = if service.endpoints.is_empty() { "goto refuse" } else { "goto discard" };
    let external = outer_ips(service).next().is_some() || service.node_port.is_some();
    let internal_endpoints = if service.internal_policy == Policy::Local { &local } else { &all };
    let external_endpoints = if service.external_policy == Policy::Local { &local } else { &all };
    if internal_endpoints.is_empty() {
        put(out, "no-endpoint-services", key(&service.cluster_ip), refusal.to_owned());
    }
    if external_endpoints.is_empty() && external {
        for ip in outer_ips(service) {
            put(out, "no-endpoint-services", key(ip), refusal.to_owned());
        }
        if let Some(key) = &node_port {
            put(out, "no-endpoint-nodeports", key.clone(), refusal.to_owned());
        }
    }

    let kind = |policy| if policy == Policy::Local { "local" } else { "svc" };
    let picker_of_all = match service.affinity {
        Affinity::None => numbered_picker(out, &key(&service.cluster_ip), internal_endpoints),
        Affinity::ClientIp(_) => picker(out, service, internal_endpoints, kind(service.internal_policy)),
    };
    if let Some(picker) = picker_of_all {
        put(out, "service-ips", key(&service.cluster_ip), format!("goto {picker}"));
    }
    let mut rules = Vec::new();
    if external && service.external_policy == Policy::Local {
        // From pods and the node itself, all endpoints are used, as for the address of the service.
        if let Some(picker) = picker(out, service, &all, "svc") {
            rules.push(format!("{ip} saddr {} goto {picker}", options.cluster_range));
            rules.push("fib saddr type local jump mark-for-masquerade".to_owned());
            rules.push(format!("fib saddr type local goto {picker}"));
        }
        // The client's address is kept: the endpoint is here, so its answer comes back anyway.
        rules.extend(picker(out, service, &local, "local").map(|picker| format!("goto {picker}")));
    } else if external && let Some(picker) = picker(out, service, &all, "svc") {
        rules.push("jump mark-for-masquerade".to_owned());
        rules.push(format!("goto {picker}"));
    }
    if rules.is_empty() {
        return;
    }
    let name = format!("ext-{}", short(&service.name));
    chain(out, &name, "", rules);
    for ip in &service.external_ips {
        put(out, "service-ips", key(ip), format!("goto {name}"));
    }
    if let Some(key) = node_port {
        put(out, "service-nodeports", key, format!("goto {name}"));
    }
    if service.load_balancer_ips.is_empty() {
        return;
    }
    let mut entry = name.clone();
    if !service.source_ranges.is_empty() {
        entry = format!("lb-{}", short(&service.name));
        let ranges: Vec<String> = outermost(&service.source_ranges).iter().map(Cidr::to_string).collect();
        let rules = [format!("{ip} saddr != {{ {} }} drop", ranges.join(", ")), format!("goto {name}")];
        chain(out, &entry, "", rules.to_vec());
    }
    for ip in &service.load_balancer_ips {
        put(out, "service-ips", key(ip), format!("goto {entry}"));
    }
}

/// A short stable name for chains and sets, whose names are limited.
fn short(name: &str) -> String {
    digest(&SHA256, name.as_bytes()).as_ref().iter().take(8).map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn options() -> FamilyOptions {
        FamilyOptions {
            id: "t".into(),
            node_namespace: None,
            family: Family::V4,
            cluster_range: "10.0.0.0/8".parse().unwrap(),
            service_range: "10.96.0.0/12".parse().unwrap(),
            load_balancer_range: Some("192.0.2.128/25".parse().unwrap()),
            own_ports: vec![own(None, 6443), own(None, 10250), own(Some(Ipv4Addr::new(10, 1, 0, 1).into()), 53)],
        }
    }

    fn own(address: Option<IpAddr>, port: u16) -> HostPort {
        HostPort { address, protocol: Protocol::Tcp, port, target: port }
    }

    fn service(endpoints: &[(u8, bool)]) -> ServicePort {
        let endpoint = |(last, local): &(u8, bool)| Endpoint {
            address: Ipv4Addr::new(10, 1, 0, *last).into(),
            port: 8080,
            cluster: true,
            local: *local,
        };
        ServicePort {
            name: "default/web:http".into(),
            cluster_ip: Ipv4Addr::new(10, 96, 0, 10).into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: Some(30080),
            external_ips: vec![],
            load_balancer_ips: vec![],
            source_ranges: vec![],
            endpoints: endpoints.iter().map(endpoint).collect(),
            affinity: Affinity::None,
            internal_policy: Policy::Cluster,
            external_policy: Policy::Cluster,
        }
    }

    #[test]
    fn external_addresses_are_of_no_cluster_range() {
        let [external, pod, cluster] = ["192.0.2.1", "10.1.0.1", "10.96.0.1"].map(|a| a.parse().unwrap());
        let greedy = ServicePort { external_ips: vec![cluster, external, pod], ..service(&[(1, true)]) };
        let own = without_taken(&options(), &Arc::new(greedy));
        assert_eq!(own.external_ips, [external]);
        assert!(Arc::ptr_eq(&without_taken(&options(), &own), &own));
        let keys: Vec<String> = render(&options(), [&*own]).maps["service-ips"].elements.clone().into_keys().collect();
        assert_eq!(keys, ["10.96.0.10 . tcp . 80", "192.0.2.1 . tcp . 80"]);
    }

    #[test]
    fn services_do_not_get_reserved_addresses() {
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "239.1.2.3",
            "255.255.255.255",
            "10.1.0.1",
        ] {
            for endpoints in [&[][..], &[(1, true)]] {
                let greedy = ServicePort { external_ips: vec![address.parse().unwrap()], ..service(endpoints) };
                let out = render(&options(), [&*without_taken(&options(), &Arc::new(greedy))]);
                let mentions = |(key, _): (&String, &String)| key.starts_with(&format!("{address} "));
                assert!(!out.maps.values().any(|m| m.elements.iter().any(mentions)), "{address}");
            }
        }
    }

    /// Services may have addresses of the node, which are unknown when the rules are made; its own ports there are exempt.
    #[test]
    fn own_ports_come_before_services() {
        let out = render(&options(), &[]);
        for name in ["services", "check"] {
            let expect = [
                "ip daddr 127.0.0.0/8 return",
                "meta l4proto . th dport { tcp . 10250, tcp . 6443 } fib daddr type local return",
                "ip daddr . meta l4proto . th dport { 10.1.0.1 . tcp . 53 } return",
            ];
            assert_eq!(out.chains[name].rules[..3], expect, "{name}");
            assert!(out.chains[name].rules[3].contains("vmap"), "{name}");
        }
    }

    #[test]
    fn order_of_services_and_endpoints_does_not_matter() {
        let mut other = service(&[(1, true)]);
        other.name = "default/other:http".into();
        other.cluster_ip = Ipv4Addr::new(10, 96, 0, 11).into();
        other.node_port = None;
        let a = render(&options(), &[service(&[(1, true), (2, false)]), other.clone()]);
        let b = render(&options(), &[other, service(&[(2, false), (1, true)])]);
        assert_eq!(a, b);
    }

    #[test]
    fn services_without_endpoints_refuse_and_without_local_ones_drop() {
        let value = |service: ServicePort, map: &str| {
            let elements = render(&options(), &[service]).maps[map].elements.clone();
            elements.into_values().next()
        };
        assert_eq!(value(service(&[]), "no-endpoint-services").as_deref(), Some("goto refuse"));
        assert_eq!(value(service(&[(1, false)]), "no-endpoint-services"), None);
        let local = ServicePort { external_policy: Policy::Local, ..service(&[(1, false)]) };
        assert_eq!(value(local.clone(), "no-endpoint-nodeports").as_deref(), Some("goto discard"));
        assert_eq!(value(local, "no-endpoint-services"), None);
    }

    /// A map is removed a moment before the rule that reads it: packets between the two still get an endpoint.
    #[test]
    fn pickers_end_with_a_rule_that_reads_no_map() {
        for affinity in [Affinity::None, Affinity::ClientIp(Duration::from_secs(10))] {
            let out = render(&options(), &[ServicePort { affinity, ..service(&[(1, true), (2, true)]) }]);
            let picker = out.chains.iter().find(|(n, _)| n.starts_with("svc-")).unwrap().1;
            let last = picker.rules.last().unwrap();
            assert!(last.ends_with("dnat to 10.1.0.1:8080"), "{last}");
        }
    }

    /// A set for each of 12,000 endpoints took 23 GB of the kernel's memory.
    #[test]
    fn affinity_takes_one_table_of_clients_for_all_endpoints() {
        let render = |count: u8, seconds| {
            let affinity = Affinity::ClientIp(Duration::from_secs(seconds));
            let endpoints: Vec<_> = (1..=count).map(|n| (n, true)).collect();
            render(&options(), &[ServicePort { affinity, ..service(&endpoints) }])
        };
        let names = |r: &Ruleset| -> Vec<String> {
            r.maps.keys().chain(r.sets.keys()).chain(r.chains.keys()).cloned().collect()
        };
        let (one, many) = (render(1, 10), render(200, 10));
        assert_eq!(names(&one), names(&many));
        let rules = |r: &Ruleset| r.chains.values().map(|c| c.rules.len()).sum::<usize>();
        assert_eq!(rules(&one), rules(&many));
        assert_eq!(names(&many), names(&render(200, 20)), "the time replaces no table");
        let clients = |r: &Ruleset| r.maps.iter().find(|(n, _)| n.starts_with("clients-")).unwrap().1.clone();
        assert_eq!(clients(&many), clients(&render(200, 20)));
    }

    #[test]
    fn endpoints_keep_their_numbers_while_others_come_and_go() {
        let end =
            |last, port| Endpoint { address: Ipv4Addr::new(10, 1, 0, last).into(), port, cluster: true, local: true };
        let few = numbers(&[end(3, 80), end(5, 80)].into());
        let more = numbers(&[end(1, 80), end(3, 80), end(4, 80), end(5, 80), end(5, 81)].into());
        assert_eq!(more.len(), 5);
        assert!(few.iter().all(|(number, endpoint)| more[number] == *endpoint));
        let zero = Endpoint { address: Ipv4Addr::new(0, 80, 0, 0).into(), port: 80, cluster: true, local: true };
        let same = Endpoint { address: Ipv4Addr::new(0, 81, 0, 1).into(), port: 81, cluster: true, local: true };
        assert_eq!(numbers(&[zero, same].into()).into_keys().collect::<Vec<_>>(), [1, 2]);
    }
}
