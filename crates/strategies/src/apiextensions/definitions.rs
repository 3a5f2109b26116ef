//! Maintains the rows of custom resources from stored definitions: names and conditions, rows, and deletion (upstream's
//! naming, establishing and finalizing controllers, and the handler's storage map).
//!
//! Invariant: a definition is `Established` only after its rows exist, and is deleted only after its objects.

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
/// Delay before a failed step is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The state of a definition from which its rows were built.
#[derive(PartialEq)]
struct Made {
    uid: String,
    generation: i64,
    names: meta::Value,
    ending: bool,
}

/// The accepted names of a definition.
struct Names {
    group: String,
    given: meta::Value,
    accepted: bool,
}

pub struct Definitions {
    registry: Arc<Registry>,
    made: HashMap<String, Made>,
    /// Rows of the stored versions, for the server's own requests.
    stored: HashMap<String, Arc<Resource>>,
    rows: HashMap<String, Vec<Gvr>>,
    /// Accepted names of definitions, by group.
    names: HashMap<String, Names>,
    /// UIDs of definitions whose deletion is in progress.
    ending: HashSet<String>,
}

impl Definitions {
    /// Builds the rows of all definitions. The server is ready only afterwards.
    pub fn load(registry: &Arc<Registry>) -> Self {
        let mut d = Self {
            registry: registry.clone(),
            made: HashMap::new(),
            stored: HashMap::new(),
            rows: HashMap::new(),
            names: HashMap::new(),
            ending: HashSet::new(),
        };
        let definitions = d.definitions();
        definitions.iter().for_each(|o| d.note(o));
        let established: Vec<Object> = definitions.into_iter().filter(|o| is_true(o, "Established")).collect();
        d.install(&established);
        d
    }

    /// Follows changes of definitions until the store closes.
    pub fn run(self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.work())
    }

    async fn work(mut self) {
        loop {
            let snapshot = self.registry.store.snapshot();
            let known: Vec<String> = self.names.keys().cloned().collect();
            let definitions = self.definitions();
            for name in known {
                if !self.is_stored(&name) {
                    self.forget(&name);
                }
            }
            for o in definitions {
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
                                // An unreadable definition keeps its rows.
                                (Change::Put, None) => {}
                                (Change::Delete, Some(o)) => self.gone(&o).await,
                                (Change::Delete, None) => self.forget(&e.entry.key.name),
                            }
                        }
                    }
                    // Rebuild from the current definitions.
                    Err(WatchError::Expired { .. } | WatchError::Engine(_)) => break,
                    Err(_) => return,
                }
            }
        }
    }

    /// Returns the decodable definitions; others keep their rows.
    fn definitions(&self) -> Vec<Object> {
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

    /// Returns the names taken by other definitions of the group.
    fn taken(&self, o: &Object) -> Taken {
        let group = o.str_at(&["spec", "group"]).unwrap_or_default();
        let others = self.names.iter().filter(|(name, n)| n.group == group && **name != o.name());
        Taken::from_accepted(others.map(|(_, n)| &n.given)).and_built_in(group)
    }

    /// Follows a definition. A panic is contained, and the definition is retried on its next change.
    async fn try_follow(&mut self, o: Object) {
        let name = o.name().to_owned();
        let _ = caught("definitions", name, self.follow(o)).await;
    }

    /// Updates names, rows and conditions of a definition, from its current state in the store.
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

    /// Releases the names of a deleted definition, and updates definitions with conflicts.
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
        self.registry.change_rows(|definitions| {
            let mut definitions = definitions.clone();
            rows.iter().for_each(|r| definitions.remove(r));
            definitions
        });
    }

    /// Replaces the rows of definitions.
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
            // Objects of generation 1 already conform to the schema.
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
                // Built-in resources cannot be defined.
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

/// Updates the status and finalizers of a definition.
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

/// The deletion of a definition: first its objects, then itself.
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
                    tokio::time::sleep(RETRY_DELAY).await;
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
            // The definition may have been recreated.
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

    /// Deletes all objects and waits until none is left. Other controllers remove their finalizers.
    async fn empty(&self, row: &Arc<Resource>) -> Result<(), Status> {
        let Some((resource, _)) = row.stored() else { return Ok(()) };
        let revision = self.registry.store.revision();
        let mut watch =
            self.registry.store.watch(Scope::resource(resource), revision).map_err(|e| Status::internal(&e))?;
        let definitions: Vec<Arc<Entry>> =
            self.registry.store.snapshot().range(resource, None, None).cloned().collect();
        for e in definitions {
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

    /// Deletes an object that is not yet being deleted.
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
