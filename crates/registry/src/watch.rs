//! Watch: the events of a resource, filtered for one client.

use crate::Registry;
use crate::list::{ListOptions, Selector, parse_revision};
use crate::row::Resource;
use crate::strategy::Request;
use meta::Status;
use std::collections::VecDeque;
use std::sync::Arc;
use store::{Change, Entry, Event, Scope, Watch, WatchError};

#[derive(Clone, Debug, Default)]
pub struct WatchOptions {
    pub list: ListOptions,
    pub initial: Initial,
}

/// Whether a watch starts with the current state as `ADDED` events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Initial {
    /// Only if the start revision is empty or 0.
    #[default]
    Unsaid,
    /// Yes, followed by a bookmark.
    Send,
    Skip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectEventKind {
    Added,
    Modified,
    Deleted,
}

impl ObjectEventKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// An event for a client.
#[derive(Clone)]
pub struct ObjectEvent {
    pub kind: ObjectEventKind,
    /// For a deletion: the last state, with the revision of the deletion.
    pub entry: Arc<Entry>,
}

/// A running watch of one client.
pub struct ObjectWatch {
    initial: VecDeque<ObjectEvent>,
    /// The revision of the initial state, until [`Batch::InitialEnd`] has been returned.
    initial_end: Option<u64>,
    watch: Watch,
    /// Received events that are not filtered yet: filtering may await conversions, and must lose nothing when
    /// cancelled.
    pending: Vec<Arc<Event>>,
    /// The last delivered revision, while events are pending.
    delivered: u64,
    row: Arc<Resource>,
    selector: Selector,
    /// Events up to here are skipped: the watch may start at a future revision.
    after: u64,
}

/// What [`ObjectWatch::next`] returns.
pub enum Batch {
    Events(Vec<ObjectEvent>),
    /// The initial state is complete.
    InitialEnd(u64),
}

impl Registry {
    pub fn watch(&self, request: &Request, options: &WatchOptions) -> Result<ObjectWatch, Status> {
        let row = &request.resource;
        let Some((resource, _)) = row.stored() else {
            return Err(Status::method_not_supported(&row.group_resource(), "watch"));
        };
        let namespace = Some(request.namespace.as_str()).filter(|n| !n.is_empty());
        let name = Some(request.name.as_str()).filter(|n| !n.is_empty());
        let selector = Selector::new(row, &options.list);
        let revision = parse_revision(&options.list.resource_version)?;
        let scope =
            Scope { resource: resource.clone(), namespace: namespace.map(Into::into), name: name.map(Into::into) };
        let mut initial = VecDeque::new();
        let mut after = revision;
        let mut initial_end = None;
        if options.initial == Initial::Skip && revision == 0 {
            after = self.store.revision();
        } else if options.initial == Initial::Send || revision == 0 {
            let snapshot = self.store.snapshot();
            if revision > snapshot.revision() {
                return Err(crate::list::too_new(revision, snapshot.revision()));
            }
            after = snapshot.revision();
            crate::check_readable(&snapshot, resource, namespace)?;
            let entries = snapshot.range(resource, namespace, None);
            let matching = entries.filter(|e| name.is_none_or(|n| *e.key.name == *n) && selector.may_match(e));
            initial.extend(matching.map(|e| ObjectEvent { kind: ObjectEventKind::Added, entry: e.clone() }));
            initial_end = (options.initial == Initial::Send).then_some(after);
        }
        let watch = self.store.watch(scope, after.min(self.store.revision())).map_err(|e| watch_status(&e, after))?;
        let (row, pending) = (row.clone(), Vec::new());
        Ok(ObjectWatch { initial, initial_end, watch, pending, delivered: after, row, selector, after })
    }
}

impl ObjectWatch {
    /// Returns the next events; waits for the first. Cancel safe.
    pub async fn next(&mut self, registry: &Registry) -> Result<Batch, Status> {
        while !self.initial.is_empty() {
            let n = self.initial.len().min(512);
            let entries = self.initial.range(..n).map(|e| e.entry.clone()).collect();
            let selected = registry.selected(&self.row, &self.selector, entries).await?;
            self.initial.drain(..n);
            if !selected.is_empty() {
                let added = |entry| ObjectEvent { kind: ObjectEventKind::Added, entry };
                return Ok(Batch::Events(selected.into_iter().map(added).collect()));
            }
        }
        if let Some(r) = self.initial_end.take() {
            return Ok(Batch::InitialEnd(r));
        }
        loop {
            if self.pending.is_empty() {
                let from = self.watch.revision();
                self.delivered = from;
                let batch = self.watch.next().await.map_err(|e| watch_status(&e, from))?;
                self.pending = batch.events;
                self.pending.retain(|e| e.revision > self.after);
            }
            let events = self.select(registry).await?;
            self.pending.clear();
            if !events.is_empty() {
                return Ok(Batch::Events(events));
            }
        }
    }

    /// The revision up to which all events were delivered.
    pub fn revision(&self) -> u64 {
        let revision = if self.pending.is_empty() { self.watch.revision() } else { self.delivered };
        revision.max(self.after)
    }

    /// Filters pending events: an object that starts to match is added, one that stops matching is deleted.
    async fn select(&self, registry: &Registry) -> Result<Vec<ObjectEvent>, Status> {
        let inside = self.selector.looks_inside();
        let mut selected = Vec::new();
        if inside {
            let states = |e: &Arc<Event>| [Some(&e.entry), e.previous.as_ref()].map(|e| e.cloned());
            let all = self.pending.iter().flat_map(states).flatten().collect();
            selected = registry.selected(&self.row, &self.selector, all).await?;
        }
        // In the order of `all`.
        let mut selected = selected.into_iter().peekable();
        let mut matches = |e: &Arc<Entry>| match inside {
            true => selected.next_if(|s| Arc::ptr_eq(s, e)).is_some(),
            false => self.selector.matches(e),
        };
        let mut events = Vec::new();
        for e in &self.pending {
            let now = matches(&e.entry);
            let before = e.previous.as_ref().map(&mut matches);
            let is = e.change == Change::Put && now;
            let was = before.unwrap_or(e.change == Change::Delete && now);
            let kind = match (was, is) {
                (false, true) => ObjectEventKind::Added,
                (true, true) => ObjectEventKind::Modified,
                (true, false) => ObjectEventKind::Deleted,
                (false, false) => continue,
            };
            let entry = match (kind, e.change, &e.previous) {
                // The object exists but no longer matches: the client receives its last matching state at the new
                // revision.
                (ObjectEventKind::Deleted, Change::Put, Some(p)) => Arc::new(p.at(e.revision)),
                _ => e.entry.clone(),
            };
            events.push(ObjectEvent { kind, entry });
        }
        Ok(events)
    }
}

/// Converts the error that ends a watch started at this revision.
fn watch_status(e: &WatchError, from: u64) -> Status {
    match e {
        WatchError::Expired { oldest } => Status::expired(format!("too old resource version: {from} ({oldest})")),
        WatchError::Future { current } => crate::list::too_new(current + 1, *current),
        other => Status::internal(other),
    }
}
