//! Eviction of pods from a node that lacks memory, disk or process ids (`pkg/kubelet/eviction`).
//!
//! [`run()`] observes the node every ten seconds. [`decide`] keeps the thresholds that are met, with their grace periods, and decides the
//! node's conditions; [`rank`] orders the pods; [`message`] describes the eviction. These three are pure. Before a pod is evicted,
//! [`reclaim`] removes dead containers and unused images. **Invariant.** At most one pod is evicted between two observations, and never a
//! critical or static one. While the node is under pressure, it admits only pods that do not make it worse.
//!
//! Left out: notifications of the kernel (`kernelMemcgNotification`), which only make upstream look earlier.

pub(crate) mod decide;
mod message;
pub(crate) mod observe;
mod rank;
mod reclaim;
mod run;
mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use placement::Taint;
use tokio::sync::watch;

use crate::admission::{Rejection, preemption};
use crate::configuration::Pressure;
use crate::resources::Qos;
pub use observe::{Layout, MachineObserver, NodeObserver, Observation, Observations};
pub(crate) use run::run;

/// Reason of pods that are evicted.
pub const EVICTED: &str = "Evicted";

/// The taint of nodes under memory pressure.
const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";

/// Why and how a pod is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub message: String,
    pub grace_period: Duration,
}

/// The pressures of the node, and the pods to evict. Shared by the eviction loop, admission, workers and the node's status.
#[derive(Default)]
pub struct Evictions {
    pressures: watch::Sender<BTreeSet<Pressure>>,
    pods: Mutex<BTreeMap<String, Eviction>>,
}

impl Evictions {
    pub fn pressures(&self) -> BTreeSet<Pressure> {
        self.pressures.borrow().clone()
    }

    /// Notified when the pressures change.
    pub fn subscribe(&self) -> watch::Receiver<BTreeSet<Pressure>> {
        self.pressures.subscribe()
    }

    fn set_pressures(&self, new: BTreeSet<Pressure>) {
        self.pressures.send_if_modified(|old| {
            let changed = *old != new;
            *old = new;
            changed
        });
    }

    /// The eviction of a pod, if it is evicted.
    pub fn of(&self, uid: &str) -> Option<Eviction> {
        self.pods.lock().get(uid).cloned()
    }

    fn evict(&self, uid: &str, eviction: Eviction) {
        self.pods.lock().insert(uid.to_owned(), eviction);
    }

    /// Forgets a pod that has ended.
    pub fn forget(&self, uid: &str) {
        self.pods.lock().remove(uid);
    }

    /// Rejects a pod that the node must not admit under its current pressures (upstream `managerImpl.Admit`).
    pub fn check(&self, pod: &scheduler::pod::Pod, qos: Qos) -> Result<(), Rejection> {
        let pressures = self.pressures.borrow();
        if pressures.is_empty() || preemption::is_critical(pod.view.priority) {
            return Ok(());
        }
        if pressures.len() == 1 && pressures.contains(&Pressure::Memory) {
            let taint =
                Taint { key: MEMORY_PRESSURE.into(), effect: "NoSchedule".into(), value: "".into(), time_added: None };
            if qos != Qos::BestEffort || placement::is_tolerated(&taint, &pod.view.tolerations) {
                return Ok(());
            }
        }
        let names: Vec<&str> = pressures.iter().map(|p| p.condition()).collect();
        Err(Rejection::new(EVICTED, format!("The node had condition: [{}]. ", names.join(" "))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> scheduler::pod::Pod {
        let pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec});
        scheduler::pod::Pod::new(serde_json::to_vec(&pod).unwrap().into()).unwrap()
    }

    /// Clauses: R05.pressure-admission
    #[test]
    fn pods_are_admitted_by_the_kind_of_pressure() {
        let plain = pod(json!({"containers": [{"name": "c"}]}));
        let critical = pod(json!({"containers": [{"name": "c"}], "priority": 2_000_000_000}));
        let tolerant = pod(json!({"containers": [{"name": "c"}], "tolerations":
            [{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"}]}));
        let other = pod(json!({"containers": [{"name": "c"}], "tolerations":
            [{"key": "node.kubernetes.io/disk-pressure", "operator": "Exists"}]}));
        use Pressure::{Disk, Memory, Pid};
        use Qos::{BestEffort, Burstable};
        for (pressures, pod, qos, rejected) in [
            (vec![], &plain, BestEffort, None),
            (vec![Memory], &plain, BestEffort, Some("MemoryPressure")),
            (vec![Memory], &plain, Burstable, None),
            (vec![Memory], &tolerant, BestEffort, None),
            (vec![Memory], &other, BestEffort, Some("MemoryPressure")),
            (vec![Memory], &critical, BestEffort, None),
            (vec![Memory, Pid], &tolerant, BestEffort, Some("MemoryPressure PIDPressure")),
            (vec![Disk], &plain, Burstable, Some("DiskPressure")),
            (vec![Disk], &other, BestEffort, Some("DiskPressure")),
            (vec![Disk], &critical, BestEffort, None),
        ] {
            let evictions = Evictions::default();
            evictions.set_pressures(pressures.iter().copied().collect());
            let rejection = evictions.check(pod, qos).err();
            let message = rejected.map(|names| format!("The node had condition: [{names}]. "));
            assert_eq!(
                rejection.map(|r| (r.reason, r.message)),
                message.map(|m| ("Evicted".to_owned(), m)),
                "{pressures:?}"
            );
        }
    }
}
