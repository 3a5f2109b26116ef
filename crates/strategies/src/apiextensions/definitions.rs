//! Keeps the rows of custom resources as the definitions in the store say: names and conditions, rows, and the end of a
//! definition (upstream's naming, establishing and finalizing controllers, and the handler's storage map, in one place).
//!
//! Invariant: a definition is `Established` only after its rows are there, and is gone only after its objects are.

use super::definition::{self, Defined};
use super::naming::{self, Taken};
use super::{CLEANUP, is_true};
use meta::{Gvr, Object, Status, time};
use registry::{AdmitAll, DeleteOptions, Preconditions, Registry, Request, Resource, Target, Updated, WriteOptions};
use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use store::{Change, Entry, Key, Scope, WatchError};
use stored::encode;
use supervisor::panics::caught;

const STORAGE: &str = "apiextensions.k8s.io/customresourcedefinitions";
/// How long to wait before something that failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// What a definition was when its rows were made.
#[derive(PartialEq)]
struct Made {
    uid: String,
    generation: i64,
    names: meta::Value,
    ending: bool,
}

/// What a definition has of the names of its group.
struct Names {
    group: String,
    given: meta::Value,
    accepted: bool,
}

pub struct Definitions {
    registry: Arc<Registry>,
    made: HashMap<String, Made>,
    /// The stored version of each, for what the server does itself.
    stored: HashMap<String, Arc<Resource>>,
    rows: HashMap<String, Vec<Gvr>>,
    /// The names that every definition has been given, by its group.
    names: HashMap<String, Names>,
    /// Those whose end has begun, by their UIDs.
    ending: HashSet<String>,
}

impl Definitions {
    /// Makes the rows of all definitions there are. The server is ready only afterwards.
    pub fn load(registry: &Arc<Registry>) -> Self {
        let mut d = Self {
            registry: registry.clone(),
            made: HashMap::new(),
            stored: HashMap::new(),
            rows: HashMap::new(),
            names: HashMap::new(),
            ending: HashSet::new(),
        };
        let all = d.all();
        all.iter().for_each(|o| d.note(o));
        let established: Vec<Object> = all.into_iter().filter(|o| is_true(o, "Established")).collect();
        d.install(&established);
        d
    }

