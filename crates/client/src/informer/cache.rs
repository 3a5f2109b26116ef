//! The cache of an informer.

use super::View;
use crate::shared::Stored;
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::any::TypeId;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Bound, Deref};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, LazyLock, Weak};
use supervisor::panics::caught_now;
use tokio::sync::Notify;

/// Namespace and name. The namespace of a cluster-scoped object is empty.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Namespace; empty if cluster-scoped.
    pub namespace: Arc<str>,
    /// Object name.
    pub name: Arc<str>,
}

impl Key {
    /// Key of a namespace, empty if cluster-scoped, and a name.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Labels, sorted by key. Objects with equal labels may share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels(Arc<[(Arc<str>, Arc<str>)]>);

impl Labels {
    /// `sorted` by key, each key once.
    pub fn from_sorted(sorted: Arc<[(Arc<str>, Arc<str>)]>) -> Self {
        Self(sorted)
    }

    /// The value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.binary_search_by(|(k, _)| (**k).cmp(key)).ok().map(|i| &*self.0[i].1)
    }

    /// Pairs of key and value, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (&**k, &**v))
    }

    /// The number of labels.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no labels.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Default for Labels {
    fn default() -> Self {
        static NONE: LazyLock<Labels> = LazyLock::new(|| Labels(Arc::new([])));
        NONE.clone()
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let map = Option::<BTreeMap<Arc<str>, Arc<str>>>::deserialize(d)?.unwrap_or_default();
        Ok(if map.is_empty() { Self::default() } else { Self(map.into_iter().collect()) })
    }
}

/// The metadata that every reader needs. Annotations and managed fields are read on demand.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.namespace`; empty if cluster-scoped.
    pub namespace: Arc<str>,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.generation`; 0 if absent.
    pub generation: i64,
    /// `metadata.labels`.
    pub labels: Labels,
    /// `metadata.creationTimestamp`.
    pub creation_timestamp: Option<Timestamp>,
    /// `metadata.deletionTimestamp`; set while the object is being deleted.
    pub deletion_timestamp: Option<Timestamp>,
    /// `metadata.finalizers`.
    pub finalizers: Vec<String>,
    /// `metadata.ownerReferences`.
    pub owner_references: Vec<Owner>,
}

/// Metadata that a store knows without decoding the object.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Identity {
    name: Arc<str>,
    namespace: Arc<str>,
    resource_version: String,
    labels: Labels,
}

/// The rest of [`Meta`].
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rest {
    uid: Arc<str>,
    generation: i64,
    creation_timestamp: Option<Timestamp>,
    deletion_timestamp: Option<Timestamp>,
    #[serde(deserialize_with = "or_default")]
    finalizers: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    owner_references: Vec<Owner>,
}

impl Meta {
    /// From the JSON of a complete object.
    pub(crate) fn from_object(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Head<'a> {
            #[serde(borrow)]
            metadata: &'a RawValue,
        }
        let head: Head<'_> = serde_json::from_slice(bytes)?;
        let metadata = head.metadata.get();
        Ok(Self::from_parts(serde_json::from_str(metadata)?, serde_json::from_str(metadata)?))
    }

    /// From JSON that begins with `metadata`.
    pub(crate) fn stored(
        (namespace, name): (Arc<str>, Arc<str>),
        labels: Labels,
        revision: u64,
        metadata: &[u8],
    ) -> Result<Self, serde_json::Error> {
        let rest = Rest::deserialize(&mut serde_json::Deserializer::from_slice(metadata))?;
        Ok(Self::from_parts(Identity { name, namespace, resource_version: revision.to_string(), labels }, rest))
    }

    fn from_parts(identity: Identity, rest: Rest) -> Self {
        let Identity { name, namespace, resource_version, labels } = identity;
        let Rest { uid, generation, creation_timestamp, deletion_timestamp, finalizers, owner_references } = rest;
        Self {
            name,
            namespace,
            uid,
            resource_version,
            generation,
            labels,
            creation_timestamp,
            deletion_timestamp,
            finalizers,
            owner_references,
        }
    }
}

/// Reads `null` as the default. For views too: `#[serde(default, deserialize_with = "client::informer::or_default")]`.
pub fn or_default<'de, T: Default + Deserialize<'de>, D: serde::Deserializer<'de>>(d: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}

