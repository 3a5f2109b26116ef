//! Addresses for services of type LoadBalancer (upstream `cloud-provider/controllers/service`, whose cloud is here a range of addresses of
//! each family, [`Pool`]). The packet rules of every node lead them to the endpoints.
//!
//! A service gets an address of each of its families that the pool has.
//!
//! A service with a `loadBalancerClass` belongs to another controller. Without a pool, services get no addresses, but finalizers
//! of an earlier start are removed. Invariants: no two services have one address; a service keeps its address as long as it is in the pool,
//! also over restarts, since the status has it.

mod pool;

pub use pool::Pool;

use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use client::informer::or_default;
use client::{ApiResource, Entry, Informer, Key, Outcome, Patch, Recorder, Regarding, WorkQueue, WriteOptions};
use k8s_openapi::api::core::v1::Service;
use meta::Value;
use parking_lot::Mutex;
use pool::family;
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
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

    /// The addresses in the status.
    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.status.load_balancer.ingress.iter().filter_map(|ingress| ingress["ip"].as_str()?.parse().ok())
    }

    /// The status of a service with these addresses.
    fn ingress(addresses: &[IpAddr]) -> Vec<Value> {
        addresses.iter().map(|address| json!({"ip": address.to_string(), "ipMode": "VIP"})).collect()
    }
}

struct Controller {
    context: Context,
    pool: Option<Pool>,
    services: Informer<ServiceView>,
    /// Addresses that the cache does not show yet.
    assigned: Mutex<BTreeMap<Key, Vec<IpAddr>>>,
    /// Services that lack an address, which try again when one is free.
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
    /// Forgets the addresses of a service, which another may get.
    fn release(&self, key: &Key) {
        self.assigned.lock().remove(key);
        self.waiting.lock().remove(key);
        self.wake();
    }

    /// Has the services that lack an address try again.
    fn wake(&self) {
        self.waiting.lock().iter().for_each(|key| self.queue.add(key.clone()));
    }

    /// The addresses for a service, one of each of its families that the pool has: those that it has or names, else free ones.
    fn choose(&self, pool: Pool, key: &Key, service: &ServiceView) -> Result<Vec<IpAddr>, String> {
        let families: Vec<&str> = match service.spec.ip_families.as_slice() {
            [] => vec![pool.first_family()],
            all => all.iter().map(String::as_str).filter(|name| pool.of(name).is_some()).collect(),
        };
        if families.is_empty() {
            return Err(format!("{pool} has no addresses of {}", service.spec.ip_families.join(" or ")));
        }
        let cache = self.services.cache();
        let assigned = self.assigned.lock();
        let shown =
            cache.entries().filter(|e| e.key() != *key && e.view.wants_balancer()).flat_map(|e| e.view.addresses());
        let others = assigned.iter().filter(|(other, _)| *other != key).flat_map(|(_, addresses)| addresses);
        let used: BTreeSet<IpAddr> = shown.chain(others.copied()).collect();
        let is_free = |address: &IpAddr| pool.contains(*address) && !used.contains(address);
        let named = match service.spec.load_balancer_ip.as_str() {
            "" => None,
            text => {
                let address = text.parse().ok().filter(is_free);
                let address = address.ok_or_else(|| format!("the address {text} is not free in {pool}"))?;
                if !families.contains(&family(address)) {
                    return Err(format!("the address {address} is not of a family of the service"));
                }
                Some(address)
            }
        };
        let own: Vec<IpAddr> = match assigned.get(key) {
            Some(addresses) => addresses.clone(),
            None => service.addresses().collect(),
        };
        let choose = |name: &&str| {
            let of_family = |address: &IpAddr| family(*address) == *name;
            let kept = || own.iter().copied().filter(of_family).find(is_free);
            let range = pool.of(name).ok_or_else(|| format!("{pool} has no addresses of {name}"))?;
            let chosen = named.filter(of_family).or_else(kept).or_else(|| range.free(&used));
            chosen.ok_or_else(|| format!("no address is free in {range}"))
        };
        families.iter().map(choose).collect()
    }

    async fn patch(&self, key: &Key, patch: Value) -> Result<(), Error> {
        let api = self.context.client.dynamic(&services()).namespace(&key.namespace);
        client::optional(api.patch_status(&key.name, &WriteOptions::default(), &Patch::Strategic(patch)).await)?;
        Ok(())
    }

    /// Removes the addresses of a service that has none any more.
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
        let addresses = match self.choose(pool, &key, &service.view) {
            Ok(addresses) => addresses,
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
        let ingress = ServiceView::ingress(&addresses);
        if service.view.status.load_balancer.ingress == ingress && has_finalizer(&service) {
            self.assigned.lock().remove(&key);
            return Ok(Outcome::Done);
        }
        self.recorder.normal(about(), "EnsuringLoadBalancer", "Ensuring load balancer");
        let gives_back = service.view.addresses().any(|address| !addresses.contains(&address));
        self.assigned.lock().insert(key.clone(), addresses);
        let metadata = json!({"uid": &*service.meta.uid, "finalizers": [FINALIZER]});
        self.patch(&key, json!({"metadata": metadata, "status": {"loadBalancer": {"ingress": ingress}}})).await?;
        self.recorder.normal(about(), "EnsuredLoadBalancer", "Ensured load balancer");
        if gives_back {
            self.wake();
        }
        Ok(Outcome::Done)
    }
}
