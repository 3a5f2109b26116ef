//! What every namespace has: its `default` service account (upstream `serviceaccounts_controller.go`) and the cluster's CA
//! (`root-ca-cert-publisher`). One code: an object that is made where it is missing and, if asked, kept as it was made.

use crate::context::{Context, Error};
use client::{ApiResource, Informer, Key, Outcome, Scope, WorkQueue, WriteOptions};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use meta::Object;
use serde_json::{Value, json};
use std::sync::Arc;

/// What a namespace is to have.
#[derive(Clone)]
pub struct Wish {
    pub component: &'static str,
    pub resource: ApiResource,
    pub name: &'static str,
    /// Beside the metadata.
    pub content: Value,
    /// Changes by others are undone.
    pub kept: bool,
}

/// The service account that pods run as when they name none.
pub fn default_service_account() -> Wish {
    Wish {
        component: "service-account-controller",
        resource: ApiResource::of::<ServiceAccount>(),
        name: "default",
        content: json!({}),
        kept: false,
    }
}

/// The certificate that pods trust the API server by.
pub fn root_ca(pem: &str) -> Wish {
    Wish {
        component: "root-ca-cert-publisher",
        resource: ApiResource::of::<ConfigMap>(),
        name: "kube-root-ca.crt",
        content: json!({"data": {"ca.crt": pem}}),
        kept: true,
    }
}

struct Controller {
    wish: Wish,
    context: Context,
    namespaces: Informer<()>,
    objects: Informer<()>,
}

/// Runs until shutdown.
pub async fn run(wish: Wish, context: Context) {
    let queue: Arc<WorkQueue<Key>> = Arc::default();
    let c = Arc::new(Controller {
        namespaces: context.informers.informer(&ApiResource::of::<Namespace>(), &Scope::default()),
        // Of a kind that may have many objects, only those of this name are of interest.
        objects: context.informers.informer(
            &wish.resource,
            &Scope { field_selector: format!("metadata.name={}", wish.name), ..Scope::default() },
        ),
        wish,
        context,
    });
    let q = queue.clone();
    c.namespaces.on_change(move |n| q.add(n.key()));
    let q = queue.clone();
    c.objects.on_change(move |o| q.add(Key::new("", o.key().namespace.clone())));
    c.namespaces.synced().await;
    c.objects.synced().await;
    let (component, shutdown) = (c.wish.component, c.context.shutdown.clone());
    client::queue::work(component, queue, 1, shutdown, move |key| {
        let c = c.clone();
        async move { c.reconcile(key).await }
    })
    .await;
}

impl Controller {
    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(ns) = self.namespaces.get(&key) else { return Ok(Outcome::Done) };
        if ns.meta.is_deleting() {
            return Ok(Outcome::Done);
        }
        let api = self.context.client.dynamic(&self.wish.resource).namespace(&key.name);
        let known = self.objects.get(&Key::new(key.name.clone(), self.wish.name));
        let mut o = Object::from_value(self.wish.content.clone()).unwrap_or_default();
        o.set_gvk(&self.wish.resource.gvk());
        o.set_name(self.wish.name);
        o.set_namespace(&key.name);
        match known {
            None => match api.create(&WriteOptions::default(), &o).await {
                Ok(_) => {}
                // Somebody else was faster, or the namespace is going.
                Err(e) if e.is_already_exists() || e.is_not_found() || e.is_forbidden() => {}
                Err(e) => return Err(e.into()),
            },
            Some(entry) if self.wish.kept => {
                let mut live: Object = entry.decode()?;
                let same = o.0.iter().filter(|(k, _)| !matches!(k.as_str(), "metadata" | "kind" | "apiVersion"));
                if same.clone().any(|(k, v)| live.get(k) != Some(v)) {
                    for (k, v) in same {
                        live.0.insert(k.clone(), v.clone());
                    }
                    live.set_gvk(&self.wish.resource.gvk());
                    api.update(self.wish.name, &WriteOptions::default(), &live).await?;
                }
            }
            Some(_) => {}
        }
        Ok(Outcome::Done)
    }
}
