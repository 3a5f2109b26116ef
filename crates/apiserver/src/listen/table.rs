//! Limits open connections and chooses which to close at the limit.
//!
//! A connection is *known* once a request on it has been authenticated. Invariant: connections that are not known
//! never displace known ones. At the limit, a new connection closes the oldest connection that is not known, else the
//! known one idle longest, else the oldest of the user with by far the most. After a protocol upgrade, a connection
//! keeps its slot until its socket closes.

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Budget for unparsed request bytes of all connections; above it, connections that exceed their share are closed.
const PARTIAL: usize = 64 << 20;
const PARTIAL_SHARE: usize = 16 << 10;
/// A response is aborted after no progress for this long; streams are exempt, as a person may pause reading.
const STALLED: Duration = Duration::from_secs(60);
const STREAM_STALLED: Duration = Duration::from_secs(15 * 60);

pub(crate) struct Table {
    /// Maximum number of connections, of those not known, and of these per address.
    limits: [usize; 3],
    inner: Mutex<Inner>,
    partial: AtomicUsize,
    begun: Instant,
}

#[derive(Default)]
struct Inner {
    next: u64,
    /// In order of arrival.
    strangers: BTreeMap<u64, Arc<Connection>>,
    by_address: HashMap<IpAddr, BTreeSet<u64>>,
    known: BTreeMap<u64, Arc<Connection>>,
}

pub(crate) struct Connection {
    id: u64,
    address: Option<IpAddr>,
    table: Weak<Table>,
    known: AtomicBool,
    user: OnceLock<Box<str>>,
    /// Requests with unsent responses.
    pub open: watch::Sender<usize>,
    /// The end of the last request, in milliseconds of the table's clock.
    last: AtomicU64,
    partial: AtomicUsize,
    /// Upgraded to another protocol, whose readers bound its memory.
    upgraded: AtomicBool,
    closing: AtomicBool,
    close: Notify,
    /// The waker of the socket's reader, after `close` is no longer awaited.
    reader: AtomicWaker,
    answers: Mutex<Vec<Weak<Progress>>>,
}

/// The client's progress in reading a response.
pub(crate) struct Progress {
    /// When a piece was handed out and the next has not been requested; 0 while the response waits for its source.
    given: AtomicU64,
    most: Duration,
}

/// A slot in the table, until dropped.
pub(crate) struct TableEntry(pub Arc<Connection>);

impl Table {
    pub fn new(most: usize) -> Arc<Self> {
        let limits = [most.max(4), (most / 2).max(2), (most / 4).max(1)];
        Arc::new(Self { limits, inner: Mutex::default(), partial: AtomicUsize::new(0), begun: Instant::now() })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// Acquires a slot for a new connection. None if all are held by known connections with open requests, of many
    /// users.
    pub fn admit(self: &Arc<Self>, address: Option<IpAddr>) -> Option<TableEntry> {
        let address = address.map(network);
        let [most, strangers, each] = self.limits;
        let mut inner = self.inner.lock();
        let crowd = address.and_then(|a| inner.by_address.get(&a)).filter(|c| c.len() >= each);
        if let Some(oldest) = crowd.and_then(|c| c.first().copied()) {
            inner.close_stranger(oldest);
        }
        if inner.strangers.len() >= strangers || inner.strangers.len() + inner.known.len() >= most {
            if let Some(oldest) = inner.strangers.keys().next().copied() {
                inner.close_stranger(oldest);
            } else if let Some(idle) = inner.longest_idle() {
                inner.remove(&idle);
                idle.close();
            } else if let Some(connection) = inner.oldest_of_the_greediest(each) {
                inner.remove(&connection);
                connection.close();
            } else {
                return None;
            }
        }
        inner.next += 1;
        let connection = Arc::new(Connection {
            id: inner.next,
            address,
            table: Arc::downgrade(self),
            known: AtomicBool::new(false),
            user: OnceLock::new(),
            open: watch::Sender::new(0),
            last: AtomicU64::new(self.now()),
            partial: AtomicUsize::new(0),
            upgraded: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            close: Notify::new(),
            reader: AtomicWaker::new(),
            answers: Mutex::default(),
        });
        inner.strangers.insert(connection.id, connection.clone());
        if let Some(a) = address {
            inner.by_address.entry(a).or_default().insert(connection.id);
        }
        Some(TableEntry(connection))
    }

    /// Closes a connection when the process is out of file descriptors.
    pub fn close_one(&self) {
        let mut inner = self.inner.lock();
        if let Some(oldest) = inner.strangers.keys().next().copied() {
            inner.close_stranger(oldest);
        } else if let Some(idle) = inner.longest_idle() {
            inner.remove(&idle);
            idle.close();
        }
    }
}

impl Inner {
    fn close_stranger(&mut self, id: u64) {
        if let Some(c) = self.strangers.get(&id).cloned() {
            self.remove(&c);
            c.close();
        }
    }

