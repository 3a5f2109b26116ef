//! EndpointSlices and Endpoints of services that select pods (upstream `endpointslice_controller.go`,
//! `endpoints_controller.go`). Two controllers share the decision which endpoints a service has, and write it in two forms. [`mirror`]
//! copies Endpoints that users write to slices.

mod decide;
pub mod mirror;
mod reconcile;
mod slices;
mod tracker;

use crate::context::{Context, Error, object};
use crate::controller::{Builder, Reconcile};
use crate::views::{Pod, PodEntry, Selector, pods};
use client::{ApiResource, Change, DeleteOptions, Informer, Key, Outcome, WorkQueue, WriteOptions};
use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use meta::Object;
use serde::Deserialize;
use serde_json::json;
use slices::Slices;
use std::sync::Arc;
use std::time::Duration;

pub use decide::{Backend, backends, endpoints_of};

const SERVICE: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const COMPONENT: &str = "endpointslice-controller.k8s.io";

/// The fields of a service that the controller reads from the cache.
/// How long after a change of what was written it is repaired, as upstream. While the cache of services is old, the garbage collector
/// deletes what is written for a service that is gone: without a delay that would be repeated as fast as requests go.
const REPAIR_DELAY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Selectable {
    spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceSpec {
    selector: Option<Selector>,
}

/// The form in which endpoints are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Slices,
    Endpoints,
}

struct Controller {
    form: Form,
    slices: Slices,
    context: Context,
    services: Informer<Selectable>,
    pods: Informer<Pod>,
    written: Informer<()>,
}

impl Form {
    fn resource(self) -> ApiResource {
        match self {
            Self::Slices => ApiResource::typed::<EndpointSlice>(),
            Self::Endpoints => ApiResource::typed::<Endpoints>(),
        }
    }
}

/// Runs until shutdown.
pub async fn run(form: Form, context: Context) {
    let mut builder = Builder::new(&context);
    let c = Arc::new(Controller {
        form,
        services: builder.watch(&ApiResource::typed::<Service>()),
        pods: builder.watch(&pods()),
        written: builder.watch(&form.resource()),
        slices: Slices::new(&mut builder, context.clone(), COMPONENT),
        context,
    });
    builder.enqueue(&c.services);
    builder.handle(&c, &c.pods, Controller::pod_changed);
    builder.on_change(&c.written, |change, queue| {
        // Changes and deletions by others are undone, and leftovers are removed.
        let meta = &change.latest().meta;
        let service = meta.label(SERVICE).unwrap_or(&meta.name).to_owned();
        queue.add_after(Key::new(meta.namespace.clone(), service), REPAIR_DELAY);
    });
    builder.run(2, c).await;
}

impl Controller {
    /// Enqueues the services that select the pod, or did before the change.
    fn pod_changed(&self, change: &Change<Pod>, queue: &WorkQueue<Key>) {
        if let (Some(old), Some(new)) = (&change.old, &change.new)
            && !decide::is_relevant(old, new)
        {
            return;
        }
        for entry in [&change.old, &change.new].into_iter().flatten() {
            for s in self.services.cache().in_namespace(&entry.meta.namespace) {
                if s.view.spec.selector.as_ref().is_some_and(|selector| selector.selects(&entry.meta)) {
                    queue.add(s.key());
                }
            }
        }
    }
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let service = self.services.get(&key);
        let desired = match service.as_ref().and_then(|s| Some((s, s.view.spec.selector.as_ref()?.selector()?))) {
            Some((s, sel)) if !s.meta.is_deleting() => {
                let service = object(&ApiResource::typed::<Service>(), s)?;
                let cache = self.pods.cache();
                let all = cache.in_namespace(&key.namespace).filter(|p| sel.matches(|k| p.meta.label(k)));
                let matching: Vec<Arc<PodEntry>> = all.cloned().collect();
                Some((backends(&service, &matching), service))
            }
            _ => None,
        };
        match self.form {
            Form::Slices => {
                self.slices.write(&key, desired.map(|(b, s)| decide::desired_slices(&s, &b)).unwrap_or_default()).await
            }
            Form::Endpoints => self.write_endpoints(&key, desired).await,
        }?;
        Ok(Outcome::Done)
    }
}

impl Controller {
    async fn write_endpoints(&self, key: &Key, desired: Option<(Vec<Backend>, Object)>) -> Result<(), Error> {
        let resource = self.form.resource();
        let api = self.context.client.dynamic(&resource).namespace(&key.namespace);
        let have = match self.written.get(key) {
            Some(e) => Some(object(&resource, &e)?),
            None => None,
        };
        let Some((backends, service)) = desired else {
            // Only those of this controller are deleted: users write the endpoints of services without a selector.
            let ours = have.filter(|h| h.label("endpoints.kubernetes.io/managed-by") == Some("endpoint-controller"));
            if let (Some(_), None) = (ours, self.services.get(key)) {
                match api.delete(&key.name, &DeleteOptions::default()).await {
                    Err(e) if !e.is_not_found() => return Err(e.into()),
                    _ => {}
                }
            }
            return Ok(());
        };
        let subsets = endpoints_of(&service, &backends);
        let mut o = have.clone().unwrap_or_else(|| {
            let mut o = Object::new(&resource.gvk());
            o.set_name(&key.name);
            o.set_namespace(&key.namespace);
            o
        });
        let mut labels = service.at(&["metadata", "labels"]).cloned().unwrap_or_else(|| json!({}));
        labels["endpoints.kubernetes.io/managed-by"] = "endpoint-controller".into();
        o.metadata_mut().insert("labels".into(), labels);
        match subsets.as_array().is_some_and(|s| s.is_empty()) {
            true => {
                o.remove(&["subsets"]);
            }
            false => o.set(&["subsets"], subsets),
        }
        match have {
            None => {
                api.create(&WriteOptions::default(), &o).await?;
            }
            Some(h) if h != o => {
                api.update(&key.name, &WriteOptions::default(), &o).await?;
            }
            Some(_) => {}
        }
        Ok(())
    }
}