/// An owner reference (`metav1.OwnerReference`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Owner {
    /// API version of the owner: `apps/v1`.
    pub api_version: String,
    /// Kind of the owner.
    pub kind: String,
    /// Name of the owner, in the namespace of the object or cluster-scoped.
    pub name: String,
    /// UID of the owner.
    pub uid: Arc<str>,
    /// Whether the owner is the managing controller.
    pub controller: bool,
    /// Whether foreground deletion of the owner waits for the object.
    pub block_owner_deletion: bool,
}

impl Meta {
    /// Namespace and name.
    pub fn key(&self) -> Key {
        Key { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// The owner that is the managing controller, if any.
    pub fn controller(&self) -> Option<&Owner> {
        self.owner_references.iter().find(|o| o.controller)
    }

    /// Whether the object has a deletion timestamp.
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key)
    }
}

/// One object: its bytes and metadata, which all readers share, and the reader's view of it.
pub struct Entry<V> {
    object: Arc<Stored>,
    /// The reader's view of the object.
    pub view: V,
}

impl<V> Deref for Entry<V> {
    type Target = Stored;

    fn deref(&self) -> &Stored {
        &self.object
    }
}

impl<V: View> Entry<V> {
    /// From the JSON of a complete object.
    pub fn new(bytes: Bytes) -> Result<Self, serde_json::Error> {
        Self::stored(Arc::new(Stored::whole(bytes)?))
    }

    /// From an object that others may share.
    pub fn stored(object: Arc<Stored>) -> Result<Self, serde_json::Error> {
        let view = view(object.bytes())?;
        Ok(Self { object, view })
    }
}

fn view<V: View>(bytes: &[u8]) -> Result<V, serde_json::Error> {
    // Serde reads the unit type from `null` alone; as a view it means metadata and nothing else.
    let nothing = TypeId::of::<V>() == TypeId::of::<()>();
    meta::depth::from_slice(if nothing { b"null" } else { bytes })
}

impl<V> Entry<V> {
    /// Namespace and name.
    pub fn key(&self) -> Key {
        self.meta.key()
    }

    /// Whether the entry shares this allocation.
    pub fn shares(&self, bytes: &Bytes) -> bool {
        let own = self.object.bytes();
        std::ptr::eq(own.as_ptr(), bytes.as_ptr()) && own.len() == bytes.len()
    }

    /// Decodes the complete object as a typed view or as [`meta::Object`]. List items may lack `kind`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, crate::Error> {
        crate::client::decode(&self.object.json(), || self.key().to_string())
    }
}

/// A change: an object that was added (`old` is none), modified, or deleted (`new` is none).
pub struct Change<V> {
    /// The state before the change; none if the object was added.
    pub old: Option<Arc<Entry<V>>>,
    /// The state after the change; none if the object was deleted.
    pub new: Option<Arc<Entry<V>>>,
}

impl<V> Change<V> {
    /// The object, or its last state if it was deleted.
    pub fn latest(&self) -> &Arc<Entry<V>> {
        match (&self.new, &self.old) {
            (Some(e), _) | (None, Some(e)) => e,
            (None, None) => unreachable!("a change has an object"),
        }
    }

    /// Namespace and name of the object.
    pub fn key(&self) -> Key {
        self.latest().key()
    }
}

type Handler<V> = Arc<dyn Fn(&Change<V>) + Send + Sync>;
type IndexFn<V> = Arc<dyn Fn(&Entry<V>) -> Vec<String> + Send + Sync>;

struct Index<V> {
    values: IndexFn<V>,
    keys: BTreeMap<String, BTreeSet<Key>>,
}

/// An entry, ordered by namespace and name without a copy of them.
struct Slot<V>(Arc<Entry<V>>);

trait Named {
    fn parts(&self) -> (&str, &str);
}

impl<V> Named for Slot<V> {
    fn parts(&self) -> (&str, &str) {
        (&self.0.meta.namespace, &self.0.meta.name)
    }
}

