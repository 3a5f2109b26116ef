//! Extended resources that drivers of devices provide: the claim that the scheduler makes for a pod (upstream
//! `extendeddynamicresources.go`).
//!
//! A node may have a resource from a device plugin, another one from a driver, so the claim differs between nodes. It is written
//! before the pod is bound. A claim of an earlier attempt is deleted before the next one, because its devices may be wrong.

use super::write;
use crate::cluster::NodeEntry;
use crate::devices::{DeviceClaim, DeviceClaimInfo, Devices, EXTENDED_RESOURCE_CLAIM};
use crate::plugins::node_resources_fit::is_provided_by_devices;
use crate::pod::Pod;
use crate::resources::Resources;
use client::informer::or_default;
use client::{ApiResource, Client, Error, Patch, WriteOptions};
use meta::Object;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What a pod requests of resources that have a device class.
pub enum Extended {
    /// Nothing.
    None,
    /// An earlier attempt made this claim.
    Stale(Arc<DeviceClaim>),
    Wanted(Wanted),
}

/// The requests of the containers of a pod.
pub struct Wanted {
    /// The sum of each extended resource.
    resources: Vec<(Arc<str>, i64)>,
    containers: Vec<Container>,
}

/// The claim that a pod needs on a node.
pub struct Generated {
    /// Without devices yet.
    pub view: DeviceClaimInfo,
    /// `status.extendedResourceClaimStatus.requestMappings` of the pod.
    mappings: Vec<Value>,
}

struct Container {
    name: String,
    /// Whether it ends before the next container starts: an init container, but no sidecar.
    ends: bool,
    requests: Resources,
    /// The names of all requested resources, sorted.
    names: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawPod {
    spec: RawSpec,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    #[serde(deserialize_with = "or_default")]
    init_containers: Vec<RawContainer>,
    #[serde(deserialize_with = "or_default")]
    containers: Vec<RawContainer>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawContainer {
    name: String,
    restart_policy: String,
    resources: RawResources,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawResources {
    requests: Option<Map<String, Value>>,
}

impl RawContainer {
    fn read(self, is_init: bool) -> Container {
        let requests = self.resources.requests.unwrap_or_default();
        let mut names: Vec<String> = requests.keys().cloned().collect();
        names.sort_unstable();
        let ends = is_init && self.restart_policy != "Always";
        Container { name: self.name, ends, requests: Resources::read(Some(&requests)), names }
    }
}

impl Extended {
    /// Errors if the pod cannot be decoded.
    pub fn of(pod: &Pod, devices: &Devices) -> Result<Self, Error> {
        let resources = &pod.view.requests.extended;
        if !resources.iter().any(|(name, amount)| *amount > 0 && devices.class_of_resource(name).is_some()) {
            return Ok(Self::None);
        }
        if let Some(claim) = devices.claim_for_extended_resources(&pod.meta.namespace, &pod.meta.uid) {
            return Ok(Self::Stale(claim.clone()));
        }
        let spec = pod.decode::<RawPod>()?.spec;
        let init = spec.init_containers.into_iter().map(|c| c.read(true));
        let containers = init.chain(spec.containers.into_iter().map(|c| c.read(false))).collect();
        Ok(Self::Wanted(Wanted { resources: resources.clone(), containers }))
    }
}

impl Wanted {
    /// The claim for a node; none if device plugins of the node provide all. Errors if the node has no such resource.
    pub fn on_node(&self, devices: &Devices, node: &NodeEntry) -> Result<Option<Generated>, &'static str> {
        let (mut requests, mut mappings) = (Vec::new(), Vec::new());
        let has = |resource: &str| node.view.allocatable.extended.iter().any(|(name, _)| **name == *resource);
        for (resource, _) in self.resources.iter().filter(|(_, amount)| *amount > 0) {
            if is_provided_by_devices(devices, resource, node) {
                let class = devices.class_of_resource(resource).map_or("", |class| class);
                self.request(resource, class, &mut requests, &mut mappings);
            } else if resource.contains('/') && !has(resource) {
                return Err("cannot fit resource");
            }
        }
        if requests.is_empty() {
            return Ok(None);
        }
        requests.sort_by(|a: &(String, Value), b| a.0.cmp(&b.0));
        let requests: Vec<Value> = requests.into_iter().map(|(_, request)| request).collect();
        let view = DeviceClaimInfo { devices: json!({"requests": requests}), ..DeviceClaimInfo::default() };
        Ok(Some(Generated { view, mappings }))
    }

    /// The requests of the containers for one resource. Containers that run together have devices of their own. One that ends before uses
    /// the devices of those that start after it, and what it needs beyond those is requested once for all such containers.
    fn request(&self, resource: &str, class: &str, requests: &mut Vec<(String, Value)>, mappings: &mut Vec<Value>) {
        let request = |name: &str, count: i64| {
            let exactly = json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": count});
            (name.to_owned(), json!({"name": name, "exactly": exactly}))
        };
        let name_of = |index: usize, c: &Container| {
            let position = c.names.iter().position(|n| n == resource).unwrap_or_default();
            format!("container-{index}-request-{position}")
        };
        let mapping = |c: &Container, request: &str| json!({"containerName": c.name, "resourceName": resource, "requestName": request});
        let mut of_container: Vec<Option<(String, i64)>> = Vec::new();
        for (i, c) in self.containers.iter().enumerate() {
            let count = c.requests.extended(resource);
            let own = (!c.ends && count > 0).then(|| (name_of(i, c), count));
            if let Some((name, count)) = &own {
                requests.push(request(name, *count));
                mappings.push(mapping(c, name));
            }
            of_container.push(own);
        }
        // The requests that containers that end use; none: the one for what they need beyond the devices of later ones.
        let mut used: Vec<(&Container, Option<String>)> = Vec::new();
        let mut largest: Option<(String, i64)> = None;
        for (i, c) in self.containers.iter().enumerate().filter(|(_, c)| c.ends) {
            let mut missing = c.requests.extended(resource);
            for (name, count) in of_container[i..].iter().flatten() {
                if missing <= 0 {
                    break;
                }
                missing -= count;
                used.push((c, Some(name.clone())));
            }
            if missing > 0 {
                used.push((c, None));
                if largest.as_ref().is_none_or(|(_, most)| *most < missing) {
                    largest = Some((name_of(i, c), missing));
                }
            }
        }
        if let Some((name, count)) = &largest {
            requests.push(request(name, *count));
        }
        for (c, name) in used {
            let name = name.or_else(|| largest.as_ref().map(|(name, _)| name.clone()));
            mappings.extend(name.map(|name| mapping(c, &name)));
        }
    }
}

impl Generated {
    /// Creates the claim of a pod.
    pub async fn create(&self, client: &Client, pod: &Pod) -> Result<Object, Error> {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": &*pod.meta.name, "uid": &*pod.meta.uid, "controller": true});
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {
                "namespace": &*pod.meta.namespace, "generateName": format!("{}-extended-resources-", pod.meta.name),
                "ownerReferences": [owner], "annotations": {EXTENDED_RESOURCE_CLAIM: "true"},
            },
            "spec": {"devices": self.view.devices},
        });
        let claim = Object::from_value(claim).unwrap_or_default();
        client.dynamic(&write::resource()).namespace(&pod.meta.namespace).create(&WriteOptions::default(), &claim).await
    }

