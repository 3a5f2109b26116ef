//! The devices that pods get before their claims show it. All profiles of a scheduler share them.

use super::{Claim, Reservation};
use crate::capacity::InUse;
use crate::devices::Devices;
use crate::pod::Pod;
use meta::Clock;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// How long a claim counts that was created and that the informer does not show.
const UNSEEN: jiff::SignedDuration = jiff::SignedDuration::from_secs(120);

pub struct Created {
    /// The UID of the pod.
    pub pod: Arc<str>,
    at: jiff::Timestamp,
}

pub type Reservations = Arc<Mutex<Reserved>>;

#[derive(Default)]
pub struct Reserved {
    /// By UID of the pod.
    pub pods: HashMap<Arc<str>, Vec<Reservation>>,
    /// The allocations that the claims do not show yet, by identity of the claim.
    pub allocations: HashMap<Arc<str>, Value>,
    /// The revisions at which allocations were written, by UID of the claim.
    pub written: HashMap<Arc<str>, u64>,
    /// The claims that were created and that the informer may not show yet, by UID.
    pub created: HashMap<Arc<str>, Created>,
}

impl fmt::Debug for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserved").field("allocations", &self.allocations).finish_non_exhaustive()
    }
}

impl Reserved {
    /// Records that the claim of a pod was created.
    pub fn created(&mut self, pod: &Pod, uid: &str, now: jiff::Timestamp) {
        let Some(allocation) = self.allocations.remove(&pod.meta.uid) else { return };
        self.allocations.insert(uid.into(), allocation);
        self.created.insert(uid.into(), Created { pod: pod.meta.uid.clone(), at: now });
    }

    /// Records that a claim was created in vain.
    pub fn deleted(&mut self, uid: &str) {
        self.allocations.remove(uid);
        self.written.remove(uid);
        self.created.remove(uid);
    }

    /// What claims get that do not show it yet.
    pub fn in_use(&self, devices: &Devices) -> InUse {
        let mut in_use = InUse::default();
        let is_written = |uid: &str| devices.claim_by_uid(uid).is_some_and(|c| !c.view.allocation.is_null());
        let pending = self.allocations.iter().filter(|(uid, _)| !is_written(uid));
        pending.for_each(|(_, allocation)| in_use.add(allocation));
        in_use
    }

    /// Forgets the allocations that the claims show or showed, and those of claims that are gone.
    pub fn forget_written(&mut self, devices: &Devices, clock: Option<&dyn Clock>) {
        let Self { pods, allocations, written, created } = self;
        let now = clock.map(Clock::now);
        let is_recent = |at: jiff::Timestamp| now.is_some_and(|now| now.duration_since(at) < UNSEEN);
        created.retain(|uid, c| devices.claim_by_uid(uid).is_none() && is_recent(c.at));
        let known = |(claim, new): &Reservation| match claim {
            Claim::Known(claim) => (!new.is_null()).then(|| claim.meta.uid.clone()),
            Claim::Generated(_) => None,
        };
        let waiting: HashSet<Arc<str>> = pods.values().flatten().filter_map(known).collect();
        // The claim may have lost the devices again since they were written.
        let is_seen = |id: &str, revision: u64| {
            let seen = devices.claim_by_uid(id).map(|c| c.meta.resource_version.parse::<u64>().unwrap_or(u64::MAX));
            seen.map_or(!created.contains_key(id), |seen| seen >= revision)
        };
        written.retain(|id, revision| !is_seen(id, *revision));
        allocations.retain(|id, _| {
            written.contains_key(id) || waiting.contains(id) || pods.contains_key(id) || created.contains_key(id)
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::cluster::{Cluster, NodeEntry};
    use crate::configuration::Arguments;
    use crate::devices::DeviceObject;
    use crate::framework::Plugin;
    use crate::plugins::{Handle, NodeResourcesFit, Strategy, build};
    use crate::pod::Pod;
    use client::Entry;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn entry<V: client::informer::View>(v: &Value) -> Arc<Entry<V>> {
        Arc::new(Entry::new(serde_json::to_vec(v).unwrap().into()).unwrap())
    }

    /// Two nodes with two devices each, which a class offers as an extended resource.
    fn cluster() -> Cluster {
        let mut all = Cluster::default();
        let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}});
        all.devices_mut().set(DeviceObject::Class(entry(&class)));
        for name in ["a", "b"] {
            let node: Arc<NodeEntry> =
                entry(&json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}}));
            all.set_node(node);
            let pool = json!({"name": name, "generation": 1, "resourceSliceCount": 1});
            let spec = json!({"driver": "d.com", "nodeName": name, "pool": pool, "devices": [{"name": "one"}, {"name": "two"}]});
            all.devices_mut().set(DeviceObject::Slice(entry(&json!({"metadata": {"name": name}, "spec": spec}))));
        }
        all
    }

    fn pod(uid: &str, devices: u32) -> Arc<Pod> {
        let resources = json!({"requests": {"example.com/gpu": devices}});
        let spec = json!({"containers": [{"name": "c", "resources": resources}]});
        entry(&json!({"metadata": {"name": uid, "namespace": "n", "uid": uid}, "spec": spec}))
    }

    /// Clauses: R06.extended
    #[test]
    fn devices_are_taken_before_claims_show_them() {
        let (cluster, handle) = (cluster(), Handle::default());
        let mut arguments = Arguments::default();
        let resources = vec![("example.com/gpu".into(), 1)];
        arguments.fit =
            NodeResourcesFit { strategy: Strategy::MostAllocated, resources, ..NodeResourcesFit::default() };
        let plugin = |name: &str| build(name, &arguments, &handle).unwrap();
        // Those of two profiles.
        let (first, second, fit) = (plugin("DynamicResources"), plugin("DynamicResources"), plugin("NodeResourcesFit"));
        let later = pod("later", 1);
        let scores = |fit: &dyn Plugin| -> Vec<i64> {
            let scorer = fit.pre_score(&later, &cluster, &[]).unwrap().unwrap();
            cluster.nodes().iter().map(|node| scorer.score(node)).collect()
        };
        assert_eq!(scores(&*fit), [50, 50]);
        first.reserve(&pod("p", 1), "a", &cluster).unwrap();
        assert_eq!(scores(&*fit), [100, 50]);
        assert!(second.reserve(&pod("large", 2), "a", &cluster).is_err(), "another profile has one of them");
        second.reserve(&pod("q", 1), "a", &cluster).unwrap();
        first.unreserve(&pod("p", 1), "a");
        second.unreserve(&pod("q", 1), "a");
        assert_eq!(scores(&*fit), [50, 50]);
        second.reserve(&pod("large", 2), "a", &cluster).unwrap();
    }
}
