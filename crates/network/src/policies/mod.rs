//! Network policies by nftables: computes small transactions from the desired rules of the node's pods.
//!
//! One table per node and family, in the path of forwarded packets. Two maps, one per direction, have an entry for every pod of the node: an
//! isolated pod has a chain, which pods with equal rules share; any other pod passes. A chain looks up peers in sets of addresses, so
//! a pod that comes or goes changes elements of sets only. Packets of connections that were once allowed pass without a lookup.
//! Packets between a pod and its own node do not pass this hook and are always allowed, as the API demands.
//!
//! **Invariants.** A pod without an entry gets no packets and sends none: [`PodGate`] lets it start only once it has one, and its entry
//! is removed before its address is released. Objects are removed in a transaction of their own, after no element refers to them, and
//! a new process replaces the table in one: at no moment is an isolated pod open.

mod gate;
mod render;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Mutex;

pub use gate::{PodGate, Pods};

use crate::address::{Cidr, Family};
use crate::conntrack::forget_pods;
use crate::protocol::Protocol;
use crate::ruleset::Ruleset;
use crate::{Result, check_id, nft};

/// The addresses of the pods that a selector selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressSet {
    /// Derived from the selector: unique, and the same while the pods change.
    pub name: String,
    /// The addresses.
    pub addresses: BTreeSet<IpAddr>,
}

/// The ports of pods that a name of a port and a selector select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSet {
    /// As that of an [`AddressSet`].
    pub name: String,
    /// Address, protocol and port.
    pub endpoints: BTreeSet<(IpAddr, Protocol, u16)>,
}

/// A range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The range.
    pub cidr: Cidr,
    /// Ranges that are not part of it.
    pub except: Vec<Cidr>,
}

/// Other ends of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Pods of the cluster.
    Pods(Arc<AddressSet>),
    /// Addresses, of pods too.
    Block(Block),
}

/// The other ends of connections that a rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peers {
    /// All addresses.
    Any,
    /// Each of these; none if it is empty.
    These(Vec<Peer>),
}

/// Destination ports of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortRange {
    /// The protocol.
    pub protocol: Protocol,
    /// The first and the last port; all ports without it.
    pub ports: Option<(u16, u16)>,
}

/// The destination ports that a rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// All ports, and protocols without ports.
    Any,
    /// Each of these; none if it is empty.
    These(Vec<PortRange>),
}

/// Connections that are allowed in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The other ends.
    pub peers: Peers,
    /// The ports of the destination.
    pub ports: Ports,
    /// Destinations that are allowed besides those of `peers` with `ports`, for names of ports in rules for egress.
    pub endpoints: Option<Arc<EndpointSet>>,
}

/// The rules of a pod of this node. A connection is allowed in a direction if the pod is not isolated in that direction, or any of the
/// rules allows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPolicy {
    /// The addresses of the pod.
    pub addresses: Vec<IpAddr>,
    /// For connections to the pod; none if it is not isolated.
    pub ingress: Option<Vec<Arc<Rule>>>,
    /// For connections from the pod; none if it is not isolated.
    pub egress: Option<Vec<Arc<Rule>>>,
}

/// Options of the rules for network policies.
#[derive(Clone, Debug)]
pub struct Options {
    /// As in [`crate::Options`].
    pub id: String,
    /// The network namespace of the node; none for that of this process.
    pub node_namespace: Option<PathBuf>,
    /// The families of pods.
    pub families: Vec<Family>,
    /// The bridge of the pods ([`crate::Options::bridge`]).
    pub bridge: String,
    /// The address of the cluster's DNS service. Its servers are part of the nodes, so all pods may reach them.
    pub dns: Option<IpAddr>,
}

/// The rules for network policies on one node.
pub struct PolicyRules {
    options: Options,
    /// None if the applied state is unknown, and then all of it is replaced.
    applied: Mutex<Option<Vec<Ruleset>>>,
}

impl PolicyRules {
    /// Changes nothing yet: the rules of an earlier process stay until the first [`PolicyRules::apply`].
    pub fn open(options: Options) -> Result<PolicyRules> {
        check_id(&options.id)?;
        Ok(PolicyRules { options, applied: Mutex::new(None) })
    }

    /// Forgets the connections of pods that are gone, on this node: connections that were allowed to go on are those of their addresses.
    pub async fn forget_connections(&self, pods: BTreeSet<IpAddr>) {
        if pods.is_empty() {
            return;
        }
        let namespace = self.options.node_namespace.clone();
        match tokio::task::spawn_blocking(move || forget_pods(namespace.as_deref(), &pods)).await {
            Ok(Ok(0)) | Err(_) => {}
            Ok(Ok(count)) => tracing::debug!(count, "forgot connections of pods that are gone"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "forgetting connections of pods that are gone failed; they time out")
            }
        }
    }

    /// Applies the rules of all pods of the node; without them (`None`) everything is allowed. After an error the next call replaces
    /// all rules.
    pub async fn apply(&self, pods: Option<&[PodPolicy]>) -> Result<()> {
        let render = |pods: &[PodPolicy]| -> Vec<Ruleset> {
            self.options.families.iter().map(|family| render::render(&self.options, *family, pods)).collect()
        };
        let desired = pods.map(render).unwrap_or_default();
        let mut known = self.applied.lock().await;
        if known.as_ref() == Some(&desired) {
            return Ok(());
        }
        // The state is unknown if this fails or is cancelled.
        let before = known.take();
        let node = self.options.node_namespace.as_deref();
        match &before {
            _ if pods.is_none() => remove(&self.options).await?,
            Some(before) if before.len() == desired.len() => {
                let pairs = || desired.iter().zip(before);
                let changes: String = pairs().map(|(desired, before)| desired.changes(before)).collect();
                if !changes.is_empty() {
                    nft::apply(node, &changes).await?;
                }
                let removals: String = pairs().map(|(desired, before)| desired.removals(before)).collect();
                if !removals.is_empty() {
                    nft::apply(node, &removals).await?;
                }
            }
            _ => nft::apply(node, &desired.iter().map(Ruleset::replacement).collect::<String>()).await?,
        }
        *known = Some(desired);
        Ok(())
    }

    /// The applied rules, as nft prints them.
    pub async fn dump(&self) -> Result<String> {
        let mut text = String::new();
        for family in &self.options.families {
            let (node, table) = (self.options.node_namespace.as_deref(), table(&self.options.id));
            text += &nft::list(node, family.word(), &table).await?;
        }
        Ok(text)
    }

    /// Removes the table.
    pub async fn purge(options: &Options) -> Result<()> {
        check_id(&options.id)?;
        remove(options).await
    }
}

async fn remove(options: &Options) -> Result<()> {
    nft::remove(options.node_namespace.as_deref(), &table(&options.id)).await
}

fn table(id: &str) -> String {
    format!("kemudi-policy-{id}")
}
