//! Device plugins: programs on the node that offer devices as an extended resource (`pkg/kubelet/cm/devicemanager`).
//!
//! A plugin registers on the socket `device-plugins/kubelet.sock` ([`registration`]), and tells its devices and their health from then on.
//! Healthy devices are the node's allocatable amount of the resource. [`choose`] selects devices for a container: pure. [`Devices`] asks the
//! plugin what the container needs to use them, when the pod is admitted.
//!
//! **Invariant.** A device is given to one container at a time, save for init containers, which leave theirs to later containers of their
//! pod. What was given is in a checkpoint before the pod is admitted. A plugin is a stranger: its calls have deadlines, and what it says
//! affects containers that request its resource only.

mod choose;
mod registration;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceHealth, ResourceStatus};
use meta::Quantity;
use parking_lot::Mutex;
use plugins::api::devices::{
    ALLOCATE, AllocateRequest, ContainerAllocateResponse, ContainerPreferredAllocationRequest, Device, DeviceIds,
    GET_PREFERRED_ALLOCATION, HEALTHY, NumaNode, PRE_START_CONTAINER, PluginOptions, PreferredAllocationRequest,
    Topology,
};
use plugins::api::pod_resources::ContainerDevices;
use plugins::{Connection, KubeletRoot};
use prost::Message;
use serde::{Deserialize, Serialize};
use supervisor::blocking;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::affinity::checkpoint::Checkpoint;
use crate::affinity::hints::{Hint, Hints, Nodes};
use crate::cdi::Edits;
use crate::pod::spec::text;
use crate::resources::is_sidecar;
use choose::{Offer, proposals};
pub use registration::{Registration, run};

/// How long the devices of a plugin that is gone stay in the node's capacity (`endpointStopGracePeriod`).
const GONE: Duration = Duration::from_secs(5 * 60);
/// The time that a plugin has to answer (upstream waits without limit, save for `PreStartContainer`).
const DEADLINE: Duration = Duration::from_secs(30);

type Ids = BTreeSet<String>;

/// A device as its plugin described it last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DeviceState {
    healthy: bool,
    nodes: Nodes,
}

impl From<&Device> for DeviceState {
    fn from(device: &Device) -> Self {
        let nodes = device.topology.iter().flat_map(|t| &t.nodes).filter_map(|n| u32::try_from(n.id).ok()).collect();
        Self { healthy: device.health == HEALTHY, nodes }
    }
}

#[derive(Clone)]
struct Plugin {
    connection: Connection,
    options: PluginOptions,
    /// Tells plugins apart that register for one resource.
    generation: u64,
}

/// An extended resource of plugins.
#[derive(Default)]
struct Resource {
    plugin: Option<Plugin>,
    devices: BTreeMap<String, DeviceState>,
    /// Since when the plugin is gone.
    gone: Option<Instant>,
}

/// What a container has of a resource.
#[derive(Clone, Debug, Default, PartialEq)]
struct Allocation {
    ids: Ids,
    response: ContainerAllocateResponse,
}

/// By UID of the pod, name of the container and resource.
type Allocations = BTreeMap<String, BTreeMap<String, BTreeMap<String, Allocation>>>;

#[derive(Default)]
struct State {
    resources: BTreeMap<String, Resource>,
    allocations: Allocations,
    /// What init containers of the pod that is being admitted had, for its next containers.
    reusable: (String, BTreeMap<String, Ids>),
    generation: u64,
}

/// The content of the checkpoint.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Saved {
    #[serde(rename = "policyName")]
    policy_name: String,
    pod_device_entries: Vec<Entry>,
    registered_devices: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    #[serde(rename = "ContainerName")]
    container_name: String,
    #[serde(rename = "ResourceName")]
    resource_name: String,
    #[serde(rename = "DeviceIDs")]
    device_ids: Vec<String>,
    /// The plugin's response, encoded.
    #[serde(rename = "AllocResp")]
    response: String,
}

/// Amounts of resources for the status of the node. A resource that is gone has none of either.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub capacity: BTreeMap<String, usize>,
    pub allocatable: BTreeMap<String, usize>,
}

/// Called with the UID of a pod whose devices have changed.
pub type Wake = Arc<dyn Fn(&str) + Send + Sync>;

