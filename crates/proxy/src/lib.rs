//! The service proxy: from Services and EndpointSlices to packet rules.
//!
//! [`desired`] is pure: it says which endpoint answers for which port. [`Proxy`] follows both kinds and applies the result,
//! changes that come together as one. Follows kube-proxy's `pkg/proxy`: ready endpoints first; serving but terminating ones only
//! where no ready one is left; node-local policies. Runs as `system:kube-proxy`.
//!
//! Left out: IPv6, load balancer source ranges, health check node ports, topology hints.

mod desired;

use std::sync::Arc;
use std::time::Duration;

use client::{Client, Informer, Informers, Shutdown};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use network::ServiceRules;
use serde::Deserialize;
use tokio::sync::Notify;

pub use desired::desired;

/// Changes that come within this are applied together.
const TOGETHER: Duration = Duration::from_millis(10);
/// Until a refused change is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// How a proxy is set up.
pub struct Options {
    /// As `system:kube-proxy`.
    pub client: Client,
    pub node_name: String,
    pub rules: ServiceRules,
    pub rng: Arc<dyn meta::Rng>,
}

/// A view without fields: the whole object is decoded when rules are made.
#[derive(Deserialize)]
struct Whole {}

pub struct Proxy {
    options: Options,
}

impl Proxy {
    pub fn new(options: Options) -> Self {
        Self { options }
    }

    /// Runs until `shutdown`. The rules stay in force after it.
    pub async fn run(self, shutdown: Shutdown) {
        let Options { client, node_name, rules, rng } = self.options;
        let informers = Informers::new(client, rng, shutdown.clone());
        let services: Informer<Whole> = informers.of::<Service, Whole>();
        let slices: Informer<Whole> = informers.of::<EndpointSlice, Whole>();
        let changed = Arc::new(Notify::new());
        for on_change in [changed.clone(), changed.clone()].into_iter().zip([&services, &slices]) {
            let (changed, informer) = on_change;
            informer.on_change(move |_| changed.notify_one());
        }
        let work = async {
            // Rules made from half of the state would refuse what works.
            services.synced().await;
            slices.synced().await;
            loop {
                let wanted = {
                    let services: Vec<Service> = services.cache().all().filter_map(|e| e.decode().ok()).collect();
                    let slices: Vec<EndpointSlice> = slices.cache().all().filter_map(|e| e.decode().ok()).collect();
                    desired(&services, &slices, &node_name)
                };
                if let Err(error) = rules.apply(&wanted).await {
                    tracing::warn!(%error, "the service rules cannot be applied");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                changed.notified().await;
                tokio::time::sleep(TOGETHER).await;
            }
        };
        shutdown.race(work).await;
    }
}
