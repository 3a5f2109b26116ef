//! Deletes objects whose owners are gone (upstream `pkg/controller/garbagecollector`), of every resource in discovery.
//!
//! A [`graph`] of metadata yields candidates. Before a deletion the controller reads the object and its owners from the server. Events have
//! no owners and are not watched.

mod decide;
mod graph;

use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use crate::discovery::{self, Served};
use crate::meters;
use client::client::PARTIAL_METADATA;
use client::{
    Api, ApiResource, DeleteOptions, Informer, Meta, Outcome, Patch, Propagation, Recorder, Regarding, Scope,
    WorkQueue, WriteOptions,
};
use decide::{Fate, Standing, fate};
use futures::StreamExt;
use graph::{FOREGROUND, Graph, Item, Node, ORPHAN, Uid};
use meta::object::OwnerRef;
use meta::{GroupVersion, Object};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How many owners of one object are read before other keys have their turn.
const READS_AT_ONCE: usize = 500;
/// How many dependents of an owner are made orphans at a time.
const RELEASED_AT_ONCE: usize = 20;
/// After how many owners other tasks of the thread have their turn.
const YIELD_AFTER: usize = 20;

/// How long the first lists may take (upstream's `initialSyncTimeout`).
const INITIAL_SYNC: Duration = Duration::from_secs(30);

/// How often discovery is read for new and removed resources.
const DISCOVERY: Duration = Duration::from_secs(30);

/// An owner in the graph.
enum Known {
    Stands(Standing),
    /// The reference is invalid.
    Invalid,
    /// It is not in the graph.
    No,
}

struct Collector {
    context: Context,
    graph: Mutex<Graph>,
    queue: Arc<WorkQueue<Item>>,
    /// Every resource by group and kind.
    kinds: Mutex<BTreeMap<(String, String), ApiResource>>,
    watched: Mutex<BTreeMap<ApiResource, Informer<()>>>,
    /// Owners that do not exist, by the object that names them, while not all of its owners have been read. Such an owner never appears: no
    /// other object gets its UID.
    absent: Mutex<BTreeMap<(Uid, ApiResource), BTreeSet<String>>>,
    recorder: Recorder,
}

