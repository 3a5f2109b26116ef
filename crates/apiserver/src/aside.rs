//! Where requests are worked on that may take long: on threads of their own, so that no other request waits for their decoding
//! and validation.
//!
//! A request goes there for its size, or because its resource says that its writes are slow. How many bytes are worked on at
//! a time is bounded, since a decoded object takes many times the memory of its text. Without such threads (in tests with
//! virtual time) every request is worked on where it arrives. One user takes half of the room at most, so that two users do not
//! wait for each other. Left out: fairness among many users, which is what priority levels are for.

use crate::body::Body;
use crate::budget::Budget;
use crate::content::{Encoding, Shape};
use crate::handle::Call;
use crate::{Server, verbs};
use http::{Method, Response};
use meta::Status;
use parking_lot::Mutex;
use registry::Resource;
use std::cell::Cell;
use std::sync::Arc;
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::task::JoinHandle;

/// Bodies and stored objects from this size on are worked on aside.
const LARGE: usize = 64 << 10;
/// Lists of so many objects that have to be decoded.
const MANY: usize = 500;
/// What is worked on at a time, in KiB: a few bodies of the largest size.
const AT_A_TIME: usize = 16 << 10;

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

/// Does work for a request where it stands, before it is known where the request goes. What is large holds up no other
/// request of this thread, and is done one after the other.
pub(crate) fn in_place<T>(size: usize, work: impl FnOnce() -> T) -> T {
    static TURN: Mutex<()> = Mutex::new(());
    let many = Handle::try_current().is_ok_and(|h| h.runtime_flavor() == RuntimeFlavor::MultiThread);
    if size < LARGE || !many {
        return work();
    }
    tokio::task::block_in_place(|| {
        let _turn = TURN.lock();
        work()
    })
}

/// The way to those threads.
pub(crate) struct Aside {
    threads: Option<Handle>,
    room: Budget,
}

impl Aside {
    pub fn new(threads: Option<Handle>) -> Self {
        Self { threads, room: Budget::new(AT_A_TIME, AT_A_TIME / 2) }
    }

    /// Those that wait are refused from now on.
    pub fn end(&self) {
        self.room.close();
    }
}

/// Stops work that nobody waits for any more, at its next pause.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Works on a request, here or aside.
pub(crate) async fn dispatch(server: &Arc<Server>, call: Call, row: Arc<Resource>) -> Result<Response<Body>, Status> {
    let threads = server.aside.threads.as_ref().filter(|_| !HERE.get());
    let Some((threads, size)) = threads.zip(size(server, &call, &row)) else {
        return verbs::dispatch(server, call, row).await;
    };
    let kib = u32::try_from((size >> 10).clamp(1, AT_A_TIME / 2)).unwrap_or(u32::MAX);
    let room = &server.aside.room;
    let Some(room) = room.take(&call.user.name, kib, server.options.request_timeout).await else {
        return Err(match room.is_closed() {
            true => Status::unavailable("the server is shutting down"),
            false => Status::too_many_requests("too many large requests of this user are being worked on", 1),
        });
    };
    let server = server.clone();
    let mut task = Task(threads.spawn(async move {
        let answer = verbs::dispatch(&server, call, row).await;
        drop(room);
        answer
    }));
    (&mut task.0).await.unwrap_or_else(|e| Err(Status::internal(format!("working on the request failed: {e}"))))
}

/// The bytes that are worked on; none if they are few.
fn size(server: &Server, call: &Call, row: &Resource) -> Option<usize> {
    let t = &call.target;
    if call.verb == "watch" || verbs::is_stream(&t.subresource) {
        return None;
    }
    let stored = || {
        let key = row.key(&t.namespace, &t.name).filter(|_| !t.name.is_empty())?;
        Some(server.registry.store.snapshot().get(&key)?.value.len())
    };
    if matches!(call.parts.method, Method::GET | Method::HEAD) {
        let shown = match call.wanted.shape {
            Shape::Object => call.wanted.is_plain(),
            Shape::PartialMetadata | Shape::PartialMetadataList => call.wanted.encoding == Encoding::Json,
            Shape::Table => false,
        };
        if shown {
            return None;
        }
        if !t.name.is_empty() {
            return stored().filter(|size| *size >= LARGE);
        }
        let (resource, _) = row.stored()?;
        let namespace = Some(t.namespace.as_str()).filter(|n| !n.is_empty());
        let count = server.registry.store.snapshot().count(resource, namespace);
        return (count >= MANY).then_some(count << 10);
    }
    let size = call.body.len() + stored().unwrap_or_default();
    (size >= LARGE || row.strategy.is_slow_to_write()).then_some(size)
}
