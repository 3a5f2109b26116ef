//! Which pods stand behind a service, and at which ports: shared by the controllers of endpoints and endpoint slices.

use crate::context::{Context, Error};
use crate::views::{Pod, PodEntry, pods};
use client::informer::or_default;
use client::{ApiResource, Change, Entry, Informer, Key, Outcome, Scope, WorkQueue};
use meta::LabelSelector;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A service, as far as its endpoints depend on it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    pub selector: Option<BTreeMap<String, String>>,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    pub publish_not_ready_addresses: bool,
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<ServicePort>,
    #[serde(deserialize_with = "or_default")]
    pub ip_families: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    pub name: String,
    pub protocol: String,
    pub port: i64,
    /// A number, or the name of a container port.
    pub target_port: Value,
    pub app_protocol: Option<String>,
}

/// A port at which a pod serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    pub name: String,
    pub protocol: String,
    pub port: i64,
    pub app_protocol: Option<String>,
}

impl Service {
    /// `None` when the service has no selector: its endpoints are somebody else's.
    pub fn selector(&self) -> Option<LabelSelector> {
        let s = self.spec.selector.as_ref().filter(|s| !s.is_empty() && self.spec.kind != "ExternalName")?;
        Some(LabelSelector::from_map(s.iter().map(|(k, v)| (k.as_str(), v.as_str()))))
    }

    pub fn is_headless(&self) -> bool {
        self.spec.cluster_ip == "None"
    }

    /// The ports of one pod, in the service's order. A named port that the pod does not have is left out.
    pub fn ports(&self, pod: &Pod) -> Vec<Port> {
        self.spec
            .ports
            .iter()
            .filter_map(|p| {
                let protocol = if p.protocol.is_empty() { "TCP" } else { &p.protocol };
                let port = match &p.target_port {
                    Value::String(name) => match name.parse() {
                        Ok(n) => n,
                        Err(_) => named(pod, name, protocol)?,
                    },
                    Value::Number(n) if n.as_i64() != Some(0) => n.as_i64()?,
                    _ => p.port,
                };
                Some(Port {
                    name: p.name.clone(),
                    protocol: protocol.into(),
                    port,
                    app_protocol: p.app_protocol.clone(),
                })
            })
            .collect()
    }
}

fn named(pod: &Pod, name: &str, protocol: &str) -> Option<i64> {
    let ports = pod.spec.containers.iter().flat_map(|c| &c.ports);
    let same = |p: &str| p == protocol || (p.is_empty() && protocol == "TCP");
    ports.into_iter().find(|p| &*p.name == name && same(&p.protocol)).map(|p| p.container_port)
}

/// Whether a pod may stand behind a service at all: it has an address and has not ended.
pub fn is_candidate(p: &PodEntry) -> bool {
    !p.view.status.pod_ip.is_empty() && !p.view.is_terminal()
}

pub fn services() -> ApiResource {
    ApiResource::of::<k8s_openapi::api::core::v1::Service>()
}

/// Services, pods, and the queue of services to look at: what both controllers are made of.
pub struct Watch {
    pub services: Informer<Service>,
    pub pods: Informer<Pod>,
    pub queue: Arc<WorkQueue<Key>>,
}

impl Watch {
    pub fn new(context: &Context) -> Arc<Self> {
        let w = Arc::new(Self {
            services: context.informers.informer(&services(), &Scope::default()),
            pods: context.informers.informer(&pods(), &Scope::default()),
            queue: Arc::default(),
        });
        let queue = w.queue.clone();
        w.services.on_change(move |c| queue.add(c.key()));
        let weak = Arc::downgrade(&w);
        w.pods.on_change(move |c| {
            if let Some(w) = weak.upgrade() {
                w.pod_changed(c);
            }
        });
        w
    }

    fn pod_changed(&self, c: &Change<Pod>) {
        if let (Some(o), Some(n)) = (&c.old, &c.new)
            && !matters(o, n)
        {
            return;
        }
        let cache = self.services.cache();
        for s in cache.in_namespace(&c.latest().meta.namespace) {
            let Some(selector) = s.view.selector() else { continue };
            let selects = |p: &Option<Arc<PodEntry>>| p.as_ref().is_some_and(|p| selector.matches(|k| p.meta.label(k)));
            if selects(&c.old) || selects(&c.new) {
                self.queue.add(s.key());
            }
        }
    }

    pub async fn synced(&self) {
        self.services.synced().await;
        self.pods.synced().await;
    }

    /// The pods behind a service, by name.
    pub fn behind(&self, service: &Entry<Service>, selector: &LabelSelector) -> Vec<Arc<PodEntry>> {
        let cache = self.pods.cache();
        let all = cache.in_namespace(&service.meta.namespace);
        all.filter(|p| selector.matches(|k| p.meta.label(k)) && is_candidate(p)).cloned().collect()
    }

    /// Works on services until shutdown.
    pub async fn work<F, Fut>(&self, name: &'static str, context: &Context, reconcile: F)
    where
        F: Fn(Key) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, Error>> + Send,
    {
        client::queue::work(name, self.queue.clone(), 5, context.shutdown.clone(), reconcile).await;
    }
}

/// Whether endpoints could differ.
fn matters(o: &PodEntry, n: &PodEntry) -> bool {
    o.meta.labels != n.meta.labels
        || o.meta.is_deleting() != n.meta.is_deleting()
        || o.view.is_ready() != n.view.is_ready()
        || o.view.is_terminal() != n.view.is_terminal()
        || o.view.status.pod_ips != n.view.status.pod_ips
        || o.view.status.pod_ip != n.view.status.pod_ip
        || o.view.spec.node_name != n.view.spec.node_name
        || o.meta.uid != n.meta.uid
}
