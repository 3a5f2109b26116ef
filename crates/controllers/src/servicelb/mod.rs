//! Addresses for services of type LoadBalancer (upstream `cloud-provider/controllers/service`, whose cloud is here a range of addresses,
//! [`Pool`]). The packet rules of every node lead them to the endpoints.
//!
//! A service with a `loadBalancerClass` belongs to another controller. Without a pool, services get no addresses, but finalizers
//! of an earlier start are removed. Invariants: no two services have one address; a service keeps its address as long as it is in the pool,
//! also over restarts, since the status has it.
//!
//! Left out: IPv6.

mod pool;

pub use pool::Pool;

use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use client::informer::or_default;
use client::{ApiResource, Entry, Informer, Key, Outcome, Patch, Recorder, Regarding, WorkQueue, WriteOptions};
use k8s_openapi::api::core::v1::Service;
use meta::Value;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// Keeps a deleted service until its load balancer is removed.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// The fields of a service that the controller reads.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceView {
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    r#type: String,
    load_balancer_class: Option<String>,
    #[serde(rename = "loadBalancerIP")]
    load_balancer_ip: String,
    #[serde(deserialize_with = "or_default")]
    ip_families: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    load_balancer: LoadBalancer,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct LoadBalancer {
    #[serde(deserialize_with = "or_default")]
    ingress: Vec<Value>,
}

impl ServiceView {
    /// Whether the service is for this controller.
    fn wants_balancer(&self) -> bool {
        self.spec.r#type == "LoadBalancer" && self.spec.load_balancer_class.is_none()
    }

    /// The address in the status.
    fn address(&self) -> Option<Ipv4Addr> {
        match self.status.load_balancer.ingress.as_slice() {
            [only] => only["ip"].as_str()?.parse().ok(),
            _ => None,
        }
    }

    /// The status of a service with this address.
    fn ingress(address: Ipv4Addr) -> Vec<Value> {
        vec![json!({"ip": address.to_string(), "ipMode": "VIP"})]
    }
}

struct Controller {
    context: Context,
    pool: Option<Pool>,
    services: Informer<ServiceView>,
    /// Addresses that the cache does not show yet.
    assigned: Mutex<BTreeMap<Key, Ipv4Addr>>,
    /// Services without an address, which try again when one is free.
    waiting: Mutex<BTreeSet<Key>>,
    queue: Arc<WorkQueue<Key>>,
    recorder: Recorder,
}

fn services() -> ApiResource {
    ApiResource::typed::<Service>()
}

/// Runs until shutdown.
pub async fn run(context: Context, pool: Option<Pool>) {
    let mut builder = Builder::new(&context);
    let services = builder.watch::<ServiceView>(&services());
    let controller = Arc::new(Controller {
        pool,
        services: services.clone(),
        assigned: Mutex::default(),
        waiting: Mutex::default(),
        queue: builder.queue(),
        recorder: context.recorder(),
        context,
    });
    builder.handle(&controller, &services, |c, change, queue| {
        let is_balanced = |e: &Option<Arc<Entry<ServiceView>>>| e.as_ref().is_some_and(|e| e.view.wants_balancer());
        if change.new.is_none() {
            c.release(&change.key());
        } else if is_balanced(&change.old) || is_balanced(&change.new) || has_finalizer(change.latest()) {
            queue.add(change.key());
        }
    });
    // One worker: addresses are given away one at a time.
    builder.run(1, controller).await;
}

fn has_finalizer(service: &Entry<ServiceView>) -> bool {
    service.meta.finalizers.iter().any(|f| f == FINALIZER)
}

impl Controller {
    /// Forgets the address of a service, which another may get.
    fn release(&self, key: &Key) {
        self.assigned.lock().remove(key);
        let mut waiting = self.waiting.lock();
        waiting.remove(key);
        waiting.iter().for_each(|key| self.queue.add(key.clone()));
    }