    fn longest_idle(&self) -> Option<Arc<Connection>> {
        let idle = self.known.values().filter(|c| *c.open.borrow() == 0 && !c.is_upgraded());
        idle.min_by_key(|c| c.last.load(Ordering::Relaxed)).cloned()
    }

    /// The oldest connection of the user with the most, if they are at least `share`.
    fn oldest_of_the_greediest(&self, share: usize) -> Option<Arc<Connection>> {
        let mut users: HashMap<&str, (usize, &Arc<Connection>)> = HashMap::new();
        for c in self.known.values() {
            users.entry(c.user()).or_insert((0, c)).0 += 1;
        }
        let (count, oldest) = users.into_values().max_by_key(|(count, _)| *count)?;
        (count >= share).then(|| oldest.clone())
    }

    fn remove(&mut self, c: &Connection) {
        if self.strangers.remove(&c.id).is_some() {
            self.forget_address(c);
        }
        self.known.remove(&c.id);
    }

    fn forget_address(&mut self, c: &Connection) {
        let Some(a) = c.address else { return };
        if let Some(all) = self.by_address.get_mut(&a) {
            all.remove(&c.id);
            if all.is_empty() {
                self.by_address.remove(&a);
            }
        }
    }
}

impl Connection {
    /// Marks the connection as known.
    pub fn became_known(&self, user: &str) {
        if self.known.load(Ordering::Relaxed) || self.known.swap(true, Ordering::Relaxed) {
            return;
        }
        let _ = self.user.set(user.into());
        let Some(table) = self.table.upgrade() else { return };
        let mut inner = table.inner.lock();
        // A connection closed meanwhile has no slot.
        if let Some(c) = inner.strangers.remove(&self.id) {
            inner.forget_address(self);
            inner.known.insert(self.id, c);
        }
    }

    /// The user that large responses are charged to: the first authenticated one.
    pub fn user(&self) -> &str {
        self.user.get().map_or("", |u| u)
    }