/// The devices of plugins.
pub struct Devices {
    root: KubeletRoot,
    state: Mutex<State>,
    checkpoint: Arc<Checkpoint>,
    /// NUMA nodes of the machine.
    nodes: Vec<u32>,
    wake: Wake,
    /// Notified when amounts have changed.
    pub changed: Notify,
}

/// How many of each extended resource a container requests.
fn requests(container: &Container) -> Vec<(String, usize)> {
    let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
    let count = |text: &str| Quantity::parse(text).ok().and_then(|q| usize::try_from(q.value()).ok()).unwrap_or(0);
    limits.into_iter().flatten().map(|(name, q)| (name.clone(), count(&q.0))).filter(|(_, n)| *n > 0).collect()
}

/// Whether the devices of a container's resource are those of a claim.
fn is_claimed(pod: &Pod, container: &str, resource: &str) -> bool {
    let status = pod.status.as_ref().and_then(|s| s.extended_resource_claim_status.as_ref());
    status.is_some_and(|s| {
        s.request_mappings.iter().any(|m| m.container_name == container && m.resource_name == resource)
    })
}

impl State {
    /// Whether a plugin offers the resource, or a container has devices of it.
    fn manages(&self, resource: &str) -> bool {
        self.resources.contains_key(resource) || self.taken(resource).next().is_some()
    }

    fn taken<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a String> {
        let containers = self.allocations.values().flat_map(BTreeMap::values);
        containers.filter_map(move |all| all.get(resource)).flat_map(|a| &a.ids)
    }

    fn healthy(&self, resource: &str) -> Option<Ids> {
        let devices = &self.resources.get(resource)?.devices;
        Some(devices.iter().filter(|(_, d)| d.healthy).map(|(id, _)| id.clone()).collect())
    }

    fn allocation(&self, uid: &str, container: &str, resource: &str) -> Option<&Allocation> {
        self.allocations.get(uid)?.get(container)?.get(resource)
    }

    fn reusable(&self, uid: &str, resource: &str) -> Ids {
        if self.reusable.0 != uid {
            return Ids::new();
        }
        self.reusable.1.get(resource).cloned().unwrap_or_default()
    }

    fn available(&self, resource: &str) -> Ids {
        let taken: Ids = self.taken(resource).cloned().collect();
        self.healthy(resource).unwrap_or_default().difference(&taken).cloned().collect()
    }

    fn nodes_of(&self, resource: &str, id: &str) -> Nodes {
        self.resources.get(resource).and_then(|r| r.devices.get(id)).map(|d| d.nodes).unwrap_or_default()
    }

    fn hints_of(
        &self,
        uid: &str,
        container: Option<&str>,
        resource: &str,
        count: usize,
        nodes: &[u32],
    ) -> Option<Vec<Hint>> {
        let resources = self.resources.get(resource)?;
        if resources.devices.values().all(|d| d.nodes.is_empty()) {
            return None;
        }
        let all: Vec<Nodes> = resources.devices.values().map(|d| d.nodes).collect();
        let places = |ids: &Ids| ids.iter().map(|id| self.nodes_of(resource, id)).collect::<Vec<_>>();
        let has = container.and_then(|c| self.allocation(uid, c, resource));
        if let Some(has) = has {
            return Some(match has.ids.len() == count {
                true => proposals(nodes, &all, &places(&has.ids), &[], count),
                false => Vec::new(),
            });
        }
        let (available, reusable) = (self.available(resource), self.reusable(uid, resource));
        if available.union(&reusable).count() < count {
            return Some(Vec::new());
        }
        Some(proposals(nodes, &all, &places(&available), &places(&reusable), count))
    }

    /// Notes what an init container leaves to later containers of its pod, and what others have taken of it.
    fn reuse(&mut self, pod: &Pod, container: &Container) {
        let uid = text(&pod.metadata.uid);
        let init = pod.spec.as_ref().and_then(|s| s.init_containers.as_ref()).into_iter().flatten();
        let ends = init.into_iter().any(|c| c.name == container.name && !is_sidecar(c));
        let has = self.allocations.get(uid).and_then(|all| all.get(&container.name)).cloned().unwrap_or_default();
        for (resource, allocation) in has {
            let reusable = self.reusable.1.entry(resource).or_default();
            match ends {
                true => reusable.extend(allocation.ids),
                false => reusable.retain(|id| !allocation.ids.contains(id)),
            }
        }
    }

