//! Services by nftables: computes small transactions from the desired state.
//!
//! One table per node and family. One lookup in a map finds the service port of a packet, whose verdict jumps to a chain that picks an
//! endpoint; ports without endpoints are in other maps, whose verdict refuses. So the cost of a packet does not depend on how many
//! services there are, and changing one service touches its chain and its map entries only.
//!
//! **Invariant**: a service port that the kernel refuses does not affect others, and no transaction is larger than [`changes`]
//! allows.

mod changes;
mod render;
mod table;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::address::{Cidr, Family, Ranges};
use crate::conntrack::{Flows, forget_stale};
use crate::host_ports::HostPort;
use crate::protocol::Protocol;
use crate::{Error, Result, check_id, nft};
use changes::{Change, Ports};
use table::Table;

/// Which endpoints connections go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Traffic goes to endpoints on all nodes.
    #[default]
    Cluster,
    /// Traffic goes to endpoints on this node only.
    Local,
}

/// The session affinity of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Affinity {
    /// Each connection goes to a random endpoint.
    #[default]
    None,
    /// A client keeps its endpoint until it has sent nothing for this time.
    ClientIp(Duration),
}

/// An endpoint of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Used where the traffic policy is `Cluster`.
    pub cluster: bool,
    /// Used where the traffic policy is `Local`: on this node.
    pub local: bool,
}

/// One port of one service, in one family: all its addresses are of that of `cluster_ip`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServicePort {
    /// Unique in its family and stable, e.g. `default/web:http`.
    pub name: Arc<str>,
    /// The address of the service.
    pub cluster_ip: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port of the service.
    pub port: u16,
    /// The port on every node, if it has one.
    pub node_port: Option<u16>,
    /// Addresses that the user of the service has written.
    pub external_ips: Vec<IpAddr>,
    /// The addresses of the load balancer.
    pub load_balancer_ips: Vec<IpAddr>,
    /// Where connections to the load balancer may come from; empty for everywhere.
    pub source_ranges: Vec<Cidr>,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
    /// The session affinity.
    pub affinity: Affinity,
    /// The traffic policy for connections from pods.
    pub internal_policy: Policy,
    /// The traffic policy for connections from outside of the cluster.
    pub external_policy: Policy,
}

/// How far the desired state is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All rules are in the kernel.
    Complete,
    /// Some changes are not written yet.
    Partial,
}

/// How long a call of [`ServiceRules::apply_next`] starts further transactions of a family.
const TURN: Duration = Duration::from_millis(100);

/// Options of the rules for services.
#[derive(Clone, Debug)]
pub struct Options {
    /// As in [`crate::Options`].
    pub id: String,
    /// The network namespace of the node; none for that of this process.
    pub node_namespace: Option<PathBuf>,
    /// The addresses of pods.
    pub cluster_ranges: Ranges,
    /// The addresses of services.
    pub service_ranges: Ranges,
    /// The addresses of load balancers.
    pub load_balancer_ranges: Option<Ranges>,
    /// Ports that the node itself uses: no service gets them on the node's addresses.
    pub own_ports: Vec<HostPort>,
}

/// The options for one family.
#[derive(Clone, Debug)]
struct FamilyOptions {
    id: String,
    node_namespace: Option<PathBuf>,
    family: Family,
    cluster_range: Cidr,
    service_range: Cidr,
    load_balancer_range: Option<Cidr>,
    own_ports: Vec<HostPort>,
}

impl Options {
    /// The options of each family that pods and services have.
    fn families(&self) -> Vec<FamilyOptions> {
        let of = |cluster_range: Cidr| {
            let family = cluster_range.family();
            Some(FamilyOptions {
                id: self.id.clone(),
                node_namespace: self.node_namespace.clone(),
                family,
                cluster_range,
                service_range: self.service_ranges.of(family)?,
                load_balancer_range: self.load_balancer_ranges.and_then(|ranges| ranges.of(family)),
                own_ports: self.own_ports.clone(),
            })
        };
        self.cluster_ranges.iter().filter_map(of).collect()
    }
}

