//! Deletes the content of terminating namespaces, then removes their finalizer (upstream `namespaced_resources_deleter.go`). Conditions
//! of the namespace report what remains and why.

mod conditions;

use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use crate::discovery::{self, Served};
use crate::views::{Pod, pods};
use client::{
    Api, ApiResource, Change, Client, DeleteOptions, Informer, Key, ListOptions, Outcome, Propagation, RateLimit,
    Scope, WorkQueue, WriteOptions,
};
use conditions::Progress;
use meta::Object;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

const FINALIZER: &str = "kubernetes";
/// How many seconds finalizers of remaining objects are assumed to take.
const FINALIZER_ESTIMATE: i64 = 15;
/// Back-off of namespaces whose content cannot be deleted.
const BACKOFF: RateLimit = RateLimit { base: Duration::from_millis(5), max: Duration::from_secs(60) };

struct Controller {
    context: Context,
    namespaces: Informer<()>,
    pods: Informer<Pod>,
}

fn namespaces() -> ApiResource {
    ApiResource::typed::<k8s_openapi::api::core::v1::Namespace>()
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::with_rate_limit(&context, BACKOFF);
    let namespaces = builder.watch::<()>(&namespaces());
    // Not waited for: a namespace is deleted also while pods cannot be listed.
    let pods = context.informers.informer::<Pod>(&pods(), &Scope::default());
    let c = Arc::new(Controller { namespaces, pods, context });
    builder.on_change(&c.namespaces, |change, queue| {
        if change.new.as_ref().is_some_and(|n| n.meta.is_deleting()) {
            queue.add(change.key());
        }
    });
    builder.handle(&c, &c.pods, Controller::pod_changed);
    builder.run(10, c).await;
}

impl Controller {
    /// Requeues the namespace of a pod that was deleted: the remaining content waits for its last pod.
    fn pod_changed(&self, change: &Change<Pod>, queue: &WorkQueue<Key>) {
        if change.new.is_none() {
            let key = Key::new("", change.key().namespace);
            if self.namespaces.get(&key).is_some_and(|n| n.meta.is_deleting()) {
                queue.add(key);
            }
        }
    }
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let client = &self.context.client;
        let api = client.dynamic(&namespaces());
        let Some(mut ns) = api.get_opt(&key.name).await? else { return Ok(Outcome::Done) };
        if !ns.is_deleting() {
            return Ok(Outcome::Done);
        }
        if ns.str_at(&["status", "phase"]) != Some("Terminating") {
            ns.set(&["status", "phase"], "Terminating");
            ns = api.update_status(&key.name, &WriteOptions::default(), &ns).await?;
        }
        if !finalizers(&ns).iter().any(|f| f == FINALIZER) {
            return Ok(Outcome::Done);
        }
        let deleted = meta::time::parse(ns.deletion_timestamp().unwrap_or_default());
        let since = deleted.map_or(0, |at| self.context.now().duration_since(at).as_secs());
        let progress = delete_content(client, &key.name, since).await;
        let status = conditions::apply(&ns, &progress, self.context.now());
        if ns.get("status") != Some(&status) {
            ns.set(&["status"], status);
            ns = api.update_status(&key.name, &WriteOptions::default(), &ns).await?;
        }
        if let Some(failure) = progress.failure() {
            return Err(Error::Waiting(failure));
        }
        if progress.has_remains() {
            // Content with a grace period, or with finalizers of its own.
            return Ok(Outcome::After(Duration::from_secs(progress.wait_seconds())));
        }
        let left: Vec<String> = finalizers(&ns).into_iter().filter(|f| f != FINALIZER).collect();
        ns.set(&["spec", "finalizers"], left);
        let r: Result<Object, _> = api.update_subresource(&key.name, "finalize", &WriteOptions::default(), &ns).await;
        match r {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(Outcome::Done),
        }
    }
}

fn finalizers(ns: &Object) -> Vec<String> {
    let list = ns.at(&["spec", "finalizers"]).and_then(|f| f.as_array());
    list.into_iter().flatten().filter_map(|f| f.as_str()).map(str::to_owned).collect()
}