    fn saved(&self) -> Saved {
        let mut out = Saved { policy_name: POLICY.into(), ..Saved::default() };
        for (uid, containers) in &self.allocations {
            for (container, resources) in containers {
                out.pod_device_entries.extend(resources.iter().map(|(resource, a)| Entry {
                    pod_uid: uid.clone(),
                    container_name: container.clone(),
                    resource_name: resource.clone(),
                    device_ids: a.ids.iter().cloned().collect(),
                    response: STANDARD.encode(a.response.encode_to_vec()),
                }));
            }
        }
        let healthy = |name: &String| self.healthy(name).unwrap_or_default().into_iter().collect();
        out.registered_devices = self.resources.keys().map(|name| (name.clone(), healthy(name))).collect();
        out
    }
}

/// The checkpoint has no policies; this is what the file says.
const POLICY: &str = "devices";
/// What a plugin may return for a container.
const MAX_CDI_NAMES: usize = 1024;
const MAX_BYTES: usize = 1 << 20;

/// Errors if a plugin has returned too much for a container, its messages and the checkpoint.
fn check_size(response: &ContainerAllocateResponse) -> Result<(), String> {
    let (names, bytes) = (response.cdi_devices.len(), response.encoded_len());
    if names > MAX_CDI_NAMES {
        return Err(format!("the device plugin returned {names} names of CDI devices, more than {MAX_CDI_NAMES}"));
    }
    if bytes > MAX_BYTES {
        return Err(format!("the device plugin returned {bytes} bytes, more than {MAX_BYTES}"));
    }
    Ok(())
}

impl Devices {
    /// Opens the checkpoint. Blocks. A checkpoint that cannot be read is left out, as upstream.
    pub fn open(root: KubeletRoot, nodes: Vec<u32>, wake: Wake) -> Self {
        let path = root.path.join(registration::DIRECTORY).join("kubelet_internal_checkpoint");
        let checkpoint = Arc::new(Checkpoint::new(path, "device", POLICY));
        let mut state = State::default();
        match checkpoint.load::<Saved>() {
            Ok(saved) => restore(&mut state, saved.unwrap_or_default()),
            Err(error) => {
                tracing::error!(error, "the checkpoint of devices cannot be read; what containers have is unknown")
            }
        }
        Self { root, state: Mutex::new(state), checkpoint, nodes, wake, changed: Notify::new() }
    }

    async fn save(&self) {
        let (saved, checkpoint) = (self.state.lock().saved(), self.checkpoint.clone());
        blocking(move || checkpoint.save(&saved)).await;
    }

    /// The amounts for the node's status. What is gone for long is forgotten.
    pub fn amounts(&self) -> Amounts {
        let mut state = self.state.lock();
        let mut out = Amounts::default();
        state.resources.retain(|name, resource| {
            let is_gone = resource.gone.is_some_and(|at| at.elapsed() > GONE);
            let healthy = resource.devices.values().filter(|d| d.healthy).count();
            let (all, healthy) = if is_gone { (0, 0) } else { (resource.devices.len(), healthy) };
            out.capacity.insert(name.clone(), all);
            out.allocatable.insert(name.clone(), healthy);
            !is_gone
        });
        out
    }

    /// The NUMA nodes on which a container's devices can be.
    pub fn hints(&self, pod: &Pod, container: &Container) -> Hints {
        let (state, uid) = (self.state.lock(), text(&pod.metadata.uid));
        let managed = requests(container)
            .into_iter()
            .filter(|(name, _)| state.manages(name) && !is_claimed(pod, &container.name, name));
        let hint = |(name, count): (String, usize)| {
            let hints = state.hints_of(uid, Some(&container.name), &name, count, &self.nodes);
            (name, hints)
        };
        managed.map(hint).collect()
    }

