//! Finds volumes for the claims of pods on nodes, and binds them before the pods.

mod wait;

use crate::cluster::{Cluster, Node, NodeEntry};
use crate::framework::{NodeFilter, Plugin, Point, PreFilter, Read, Refusal};
use crate::pod::Pod;
use crate::storage::{Claim, Storage, Volume};
use client::{Client, Error};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "VolumeBinding";

/// What has to be done before a pod is bound.
#[derive(Clone, Default)]
pub struct Plan {
    /// Volumes to bind to claims.
    bindings: Vec<(Arc<Volume>, Arc<Claim>)>,
    /// Claims to provision volumes for.
    provisions: Vec<Arc<Claim>>,
}

#[derive(Default)]
struct Reserved {
    /// By UID of the pod.
    plans: HashMap<Arc<str>, Plan>,
    /// The volumes that are taken for claims, by name, before they show it.
    volumes: HashMap<Arc<str>, Taken>,
    /// The nodes that are selected for claims, by UID of the claim, before the claims show it.
    nodes: HashMap<Arc<str>, Arc<str>>,
}

/// A volume that a pod takes for one of its claims.
struct Taken {
    claim: Arc<str>,
    pod: Arc<str>,
    /// The resource version of the volume before.
    version: String,
}

impl Reserved {
    /// Whether a volume is taken for another claim: until the pod is bound, and then until the volume is seen to change. What it shows
    /// decides from then on; it may be free again.
    fn has(&self, volume: &Volume, claim: &Claim) -> bool {
        self.volumes.get(&volume.meta.name).is_some_and(|taken| {
            taken.claim != claim.meta.uid
                && (self.plans.contains_key(&taken.pod) || taken.version == volume.meta.resource_version)
        })
    }
}

pub struct VolumeBinding {
    client: Option<Client>,
    /// How long volumes may take to be bound.
    timeout: Duration,
    reserved: Mutex<Reserved>,
}

impl VolumeBinding {
    pub fn new(client: Option<Client>, timeout: Duration) -> Self {
        Self { client, timeout, reserved: Mutex::default() }
    }
}

/// The claims of a pod.
#[derive(Default)]
struct Claims<'a> {
    bound: Vec<&'a Arc<Claim>>,
    /// Those whose volumes are found once a node is chosen.
    delayed: Vec<&'a Arc<Claim>>,
    /// How many should have a volume already.
    immediate: usize,
}

impl<'a> Claims<'a> {
    /// Errors if a claim is missing or cannot be used.
    fn new(pod: &Pod, storage: &'a Storage) -> Result<Self, String> {
        let mut claims = Self::default();
        for claim in &pod.view.claims {
            let name = &claim.name;
            let Some(found) = storage.claim(&pod.meta.namespace, name) else {
                return Err(match claim.is_ephemeral {
                    true => format!(
                        "waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\""
                    ),
                    false => format!("persistentvolumeclaim \"{name}\" not found"),
                });
            };
            let view = &found.view;
            if view.is_lost {
                let volume = &view.volume;
                return Err(format!(
                    "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
                ));
            }
            if found.meta.is_deleting() {
                return Err(format!("persistentvolumeclaim \"{name}\" is being deleted"));
            }
            if claim.is_ephemeral && found.meta.controller().is_none_or(|o| *o.uid != *pod.meta.uid) {
                let (ns, pod) = (&pod.meta.namespace, &pod.meta.name);
                return Err(format!("PVC {ns}/{name} was not created for pod {ns}/{pod} (pod is not owner)"));
            }
            let waits = storage.class(&view.class).and_then(|c| c.waits()).unwrap_or(false);
            if view.is_bound() {
                claims.bound.push(found);
            } else if waits && view.volume.is_empty() {
                claims.delayed.push(found);
            } else {
                claims.immediate += 1;
            }
        }
        claims.delayed.sort_by_key(|c| c.view.size.unwrap_or(0));
        Ok(claims)
    }
}

struct Check<'a> {
    storage: &'a Storage,
    claims: Claims<'a>,
    plugin: &'a VolumeBinding,
}

