//! Tokens that have ended go.

use super::{NAMESPACE, Token, tokens};
use crate::context::{Context, Error};
use client::{ApiResource, DeleteOptions, Informer, Key, Outcome, WorkQueue};
use k8s_openapi::api::core::v1::Secret;
use std::sync::Arc;
use std::time::Duration;

struct Controller {
    context: Context,
    tokens: Informer<Token>,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let queue: Arc<WorkQueue<Key>> = Arc::default();
    let c = Arc::new(Controller { tokens: tokens(&context.informers), context });
    let q = queue.clone();
    c.tokens.on_change(move |change| q.add(change.key()));
    c.tokens.synced().await;
    let shutdown = c.context.shutdown.clone();
    client::queue::work("token-cleaner", queue, 1, shutdown, move |key| {
        let c = c.clone();
        async move { c.reconcile(key).await }
    })
    .await;
}

impl Controller {
    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(token) = self.tokens.get(&key).filter(|t| !t.meta.is_deleting()) else { return Ok(Outcome::Done) };
        let Some(end) = token.view.ends() else { return Ok(Outcome::Done) };
        let left = end.duration_since(self.context.now());
        if let Ok(left) = Duration::try_from(left)
            && !left.is_zero()
        {
            return Ok(Outcome::After(left));
        }
        let api = self.context.client.dynamic(&ApiResource::of::<Secret>()).namespace(NAMESPACE);
        match api.delete(&key.name, &DeleteOptions::uid(&token.meta.uid)).await {
            Err(e) if !e.is_not_found() && !e.is_conflict() => Err(e.into()),
            _ => Ok(Outcome::Done),
        }
    }
}
