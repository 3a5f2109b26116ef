//! Secrets that keep the token of a service account (upstream `tokens_controller.go` and
//! `legacy_serviceaccount_token_cleaner.go`): they are filled where somebody makes them, go with their account, and go after a
//! year in which nobody has used them, having been out of use for another.

mod cleaner;

use crate::context::{Context, Error, object};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::{ApiResource, DeleteOptions, Informer, Key, Outcome, Scope, WorkQueue, WriteOptions};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use meta::Object;
use std::sync::Arc;

const NAME: &str = "kubernetes.io/service-account.name";
const UID: &str = "kubernetes.io/service-account.uid";

/// Makes the token that a secret keeps for an account.
pub type Issue = Arc<dyn Fn(&Object, &Object) -> Result<String, String> + Send + Sync>;

struct Controller {
    context: Context,
    secrets: Informer<()>,
    accounts: Informer<()>,
    issue: Issue,
    root_ca: String,
}

/// The secrets that keep tokens.
fn scope() -> Scope {
    Scope { field_selector: "type=kubernetes.io/service-account-token".into(), ..Scope::default() }
}

/// Runs until shutdown.
pub async fn run(context: Context, issue: Issue, root_ca: String) {
    let queue: Arc<WorkQueue<Key>> = Arc::default();
    let (secrets, accounts) = (ApiResource::of::<Secret>(), ApiResource::of::<ServiceAccount>());
    let c = Arc::new(Controller {
        secrets: context.informers.informer(&secrets, &scope()),
        accounts: context.informers.informer(&accounts, &Scope::default()),
        issue,
        root_ca,
        context,
    });
    let q = queue.clone();
    c.secrets.on_change(move |change| q.add(change.key()));
    // An account that comes or goes decides about the secrets of its namespace; there are few.
    let (of, q) = (c.secrets.clone(), queue.clone());
    c.accounts.on_change(move |change| {
        if change.old.is_none() || change.new.is_none() {
            of.cache().in_namespace(&change.key().namespace).for_each(|s| q.add(s.key()));
        }
    });
    c.secrets.synced().await;
    c.accounts.synced().await;
    let shutdown = c.context.shutdown.clone();
    client::queue::work("serviceaccount-token-controller", queue, 5, shutdown, move |key| {
        let c = c.clone();
        async move { c.reconcile(key).await }
    })
    .await;
}

/// Takes away what nobody uses; runs until shutdown.
pub async fn clean(context: Context) {
    let shutdown = context.shutdown.clone();
    shutdown.race(cleaner::run(&context)).await;
}

impl Controller {
    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let resource = ApiResource::of::<Secret>();
        let Some(entry) = self.secrets.get(&key).filter(|s| !s.meta.is_deleting()) else { return Ok(Outcome::Done) };
        let secret = object(&resource, &entry)?;
        let secrets = self.context.client.dynamic(&resource).namespace(&key.namespace);
        let accounts = ApiResource::of::<ServiceAccount>();
        let Some(name) = secret.annotation(NAME).filter(|n| !n.is_empty()) else { return Ok(Outcome::Done) };
        let known = self.accounts.get(&Key::new(key.namespace.clone(), name));
        let account = match known {
            Some(a) => Some(object(&accounts, &a)?),
            // The cache may be behind; the server is asked.
            None => self.context.client.dynamic(&accounts).namespace(&key.namespace).get_opt(name).await?,
        };
        let mine = |a: &Object| secret.annotation(UID).is_none_or(|uid| uid.is_empty() || uid == a.uid());
        let Some(account) = account.filter(mine) else {
            return match secrets.delete(secret.name(), &DeleteOptions::uid(secret.uid())).await {
                Err(e) if !e.is_not_found() && !e.is_conflict() => Err(e.into()),
                _ => Ok(Outcome::Done),
            };
        };
        let Some(filled) = self.filled(&secret, &account)? else { return Ok(Outcome::Done) };
        match secrets.update(secret.name(), &WriteOptions::default(), &filled).await {
            // Whoever changed it has woken us as well.
            Err(e) if !e.is_not_found() && !e.is_conflict() => Err(e.into()),
            _ => Ok(Outcome::Done),
        }
    }

    /// The secret with what it lacks; none when it lacks nothing.
    fn filled(&self, secret: &Object, account: &Object) -> Result<Option<Object>, Error> {
        let mut new = secret.clone();
        let has = |k: &str| secret.str_at(&["data", k]).is_some_and(|v| !v.is_empty());
        if secret.annotation(UID) != Some(account.uid()) {
            new.set_annotation(UID, account.uid());
        }
        let ca = STANDARD.encode(&self.root_ca);
        if !self.root_ca.is_empty() && secret.str_at(&["data", "ca.crt"]) != Some(&ca) {
            new.set(&["data", "ca.crt"], ca);
        }
        if !has("namespace") {
            new.set(&["data", "namespace"], STANDARD.encode(account.namespace()));
        }
        if !has("token") {
            let token = (self.issue)(account, secret).map_err(|why| Error::Invalid { what: "token", why })?;
            new.set(&["data", "token"], STANDARD.encode(token));
        }
        Ok((new != *secret).then_some(new))
    }
}
