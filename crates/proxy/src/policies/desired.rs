//! The desired rules of the pods of a node.

use aws_lc_rs::digest::{SHA256, digest};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use client::Meta;
use meta::selector::LabelSelector;
use network::policies::{self, AddressSet, Block, EndpointSet, Peers, PodPolicy, PortRange, Ports};
use network::{Cidr, Protocol};

use super::view::{Peer, Pod, Policy, Port, Rule};

/// Maximum of parts (a peer with a protocol) of the rules of a pod in one direction; a pod with more gets none of the rules that exceed it.
const PARTS: usize = 10_000;

/// The desired rules, and what exceeds the limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The rules by the UIDs of the pods.
    pub pods: BTreeMap<String, PodPolicy>,
    /// How many rules were left out, by namespace.
    pub excess: BTreeMap<String, usize>,
}

/// The objects that decide.
pub struct Objects<'a> {
    /// The policies of all namespaces.
    pub policies: Vec<(&'a Meta, &'a Policy)>,
    /// All namespaces.
    pub namespaces: Vec<&'a Meta>,
    /// The pods of all nodes.
    pub pods: Vec<(&'a Meta, &'a Pod)>,
}

/// A pod with its addresses.
struct Member<'a> {
    meta: &'a Meta,
    pod: &'a Pod,
    addresses: Vec<IpAddr>,
}

/// The rules of the pods in `local` (UID → address) that are among the objects. A static pod is there as its mirror pod, with another UID.
pub fn desired(objects: &Objects, local: &BTreeMap<String, Vec<IpAddr>>) -> Desired {
    let mirrors = mirrors(objects, local);
    let in_api = |(uid, addresses): (&String, &Vec<IpAddr>)| {
        (mirrors.get(&**uid).map_or_else(|| uid.clone(), |mirror| (*mirror).to_owned()), addresses.clone())
    };
    let mut desired = desired_in_api(objects, &local.iter().map(in_api).collect());
    for (uid, mirror) in mirrors {
        if let Some(policy) = desired.pods.remove(mirror) {
            desired.pods.insert(uid.to_owned(), policy);
        }
    }
    desired
}

/// The UIDs of the mirror pods of static pods among `local`. Users may write the annotation: a pod that is in the API itself has no
/// mirror, and of several the oldest counts that is not being deleted.
fn mirrors<'a>(objects: &Objects<'a>, local: &'a BTreeMap<String, Vec<IpAddr>>) -> BTreeMap<&'a str, &'a str> {
    let in_api: BTreeSet<&str> = objects.pods.iter().map(|(meta, _)| &*meta.uid).collect();
    let mut all: Vec<_> =
        objects.pods.iter().filter_map(|(meta, pod)| Some((*meta, pod.mirror_of.as_deref()?))).collect();
    all.sort_by_key(|(meta, _)| (meta.is_deleting(), meta.creation_timestamp, meta.uid.clone()));
    let mut found = BTreeMap::new();
    for (meta, uid) in all.into_iter().filter(|(_, uid)| local.contains_key(*uid) && !in_api.contains(uid)) {
        found.entry(uid).or_insert(&*meta.uid);
    }
    found
}

fn desired_in_api(objects: &Objects, local: &BTreeMap<String, Vec<IpAddr>>) -> Desired {
    let mut index = Index::new(objects, local);
    let mut by_namespace: HashMap<&str, Vec<&Policy>> = HashMap::new();
    for (meta, policy) in &objects.policies {
        by_namespace.entry(&meta.namespace).or_default().push(policy);
    }
    let mut out = Desired::default();
    for (meta, pod) in &objects.pods {
        let Some(addresses) = local.get(&*meta.uid) else { continue };
        let selected = by_namespace.get(&*meta.namespace).into_iter().flatten();
        let selected: Vec<&&Policy> = selected.filter(|p| p.pods.matches(|key| meta.label(key))).collect();
        let mut excess = 0;
        let mut collect = |rules: fn(&Policy) -> Option<&Vec<Rule>>, named: Option<&Pod>| {
            let mut out: Option<Vec<Arc<policies::Rule>>> = None;
            let mut parts = 0;
            for rules in selected.iter().filter_map(|policy| rules(policy)) {
                let out = out.get_or_insert_default();
                for rule in rules {
                    let rule = index.rule(&meta.namespace, rule, named);
                    parts += size(&rule);
                    if parts <= PARTS {
                        out.push(rule);
                    } else {
                        excess += 1;
                    }
                }
            }
            out
        };
        let ingress = collect(|p| p.ingress.as_ref(), Some(pod));
        let egress = collect(|p| p.egress.as_ref(), None);
        out.pods.insert(meta.uid.to_string(), PodPolicy { addresses: addresses.clone(), ingress, egress });
        if excess > 0 {
            *out.excess.entry(meta.namespace.to_string()).or_default() += excess;
        }
    }
    out
}

