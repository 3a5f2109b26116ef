//! Divides changes into transactions of limited size.
//!
//! The kernel runs one transaction at a time, and pods that start or end wait for it. So the size of a transaction is limited, and
//! namespaces with few changes come first.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ServicePort;

/// Service ports by name.
pub type Ports = BTreeMap<Arc<str>, Arc<ServicePort>>;

/// Maximum of parts of one transaction, unless one service port alone has more.
const PARTS: usize = 2000;

/// The change of a service port: to `port`, or its removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub name: Arc<str>,
    pub port: Option<Arc<ServicePort>>,
    parts: usize,
}

impl Change {
    fn namespace(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }
}

/// The changes from one state to another.
pub fn changes(from: &Ports, to: &Ports) -> Vec<Change> {
    let parts = |port: Option<&Arc<ServicePort>>| {
        port.map_or(0, |p| 1 + p.endpoints.len() + p.external_ips.len() + p.load_balancer_ips.len())
    };
    let change = |name: &Arc<str>, old, new: Option<&Arc<ServicePort>>| Change {
        name: name.clone(),
        port: new.cloned(),
        parts: parts(old) + parts(new),
    };
    // Both are read once, side by side: of many ports few differ.
    let mut old = from.iter().peekable();
    let mut found = Vec::new();
    for (name, new) in to {
        while let Some((gone, port)) = old.next_if(|(known, _)| *known < name) {
            found.push(change(gone, Some(port), None));
        }
        let known = old.next_if(|(known, _)| *known == name).map(|(_, port)| port);
        if known != Some(new) {
            found.push(change(name, known, Some(new)));
        }
    }
    found.extend(old.map(|(gone, port)| change(gone, Some(port), None)));
    found
}

/// Groups changes to transactions, those of small namespaces first.
pub fn transactions(mut changes: Vec<Change>) -> Vec<Vec<Change>> {
    let mut totals: BTreeMap<String, usize> = BTreeMap::new();
    for change in &changes {
        *totals.entry(change.namespace().to_owned()).or_default() += change.parts;
    }
    let total = |change: &Change| totals.get(change.namespace()).copied().unwrap_or_default();
    changes.sort_by(|a, b| (total(a), &a.name).cmp(&(total(b), &b.name)));
    let mut out: Vec<Vec<Change>> = Vec::new();
    let mut room = 0;
    for change in changes {
        match out.last_mut().filter(|_| change.parts <= room) {
            Some(last) => {
                room -= change.parts;
                last.push(change);
            }
            None => {
                room = PARTS.saturating_sub(change.parts);
                out.push(vec![change]);
            }
        }
    }
    out
}

/// Divides a refused transaction by namespaces, or a single namespace in two. Empty if it cannot be divided.
pub fn divide(transaction: Vec<Change>) -> Vec<Vec<Change>> {
    if transaction.len() < 2 {
        return Vec::new();
    }
    let mut by_namespace: BTreeMap<String, Vec<Change>> = BTreeMap::new();
    for change in transaction {
        by_namespace.entry(change.namespace().to_owned()).or_default().push(change);
    }
    let mut parts: Vec<Vec<Change>> = by_namespace.into_values().collect();
    if let [only] = &mut parts[..] {
        let rest = only.split_off(only.len() / 2);
        parts.push(rest);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Affinity, Endpoint, Policy, Protocol};
    use std::net::Ipv4Addr;

    fn port(name: &str, endpoints: u16) -> (Arc<str>, Arc<ServicePort>) {
        let endpoint = |n: u16| Endpoint {
            address: Ipv4Addr::new(10, 1, (n >> 8) as u8, n as u8).into(),
            port: 80,
            cluster: true,
            local: true,
        };
        let port = ServicePort {
            name: name.into(),
            cluster_ip: Ipv4Addr::new(10, 96, 0, 10).into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
            external_ips: vec![],
            load_balancer_ips: vec![],
            source_ranges: vec![],
            endpoints: (0..endpoints).map(endpoint).collect(),
            affinity: Affinity::None,
            internal_policy: Policy::Cluster,
            external_policy: Policy::Cluster,
        };
        (name.into(), Arc::new(port))
    }

    fn names(transactions: &[Vec<Change>]) -> Vec<Vec<&str>> {
        transactions.iter().map(|t| t.iter().map(|c| &*c.name).collect()).collect()
    }

    #[test]
    fn only_what_differs_changes() {
        let from: Ports = [port("a/same", 1), port("a/grows", 1), port("b/goes", 3)].into();
        let to: Ports = [port("a/same", 1), port("a/grows", 2), port("c/comes", 0)].into();
        let found: Vec<_> = changes(&from, &to).into_iter().map(|c| (c.name, c.port.is_some(), c.parts)).collect();
        let expect = [("a/grows", true, 5), ("b/goes", false, 4), ("c/comes", true, 1)];
        assert_eq!(found, expect.map(|(n, p, parts)| (n.into(), p, parts)));
        assert!(changes(&from, &from).is_empty());
    }

    #[test]
    fn transactions_are_bounded_and_small_namespaces_come_first() {
        let many: Vec<_> = (0..12).map(|n| port(&format!("a/s{n:02}"), 999)).collect();
        let all: Ports =
            many.into_iter().chain([port("b/victim", 2), port("c/other", 3), port("d/huge", 5000)]).collect();
        let transactions = transactions(changes(&Ports::new(), &all));
        assert_eq!(names(&transactions)[0], ["b/victim", "c/other"], "the huge one has no room there");
        assert_eq!(names(&transactions)[1], ["d/huge"]);
        assert_eq!(names(&transactions)[2], ["a/s00", "a/s01"]);
        assert_eq!(transactions.len(), 8);
    }

    #[test]
    fn what_is_refused_is_divided_by_namespaces_and_then_in_halves() {
        let all: Ports = ["a/1", "a/2", "a/3", "b/1"].map(|n| port(n, 1)).into();
        let parts = divide(changes(&Ports::new(), &all));
        assert_eq!(names(&parts), [vec!["a/1", "a/2", "a/3"], vec!["b/1"]]);
        let parts = divide(parts[0].clone());
        assert_eq!(names(&parts), [vec!["a/1"], vec!["a/2", "a/3"]]);
        assert!(divide(parts[0].clone()).is_empty());
    }
}
