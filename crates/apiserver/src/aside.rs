//! Where requests are worked on that may take long: on threads of their own, so that no other request waits for their decoding
//! and validation.
//!
//! A request goes there for the size of what is decoded for it (its body, the object that it names, and those of others that its strategy
//! or an admission plugin reads), or because its resource says that its writes are slow. How many bytes are worked on at
//! a time is bounded, since a decoded object takes many times the memory of its text. Without such threads (in tests with
//! virtual time) every request is worked on where it arrives. One flow ([`crate::budget`]) takes half of the room at most, and
//! those that wait are served in a fair order: whatever many service accounts of one namespace send, a large request of somebody
//! else is next or nearly so. Left out: taking a thread away from what is being worked on.

use crate::admit::Stored;
use crate::body::Body;
use crate::budget::{Budget, Room};
use crate::content::{CBOR, Encoding, PROTOBUF, Shape};
use crate::handle::Call;
use crate::{Server, verbs};
use admission::Write;
use http::{Method, Response};
use meta::{Object, Status};
use parking_lot::Mutex;
use registry::encode::Unreadable;
use registry::{Resource, Sub, Views, amount, encode};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::Entry;
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::task::JoinHandle;

/// Bodies and stored objects from this size on are worked on aside.
const LARGE: usize = 64 << 10;
/// Lists of so many objects that have to be decoded.
const MANY: usize = amount::MANY;
/// What is worked on at a time, in KiB: a few bodies of the largest size.
const AT_A_TIME: usize = 16 << 10;
/// What waits for webhooks, in KiB. Its objects stay in memory, though nobody works on them.
const OUTSIDE: usize = 64 << 10;
/// How long a request waits to be read for the audit log.
const TURN_PATIENCE: Duration = Duration::from_secs(30);
const TOO_MANY: &str = "too many large requests of this user are being worked on";
/// What an object or a list within a body counts, in bytes: a body of nothing but empty ones takes hundreds of times its size.
const PART: usize = 32;
/// What a write counts that takes long though it is small.
const SLOW: usize = 1 << 20;

thread_local! {
    /// Whether this thread is one of those that work aside.
    static HERE: Cell<bool> = const { Cell::new(false) };
}

/// Makes the threads: half as many as cores, so that the other half answers meanwhile, and two at least, for two users.
pub fn runtime() -> std::io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread()
        .worker_threads(cores.div_ceil(2).max(2))
        .thread_name("large-requests")
        .on_thread_start(|| HERE.set(true))
        .enable_all()
        .build()
}

/// What is done one after the other with [`in_place`], each for itself: nothing quick waits for what takes long.
#[derive(Clone, Copy)]
pub(crate) enum Line {
    Audit,
    Discovery,
    /// Documents of OpenAPI.
    Schemas,
    /// Objects of which little is kept.
    Views,
    /// Objects that admission plugins look up.
    Objects,
}

/// Does work for a request where it stands, before it is known where the request goes. What is large holds up no other
/// request of this thread, and is done one after the other.
pub(crate) fn in_place<T>(line: Line, size: usize, work: impl FnOnce() -> T) -> T {
    static TURNS: [Mutex<()>; 5] = [const { Mutex::new(()) }; 5];
    let many = Handle::try_current().is_ok_and(|h| h.runtime_flavor() == RuntimeFlavor::MultiThread);
    if size < LARGE || !many || HERE.get() {
        return work();
    }
    tokio::task::block_in_place(|| {
        let _turn = TURNS[line as usize].lock();
        work()
    })
}

/// What is kept of a stored object. It is decoded once per revision, and with [`in_place`] if it is large. Errors if it cannot be decoded.
pub(crate) fn view<T>(
    views: &Views<T>,
    entry: &Entry,
    of: impl FnOnce(&Object) -> (T, usize),
) -> Result<Arc<T>, Unreadable> {
    if let Some(known) = views.known(entry) {
        return Ok(known);
    }
    // Of several that ask for it at a time, one decodes it.
    in_place(Line::Views, entry.value.len(), || views.try_get(entry, |e| Ok(of(&encode::decode(e)?))))
}

/// The way to those threads.
pub(crate) struct Aside {
    threads: Option<Handle>,
    /// How much work went there so far.
    count: AtomicU64,
    room: Budget,
    /// What waits meanwhile for somebody outside, in KiB.
    outside: Budget,
    /// What is read in place at a time, in KiB.
    turns: Budget,
}

impl Aside {
    pub fn new(threads: Option<Handle>) -> Self {
        let turns = Budget::new(AT_A_TIME / 2, AT_A_TIME / 4);
        let outside = Budget::new(OUTSIDE, OUTSIDE / 4);
        Self { threads, count: AtomicU64::new(0), room: Budget::new(AT_A_TIME, AT_A_TIME / 2), outside, turns }
    }

