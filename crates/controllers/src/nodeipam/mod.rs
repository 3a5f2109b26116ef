//! Gives every node a range of pod addresses of each of the cluster's ranges (upstream `pkg/controller/nodeipam`,
//! `range_allocator.go`).
//!
//! It runs only for clusters with ranges ([`Options`]), and may be limited to nodes that ask for a range by an annotation
//! ([`Options::on_request`]). Invariant: ranges of nodes that exist are taken before the first one is given away.

mod cidr_set;

pub use cidr_set::{Cidr, CidrSet};

use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use client::informer::or_default;
use client::{
    ApiResource, Change, Client, Entry, Informer, Key, Outcome, Patch, Recorder, Regarding, WorkQueue, WriteOptions,
};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use supervisor::{Component, OnEnd};

/// Prefix lengths of the ranges of nodes (upstream's defaults of `--node-cidr-mask-size-ipv4` and `-ipv6`).
const V4_BITS: u8 = 24;
const V6_BITS: u8 = 64;
const WORKERS: usize = 30;

/// The ranges of pod addresses of a cluster: one, or one of each family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    clusters: Vec<Cidr>,
    v4_bits: u8,
    v6_bits: u8,
    annotation: Option<&'static str>,
}

/// Why ranges cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRanges {
    #[error("cluster CIDR {0:?} is no range of addresses; write it as 10.244.0.0/16")]
    Syntax(String),
    #[error("there are {0} cluster CIDRs; give one, or one IPv4 and one IPv6 range")]
    Number(usize),
    #[error("the two cluster CIDRs are of one family; give one IPv4 and one IPv6 range")]
    OneFamily,
    #[error(transparent)]
    Size(#[from] cidr_set::Error),
}

impl Options {
    /// Parses `--cluster-cidr`: ranges separated by commas. `v4_bits` and `v6_bits` are the prefix lengths for nodes, if not the default.
    pub fn new(cluster_cidr: &str, v4_bits: Option<u8>, v6_bits: Option<u8>) -> Result<Self, InvalidRanges> {
        let parse = |text: &str| Cidr::parse(text).ok_or_else(|| InvalidRanges::Syntax(text.to_owned()));
        let clusters = cluster_cidr.split(',').map(parse).collect::<Result<Vec<_>, _>>()?;
        match clusters.as_slice() {
            [_] => {}
            [a, b] if a.is_v6() == b.is_v6() => return Err(InvalidRanges::OneFamily),
            [_, _] => {}
            more => return Err(InvalidRanges::Number(more.len())),
        }
        let (v4_bits, v6_bits) = (v4_bits.unwrap_or(V4_BITS), v6_bits.unwrap_or(V6_BITS));
        let options = Self { clusters, v4_bits, v6_bits, annotation: None };
        options.sets()?;
        Ok(options)
    }

    /// Gives ranges only to nodes with this annotation.
    pub fn on_request(self, annotation: &'static str) -> Self {
        Self { annotation: Some(annotation), ..self }
    }

    fn sets(&self) -> Result<Vec<CidrSet>, cidr_set::Error> {
        let bits = |c: &Cidr| if c.is_v6() { self.v6_bits } else { self.v4_bits };
        self.clusters.iter().map(|c| CidrSet::new(*c, bits(c))).collect()
    }
}

/// The fields of a node that the controller reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeView {
    metadata: NodeMetadata,
    spec: NodeSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeMetadata {
    #[serde(deserialize_with = "or_default")]
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    #[serde(rename = "podCIDRs", deserialize_with = "or_default")]
    pod_cidrs: Vec<String>,
}

/// The ranges of a node that its cache entry does not show yet, with its UID.
type Assigned = BTreeMap<Key, (Arc<str>, Vec<Cidr>)>;

struct Controller {
    context: Context,
    nodes: Informer<NodeView>,
    sets: Mutex<Vec<CidrSet>>,
    assigned: Mutex<Assigned>,
    annotation: Option<&'static str>,
    recorder: Recorder,
}

fn nodes() -> ApiResource {
    ApiResource::typed::<k8s_openapi::api::core::v1::Node>()
}

/// Starts the controller as a service of `component`, with the identity of the node controller. `client_for` returns a client that acts as
/// the service account of that name. No node gets a part of `reserved`.
pub fn start(
    options: Options,
    reserved: Vec<Cidr>,
    shared: &crate::Options,
    component: &Component,
    client_for: &dyn Fn(&str) -> Client,
) {
    let context = Context {
        name: "node-ipam-controller",
        client: client_for("node-controller"),
        informers: shared.informers.clone(),
        clock: shared.clock.clone(),
        rng: shared.rng.clone(),
        shutdown: component.shutdown().clone(),
    };
    let services = shared.service_ranges.iter().filter_map(|r| Cidr::parse(r));
    let services: Vec<Cidr> = services.chain(reserved).collect();
    component.spawn("node-ipam-controller", OnEnd::Restart, move || {
        Box::pin(run(context.clone(), options.clone(), services.clone()))
    });
}

/// Runs until shutdown. `services` are the ranges of service addresses, which no node gets.
pub async fn run(context: Context, options: Options, services: Vec<Cidr>) {
    let Ok(mut sets) = options.sets() else { return };
    for service in services {
        for set in &mut sets {
            set.occupy(service);
        }
    }
    let mut builder = Builder::new(&context);
    let c = Arc::new(Controller {
        nodes: builder.watch(&nodes()),
        sets: Mutex::new(sets),
        assigned: Mutex::default(),
        annotation: options.annotation,
        recorder: context.recorder_as("cidrAllocator"),
        context,
    });
    if c.context.shutdown.race(c.nodes.synced()).await.is_none() {
        return;
    }
    let present: Vec<Arc<Entry<NodeView>>> = c.nodes.cache().entries().cloned().collect();
    for node in present {
        if let Err(e) = c.occupy(&node) {
            tracing::warn!("{e}; the node keeps its range, and others may get a part of it");
        }
    }
    builder.handle(&c, &c.nodes, Controller::node_changed);
    builder.run_as("cidrallocator_node", WORKERS, c).await;
}

