//! EndpointSlices and Endpoints of services that select pods (upstream `endpointslice_controller.go`,
//! `endpoints_controller.go`). One code for both: what is behind a service is decided once, and written in two forms.

mod decide;

use crate::context::{Context, Error, object};
use crate::views::{Pod, pods};
use client::{ApiResource, DeleteOptions, Informer, Key, Outcome, Scope, WorkQueue, WriteOptions};
use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use meta::{LabelSelector, Object, Value};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

pub use decide::{Backend, backends, endpoints_of, slices_of};

const SERVICE: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const COMPONENT: &str = "endpointslice-controller.k8s.io";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceView {
    spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceSpec {
    selector: Option<serde_json::Map<String, Value>>,
}

/// Which of the two forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Slices,
    Endpoints,
}

struct Controller {
    form: Form,
    context: Context,
    services: Informer<ServiceView>,
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
        context,
    });
    let q = queue.clone();
    c.services.on_change(move |s| q.add(s.key()));
    let (q, services) = (queue.clone(), c.services.clone());
    c.pods.on_change(move |p| {
        for entry in [&p.old, &p.new].into_iter().flatten() {
            let meta = &entry.meta;
            for s in services.cache().in_namespace(&meta.namespace) {
                if selector(&s.view).is_some_and(|sel| sel.matches(|k| meta.label(k))) {
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

fn selector(s: &ServiceView) -> Option<LabelSelector> {
    let map = s.spec.selector.as_ref().filter(|m| !m.is_empty())?;
    Some(LabelSelector::from_map(map.iter().map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default()))))
}

impl Controller {
    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let service = self.services.get(&key);
        let wanted = match service.as_ref().and_then(|s| Some((s, selector(&s.view)?))) {
            Some((s, sel)) if !s.meta.is_deleting() => {
                let service = object(&ApiResource::of::<Service>(), s)?;
                let matching: Vec<Object> = self
                    .pods
                    .cache()
                    .in_namespace(&key.namespace)
                    .filter(|p| sel.matches(|k| p.meta.label(k)))
                    .map(|p| object(&pods(), p))
                    .collect::<Result<_, _>>()?;
                Some((backends(&service, &matching), service))
            }
            _ => None,
        };
        match self.form {
            Form::Slices => self.write_slices(&key, wanted).await,
            Form::Endpoints => self.write_endpoints(&key, wanted).await,
        }?;
        Ok(Outcome::Done)
    }

    async fn write_slices(&self, key: &Key, wanted: Option<(Vec<Backend>, Object)>) -> Result<(), Error> {
        let resource = self.form.resource();
        let api = self.context.client.dynamic(&resource).namespace(&key.namespace);
        let mut have: Vec<Object> = self
            .written
            .cache()
            .in_namespace(&key.namespace)
            .filter(|e| e.meta.label(SERVICE) == Some(&*key.name) && e.meta.label(MANAGED_BY) == Some(COMPONENT))
            .map(|e| object(&resource, e))
            .collect::<Result<_, _>>()?;
        have.sort_by(|a, b| a.name().cmp(b.name()));
        let mut have = have.into_iter();
        let wanted = wanted.map(|(b, s)| slices_of(&s, &b)).unwrap_or_default();
        for content in wanted {
            let mut o = have.next().unwrap_or_else(|| {
                let mut o = Object::new(&resource.gvk());
                o.set_namespace(&key.namespace);
                o.metadata_mut().insert("generateName".into(), format!("{}-", key.name).into());
                o
            });
            let before = o.clone();
            for (k, v) in content.0 {
                if k == "metadata" {
                    for (mk, mv) in v.as_object().into_iter().flatten() {
                        o.metadata_mut().insert(mk.clone(), mv.clone());
                    }
                } else {
                    o.0.insert(k, v);
                }
            }
            if o.name().is_empty() {
                api.create(&WriteOptions::default(), &o).await?;
            } else if o != before {
                let name = o.name().to_owned();
                api.update(&name, &WriteOptions::default(), &o).await?;
            }
        }
        for o in have {
            match api.delete(o.name(), &DeleteOptions::default()).await {
                Err(e) if !e.is_not_found() => return Err(e.into()),
                _ => {}
            }
        }
        Ok(())
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
