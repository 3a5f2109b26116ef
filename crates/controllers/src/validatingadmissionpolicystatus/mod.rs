//! What the types of the objects say about the expressions of a policy (upstream
//! `pkg/controller/validatingadmissionpolicystatus`): warnings in its status, which change nothing about what it does.
//!
//! `types` makes types of the schemas of built-in kinds, `custom` those of others, `decide` checks. A policy is checked when it was
//! written: a definition that comes later changes nothing.

mod custom;
mod decide;
mod types;

use crate::context::{Context, Error};
use client::{ApiResource, Informer, Key, Outcome, Scope, WorkQueue, WriteOptions};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use serde_json::json;
use std::sync::Arc;

struct Controller {
    context: Context,
    resource: ApiResource,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let resource = ApiResource::of::<ValidatingAdmissionPolicy>();
    let policies: Informer<()> = context.informers.informer(&resource, &Scope::default());
    let queue: Arc<WorkQueue<Key>> = Arc::default();
    let q = queue.clone();
    policies.on_change(move |p| q.add(p.key()));
    policies.synced().await;
    let shutdown = context.shutdown.clone();
    let c = Arc::new(Controller { context, resource });
    client::queue::work("validatingadmissionpolicy-status", queue, 1, shutdown, move |key| {
        let c = c.clone();
        async move { c.reconcile(key).await }
    })
    .await;
}

impl Controller {
    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let api = self.context.client.dynamic(&self.resource);
        let Some(mut live) = api.get_opt(&key.name).await? else { return Ok(Outcome::Done) };
        let generation = live.generation();
        if live.int_at(&["status", "observedGeneration"]).is_some_and(|seen| seen >= generation) {
            return Ok(Outcome::Done);
        }
        let custom = custom::Custom::read(&self.context, decide::versions(&live)).await;
        let warnings = decide::warnings(&live, &custom);
        let checking = if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
        live.set(&["status", "observedGeneration"], generation);
        live.set(&["status", "typeChecking"], checking);
        api.update_status(&key.name, &WriteOptions::default(), &live).await?;
        Ok(Outcome::Done)
    }
}
