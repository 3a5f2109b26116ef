//! Secrets with the token of a service account (upstream `tokens_controller.go` and
//! `legacy_serviceaccount_token_cleaner.go`). The controller fills those that users create and deletes them with their account; the
//! [`cleaner`] invalidates those that were unused for a year, and deletes them after another.

pub mod cleaner;

use crate::context::{Context, Error, object};
use crate::controller::{Builder, Reconcile};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::{ApiResource, Change, DeleteOptions, Informer, Key, Outcome, Scope, WorkQueue, WriteOptions, optional};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use meta::{Object, Value};
use std::sync::Arc;

const NAME: &str = "kubernetes.io/service-account.name";
const UID: &str = "kubernetes.io/service-account.uid";

/// Issues the token of an account for a secret.
pub type Issue = Arc<dyn Fn(&Object, &Object) -> Result<String, String> + Send + Sync>;

struct Controller {
    context: Context,
    secrets: Informer<()>,
    accounts: Informer<()>,
    issue: Issue,
    root_ca: String,
}

/// The secrets that contain tokens.
fn scope() -> Scope {
    Scope { field_selector: "type=kubernetes.io/service-account-token".into(), ..Scope::default() }
}

/// Runs until shutdown.
pub async fn run(context: Context, issue: Issue, root_ca: String) {
    let mut builder = Builder::new(&context);
    let mut references = Builder::<Reference>::new(&context);
    let c = Arc::new(Controller {
        secrets: builder.watch_scope(&ApiResource::typed::<Secret>(), &scope()),
        accounts: builder.watch(&ApiResource::typed::<ServiceAccount>()),
        issue,
        root_ca,
        context,
    });
    builder.enqueue(&c.secrets);
    builder.handle(&c, &c.accounts, Controller::account_changed);
    references.wait_for(&c.accounts);
    references.on_change(&c.secrets, |change, queue| {
        if let (Some(old), None) = (&change.old, &change.new)
            && let Ok(secret) = object(&ApiResource::typed::<Secret>(), old)
            && let Some(account) = secret.annotation(NAME)
        {
            queue.add(Reference {
                account: Key::new(old.meta.namespace.clone(), account),
                uid: secret.annotation(UID).unwrap_or_default().to_owned(),
                secret: secret.name().to_owned(),
            });
        }
    });
    let references = references.run_as("serviceaccount_tokens_service", 5, Arc::new(References(c.clone())));
    tokio::join!(references, builder.run(5, c));
}

/// The reference of an account to a secret that is gone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Reference {
    account: Key,
    /// The UID of the account; empty if the secret did not name it.
    uid: String,
    secret: String,
}

/// Removes references to secrets that are gone.
struct References(Arc<Controller>);

impl Reconcile for References {
    type Key = Reference;

    async fn reconcile(&self, r: Reference) -> Result<Outcome, Error> {
        let accounts = ApiResource::typed::<ServiceAccount>();
        let api = self.0.context.client.dynamic(&accounts).namespace(&r.account.namespace);
        let is_owner = |uid: &str| r.uid.is_empty() || r.uid == uid;
        if self.0.accounts.get(&r.account).is_none_or(|a| !is_owner(&a.meta.uid)) {
            return Ok(Outcome::Done);
        }
        let Some(mut live) = api.get_opt(&r.account.name).await?.filter(|a| is_owner(a.uid())) else {
            return Ok(Outcome::Done);
        };
        let all = live.get("secrets").and_then(Value::as_array).cloned().unwrap_or_default();
        let left: Vec<Value> = all.iter().filter(|s| s["name"] != *r.secret).cloned().collect();
        if left.len() < all.len() {
            match left.is_empty() {
                true => drop(live.remove(&["secrets"])),
                false => live.set(&["secrets"], left),
            }
            optional(api.update(&r.account.name, &WriteOptions::default(), &live).await)?;
        }
        Ok(Outcome::Done)
    }
}

impl Controller {
    /// An account that is created or deleted concerns the secrets of its namespace; there are few.
    fn account_changed(&self, change: &Change<()>, queue: &WorkQueue<Key>) {
        if change.old.is_none() || change.new.is_none() {
            self.secrets.cache().in_namespace(&change.key().namespace).for_each(|s| queue.add(s.key()));
        }
    }
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let resource = ApiResource::typed::<Secret>();
        let Some(entry) = self.secrets.get(&key).filter(|s| !s.meta.is_deleting()) else { return Ok(Outcome::Done) };
        let secret = object(&resource, &entry)?;
        let secrets = self.context.client.dynamic(&resource).namespace(&key.namespace);
        let accounts = ApiResource::typed::<ServiceAccount>();
        let Some(name) = secret.annotation(NAME).filter(|n| !n.is_empty()) else { return Ok(Outcome::Done) };
        let known = self.accounts.get(&Key::new(key.namespace.clone(), name));
        let account = match known {
            Some(a) => Some(object(&accounts, &a)?),
            // The cache may be stale.
            None => self.context.client.dynamic(&accounts).namespace(&key.namespace).get_opt(name).await?,
        };
        let is_owner = |a: &Object| secret.annotation(UID).is_none_or(|uid| uid.is_empty() || uid == a.uid());
        let Some(account) = account.filter(is_owner) else {
            return match secrets.delete(secret.name(), &DeleteOptions::uid(secret.uid())).await {
                Err(e) if !e.is_not_found() && !e.is_conflict() => Err(e.into()),
                _ => Ok(Outcome::Done),
            };
        };
        let Some(filled) = self.filled(&secret, &account)? else { return Ok(Outcome::Done) };
        match secrets.update(secret.name(), &WriteOptions::default(), &filled).await {
            // The change that caused the conflict enqueued the key.
            Err(e) if !e.is_not_found() && !e.is_conflict() => Err(e.into()),
            _ => Ok(Outcome::Done),
        }
    }
}

impl Controller {
    /// The secret with its missing fields added; none if it lacks none.
    fn filled(&self, secret: &Object, account: &Object) -> Result<Option<Object>, Error> {
        let mut new = secret.clone();
        let has = |k: &str| secret.str_at(&["data", k]).is_some_and(|v| !v.is_empty());
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
        if new == *secret {
            return Ok(None);
        }
        new.set_annotation(UID, account.uid());
        Ok(Some(new))
    }
}