    /// The NUMA nodes on which the devices of all containers of a pod can be.
    pub fn pod_hints(&self, pod: &Pod) -> Hints {
        let (state, uid) = (self.state.lock(), text(&pod.metadata.uid));
        let Some(spec) = &pod.spec else { return Hints::new() };
        let (mut starting, mut running) = (BTreeMap::<String, usize>::new(), BTreeMap::<String, usize>::new());
        for c in spec.init_containers.iter().flatten() {
            for (name, n) in requests(c) {
                let all = if is_sidecar(c) { running.entry(name) } else { starting.entry(name) }.or_default();
                *all = if is_sidecar(c) { *all + n } else { n.max(*all) };
            }
        }
        for (name, n) in spec.containers.iter().flat_map(requests) {
            *running.entry(name).or_default() += n;
        }
        for (name, n) in starting {
            let all = running.entry(name).or_default();
            *all = n.max(*all);
        }
        let managed = running.into_iter().filter(|(name, _)| state.manages(name));
        managed
            .map(|(name, n)| {
                let hints = state.hints_of(uid, None, &name, n, &self.nodes);
                (name, hints)
            })
            .collect()
    }

    /// Gives a container its devices. Errors with upstream's texts.
    pub async fn allocate(&self, pod: &Pod, container: &Container, nodes: Option<Nodes>) -> Result<(), String> {
        let uid = text(&pod.metadata.uid);
        {
            let mut state = self.state.lock();
            if state.reusable.0 != uid {
                state.reusable = (uid.to_owned(), BTreeMap::new());
            }
        }
        let mut changed = false;
        for (resource, count) in requests(container) {
            if is_claimed(pod, &container.name, &resource) || !self.state.lock().manages(&resource) {
                continue;
            }
            let ids = self.choose(uid, &container.name, &resource, count, nodes).await?;
            if ids.is_empty() {
                continue;
            }
            let plugin = self.plugin(&resource).ok_or_else(|| format!("unknown Device Plugin {resource}"))?;
            let request = DeviceIds { ids: ids.iter().cloned().collect() };
            let request = AllocateRequest { containers: vec![request] };
            let response = plugin.connection.call(&ALLOCATE, request, DEADLINE).await.map_err(|e| e.to_string())?;
            let response = response.containers.into_iter().next();
            let response = response.ok_or("no containers return in allocation response")?;
            check_size(&response)?;
            let mut state = self.state.lock();
            let containers = state.allocations.entry(uid.to_owned()).or_default();
            let allocation = Allocation { ids, response };
            containers.entry(container.name.clone()).or_default().insert(resource, allocation);
            changed = true;
        }
        self.state.lock().reuse(pod, container);
        if changed {
            self.save().await;
        }
        Ok(())
    }

    fn plugin(&self, resource: &str) -> Option<Plugin> {
        self.state.lock().resources.get(resource)?.plugin.clone()
    }

