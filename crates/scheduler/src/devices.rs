//! Devices of resource slices, and claims of them (`resource.k8s.io/v1`).

use crate::capacity::InUse;
use crate::cluster::NodeEntry;
use cel::Program;
use client::{Entry, Key};
use expressions::DEVICE_ENV;
use placement::NodeSelectorTerm;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

pub type DeviceClaim = Entry<DeviceClaimInfo>;

/// A resource claim: its requests, and the devices that it has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "RawClaim")]
pub struct DeviceClaimInfo {
    /// `spec.devices`.
    pub devices: Value,
    /// `status.allocation`; null without.
    pub allocation: Value,
    /// `status.devices`: what drivers report.
    pub statuses: Value,
    /// The UIDs of the pods that may use it.
    pub reserved_for: Vec<Box<str>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawClaim {
    spec: Value,
    status: Value,
}

impl From<RawClaim> for DeviceClaimInfo {
    fn from(mut raw: RawClaim) -> Self {
        let consumers = raw.status["reservedFor"].as_array().into_iter().flatten();
        Self {
            reserved_for: consumers.filter_map(|c| c["uid"].as_str().map(Into::into)).collect(),
            devices: raw.spec["devices"].take(),
            allocation: raw.status["allocation"].take(),
            statuses: raw.status["devices"].take(),
        }
    }
}

/// Whether the node selector of an allocation, slice or device admits a node. Without one, it does.
pub fn is_available(selecting: &Value, node: &NodeEntry) -> bool {
    let Some(terms) = selecting["nodeSelector"]["nodeSelectorTerms"].as_array() else { return true };
    terms.iter().any(|t| NodeSelectorTerm::read(t).matches(&node.meta.name, |k| node.meta.label(k)))
}

/// A device class: selectors, and configuration for drivers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClassInfo {
    pub spec: Value,
}

/// A resource slice: devices of a pool.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SliceInfo {
    pub spec: Value,
}

/// A device, by driver, pool and name.
pub type DeviceId = (Box<str>, Box<str>, Box<str>);

/// An object of `resource.k8s.io`.
#[derive(Clone)]
pub enum DeviceObject {
    Claim(Arc<DeviceClaim>),
    Class(Arc<Entry<DeviceClassInfo>>),
    Slice(Arc<Entry<SliceInfo>>),
}

impl DeviceObject {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Claim(_) => "ResourceClaim",
            Self::Class(_) => "DeviceClass",
            Self::Slice(_) => "ResourceSlice",
        }
    }

    pub fn key(&self) -> Key {
        match self {
            Self::Claim(o) => o.key(),
            Self::Class(o) => o.key(),
            Self::Slice(o) => o.key(),
        }
    }
}

/// A device of a slice that belongs to the newest generation of its pool.
#[derive(Clone, Copy)]
pub struct Offered<'a> {
    pub slice: &'a Value,
    pub device: &'a Value,
    pub driver: &'a str,
    pub pool: &'a str,
    pub name: &'a str,
    /// Whether all slices of the pool are known.
    pub complete: bool,
}

impl<'a> Offered<'a> {
    pub fn id(&self) -> DeviceId {
        (self.driver.into(), self.pool.into(), self.name.into())
    }

    /// The nodes that can use the device: `nodeName`, `allNodes` and `nodeSelector` of the device or of its slice.
    pub fn nodes(&self) -> &'a Value {
        if self.slice["perDeviceNodeSelection"] == true { self.device } else { self.slice }
    }
}

/// All objects of `resource.k8s.io`.
#[derive(Clone, Default)]
pub struct Devices {
    claims: HashMap<Key, Arc<DeviceClaim>>,
    classes: HashMap<Arc<str>, Arc<Entry<DeviceClassInfo>>>,
    slices: BTreeMap<Arc<str>, Arc<Entry<SliceInfo>>>,
}

impl Devices {
    pub fn set(&mut self, object: DeviceObject) {
        match object {
            DeviceObject::Claim(o) => drop(self.claims.insert(o.key(), o)),
            DeviceObject::Class(o) => drop(self.classes.insert(o.meta.name.clone(), o)),
            DeviceObject::Slice(o) => drop(self.slices.insert(o.meta.name.clone(), o)),
        }
    }