    pub fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed)
    }

    /// Closes the connection, whatever its state.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.close.notify_one();
        self.reader.wake();
    }

    /// Marks the connection as upgraded.
    pub fn upgrade(&self) {
        self.upgraded.store(true, Ordering::Release);
    }

    pub fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Acquire)
    }

    /// Whether to close an upgraded connection; if not, registers the reader to be woken.
    pub fn is_over(&self, reader: &Waker) -> bool {
        if !self.is_upgraded() {
            return false;
        }
        self.reader.register(reader);
        self.closing.load(Ordering::Acquire)
    }

    /// Returns when the connection is to be closed.
    pub async fn closed(&self) {
        while !self.closing.load(Ordering::Acquire) {
            self.close.notified().await;
        }
    }

    /// Marks a request as parsed: its bytes are no longer counted as unparsed.
    pub fn begin(&self) {
        self.open.send_modify(|n| *n += 1);
        self.understood();
    }

    fn understood(&self) {
        let partial = self.partial.swap(0, Ordering::Relaxed);
        if let Some(table) = self.table.upgrade().filter(|_| partial > 0) {
            table.partial.fetch_sub(partial, Ordering::Relaxed);
        }
    }

    pub fn end(&self) {
        if let Some(table) = self.table.upgrade() {
            self.last.store(table.now(), Ordering::Relaxed);
        }
        self.open.send_modify(|n| *n -= 1);
        self.understood();
    }

    /// Counts bytes read. Returns false if the connection exceeds its limit of unparsed bytes.
    pub fn may_read(&self, bytes: usize) -> bool {
        // Bodies of known clients are limited by budgets; those of others may be discarded.
        if bytes == 0 || self.is_upgraded() || (self.is_known() && *self.open.borrow() > 0) {
            return true;
        }
        let Some(table) = self.table.upgrade() else { return true };
        let own = self.partial.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let all = table.partial.fetch_add(bytes, Ordering::Relaxed) + bytes;
        all <= PARTIAL || own <= PARTIAL_SHARE
    }

    /// Time without an open request, since the last ended.
    pub fn idle(&self) -> Option<Duration> {
        let table = self.table.upgrade().filter(|_| *self.open.borrow() == 0)?;
        Some(Duration::from_millis(table.now().saturating_sub(self.last.load(Ordering::Relaxed))))
    }

    /// Tracks the progress of a response.
    pub fn follow(&self, stream: bool) -> Arc<Progress> {
        let most = if stream { STREAM_STALLED } else { STALLED };
        let progress = Arc::new(Progress { given: AtomicU64::new(0), most });
        let mut all = self.answers.lock();
        if all.len() == all.capacity() {
            all.retain(|a| a.strong_count() > 0);
        }
        all.push(Arc::downgrade(&progress));
        progress
    }

    /// Records that a piece was handed out, or the next one requested.
    pub fn mark(&self, progress: &Progress, given: bool) {
        let now = if given { self.table.upgrade().map_or(0, |t| t.now()) } else { 0 };
        progress.given.store(now, Ordering::Relaxed);
    }

    /// Whether a response has made no progress for too long.
    pub fn is_stalled(&self) -> bool {
        let Some(table) = self.table.upgrade() else { return false };
        let now = table.now();
        let mut all = self.answers.lock();
        all.retain(|a| a.strong_count() > 0);
        let stalled = |p: Arc<Progress>| {
            let since = p.given.load(Ordering::Relaxed);
            since > 0 && Duration::from_millis(now.saturating_sub(since)) >= p.most
        };
        all.iter().filter_map(Weak::upgrade).any(stalled)
    }
}