    /// Chooses devices; none if the container has them already.
    async fn choose(
        &self,
        uid: &str,
        container: &str,
        resource: &str,
        count: usize,
        nodes: Option<Nodes>,
    ) -> Result<Ids, String> {
        let (mut offer, plugin) = {
            let state = self.state.lock();
            let has = state.allocation(uid, container, resource).map(|a| a.ids.clone());
            if let Some(has) = has.as_ref().filter(|has| has.len() != count) {
                let has = has.len();
                return Err(format!(
                    "pod {uid:?} container {container:?} changed request for resource {resource:?} from {has} to {count}"
                ));
            }
            let Some(healthy) = state.healthy(resource) else {
                return Err(format!("cannot allocate unregistered device {resource}"));
            };
            if healthy.is_empty() {
                return Err(format!("no healthy devices present; cannot allocate unhealthy devices {resource}"));
            }
            if let Some(has) = has {
                return match has.is_subset(&healthy) {
                    true => Ok(Ids::new()),
                    false => Err(format!(
                        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
                    )),
                };
            }
            let available = state.available(resource);
            let reusable = state.reusable(uid, resource);
            let places = available.iter().map(|id| (id.clone(), state.nodes_of(resource, id))).collect();
            let offer = Offer::new(count, &reusable, places, nodes);
            let plugin = state.resources.get(resource).and_then(|r| r.plugin.clone());
            (offer, plugin)
        };
        if let Some(missing) = offer.missing() {
            let available = offer.available();
            return Err(format!(
                "requested number of devices unavailable for {resource}. Requested: {missing}, Available: {available}"
            ));
        }
        let asks = plugin.filter(|p| p.options.get_preferred_allocation_available);
        let preferred = match (offer.question(), asks) {
            (Some((available, must_include)), Some(plugin)) => {
                let size = i32::try_from(count).unwrap_or(i32::MAX);
                let question = ContainerPreferredAllocationRequest { available, must_include, size };
                let request = PreferredAllocationRequest { containers: vec![question] };
                let answer = plugin.connection.call(&GET_PREFERRED_ALLOCATION, request, DEADLINE).await;
                let answer =
                    answer.map_err(|e| format!("device plugin GetPreferredAllocation rpc failed with err: {e}"))?;
                answer.containers.into_iter().next().map(|c| c.ids).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        Ok(offer.take(&preferred.into_iter().collect()))
    }

    /// Returns the devices of a pod. Returns whether it had any.
    pub async fn release(&self, uid: &str) {
        if self.state.lock().allocations.remove(uid).is_some() {
            self.save().await;
        }
    }

    /// Returns the devices of all pods but these, which ended while the agent did not run.
    pub async fn retain(&self, uids: &BTreeSet<String>) {
        let changed = {
            let mut state = self.state.lock();
            let before = state.allocations.len();
            state.allocations.retain(|uid, _| uids.contains(uid));
            state.allocations.len() != before
        };
        if changed {
            self.save().await;
        }
    }

    /// Prepares the devices of a container that starts, and returns what they add to it: variables, mounts, devices, annotations, and names
    /// of CDI devices.
    pub async fn start(&self, pod: &Pod, container: &Container) -> Result<Needs, String> {
        let uid = text(&pod.metadata.uid);
        for (resource, _) in requests(container) {
            if is_claimed(pod, &container.name, &resource) || !self.state.lock().manages(&resource) {
                continue;
            }
            if self.state.lock().allocation(uid, &container.name, &resource).is_none() {
                // The node was restarted, and the plugin registered after the pod was admitted.
                self.allocate(pod, container, None).await?;
            }
            let Some(plugin) = self.plugin(&resource).filter(|p| p.options.pre_start_required) else { continue };
            let has = self.state.lock().allocation(uid, &container.name, &resource).map(|a| a.ids.clone());
            let ids = DeviceIds { ids: has.into_iter().flatten().collect() };
            let called = plugin.connection.call(&PRE_START_CONTAINER, ids, DEADLINE).await;
            called.map_err(|e| format!("device plugin PreStartContainer rpc failed with err: {e}"))?;
        }
        Ok(self.needs(uid, &container.name))
    }

    fn needs(&self, uid: &str, container: &str) -> Needs {
        let state = self.state.lock();
        let mut out = Needs::default();
        let all = state.allocations.get(uid).and_then(|c| c.get(container)).into_iter().flat_map(BTreeMap::values);
        for Allocation { response, .. } in all {
            for (name, value) in &response.envs {
                if !out.edits.env.iter().any(|(n, _)| n == name) {
                    out.edits.env.push((name.clone(), value.clone()));
                }
            }
            for d in &response.devices {
                let target = PathBuf::from(&d.container_path);
                if !out.edits.devices.iter().any(|known| known.target == target) {
                    let host = self.root.real(d.host_path.as_ref());
                    let permissions = d.permissions.clone();
                    out.edits.devices.push(runtime::DeviceRequest {
                        host,
                        target,
                        permissions,
                        ..runtime::DeviceRequest::default()
                    });
                }
            }
            for m in &response.mounts {
                let mut mount = runtime::Mount::bind(self.root.real(m.host_path.as_ref()), &m.container_path);
                mount.read_only = m.read_only;
                if !out.edits.mounts.iter().any(|known| known.target == mount.target) {
                    out.edits.mounts.push(mount);
                }
            }
            for (name, value) in &response.annotations {
                out.annotations.entry(name.clone()).or_insert_with(|| value.clone());
            }
            out.cdi.extend(response.cdi_devices.iter().map(|d| d.name.clone()));
        }
        out
    }

    /// The health of the devices of a container, for the status of the pod.
    pub fn health(&self, uid: &str, container: &str) -> Vec<ResourceStatus> {
        let state = self.state.lock();
        let all = state.allocations.get(uid).and_then(|c| c.get(container)).into_iter().flatten();
        let of = |(resource, allocation): (&String, &Allocation)| {
            let known = state.resources.get(resource);
            let health = |id: &String| {
                let healthy = known.and_then(|r| r.devices.get(id)).is_none_or(|d| d.healthy);
                let health = if healthy { "Healthy" } else { "Unhealthy" };
                ResourceHealth { health: Some(health.into()), resource_id: id.clone(), ..ResourceHealth::default() }
            };
            let resources = Some(allocation.ids.iter().map(health).collect());
            ResourceStatus { name: resource.clone(), resources }
        };
        all.map(of).collect()
    }

    /// The devices of a container, for the API of pod resources.
    pub fn of_container(&self, uid: &str, container: &str) -> Vec<ContainerDevices> {
        let state = self.state.lock();
        let all = state.allocations.get(uid).and_then(|c| c.get(container)).into_iter().flatten();
        all.flat_map(|(resource, a)| by_nodes(resource, a.ids.iter().map(|id| (id, state.nodes_of(resource, id)))))
            .collect()
    }

    /// The devices that containers may get, for the API of pod resources.
    pub fn allocatable(&self) -> Vec<ContainerDevices> {
        let state = self.state.lock();
        let of = |(name, r): (&String, &Resource)| {
            let healthy = r.devices.iter().filter(|(_, d)| d.healthy);
            by_nodes(name, healthy.map(|(id, d)| (id, d.nodes)))
        };
        state.resources.iter().flat_map(of).collect()
    }
}

/// Devices with equal NUMA nodes together.
fn by_nodes<'a>(resource: &str, devices: impl Iterator<Item = (&'a String, Nodes)>) -> Vec<ContainerDevices> {
    let mut groups: BTreeMap<Nodes, Vec<String>> = BTreeMap::new();
    devices.for_each(|(id, nodes)| groups.entry(nodes).or_default().push(id.clone()));
    let topology = |nodes: Nodes| {
        let nodes: Vec<NumaNode> = nodes.iter().map(|n| NumaNode { id: n.into() }).collect();
        (!nodes.is_empty()).then_some(Topology { nodes })
    };
    let entry = |(nodes, device_ids)| ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids,
        topology: topology(nodes),
    };
    groups.into_iter().map(entry).collect()
}

