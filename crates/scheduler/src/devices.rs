//! Devices of resource slices, and claims of them (`resource.k8s.io/v1`).

use crate::capacity::InUse;
use crate::cluster::NodeEntry;
use cel::Program;
use client::{Entry, Key};
use expressions::DEVICE_ENV;
use placement::NodeSelectorTerm;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    /// Whether the scheduler made it, for the extended resources of a pod.
    pub is_for_extended_resources: bool,
}

/// Marks the claim that the scheduler makes for the extended resources of a pod.
pub const EXTENDED_RESOURCE_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";

/// The name of the extended resource that every device class offers, without the name of the class.
const IMPLICIT_RESOURCE: &str = "deviceclass.resource.kubernetes.io/";

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawClaim {
    metadata: Value,
    spec: Value,
    status: Value,
}

impl From<RawClaim> for DeviceClaimInfo {
    fn from(mut raw: RawClaim) -> Self {
        let consumers = raw.status["reservedFor"].as_array().into_iter().flatten();
        Self {
            reserved_for: consumers.filter_map(|c| c["uid"].as_str().map(Into::into)).collect(),
            is_for_extended_resources: raw.metadata["annotations"][EXTENDED_RESOURCE_CLAIM] == "true",
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

/// A pool, by driver and name.
type PoolKey = (Box<str>, Box<str>);

/// All objects of `resource.k8s.io`, with what decisions look up among them.
#[derive(Clone, Default)]
pub struct Devices {
    claims: HashMap<Key, Arc<DeviceClaim>>,
    by_uid: HashMap<Arc<str>, Key>,
    /// What claims have.
    in_use: InUse,
    classes: HashMap<Arc<str>, Arc<Entry<DeviceClassInfo>>>,
    /// The classes that offer an extended resource, by its name (`spec.extendedResourceName`).
    by_resource: HashMap<Box<str>, BTreeSet<Arc<str>>>,
    /// The claims for extended resources, by namespace and UID of the pod. An owner in another namespace counts as none.
    for_extended_resources: HashMap<(Arc<str>, Arc<str>), Key>,
    slices: BTreeMap<Arc<str>, Arc<Entry<SliceInfo>>>,
    /// The slices of each pool.
    pools: BTreeMap<PoolKey, BTreeSet<Arc<str>>>,
    /// The pools with slices that one node alone can use, and all pools with others.
    by_node: HashMap<Box<str>, BTreeSet<PoolKey>>,
    elsewhere: BTreeSet<PoolKey>,
    /// The domains of all attributes and capacities that devices have had.
    domains: Vec<String>,
    /// The selectors of claims and classes; copies share them.
    selectors: Arc<Selectors>,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn pool_key(slice: &Value) -> PoolKey {
    (text(&slice["driver"]).into(), text(&slice["pool"]["name"]).into())
}

impl Devices {
    pub fn set(&mut self, object: DeviceObject) {
        self.remove(&object);
        match object {
            DeviceObject::Claim(o) => {
                self.in_use.add(&o.view.allocation);
                self.by_uid.insert(o.meta.uid.clone(), o.key());
                if let Some(owner) = o.meta.controller().filter(|_| o.view.is_for_extended_resources) {
                    let pod = (o.meta.namespace.clone(), owner.uid.clone());
                    self.for_extended_resources.insert(pod, o.key());
                }
                self.claims.insert(o.key(), o);
            }
            DeviceObject::Class(o) => {
                if let Some(resource) = o.view.spec["extendedResourceName"].as_str() {
                    self.by_resource.entry(resource.into()).or_default().insert(o.meta.name.clone());
                }
                self.classes.insert(o.meta.name.clone(), o);
            }
            DeviceObject::Slice(o) => {
                let (slice, key) = (&o.view.spec, pool_key(&o.view.spec));
                self.pools.entry(key.clone()).or_default().insert(o.meta.name.clone());
                match text(&slice["nodeName"]) {
                    "" => _ = self.elsewhere.insert(key),
                    node => _ = self.by_node.entry(node.into()).or_default().insert(key),
                }
                for device in slice["devices"].as_array().into_iter().flatten() {
                    for field in ["attributes", "capacity"] {
                        let names = device[field].as_object().into_iter().flatten().map(|(name, _)| name);
                        for domain in names.filter_map(|n| Some(n.split_once('/')?.0)) {
                            if !self.domains.iter().any(|d| d == domain) {
                                self.domains.push(domain.to_owned());
                            }
                        }
                    }
                }
                self.slices.insert(o.meta.name.clone(), o);
            }
        }
    }

    pub fn remove(&mut self, object: &DeviceObject) {
        match object {
            DeviceObject::Claim(o) => {
                if let Some(old) = self.claims.remove(&o.key()) {
                    self.in_use.remove(&old.view.allocation);
                    self.by_uid.remove(&old.meta.uid);
                    self.for_extended_resources.retain(|_, key| *key != old.key());
                }
            }
            DeviceObject::Class(o) => {
                let Some(old) = self.classes.remove(&o.meta.name) else { return };
                let resource = text(&old.view.spec["extendedResourceName"]);
                if let Some(classes) = self.by_resource.get_mut(resource) {
                    classes.remove(&old.meta.name);
                    if classes.is_empty() {
                        self.by_resource.remove(resource);
                    }
                }
            }
            DeviceObject::Slice(o) => {
                if let Some(old) = self.slices.remove(&o.meta.name) {
                    self.remove_slice(&old);
                }
            }
        }
    }

    fn remove_slice(&mut self, old: &Entry<SliceInfo>) {
        let key = pool_key(&old.view.spec);
        let Some(left) = self.pools.get_mut(&key) else { return };
        left.remove(&old.meta.name);
        let node = text(&old.view.spec["nodeName"]);
        let slices = &self.slices;
        let still = left.iter().filter_map(|name| slices.get(name)).any(|s| text(&s.view.spec["nodeName"]) == node);
        if left.is_empty() {
            self.pools.remove(&key);
        }
        if still {
            return;
        }
        if node.is_empty() {
            self.elsewhere.remove(&key);
        } else if let Some(of_node) = self.by_node.get_mut(node) {
            of_node.remove(&key);
            if of_node.is_empty() {
                self.by_node.remove(node);
            }
        }
    }

    pub fn claim(&self, namespace: &Arc<str>, name: &str) -> Option<&Arc<DeviceClaim>> {
        self.claims.get(&Key::new(namespace.clone(), name))
    }

    pub fn claim_by_uid(&self, uid: &str) -> Option<&Arc<DeviceClaim>> {
        self.claims.get(self.by_uid.get(uid)?)
    }

    pub fn class(&self, name: &str) -> Option<&Value> {
        self.classes.get(name).map(|c| &c.view.spec)
    }

    /// Whether there are any classes.
    pub fn has_classes(&self) -> bool {
        !self.classes.is_empty()
    }

    /// The name of the class that offers an extended resource. Of several, the newest one does (upstream `extendedresourcecache`).
    pub fn class_of_resource(&self, resource: &str) -> Option<&Arc<str>> {
        if let Some(class) = resource.strip_prefix(IMPLICIT_RESOURCE) {
            return self.classes.get_key_value(class).map(|(name, _)| name);
        }
        let created = |name: &&Arc<str>| self.classes.get(&***name).and_then(|c| c.meta.creation_timestamp);
        // Of equally old ones, the first name.
        self.by_resource.get(resource)?.iter().rev().max_by_key(created)
    }

    /// The claim that the scheduler made for the extended resources of a pod.
    pub fn claim_for_extended_resources(&self, namespace: &Arc<str>, pod: &Arc<str>) -> Option<&Arc<DeviceClaim>> {
        self.claims.get(self.for_extended_resources.get(&(namespace.clone(), pod.clone()))?)
    }

    pub fn selectors(&self) -> &Selectors {
        &self.selectors
    }

    /// What claims have.
    pub fn in_use(&self) -> &InUse {
        &self.in_use
    }

    /// The domains of attributes and capacities.
    pub fn domains(&self) -> &[String] {
        &self.domains
    }

    /// The newest generation of each pool with devices that the node may reach, in the order of drivers and names.
    pub fn pools(&self, node: &str) -> Vec<Pool<'_>> {
        let keys: BTreeSet<&PoolKey> = self.by_node.get(node).into_iter().flatten().chain(&self.elsewhere).collect();
        keys.into_iter().filter_map(|key| self.pool(key)).collect()
    }

    fn pool<'a>(&'a self, key: &'a PoolKey) -> Option<Pool<'a>> {
        let slices: Vec<&Value> =
            self.pools.get(key)?.iter().filter_map(|name| self.slices.get(name)).map(|s| &s.view.spec).collect();
        let generation = |slice: &Value| slice["pool"]["generation"].as_i64().unwrap_or(0);
        let newest = slices.iter().map(|s| generation(s)).max()?;
        let slices = slices.into_iter().filter(|s| generation(s) == newest).collect();
        Some(Pool { driver: &key.0, name: &key.1, slices })
    }
}

/// The slices of the newest generation of a pool.
pub struct Pool<'a> {
    pub driver: &'a str,
    pub name: &'a str,
    pub slices: Vec<&'a Value>,
}

impl<'a> Pool<'a> {
    /// Whether a pool of `count` slices is complete.
    pub fn is_complete(&self, count: usize) -> bool {
        self.slices.first().and_then(|s| s["pool"]["resourceSliceCount"].as_u64()) == Some(count as u64)
    }

    pub fn devices(&self) -> impl Iterator<Item = Offered<'a>> + use<'a> {
        let (driver, pool) = (self.driver, self.name);
        let slices = self.slices.clone();
        slices.into_iter().flat_map(move |slice| {
            slice["devices"].as_array().into_iter().flatten().map(move |device| {
                let name = device["name"].as_str().unwrap_or_default();
                Offered { slice, device, driver, pool, name }
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
