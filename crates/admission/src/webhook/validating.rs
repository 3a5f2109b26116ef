//! ValidatingAdmissionWebhook: calls all webhooks concurrently; the first denial is returned.

use super::call::{call, versioned};
use super::hook::Hooks;
use super::invocation::Invocation;
use super::select::select;
use crate::matching::is_exempt;
use crate::plugin::{Remote, Review};
use async_trait::async_trait;
use futures::StreamExt;
use meta::{Clock, Object, Status, Value};
use std::sync::Arc;

const RESOURCE: &str = "validatingwebhookconfigurations";

pub struct Validating {
    hooks: Hooks,
}

impl Validating {
    pub fn new(config: Option<&Value>) -> Result<Self, String> {
        Ok(Self { hooks: Hooks::new(config)? })
    }
}

#[async_trait]
impl Remote for Validating {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionWebhook"
    }

    async fn open(&mut self, _clock: &Arc<dyn Clock>) -> Result<(), String> {
        self.hooks.open()
    }

    fn applies(&self, review: &Review<'_>) -> bool {
        self.hooks.any(review.lookup, RESOURCE) && !is_exempt(review)
    }

    async fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let hooks = self.hooks.get(review.lookup, RESOURCE).await?;
        let mut chosen = Vec::new();
        for hook in hooks.iter() {
            chosen.extend(select(&self.hooks.callers, hook, review, object).await?);
        }
        let calls: Vec<_> = chosen.iter().enumerate().map(|(n, i)| call_and_check(n, i, review, object)).collect();
        let answers: Vec<_> = futures::stream::iter(calls).buffered(AT_A_TIME).collect().await;
        answers.into_iter().collect()
    }
}

/// Maximum number of concurrent calls: each holds a copy of the object.
const AT_A_TIME: usize = 32;

/// `index` is the index among the selected webhooks.
async fn call_and_check(
    index: usize,
    invocation: &Invocation<'_>,
    review: &Review<'_>,
    object: Option<&Object>,
) -> Result<(), Status> {
    let new = versioned(invocation, review, object).await?;
    let old = versioned(invocation, review, review.old).await?;
    match call(invocation, review, new.as_ref(), old.as_ref(), false).await {
        Ok(_) => Ok(()),
        Err(f) => {
            f.under_policy(invocation)?;
            let key = format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}");
            review.host.annotate(&key, &invocation.hook.name);
            Ok(())
        }
    }
}