impl Drop for TableEntry {
    fn drop(&mut self) {
        let Some(table) = self.0.table.upgrade() else { return };
        table.partial.fetch_sub(self.0.partial.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        table.inner.lock().remove(&self.0);
    }
}

/// The unit of per-address limits: for IPv6, a /64 network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(a) => Ipv6Addr::from_bits(a.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> Option<IpAddr> {
        Some([10, 0, 0, last].into())
    }

    fn is_closed(p: &TableEntry) -> bool {
        p.0.closing.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn strangers_leave_room_for_those_who_are_known() {
        // 8 connections, 4 of them not known, 2 of these from one address.
        let t = Table::new(8);
        let first = t.admit(ip(1)).unwrap();
        let second = t.admit(ip(1)).unwrap();
        let third = t.admit(ip(1)).unwrap();
        assert!(is_closed(&first) && !is_closed(&second), "the oldest of the address");
        second.0.became_known("jane");
        let fourth = t.admit(ip(1)).unwrap();
        assert!(!is_closed(&third), "who is known is not counted");
        let others: Vec<TableEntry> = (2..5).map(|n| t.admit(ip(n)).unwrap()).collect();
        assert!(is_closed(&third) && !is_closed(&fourth), "the oldest of all");
        others.iter().for_each(|p| p.0.became_known("jane"));
        let more: Vec<TableEntry> = (0..4).map(|n| t.admit(ip(10 + n)).unwrap()).collect();
        assert!(is_closed(&fourth) && more.iter().all(|p| !is_closed(p)));
        more.iter().for_each(|p| p.0.became_known("jane"));
        assert!(t.inner.lock().strangers.is_empty() && t.inner.lock().by_address.is_empty());
        // All are known: closes the one idle longest, and none with open requests.
        second.0.begin();
        others[1].0.last.store(0, Ordering::Relaxed);
        let newest = t.admit(ip(1)).unwrap();
        assert!(is_closed(&others[1]) && !is_closed(&second));
        drop(newest);
        for p in [&second, &others[0], &others[2]].into_iter().chain(&more) {
            p.0.begin();
        }
        let entry = t.admit(ip(1)).unwrap();
        entry.0.became_known("jane");
        entry.0.begin();
        assert!(t.admit(ip(1)).is_some() && is_closed(&second), "one user does not take all places");
    }

    #[tokio::test]
    async fn nobody_who_works_is_closed_for_another_but_of_who_has_by_far_the_most() {
        let t = Table::new(8);
        let all: Vec<TableEntry> = (0..8).map(|n| t.admit(ip(n)).unwrap()).collect();
        // Closes connections that are not known for later ones, each of which becomes known.
        let all: Vec<TableEntry> = all.into_iter().filter(|p| !is_closed(p)).collect();
        for (n, p) in all.iter().enumerate() {
            p.0.became_known(&format!("user{n}"));
            p.0.begin();
        }
        let more: Vec<TableEntry> = (all.len()..8)
            .map(|n| {
                let p = t.admit(ip(1)).unwrap();
                p.0.became_known(&format!("user{n}"));
                p.0.begin();
                p
            })
            .collect();
        assert!(t.admit(ip(9)).is_none());
        assert!(all.iter().chain(&more).all(|p| !is_closed(p)));
    }

    #[tokio::test]
    async fn what_is_not_understood_is_bounded() {
        let t = Table::new(8);
        let (large, small) = (t.admit(ip(1)).unwrap(), t.admit(ip(2)).unwrap());
        assert!(large.0.may_read(PARTIAL));
        assert!(small.0.may_read(PARTIAL_SHARE), "each has a share of its own");
        assert!(!small.0.may_read(1) && !large.0.may_read(1));
        small.0.begin();
        assert!(
            small.0.may_read(PARTIAL_SHARE) && !small.0.may_read(1),
            "the count continues until a request is authenticated"
        );
        small.0.became_known("jane");
        assert!(small.0.may_read(PARTIAL), "the body of a request is bounded otherwise");
        drop(large);
        small.0.end();
        assert!(small.0.may_read(PARTIAL) && t.partial.load(Ordering::Relaxed) == PARTIAL);
    }

    #[tokio::test]
    async fn a_stream_keeps_its_place_and_is_not_counted_by_bytes() {
        let t = Table::new(8);
        let stream = t.admit(ip(1)).unwrap();
        stream.0.became_known("jane");
        stream.0.begin();
        stream.0.upgrade();
        stream.0.end();
        assert!(stream.0.may_read(2 * PARTIAL) && t.partial.load(Ordering::Relaxed) == 0);
        let idle = t.admit(ip(1)).unwrap();
        idle.0.became_known("jane");
        stream.0.last.store(0, Ordering::Relaxed);
        assert_eq!(t.inner.lock().longest_idle().map(|c| c.id), Some(idle.0.id), "a stream is not idle");
        let waker = futures::task::noop_waker();
        assert!(!stream.0.is_over(&waker));
        stream.0.close();
        assert!(stream.0.is_over(&waker));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_takes_is_noticed() {
        let t = Table::new(8);
        let entry = t.admit(ip(1)).unwrap();
        let (taken, left) = (entry.0.follow(false), entry.0.follow(false));
        entry.0.mark(&taken, true);
        entry.0.mark(&taken, false);
        tokio::time::sleep(2 * STALLED).await;
        assert!(!entry.0.is_stalled(), "it waits for its source");
        entry.0.mark(&left, true);
        tokio::time::sleep(STALLED / 2).await;
        assert!(!entry.0.is_stalled());
        tokio::time::sleep(STALLED).await;
        assert!(entry.0.is_stalled());
        drop(left);
        assert!(!entry.0.is_stalled());
    }
}
