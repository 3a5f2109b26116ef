//! Drivers of dynamic resource allocation: they prepare the devices of a pod's claims on the node (`pkg/kubelet/cm/dra`).
//!
//! Before a pod has a sandbox, [`Dra::prepare`] reads its claims from the API and calls the driver of each allocated device. What the driver
//! answers are CDI devices, which are added to the containers that use the claim. When the last pod that uses a claim on this node has
//! ended, [`Dra::unprepare`] calls the drivers again.
//!
//! **Invariant.** A claim and the pod that uses it are in the checkpoint before a driver is called, and until it has been unprepared, so that
//! no claim stays prepared. A pod ends only after its claims are unprepared, since the devices are given to others then. [`health`] shows
//! how the devices are.

mod health;
mod registration;
mod slices;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use client::Client;
use k8s_openapi::api::core::v1::{Container, Pod, PodResourceClaim, ResourceClaim as ContainerClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;
use parking_lot::Mutex;
use plugins::api::devices::CdiDevice;
use plugins::api::dra::{Claim, Claims, Version};
use plugins::api::pod_resources::{ClaimResource, DynamicResource};
use plugins::{Connection, KubeletRoot};
use prost::Message;
use serde::{Deserialize, Serialize};
use supervisor::blocking;
use tokio::task::JoinHandle;

use crate::affinity::checkpoint::Checkpoint;
use crate::devices::Wake;
use crate::pod::spec::text;
pub use registration::Registration;

/// The time that a driver has for a call, as upstream.
const DEADLINE: Duration = Duration::from_secs(45);
/// How long after a failure claims of a pod that is gone are unprepared again, as upstream.
const AGAIN: Duration = Duration::from_secs(60);
/// What a driver may return for a claim, which has at most 32 devices.
const MAX_DEVICES: usize = 256;
const MAX_CDI_NAMES: usize = 1024;
const MAX_BYTES: usize = 256 << 10;
/// The checkpoint has no policies; this is what the file says.
const POLICY: &str = "dra";

/// Why claims cannot be prepared or unprepared. The texts are upstream's.
#[derive(Debug, thiserror::Error)]
pub enum DraError {
    #[error("pod \"{pod}\": ResourceClaim not created yet")]
    NotCreated { pod: String },
    #[error("fetch ResourceClaim {claim}: {source}")]
    Fetch {
        claim: String,
        #[source]
        source: client::Error,
    },
    #[error("ResourceClaim {namespace}/{claim} was not created for Pod {namespace}/{pod} (Pod is not owner)")]
    NotOwner { namespace: String, claim: String, pod: String },
    #[error("pod {pod} ({uid}) is not allowed to use ResourceClaim {claim} ({claim_uid})")]
    NotReserved { pod: String, uid: String, claim: String, claim_uid: String },
    #[error("ResourceClaim {claim}: not allocated")]
    NotAllocated { claim: String },
    #[error("DRA driver {driver} is not registered")]
    NotRegistered { driver: String },
    #[error(
        "old ResourceClaim with same name {claim} and different UID {uid} still exists (previous pod force-deleted?!)"
    )]
    OldClaim { claim: String, uid: String },
    #[error("{call}: {source}")]
    Call {
        call: &'static str,
        #[source]
        source: plugins::Error,
    },
    #[error("{call} failed for ResourceClaim {claim}: {message}")]
    Failed { call: &'static str, claim: String, message: String },
    #[error("{call}: driver {driver} returned {found} for ResourceClaim {claim}, more than {most}")]
    TooMuch { call: &'static str, driver: String, claim: String, found: String, most: usize },
    #[error("{call} skipped 1 ResourceClaims")]
    Skipped { call: &'static str },
}

/// Namespace and name of a claim.
type Key = (String, String);

/// A device that a driver has prepared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Prepared {
    driver: String,
    pool: String,
    device: String,
    requests: Vec<String>,
    cdi: Vec<String>,
    share: Option<String>,
}

/// A claim that pods of this node use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Used {
    namespace: String,
    name: String,
    uid: String,
    drivers: BTreeSet<String>,
    pods: BTreeSet<String>,
    devices: Vec<Prepared>,
    prepared: bool,
}

