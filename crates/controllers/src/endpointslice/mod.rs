//! EndpointSlices and Endpoints of services that select pods (upstream `endpointslice_controller.go`,
//! `endpoints_controller.go`). One code for both: what is behind a service is decided once, and written in two forms. What others
//! write as Endpoints is copied to slices by [`mirror`].

mod decide;
pub mod mirror;
mod reconcile;
mod slices;
mod tracker;

use crate::context::{Context, Error, object};
use crate::views::{Pod, PodEntry, Selects, pods};
use client::{ApiResource, DeleteOptions, Informer, Key, Outcome, Scope, WorkQueue, WriteOptions};
use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use meta::Object;
use serde::Deserialize;
use serde_json::json;
use slices::Slices;
use std::sync::Arc;

pub use decide::{Backend, backends, endpoints_of};

const SERVICE: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const COMPONENT: &str = "endpointslice-controller.k8s.io";

/// A service, as far as its selector goes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Selectable {
    spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceSpec {
    selector: Option<Selects>,
}

/// Which of the two forms.
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
            Self::Slices => ApiResource::of::<EndpointSlice>(),
            Self::Endpoints => ApiResource::of::<Endpoints>(),
        }
    }

    fn component(self) -> &'static str {
        match self {
            Self::Slices => "endpointslice-controller",
            Self::Endpoints => "endpoint-controller",
        }
    }
}

/// Runs until shutdown.
pub async fn run(form: Form, context: Context) {
    let queue: Arc<WorkQueue<Key>> = Arc::default();
    let c = Arc::new(Controller {
        form,
        services: context.informers.informer(&ApiResource::of::<Service>(), &Scope::default()),
        pods: context.informers.informer(&pods(), &Scope::default()),
        written: context.informers.informer(&form.resource(), &Scope::default()),
        slices: Slices::new(context.clone(), COMPONENT),
        context,
    });
    let q = queue.clone();
    c.services.on_change(move |s| q.add(s.key()));
    let (q, services) = (queue.clone(), c.services.clone());
    c.pods.on_change(move |p| {
        if let (Some(old), Some(new)) = (&p.old, &p.new)
            && !decide::is_relevant(old, new)
        {
            return;
        }
        for entry in [&p.old, &p.new].into_iter().flatten() {
            let meta = &entry.meta;
            for s in services.cache().in_namespace(&meta.namespace) {
                if s.view.spec.selector.as_ref().is_some_and(|sel| sel.selects(meta)) {
                    q.add(s.key());
                }
            }
        }
    });
    let q = queue.clone();
    c.written.on_change(move |w| {
        // What others change or remove is looked at again; so is what was left behind.
        let meta = &w.latest().meta;
        let service = meta.label(SERVICE).unwrap_or(&meta.name).to_owned();
        q.add(Key::new(meta.namespace.clone(), service));
    });
    c.services.synced().await;
    c.pods.synced().await;
    c.written.synced().await;
    let (component, shutdown) = (form.component(), c.context.shutdown.clone());
    client::queue::work(component, queue, 2, shutdown, move |key| {
        let c = c.clone();
        async move { c.reconcile(key).await }
    })
    .await;
}

impl Controller {
    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let service = self.services.get(&key);
        let wanted = match service.as_ref().and_then(|s| Some((s, s.view.spec.selector.as_ref()?.selector()?))) {
            Some((s, sel)) if !s.meta.is_deleting() => {
                let service = object(&ApiResource::of::<Service>(), s)?;
                let cache = self.pods.cache();
                let all = cache.in_namespace(&key.namespace).filter(|p| sel.matches(|k| p.meta.label(k)));
                let matching: Vec<Arc<PodEntry>> = all.cloned().collect();
                Some((backends(&service, &matching), service))
            }
            _ => None,
        };
        match self.form {
            Form::Slices => {
                self.slices.write(&key, wanted.map(|(b, s)| decide::desired_slices(&s, &b)).unwrap_or_default()).await
            }
            Form::Endpoints => self.write_endpoints(&key, wanted).await,
        }?;
        Ok(Outcome::Done)
    }

    async fn write_endpoints(&self, key: &Key, wanted: Option<(Vec<Backend>, Object)>) -> Result<(), Error> {
        let resource = self.form.resource();
        let api = self.context.client.dynamic(&resource).namespace(&key.namespace);
        let have = match self.written.get(key) {
            Some(e) => Some(object(&resource, &e)?),
            None => None,
        };
        let Some((backends, service)) = wanted else {
            // Only ours are removed: a service without a selector has endpoints that somebody else writes.
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
