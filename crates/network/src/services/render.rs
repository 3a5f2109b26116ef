//! What the desired services look like as a table.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use sha2::{Digest, Sha256};

use super::conntrack::Flows;
use super::ruleset::{Chain, Container, Ruleset};
use super::{Affinity, Endpoint, Options, Policy, Protocol, ServicePort, table};

/// Packets to be sent on with the node's address, so that the answer comes back through it.
const MARK: u32 = 0x4000;

impl Protocol {
    /// As `nft` names it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }
}

/// The services without those external addresses that lie in the ranges of pods and services. A user may write any address into a service;
/// these belong to pods, to the node on the pod network, and to other services.
pub fn without_taken<'a>(options: &Options, services: &'a [ServicePort]) -> Cow<'a, [ServicePort]> {
    let inside = |ip: &Ipv4Addr| options.cluster_range.contains(*ip) || options.service_range.contains(*ip);
    if !services.iter().any(|s| s.external_ips.iter().any(inside)) {
        return services.into();
    }
    let mut services = services.to_vec();
    services.iter_mut().for_each(|s| s.external_ips.retain(|ip| !inside(ip)));
    services.into()
}

pub fn render(options: &Options, services: &[ServicePort]) -> Ruleset {
    let mut out = Ruleset { table: table(&options.id), ..Ruleset::default() };
    frame(&mut out, options);
    for service in services {
        render_service(&mut out, service);
    }
    out
}

/// Where UDP packets may go.
pub fn flows(services: &[ServicePort]) -> Flows {
    let mut flows = Flows::default();
    for service in services.iter().filter(|s| s.protocol == Protocol::Udp) {
        let endpoints: BTreeSet<_> = service.endpoints.iter().map(|e| (e.address, e.port)).collect();
        for ip in std::iter::once(&service.cluster_ip).chain(&service.external_ips) {
            flows.services.insert((*ip, service.port), endpoints.clone());
        }
        if let Some(port) = service.node_port {
            flows.node_ports.insert(port, endpoints);
        }
    }
    flows
}

fn chain(out: &mut Ruleset, name: &str, declaration: &str, rules: Vec<String>) {
    out.chains.insert(name.to_owned(), Chain { declaration: declaration.to_owned(), rules });
}

/// What is there without any service.
fn frame(out: &mut Ruleset, options: &Options) {
    let by_address = "{ type ipv4_addr . inet_proto . inet_service : verdict; }";
    let by_port = "{ type inet_proto . inet_service : verdict; }";
    for (name, declaration) in [
        ("service-ips", by_address),
        ("service-nodeports", by_port),
        ("no-endpoint-services", by_address),
        ("no-endpoint-nodeports", by_port),
    ] {
        out.maps.insert(name.into(), Container { declaration: declaration.into(), ..Container::default() });
    }
    let hairpin = Container { declaration: "{ type ipv4_addr . ipv4_addr; }".into(), ..Container::default() };
    out.sets.insert("hairpin".into(), hairpin);

    let rules = |rules: &[&str]| rules.iter().map(|r| (*r).to_owned()).collect::<Vec<_>>();
    let local = "fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap";
    let services =
        rules(&["ip daddr . meta l4proto . th dport vmap @service-ips", &format!("{local} @service-nodeports")]);
    chain(out, "services", "", services);
    let refuse = rules(&["meta l4proto tcp reject with tcp reset", "reject with icmp type port-unreachable"]);
    chain(out, "refuse", "", refuse);
    chain(out, "discard", "", rules(&["drop"]));
    let service_range = options.service_range;
    let check = vec![
        "ip daddr . meta l4proto . th dport vmap @no-endpoint-services".to_owned(),
        format!("{local} @no-endpoint-nodeports"),
        // Nothing has translated it: there is no such service port.
        format!("ip daddr {service_range} goto refuse"),
    ];
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
        "ip saddr . ip daddr @hairpin masquerade fully-random".to_owned(),
    ];
    chain(out, "nat-postrouting", declaration, masquerade.to_vec());
    let mark = format!("meta mark set meta mark or {MARK:#x}");
    chain(out, "mark-for-masquerade", "", vec![mark]);
}

