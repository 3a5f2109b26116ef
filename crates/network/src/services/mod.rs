//! Services by nftables: from the desired state, as plain data, to the smallest transaction that brings it about.
//!
//! One table per node. A packet finds its service port by one look into a map, whose verdict leads to a chain that picks an
//! endpoint; ports without endpoints are in maps of their own, whose verdict refuses. So the cost of a packet does not
//! depend on how many services there are, and changing one service touches its chain and its map entries only.

mod conntrack;
mod render;
mod ruleset;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::address::Cidr;
use crate::{Result, check_id, nft};
pub(crate) use conntrack::{Flows, forget_pods, forget_stale};
use ruleset::Ruleset;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// `Local`: only endpoints on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    #[default]
    Cluster,
    Local,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Affinity {
    #[default]
    None,
    /// The same client gets the same endpoint until it has been quiet for so long.
    ClientIp(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    pub address: Ipv4Addr,
    pub port: u16,
    /// On this node.
    pub local: bool,
}

/// One port of one service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServicePort {
    /// Unique and stable, e.g. `default/web:http`.
    pub name: String,
    pub cluster_ip: Ipv4Addr,
    pub protocol: Protocol,
    pub port: u16,
    pub node_port: Option<u16>,
    /// External and load balancer addresses.
    pub external_ips: Vec<Ipv4Addr>,
    pub endpoints: Vec<Endpoint>,
    pub affinity: Affinity,
    pub internal_policy: Policy,
    pub external_policy: Policy,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// As in [`crate::Options`].
    pub id: String,
    pub node_namespace: Option<PathBuf>,
    pub cluster_range: Cidr,
    pub service_range: Cidr,
}

/// The packet rules of one node.
pub struct ServiceRules {
    options: Options,
    /// What is in force; `None` when not known, and then all of it is replaced.
    applied: Mutex<Option<(Ruleset, Flows)>>,
}

impl ServiceRules {
    /// Nothing is touched yet: what an earlier process has set up stays in force until the first [`ServiceRules::apply`]
    /// replaces it in one step.
    pub fn open(options: Options) -> Result<ServiceRules> {
        check_id(&options.id)?;
        Ok(ServiceRules { options, applied: Mutex::new(None) })
    }

    /// Brings the rules to `desired` in one transaction; nothing is sent if nothing changes. On an error the rules in force
    /// are the former ones, and the next call replaces everything.
    pub async fn apply(&self, desired: &[ServicePort]) -> Result<()> {
        let desired = render::without_taken(&self.options, desired);
        let next = render::render(&self.options, &desired);
        let flows = render::flows(&desired);
        let mut applied = self.applied.lock().await;
        let before = applied.take();
        let script = match &before {
            Some((before, _)) => next.difference(before),
            None => next.replacement(),
        };
        if !script.is_empty() {
            let namespace = self.options.node_namespace.as_deref();
            if let Err(error) = nft::apply(namespace, &script).await {
                // Someone else may have changed the table: start over from nothing, once.
                if before.is_none() {
                    return Err(error);
                }
                tracing::warn!(%error, "a change of the service rules was refused; replacing all of them");
                nft::apply(namespace, &next.replacement()).await?;
            }
        }
        let known = before.is_some_and(|(_, known)| known == flows);
        if !known && flows != Flows::default() {
            let (namespace, flows) = (self.options.node_namespace.clone(), flows.clone());
            let forget = move || forget_stale(namespace.as_deref(), &flows);
            match tokio::task::spawn_blocking(forget).await {
                Ok(Ok(0)) | Err(_) => {}
                Ok(Ok(count)) => tracing::debug!(count, "forgot UDP flows to endpoints that are gone"),
                Ok(Err(error)) => tracing::warn!(%error, "cannot look for UDP flows to endpoints that are gone"),
            }
        }
        *applied = Some((next, flows));
        Ok(())
    }

    /// The rules in force, as nft prints them.
    pub async fn dump(&self) -> Result<String> {
        nft::list(self.options.node_namespace.as_deref(), "ip", &table(&self.options.id)).await
    }

    /// Removes our table and nothing else.
    pub async fn purge(options: &Options) -> Result<()> {
        check_id(&options.id)?;
        let table = table(&options.id);
        let script = format!("add table ip {table}\ndelete table ip {table}\n");
        nft::apply(options.node_namespace.as_deref(), &script).await
    }
}

fn table(id: &str) -> String {
    format!("kemudi-{id}")
}