/// What the devices of a container add to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    pub edits: Edits,
    pub annotations: BTreeMap<String, String>,
    /// Names of CDI devices.
    pub cdi: Vec<String>,
}

fn restore(state: &mut State, saved: Saved) {
    for e in saved.pod_device_entries {
        let bytes = STANDARD.decode(&e.response).unwrap_or_default();
        let Ok(response) = ContainerAllocateResponse::decode(bytes.as_slice()) else { continue };
        let allocation = Allocation { ids: e.device_ids.into_iter().collect(), response };
        let containers = state.allocations.entry(e.pod_uid).or_default();
        containers.entry(e.container_name).or_default().insert(e.resource_name, allocation);
    }
    for resource in saved.registered_devices.into_keys() {
        // Zero until the plugin registers again.
        let gone = Resource { gone: Some(Instant::now()), ..Resource::default() };
        state.resources.insert(resource, gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plugins::api::devices::CdiDevice;

    #[test]
    fn what_a_plugin_returns_is_bounded() {
        let with = |count: usize| ContainerAllocateResponse {
            cdi_devices: (0..count).map(|n| CdiDevice { name: format!("example.com/gpu={n}") }).collect(),
            ..ContainerAllocateResponse::default()
        };
        assert_eq!(check_size(&with(MAX_CDI_NAMES)), Ok(()));
        let error = check_size(&with(50_000)).unwrap_err();
        assert_eq!(error, "the device plugin returned 50000 names of CDI devices, more than 1024");
        let envs = [("A".to_owned(), "x".repeat(MAX_BYTES))].into();
        let long = ContainerAllocateResponse { envs, ..ContainerAllocateResponse::default() };
        assert!(check_size(&long).unwrap_err().ends_with(" bytes, more than 1048576"));
    }
}