/// The chain that picks one of some endpoints, made if it is not there yet.
fn picker(out: &mut Ruleset, service: &ServicePort, endpoints: &BTreeSet<Endpoint>, kind: &str) -> Option<String> {
    if endpoints.is_empty() {
        return None;
    }
    let name = format!("{kind}-{}", short(&service.name));
    let protocol = service.protocol.word();
    let count = endpoints.len();
    for endpoint in endpoints {
        let pair = format!("{0} . {0}", endpoint.address);
        if let Some(set) = out.sets.get_mut("hairpin") {
            set.elements.insert(pair, String::new());
        }
    }
    let rules = match service.affinity {
        Affinity::None => {
            let choices: Vec<String> =
                endpoints.iter().enumerate().map(|(i, e)| format!("{i} : {} . {}", e.address, e.port)).collect();
            let choices = choices.join(", ");
            let first = endpoints.iter().next().map(|e| format!("{}:{}", e.address, e.port)).unwrap_or_default();
            vec![
                format!("meta l4proto {protocol} dnat ip addr . port to numgen random mod {count} map {{ {choices} }}"),
                // While the rules change, a packet may still see the former rule and no longer its map.
                format!("meta l4proto {protocol} dnat to {first}"),
            ]
        }
        Affinity::ClientIp(timeout) => {
            let seconds = timeout.as_secs().clamp(1, 86_400);
            let mut rules = Vec::new();
            let mut choices = Vec::new();
            for (index, endpoint) in endpoints.iter().enumerate() {
                let id = short(&format!("{}/{}:{}", service.name, endpoint.address, endpoint.port));
                let (chain_name, set) = (format!("ep-{id}"), format!("clients-{id}"));
                // The time is part of the name, since the declaration of a set cannot be changed.
                let set = format!("{set}-{seconds}");
                let declaration =
                    format!("{{ type ipv4_addr; flags dynamic,timeout; timeout {seconds}s; size 65535; }}");
                out.sets.insert(set.clone(), Container { declaration, ..Container::default() });
                let to = format!("meta l4proto {protocol} dnat to {}:{}", endpoint.address, endpoint.port);
                chain(out, &chain_name, "", vec![format!("update @{set} {{ ip saddr }}"), to]);
                rules.push(format!("ip saddr @{set} goto {chain_name}"));
                choices.push(format!("{index} : goto {chain_name}"));
            }
            rules.push(format!("numgen random mod {count} vmap {{ {} }}", choices.join(", ")));
            // As above.
            rules.extend(choices.first().and_then(|c| c.split_once(" : ")).map(|(_, go)| go.to_owned()));
            rules
        }
    };
    chain(out, &name, "", rules);
    Some(name)
}

fn render_service(out: &mut Ruleset, service: &ServicePort) {
    let all: BTreeSet<Endpoint> = service.endpoints.iter().copied().collect();
    let local: BTreeSet<Endpoint> = all.iter().copied().filter(|e| e.local).collect();
    let key = |ip: &Ipv4Addr| format!("{ip} . {} . {}", service.protocol.word(), service.port);
    let mut put = |map: &str, key: String, value: String| {
        if let Some(map) = out.maps.get_mut(map) {
            map.elements.entry(key).or_insert(value); // who came first keeps it
        }
    };
    // Without any endpoint: refuse. With endpoints, but none here where only those count: drop, so that a balancer that
    // has not yet heard of it tries another node.
    let refusal = if all.is_empty() { "goto refuse" } else { "goto discard" }.to_owned();
    let external = !service.external_ips.is_empty() || service.node_port.is_some();
    let inside = if service.internal_policy == Policy::Local { &local } else { &all };
    let outside = if service.external_policy == Policy::Local { &local } else { &all };
    if inside.is_empty() {
        put("no-endpoint-services", key(&service.cluster_ip), refusal.clone());
    }
    if outside.is_empty() && external {
        for ip in &service.external_ips {
            put("no-endpoint-services", key(ip), refusal.clone());
        }
        if let Some(port) = service.node_port {
            put("no-endpoint-nodeports", format!("{} . {port}", service.protocol.word()), refusal);
        }
    }

    let kind = |policy| if policy == Policy::Local { "local" } else { "svc" };
    let inside = picker(out, service, inside, kind(service.internal_policy));
    let outside = if external { picker(out, service, outside, kind(service.external_policy)) } else { None };
    let mut put = |map: &str, key: String, value: String| {
        if let Some(map) = out.maps.get_mut(map) {
            map.elements.entry(key).or_insert(value);
        }
    };
    if let Some(inside) = &inside {
        put("service-ips", key(&service.cluster_ip), format!("goto {inside}"));
    }
    if let Some(outside) = outside {
        let name = format!("ext-{}", short(&service.name));
        for ip in &service.external_ips {
            put("service-ips", key(ip), format!("goto {name}"));
        }
        if let Some(port) = service.node_port {
            let key = format!("{} . {port}", service.protocol.word());
            put("service-nodeports", key, format!("goto {name}"));
        }
        // With policy Local the client's address is kept: the endpoint is here, so its answer comes back anyway.
        let mut rules = Vec::new();
        if service.external_policy == Policy::Cluster {
            rules.push("jump mark-for-masquerade".to_owned());
        }
        rules.push(format!("goto {outside}"));
        chain(out, &name, "", rules);
    }
}

