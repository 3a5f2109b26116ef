//! The account of a node's disk: what running pulls will still write to it.
//!
//! **Invariant.** A pull begins only if the disk has room for all its declared sizes besides what others will still write. The sizes are
//! those of registries, and others write to the disk too: after each [`CHECK`] bytes of all pulls together the disk itself is looked at.
//!
//! The pulls of a namespace are refused for the sake of others only up to half of the room, so that no namespace blocks the others with
//! large images that it never downloads.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use runtime::ImageStore;
use runtime::image::Room;

use crate::error::Error;

/// Bytes that all pulls write between two looks at the disk.
const CHECK: u64 = 1 << 20;

/// The progress of all running pulls of a [`crate::Puller`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are downloaded.
    pub downloaded: u64,
    /// Bytes of the manifests' descriptors: zero until a manifest is read.
    pub total: u64,
}

pub(crate) struct Account {
    store: ImageStore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What pulls will still write, by namespace.
    promised: HashMap<String, Room>,
    /// Bytes written since the last look at the disk.
    unchecked: u64,
    /// Bytes of all running pulls.
    declared: u64,
}

impl State {
    /// What the pulls of other namespaces will still write, at most half of the room.
    fn promised_to_others(&self, namespace: &str, room: Room) -> Room {
        let others = self.promised.iter().filter(|(name, _)| *name != namespace);
        let sum = others.fold(Room::default(), |sum, (_, promised)| Room {
            bytes: sum.bytes.saturating_add(promised.bytes),
            files: sum.files.saturating_add(promised.files),
        });
        Room { bytes: sum.bytes.min(room.bytes / 2), files: sum.files.min(room.files / 2) }
    }
}

impl Account {
    pub fn new(store: ImageStore) -> Arc<Account> {
        Arc::new(Account { store, state: Mutex::default() })
    }

    /// Reserves room for a pull. Errors if the disk has none.
    pub fn reserve(self: &Arc<Self>, namespace: &str, needed: Room) -> Result<Reservation, Error> {
        let mut state = self.state.lock();
        let room = self.room()?;
        let others = state.promised_to_others(namespace, room);
        let own = state.promised.get(namespace).copied().unwrap_or_default();
        let bytes = room.bytes.saturating_sub(others.bytes).saturating_sub(own.bytes);
        let files = room.files.saturating_sub(others.files).saturating_sub(own.files);
        if needed.bytes > bytes {
            return Err(Error::NoRoom { needed: needed.bytes, room: bytes });
        }
        if needed.files > files {
            return Err(Error::NoFiles { needed: needed.files, room: files });
        }
        let promised = state.promised.entry(namespace.to_owned()).or_default();
        promised.bytes = promised.bytes.saturating_add(needed.bytes);
        promised.files = promised.files.saturating_add(needed.files);
        let left = AtomicU64::new(needed.bytes);
        state.declared = state.declared.saturating_add(needed.bytes);
        Ok(Reservation { account: self.clone(), namespace: namespace.to_owned(), left, needed })
    }

    /// What running pulls have downloaded and will have downloaded, in bytes.
    pub fn progress(&self) -> Progress {
        let state = self.state.lock();
        let left = state.promised.values().fold(0, |sum: u64, promised| sum.saturating_add(promised.bytes));
        Progress { downloaded: state.declared.saturating_sub(left), total: state.declared }
    }

    fn room(&self) -> Result<Room, Error> {
        self.store.room().map_err(Error::Store)
    }
}

/// The room of one pull, which is released when it is dropped.
pub(crate) struct Reservation {
    account: Arc<Account>,
    namespace: String,
    /// Bytes still to be written.
    left: AtomicU64,
    needed: Room,
}

impl Reservation {
    /// Counts bytes that are about to be written. Errors if the disk has no room for them any more.
    pub fn write(&self, bytes: u64) -> Result<(), Error> {
        let mut state = self.account.state.lock();
        self.take(&mut state, bytes);
        state.unchecked = state.unchecked.saturating_add(bytes);
        if state.unchecked < CHECK {
            return Ok(());
        }
        state.unchecked = 0;
        let (needed, room) = (self.left.load(Ordering::Relaxed).saturating_add(bytes), self.account.room()?.bytes);
        if needed > room { Err(Error::NoRoom { needed, room }) } else { Ok(()) }
    }

    /// Counts bytes that were removed, and will be written again.
    pub fn rewrite(&self, bytes: u64) {
        let mut state = self.account.state.lock();
        self.left.fetch_add(bytes, Ordering::Relaxed);
        let promised = state.promised.entry(self.namespace.clone()).or_default();
        promised.bytes = promised.bytes.saturating_add(bytes);
    }

    /// What the image leaves to the pulls of others when it is unpacked.
    pub fn promised_to_others(&self) -> Room {
        let state = self.account.state.lock();
        let room = self.account.room().unwrap_or_default();
        state.promised_to_others(&self.namespace, room)
    }

    fn take(&self, state: &mut State, bytes: u64) {
        let left = self.left.load(Ordering::Relaxed);
        let taken = bytes.min(left);
        self.left.store(left - taken, Ordering::Relaxed);
        if let Some(promised) = state.promised.get_mut(&self.namespace) {
            promised.bytes = promised.bytes.saturating_sub(taken);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.account.state.lock();
        self.take(&mut state, u64::MAX);
        state.declared = state.declared.saturating_sub(self.needed.bytes);
        let Some(promised) = state.promised.get_mut(&self.namespace) else { return };
        promised.files = promised.files.saturating_sub(self.needed.files);
        if *promised == Room::default() {
            state.promised.remove(&self.namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pulls_share_the_room_and_release_it() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::open(directory.path().join("images")).unwrap();
        let account = Account::new(store.clone());
        let room = store.room().unwrap().bytes;
        let part = |percent: u64| Room { bytes: room / 100 * percent, files: 1 };
        assert!(matches!(account.reserve("a", part(101)), Err(Error::NoRoom { .. })));
        let first = account.reserve("a", part(60)).unwrap();
        assert!(matches!(account.reserve("a", part(60)), Err(Error::NoRoom { .. })), "the same namespace");
        assert!(matches!(account.reserve("b", part(60)), Err(Error::NoRoom { .. })), "another one");
        // No namespace keeps others from half of the room.
        drop(account.reserve("b", part(45)).unwrap());
        let second = account.reserve("a", part(30)).unwrap();
        drop(account.reserve("b", part(45)).unwrap());
        first.write(1 << 10).unwrap();
        let total = part(60).bytes + part(30).bytes;
        assert_eq!(account.progress(), Progress { downloaded: 1 << 10, total });
        first.rewrite(1 << 10);
        assert_eq!(account.state.lock().promised["a"], Room { bytes: part(60).bytes + part(30).bytes, files: 2 });
        drop((first, second));
        assert!(account.state.lock().promised.is_empty());
        assert_eq!(account.progress(), Progress::default());
        assert!(matches!(account.reserve("a", Room { bytes: 1, files: u64::MAX }), Err(Error::NoFiles { .. })));
    }
}