    pub fn remove(&mut self, object: &DeviceObject) {
        match object {
            DeviceObject::Claim(o) => drop(self.claims.remove(&o.key())),
            DeviceObject::Class(o) => drop(self.classes.remove(&o.meta.name)),
            DeviceObject::Slice(o) => drop(self.slices.remove(&o.meta.name)),
        }
    }

    pub fn claim(&self, namespace: &Arc<str>, name: &str) -> Option<&Arc<DeviceClaim>> {
        self.claims.get(&Key::new(namespace.clone(), name))
    }

    pub fn claim_by_uid(&self, uid: &str) -> Option<&Arc<DeviceClaim>> {
        self.claims.values().find(|c| &*c.meta.uid == uid)
    }

    pub fn class(&self, name: &str) -> Option<&Value> {
        self.classes.get(name).map(|c| &c.view.spec)
    }

    /// What claims have. `reserved` are allocations that their claims may not show yet, by UID of the claim.
    pub fn in_use(&self, reserved: &HashMap<Arc<str>, Value>) -> InUse {
        let mut in_use = InUse::default();
        let written = self.claims.values().filter(|c| !reserved.contains_key(&c.meta.uid)).map(|c| &c.view.allocation);
        reserved.values().chain(written).for_each(|allocation| in_use.add(allocation));
        in_use
    }

    /// The newest generation of each pool.
    pub fn pools(&self) -> Vec<Pool<'_>> {
        let mut pools: BTreeMap<(&str, &str), (i64, Vec<&Value>)> = BTreeMap::new();
        for slice in self.slices.values().map(|s| &s.view.spec) {
            let pool = &slice["pool"];
            let key = (slice["driver"].as_str().unwrap_or_default(), pool["name"].as_str().unwrap_or_default());
            let generation = pool["generation"].as_i64().unwrap_or(0);
            let (newest, slices) = pools.entry(key).or_insert((generation, Vec::new()));
            if generation > *newest {
                *newest = generation;
                slices.clear();
            }
            if generation == *newest {
                slices.push(slice);
            }
        }
        let pool = |((driver, name), (_, slices))| Pool { driver, name, slices };
        pools.into_iter().map(pool).collect()
    }
}

/// The slices of the newest generation of a pool.
pub struct Pool<'a> {
    pub driver: &'a str,
    pub name: &'a str,
    pub slices: Vec<&'a Value>,
}

impl<'a> Pool<'a> {
    pub fn devices(&self) -> impl Iterator<Item = Offered<'a>> {
        let count = self.slices.first().and_then(|s| s["pool"]["resourceSliceCount"].as_u64()).unwrap_or(0);
        let (driver, pool, complete) = (self.driver, self.name, self.slices.len() as u64 == count);
        self.slices.iter().flat_map(move |slice| {
            let slice: &'a Value = slice;
            slice["devices"].as_array().into_iter().flatten().map(move |device| {
                let name = device["name"].as_str().unwrap_or_default();
                Offered { slice, device, driver, pool, name, complete }
            })
        })
    }
}

/// Compiled selectors, by expression. Invalid ones select nothing.
#[derive(Default)]
pub struct Selectors(parking_lot::Mutex<HashMap<Box<str>, Option<Arc<Program>>>>);

/// The most expressions that are kept.
const MOST_SELECTORS: usize = 1_000;

impl Selectors {
    pub fn get(&self, expression: &str) -> Option<Arc<Program>> {
        let mut all = self.0.lock();
        if let Some(known) = all.get(expression) {
            return known.clone();
        }
        if all.len() >= MOST_SELECTORS {
            all.clear();
        }
        let compiled = DEVICE_ENV.compile(expression).ok().map(|c| Arc::new(c.program));
        all.insert(expression.into(), compiled.clone());
        compiled
    }
}

/// Whether a node can use a device, by the fields of its slice or of the device.
pub fn reaches(nodes: &Value, node: &NodeEntry) -> bool {
    match nodes["nodeName"].as_str().filter(|n| !n.is_empty()) {
        Some(own) => *own == *node.meta.name,
        None => nodes["allNodes"] == true || (nodes["nodeSelector"].is_object() && is_available(nodes, node)),
    }
}