    /// Shows the kubelet which devices of the claim each container gets.
    pub async fn report(&self, client: &Client, pod: &Pod, claim: &str) -> Result<(), Error> {
        let pods = client.dynamic(&ApiResource::named("", "v1", "pods", "Pod", true)).namespace(&pod.meta.namespace);
        let status = json!({"resourceClaimName": claim, "requestMappings": self.mappings});
        let patch = json!({"metadata": {"uid": &*pod.meta.uid}, "status": {"extendedResourceClaimStatus": status}});
        pods.patch_status(&pod.meta.name, &WriteOptions::default(), &Patch::Merge(patch)).await.map(drop)
    }
}

/// Deletes a claim of an earlier attempt, which nobody uses.
pub async fn delete(client: &Client, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
    let claims = client.dynamic(&write::resource()).namespace(namespace);
    let Some(claim) = claims.get_opt(name).await?.filter(|c| c.uid() == uid) else { return Ok(()) };
    let others: Vec<&str> = claim.finalizers().filter(|f| *f != write::FINALIZER).collect();
    let metadata = json!({"uid": uid, "resourceVersion": claim.resource_version(), "finalizers": others});
    client::optional(claims.patch(name, &WriteOptions::default(), &Patch::Merge(json!({"metadata": metadata}))).await)?;
    client::optional(claims.delete(name, &client::DeleteOptions::uid(uid)).await).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::Entry;

    fn entry<V: client::informer::View>(v: &Value) -> Arc<Entry<V>> {
        Arc::new(Entry::new(serde_json::to_vec(v).unwrap().into()).unwrap())
    }

    fn devices(classes: &[Value]) -> Devices {
        let mut devices = Devices::default();
        for class in classes {
            devices.set(crate::devices::DeviceObject::Class(entry(class)));
        }
        devices
    }

    fn class(name: &str, created: &str, resource: Option<&str>) -> Value {
        json!({"metadata": {"name": name, "creationTimestamp": created}, "spec": {"extendedResourceName": resource}})
    }

    fn pod(spec: Value) -> Arc<Pod> {
        entry(&json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}))
    }

    /// The requests of the claim with their counts, and which container uses which.
    fn claim(spec: Value, devices: &Devices, allocatable: Value) -> Option<(Vec<String>, Vec<String>)> {
        let node: Arc<NodeEntry> = entry(&json!({"metadata": {"name": "a"}, "status": {"allocatable": allocatable}}));
        let Extended::Wanted(wanted) = Extended::of(&pod(spec), devices).unwrap() else { return None };
        let generated = wanted.on_node(devices, &node).unwrap()?;
        let text = |v: &Value| v.as_str().unwrap().to_owned();
        let requests = generated.view.devices["requests"].as_array().unwrap().iter();
        let requests = requests.map(|r| {
            let exactly = &r["exactly"];
            format!("{} {} {}", text(&r["name"]), text(&exactly["deviceClassName"]), exactly["count"])
        });
        let mappings = generated.mappings.iter();
        let mappings = mappings.map(|m| format!("{} {}", text(&m["containerName"]), text(&m["requestName"])));
        Some((requests.collect(), mappings.collect()))
    }

    /// Clauses: R06.extended
    #[test]
    fn a_request_of_an_extended_resource_becomes_a_claim() {
        let gpu = "example.com/gpu";
        let devices = devices(&[class("gpu", "2026-01-01T00:00:00Z", Some(gpu))]);
        let container =
            |name: &str, count: u32| json!({"name": name, "resources": {"requests": {"cpu": "1", gpu: count}}});
        let init = |name: &str, count: u32, policy: Option<&str>| {
            let mut c = container(name, count);
            c["restartPolicy"] = json!(policy.unwrap_or_default());
            c
        };
        let check = |spec: Value, requests: &[&str], mappings: &[&str]| {
            let (r, m) = claim(spec, &devices, json!({"cpu": "4"})).unwrap();
            assert_eq!(
                (r, m),
                (
                    requests.iter().map(ToString::to_string).collect(),
                    mappings.iter().map(ToString::to_string).collect()
                )
            );
        };
        check(
            json!({"containers": [container("a", 2), container("b", 1)]}),
            &["container-0-request-1 gpu 2", "container-1-request-1 gpu 1"],
            &["a container-0-request-1", "b container-1-request-1"],
        );
        // An init container uses the devices of those that start after it; a sidecar has its own.
        check(
            json!({"initContainers": [init("i", 1, None), init("s", 1, Some("Always")), init("j", 3, None)], "containers": [container("a", 2)]}),
            &["container-1-request-1 gpu 1", "container-2-request-1 gpu 1", "container-3-request-1 gpu 2"],
            &[
                "s container-1-request-1",
                "a container-3-request-1",
                "i container-1-request-1",
                "j container-3-request-1",
                "j container-2-request-1",
            ],
        );
        // Init containers share what they need beyond that.
        check(
            json!({"initContainers": [init("i", 4, None), init("j", 3, None)], "containers": [container("a", 1)]}),
            &["container-0-request-1 gpu 3", "container-2-request-1 gpu 1"],
            &[
                "a container-2-request-1",
                "i container-2-request-1",
                "i container-0-request-1",
                "j container-2-request-1",
                "j container-0-request-1",
            ],
        );
        // A device plugin provides it.
        assert!(claim(json!({"containers": [container("a", 1)]}), &devices, json!({gpu: "1"})).is_none());
        // No class does.
        assert!(
            claim(
                json!({"containers": [{"name": "a", "resources": {"requests": {"other.com/x": "1"}}}]}),
                &devices,
                json!({})
            )
            .is_none()
        );
        // Every class has a resource of its own.
        let implicit = json!({"containers": [{"name": "a", "resources": {"requests": {"deviceclass.resource.kubernetes.io/gpu": "1"}}}]});
        check(implicit, &["container-0-request-0 gpu 1"], &["a container-0-request-0"]);
    }

    /// A claim of another namespace that names the pod as its owner kept it from being scheduled.
    #[test]
    fn claims_of_other_namespaces_do_not_concern_a_pod() {
        let mut devices = devices(&[class("gpu", "2026-01-01T00:00:00Z", Some("example.com/gpu"))]);
        let mut stale_after = |namespace: &str| {
            let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true});
            devices.set(crate::devices::DeviceObject::Claim(entry(
                &json!({"metadata": {"name": "c", "namespace": namespace,
                "uid": namespace, "annotations": {EXTENDED_RESOURCE_CLAIM: "true"}, "ownerReferences": [owner]}}),
            )));
            let requests = json!({"requests": {"example.com/gpu": "1"}});
            let pod = pod(json!({"containers": [{"name": "c", "resources": requests}]}));
            matches!(Extended::of(&pod, &devices), Ok(Extended::Stale(_)))
        };
        assert!(!stale_after("other"));
        assert!(stale_after("n"));
    }

    #[test]
    fn the_newest_class_offers_a_resource() {
        let name = "example.com/gpu";
        let all = [
            class("b", "2026-01-01T00:00:00Z", Some(name)),
            class("d", "2026-01-02T00:00:00Z", Some(name)),
            class("c", "2026-01-02T00:00:00Z", Some(name)),
        ];
        let mut devices = devices(&all);
        assert_eq!(devices.class_of_resource(name).map(|c| &**c), Some("c"));
        devices.remove(&crate::devices::DeviceObject::Class(entry(&all[2])));
        assert_eq!(devices.class_of_resource(name).map(|c| &**c), Some("d"));
        devices.set(crate::devices::DeviceObject::Class(entry(&class("d", "2026-01-02T00:00:00Z", None))));
        assert_eq!(devices.class_of_resource(name).map(|c| &**c), Some("b"));
    }
}