    /// Follows the definitions until the store ends.
    pub fn run(self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.work())
    }

    async fn work(mut self) {
        loop {
            let snapshot = self.registry.store.snapshot();
            let known: Vec<String> = self.names.keys().cloned().collect();
            let all = self.all();
            for name in known {
                if !self.is_stored(&name) {
                    self.forget(&name);
                }
            }
            for o in all {
                self.try_follow(o).await;
            }
            let Ok(mut watch) = self.registry.store.watch(Scope::resource(STORAGE), snapshot.revision()) else {
                return;
            };
            loop {
                match watch.next().await {
                    Ok(batch) => {
                        for e in batch.events {
                            match (e.change, encode::decode_or_log(&e.entry)) {
                                (Change::Put, Some(o)) => self.try_follow(o).await,
                                // It is served as it was before.
                                (Change::Put, None) => {}
                                (Change::Delete, Some(o)) => self.gone(&o).await,
                                (Change::Delete, None) => self.forget(&e.entry.key.name),
                            }
                        }
                    }
                    // The rows are made again from what there is.
                    Err(WatchError::Expired { .. } | WatchError::Engine(_)) => break,
                    Err(_) => return,
                }
            }
        }
    }

    /// The definitions that can be read; one that cannot keeps the rows that it has.
    fn all(&self) -> Vec<Object> {
        let snapshot = self.registry.store.snapshot();
        let resource: store::Str = STORAGE.into();
        snapshot.range(&resource, None, None).filter_map(|e| encode::decode_or_log(e)).collect()
    }

    fn note(&mut self, o: &Object) {
        let names = Names {
            group: o.str_at(&["spec", "group"]).unwrap_or_default().into(),
            given: o.at(&["status", "acceptedNames"]).cloned().unwrap_or_default(),
            accepted: is_true(o, "NamesAccepted"),
        };
        self.names.insert(o.name().into(), names);
    }

    /// The names that the others of a group have.
    fn taken(&self, o: &Object) -> Taken {
        let group = o.str_at(&["spec", "group"]).unwrap_or_default();
        let others = self.names.iter().filter(|(name, n)| n.group == group && **name != o.name());
        Taken::of(others.map(|(_, n)| &n.given)).and_built_in(group)
    }

    /// A definition that makes the work panic keeps no other from being served; it waits for its next change.
    async fn try_follow(&mut self, o: Object) {
        let name = o.name().to_owned();
        let _ = caught("definitions", name, self.follow(o)).await;
    }

    /// Brings names, rows and conditions of a definition up to date. What the store says now counts, not the event.
    async fn follow(&mut self, seen: Object) {
        let Some(o) = self.get(seen.name()).filter(|o| o.uid() == seen.uid()) else { return };
        let now = time::format(self.registry.clock.now());
        self.note(&o);
        let taken = self.taken(&o);
        let settled = naming::settle(&o, &taken, &now);
        let current = settled.as_ref().unwrap_or(&o);
        if is_true(current, "Established") {
            self.install(std::slice::from_ref(current));
        }
        if settled.is_some() {
            self.note(settled.as_ref().unwrap_or(&o));
            let change = |live: &mut Object| {
                if let Some(new) = naming::settle(live, &taken, &now) {
                    *live = new;
                }
            };
            if let Err(e) = write_status(&self.registry, o.name(), change).await {
                tracing::warn!("the status of the definition {} was not written: {e}", o.name());
            }
        }
        let ends = o.is_deleting() && o.finalizers().any(|f| f == CLEANUP);
        if ends && self.ending.insert(o.uid().to_owned()) {
            let end = End { registry: self.registry.clone(), name: o.name().into(), uid: o.uid().into() };
            tokio::spawn(end.run(self.stored.get(o.name()).cloned()));
        }
    }

    fn get(&self, name: &str) -> Option<Object> {
        self.registry.store.snapshot().get(&key(name)).and_then(|e| encode::decode_or_log(&e))
    }

    fn is_stored(&self, name: &str) -> bool {
        !matches!(self.registry.find(&key(name)), Ok(None))
    }

    /// Its names are free again: those who wanted them may have them.
    async fn gone(&mut self, o: &Object) {
        if self.is_stored(o.name()) {
            return;
        }
        self.forget(o.name());
        self.ending.remove(o.uid());
        let group = o.str_at(&["spec", "group"]).unwrap_or_default();
        let waiting = self.names.iter().filter(|(_, n)| n.group == group && !n.accepted);
        let waiting: Vec<String> = waiting.map(|(name, _)| name.clone()).collect();
        for name in waiting {
            if let Some(other) = self.get(&name) {
                self.follow(other).await;
            }
        }
    }

    fn forget(&mut self, name: &str) {
        self.made.remove(name);
        self.names.remove(name);
        self.stored.remove(name);
        let rows = self.rows.remove(name).unwrap_or_default();
        self.registry.change_rows(|all| {
            let mut all = all.clone();
            rows.iter().for_each(|r| all.remove(r));
            all
        });
    }

    /// Puts the rows of definitions in place of those they had.
    fn install(&mut self, definitions: &[Object]) {
        let mut changed: Vec<(String, Defined)> = Vec::new();
        for o in definitions {
            let made = Made {
                uid: o.uid().into(),
                generation: o.generation(),
                names: o.at(&["status", "acceptedNames"]).cloned().unwrap_or_default(),
                ending: o.is_deleting(),
            };
            if self.made.get(o.name()) == Some(&made) {
                continue;
            }
            // Under the first schema nothing can have another form.
            let reshaped = if o.generation() > 1 { self.registry.store.revision() } else { 0 };
            if let Some(d) = definition::rows(o, reshaped) {
                changed.push((o.name().to_owned(), d));
            }
            self.made.insert(o.name().to_owned(), made);
        }
        if changed.is_empty() {
            return;
        }
        let mut rows = (*self.registry.rows()).clone();
        for (name, d) in changed {
            for r in self.rows.remove(&name).unwrap_or_default() {
                rows.remove(&r);
            }
            let mut own = Vec::new();
            for r in d.served {
                // What Kubernetes itself serves cannot be defined again.
                let gvr = r.kind.gvr();
                if rows.resource(&gvr).is_none() {
                    own.push(gvr);
                    rows.insert(r);
                }
            }
            self.stored.insert(name.clone(), Arc::new(d.stored));
            self.rows.insert(name, own);
        }
        self.registry.change_rows(|_| rows);
    }
}

