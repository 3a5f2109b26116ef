//! Which endpoints a node uses: those that the hints of their slices prefer, and terminating ones if no other is there (upstream
//! `pkg/proxy/topology.go`).

use network::Endpoint;
use std::net::IpAddr;

/// The node and its zone.
#[derive(Clone, Copy, Debug)]
pub struct Location<'a> {
    /// The name of the node.
    pub node: &'a str,
    /// The label `topology.kubernetes.io/zone` of the node; empty without it.
    pub zone: &'a str,
}

/// An endpoint of a slice that may be used.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its index in the slice.
    pub index: usize,
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Whether it is on this node.
    pub is_local: bool,
    /// Ready; otherwise it terminates and still serves.
    pub is_ready: bool,
    /// The zones that should use it.
    pub zones: &'a [super::desired::Hint],
    /// The nodes that should use it.
    pub nodes: &'a [super::desired::Hint],
}

/// Which ready endpoints are preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preference {
    All,
    Node,
    Zone,
}

impl Preference {
    /// A preference of a node or zone counts only if all ready endpoints have hints, and one of them is for this node or zone.
    fn new(ready: &[&Candidate], location: Location) -> Preference {
        if ready.iter().all(|c| !c.nodes.is_empty()) && ready.iter().any(|c| has(c.nodes, location.node)) {
            return Preference::Node;
        }
        if ready.iter().all(|c| !c.zones.is_empty()) && ready.iter().any(|c| has(c.zones, location.zone)) {
            return Preference::Zone;
        }
        Preference::All
    }

    fn allows(self, candidate: &Candidate, location: Location) -> bool {
        match self {
            Preference::All => true,
            Preference::Node => has(candidate.nodes, location.node),
            Preference::Zone => has(candidate.zones, location.zone),
        }
    }
}

fn has(hints: &[super::desired::Hint], name: &str) -> bool {
    hints.iter().any(|hint| hint.name == name)
}

/// The endpoints to use, each with its index in its slice.
pub fn choose(candidates: &[Candidate], location: Location) -> Vec<(usize, Endpoint)> {
    let ready: Vec<&Candidate> = candidates.iter().filter(|c| c.is_ready).collect();
    let preference = Preference::new(&ready, location);
    // Separately for both policies: without a ready endpoint, those that terminate are used.
    let has_local = ready.iter().any(|c| c.is_local);
    let flags = |c: &Candidate| {
        let cluster = if ready.is_empty() { !c.is_ready } else { c.is_ready && preference.allows(c, location) };
        let local = c.is_local && c.is_ready == has_local;
        (cluster, local)
    };
    let endpoint = |c: &Candidate| {
        let (cluster, local) = flags(c);
        (cluster || local).then_some((c.index, Endpoint { address: c.address, port: c.port, cluster, local }))
    };
    candidates.iter().filter_map(endpoint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::Hint;

    /// Checks the last bytes of the addresses for the policies Cluster and Local on node `n`, zone `z`. A candidate is on its node, ready or terminating, with
    /// hints for zones and nodes.
    fn check(candidates: &[(&str, bool, &str, &str)], cluster: &[u8], local: &[u8]) {
        let hint = |name: &&str| -> Vec<Hint> {
            name.split(',').filter(|n| !n.is_empty()).map(|name| Hint { name: name.into() }).collect()
        };
        let hints: Vec<_> = candidates.iter().map(|(_, _, zones, nodes)| (hint(zones), hint(nodes))).collect();
        let candidate = |(i, (node, is_ready, ..)): (usize, &(&str, bool, &str, &str))| Candidate {
            index: i,
            address: [10, 0, 0, u8::try_from(i).unwrap()].into(),
            port: 80,
            is_local: *node == "n",
            is_ready: *is_ready,
            zones: &hints[i].0,
            nodes: &hints[i].1,
        };
        let all: Vec<Candidate> = candidates.iter().enumerate().map(candidate).collect();
        let chosen = choose(&all, Location { node: "n", zone: "z" });
        let addresses = |used: fn(&Endpoint) -> bool| -> Vec<u8> {
            chosen.iter().filter(|(_, e)| used(e)).map(|(_, e)| e.address.octets()[3]).collect()
        };
        assert_eq!((&*addresses(|e| e.cluster), &*addresses(|e| e.local)), (cluster, local), "{candidates:?}");
    }

    #[test]
    fn hints_and_terminating_endpoints() {
        check(&[], &[], &[]);
        check(&[("n", true, "", ""), ("m", true, "", "")], &[0, 1], &[0]);
        // Zones.
        check(&[("n", true, "y", ""), ("m", true, "z", "")], &[1], &[0]);
        check(&[("n", true, "y", ""), ("m", true, "x,z", "")], &[1], &[0]);
        check(&[("n", true, "y", ""), ("m", true, "", "")], &[0, 1], &[0]);
        check(&[("n", true, "y", ""), ("m", true, "x", "")], &[0, 1], &[0]);
        // Nodes come before zones.
        check(&[("n", true, "z", "n"), ("m", true, "z", "m")], &[0], &[0]);
        check(&[("m", true, "z", "m"), ("m", true, "y", "m")], &[0], &[]);
        // Without ready endpoints here or anywhere, those that terminate.
        check(&[("n", false, "", ""), ("m", true, "", "")], &[1], &[0]);
        check(&[("n", false, "", ""), ("m", false, "", "")], &[0, 1], &[0]);
        check(&[("n", false, "", ""), ("n", true, "", "")], &[1], &[1]);
        check(&[("n", true, "z", ""), ("m", false, "", "")], &[0], &[0]);
    }
}