/// Deletes everything in a namespace and returns what remains. Pods go first: network policies and other objects that protect
/// them are deleted when they are gone. Groups that cannot be listed delay the namespace, but not the other objects in it.
///
/// `since` is the number of seconds since the deletion of the namespace was requested.
async fn delete_content(client: &Client, namespace: &str, since: i64) -> Progress {
    let mut p = Progress::default();
    let found = match discovery::preferred(client).await {
        Ok(found) => found,
        Err(e) => {
            p.discovery_error = Some(e.to_string());
            return p;
        }
    };
    p.discovery_error = found
        .failure()
        .map(|failure| format!("Discovery failed for some groups, {} failing: {failure}", found.failed.len()));
    let deletable = |s: &&Served| s.resource.namespaced() && s.can("delete") && s.can("list");
    let (pods, others): (Vec<&Served>, Vec<&Served>) =
        found.served.iter().filter(deletable).partition(|s| s.resource == pods());
    for (step, prefix) in
        [(pods, format!("failed to delete pods for namespace: {namespace}, err: ")), (others, String::new())]
    {
        for s in step {
            let unexpected = match delete_all(client, s, namespace, since, &mut p).await {
                Ok(Unexpected::No) => continue,
                Ok(Unexpected::Items) => {
                    let g = s.resource.gvr();
                    let version = format!("{}/{}, Resource={}", g.group, g.version, g.resource);
                    format!("unexpected items still remain in namespace: {namespace} for gvr: {version}")
                }
                Err(e) => e.to_string(),
            };
            p.errors.push(format!("{prefix}{unexpected}"));
        }
        if p.has_remains() {
            break;
        }
    }
    p
}

/// The fields of a remaining object that are read; there may be many objects, and large ones.
#[derive(Deserialize)]
struct Remaining {
    metadata: RemainingMeta,
    #[serde(default)]
    spec: serde_json::Value,
    #[serde(default)]
    status: serde_json::Value,
}

impl Remaining {
    /// The grace period of a pod that has not terminated.
    fn grace(&self) -> i64 {
        match self.status["phase"].as_str() {
            Some("Succeeded" | "Failed") => 0,
            _ => self.spec["terminationGracePeriodSeconds"].as_i64().unwrap_or(0),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RemainingMeta {
    name: String,
    finalizers: Option<Vec<String>>,
}

/// Whether objects remain that nothing keeps: neither a grace period nor a finalizer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unexpected {
    Items,
    No,
}

async fn remaining(api: &Api<Object>) -> Result<Vec<Remaining>, client::Error> {
    let mut all = Vec::new();
    api.each(&ListOptions::default(), |r| all.push(r)).await?;
    Ok(all)
}

async fn delete_all(
    client: &Client,
    s: &Served,
    namespace: &str,
    since: i64,
    p: &mut Progress,
) -> Result<Unexpected, client::Error> {
    let api = client.dynamic(&s.resource).namespace(namespace);
    let background = DeleteOptions::propagation(Propagation::Background);
    let any = api.list(&ListOptions { limit: 1, ..ListOptions::default() }).await;
    if any.is_ok_and(|l| l.items.is_empty()) {
        return Ok(Unexpected::No);
    }
    // A list with an object that cannot be read fails. The server deletes what it can, and names that object.
    if s.can("deletecollection") {
        api.delete_collection(&background, &ListOptions::default()).await?;
    } else {
        for name in remaining(&api).await?.iter().map(|r| &r.metadata.name) {
            client::optional(api.delete(name, &background).await)?;
        }
    }
    let left = remaining(&api).await?;
    if left.is_empty() {
        return Ok(Unexpected::No);
    }
    let has_finalizers = left.iter().any(|r| r.metadata.finalizers.as_ref().is_some_and(|f| !f.is_empty()));
    let grace = match s.resource == pods() {
        true => left.iter().map(Remaining::grace).max().filter(|grace| *grace > since).unwrap_or(0),
        false => 0,
    };
    let g = s.resource.gvr();
    // Upstream's form, which has a dot at the end for the core group.
    let name = format!("{}.{}", g.resource, g.group);
    let finalizers = left.iter().flat_map(|r| r.metadata.finalizers.iter().flatten().map(String::as_str));
    let estimate = if grace == 0 && has_finalizers { FINALIZER_ESTIMATE } else { grace };
    p.remains(&name, left.len(), finalizers, estimate);
    Ok(if grace == 0 && !has_finalizers { Unexpected::Items } else { Unexpected::No })
}
