//! The pools of devices that a node reaches (upstream `structured/internal/incubating/pools_incubating.go`).

use super::{list, text};
use crate::cluster::NodeEntry;
use crate::devices::{self, Devices, Offered, reaches};
use meta::Quantity;
use serde_json::Value;
use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Amounts in billionths, by counter set and name.
pub(super) type Counters<'a> = HashMap<(&'a str, &'a str), i128>;

/// Whether devices of a pool can be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    /// Its driver is publishing it.
    Incomplete,
    /// Names of devices occur twice, or devices use counters that do not exist.
    Invalid,
}

pub(super) struct Pool<'a> {
    pub driver: &'a str,
    pub name: &'a str,
    pub state: State,
    /// The indices of the devices that the node may reach, in [`Pools::devices`].
    pub range: Range<usize>,
    /// Its devices on all nodes.
    everywhere: Vec<Offered<'a>>,
    counters: Counters<'a>,
    /// What devices in use leave of the counters.
    left: OnceCell<Counters<'a>>,
}

/// The pools of a node and their devices, in the order in which they are tried.
pub(super) struct Pools<'a> {
    pub all: Vec<Pool<'a>>,
    pub devices: Vec<Offered<'a>>,
    /// The index of the pool of each device.
    of_device: Vec<usize>,
}

/// Calls `each` with set, name and amount of all counters in a list of counter sets. `name_of` is the field with the name of a set.
pub(super) fn counters<'a>(sets: &'a Value, name_of: &str, mut each: impl FnMut(&'a str, &'a str, i128)) {
    for set in sets.as_array().into_iter().flatten() {
        for (name, value) in set["counters"].as_object().into_iter().flatten() {
            let amount = value["value"].as_str().and_then(|q| Quantity::parse(q).ok()).map_or(0, |q| q.nano_value());
            each(text(set, name_of), name, amount);
        }
    }
}

/// Whether a slice matters for a node. One with counters matters for all nodes.
fn is_relevant(slice: &Value, node: &NodeEntry) -> bool {
    let has_device = || list(slice, "devices").any(|device| reaches(device, node));
    list(slice, "sharedCounters").next().is_some()
        || reaches(slice, node)
        || (slice["perDeviceNodeSelection"] == true && has_device())
}

fn is_valid(devices: &[Offered<'_>], everywhere: &[Offered<'_>], known: &Counters<'_>) -> bool {
    let mut names = HashSet::new();
    let has_counters = |d: &Offered<'_>| {
        let mut valid = true;
        counters(&d.device["consumesCounters"], "counterSet", |set, name, _| valid &= known.contains_key(&(set, name)));
        valid
    };
    devices.iter().all(|d| names.insert(d.name)) && everywhere.iter().all(has_counters)
}

impl<'a> Pools<'a> {
    pub fn new(devices: &'a Devices, node: &NodeEntry) -> Self {
        let mut found: Vec<(Pool<'a>, Vec<Offered<'a>>)> = Vec::new();
        for pool in devices.pools(&node.meta.name) {
            let slices: Vec<&'a Value> = pool.slices.iter().copied().filter(|slice| is_relevant(slice, node)).collect();
            if !slices.is_empty() {
                found.push(Pool::new(pool, slices));
            }
        }
        // Devices that may fail to bind come last.
        let has_conditions = |devices: &[Offered<'_>]| devices.iter().any(|d| !d.device["bindingConditions"].is_null());
        found.sort_by_key(|(_, devices)| has_conditions(devices));
        let mut pools = Self { all: Vec::new(), devices: Vec::new(), of_device: Vec::new() };
        for (mut pool, devices) in found {
            let start = pools.devices.len();
            pool.range = start..start + devices.len();
            pools.of_device.extend(std::iter::repeat_n(pools.all.len(), devices.len()));
            pools.devices.extend(devices);
            pools.all.push(pool);
        }
        pools
    }

    pub fn of(&self, device: usize) -> &Pool<'a> {
        &self.all[self.of_device[device]]
    }

    pub fn is_same(&self, a: usize, b: usize) -> bool {
        self.of_device[a] == self.of_device[b]
    }
}

impl<'a> Pool<'a> {
    /// The pool, and the devices of its slices that matter for the node.
    fn new(pool: devices::Pool<'a>, slices: Vec<&'a Value>) -> (Self, Vec<Offered<'a>>) {
        let mut known = Counters::default();
        let mut has_twins = false;
        for slice in &slices {
            let sets: Vec<&str> = list(slice, "sharedCounters").map(|set| text(set, "name")).collect();
            has_twins |= sets.iter().any(|name| known.keys().any(|(set, _)| set == name));
            counters(&slice["sharedCounters"], "name", |set, name, amount| _ = known.insert((set, name), amount));
        }
        let is_complete = pool.is_complete(slices.len()) || pool.is_complete(pool.slices.len());
        let everywhere: Vec<Offered<'a>> = pool.devices().collect();
        let (driver, name) = (pool.driver, pool.name);
        let devices: Vec<Offered<'a>> = devices::Pool { slices, ..pool }.devices().collect();
        let state = match () {
            () if !is_complete => State::Incomplete,
            () if has_twins || !is_valid(&devices, &everywhere, &known) => State::Invalid,
            () => State::Ready,
        };
        let pool = Self { driver, name, state, range: 0..0, everywhere, counters: known, left: OnceCell::new() };
        (pool, if state == State::Ready { devices } else { Vec::new() })
    }

    /// Whether the counters suffice for `wanted` beside devices in use.
    pub fn suffices(&self, wanted: &Counters<'a>, is_used: impl Fn(&Offered<'a>) -> bool) -> bool {
        let left = self.left.get_or_init(|| {
            let mut left = self.counters.clone();
            for d in self.everywhere.iter().filter(|d| is_used(d)) {
                counters(&d.device["consumesCounters"], "counterSet", |set, name, amount| {
                    let left = left.entry((set, name)).or_default();
                    *left = left.saturating_sub(amount);
                });
            }
            left
        });
        left.iter().all(|(counter, left)| *left >= wanted.get(counter).copied().unwrap_or(0))
    }
}