impl Named for Key {
    fn parts(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

impl PartialEq for dyn Named + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn Named + '_ {}

impl PartialOrd for dyn Named + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Named + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl<V> PartialEq for Slot<V> {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl<V> Eq for Slot<V> {}

impl<V> PartialOrd for Slot<V> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<V> Ord for Slot<V> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl<'a, V: 'a> Borrow<dyn Named + 'a> for Slot<V> {
    fn borrow(&self) -> &(dyn Named + 'a) {
        self
    }
}

struct Store<V> {
    entries: BTreeSet<Slot<V>>,
    by_controller: BTreeMap<Arc<str>, BTreeSet<Key>>,
    /// The objects without a controller; none until somebody needs them.
    orphans: Option<BTreeSet<Key>>,
    indexes: BTreeMap<&'static str, Index<V>>,
}

/// Whether an informer has its connection. Wakes those that wait in their order; tokio's `watch` does so in a random one, which would make
/// simulations unrepeatable.
#[derive(Default)]
pub(super) struct Connection {
    lost: AtomicBool,
    changed: Notify,
}

impl Connection {
    pub(super) fn get(&self) -> bool {
        !self.lost.load(Acquire)
    }

    pub(super) fn set(&self, connected: bool) {
        if self.lost.swap(!connected, AcqRel) && connected {
            self.changed.notify_waiters();
        }
    }

    /// Waits until there is a connection.
    pub(super) async fn wait(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.get() {
                return;
            }
            changed.await;
        }
    }
}

pub(super) struct Shared<V> {
    store: RwLock<Store<V>>,
    /// Locked while an event is delivered, so that a new handler misses no event and gets none twice.
    handlers: Mutex<Vec<(Weak<()>, Handler<V>)>>,
    /// Keeps handlers without a subscription alive.
    pub(super) forever: Arc<()>,
    /// The store shows all changes up to this revision.
    pub(super) revision: AtomicU64,
    /// False from the end of a watch until the next one has delivered what happened meanwhile.
    pub(super) connection: Connection,
}

impl<V: View> Shared<V> {
    pub(super) fn new() -> Self {
        let store =
            Store { entries: BTreeSet::new(), by_controller: BTreeMap::new(), orphans: None, indexes: BTreeMap::new() };
        let (store, handlers) = (RwLock::new(store), Mutex::new(Vec::new()));
        let (revision, connection) = (AtomicU64::new(0), Connection::default());
        Self { store, handlers, forever: Arc::new(()), revision, connection }
    }

    /// Notes that everything up to a revision was stored.
    pub(super) fn reached(&self, resource_version: &str) {
        if let Ok(revision) = resource_version.parse() {
            self.revision.store(revision, Release);
        }
    }

    pub(super) fn read(&self) -> Cache<'_, V> {
        Cache(self.store.read())
    }

    /// Calls `f` for each change until the referent of `alive` is dropped.
    pub(super) fn subscribe(&self, alive: Weak<()>, f: Handler<V>) {
        let mut handlers = self.handlers.lock();
        handlers.retain(|(alive, _)| alive.strong_count() > 0);
        let all: Vec<_> = self.store.read().entries.iter().map(|s| s.0.clone()).collect();
        for e in all {
            f(&Change { old: None, new: Some(e) });
        }
        handlers.push((alive, f));
    }

    pub(super) fn add_index(&self, name: &'static str, values: IndexFn<V>) {
        let mut s = self.store.write();
        if s.indexes.contains_key(name) {
            return;
        }
        let mut keys: BTreeMap<String, BTreeSet<Key>> = BTreeMap::new();
        for Slot(e) in &s.entries {
            for v in values(e) {
                keys.entry(v).or_default().insert(e.key());
            }
        }
        s.indexes.insert(name, Index { values, keys });
    }

    /// The objects whose controller has this UID, and those of the namespace without a controller. The first call indexes the latter.
    pub(super) fn controlled_or_orphaned(&self, uid: &str, namespace: &str) -> Vec<Arc<Entry<V>>> {
        if self.store.read().orphans.is_none() {
            let mut s = self.store.write();
            let orphans = s.entries.iter().filter(|s| s.0.meta.controller().is_none()).map(|s| s.0.key()).collect();
            s.orphans = Some(orphans);
        }
        let s = self.read();
        let orphans = s.0.orphans.iter().flat_map(|keys| keys.range(Key::new(namespace, "")..));
        let orphans = orphans.take_while(|k| *k.namespace == *namespace).filter_map(|k| s.get(k));
        s.controlled_by(uid).chain(orphans).cloned().collect()
    }

    /// Stores the current state of an object.
    pub(super) fn put(&self, entry: Entry<V>) {
        let handlers = self.handlers.lock();
        let new = Arc::new(entry);
        let old = self.store.write().put(new.clone());
        if let Some(o) = &old
            && o.meta.resource_version == new.meta.resource_version
            && o.meta.uid == new.meta.uid
        {
            return;
        }
        // A new object of the same name: handlers must see the old one deleted.
        let old = match old {
            Some(o) if o.meta.uid != new.meta.uid => {
                deliver(&handlers, &Change { old: Some(o), new: None });
                None
            }
            other => other,
        };
        deliver(&handlers, &Change { old, new: Some(new) });
    }