/// The packet rules of one node, in a table for each family.
pub struct ServiceRules {
    options: Options,
    families: Vec<FamilyRules>,
}

impl ServiceRules {
    /// Changes nothing yet: the rules of an earlier process stay until the first transaction of [`ServiceRules::apply`] replaces
    /// them.
    pub fn open(options: Options) -> Result<ServiceRules> {
        check_id(&options.id)?;
        let families = options.families().into_iter();
        let families = families.map(|options| FamilyRules { options, applied: Mutex::new(None) }).collect();
        Ok(ServiceRules { options, families })
    }

    /// Applies `desired`, in one transaction for each family if that is not too large; without changes none is sent. After an error a
    /// part is applied, and the next call tries the rest again. Shared ports that are those of the call before cost no comparison.
    pub async fn apply<P: Clone + Into<Arc<ServicePort>>>(&self, desired: &[P]) -> Result<()> {
        while self.apply_next(desired).await? == Progress::Partial {}
        Ok(())
    }

    /// Like [`ServiceRules::apply`], but returns after the first long transaction of each family, so that the caller can pass a newer
    /// desired state: changes of small namespaces come first again.
    pub async fn apply_next<P: Clone + Into<Arc<ServicePort>>>(&self, desired: &[P]) -> Result<Progress> {
        let desired: Vec<Arc<ServicePort>> = desired.iter().cloned().map(Into::into).collect();
        let mut result = Ok(Progress::Complete);
        for rules in &self.families {
            // A family whose rules cannot be written does not affect the other one.
            match rules.apply_next(&desired).await {
                Ok(Progress::Complete) => {}
                Ok(Progress::Partial) => result = result.map(|_| Progress::Partial),
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// The applied rules, as nft prints them.
    pub async fn dump(&self) -> Result<String> {
        let (namespace, table) = (self.options.node_namespace.as_deref(), table(&self.options.id));
        let mut text = String::new();
        for rules in &self.families {
            text += &nft::list(namespace, rules.options.family.word(), &table).await?;
        }
        Ok(text)
    }

    /// Removes the tables.
    pub async fn purge(options: &Options) -> Result<()> {
        check_id(&options.id)?;
        nft::remove(options.node_namespace.as_deref(), &table(&options.id)).await
    }
}

/// The packet rules of one family.
struct FamilyRules {
    options: FamilyOptions,
    /// `None` if the applied state is unknown, and then all of it is replaced.
    applied: Mutex<Option<Applied>>,
}

/// The applied state.
#[derive(Default)]
struct Applied {
    /// Whether this process has written the table; otherwise the first transaction replaces it.
    begun: bool,
    table: Table,
    flows: Flows,
    /// Changes that the kernel refused. They are tried again, but do not cause a replacement of the table.
    refused: Vec<Change>,
}

impl FamilyRules {
    /// Applies the ports of this family, for [`TURN`] at most.
    async fn apply_next(&self, desired: &[Arc<ServicePort>]) -> Result<Progress> {
        let own = desired.iter().filter(|p| Family::of(p.cluster_ip) == self.options.family);
        let desired: Ports = own.map(|p| (p.name.clone(), render::without_taken(&self.options, p))).collect();
        let mut known = self.applied.lock().await;
        // The state is unknown if this is cancelled.
        let mut applied = known.take().unwrap_or_default();
        let replaced = !applied.begun;
        let first = self.advance(&mut applied, &desired).await;
        let is_new = |(change, _): &(Change, Error)| !applied.refused.contains(change);
        let unexpected = match &first {
            Ok((refused, _)) => refused.iter().find(|r| is_new(r)).map(|(_, e)| e),
            Err(error) => Some(error).filter(|e| matches!(e, Error::Nft { .. })),
        };
        let (refused, progress) = match unexpected.filter(|_| !replaced) {
            // Another process may have changed the table: replace all of it, once.
            Some(error) => {
                tracing::warn!(%error, "a change of the service rules was refused; replacing all of them");
                applied = Applied::default();
                self.advance(&mut applied, &desired).await?
            }
            None => first?,
        };
        let mut result = Ok(progress);
        if progress == Progress::Complete {
            self.forget_flows(&mut applied).await;
            applied.refused.clear();
        }
        for (change, error) in refused {
            tracing::warn!(%error, port = &*change.name, "the kernel refuses the rules of a service port; it is left out");
            applied.refused.push(change);
            if progress == Progress::Complete {
                result = Err(error);
            }
        }
        *known = Some(applied);
        result
    }

    /// Writes the differences to `desired`, for [`TURN`] at most. Returns the changes that the kernel refused. Errors if it refuses
    /// everything.
    async fn advance(&self, applied: &mut Applied, desired: &Ports) -> Result<(Vec<(Change, Error)>, Progress)> {
        let started = Instant::now();
        let (again, new): (Vec<_>, Vec<_>) =
            changes::changes(applied.table.ports(), desired).into_iter().partition(|c| applied.refused.contains(c));
        let mut work = VecDeque::from(changes::transactions(new));
        // One by one, after all others.
        work.extend(again.into_iter().map(|change| vec![change]));
        if work.is_empty() && !applied.begun {
            self.write(applied, &[]).await?;
        }
        let mut refused = Vec::new();
        while let Some(transaction) = work.pop_front() {
            // Refused changes are all tried, else they would be tried for ever.
            if started.elapsed() >= TURN && transaction.iter().any(|change| !applied.refused.contains(change)) {
                return Ok((refused, Progress::Partial));
            }
            let error = match self.write(applied, &transaction).await {
                Ok(()) => continue,
                Err(error @ Error::Nft { .. }) => error,
                Err(error) => return Err(error),
            };
            if !applied.begun {
                // Either this is the reason, or there will be no rules.
                self.write(applied, &[]).await?;
            } else if !self.is_there().await {
                return Err(error);
            }
            match &transaction[..] {
                [only] => refused.push((only.clone(), error)),
                _ => changes::divide(transaction).into_iter().rev().for_each(|part| work.push_front(part)),
            }
        }
        Ok((refused, Progress::Complete))
    }

    /// Whether the table exists: a command that changes nothing, and fails without the table.
    async fn is_there(&self) -> bool {
        let command = format!("add chain {} {} services\n", self.options.family.word(), table(&self.options.id));
        nft::apply(self.options.node_namespace.as_deref(), &command).await.is_ok()
    }

    /// Writes some changes in one transaction. On an error nothing has changed.
    async fn write(&self, applied: &mut Applied, transaction: &[Change]) -> Result<()> {
        let step = applied.table.step(&self.options, transaction);
        let script = if applied.begun { step.script() } else { step.replacement(&self.options) };
        if !script.is_empty() {
            nft::apply(self.options.node_namespace.as_deref(), &script).await?;
        }
        applied.table.commit(step);
        applied.begun = true;
        Ok(())
    }

    /// Deletes UDP flows to removed endpoints, if endpoints have changed.
    async fn forget_flows(&self, applied: &mut Applied) {
        let flows = render::flows(applied.table.ports().values().map(|p| &**p));
        if flows == applied.flows {
            return;
        }
        applied.flows = flows.clone();
        if flows == Flows::default() {
            return;
        }
        let namespace = self.options.node_namespace.clone();
        match tokio::task::spawn_blocking(move || forget_stale(namespace.as_deref(), &flows)).await {
            Ok(Ok(0)) | Err(_) => {}
            Ok(Ok(count)) => tracing::debug!(count, "deleted UDP flows to removed endpoints"),
            Ok(Err(error)) => tracing::warn!(%error, "deleting UDP flows to removed endpoints failed; they time out"),
        }
    }
}

fn table(id: &str) -> String {
    format!("kemudi-{id}")
}
