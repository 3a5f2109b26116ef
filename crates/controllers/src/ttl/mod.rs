//! How long kubelets may keep secrets and config maps in their caches, by the size of the cluster (upstream `pkg/controller/ttl`): an
//! annotation of every node.

use crate::context::{Context, Error, object};
use crate::controller::{Builder, Reconcile};
use client::{ApiResource, Informer, Key, Outcome, Patch, WriteOptions, optional};
use k8s_openapi::api::core::v1::Node;
use meta::Object;
use parking_lot::Mutex;
use serde_json::json;
use std::sync::Arc;

const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// Sizes of clusters: the least and most nodes, and the time in seconds. They overlap, so that a cluster at a limit does not change it
/// again and again.
const STEPS: [(usize, usize, u32); 5] =
    [(0, 100, 0), (90, 500, 15), (450, 1000, 30), (900, 2000, 60), (1800, usize::MAX, 300)];

/// The step of a cluster with this many nodes that was at step `now`.
fn step(now: usize, nodes: usize) -> usize {
    let mut step = now.min(STEPS.len() - 1);
    while nodes > STEPS[step].1 {
        step += 1;
    }
    while nodes < STEPS[step].0 {
        step -= 1;
    }
    step
}

struct Controller {
    context: Context,
    nodes: Informer<()>,
    step: Mutex<usize>,
}

fn nodes() -> ApiResource {
    ApiResource::typed::<Node>()
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let c = Arc::new(Controller { nodes: builder.watch(&nodes()), step: Mutex::default(), context });
    builder.enqueue(&c.nodes);
    builder.run(5, c).await;
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(entry) = self.nodes.get(&key) else { return Ok(Outcome::Done) };
        let seconds = {
            let count = self.nodes.cache().len();
            let mut held = self.step.lock();
            *held = step(*held, count);
            STEPS[*held].2.to_string()
        };
        let node: Object = object(&nodes(), &entry)?;
        if node.annotation(ANNOTATION) == Some(&*seconds) {
            return Ok(Outcome::Done);
        }
        let patch = Patch::Strategic(json!({"metadata": {"uid": node.uid(), "annotations": {ANNOTATION: seconds}}}));
        optional(self.context.client.dynamic(&nodes()).patch(&key.name, &WriteOptions::default(), &patch).await)?;
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_overlap() {
        let cases =
            [(0, 1, 0), (0, 100, 0), (0, 101, 1), (1, 95, 1), (1, 89, 0), (0, 5000, 4), (4, 1799, 3), (4, 3, 0)];
        for (now, nodes, expected) in cases {
            assert_eq!(step(now, nodes), expected, "{now} {nodes}");
        }
    }
}