impl Controller {
    fn node_changed(&self, change: &Change<NodeView>, queue: &WorkQueue<Key>) {
        match (&change.old, &change.new) {
            (Some(old), None) => {
                let assigned = self.assigned.lock().remove(&change.key());
                let shown = old.view.spec.pod_cidrs.iter().filter_map(|c| Cidr::parse(c));
                let ranges: Vec<Cidr> = match assigned {
                    Some((_, ranges)) if old.view.spec.pod_cidrs.is_empty() => ranges,
                    _ => shown.collect(),
                };
                self.release(&ranges);
            }
            _ => queue.add(change.key()),
        }
    }

    fn release(&self, ranges: &[Cidr]) {
        for (set, range) in self.sets.lock().iter_mut().zip(ranges) {
            set.release(*range);
        }
    }

    /// Marks the ranges of a node as used.
    fn occupy(&self, node: &Entry<NodeView>) -> Result<(), Error> {
        let mut sets = self.sets.lock();
        for (i, text) in node.view.spec.pod_cidrs.iter().enumerate() {
            let invalid = |why: String| Error::Invalid { what: "podCIDRs", why: format!("node {}: {why}", node.key()) };
            let range = Cidr::parse(text).ok_or_else(|| invalid(format!("{text} is no range")))?;
            let set = sets.get_mut(i).ok_or_else(|| invalid(format!("{text} is one more than the cluster has")))?;
            if !set.occupy(range) {
                return Err(invalid(format!("{text} is in no range of the cluster")));
            }
        }
        Ok(())
    }

    /// Takes a range of each set; none if one of them is exhausted.
    fn allocate(&self) -> Option<Vec<Cidr>> {
        let mut sets = self.sets.lock();
        let mut ranges = Vec::new();
        for set in sets.iter_mut() {
            match set.allocate() {
                Some(range) => ranges.push(range),
                None => {
                    for (set, range) in sets.iter_mut().zip(&ranges) {
                        set.release(*range);
                    }
                    return None;
                }
            }
        }
        Some(ranges)
    }

    /// Reports a new state of a node.
    fn report(&self, node: &Entry<NodeView>, state: &'static str) {
        let text = format!("Node {} status is now: {state}", node.meta.name);
        self.recorder.normal(Regarding::from_meta("v1", "Node", &node.meta), state, text);
    }
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(node) = self.nodes.get(&key).filter(|n| !n.meta.is_deleting()) else { return Ok(Outcome::Done) };
        if !node.view.spec.pod_cidrs.is_empty() {
            self.assigned.lock().remove(&key);
            self.occupy(&node)?;
            return Ok(Outcome::Done);
        }
        if self.annotation.is_some_and(|a| !node.view.metadata.annotations.contains_key(a)) {
            return Ok(Outcome::Done);
        }
        if self.assigned.lock().get(&key).is_some_and(|(uid, _)| *uid == node.meta.uid) {
            // The cache does not show it yet.
            return Ok(Outcome::Done);
        }
        let Some(ranges) = self.allocate() else {
            self.report(&node, "CIDRNotAvailable");
            let why = "CIDR allocation failed; there are no remaining CIDRs left to allocate in the accepted range";
            return Err(Error::Waiting(format!("node {key}: {why}")));
        };
        let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        let spec = json!({"podCIDR": texts.first(), "podCIDRs": texts});
        let patch = Patch::Strategic(json!({"metadata": {"uid": &*node.meta.uid}, "spec": spec}));
        let api = self.context.client.dynamic(&nodes());
        self.assigned.lock().insert(key.clone(), (node.meta.uid.clone(), ranges.clone()));
        if let Err(e) = api.patch(&key.name, &WriteOptions::default(), &patch).await {
            self.assigned.lock().remove(&key);
            self.release(&ranges);
            if e.is_not_found() {
                return Ok(Outcome::Done);
            }
            self.report(&node, "CIDRAssignmentFailed");
            return Err(e.into());
        }
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_the_cluster() {
        let cases = [
            ("10.244.0.0/16", Ok(())),
            ("10.244.0.0/16,fd00::/48", Ok(())),
            ("fd00::/48, 10.244.0.0/16", Ok(())),
            ("10.244.0.0/16,10.245.0.0/16", Err(InvalidRanges::OneFamily)),
            ("10.244.0.0/16,fd00::/48,fd01::/48", Err(InvalidRanges::Number(3))),
            ("10.244.0.0", Err(InvalidRanges::Syntax("10.244.0.0".into()))),
            ("", Err(InvalidRanges::Syntax(String::new()))),
            ("fd00::/40", Err(InvalidRanges::Size(cidr_set::Error::TooMany))),
            ("10.0.0.0/25", Err(InvalidRanges::Size(cidr_set::Error::TooWide(24, "10.0.0.0/25".into())))),
        ];
        for (text, expect) in cases {
            assert_eq!(Options::new(text, None, None).map(drop), expect, "{text}");
        }
        assert!(Options::new("10.0.0.0/25", Some(26), None).is_ok());
    }
}
