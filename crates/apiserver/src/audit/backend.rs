//! Audit backends: the log or a webhook, blocking or in batches (`k8s.io/apiserver/plugin/pkg/audit`: log, webhook,
//! buffered).
//!
//! Invariant: in batch mode requests never wait; events that exceed the buffer are counted and dropped. In blocking
//! modes an event is delivered or dropped before the response is sent. An event that is too large for its backend is
//! truncated or dropped.

use super::Log;
use auth::remote::Remote;
use bytes::Bytes;
use meta::Rng;
use std::sync::Arc;
use std::time::Duration;
use supervisor::{Component, OnEnd};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Events per delivery.
type Events = Arc<Vec<Bytes>>;

/// The delivery mode.
#[derive(Clone, Debug)]
pub enum Mode {
    Batch(Batch),
    /// Before the response.
    Blocking,
    /// Before the response; and a request fails if its first event is lost.
    Strict,
}

#[derive(Clone, Debug)]
pub struct Batch {
    /// Maximum number of buffered events.
    pub buffer: usize,
    /// Events of one batch.
    pub size: usize,
    /// Maximum delay of an incomplete batch.
    pub wait: Duration,
    /// Batches per second, and burst.
    pub throttle: Option<(f64, u32)>,
}

/// Size limits of a delivery (`k8s.io/apiserver/plugin/pkg/audit/truncate`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of an event: a larger one is sent without its objects, or dropped if still too large.
    pub event: usize,
    /// Maximum bytes of a batch.
    pub batch: usize,
}

/// An audit webhook.
pub struct Webhook {
    pub remote: Remote,
    /// Delay before the second of five attempts; each further delay is 1.5 times as long.
    pub initial_backoff: Duration,
    pub rng: Arc<dyn Rng>,
}

const TRIES: u32 = 5;
/// Maximum jitter of delays, as a fraction.
const JITTER: f64 = 0.2;
/// Prefix of a standalone event, which is omitted in a list.
const ALONE: &[u8] = br#""kind":"Event","apiVersion":"audit.k8s.io/v1","#;

pub enum Sink {
    Log(Log),
    Webhook(Webhook),
}

impl Sink {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Log(_) => "log",
            Self::Webhook(_) => "webhook",
        }
    }

    /// Sends events in as many deliveries as needed. Continues after a failure, and returns the first.
    async fn send_in(&self, limits: Option<Limits>, events: &[Bytes]) -> Result<(), String> {
        let Some(limits) = limits else { return self.send(events).await };
        let (mut begin, mut size, mut all) = (0, 0, Ok(()));
        for (i, e) in events.iter().enumerate() {
            if i > begin && size + e.len() > limits.batch {
                all = all.and(self.send(&events[begin..i]).await);
                (begin, size) = (i, 0);
            }
            size += e.len();
        }
        all.and(self.send(&events[begin..]).await)
    }

    async fn send(&self, events: &[Bytes]) -> Result<(), String> {
        match self {
            Self::Log(log) => log.write(events.to_vec()).await.map_err(|e| e.to_string()),
            Self::Webhook(w) => w.send(events).await,
        }
    }
}

impl Webhook {
    async fn send(&self, events: &[Bytes]) -> Result<(), String> {
        let body: Bytes = list(events).into();
        let mut pause = self.initial_backoff;
        for attempt in 1.. {
            match self.remote.tell(body.clone()).await {
                Ok(()) => return Ok(()),
                Err(e) if attempt == TRIES => return Err(e),
                Err(_) => {}
            }
            let share = (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            tokio::time::sleep(pause.mul_f64(1.0 + JITTER * share)).await;
            pause = pause.mul_f64(1.5);
        }
        Ok(())
    }
}

fn list(events: &[Bytes]) -> Vec<u8> {
    let mut out = br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#.to_vec();
    for (i, e) in events.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        let inner = e.strip_prefix(b"{").unwrap_or(e);
        out.push(b'{');
        out.extend_from_slice(inner.strip_prefix(ALONE).unwrap_or(inner).trim_ascii_end());
    }
    out.extend_from_slice(b"]}");
    out
}