    /// Removes an object; `last` is its last state, if known.
    pub(super) fn remove(&self, key: &Key, last: Option<Entry<V>>) {
        let handlers = self.handlers.lock();
        let Some(held) = self.store.write().remove(key) else { return };
        let old = last.map_or(held, Arc::new);
        deliver(&handlers, &Change { old: Some(old), new: None });
    }

    /// Replaces the contents by a complete list; other objects are removed.
    pub(super) fn replace(&self, list: Vec<Entry<V>>) {
        let listed: BTreeSet<Key> = list.iter().map(Entry::key).collect();
        let gone: Vec<Key> =
            self.store.read().entries.iter().map(|s| s.0.key()).filter(|k| !listed.contains(k)).collect();
        for k in gone {
            self.remove(&k, None);
        }
        for e in list {
            self.put(e);
        }
    }
}

fn deliver<V>(handlers: &[(Weak<()>, Handler<V>)], change: &Change<V>) {
    for (_, h) in handlers.iter().filter(|(alive, _)| alive.strong_count() > 0) {
        // A panic in one handler affects neither the others nor the watch.
        let _ = caught_now("informer", change.key(), || h(change));
    }
}

impl<V> Store<V> {
    fn get(&self, key: &Key) -> Option<&Arc<Entry<V>>> {
        self.entries.get(key as &dyn Named).map(|s| &s.0)
    }

    fn put(&mut self, e: Arc<Entry<V>>) -> Option<Arc<Entry<V>>> {
        let key = e.key();
        let old = self.remove(&key);
        if let Some(c) = e.meta.controller() {
            self.by_controller.entry(c.uid.clone()).or_default().insert(key.clone());
        } else if let Some(orphans) = &mut self.orphans {
            orphans.insert(key.clone());
        }
        for index in self.indexes.values_mut() {
            for v in (index.values)(&e) {
                index.keys.entry(v).or_default().insert(key.clone());
            }
        }
        self.entries.insert(Slot(e));
        old
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<Entry<V>>> {
        let Slot(old) = self.entries.take(key as &dyn Named)?;
        if let Some(c) = old.meta.controller() {
            drop_key(&mut self.by_controller, &c.uid, key);
        } else if let Some(orphans) = &mut self.orphans {
            orphans.remove(key);
        }
        for index in self.indexes.values_mut() {
            for v in (index.values)(&old) {
                drop_key(&mut index.keys, &v, key);
            }
        }
        Some(old)
    }
}

fn drop_key<I: Ord + Clone>(index: &mut BTreeMap<I, BTreeSet<Key>>, at: &I, key: &Key) {
    if let Some(keys) = index.get_mut(at) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(at);
        }
    }
}

/// A read lock on a cache. Hold it briefly and never across an `await`.
pub struct Cache<'a, V>(RwLockReadGuard<'a, Store<V>>);

impl<V> Cache<'_, V> {
    /// The entry of a key.
    pub fn get(&self, key: &Key) -> Option<&Arc<Entry<V>>> {
        self.0.get(key)
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.0.entries.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.entries.is_empty()
    }

    /// All entries, sorted by namespace and name.
    pub fn entries(&self) -> impl Iterator<Item = &Arc<Entry<V>>> {
        self.0.entries.iter().map(|s| &s.0)
    }

    /// The entries of a namespace, sorted by name.
    pub fn in_namespace<'b>(&'b self, namespace: &'b str) -> impl Iterator<Item = &'b Arc<Entry<V>>> + 'b {
        let start = Key::new(namespace, "");
        self.0
            .entries
            .range::<dyn Named, _>((Bound::Included(&start as &dyn Named), Bound::Unbounded))
            .map(|s| &s.0)
            .take_while(move |e| &*e.meta.namespace == namespace)
    }

    /// The objects whose controller has this UID.
    pub fn controlled_by(&self, uid: &str) -> impl Iterator<Item = &Arc<Entry<V>>> {
        self.0.by_controller.get(uid).into_iter().flatten().filter_map(|k| self.0.get(k))
    }

    /// The objects for which an index function returned `value`.
    pub fn by_index(&self, index: &str, value: &str) -> impl Iterator<Item = &Arc<Entry<V>>> {
        self.0.indexes.get(index).and_then(|i| i.keys.get(value)).into_iter().flatten().filter_map(|k| self.0.get(k))
    }
}
