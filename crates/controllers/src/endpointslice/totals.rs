//! Totals of all services for metrics (upstream `k8s.io/endpointslice` `metrics/cache.go`).

use super::hints::Distribution;
use super::reconcile::Plan;
use crate::meters;
use client::Key;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// What one service contributes.
#[derive(Clone, Debug, Default, PartialEq)]
struct Counts {
    endpoints: usize,
    slices: usize,
    /// Slices if all were full.
    full: usize,
    distribution: Option<String>,
}

/// The contributions of all services.
#[derive(Default)]
pub(super) struct Totals(Mutex<BTreeMap<Key, Counts>>);

impl Totals {
    /// Counts what the plan for a service changes, and the service itself. `sizes` are those of the desired slices, `field` is the
    /// distribution that counts in the service's spec.
    pub fn count(
        &self,
        service: &Key,
        sizes: (usize, usize),
        plan: &Plan,
        distribution: Distribution,
        field: Option<&str>,
    ) {
        let counts = Counts {
            endpoints: sizes.0,
            slices: plan.create.len() + plan.update.len() + plan.unchanged.len(),
            full: sizes.1,
            distribution: field.map(str::to_owned),
        };
        self.update(|all| drop(all.insert(service.clone(), counts)));
        let topology = if distribution == Distribution::Topology { "Auto" } else { "Disabled" };
        let changed = plan.create.len() + plan.update.len() + plan.delete.len();
        meters::observe(&meters::SLICES_CHANGED, &[topology, field.unwrap_or_default()], changed as f64);
        meters::observe(&meters::SLICE_ENDPOINTS_ADDED, &[], plan.added as f64);
        meters::observe(&meters::SLICE_ENDPOINTS_REMOVED, &[], plan.removed as f64);
    }

    pub fn forget(&self, service: &Key) {
        self.update(|all| drop(all.remove(service)));
    }

    fn update(&self, change: impl FnOnce(&mut BTreeMap<Key, Counts>)) {
        let mut all = self.0.lock();
        let before = by_distribution(&all);
        change(&mut all);
        let sum = |count: fn(&Counts) -> usize| all.values().map(count).sum();
        meters::set(&meters::SLICE_ENDPOINTS, &[], sum(|c| c.endpoints));
        meters::set(&meters::SLICES, &[], sum(|c| c.slices));
        meters::set(&meters::SLICES_DESIRED, &[], sum(|c| c.full));
        let now = by_distribution(&all);
        for distribution in before.keys().chain(now.keys()) {
            let n = now.get(distribution).copied().unwrap_or(0);
            meters::set(&meters::SLICE_DISTRIBUTIONS, &[distribution], n);
        }
    }
}

fn by_distribution(all: &BTreeMap<Key, Counts>) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for distribution in all.values().filter_map(|c| c.distribution.clone()) {
        *found.entry(distribution).or_default() += 1;
    }
    found
}
