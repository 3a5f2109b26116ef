//! Renders the rules of the node's pods as a table of nftables.

use std::collections::{BTreeMap, BTreeSet};

use aws_lc_rs::digest::{SHA256, digest};

use super::{Block, Options, Peer, Peers, PodPolicy, PortRange, Ports, Rule, table};
use crate::address::{Cidr, Family, outermost};
use crate::protocol::Protocol;
use crate::ruleset::{Chain, Container, Ruleset};

/// The direction of connections, as seen from the pod.
#[derive(Clone, Copy)]
enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    /// The map of pods.
    fn map(self) -> &'static str {
        match self {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        }
    }

    /// The field of a packet with the address of the peer.
    fn peer(self) -> &'static str {
        match self {
            Direction::Ingress => "saddr",
            Direction::Egress => "daddr",
        }
    }
}

/// The table of a family.
pub fn render(options: &Options, family: Family, pods: &[PodPolicy]) -> Ruleset {
    let mut out = Ruleset::new(family, table(&options.id));
    frame(&mut out, options);
    for pod in pods {
        let Some(address) = pod.addresses.iter().find(|a| Family::of(**a) == family) else { continue };
        for (direction, rules) in [(Direction::Ingress, &pod.ingress), (Direction::Egress, &pod.egress)] {
            // A verdict ends the lookup; `return` allows the packet in this direction.
            let verdict = match rules {
                None => "return".to_owned(),
                Some(rules) => format!("goto {}", render_chain(&mut out, direction, rules.iter().map(|r| &**r))),
            };
            insert(&mut out.maps, direction.map(), address.to_string(), verdict);
        }
        insert(&mut out.sets, "self", format!("{address} . {address}"), String::new());
    }
    out
}

fn insert(containers: &mut BTreeMap<String, Container>, name: &str, key: String, value: String) {
    if let Some(container) = containers.get_mut(name) {
        container.elements.insert(key, value);
    }
}

/// The table without pods.
fn frame(out: &mut Ruleset, options: &Options) {
    let (ip, kind) = (out.family.word(), out.family.kind());
    let container = |declaration: String| Container { declaration, elements: BTreeMap::new() };
    for direction in [Direction::Ingress, Direction::Egress] {
        out.maps.insert(direction.map().to_owned(), container(format!("{{ type {kind} : verdict; }}")));
    }
    out.sets.insert("self".to_owned(), container(format!("{{ type {kind} . {kind}; }}")));
    let (bridge, family) = (&options.bridge, out.family);
    let mut chain = |name: &str, declaration: &str, rules: Vec<String>| {
        out.chains.insert(name.to_owned(), Chain { declaration: declaration.to_owned(), rules });
    };
    // After the rules for services, which refuse packets with an answer.
    let forward = vec![
        "ct state established,related accept".to_owned(),
        format!("{ip} saddr . {ip} daddr @self accept"),
        format!("iifname {bridge:?} jump from-pods"),
        format!("oifname {bridge:?} jump to-pods"),
    ];
    chain("forward", "{ type filter hook forward priority 10; policy accept; }", forward);
    let mut from_pods = Vec::new();
    if let Some(dns) = options.dns.filter(|dns| Family::of(*dns) == family) {
        from_pods
            .push(format!("meta l4proto {{ tcp, udp }} ct original {ip} daddr {dns} ct original proto-dst 53 return"));
    }
    from_pods.extend([format!("{ip} saddr vmap @egress"), "counter drop".to_owned()]);
    chain("from-pods", "", from_pods);
    chain("to-pods", "", vec![format!("{ip} daddr vmap @ingress"), "counter drop".to_owned()]);
}

/// Adds the chain of some rules, with the sets that it reads, and returns its name.
fn render_chain<'a>(out: &mut Ruleset, direction: Direction, rules: impl Iterator<Item = &'a Rule>) -> String {
    // Rules of several policies may be equal.
    let mut lines = BTreeSet::new();
    for rule in rules {
        lines.extend(render_rule(out, direction, rule));
    }
    // An equal set of rules has an equal name, and chains never change.
    let mut rules: Vec<String> = lines.into_iter().collect();
    rules.push("counter drop".to_owned());
    let name = format!("{}-{}", direction.map(), short(&rules.join("\n")));
    out.chains.entry(name.clone()).or_insert(Chain { declaration: String::new(), rules });
    name
}

