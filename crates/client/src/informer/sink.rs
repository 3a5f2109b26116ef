//! Where a reflector puts what it reads. The reflector sees no type of view, so that its state machine exists once in a program.

use super::View;
use super::cache::{Connection, Entry, Shared};
use crate::ApiResource;
use crate::shared::Stored;
use std::sync::Arc;

/// A cache, whatever its views are.
pub(super) trait Sink: Send + Sync {
    /// Whether the cache has its connection.
    fn connection(&self) -> &Connection;

    /// Notes that everything up to a revision was stored.
    fn reached(&self, resource_version: &str);

    /// Stores an object.
    fn put(&self, object: Arc<Stored>);

    /// Removes an object; this is its last state.
    fn remove(&self, object: Arc<Stored>);

    /// Begins a list.
    fn list(&self) -> Box<dyn Listing>;
}

/// A list that is read page by page.
pub(super) trait Listing: Send {
    fn add(&mut self, object: Arc<Stored>);

    /// Replaces the contents of the cache by the list.
    fn finish(self: Box<Self>);
}

/// The cache of one type of view.
pub(super) struct Views<V> {
    pub shared: Arc<Shared<V>>,
    pub resource: ApiResource,
}

struct Entries<V> {
    views: Views<V>,
    entries: Vec<Entry<V>>,
}

impl<V: View> Views<V> {
    /// Decodes the view of an object. An object without a view (with a number out of range, for example) is skipped, so that it does not
    /// hide the others.
    fn read(&self, object: &Arc<Stored>) -> Option<Entry<V>> {
        let undecodable = |error| {
            let (resource, key) = (&self.resource, object.meta.key());
            tracing::warn!(?resource, object = %key, %error, "cannot decode the object: skipping it");
        };
        Entry::stored(object.clone()).map_err(undecodable).ok()
    }
}

impl<V: View> Sink for Views<V> {
    fn connection(&self) -> &Connection {
        &self.shared.connection
    }

    fn reached(&self, resource_version: &str) {
        self.shared.reached(resource_version);
    }

    fn put(&self, object: Arc<Stored>) {
        match self.read(&object) {
            Some(entry) => self.shared.put(entry),
            None => self.shared.remove(&object.meta.key(), None),
        }
    }

    fn remove(&self, object: Arc<Stored>) {
        self.shared.remove(&object.meta.key(), self.read(&object));
    }

    fn list(&self) -> Box<dyn Listing> {
        let views = Self { shared: self.shared.clone(), resource: self.resource.clone() };
        Box::new(Entries { views, entries: Vec::new() })
    }
}

impl<V: View> Listing for Entries<V> {
    fn add(&mut self, object: Arc<Stored>) {
        self.entries.extend(self.views.read(&object));
    }

    fn finish(self: Box<Self>) {
        self.views.shared.replace(self.entries);
    }
}