fn key(name: &str) -> Key {
    Key { resource: STORAGE.into(), namespace: "".into(), name: name.into() }
}

/// Changes a definition's status, and its finalizers.
async fn write_status(
    registry: &Registry,
    name: &str,
    change: impl Fn(&mut Object) + Send + Sync,
) -> Result<(), Status> {
    let row = registry.rows().stored("apiextensions.k8s.io", "customresourcedefinitions").cloned();
    let Some(row) = row else { return Err(Status::internal("definitions are not served")) };
    let request = Request::own(row, "status", "", name);
    let options = WriteOptions::by("kube-apiserver");
    let update = |live: Option<&Object>, _: &_| {
        let gr = request.group_resource();
        let mut o = live.cloned().ok_or_else(|| Status::not_found(&gr, name))?;
        change(&mut o);
        Ok(Target::object(o))
    };
    match registry.update(&request, &update, &Preconditions::default(), &options, &AdmitAll).await {
        Ok(Updated::Changed(_) | Updated::Same(_) | Updated::Created(_) | Updated::Removed(_)) => Ok(()),
        Err(s) if s.code == 404 => Ok(()),
        Err(s) => Err(s),
    }
}

/// The end of one definition: its objects go, then it goes.
struct End {
    registry: Arc<Registry>,
    name: String,
    uid: String,
}

impl End {
    async fn run(self, row: Option<Arc<Resource>>) {
        loop {
            match self.step(row.as_ref()).await {
                Ok(()) => return,
                Err(e) => {
                    tracing::warn!("the objects of {} are not gone yet: {e}", self.name);
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    async fn step(&self, row: Option<&Arc<Resource>>) -> Result<(), Status> {
        let (reason, message) = match row {
            Some(row) => {
                self.condition("True", "InstanceDeletionInProgress", "CustomResource deletion is in progress", false)
                    .await?;
                self.empty(row).await?;
                ("InstanceDeletionCompleted", "removed all instances")
            }
            None => ("NeverEstablished", "resource was never established"),
        };
        self.condition("False", reason, message, true).await
    }

    async fn condition(&self, status: &str, reason: &str, message: &str, last: bool) -> Result<(), Status> {
        let now = time::format(self.registry.clock.now());
        write_status(&self.registry, &self.name, |o| {
            // Another of the same name may have come in the meantime.
            if o.uid() != self.uid || !o.is_deleting() {
                return;
            }
            naming::set_condition(o, "Terminating", status, reason, message, &now);
            if last {
                o.set_finalizers(o.finalizers().filter(|f| *f != CLEANUP).map(str::to_owned).collect());
            }
        })
        .await
    }

    /// Deletes every object and waits until none is left; finalizers of theirs are met by others.
    async fn empty(&self, row: &Arc<Resource>) -> Result<(), Status> {
        let Some((resource, _)) = row.stored() else { return Ok(()) };
        let revision = self.registry.store.revision();
        let mut watch =
            self.registry.store.watch(Scope::resource(resource), revision).map_err(|e| Status::internal(&e))?;
        let all: Vec<Arc<Entry>> = self.registry.store.snapshot().range(resource, None, None).cloned().collect();
        for e in all {
            self.delete(row, &e).await?;
        }
        while self.registry.store.snapshot().count(resource, None) > 0 {
            let batch = watch.next().await.map_err(|e| Status::internal(&e))?;
            for e in batch.events.iter().filter(|e| e.change == Change::Put) {
                self.delete(row, &e.entry).await?;
            }
        }
        Ok(())
    }

    /// Deletes one object, unless it is being deleted.
    async fn delete(&self, row: &Arc<Resource>, entry: &Entry) -> Result<(), Status> {
        let object = encode::decode(entry)?;
        if object.is_deleting() {
            return Ok(());
        }
        let request = Request::own(row.clone(), "", object.namespace(), object.name());
        match self.registry.delete(&request, &DeleteOptions::default(), &AdmitAll).await {
            Ok(_) => Ok(()),
            Err(s) if s.code == 404 => Ok(()),
            Err(s) => Err(s),
        }
    }
}