fn size(rule: &policies::Rule) -> usize {
    let peers = match &rule.peers {
        Peers::Any => 1,
        Peers::These(peers) => {
            let excepted = |p: &policies::Peer| match p {
                policies::Peer::Block(block) => block.except.len(),
                policies::Peer::Pods(_) => 0,
            };
            peers.iter().map(|p| 1 + excepted(p)).sum()
        }
    };
    let ports = match &rule.ports {
        Ports::Any => 1,
        Ports::These(ranges) => ranges.len(),
    };
    peers * ports + usize::from(rule.endpoints.is_some())
}

/// A selector of pods: the namespace or a selector of namespaces, and the selector in them.
type Selector<'a> = (Option<&'a str>, Option<&'a LabelSelector>, &'a LabelSelector);

/// The pods of a namespace, in the order of the list of all members.
#[derive(Default)]
struct Group<'a> {
    members: Vec<usize>,
    by_label: HashMap<(&'a str, &'a str), Vec<usize>>,
}

/// Finds pods, and remembers what it has found.
struct Index<'a> {
    namespaces: &'a [&'a Meta],
    members: Vec<Member<'a>>,
    groups: HashMap<&'a str, Group<'a>>,
    selected: HashMap<Selector<'a>, Arc<AddressSet>>,
    /// Rules by their addresses in memory; those for ingress with names of ports depend on the pod.
    rules: HashMap<*const Rule, Arc<policies::Rule>>,
}

impl<'a> Index<'a> {
    fn new(objects: &'a Objects<'a>, local: &BTreeMap<String, Vec<IpAddr>>) -> Index<'a> {
        let members = owners(&objects.pods, local);
        let mut groups: HashMap<&str, Group> = HashMap::new();
        for (i, member) in members.iter().enumerate() {
            let group = groups.entry(&member.meta.namespace).or_default();
            group.members.push(i);
            for label in member.meta.labels.iter() {
                group.by_label.entry(label).or_default().push(i);
            }
        }
        Index { namespaces: &objects.namespaces, members, groups, selected: HashMap::new(), rules: HashMap::new() }
    }

    /// The pods of a namespace that a selector selects.
    fn select<'b>(&'b self, namespace: &str, selector: &'b LabelSelector) -> impl Iterator<Item = &'b Member<'a>> {
        let group = self.groups.get(namespace);
        let label = selector.requirements.iter().find_map(|r| r.equal_to());
        let candidates = group.and_then(|group| match label {
            Some(label) => group.by_label.get(&label),
            None => Some(&group.members),
        });
        let members = candidates.into_iter().flatten().map(|i| &self.members[*i]);
        members.filter(|member| selector.matches(|key| member.meta.label(key)))
    }

    /// The pods that a peer selects.
    fn pods<'b>(
        &'b self,
        own: &'b str,
        namespaces: Option<&'b LabelSelector>,
        pods: &'b LabelSelector,
    ) -> Vec<&'b Member<'a>> {
        match namespaces {
            None => self.select(own, pods).collect(),
            Some(selector) => {
                let selected = self.namespaces.iter().filter(|n| selector.matches(|key| n.label(key)));
                selected.flat_map(|n| self.select(&n.name, pods)).collect()
            }
        }
    }

    /// The rule of a policy in a namespace. `target` is the pod to whose ports names refer; without it, they refer to those of the peers.
    fn rule(&mut self, namespace: &'a str, rule: &'a Rule, target: Option<&Pod>) -> Arc<policies::Rule> {
        let depends_on_pod = target.is_some() && rule.ports.iter().any(|p| matches!(p, Port::Name(..)));
        if !depends_on_pod && let Some(known) = self.rules.get(&std::ptr::from_ref(rule)) {
            return known.clone();
        }
        let made = Arc::new(policies::Rule {
            peers: self.peers(namespace, rule),
            ports: ports(rule, target),
            endpoints: if target.is_some() { None } else { self.endpoints(namespace, rule) },
        });
        if !depends_on_pod {
            self.rules.insert(rule, made.clone());
        }
        made
    }

    fn peers(&mut self, own: &'a str, rule: &'a Rule) -> Peers {
        if rule.peers.is_empty() {
            return Peers::Any;
        }
        let peer = |peer: &'a Peer| match peer {
            Peer::Nothing => None,
            Peer::Block(block) => Some(policies::Peer::Block(block.clone())),
            Peer::Pods { namespaces, pods } => {
                let namespaces = namespaces.as_ref();
                let key = (Some(own).filter(|_| namespaces.is_none()), namespaces, pods);
                let known = self.selected.get(&key).cloned();
                let set = known.unwrap_or_else(|| {
                    let selected = self.pods(own, namespaces, pods).into_iter();
                    let addresses = selected.flat_map(|m| m.addresses.iter().copied()).collect();
                    let set = Arc::new(AddressSet { name: format!("pods-{}", short(&format!("{key:?}"))), addresses });
                    self.selected.insert(key, set.clone());
                    set
                });
                Some(policies::Peer::Pods(set))
            }
        };
        Peers::These(rule.peers.iter().filter_map(peer).collect())
    }

    /// The ports of peers that the rule names; none if it names no port.
    fn endpoints(&self, own: &str, rule: &Rule) -> Option<Arc<EndpointSet>> {
        let named = |p: &Port| match p {
            Port::Name(protocol, name) => Some((name.clone(), *protocol)),
            Port::Numbers(_) => None,
        };
        let names: BTreeSet<(String, Protocol)> = rule.ports.iter().filter_map(named).collect();
        if names.is_empty() {
            return None;
        }
        let within = |block: &Block, address: IpAddr| {
            block.cidr.contains(address) && !block.except.iter().any(|e: &Cidr| e.contains(address))
        };
        let mut found: Vec<(&Member, IpAddr)> = Vec::new();
        let all = || self.members.iter().flat_map(|m| m.addresses.iter().map(move |address| (m, *address)));
        for peer in &rule.peers {
            match peer {
                Peer::Nothing => {}
                Peer::Block(block) => found.extend(all().filter(|(_, address)| within(block, *address))),
                Peer::Pods { namespaces, pods } => {
                    let selected = self.pods(own, namespaces.as_ref(), pods).into_iter();
                    found.extend(selected.flat_map(|m| m.addresses.iter().map(move |address| (m, *address))));
                }
            }
        }
        if rule.peers.is_empty() {
            found.extend(all());
        }
        let mut endpoints = BTreeSet::new();
        for (member, address) in found {
            let ports =
                member.pod.ports.iter().filter(|(name, protocol, _)| names.contains(&(name.clone(), *protocol)));
            endpoints.extend(ports.map(|(_, protocol, port)| (address, *protocol, *port)));
        }
        let name = format!("ports-{}", short(&format!("{own} {:?} {names:?}", rule.peers)));
        Some(Arc::new(EndpointSet { name, endpoints }))
    }
}