    /// The address for a service: the one that it has or names, else a free one.
    fn choose(&self, pool: Pool, key: &Key, service: &ServiceView) -> Result<Ipv4Addr, String> {
        if !service.spec.ip_families.is_empty() && !service.spec.ip_families.iter().any(|f| f == "IPv4") {
            return Err("load balancers have IPv4 addresses only".to_owned());
        }
        let cache = self.services.cache();
        let assigned = self.assigned.lock();
        let shown =
            cache.entries().filter(|e| e.key() != *key && e.view.wants_balancer()).filter_map(|e| e.view.address());
        let others = assigned.iter().filter(|(other, _)| *other != key).map(|(_, address)| *address);
        let used: BTreeSet<Ipv4Addr> = shown.chain(others).collect();
        let is_free = |address: &Ipv4Addr| pool.contains(*address) && !used.contains(address);
        if !service.spec.load_balancer_ip.is_empty() {
            let named = &service.spec.load_balancer_ip;
            let address = named.parse().ok().filter(is_free);
            return address.ok_or_else(|| format!("the address {named} is not free in {pool}"));
        }
        let own = assigned.get(key).copied().or(service.address()).filter(is_free);
        own.or_else(|| pool.free(&used)).ok_or_else(|| format!("no address is free in {pool}"))
    }

    async fn patch(&self, key: &Key, patch: Value) -> Result<(), Error> {
        let api = self.context.client.dynamic(&services()).namespace(&key.namespace);
        client::optional(api.patch_status(&key.name, &WriteOptions::default(), &Patch::Strategic(patch)).await)?;
        Ok(())
    }

    /// Removes the address of a service that has none any more.
    async fn clean_up(&self, key: &Key, service: &Entry<ServiceView>) -> Result<(), Error> {
        if !has_finalizer(service) {
            return Ok(());
        }
        let about = || Regarding::from_meta("v1", "Service", &service.meta);
        self.recorder.normal(about(), "DeletingLoadBalancer", "Deleting load balancer");
        let finalizers = json!({"uid": &*service.meta.uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER]});
        self.patch(key, json!({"metadata": finalizers, "status": {"loadBalancer": {"ingress": null}}})).await?;
        self.recorder.normal(about(), "DeletedLoadBalancer", "Deleted load balancer");
        self.release(key);
        Ok(())
    }
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(service) = self.services.get(&key) else { return Ok(Outcome::Done) };
        if service.meta.is_deleting() || service.view.spec.r#type != "LoadBalancer" {
            self.clean_up(&key, &service).await?;
            return Ok(Outcome::Done);
        }
        let Some(pool) = self.pool.filter(|_| service.view.wants_balancer()) else { return Ok(Outcome::Done) };
        let about = || Regarding::from_meta("v1", "Service", &service.meta);
        let address = match self.choose(pool, &key, &service.view) {
            Ok(address) => address,
            Err(why) => {
                self.waiting.lock().insert(key);
                let message = format!("failed to ensure load balancer: {why}");
                self.recorder.warning(
                    about(),
                    "SyncLoadBalancerFailed",
                    format!("Error syncing load balancer: {message}"),
                );
                return Err(Error::Waiting(message));
            }
        };
        self.waiting.lock().remove(&key);
        let ingress = ServiceView::ingress(address);
        if service.view.status.load_balancer.ingress == ingress && has_finalizer(&service) {
            self.assigned.lock().remove(&key);
            return Ok(Outcome::Done);
        }
        self.recorder.normal(about(), "EnsuringLoadBalancer", "Ensuring load balancer");
        self.assigned.lock().insert(key.clone(), address);
        let metadata = json!({"uid": &*service.meta.uid, "finalizers": [FINALIZER]});
        self.patch(&key, json!({"metadata": metadata, "status": {"loadBalancer": {"ingress": ingress}}})).await?;
        self.recorder.normal(about(), "EnsuredLoadBalancer", "Ensured load balancer");
        Ok(Outcome::Done)
    }
}
