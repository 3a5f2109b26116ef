//! Repairs the allocations of service addresses, as controllers in upstream's API server do: the default range exists
//! (`pkg/controlplane/controller/defaultservicecidr`), and each address of a service has an IPAddress object that refers to it
//! (`pkg/registry/core/service/ipallocator/controller`).
//!
//! The API server writes a service and its IPAddress together; this repairs what was changed by hand. Invariant: before a change the
//! controller reads from the server, since the caches of services and addresses are not in step.

pub mod default_range;

use crate::context::{Context, Error, object};
use crate::controller::{Builder, Reconcile};
use crate::servicecidrs::ranges::ServiceCidr;
use crate::servicecidrs::ranges::resource as ranges;
use client::{ApiResource, DeleteOptions, Entry, Informer, Key, Outcome, Recorder, Regarding, Severity, WriteOptions};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::IPAddress;
use meta::{Object, Value};
use serde_json::json;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
const ALLOCATOR: &str = "ipallocator.k8s.io";
/// How long an address may exist without its service.
const GRACE: Duration = Duration::from_secs(60);

pub fn addresses() -> ApiResource {
    ApiResource::typed::<IPAddress>()
}

/// Whether the API server allocated an address.
pub fn is_managed<V>(entry: &Entry<V>) -> bool {
    entry.meta.label(MANAGED_BY) == Some(ALLOCATOR)
}

/// An address that the API server allocated.
pub fn ours<V>(entry: &Arc<Entry<V>>) -> Option<IpAddr> {
    entry.meta.name.parse().ok().filter(|_| is_managed(entry))
}

struct Controller {
    context: Context,
    recorder: Recorder,
    services: Informer<()>,
    addresses: Informer<()>,
    ranges: Informer<ServiceCidr>,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let services = builder.watch::<()>(&ApiResource::typed::<Service>());
    let addresses = builder.watch::<()>(&addresses());
    let ranges = builder.watch::<ServiceCidr>(&ranges());
    builder.enqueue(&services);
    builder.on_change(&addresses, |change, queue| {
        queue.add(change.key());
        // The service that the address belongs to, or belonged to.
        if let Ok(o) = change.latest().decode::<Object>() {
            let (_, namespace, name) = parent(&o);
            if !namespace.is_empty() {
                queue.add(Key::new(namespace, name));
            }
        }
    });
    let recorder = context.recorder();
    builder.run(5, Arc::new(Controller { context, recorder, services, addresses, ranges })).await;
}

impl Reconcile for Controller {
    /// Of a service, or of an address, which has no namespace.
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        if key.namespace.is_empty() { self.address(key).await } else { self.service(key).await }
    }
}

/// The owner of an address: `group/resource`, namespace and name.
fn parent(address: &Object) -> (String, &str, &str) {
    let text = |k: &str| address.str_at(&["spec", "parentRef", k]).unwrap_or_default();
    (format!("{}/{}", text("group"), text("resource")), text("namespace"), text("name"))
}

const SERVICES: &str = "/services";

fn addresses_of(service: &Object) -> Vec<&str> {
    let all = service.at(&["spec", "clusterIPs"]).and_then(Value::as_array).into_iter().flatten();
    let has = service.str_at(&["spec", "type"]) != Some("ExternalName");
    all.filter_map(Value::as_str).filter(|ip| has && !matches!(*ip, "" | "None")).collect()
}

fn family(ip: &str) -> &'static str {
    if ip.contains(':') { "IPv6" } else { "IPv4" }
}

fn address_for(service: &Object, ip: &str) -> Object {
    let reference =
        json!({"group": "", "resource": "services", "namespace": service.namespace(), "name": service.name()});
    let v = json!({"kind": "IPAddress", "apiVersion": "networking.k8s.io/v1",
        "metadata": {"name": ip, "labels": {FAMILY: family(ip), MANAGED_BY: ALLOCATOR}}, "spec": {"parentRef": reference}});
    Object::from_value(v).unwrap_or_default()
}

impl Controller {
    fn report(&self, about: &Object, action: &str, reason: &str, message: String) {
        self.recorder.action(Regarding::object(about), Severity::Warning, reason, action, message);
    }

    /// Reads the object from the server.
    async fn live(&self, resource: &ApiResource, key: &Key) -> Result<Option<Object>, Error> {
        let api = self.context.client.dynamic(resource);
        let api = if key.namespace.is_empty() { api } else { api.namespace(&key.namespace) };
        Ok(api.get_opt(&key.name).await?)
    }

