//! Watch: events of a resource as one client selects them.

use crate::Registry;
use crate::list::{ListOptions, Selector, parse_revision};
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

/// Whether a watch begins with the state there is, as `ADDED` events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Initial {
    /// If it begins at no revision, or at any.
    #[default]
    Unsaid,
    /// Yes, and says where the state ends.
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

/// An event as a client sees it.
#[derive(Clone)]
pub struct ObjectEvent {
    pub kind: ObjectEventKind,
    /// For a deletion: the last state, with the revision of the deletion.
    pub entry: Arc<Entry>,
}

/// A running watch of one client.
pub struct ObjectWatch {
    initial: VecDeque<ObjectEvent>,
    /// The revision at which the initial state ends, until that was said.
    initial_end: Option<u64>,
    watch: Watch,
    selector: Selector,
    /// Nothing up to here is told: the watch may begin at a revision that is still to come.
    after: u64,
}

/// What came out of a watch.
pub enum Batch {
    Events(Vec<ObjectEvent>),
    /// The initial state ends here.
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
            if let Some(damaged) = snapshot.all_damaged(resource, namespace).next() {
                return Err(crate::list::unreadable(damaged));
            }
            let entries = snapshot.range(resource, namespace, None);
            let wanted = entries.filter(|e| name.is_none_or(|n| *e.key.name == *n) && selector.matches(e));
            initial.extend(wanted.map(|e| ObjectEvent { kind: ObjectEventKind::Added, entry: e.clone() }));
            initial_end = (options.initial == Initial::Send).then_some(after);
        }
        let watch = self.store.watch(scope, after.min(self.store.revision())).map_err(|e| watch_status(&e, after))?;
        Ok(ObjectWatch { initial, initial_end, watch, selector, after })
    }
}

impl ObjectWatch {
    /// The next events; waits until there are some. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Batch, Status> {
        if !self.initial.is_empty() {
            let n = self.initial.len().min(512);
            return Ok(Batch::Events(self.initial.drain(..n).collect()));
        }
        if let Some(r) = self.initial_end.take() {
            return Ok(Batch::InitialEnd(r));
        }
        loop {
            let from = self.watch.revision();
            let batch = self.watch.next().await.map_err(|e| watch_status(&e, from))?;
            let events: Vec<_> =
                batch.events.iter().filter(|e| e.revision > self.after).filter_map(|e| self.select(e)).collect();
            if !events.is_empty() {
                return Ok(Batch::Events(events));
            }
        }
    }

    /// Everything up to here was delivered.
    pub fn revision(&self) -> u64 {
        self.watch.revision().max(self.after)
    }

    /// An object that begins to match is added, one that ceases to is deleted.
    fn select(&self, e: &Event) -> Option<ObjectEvent> {
        let is = e.change == Change::Put && self.selector.matches(&e.entry);
        let was = match &e.previous {
            Some(p) => self.selector.matches(p),
            None => e.change == Change::Delete && self.selector.matches(&e.entry),
        };
        let kind = match (was, is) {
            (false, true) => ObjectEventKind::Added,
            (true, true) => ObjectEventKind::Modified,
            (true, false) => ObjectEventKind::Deleted,
            (false, false) => return None,
        };
        let entry = match (kind, e.change, &e.previous) {
            // It lives on outside the selection: the client sees its last selected state at the new revision.
            (ObjectEventKind::Deleted, Change::Put, Some(p)) => Arc::new(p.at(e.revision)),
            _ => e.entry.clone(),
        };
        Some(ObjectEvent { kind, entry })
    }
}

/// What ends a watch from this revision on.
fn watch_status(e: &WatchError, from: u64) -> Status {
    match e {
        WatchError::Expired { oldest } => Status::expired(format!("too old resource version: {from} ({oldest})")),
        WatchError::Future { current } => crate::list::too_new(current + 1, *current),
        other => Status::internal(other),
    }
}
