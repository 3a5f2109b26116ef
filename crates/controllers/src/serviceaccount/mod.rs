//! Every namespace has a service account `default` (upstream `serviceaccounts_controller.go`).

use crate::context::{Context, Error};
use client::{ApiResource, Key, Outcome, Scope, WorkQueue, WriteOptions};
use meta::Object;
use std::sync::Arc;

const NAME: &str = "default";

fn accounts() -> ApiResource {
    ApiResource::of::<k8s_openapi::api::core::v1::ServiceAccount>()
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let namespaces = context
        .informers
        .informer::<()>(&ApiResource::of::<k8s_openapi::api::core::v1::Namespace>(), &Scope::default());
    let held = context.informers.informer::<()>(&accounts(), &Scope::default());
    let queue: Arc<WorkQueue<Key>> = Arc::default();
    let q = queue.clone();
    namespaces.on_change(move |c| {
        if c.new.is_some() {
            q.add(Key::new("", c.latest().meta.name.clone()));
        }
    });
    let q = queue.clone();
    held.on_change(move |c| {
        if c.new.is_none() && &*c.latest().meta.name == NAME {
            q.add(Key::new("", c.latest().meta.namespace.clone()));
        }
    });
    namespaces.synced().await;
    held.synced().await;
    let shutdown = context.shutdown.clone();
    client::queue::work("serviceaccount", queue, 1, shutdown, move |key| {
        let (namespaces, held, client) = (namespaces.clone(), held.clone(), context.client.clone());
        async move {
            let gone = namespaces.get(&key).is_none_or(|n| n.meta.is_deleting());
            if gone || held.get(&Key::new(key.name.clone(), NAME)).is_some() {
                return Ok::<_, Error>(Outcome::Done);
            }
            let mut account = Object::new(&accounts().gvk());
            account.set_name(NAME);
            account.set_namespace(&key.name);
            match client.dynamic(&accounts()).namespace(&key.name).create(&WriteOptions::default(), &account).await {
                Err(e) if !e.is_already_exists() && !e.is_namespace_terminating() && !e.is_not_found() => Err(e.into()),
                _ => Ok(Outcome::Done),
            }
        }
    })
    .await;
}
