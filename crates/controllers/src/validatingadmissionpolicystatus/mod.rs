//! Type checks of the expressions of validating admission policies (upstream `pkg/controller/validatingadmissionpolicystatus`). The
//! results are warnings in the status of the policy; they do not change what it does.
//!
//! `types` derives types from the schemas of built-in kinds, `custom` from those of custom resources; `decide` checks. A policy is checked
//! once for each generation; a definition that is created later changes nothing.

mod custom;
mod decide;

use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use client::{ApiResource, Key, Outcome, WriteOptions};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use serde_json::json;
use std::sync::Arc;

struct Controller {
    context: Context,
    resource: ApiResource,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let resource = ApiResource::typed::<ValidatingAdmissionPolicy>();
    let policies = builder.watch::<()>(&resource);
    builder.enqueue(&policies);
    builder.run(1, Arc::new(Controller { context, resource })).await;
}

impl Reconcile for Controller {
    type Key = Key;

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
