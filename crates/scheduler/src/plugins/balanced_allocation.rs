//! Prefers nodes whose resources the pod brings into balance.

use crate::cluster::{Cluster, Node};
use crate::framework::{MAX_SCORE, NodeScore, Plugin, Point, PreScore};
use crate::plugins::Reservations;
use crate::plugins::node_resources_fit::Provided;
use crate::pod::Pod;
use crate::resources::Resource;

/// The most resources that are balanced.
const MOST: usize = 16;

pub struct BalancedAllocation {
    resources: Vec<Resource>,
    reservations: Reservations,
}

impl BalancedAllocation {
    /// A plugin that balances the first [`MOST`] of these resources; CPU and memory if there are none.
    pub fn new(resources: &[Box<str>], reservations: Reservations) -> Self {
        let named = || resources.iter().take(MOST).map(|name| Resource::from(&**name)).collect();
        let all = if resources.is_empty() { vec![Resource::Cpu, Resource::Memory] } else { named() };
        Self { resources: all, reservations }
    }
}

struct Balance<'a> {
    /// With what the pod requests of them.
    resources: Vec<(&'a Resource, i64)>,
    provided: Provided<'a>,
}

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreScore, Point::Score]
    }

    /// A pod without requests does not affect the balance.
    fn pre_score<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster, _: &[&'a Node]) -> PreScore<'a> {
        let requests = &pod.view.requests;
        let counts = |r: &Resource| matches!(r, Resource::Cpu | Resource::Memory | Resource::EphemeralStorage);
        let all = self.resources.iter().map(|resource| (resource, requests.of(resource)));
        let resources: Vec<_> = all.filter(|(resource, requested)| *requested != 0 || counts(resource)).collect();
        if resources.iter().all(|(_, requested)| *requested == 0) {
            return Ok(None);
        }
        Ok(Some(Box::new(Balance { resources, provided: Provided::new(cluster.devices(), &self.reservations) })))
    }
}

/// How alike the fractions are: [`MAX_SCORE`] without a deviation.
fn evenness(fractions: &[f64]) -> i64 {
    let deviation = match fractions {
        [] | [_] => 0.0,
        [a, b] => ((a - b) / 2.0).abs(),
        many => {
            let mean = many.iter().sum::<f64>() / many.len() as f64;
            (many.iter().map(|f| (f - mean) * (f - mean)).sum::<f64>() / many.len() as f64).sqrt()
        }
    };
    ((1.0 - deviation) * MAX_SCORE as f64) as i64
}

impl NodeScore for Balance<'_> {
    /// How much the pod improves the balance: about 75 if it does not change it.
    fn score(&self, node: &Node) -> i64 {
        let Some(n) = &node.entry else { return 0 };
        let (mut with, mut without) = ([0.0; MOST], [0.0; MOST]);
        let mut counted = 0;
        for (resource, requested) in &self.resources {
            let (there, used) = self.provided.amounts(resource, node, n);
            if there == 0 {
                continue;
            }
            with[counted] = ((used + requested) as f64 / there as f64).min(1.0);
            without[counted] = (used as f64 / there as f64).min(1.0);
            counted += 1;
        }
        MAX_SCORE / 2 + (MAX_SCORE / 2 + evenness(&with[..counted]) - evenness(&without[..counted])) / 2
    }
}