impl Check<'_> {
    /// What has to be done on a node. Errors with the reasons why its volumes do not fit.
    fn plan(&self, node: &NodeEntry) -> Result<Plan, Vec<&'static str>> {
        let label = |k: &str| node.meta.label(k);
        let mut reasons = Vec::new();
        let mut plan = Plan::default();
        let volumes = self.claims.bound.iter().map(|c| self.storage.volume(&c.view.volume));
        let mut missing = false;
        for volume in volumes {
            match volume {
                None => missing = true,
                Some(v) if !v.view.reaches(&node.meta.name, label) => {
                    reasons.push("node(s) didn't match PersistentVolume's node affinity");
                    break;
                }
                Some(_) => {}
            }
        }
        let reserved = self.plugin.reserved.lock();
        let (mut found, mut room) = (true, true);
        for claim in &self.claims.delayed {
            let selected = reserved.nodes.get(&claim.meta.uid).map(|n| &**n).or(claim.view.selected_node.as_deref());
            if selected.is_some_and(|n| *n != *node.meta.name) {
                found = false;
                break;
            }
            let matching = match selected {
                Some(_) => None,
                None => self.matching(claim, node, &plan, &reserved),
            };
            if let Some(volume) = matching {
                plan.bindings.push((volume.clone(), (*claim).clone()));
                continue;
            }
            let class = self.storage.class(&claim.view.class);
            let provisioner =
                class.map(|c| &*c.provisioner).filter(|p| !p.is_empty() && *p != "kubernetes.io/no-provisioner");
            match (class, provisioner) {
                (Some(class), Some(provisioner)) if class.allows(label) => {
                    room &= self.storage.has_room(&claim.view.class, provisioner, claim.view.size, label);
                    plan.provisions.push((*claim).clone());
                }
                _ => {
                    found = false;
                    break;
                }
            }
        }
        if !found {
            reasons.push("node(s) didn't find available persistent volumes to bind");
        }
        if !room {
            reasons.push("node(s) did not have enough free storage");
        }
        if missing {
            reasons.push("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)");
        }
        if reasons.is_empty() { Ok(plan) } else { Err(reasons) }
    }

    /// The smallest volume for a claim that the node reaches; the volume that is reserved for it goes before all others.
    fn matching(&self, claim: &Arc<Claim>, node: &NodeEntry, plan: &Plan, reserved: &Reserved) -> Option<&Arc<Volume>> {
        let taken = |v: &Volume| {
            plan.bindings.iter().any(|(other, _)| other.meta.name == v.meta.name) || reserved.has(v, claim)
        };
        let c = &claim.view;
        let mut best: Option<&Arc<Volume>> = None;
        for volume in self.storage.volumes().filter(|v| !taken(v)) {
            let v = &volume.view;
            let is_for = v.is_for(claim);
            let large_enough = v.capacity >= c.size.unwrap_or(0);
            let same_kind = v.volume_mode == c.volume_mode && v.attributes_class == c.attributes_class;
            if (v.claim.is_some() && !is_for) || !large_enough || !same_kind || volume.meta.is_deleting() {
                continue;
            }
            let reaches = v.reaches(&node.meta.name, |k| node.meta.label(k));
            if is_for {
                return reaches.then_some(volume);
            }
            let fits = reaches
                && v.is_available
                && v.class == c.class
                && c.selector.as_ref().is_none_or(|s| s.matches(|k| volume.meta.label(k)))
                && c.modes.iter().all(|m| v.modes.contains(m));
            let smaller = |b: &Arc<Volume>| (v.capacity, &volume.meta.name) < (b.view.capacity, &b.meta.name);
            if fits && best.is_none_or(smaller) {
                best = Some(volume);
            }
        }
        best
    }
}

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter, Point::Reserve, Point::PreBind]
    }

    fn pre_filter<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster) -> PreFilter<'a> {
        if pod.view.claims.is_empty() {
            return Ok(None);
        }
        let storage = cluster.storage();
        let claims = Claims::new(pod, storage).map_err(|why| Refusal::unresolvable(NAME, why))?;
        if claims.immediate > 0 {
            return Err(Refusal::unresolvable(NAME, "pod has unbound immediate PersistentVolumeClaims"));
        }
        Ok(Some(Box::new(Check { storage, claims, plugin: self })))
    }

    fn reads(&self) -> &'static [Read] {
        &[Read::Nodes, Read::NodeLabels, Read::Storage]
    }

    fn reserve(&self, pod: &Pod, node: &str, cluster: &Cluster) -> Result<(), Refusal> {
        let entry = cluster.node(node).and_then(|n| n.entry.as_ref());
        let (false, Some(entry)) = (pod.view.claims.is_empty(), entry) else { return Ok(()) };
        let storage = cluster.storage();
        let claims = Claims::new(pod, storage).map_err(|why| Refusal::unresolvable(NAME, why))?;
        let check = Check { storage, claims, plugin: self };
        let refused = |reasons: Vec<&'static str>| Refusal {
            plugin: NAME,
            reasons: reasons.into_iter().map(Into::into).collect(),
            resolvable: false,
            is_error: false,
        };
        let plan = check.plan(entry).map_err(refused)?;
        let mut reserved = self.reserved.lock();
        // What the objects show needs no reservation any more.
        let Reserved { plans, volumes, .. } = &mut *reserved;
        let is_as_before = |name: &str, version: &str| {
            storage.volume(name).is_some_and(|v| v.view.claim.is_none() && v.meta.resource_version == version)
        };
        volumes.retain(|name, t| plans.contains_key(&t.pod) || is_as_before(name, &t.version));
        for (volume, claim) in &plan.bindings {
            let version = volume.meta.resource_version.clone();
            let taken = Taken { claim: claim.meta.uid.clone(), pod: pod.meta.uid.clone(), version };
            reserved.volumes.insert(volume.meta.name.clone(), taken);
        }
        for claim in &plan.provisions {
            reserved.nodes.insert(claim.meta.uid.clone(), node.into());
        }
        reserved.plans.insert(pod.meta.uid.clone(), plan);
        Ok(())
    }

    fn unreserve(&self, pod: &Pod, _: &str) {
        let mut reserved = self.reserved.lock();
        let Some(plan) = reserved.plans.remove(&pod.meta.uid) else { return };
        for (volume, _) in &plan.bindings {
            reserved.volumes.remove(&volume.meta.name);
        }
        for claim in &plan.provisions {
            reserved.nodes.remove(&claim.meta.uid);
        }
    }

    fn pre_bind(&self, pod: &Arc<Pod>, node: &Arc<str>) -> Option<BoxFuture<'static, Result<(), Error>>> {
        let mut reserved = self.reserved.lock();
        let plan = reserved.plans.get(&pod.meta.uid).cloned()?;
        if plan.bindings.is_empty() && plan.provisions.is_empty() {
            reserved.plans.remove(&pod.meta.uid);
            return None;
        }
        let (client, timeout, node) = (self.client.clone()?, self.timeout, node.clone());
        let pod = pod.clone();
        Some(Box::pin(async move { wait::bind(&client, &plan, &pod, &node, timeout).await }))
    }

    fn post_bind(&self, pod: &Pod, _: &str) {
        let mut reserved = self.reserved.lock();
        let Some(plan) = reserved.plans.remove(&pod.meta.uid) else { return };
        for claim in &plan.provisions {
            reserved.nodes.remove(&claim.meta.uid);
        }
    }
}

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        let Some(entry) = &node.entry else { return Ok(()) };
        match self.plan(entry) {
            Ok(_) => Ok(()),
            Err(reasons) => {
                let reasons = reasons.into_iter().map(Into::into).collect();
                Err(Refusal { plugin: NAME, reasons, resolvable: false, is_error: false })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::StorageObject;
    use serde_json::{Value, json};

    fn entry<V: client::informer::View>(v: &Value) -> Arc<client::Entry<V>> {
        Arc::new(client::Entry::new(serde_json::to_vec(v).unwrap().into()).unwrap())
    }

    /// A volume that was released and made available again could not be used by another claim.
    #[test]
    fn a_volume_is_taken_until_it_changes() {
        let mut cluster = Cluster::default();
        cluster.set_node(entry(&json!({"metadata": {"name": "n"}})));
        let class = json!({"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"});
        cluster.storage_mut().set(StorageObject::Class(entry(&class)));
        let volume = |version: &str| {
            StorageObject::Volume(entry(&json!({"metadata": {"name": "v", "uid": "v", "resourceVersion": version},
                "spec": {"storageClassName": "local", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Available"}})))
        };
        cluster.storage_mut().set(volume("1"));
        let mut pod = |name: &str| -> Pod {
            let spec = json!({"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
            let claim =
                json!({"metadata": {"name": name, "namespace": "d", "uid": format!("claim-{name}")}, "spec": spec});
            cluster.storage_mut().set(StorageObject::Claim(entry(&claim)));
            let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": name}}]);
            let pod = json!({"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": {"volumes": volumes}});
            Pod::new(serde_json::to_vec(&pod).unwrap().into()).unwrap()
        };
        let (first, second) = (pod("a"), pod("b"));
        let plugin = VolumeBinding::new(None, Duration::ZERO);
        plugin.reserve(&first, "n", &cluster).unwrap();
        let fits = |cluster: &Cluster| {
            let check = plugin.pre_filter(&second, cluster).unwrap().unwrap();
            check.check(cluster.node("n").unwrap()).is_ok()
        };
        assert!(!fits(&cluster));
        cluster.storage_mut().set(volume("2"));
        assert!(!fits(&cluster), "the first pod is still being bound");
        cluster.storage_mut().set(volume("1"));
        plugin.post_bind(&first, "n");
        assert!(!fits(&cluster), "the volume does not show the claim yet");
        cluster.storage_mut().set(volume("5"));
        assert!(fits(&cluster), "it was bound, released and made available again");
        plugin.reserve(&second, "n", &cluster).unwrap();
    }
}