/// The pods with addresses. An address belongs to the pod of this node that has it, else to the newest pod that claims it.
fn owners<'a>(pods: &[(&'a Meta, &'a Pod)], local: &BTreeMap<String, Vec<IpAddr>>) -> Vec<Member<'a>> {
    let mut claims: Vec<(bool, Member)> = Vec::new();
    for (meta, pod) in pods {
        let own = local.get(&*meta.uid);
        let addresses = own.unwrap_or(&pod.addresses).clone();
        if !addresses.is_empty() {
            claims.push((own.is_some(), Member { meta, pod, addresses }));
        }
    }
    let rank =
        |(is_own, m): &(bool, Member<'a>)| (!*is_own, std::cmp::Reverse(m.meta.creation_timestamp), m.meta.uid.clone());
    claims.sort_by_cached_key(rank);
    let mut taken = BTreeSet::new();
    // Addresses of this node's pods that are not among the objects belong to them still.
    let known: BTreeSet<&str> = pods.iter().map(|(meta, _)| &*meta.uid).collect();
    taken.extend(local.iter().filter(|(uid, _)| !known.contains(&***uid)).flat_map(|(_, all)| all.iter().copied()));
    let mut members: Vec<Member> = claims.into_iter().map(|(_, member)| member).collect();
    for member in &mut members {
        member.addresses.retain(|address| taken.insert(*address));
    }
    members.retain(|member| !member.addresses.is_empty());
    members
}

/// The numbers of a rule's ports; names are those of `target`.
fn ports(rule: &Rule, target: Option<&Pod>) -> Ports {
    if rule.ports.is_empty() {
        return Ports::Any;
    }
    let mut out = BTreeSet::new();
    for port in &rule.ports {
        match port {
            Port::Numbers(range) => _ = out.insert(*range),
            Port::Name(protocol, name) => {
                let own = target.into_iter().flat_map(|pod| &pod.ports).filter(|(n, p, _)| n == name && p == protocol);
                out.extend(
                    own.map(|(_, protocol, port)| PortRange { protocol: *protocol, ports: Some((*port, *port)) }),
                );
            }
        }
    }
    Ports::These(out.into_iter().collect())
}

/// A short stable name of a text, which users choose: 128 bits of SHA-256, so that nobody finds another text with the same name.
fn short(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().take(16).map(|b| format!("{b:02x}")).collect()
}