/// Reports undelivered events: backend, number, and error.
pub type Lost = Arc<dyn Fn(&'static str, usize, &str) + Send + Sync>;

/// A running backend.
pub(super) struct Backend {
    sink: Arc<Sink>,
    mode: Mode,
    limits: Option<Limits>,
    buffer: Option<mpsc::Sender<Item>>,
    /// Budget for buffered events, until delivered or dropped.
    budget: Arc<Semaphore>,
    lost: Lost,
}

/// Maximum bytes of buffered events per backend.
const WAITING_BYTES: usize = 64 << 20;
/// How long a blocking event waits for budget.
const PATIENCE: Duration = Duration::from_secs(30);

/// A buffered event and its share of the budget.
struct Waiting {
    event: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Waiting {
    fn as_ref(&self) -> &[u8] {
        &self.event
    }
}

enum Item {
    Event(Bytes),
    /// All events before this were delivered or dropped.
    Flush(oneshot::Sender<()>),
}

impl Backend {
    /// Starts a backend. In batch mode a service of `component` sends the batches.
    pub fn start(sink: Sink, mode: Mode, limits: Option<Limits>, lost: Lost, component: &Component) -> Self {
        let sink = Arc::new(sink);
        let buffer = match &mode {
            Mode::Batch(batch) => {
                let (sender, receiver) = mpsc::channel(batch.buffer.max(1));
                let (sink, batch, lost) = (sink.clone(), batch.clone(), lost.clone());
                let worker = Worker { sink, batch, limits, lost, tokens: None };
                let name = worker.sink.name();
                let state = Arc::new(tokio::sync::Mutex::new((worker, receiver)));
                // Until the process ends: the last events are those of the shutdown.
                component.spawn_graceful(name, OnEnd::Complete, move || {
                    let state = state.clone();
                    async move {
                        let (worker, receiver) = &mut *state.lock().await;
                        worker.run(receiver).await;
                    }
                });
                Some(sender)
            }
            _ => None,
        };
        Self { sink, mode, limits, buffer, budget: Arc::new(Semaphore::new(WAITING_BYTES)), lost }
    }

    /// Encodes an event for this backend: complete, or without its objects if too large. None: dropped.
    pub fn fitting(&self, event: &Bytes, without_objects: impl FnOnce() -> Bytes) -> Option<Bytes> {
        let Some(limits) = self.limits.filter(|l| event.len() > l.event) else { return Some(event.clone()) };
        let cut = without_objects();
        if cut.len() > limits.event {
            (self.lost)("truncate", 1, "event is too large even after truncating");
            return None;
        }
        Some(cut)
    }

    /// Accepts an event; returns it if it must be delivered with [`Self::deliver`].
    pub fn take(&self, event: Bytes) -> Result<(), Bytes> {
        match &self.buffer {
            Some(buffer) => {
                let bytes = u32::try_from(event.len()).unwrap_or(u32::MAX);
                let waiting = self.budget.clone().try_acquire_many_owned(bytes);
                let item = waiting.map(|_room| Item::Event(Bytes::from_owner(Waiting { event, _room })));
                if item.map_or(true, |i| buffer.try_send(i).is_err()) {
                    (self.lost)("buffered", 1, "audit buffer queue blocked");
                }
                Ok(())
            }
            None => Err(event),
        }
    }

    /// Whether a request must fail if its first event is lost.
    pub fn is_strict(&self) -> bool {
        matches!(self.mode, Mode::Strict)
    }

    /// Returns false if an event was lost.
    pub async fn deliver(&self, event: Bytes) -> bool {
        let bytes = u32::try_from(event.len().min(WAITING_BYTES)).unwrap_or(u32::MAX);
        let budget = tokio::time::timeout(PATIENCE, self.budget.clone().acquire_many_owned(bytes));
        let sent = match budget.await {
            Ok(Ok(_room)) => self.sink.send_in(self.limits, &[Bytes::from_owner(Waiting { event, _room })]).await,
            _ => Err("too many bytes of events wait".to_owned()),
        };
        sent.inspect_err(|e| (self.lost)(self.sink.name(), 1, e)).is_ok()
    }

    /// Waits until all accepted events have been delivered or dropped.
    pub async fn flush(&self) {
        let Some(buffer) = &self.buffer else { return };
        let (sender, receiver) = oneshot::channel();
        if buffer.send(Item::Flush(sender)).await.is_ok() {
            let _ = receiver.await;
        }
    }
}

/// Collects events and sends batches.
struct Worker {
    sink: Arc<Sink>,
    batch: Batch,
    limits: Option<Limits>,
    lost: Lost,
    /// The number of batches that may be sent now, as of this time.
    tokens: Option<(f64, Instant)>,
}

impl Worker {
    /// Sends batches until the backend is dropped.
    async fn run(&mut self, buffer: &mut mpsc::Receiver<Item>) {
        let mut sending: JoinSet<()> = JoinSet::new();
        loop {
            let (events, flush, ended) = self.collect(buffer).await;
            while sending.try_join_next().is_some() {}
            if !events.is_empty() {
                self.pace().await;
                let (sink, lost, events): (_, _, Events) = (self.sink.clone(), self.lost.clone(), Arc::new(events));
                let limits = self.limits;
                let send = async move {
                    if let Err(e) = sink.send_in(limits, &events).await {
                        lost(sink.name(), events.len(), &e);
                    }
                };
                // A log is written in order; webhook batches are sent concurrently.
                match &*self.sink {
                    Sink::Log(_) => send.await,
                    Sink::Webhook(_) => drop(sending.spawn(send)),
                }
            }
            if let Some(flush) = flush {
                while sending.join_next().await.is_some() {}
                let _ = flush.send(());
            }
            if ended {
                while sending.join_next().await.is_some() {}
                return;
            }
        }
    }

    /// Returns the next batch, the waiters for its end, and whether it is the last.
    async fn collect(&self, buffer: &mut mpsc::Receiver<Item>) -> (Vec<Bytes>, Option<oneshot::Sender<()>>, bool) {
        let mut events = Vec::new();
        let over = tokio::time::sleep(self.batch.wait);
        tokio::pin!(over);
        while events.len() < self.batch.size.max(1) {
            // A batch of size one is sent without delay.
            let timed = self.batch.size > 1;
            tokio::select! {
                biased;
                item = buffer.recv() => match item {
                    Some(Item::Event(e)) => events.push(e),
                    Some(Item::Flush(f)) => return (events, Some(f), false),
                    None => return (events, None, true),
                },
                () = &mut over, if timed => break,
            }
        }
        (events, None, false)
    }

    /// Waits until the rate limit allows another batch.
    async fn pace(&mut self) {
        let Some((rate, burst)) = self.batch.throttle.filter(|(rate, _)| *rate > 0.0) else { return };
        let (had, since) = self.tokens.unwrap_or((f64::from(burst), Instant::now()));
        let have = (had + since.elapsed().as_secs_f64() * rate).min(f64::from(burst.max(1)));
        if have < 1.0 {
            tokio::time::sleep(Duration::from_secs_f64((1.0 - have) / rate)).await;
            self.tokens = Some((0.0, Instant::now()));
        } else {
            self.tokens = Some((have - 1.0, Instant::now()));
        }
    }
}
