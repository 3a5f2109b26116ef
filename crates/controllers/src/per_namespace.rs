//! Objects that every namespace has: its `default` service account (upstream `serviceaccounts_controller.go`) and the cluster's CA
//! (`root-ca-cert-publisher`). One controller for both creates an object where it is missing and, if so configured, undoes changes to it.

use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use crate::meters;
use client::{ApiResource, Informer, Key, Outcome, Scope, WriteOptions};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use meta::Object;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::Instant;

const DESCRIPTION: &str = "kubernetes.io/description";

/// The description of the CA certificate; clients may compare it with upstream's.
const ROOT_CA_DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

/// An object that each namespace has.
#[derive(Clone)]
pub struct Desired {
    pub resource: ApiResource,
    pub name: &'static str,
    /// The fields beside the metadata.
    pub content: Value,
    /// What the object is for, as its annotation says; empty without.
    pub description: &'static str,
    /// Whether changes by others are undone.
    pub kept: bool,
}

/// The service account that pods run as when they name none.
pub fn default_service_account() -> Desired {
    Desired {
        resource: ApiResource::typed::<ServiceAccount>(),
        name: "default",
        content: json!({}),
        description: "",
        kept: false,
    }
}

/// The CA certificate with which pods verify the API server.
pub fn root_ca(pem: &str) -> Desired {
    Desired {
        resource: ApiResource::typed::<ConfigMap>(),
        name: "kube-root-ca.crt",
        content: json!({"data": {"ca.crt": pem}}),
        description: ROOT_CA_DESCRIPTION,
        kept: true,
    }
}

struct Controller {
    desired: Desired,
    context: Context,
    namespaces: Informer<()>,
    objects: Informer<()>,
}

/// Runs until shutdown.
pub async fn run(desired: Desired, context: Context) {
    let mut builder = Builder::new(&context);
    let namespaces = builder.watch::<()>(&ApiResource::typed::<Namespace>());
    // The kind may have many objects; only those of this name matter.
    let scope = Scope { field_selector: format!("metadata.name={}", desired.name), ..Scope::default() };
    let objects = builder.watch_scope::<()>(&desired.resource, &scope);
    builder.enqueue(&namespaces);
    builder.on_change(&objects, |o, queue| queue.add(Key::new("", o.key().namespace)));
    builder.run(1, Arc::new(Controller { desired, context, namespaces, objects })).await;
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(ns) = self.namespaces.get(&key) else { return Ok(Outcome::Done) };
        if ns.meta.is_deleting() {
            return Ok(Outcome::Done);
        }
        let begun = Instant::now();
        let result = self.ensure(&key).await;
        if self.desired.kept {
            let code = match &result {
                Ok(()) => "200".to_owned(),
                Err(client::Error::Api(status)) => status.code.to_string(),
                Err(_) => "500".to_owned(),
            };
            meters::count(&meters::ROOT_CA_SYNCS, &[&code]);
            meters::took(&meters::ROOT_CA_SECONDS, &[&code], begun.elapsed());
        }
        result?;
        Ok(Outcome::Done)
    }
}

impl Controller {
    /// Creates the object of a namespace, or undoes changes to it.
    async fn ensure(&self, key: &Key) -> Result<(), client::Error> {
        let api = self.context.client.dynamic(&self.desired.resource).namespace(&key.name);
        let known = self.objects.get(&Key::new(key.name.clone(), self.desired.name));
        let mut o = Object::from_value(self.desired.content.clone()).unwrap_or_default();
        o.set_gvk(&self.desired.resource.gvk());
        o.set_name(self.desired.name);
        o.set_namespace(&key.name);
        if !self.desired.description.is_empty() {
            o.set_annotation(DESCRIPTION, self.desired.description);
        }
        match known {
            None => match api.create(&WriteOptions::default(), &o).await {
                Ok(_) => {}
                // Another client was faster, or the namespace is being deleted.
                Err(e) if e.is_already_exists() || e.is_not_found() || e.is_forbidden() => {}
                Err(e) => return Err(e),
            },
            Some(entry) if self.desired.kept => {
                let mut live: Object = entry.decode()?;
                let same = o.0.iter().filter(|(k, _)| !matches!(k.as_str(), "metadata" | "kind" | "apiVersion"));
                // Another description than this one may stay.
                let is_described =
                    self.desired.description.is_empty() || live.annotation(DESCRIPTION).is_some_and(|d| !d.is_empty());
                if !is_described || same.clone().any(|(k, v)| live.get(k) != Some(v)) {
                    for (k, v) in same {
                        live.0.insert(k.clone(), v.clone());
                    }
                    if !self.desired.description.is_empty() {
                        live.set_annotation(DESCRIPTION, self.desired.description);
                    }
                    live.set_gvk(&self.desired.resource.gvk());
                    api.update(self.desired.name, &WriteOptions::default(), &live).await?;
                }
            }
            Some(_) => {}
        }
        Ok(())
    }
}
