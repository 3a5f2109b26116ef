//! Deletes expired bootstrap tokens.

use super::{NAMESPACE, Token, watch_tokens};
use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use client::{ApiResource, DeleteOptions, Informer, Key, Outcome};
use k8s_openapi::api::core::v1::Secret;
use std::sync::Arc;
use std::time::Duration;

struct Controller {
    context: Context,
    tokens: Informer<Token>,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let tokens = watch_tokens(&mut builder);
    builder.enqueue(&tokens);
    builder.run(1, Arc::new(Controller { tokens, context })).await;
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(token) = self.tokens.get(&key).filter(|t| !t.meta.is_deleting()) else { return Ok(Outcome::Done) };
        let Some(end) = token.view.expires() else { return Ok(Outcome::Done) };
        let left = end.duration_since(self.context.now());
        if let Ok(left) = Duration::try_from(left)
            && !left.is_zero()
        {
            return Ok(Outcome::After(left));
        }
        let api = self.context.client.dynamic(&ApiResource::typed::<Secret>()).namespace(NAMESPACE);
        match api.delete(&key.name, &DeleteOptions::uid(&token.meta.uid)).await {
            Err(e) if !e.is_not_found() && !e.is_conflict() => Err(e.into()),
            _ => Ok(Outcome::Done),
        }
    }
}