fn render_rule(out: &mut Ruleset, direction: Direction, rule: &Rule) -> Vec<String> {
    let (mut lines, family) = (Vec::new(), out.family);
    let (ip, kind) = (family.word(), family.kind());
    let ports = match &rule.ports {
        Ports::Any => vec![String::new()],
        Ports::These(ranges) => render_ports(ranges),
    };
    // No set is made for a rule that allows nothing.
    if !ports.is_empty() {
        let peers = match &rule.peers {
            Peers::Any => vec![String::new()],
            Peers::These(peers) => peers.iter().filter_map(|peer| render_peer(out, direction, peer)).collect(),
        };
        for peer in &peers {
            lines.extend(ports.iter().map(|ports| format!("{peer}{ports}return")));
        }
    }
    if let Some(set) = &rule.endpoints {
        let elements = set
            .endpoints
            .iter()
            .filter(|(address, ..)| Family::of(*address) == family)
            .map(|(address, protocol, port)| (format!("{address} . {} . {port}", protocol.word()), String::new()));
        let declaration = format!("{{ type {kind} . inet_proto . inet_service; }}");
        out.sets.entry(set.name.clone()).or_insert_with(|| Container { declaration, elements: elements.collect() });
        lines.push(format!(
            "meta l4proto {{ tcp, udp, sctp }} {ip} daddr . meta l4proto . th dport @{} return",
            set.name
        ));
    }
    lines
}

fn render_peer(out: &mut Ruleset, direction: Direction, peer: &Peer) -> Option<String> {
    let (field, family) = (direction.peer(), out.family);
    let ip = family.word();
    match peer {
        Peer::Pods(set) => {
            let own = set.addresses.iter().filter(|a| Family::of(**a) == family);
            let elements = own.map(|a| (a.to_string(), String::new()));
            let declaration = format!("{{ type {}; }}", family.kind());
            out.sets.entry(set.name.clone()).or_insert_with(|| Container { declaration, elements: elements.collect() });
            Some(format!("{ip} {field} @{} ", set.name))
        }
        // A range of the other family has no address of this one.
        Peer::Block(block) if block.cidr.family() != family => None,
        Peer::Block(Block { cidr, except }) => {
            let except: Vec<Cidr> = except.iter().copied().filter(|e| e.family() == family).collect();
            let except = outermost(&except);
            if except.iter().any(|e| e.contains_range(cidr)) {
                return None;
            }
            let mut line = if cidr.length() == 0 { String::new() } else { format!("{ip} {field} {cidr} ") };
            if !except.is_empty() {
                let list: Vec<String> = except.iter().map(Cidr::to_string).collect();
                line.push_str(&format!("{ip} {field} != {{ {} }} ", list.join(", ")));
            }
            Some(line)
        }
    }
}

/// Conditions, of which a packet meets one: a protocol with ports.
fn render_ports(ranges: &[PortRange]) -> Vec<String> {
    let mut by_protocol: BTreeMap<Protocol, Option<Vec<(u16, u16)>>> = BTreeMap::new();
    for range in ranges {
        let ports = by_protocol.entry(range.protocol).or_insert_with(|| Some(Vec::new()));
        match (range.ports, ports.as_mut()) {
            (Some(range), Some(ports)) => ports.push(range),
            _ => *ports = None,
        }
    }
    let line = |(protocol, ports): (Protocol, Option<Vec<(u16, u16)>>)| {
        let protocol = protocol.word();
        match ports {
            None => format!("meta l4proto {protocol} "),
            Some(ports) => format!("meta l4proto {protocol} th dport {{ {} }} ", merged(ports).join(", ")),
        }
    };
    by_protocol.into_iter().map(line).collect()
}

/// The ranges as text, those that overlap as one.
fn merged(mut ranges: Vec<(u16, u16)>) -> Vec<String> {
    ranges.sort_unstable();
    let mut out: Vec<(u16, u16)> = Vec::new();
    for (first, last) in ranges {
        match out.last_mut().filter(|(_, end)| u32::from(first) <= u32::from(*end) + 1) {
            Some((_, end)) => *end = last.max(*end),
            None => out.push((first, last)),
        }
    }
    out.iter().map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") }).collect()
}

/// A short stable name of a text.
fn short(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().take(8).map(|b| format!("{b:02x}")).collect()
}