impl Used {
    fn claim(&self) -> Claim {
        Claim { namespace: self.namespace.clone(), uid: self.uid.clone(), name: self.name.clone() }
    }

    fn key(&self) -> Key {
        (self.namespace.clone(), self.name.clone())
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Saved {
    policy_name: String,
    claims: Vec<Used>,
}

/// A driver that has registered.
struct Driver {
    connection: Connection,
    version: Version,
    /// The socket by which it registered, which tells drivers with the same name apart.
    socket: std::path::PathBuf,
    /// The health of its devices.
    health: health::Devices,
    /// Follows it.
    _follower: Task,
}

/// A task that ends when this is dropped.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Default)]
struct State {
    /// The registered drivers of each name, the newest last.
    drivers: BTreeMap<String, Vec<Driver>>,
    claims: BTreeMap<Key, Used>,
    /// Held while a claim is prepared or unprepared.
    locks: BTreeMap<Key, Arc<tokio::sync::Mutex<()>>>,
    /// The tasks that delete the slices of drivers that are gone.
    deletions: BTreeMap<String, Task>,
}

/// The drivers and the claims of this node.
pub struct Dra {
    root: KubeletRoot,
    client: Client,
    /// The name of the node.
    node: String,
    state: Mutex<State>,
    checkpoint: Arc<Checkpoint>,
    wake: Wake,
}

/// A claim of a pod: its name, and whether it has to be the pod's own.
struct Reference {
    name: String,
    is_own: bool,
}

/// The name of the claim that a pod's entry refers to; `None` if none was needed.
fn reference(pod: &Pod, entry: &PodResourceClaim) -> Result<Option<Reference>, DraError> {
    if let Some(name) = &entry.resource_claim_name {
        return Ok(Some(Reference { name: name.clone(), is_own: false }));
    }
    let statuses = pod.status.as_ref().and_then(|s| s.resource_claim_statuses.as_ref());
    match statuses.into_iter().flatten().find(|s| s.name == entry.name) {
        Some(status) => Ok(status.resource_claim_name.clone().map(|name| Reference { name, is_own: true })),
        None => {
            let m = &pod.metadata;
            Err(DraError::NotCreated { pod: format!("{}/{}", text(&m.namespace), text(&m.name)) })
        }
    }
}

/// The claims of a pod, with the one for its extended resources.
fn references(pod: &Pod) -> Result<Vec<Reference>, DraError> {
    let mut out = Vec::new();
    for entry in pod.spec.as_ref().and_then(|s| s.resource_claims.as_ref()).into_iter().flatten() {
        out.extend(reference(pod, entry)?);
    }
    let extended = pod.status.as_ref().and_then(|s| s.extended_resource_claim_status.as_ref());
    out.extend(extended.map(|s| Reference { name: s.resource_claim_name.clone(), is_own: false }));
    Ok(out)
}

/// Errors with what a driver has returned for a claim if that is too much for statuses and checkpoints, and with the bound.
fn check_size(prepared: &plugins::api::dra::PreparedClaim) -> Result<(), (String, usize)> {
    let names = prepared.devices.iter().map(|d| d.cdi_device_ids.len()).sum::<usize>();
    let bytes = prepared.encoded_len();
    for (found, what, most) in [
        (prepared.devices.len(), "devices", MAX_DEVICES),
        (names, "names of CDI devices", MAX_CDI_NAMES),
        (bytes, "bytes", MAX_BYTES),
    ] {
        if found > most {
            return Err((format!("{found} {what}"), most));
        }
    }
    Ok(())
}

fn container_claims(container: &Container) -> impl Iterator<Item = &ContainerClaim> {
    container.resources.as_ref().and_then(|r| r.claims.as_ref()).into_iter().flatten()
}

/// Whether a device is for a request; an empty one is for all. A request with alternatives has the name of the one that was chosen,
/// `request/alternative`.
fn serves(device: &Prepared, request: &str) -> bool {
    let names = |r: &String| r == request || r.split_once('/').is_some_and(|(main, _)| main == request);
    request.is_empty() || device.requests.is_empty() || device.requests.iter().any(names)
}

/// The claims of a container with the requests of them that it uses; an empty request is all of them.
fn uses(pod: &Pod, container: &Container) -> Vec<(String, String)> {
    let mut out = Vec::new();
    let entries = pod.spec.as_ref().and_then(|s| s.resource_claims.as_ref());
    for claim in container_claims(container) {
        let entry = entries.into_iter().flatten().find(|e| e.name == claim.name);
        if let Some(Ok(Some(found))) = entry.map(|e| reference(pod, e)) {
            out.push((found.name, claim.request.clone().unwrap_or_default()));
        }
    }
    if let Some(status) = pod.status.as_ref().and_then(|s| s.extended_resource_claim_status.as_ref()) {
        let own = status.request_mappings.iter().filter(|m| m.container_name == container.name);
        out.extend(own.map(|m| (status.resource_claim_name.clone(), m.request_name.clone())));
    }
    out
}

fn checkpoint(root: &KubeletRoot) -> Checkpoint {
    Checkpoint::new(root.path.join("dra_manager_state"), "DRA", POLICY)
}

impl Dra {
    /// Errors if [`Self::open`] would. Blocks.
    pub fn check(root: &KubeletRoot) -> Result<(), String> {
        checkpoint(root).load::<Saved>().map(drop)
    }

    /// Opens the checkpoint of `node`. Blocks. `wake` is called for pods whose devices change. Errors with upstream's text if it cannot be read.
    pub fn open(root: KubeletRoot, client: Client, node: String, wake: Wake) -> Result<Self, String> {
        let checkpoint = Arc::new(checkpoint(&root));
        let saved: Saved = checkpoint.load()?.unwrap_or_default();
        let claims = saved.claims.into_iter().map(|c| (c.key(), c)).collect();
        Ok(Self { root, client, node, state: Mutex::new(State { claims, ..State::default() }), checkpoint, wake })
    }

    async fn save(&self) {
        let claims = self.state.lock().claims.values().cloned().collect();
        let (saved, checkpoint) = (Saved { policy_name: POLICY.into(), claims }, self.checkpoint.clone());
        blocking(move || checkpoint.save(&saved)).await;
    }

    /// How to call a driver.
    fn driver(&self, name: &str) -> Result<(Connection, Version), DraError> {
        let state = self.state.lock();
        let driver = state.drivers.get(name).and_then(|all| all.last());
        let found = driver.map(|d| (d.connection.clone(), d.version));
        found.ok_or_else(|| DraError::NotRegistered { driver: name.to_owned() })
    }

    fn lock(&self, key: &Key) -> Arc<tokio::sync::Mutex<()>> {
        self.state.lock().locks.entry(key.clone()).or_default().clone()
    }

    /// Prepares the claims of a pod. May be called again.
    pub async fn prepare(&self, pod: &Pod) -> Result<(), DraError> {
        let mut claims = Vec::new();
        // Nothing is recorded before all drivers are known: a pod whose driver is missing can be deleted.
        for reference in references(pod)? {
            let claim = self.claim(pod, &reference).await?;
            for driver in &claim.drivers {
                self.driver(driver)?;
            }
            claims.push(claim);
        }
        for claim in claims {
            let lock = self.lock(&claim.key());
            let _held = lock.lock().await;
            self.prepare_claim(pod, claim).await?;
        }
        Ok(())
    }

    /// Reads a claim, and checks that the pod may use it.
    async fn claim(&self, pod: &Pod, reference: &Reference) -> Result<Used, DraError> {
        let (namespace, uid) = (text(&pod.metadata.namespace).to_owned(), text(&pod.metadata.uid));
        let (name, pod_name) = (reference.name.clone(), text(&pod.metadata.name).to_owned());
        let found = self.client.api::<ResourceClaim>().namespace(&namespace).get(&name).await;
        let found = found.map_err(|source| DraError::Fetch { claim: name.clone(), source })?;
        let owners = found.metadata.owner_references.iter().flatten();
        if reference.is_own && !owners.into_iter().any(|o| o.controller == Some(true) && o.uid == uid) {
            return Err(DraError::NotOwner { namespace, claim: name, pod: pod_name });
        }
        let claim_uid = text(&found.metadata.uid).to_owned();
        let status = found.status.unwrap_or_default();
        if !status.reserved_for.iter().flatten().any(|r| r.uid == uid) {
            return Err(DraError::NotReserved { pod: pod_name, uid: uid.to_owned(), claim: name, claim_uid });
        }
        let Some(allocation) = status.allocation else { return Err(DraError::NotAllocated { claim: name }) };
        let results = allocation.devices.and_then(|d| d.results).unwrap_or_default();
        let drivers = results.into_iter().map(|r| r.driver).collect();
        Ok(Used { namespace, name, uid: claim_uid, drivers, ..Used::default() })
    }

    async fn prepare_claim(&self, pod: &Pod, claim: Used) -> Result<(), DraError> {
        const CALL: &str = "NodePrepareResources";
        let (uid, key) = (text(&pod.metadata.uid).to_owned(), claim.key());
        let used = {
            let mut state = self.state.lock();
            let used = state.claims.entry(key.clone()).or_insert_with(|| claim.clone());
            if used.uid != claim.uid {
                return Err(DraError::OldClaim { claim: claim.name, uid: used.uid.clone() });
            }
            used.pods.insert(uid);
            used.clone()
        };
        // Before the driver is called.
        self.save().await;
        if used.prepared {
            return Ok(());
        }
        let mut devices = Vec::new();
        for name in &used.drivers {
            let (connection, version) = self.driver(name)?;
            let claims = Claims { claims: vec![used.claim()] };
            let answer = connection.call(&version.prepare, claims, DEADLINE).await;
            let mut answer = answer.map_err(|source| DraError::Call { call: CALL, source })?;
            let prepared = answer.claims.remove(&used.uid).ok_or(DraError::Skipped { call: CALL })?;
            if !prepared.error.is_empty() {
                return Err(DraError::Failed { call: CALL, claim: used.name, message: prepared.error });
            }
            check_size(&prepared).map_err(|(found, most)| DraError::TooMuch {
                call: CALL,
                driver: name.clone(),
                claim: used.name.clone(),
                found,
                most,
            })?;
            devices.extend(prepared.devices.into_iter().map(|d| Prepared {
                driver: name.clone(),
                pool: d.pool_name,
                device: d.device_name,
                requests: d.request_names,
                cdi: d.cdi_device_ids,
                share: d.share_id,
            }));
        }
        if let Some(used) = self.state.lock().claims.get_mut(&key) {
            (used.devices, used.prepared) = (devices, true);
        }
        self.save().await;
        Ok(())
    }

    /// Ends the use of claims by a pod that has ended. The last pod's end unprepares them. May be called again.
    pub async fn unprepare(&self, uid: &str) -> Result<(), DraError> {
        let keys: Vec<Key> = {
            let state = self.state.lock();
            state.claims.iter().filter(|(_, c)| c.pods.contains(uid)).map(|(key, _)| key.clone()).collect()
        };
        for key in keys {
            let lock = self.lock(&key);
            let held = lock.lock().await;
            self.unprepare_claim(&key, uid).await?;
            drop(held);
            let mut state = self.state.lock();
            if !state.claims.contains_key(&key) && Arc::strong_count(&lock) == 2 {
                state.locks.remove(&key);
            }
        }
        Ok(())
    }

    async fn unprepare_claim(&self, key: &Key, uid: &str) -> Result<(), DraError> {
        const CALL: &str = "NodeUnprepareResources";
        let used = {
            let mut state = self.state.lock();
            let Some(used) = state.claims.get_mut(key).filter(|c| c.pods.contains(uid)) else { return Ok(()) };
            if used.pods.len() > 1 {
                used.pods.remove(uid);
            }
            used.clone()
        };
        if used.pods.contains(uid) {
            for name in &used.drivers {
                let (connection, version) = self.driver(name)?;
                let claims = Claims { claims: vec![used.claim()] };
                let answer = connection.call(&version.unprepare, claims, DEADLINE).await;
                let mut answer = answer.map_err(|source| DraError::Call { call: CALL, source })?;
                let done = answer.claims.remove(&used.uid).ok_or(DraError::Skipped { call: CALL })?;
                if !done.error.is_empty() {
                    return Err(DraError::Failed { call: CALL, claim: used.name, message: done.error });
                }
            }
            self.state.lock().claims.remove(key);
        }
        self.save().await;
        Ok(())
    }

    /// Unprepares the claims of a pod of which nothing else is left; tries it again until it works.
    pub async fn unprepare_until_done(&self, uid: &str) {
        while let Err(error) = self.unprepare(uid).await {
            tracing::warn!(uid, %error, "unpreparing claims of a pod that is gone failed; it is tried again");
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// The pods that use claims and are not among these.
    pub fn stale(&self, uids: &BTreeSet<String>) -> Vec<String> {
        let state = self.state.lock();
        let all: BTreeSet<&String> = state.claims.values().flat_map(|c| &c.pods).collect();
        all.into_iter().filter(|uid| !uids.contains(*uid)).cloned().collect()
    }

    fn of_container<T>(&self, pod: &Pod, container: &Container, collect: impl Fn(&Used, &Prepared) -> T) -> Vec<T> {
        let state = self.state.lock();
        let namespace = text(&pod.metadata.namespace);
        let mut out = Vec::new();
        for (claim, request) in uses(pod, container) {
            let Some(used) = state.claims.get(&(namespace.to_owned(), claim)) else { continue };
            out.extend(used.devices.iter().filter(|d| serves(d, &request)).map(|d| collect(used, d)));
        }
        out
    }

    /// The CDI devices of a container.
    pub fn cdi(&self, pod: &Pod, container: &Container) -> Vec<String> {
        let mut names: Vec<String> = self.of_container(pod, container, |_, d| d.cdi.clone()).concat();
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names
    }

    /// The devices of a container, for the API of pod resources.
    pub fn resources(&self, pod: &Pod, container: &Container) -> Vec<DynamicResource> {
        self.of_container(pod, container, |claim, d| DynamicResource {
            claim_name: claim.name.clone(),
            claim_namespace: claim.namespace.clone(),
            claim_resources: vec![ClaimResource {
                cdi_devices: d.cdi.iter().map(|name| CdiDevice { name: name.clone() }).collect(),
                driver_name: d.driver.clone(),
                pool_name: d.pool.clone(),
                device_name: d.device.clone(),
                share_id: d.share.clone(),
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plugins::api::dra::{Device, PreparedClaim};

    /// A driver that returned 50,000 names made the status of a pod too large for the API.
    #[test]
    fn what_a_driver_returns_is_bounded() {
        let device = |cdi: Vec<String>| Device { cdi_device_ids: cdi, ..Device::default() };
        let check = |devices| check_size(&PreparedClaim { devices, ..PreparedClaim::default() });
        let names = |count: usize| (0..count).map(|n| format!("example.com/gpu={n}")).collect::<Vec<_>>();
        assert_eq!(check(vec![device(names(32)); 32]), Ok(()));
        assert_eq!(check(vec![device(names(50_000))]), Err(("50000 names of CDI devices".into(), MAX_CDI_NAMES)));
        assert_eq!(check(vec![device(Vec::new()); 257]), Err(("257 devices".into(), MAX_DEVICES)));
        let long = Device { device_name: "x".repeat(MAX_BYTES), ..Device::default() };
        assert!(check(vec![long]).unwrap_err().0.ends_with(" bytes"));
    }
}
