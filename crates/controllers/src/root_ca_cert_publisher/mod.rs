//! Every namespace has the config map `kube-root-ca.crt`, by which pods know the API server (upstream `certificates/rootcacertpublisher`).

use crate::context::{Context, Error};
use client::{ApiResource, Informer, Key, Outcome, Scope, WorkQueue, WriteOptions};
use meta::Object;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

const NAME: &str = "kube-root-ca.crt";
const KEY: &str = "ca.crt";
const ABOUT: &str = "kubernetes.io/description";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
    endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across \
    distributions of Kubernetes clusters.";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Data {
    data: BTreeMap<String, String>,
}

fn maps() -> ApiResource {
    ApiResource::of::<k8s_openapi::api::core::v1::ConfigMap>()
}

/// Publishes `ca` (PEM) until shutdown.
pub async fn run(context: Context, ca: String) {
    let namespaces: Informer<()> =
        context.informers.informer(&ApiResource::of::<k8s_openapi::api::core::v1::Namespace>(), &Scope::default());
    // Only the maps of this name: all the others are nobody's business here.
    let scope = Scope { field_selector: format!("metadata.name={NAME}"), ..Scope::default() };
    let held: Informer<Data> = context.informers.informer(&maps(), &scope);
    let queue: Arc<WorkQueue<Key>> = Arc::default();
    let q = queue.clone();
    namespaces.on_change(move |c| {
        if c.new.is_some() {
            q.add(Key::new("", c.latest().meta.name.clone()));
        }
    });
    let q = queue.clone();
    held.on_change(move |c| q.add(Key::new("", c.latest().meta.namespace.clone())));
    namespaces.synced().await;
    held.synced().await;
    let (shutdown, ca) = (context.shutdown.clone(), Arc::new(ca));
    client::queue::work("root-ca-cert-publisher", queue, 1, shutdown, move |key| {
        let (namespaces, held, client, ca) = (namespaces.clone(), held.clone(), context.client.clone(), ca.clone());
        async move {
            if namespaces.get(&key).is_none_or(|n| n.meta.is_deleting()) {
                return Ok::<_, Error>(Outcome::Done);
            }
            let api = client.dynamic(&maps()).namespace(&key.name);
            let written = match held.get(&Key::new(key.name.clone(), NAME)) {
                Some(e) if e.view.data.len() == 1 && e.view.data.get(KEY) == Some(&*ca) => return Ok(Outcome::Done),
                Some(e) => {
                    let mut m: Object = e.decode()?;
                    m.set_gvk(&maps().gvk());
                    m.set(&["data"], json!({KEY: &*ca}));
                    m.set_annotation(ABOUT, DESCRIPTION);
                    api.update(NAME, &WriteOptions::default(), &m).await
                }
                None => {
                    let mut m = Object::new(&maps().gvk());
                    m.set_name(NAME);
                    m.set_namespace(&key.name);
                    m.set(&["data"], json!({KEY: &*ca}));
                    m.set_annotation(ABOUT, DESCRIPTION);
                    api.create(&WriteOptions::default(), &m).await
                }
            };
            match written {
                Err(e) if !e.is_already_exists() && !e.is_namespace_terminating() && !e.is_not_found() => Err(e.into()),
                _ => Ok(Outcome::Done),
            }
        }
    })
    .await;
}