/// A short stable name for chains and sets, whose names are limited.
fn short(name: &str) -> String {
    Sha256::digest(name.as_bytes()).iter().take(8).map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn options() -> Options {
        Options {
            id: "t".into(),
            node_namespace: None,
            cluster_range: "10.0.0.0/8".parse().unwrap(),
            service_range: "10.96.0.0/12".parse().unwrap(),
        }
    }

    fn service(endpoints: &[(u8, bool)]) -> ServicePort {
        let endpoint = |(last, local): &(u8, bool)| Endpoint {
            address: Ipv4Addr::new(10, 1, 0, *last),
            port: 8080,
            local: *local,
        };
        ServicePort {
            name: "default/web:http".into(),
            cluster_ip: Ipv4Addr::new(10, 96, 0, 10),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: Some(30080),
            external_ips: vec![],
            endpoints: endpoints.iter().map(endpoint).collect(),
            affinity: Affinity::None,
            internal_policy: Policy::Cluster,
            external_policy: Policy::Cluster,
        }
    }

    #[test]
    fn external_addresses_are_outside() {
        let [outside, pod, cluster] = ["192.0.2.1", "10.1.0.1", "10.96.0.1"].map(|a| a.parse().unwrap());
        let greedy = ServicePort { external_ips: vec![cluster, outside, pod], ..service(&[(1, true)]) };
        let all = without_taken(&options(), std::slice::from_ref(&greedy)).into_owned();
        assert_eq!(all[0].external_ips, [outside]);
        assert!(matches!(without_taken(&options(), &all), Cow::Borrowed(_)));
        let keys: Vec<String> = render(&options(), &all).maps["service-ips"].elements.clone().into_keys().collect();
        assert_eq!(keys, ["10.96.0.10 . tcp . 80", "192.0.2.1 . tcp . 80"]);
    }

    #[test]
    fn order_of_services_and_endpoints_does_not_matter() {
        let mut other = service(&[(1, true)]);
        other.name = "default/other:http".into();
        other.cluster_ip = Ipv4Addr::new(10, 96, 0, 11);
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

    /// A map goes a moment before the rule that reads it: who is between the two still finds somebody.
    #[test]
    fn pickers_end_with_a_rule_that_reads_no_map() {
        for affinity in [Affinity::None, Affinity::ClientIp(Duration::from_secs(10))] {
            let out = render(&options(), &[ServicePort { affinity, ..service(&[(1, true), (2, true)]) }]);
            let picker = out.chains.iter().find(|(n, _)| n.starts_with("svc-")).unwrap().1;
            let last = picker.rules.last().unwrap();
            assert!(last.starts_with("goto ep-") || last.ends_with("dnat to 10.1.0.1:8080"), "{last}");
        }
    }

    #[test]
    fn affinity_remembers_clients_per_endpoint() {
        let affinity = Affinity::ClientIp(Duration::from_secs(10));
        let out = render(&options(), &[ServicePort { affinity, ..service(&[(1, true), (2, true)]) }]);
        assert_eq!(out.sets.keys().filter(|n| n.starts_with("clients-")).count(), 2);
        let picker = out.chains.iter().find(|(n, _)| n.starts_with("svc-")).unwrap().1;
        assert_eq!(picker.rules.len(), 4);
        assert!(picker.rules[0].starts_with("ip saddr @clients-"));
    }
}
