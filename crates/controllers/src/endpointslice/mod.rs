//! Endpoint slices: where each service with a selector is served (upstream `pkg/controller/endpointslice`).

mod slices;

use crate::context::{Context, Error, object};
use crate::service_pods::{Service, Watch, services};
use client::{ApiResource, DeleteOptions, Entry, Informer, Key, Outcome, Scope, WriteOptions, optional};
use slices::{Change, Group, endpoint, plan};
use std::collections::BTreeMap;
use std::sync::Arc;

pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub const MANAGER: &str = "endpointslice-controller.k8s.io";
pub const HEADLESS: &str = "service.kubernetes.io/headless";
const ZONE: &str = "topology.kubernetes.io/zone";

struct Controller {
    context: Context,
    watch: Arc<Watch>,
    slices: Informer<()>,
    nodes: Informer<()>,
}

fn slices_resource() -> ApiResource {
    ApiResource::of::<k8s_openapi::api::discovery::v1::EndpointSlice>()
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let watch = Watch::new(&context);
    let scope = Scope { label_selector: format!("{MANAGED_BY}={MANAGER}"), ..Scope::default() };
    let slices: Informer<()> = context.informers.informer(&slices_resource(), &scope);
    slices.index("service", |s| {
        s.meta.label(SERVICE_NAME).map(|n| format!("{}/{n}", s.meta.namespace)).into_iter().collect()
    });
    let queue = watch.queue.clone();
    slices.on_change(move |c| {
        for e in [&c.old, &c.new].into_iter().flatten() {
            if let Some(name) = e.meta.label(SERVICE_NAME) {
                queue.add(Key::new(e.meta.namespace.clone(), name));
            }
        }
    });
    let nodes = context.informers.informer(&ApiResource::of::<k8s_openapi::api::core::v1::Node>(), &Scope::default());
    let c = Arc::new(Controller { watch, slices, nodes, context });
    c.watch.synced().await;
    c.slices.synced().await;
    c.nodes.synced().await;
    let (watch, context) = (c.watch.clone(), c.context.clone());
    watch
        .work("endpointslice", &context, move |key| {
            let c = c.clone();
            async move { c.reconcile(key).await }
        })
        .await;
}

impl Controller {
    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let api = self.context.client.dynamic(&slices_resource()).namespace(&key.namespace);
        let service = self.watch.services.get(&key);
        let held: Vec<Arc<Entry<()>>> = self.slices.cache().by_index("service", &key.to_string()).cloned().collect();
        let Some((service, selector)) = service.and_then(|s| Some((s.clone(), s.view.selector()?))) else {
            // Without a service they are nobody's.
            for s in held {
                optional(api.delete(&s.meta.name, &DeleteOptions::uid(&s.meta.uid)).await)?;
            }
            return Ok(Outcome::Done);
        };
        let owner = object(&services(), &service)?;
        let mut existing = Vec::new();
        for s in held.iter().filter(|s| !s.meta.is_deleting()) {
            existing.push(object(&slices_resource(), s)?);
        }
        for change in plan(&owner, self.groups(&service, &selector), existing) {
            match change {
                Change::Create(s) => {
                    match api.create(&WriteOptions::default(), &s).await {
                        Err(e) if e.is_namespace_terminating() => {}
                        other => {
                            other?;
                        }
                    };
                }
                Change::Update(s) => {
                    api.update(s.name(), &WriteOptions::default(), &s).await?;
                }
                Change::Delete(s) => {
                    optional(api.delete(s.name(), &DeleteOptions::uid(s.uid())).await)?;
                }
            }
        }
        Ok(Outcome::Done)
    }

    /// The endpoints of a service by address family and ports.
    fn groups(&self, service: &Entry<Service>, selector: &meta::LabelSelector) -> BTreeMap<Group, Vec<meta::Value>> {
        let families: Vec<&str> = match service.view.spec.ip_families.as_slice() {
            [] => vec!["IPv4"],
            given => given.iter().map(String::as_str).collect(),
        };
        let mut groups: BTreeMap<Group, Vec<meta::Value>> = BTreeMap::new();
        for pod in self.watch.behind(service, selector) {
            let zone = self.nodes.get(&Key::new("", &*pod.view.spec.node_name));
            let zone = zone.as_ref().and_then(|n| n.meta.label(ZONE));
            for family in &families {
                if let Some(e) = endpoint(&pod, service, family, zone) {
                    let ports = service.view.ports(&pod.view);
                    groups.entry(Group { family: (*family).into(), ports }).or_default().push(e);
                }
            }
        }
        // A service without endpoints has one empty slice, so that its readers know that somebody looked.
        for f in families {
            if !groups.keys().any(|g| g.family == f) {
                groups.insert(Group { family: f.into(), ports: Vec::new() }, Vec::new());
            }
        }
        groups
    }
}