    /// There are such threads, and this is none of them.
    fn is_open(&self) -> bool {
        self.threads.is_some() && !HERE.get()
    }

    /// How many requests, or parts of requests, were sent to those threads.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// A user's turn to have something large read with [`in_place`]: few do so at a time, so that few threads wait there.
    pub async fn turn(&self, user: &str, size: usize) -> Result<Option<Room>, Status> {
        if size < LARGE {
            return Ok(None);
        }
        let turn = self.turns.take(user, (size >> 10).min(AT_A_TIME / 4), TURN_PATIENCE).await;
        turn.map(Some).ok_or_else(|| Status::too_many_requests(TOO_MANY, 1))
    }

    /// Those that wait are refused from now on.
    pub fn end(&self) {
        self.room.close();
        self.outside.close();
        self.turns.close();
    }
}

/// Stops work that nobody waits for any more, at its next pause.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

tokio::task_local! {
    static HELD: Arc<Held>;
}

/// What a request that is worked on aside holds.
struct Held {
    user: String,
    kib: usize,
    patience: Duration,
    room: Budget,
    outside: Budget,
    state: Mutex<State>,
}

struct State {
    /// Among those that are worked on, or among those that wait outside.
    room: Option<Room>,
    /// For how many outside it waits now.
    waits: usize,
}

/// One of those that are waited for is not any more.
struct Waiting<'a>(&'a Held);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waits -= 1;
    }
}

/// Waits for somebody outside (a webhook). Meanwhile the request leaves its room to others, since nobody knows for how long. `None`:
/// too many wait so already.
pub(crate) async fn outside<T>(work: impl Future<Output = T>) -> Option<T> {
    let Ok(held) = HELD.try_with(Arc::clone) else { return Some(work.await) };
    {
        let mut state = held.state.lock();
        if state.waits == 0 {
            state.room = Some(held.outside.take_now(&held.user, held.kib)?);
        }
        state.waits += 1;
    }
    let waiting = Waiting(&held);
    let done = work.await;
    drop(waiting);
    if held.state.lock().waits == 0 {
        let room = held.room.take(&held.user, held.kib, held.patience).await?;
        let mut state = held.state.lock();
        // Another one may be waited for by now.
        if state.waits == 0 {
            state.room = Some(room);
        }
    }
    Some(done)
}

/// Works on a request, here or aside.
pub(crate) async fn dispatch(server: &Arc<Server>, call: Call, row: Arc<Resource>) -> Result<Response<Body>, Status> {
    let size = if server.aside.is_open() { size(server, &call, &row) } else { None };
    if size.is_none() {
        return verbs::dispatch(server, call, row).await;
    }
    let (user, of) = (call.user.name.clone(), server.clone());
    work(server, &user, size, async move { verbs::dispatch(&of, call, row).await }).await
}

/// Does work that reads stored objects for a request that is otherwise not worked on aside (it leads to a stream). `size`: their bytes.
pub(crate) async fn read<T: Send + 'static>(
    server: &Arc<Server>,
    user: &str,
    size: usize,
    read: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    work(server, user, Some(size).filter(|size| *size >= LARGE && server.aside.is_open()), read).await
}

/// Does work of a user, here or, if it has a size, aside.
async fn work<T: Send + 'static>(
    server: &Server,
    user: &str,
    size: Option<usize>,
    work: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    let aside = &server.aside;
    let Some((threads, size)) = aside.threads.as_ref().zip(size) else { return work.await };
    aside.count.fetch_add(1, Ordering::Relaxed);
    let kib = (size >> 10).clamp(1, AT_A_TIME / 2);
    let patience = server.options.request_timeout;
    let Some(room) = aside.room.take(user, kib, patience).await else {
        return Err(match aside.room.is_closed() {
            true => Status::unavailable("the server is shutting down"),
            false => Status::too_many_requests(TOO_MANY, 1),
        });
    };
    let held = Held {
        user: user.to_owned(),
        kib,
        patience,
        room: aside.room.clone(),
        outside: aside.outside.clone(),
        state: Mutex::new(State { room: Some(room), waits: 0 }),
    };
    let mut task = Task(threads.spawn(HELD.scope(Arc::new(held), work)));
    (&mut task.0).await.unwrap_or_else(|e| Err(Status::internal(format!("working on the request failed: {e}"))))
}

/// Bytes of the object that a request names, as it is stored.
pub(crate) fn stored(server: &Server, row: &Resource, namespace: &str, name: &str) -> Option<usize> {
    let key = row.key(namespace, name).filter(|_| !name.is_empty())?;
    Some(server.registry.store.snapshot().get(&key)?.value.len())
}

