//! The load of simulated pods: the CPU that those with a label `app` use together, as nodes report it.

use crate::nodes::Nodes;
use meta::Clock;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use testkit::VirtualClock;
use usage::{Point, RESOLUTION, Report, Usage};

/// The working set of each container, in bytes.
const MEMORY: u64 = 64 << 20;

/// Thousandths of cores, by the value of the label `app`.
#[derive(Default)]
pub struct Load(Mutex<BTreeMap<String, u64>>);

impl Load {
    /// Sets the load that the pods of an app share.
    pub fn set(&self, app: &str, milli_cores: u64) {
        self.0.lock().insert(app.to_owned(), milli_cores);
    }

    /// Reports the usage of all running pods as long as there is a load.
    pub(crate) async fn report(self: Arc<Self>, nodes: Nodes, clock: Arc<VirtualClock>, usage: Arc<Usage>) {
        // CPU time so far, in nanoseconds, by UID.
        let mut spent: BTreeMap<String, u64> = BTreeMap::new();
        loop {
            tokio::time::sleep(RESOLUTION.unsigned_abs()).await;
            let loads = self.0.lock().clone();
            if loads.is_empty() {
                continue;
            }
            let running = nodes.running();
            let mut sharers: BTreeMap<&str, u64> = BTreeMap::new();
            running.iter().for_each(|pod| *sharers.entry(&pod.app).or_default() += 1);
            let mut reports: BTreeMap<&str, Report> = BTreeMap::new();
            for pod in &running {
                let share = loads.get(&pod.app).copied().unwrap_or(0) / sharers[&*pod.app].max(1);
                let cpu = spent.entry(pod.uid.clone()).or_default();
                *cpu += share * 1_000_000 * RESOLUTION.unsigned_abs().as_secs();
                let point = Point { at: clock.now(), started: None, cpu: *cpu, memory: MEMORY };
                let report =
                    reports.entry(&pod.node).or_insert_with(|| Report { node: Some(point), pods: HashMap::default() });
                let key = ((*pod.key.namespace).into(), (*pod.key.name).into());
                report.pods.insert(key, [("c".into(), point)].into_iter().collect());
            }
            for (node, report) in reports {
                usage.record(node, report);
            }
        }
    }
}