    /// Makes sure that every address of a service has an IPAddress object that refers to it.
    async fn service(&self, key: Key) -> Result<Outcome, Error> {
        let resource = ApiResource::typed::<Service>();
        let Some(entry) = self.services.get(&key) else { return Ok(Outcome::Done) };
        let cached = object(&resource, &entry)?;
        if addresses_of(&cached).iter().all(|ip| self.is_right(&cached, ip)) {
            return Ok(Outcome::Done);
        }
        let Some(service) = self.live(&resource, &key).await? else { return Ok(Outcome::Done) };
        for ip in addresses_of(&service) {
            self.repair(&service, ip).await?;
        }
        Ok(Outcome::Done)
    }

    /// Whether the cache shows a correct allocation.
    fn is_right(&self, service: &Object, ip: &str) -> bool {
        let found = self.addresses.get(&Key::new("", ip)).and_then(|e| object(&addresses(), &e).ok());
        found.is_some_and(|a| is_of(&a, service) && is_labelled(&a))
    }

    async fn repair(&self, service: &Object, ip: &str) -> Result<(), Error> {
        let (kind, service_name) = (family(ip), format!("{}/{}", service.namespace(), service.name()));
        let report = |reason: &str, message: String| self.report(service, "ClusterIPAllocation", reason, message);
        let Ok(address) = ip.parse::<IpAddr>() else { return Ok(()) };
        if !self.ranges.cache().entries().any(|r| r.view.has(address)) {
            let why =
                format!("Cluster IP [{kind}]: {ip} is not within any configured Service CIDR; please recreate service");
            report("ClusterIPOutOfRange", why);
            return Ok(());
        }
        let api = self.context.client.dynamic(&addresses());
        let desired = address_for(service, ip);
        let Some(found) = self.live(&addresses(), &Key::new("", ip)).await? else {
            report("ClusterIPNotAllocated", format!("Cluster IP [{kind}]: {ip} is not allocated; repairing"));
            api.create(&WriteOptions::default(), &desired).await?;
            return Ok(());
        };
        let (resource, namespace, name) = parent(&found);
        if !is_of(&found, service) {
            let other = match resource == SERVICES {
                true => self.live(&ApiResource::typed::<Service>(), &Key::new(namespace, name)).await?,
                false => None,
            };
            let has = other.is_some_and(|o| addresses_of(&o).contains(&ip));
            if has {
                let why =
                    format!("Cluster IP [{kind}]:{ip} was assigned to multiple services; please recreate service");
                report("ClusterIPAlreadyAllocated", why);
                return Ok(());
            }
            let why =
                format!("the ClusterIP [{kind}]: {ip} for Service {service_name} has a wrong reference; repairing");
            report("ClusterIPNotAllocated", why);
        } else if is_labelled(&found) {
            return Ok(());
        }
        client::optional(api.delete(ip, &DeleteOptions::uid(found.uid())).await)?;
        api.create(&WriteOptions::default(), &desired).await?;
        Ok(())
    }

    /// Deletes an allocated address without a service.
    async fn address(&self, key: Key) -> Result<Outcome, Error> {
        let Some(entry) = self.addresses.get(&key).filter(|e| is_managed(e)) else { return Ok(Outcome::Done) };
        let address = object(&addresses(), &entry)?;
        let (resource, namespace, name) = parent(&address);
        let ip = address.name();
        let (reason, message) = if resource == SERVICES {
            match self.live(&ApiResource::typed::<Service>(), &Key::new(namespace, name)).await? {
                Some(s) if addresses_of(&s).contains(&ip) => return Ok(Outcome::Done),
                Some(_) => {
                    let why =
                        format!("IPAddress: {ip} for Service {namespace}/{name} has a wrong reference; cleaning up");
                    ("IPAddressWrongReference", why)
                }
                None => {
                    let since = entry.meta.creation_timestamp.unwrap_or_else(|| self.context.now());
                    let age = Duration::try_from(self.context.now().duration_since(since)).unwrap_or_default();
                    if age < GRACE {
                        return Ok(Outcome::After(GRACE - age));
                    }
                    let why =
                        format!("IPAddress: {ip} for Service {namespace}/{name} appears to have leaked: cleaning up");
                    ("IPAddressNotAllocated", why)
                }
            }
        } else {
            let reference = address.at(&["spec", "parentRef"]).cloned().unwrap_or_default();
            let why = format!(
                "IPAddress {ip} appears to have been modified, not referencing a Service {reference}: cleaning up"
            );
            ("IPAddressNotAllocated", why)
        };
        self.report(&address, "IPAddressAllocation", reason, message);
        let api = self.context.client.dynamic(&addresses());
        client::optional(api.delete(ip, &DeleteOptions::uid(&entry.meta.uid)).await)?;
        Ok(Outcome::Done)
    }
}

fn is_of(address: &Object, service: &Object) -> bool {
    let (resource, namespace, name) = parent(address);
    resource == SERVICES && namespace == service.namespace() && name == service.name()
}

fn is_labelled(address: &Object) -> bool {
    address.label(MANAGED_BY) == Some(ALLOCATOR) && address.label(FAMILY) == Some(family(address.name()))
}
