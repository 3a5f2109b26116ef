//! Where events go: the log or a webhook, at once or in batches (`k8s.io/apiserver/plugin/pkg/audit`: log, webhook, buffered).
//!
//! Invariant: in batches nobody waits; what finds no place in the buffer is counted and lost. Otherwise an event is delivered,
//! or given up, before the answer goes. What is too large for the place that takes it is cut, or lost.

use super::Log;
use auth::remote::Remote;
use bytes::Bytes;
use meta::Rng;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Events that are sent in one go.
type Events = Arc<Vec<Bytes>>;

/// When events are delivered.
#[derive(Clone, Debug)]
pub enum Mode {
    Batch(Batch),
    /// Before the answer.
    Blocking,
    /// Before the answer; and without the first event of a request there is none.
    Strict,
}

#[derive(Clone, Debug)]
pub struct Batch {
    /// Events that wait at most.
    pub buffer: usize,
    /// Events of one batch.
    pub size: usize,
    /// A batch that is not full is sent after that long.
    pub wait: Duration,
    /// Batches per second, and how many at once when there were none for a while.
    pub throttle: Option<(f64, u32)>,
}

/// How much is sent in one go (`k8s.io/apiserver/plugin/pkg/audit/truncate`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one event: a larger one loses the objects it shows, and is lost if it is still larger.
    pub event: usize,
    /// Bytes of one batch.
    pub batch: usize,
}

/// A server that takes events.
pub struct Webhook {
    pub remote: Remote,
    /// Before the second of five tries; each further pause is half as long again.
    pub initial_backoff: Duration,
    pub rng: Arc<dyn Rng>,
}

const TRIES: u32 = 5;
/// Pauses are longer by up to this share.
const JITTER: f64 = 0.2;
/// How an event begins by itself, which it does not in a list.
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

    /// Sends events in as many goes as it takes. The first failure is told, and the others are tried all the same.
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

/// Told what could not be delivered: by whom, how many events, and why.
pub type Lost = Arc<dyn Fn(&'static str, usize, &str) + Send + Sync>;

/// A sink at work.
pub(super) struct Backend {
    sink: Arc<Sink>,
    mode: Mode,
    limits: Option<Limits>,
    buffer: Option<mpsc::Sender<Item>>,
    /// Room for the events that wait, until they are delivered or given up.
    room: Arc<Semaphore>,
    lost: Lost,
}

/// Bytes of events that wait for one sink.
const WAITING_BYTES: usize = 64 << 20;
/// How long an event that is delivered before the answer waits for room.
const PATIENCE: Duration = Duration::from_secs(30);

/// An event that waits, and the room it takes.
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
    /// Everything before this was delivered or given up.
    Flush(oneshot::Sender<()>),
}

impl Backend {
    /// In batches: must be called inside a runtime.
    pub fn start(sink: Sink, mode: Mode, limits: Option<Limits>, lost: Lost) -> Self {
        let sink = Arc::new(sink);
        let buffer = match &mode {
            Mode::Batch(batch) => {
                let (sender, receiver) = mpsc::channel(batch.buffer.max(1));
                let (sink, batch, lost) = (sink.clone(), batch.clone(), lost.clone());
                let worker = Worker { sink, batch, limits, lost, tokens: None };
                tokio::spawn(worker.run(receiver));
                Some(sender)
            }
            _ => None,
        };
        Self { sink, mode, limits, buffer, room: Arc::new(Semaphore::new(WAITING_BYTES)), lost }
    }

    /// The event as this place takes it: whole, or without its objects if it is too large. None: it is lost.
    pub fn fitting(&self, event: &Bytes, without_objects: impl FnOnce() -> Bytes) -> Option<Bytes> {
        let Some(limits) = self.limits.filter(|l| event.len() > l.event) else { return Some(event.clone()) };
        let cut = without_objects();
        if cut.len() > limits.event {
            (self.lost)("truncate", 1, "event is too large even after truncating");
            return None;
        }
        Some(cut)
    }

    /// Takes an event; comes back with it when it is to be delivered by [`Self::deliver`].
    pub fn take(&self, event: Bytes) -> Result<(), Bytes> {
        match &self.buffer {
            Some(buffer) => {
                let bytes = u32::try_from(event.len()).unwrap_or(u32::MAX);
                let waiting = self.room.clone().try_acquire_many_owned(bytes);
                let item = waiting.map(|_room| Item::Event(Bytes::from_owner(Waiting { event, _room })));
                if item.map_or(true, |i| buffer.try_send(i).is_err()) {
                    (self.lost)("buffered", 1, "audit buffer queue blocked");
                }
                Ok(())
            }
            None => Err(event),
        }
    }

    /// Whether a request whose first event is lost must fail.
    pub fn is_strict(&self) -> bool {
        matches!(self.mode, Mode::Strict)
    }

    /// False: it is lost.
    pub async fn deliver(&self, event: Bytes) -> bool {
        let bytes = u32::try_from(event.len().min(WAITING_BYTES)).unwrap_or(u32::MAX);
        let room = tokio::time::timeout(PATIENCE, self.room.clone().acquire_many_owned(bytes));
        let sent = match room.await {
            Ok(Ok(_room)) => self.sink.send_in(self.limits, &[Bytes::from_owner(Waiting { event, _room })]).await,
            _ => Err("too many bytes of events wait".to_owned()),
        };
        sent.inspect_err(|e| (self.lost)(self.sink.name(), 1, e)).is_ok()
    }

    /// Returns when everything taken so far was delivered, or given up.
    pub async fn flush(&self) {
        let Some(buffer) = &self.buffer else { return };
        let (sender, receiver) = oneshot::channel();
        if buffer.send(Item::Flush(sender)).await.is_ok() {
            let _ = receiver.await;
        }
    }
}

/// Collects events and sends them.
struct Worker {
    sink: Arc<Sink>,
    batch: Batch,
    limits: Option<Limits>,
    lost: Lost,
    /// How many batches may be sent at once, as it was then.
    tokens: Option<(f64, Instant)>,
}

impl Worker {
    async fn run(mut self, mut buffer: mpsc::Receiver<Item>) {
        let mut sending: JoinSet<()> = JoinSet::new();
        loop {
            let (events, flush, ended) = self.collect(&mut buffer).await;
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
                // A log is written in order; a webhook may be slow, and others wait behind it.
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

    /// The next batch, who waits for its end, and whether it is the last.
    async fn collect(&self, buffer: &mut mpsc::Receiver<Item>) -> (Vec<Bytes>, Option<oneshot::Sender<()>>, bool) {
        let mut events = Vec::new();
        let over = tokio::time::sleep(self.batch.wait);
        tokio::pin!(over);
        while events.len() < self.batch.size.max(1) {
            // A batch of one is sent when it is there, whatever the time.
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

    /// Waits until another batch may be sent.
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