fn scope() -> Scope {
    Scope { metadata_only: true, ..Scope::default() }
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let builder = Builder::new(&context);
    let c = Arc::new(Collector {
        graph: Mutex::default(),
        queue: builder.queue(),
        kinds: Mutex::default(),
        watched: Mutex::default(),
        absent: Mutex::default(),
        recorder: context.recorder_as("garbage-collector-controller"),
        context,
    });
    let start = async {
        while !c.discover().await {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let informers: Vec<Informer<()>> = c.watched.lock().values().cloned().collect();
        // A resource that cannot be listed does not delay deletions of others.
        let synced = async {
            for i in informers {
                i.synced().await;
            }
        };
        if tokio::time::timeout(INITIAL_SYNC, synced).await.is_err() {
            meters::count(&meters::GC_SYNC_ERRORS, &[]);
            tracing::warn!("some resources cannot be listed; the garbage collector starts without them");
        }
    };
    if c.context.shutdown.race(start).await.is_none() {
        return;
    }
    let discovery = c.context.every(DISCOVERY, || async {
        c.discover().await;
    });
    tokio::join!(discovery, builder.run(10, c.clone()));
}

fn is_event(r: &ApiResource) -> bool {
    r.gvr().resource == "events" && matches!(r.gvr().group.as_str(), "" | "events.k8s.io")
}

impl Reconcile for Collector {
    type Key = Item;

    async fn reconcile(&self, item: Item) -> Result<Outcome, Error> {
        match &item {
            Item::Dependent(uid) => self.dependents(uid).await,
            Item::Owner(uid) => self.owners(uid).await,
        }
    }
}

impl Collector {
    /// Watches the resources in discovery, and stops watching others. Returns whether discovery answered.
    async fn discover(self: &Arc<Self>) -> bool {
        let found = match discovery::preferred(&self.context.client).await {
            Ok(found) => found,
            Err(e) => {
                meters::count(&meters::GC_SYNC_ERRORS, &[]);
                tracing::debug!("garbage collector: discovery: {e}");
                return false;
            }
        };
        if let Some(failure) = found.failure() {
            tracing::debug!("garbage collector: {failure}");
        }
        let served = &found.served;
        let kinds =
            served.iter().map(|s| ((s.resource.gvr().group.clone(), s.resource.kind().to_owned()), s.resource.clone()));
        {
            // Resources of groups that do not answer stay known.
            let mut known = self.kinds.lock();
            known.retain(|(group, _), _| found.has_failed(group));
            known.extend(kinds);
        }
        let collected = |s: &&Served| s.can("list") && s.can("watch") && s.can("delete") && !is_event(&s.resource);
        let desired: Vec<ApiResource> = served.iter().filter(collected).map(|s| s.resource.clone()).collect();
        let mut watched = self.watched.lock();
        let gone: Vec<ApiResource> =
            watched.keys().filter(|r| !desired.contains(r) && !found.has_failed(&r.gvr().group)).cloned().collect();
        for r in gone {
            watched.remove(&r);
            self.context.informers.stop::<()>(&r, &scope());
        }
        for r in desired {
            if watched.contains_key(&r) {
                continue;
            }
            let informer: Informer<()> = self.context.informers.informer(&r, &scope());
            let (weak, resource) = (Arc::downgrade(self), r.clone());
            informer.on_change(move |c| {
                let Some(this) = weak.upgrade() else { return };
                let items = match &c.new {
                    Some(e) => this.graph.lock().put(&resource, e.clone()),
                    None => {
                        let meta = &c.latest().meta;
                        this.absent.lock().remove(&(meta.uid.clone(), resource.clone()));
                        this.graph.lock().remove(&resource, meta)
                    }
                };
                for i in items {
                    this.queue.add(i);
                }
            });
            watched.insert(r, informer);
        }
        true
    }

    fn api(&self, resource: &ApiResource, namespace: &str) -> Api<Object> {
        let api = self.context.client.dynamic(resource).accept(PARTIAL_METADATA);
        if resource.namespaced() { api.namespace(namespace) } else { api }
    }

    /// Reads the object from the server; none if it is gone or has another UID.
    async fn live(&self, n: &Node) -> Result<Option<Object>, Error> {
        let live = self.api(&n.resource, &n.meta().namespace).get_opt(&n.meta().name).await?;
        Ok(live.filter(|o| o.uid() == &*n.meta().uid))
    }

    async fn dependents(&self, uid: &str) -> Result<Outcome, Error> {
        let nodes: Vec<Node> = {
            let g = self.graph.lock();
            g.with_uid(uid).filter(|n| !n.meta().is_deleting() && !g.is_held(n)).cloned().collect()
        };
        let mut outcome = Outcome::Done;
        for node in nodes {
            if let Outcome::After(d) = self.dependent(node).await? {
                outcome = Outcome::After(d);
            }
        }
        Ok(outcome)
    }

    async fn dependent(&self, node: Node) -> Result<Outcome, Error> {
        let uid = &*node.meta().uid;
        let Some(live) = self.live(&node).await? else { return Ok(Outcome::Done) };
        if live.is_deleting() {
            return Ok(Outcome::Done);
        }
        // Resolve all kinds before reading from the server.
        let resources = live.owner_references().map(|o| Ok((self.resource_of(o.api_version, o.kind)?, o)));
        let resources = resources.collect::<Result<Vec<_>, Error>>()?;
        let id = (node.meta().uid.clone(), node.resource.clone());
        let mut absent = self.absent.lock().remove(&id).unwrap_or_default();
        let (mut owners, mut reads) = (Vec::new(), 0);
        for (resource, o) in resources {
            let reference = format!("{} {} {} {}", o.api_version, o.kind, o.name, o.uid);
            if absent.contains(&reference) {
                owners.push((o.uid.to_owned(), Standing::Dangling));
                continue;
            }
            let standing = match self.known(&node, &resource, &o) {
                Known::Stands(s) => s,
                // The reference cannot be judged, so nothing is deleted.
                Known::Invalid => return Ok(Outcome::Done),
                Known::No if reads == READS_AT_ONCE => {
                    self.absent.lock().insert(id, absent);
                    return Ok(Outcome::After(Duration::from_millis(10)));
                }
                Known::No => {
                    reads += 1;
                    if reads % YIELD_AFTER == 0 {
                        tokio::task::yield_now().await;
                    }
                    self.standing_on_server(&node, &resource, o.name, o.uid).await?
                }
            };
            if standing == Standing::Dangling {
                absent.insert(reference);
            }
            owners.push((o.uid.to_owned(), standing));
        }
        let (has_dependents, is_ring) = {
            let g = self.graph.lock();
            (g.dependents(&node).next().is_some(), g.dependents(&node).any(Node::is_foreground))
        };
        let finalizers: Vec<String> = live.finalizers().map(str::to_owned).collect();
        let api = self.api(&node.resource, &node.meta().namespace);
        match fate(&owners, &finalizers, has_dependents) {
            Fate::Stay => {}
            Fate::DropReferences(uids) => drop_references(&api, &live, |u| uids.iter().any(|x| x == u)).await?,
            Fate::Delete(policy) => {
                let mut options = DeleteOptions::uid(uid);
                let mut seen = live.resource_version().to_owned();
                // Otherwise the objects of a ring would wait for each other.
                if policy == Propagation::Foreground && is_ring {
                    seen = unblock(&api, &live).await?;
                }
                options.propagation_policy = Some(policy);
                if let Some(p) = &mut options.preconditions {
                    // Fails if an owner was added in the meantime.
                    p.resource_version = Some(seen);
                }
                client::optional(api.delete(live.name(), &options).await)?;
            }
        }
        Ok(Outcome::Done)
    }

    fn resource_of(&self, api_version: &str, kind: &str) -> Result<ApiResource, Error> {
        let group = GroupVersion::parse(api_version).map(|gv| gv.group).unwrap_or_default();
        let known = self.kinds.lock().get(&(group, kind.to_owned())).cloned();
        known.ok_or_else(|| Error::Waiting(format!("no resource is known for owner {api_version} {kind}")))
    }

    /// The state of an owner according to the graph.
    fn known(&self, dependent: &Node, resource: &ApiResource, owner: &OwnerRef<'_>) -> Known {
        let &OwnerRef { api_version, kind, name, uid, .. } = owner;
        let m = dependent.meta();
        let is_one = |n: &&Node| {
            n.resource.gvr().group == resource.gvr().group && n.resource.kind() == kind && &*n.meta().name == name
        };
        let known: Vec<Node> = self.graph.lock().with_uid(uid).filter(is_one).cloned().collect();
        if resource.namespaced() && m.namespace.is_empty() {
            if !known.is_empty() {
                self.report_invalid(dependent, api_version, kind, name, uid);
            }
            return Known::Invalid;
        }
        let near = |o: &&Node| !resource.namespaced() || o.meta().namespace == m.namespace;
        match known.iter().find(near) {
            Some(o) => Known::Stands(if o.is_foreground() { Standing::Waiting } else { Standing::Solid }),
            None if known.is_empty() => Known::No,
            None => {
                self.report_invalid(dependent, api_version, kind, name, uid);
                Known::Stands(Standing::Dangling)
            }
        }
    }

    /// The state of an owner that is not in the graph, read from the server; it may be newer than the cache.
    async fn standing_on_server(
        &self,
        dependent: &Node,
        resource: &ApiResource,
        name: &str,
        uid: &str,
    ) -> Result<Standing, Error> {
        let live = self.api(resource, &dependent.meta().namespace).get_opt(name).await?;
        Ok(match live {
            Some(o) if o.uid() == uid => {
                let waiting = o.is_deleting() && o.finalizers().any(|f| f == FOREGROUND);
                if waiting { Standing::Waiting } else { Standing::Solid }
            }
            _ => Standing::Dangling,
        })
    }

    fn report_invalid(&self, dependent: &Node, api_version: &str, kind: &str, name: &str, uid: &str) {
        let m: &Meta = dependent.meta();
        let namespace = &m.namespace;
        let text = format!(
            "ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}] does not exist in namespace \"{namespace}\""
        );
        let gvk = dependent.resource.gvk();
        let about = Regarding::from_meta(&gvk.api_version(), &gvk.kind, m);
        self.recorder.warning(about, "OwnerRefInvalidNamespace", text);
    }

    async fn owners(&self, uid: &str) -> Result<Outcome, Error> {
        let nodes: Vec<(Node, Vec<Node>)> = {
            let g = self.graph.lock();
            g.with_uid(uid).map(|n| (n.clone(), g.dependents(n).cloned().collect())).collect()
        };
        for (node, dependents) in nodes {
            self.owner(node, dependents).await?;
        }
        Ok(Outcome::Done)
    }

    async fn owner(&self, node: Node, dependents: Vec<Node>) -> Result<(), Error> {
        let uid = &*node.meta().uid;
        let api = self.api(&node.resource, &node.meta().namespace);
        if node.is_orphaning() {
            let release = |d: &Node| {
                let d = d.clone();
                async move {
                    let Some(live) = self.live(&d).await? else { return Ok(()) };
                    let api = self.api(&d.resource, &d.meta().namespace);
                    drop_references(&api, &live, |u| u == uid).await
                }
            };
            let released: Vec<Result<(), Error>> = futures::stream::iter(dependents.iter().map(release))
                .buffer_unordered(RELEASED_AT_ONCE)
                .collect()
                .await;
            // One that fails delays its owner, not the others.
            released.into_iter().collect::<Result<(), Error>>()?;
            if let Some(live) = self.live(&node).await? {
                drop_finalizer(&api, &live, ORPHAN).await?;
            }
        } else if node.is_foreground() {
            let mut blocked = false;
            for d in &dependents {
                // An object that owns itself does not wait for itself.
                blocked |= *d.meta().uid != *uid && d.blocks(&node);
                if !d.meta().is_deleting() {
                    self.queue.add(Item::Dependent(d.meta().uid.clone()));
                }
            }
            if !blocked && let Some(live) = self.live(&node).await? {
                drop_finalizer(&api, &live, FOREGROUND).await?;
            }
        }
        Ok(())
    }
}

/// Patches metadata if the object is unchanged. Returns the new version, or none if the object is gone.
async fn patch(api: &Api<Object>, live: &Object, field: &str, value: Value) -> Result<Option<String>, Error> {
    let body = json!({"metadata": {"uid": live.uid(), "resourceVersion": live.resource_version(), field: value}});
    let patched = client::optional(api.patch(live.name(), &WriteOptions::default(), &Patch::Merge(body)).await)?;
    Ok(patched.map(|o: Object| o.resource_version().to_owned()))
}

/// Unsets `blockOwnerDeletion` in all owner references. Returns the new version.
async fn unblock(api: &Api<Object>, live: &Object) -> Result<String, Error> {
    let before = live.at(&["metadata", "ownerReferences"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut all = before.clone();
    for o in all.iter_mut().filter(|o| o["blockOwnerDeletion"] == true) {
        o["blockOwnerDeletion"] = false.into();
    }
    let seen = live.resource_version().to_owned();
    if all == before {
        return Ok(seen);
    }
    Ok(patch(api, live, "ownerReferences", all.into()).await?.unwrap_or(seen))
}

async fn drop_references(api: &Api<Object>, live: &Object, goes: impl Fn(&str) -> bool) -> Result<(), Error> {
    let all = live.at(&["metadata", "ownerReferences"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let left: Vec<Value> = all.iter().filter(|o| !goes(o["uid"].as_str().unwrap_or_default())).cloned().collect();
    if left.len() == all.len() {
        return Ok(());
    }
    patch(api, live, "ownerReferences", left.into()).await.map(|_| ())
}

async fn drop_finalizer(api: &Api<Object>, live: &Object, finalizer: &str) -> Result<(), Error> {
    let all: Vec<&str> = live.finalizers().collect();
    let left: Vec<&str> = all.iter().copied().filter(|f| *f != finalizer).collect();
    if left.len() == all.len() {
        return Ok(());
    }
    patch(api, live, "finalizers", left.into()).await.map(|_| ())
}