/// The bytes that are worked on; none if they are few.
fn size(server: &Server, call: &Call, row: &Resource) -> Option<usize> {
    let t = &call.target;
    if call.verb == "watch" || verbs::is_stream(&t.subresource) {
        return None;
    }
    let stored = || stored(server, row, &t.namespace, &t.name);
    if matches!(call.parts.method, Method::GET | Method::HEAD) {
        // What is stored in another version, or from before the definition changed, is not sent as it is, nor is what a subresource
        // makes of an object (its scale).
        let made =
            !t.subresource.is_empty() && !matches!(row.strategy.subresource(&t.subresource), None | Some(Sub::Part));
        let decodes = row.converts() || row.reshaped > 0 || made;
        let shown = match call.wanted.shape {
            Shape::Object => call.wanted.is_plain() && !decodes,
            Shape::PartialMetadata | Shape::PartialMetadataList => call.wanted.encoding == Encoding::Json && !decodes,
            Shape::Table => false,
        };
        if shown {
            return None;
        }
        if !t.name.is_empty() {
            return stored().filter(|size| *size >= LARGE);
        }
        let (count, bytes) = collection(server, row, &t.namespace)?;
        let bytes = bytes + count * row.strategy.adds_defaults();
        return (count >= MANY || bytes >= LARGE).then_some(bytes.max(count << 10));
    }
    let mut size = call.body.len() + stored().unwrap_or_default() + others(server, call, row);
    if call.verb == "deletecollection" {
        // One object after the other is decoded.
        size += collection(server, row, &t.namespace).map_or(0, |(count, bytes)| bytes.max(count << 10)).min(SLOW);
    }
    if row.strategy.slow_from().is_some_and(|from| size >= from) {
        return Some((size + parts(call)).max(SLOW));
    }
    (size >= LARGE).then(|| size + parts(call))
}

/// Bytes of other objects that a write decodes: its strategy does, or admission plugins.
fn others(server: &Server, call: &Call, row: &Resource) -> usize {
    let t = &call.target;
    let write = Write {
        verb: call.verb,
        group: &row.kind.group,
        resource: &row.kind.plural,
        subresource: &t.subresource,
        namespace: &t.namespace,
        name: &t.name,
    };
    let stored = Stored { registry: &server.registry, decoded: &server.decoded };
    row.strategy.reads(server.registry.env(), &t.subresource, &t.namespace, &t.name)
        + server.admission.reads(&write, &stored)
}

/// How many objects there are of a resource, and about how many bytes.
fn collection(server: &Server, row: &Resource, namespace: &str) -> Option<(usize, usize)> {
    let (resource, _) = row.stored()?;
    let namespace = Some(namespace).filter(|n| !n.is_empty());
    let snapshot = server.registry.store.snapshot();
    Some((snapshot.count(resource, namespace), amount::all(&snapshot, resource, namespace)))
}

/// What the objects and lists within a body add to its size: each takes far more memory than its few characters.
fn parts(call: &Call) -> usize {
    let count = match call.media_type() {
        PROTOBUF | CBOR => call.body.len() / 4,
        media => {
            let lines = media.ends_with("yaml").then(|| memchr::memchr_iter(b'\n', &call.body).count());
            memchr::memchr2_iter(b'{', b'[', &call.body).count() + lines.unwrap_or_default()
        }
    };
    count * PART
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(room: &Budget, outside: &Budget) -> Arc<Held> {
        let state = Mutex::new(State { room: room.take_now("jane", 6), waits: 0 });
        let (room, outside) = (room.clone(), outside.clone());
        Arc::new(Held { user: "jane".into(), kib: 6, patience: Duration::from_secs(9), room, outside, state })
    }

    #[tokio::test]
    async fn who_waits_outside_leaves_room_to_others() {
        let (room, waiting) = (Budget::new(10, 10), Budget::new(10, 6));
        let request = HELD.scope(held(&room, &waiting), async {
            assert!(room.take_now("joe", 5).is_none(), "it is worked on");
            let (one, two) = tokio::join!(
                outside(async { assert!(room.take_now("joe", 10).is_some()) }),
                outside(async {
                    tokio::task::yield_now().await;
                    assert!(room.take_now("joe", 10).is_some(), "one of two is still waited for");
                    let another = HELD.scope(held(&room, &waiting), outside(async {}));
                    assert!(another.await.is_none(), "too many wait already");
                }),
            );
            assert!(one.and(two).is_some());
            assert!(room.take_now("joe", 5).is_none(), "it is worked on again");
            assert!(waiting.take_now("joe", 6).is_some());
        });
        request.await;
        assert!(room.take_now("joe", 10).is_some(), "nothing is left behind");
        // What is small holds nothing.
        assert!(outside(async {}).await.is_some());
    }
}
