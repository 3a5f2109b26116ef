//! The connection of a component to the API server: it can be cut, be slow, be refused, and kill the component at a write.
//!
//! A component that was killed never continues: its pending requests get no response, and it sends no further one.

use async_trait::async_trait;
use bytes::Bytes;
use client::Transport;
use client::shared::{Batch, Batches, Handover};
use client::transport::Body;
use http::{Method, Request, Response};
use meta::Rng;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::SeededRng;
use tokio::sync::{Notify, mpsc};

/// How long a request over a cut connection takes to fail.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// When a component is killed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum CrashPoint {
    /// At once.
    Now,
    /// When the server has executed this many more successful writes; the component does not get the last response.
    AfterWrites(u32),
    /// Before it sends a matching write.
    Before(WriteMatch),
    /// After the server has executed a matching write; the component does not get the response.
    After(WriteMatch),
}

/// Selects a write of a component.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WriteMatch {
    /// The HTTP method; empty for all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub method: String,
    /// The resource as the path names it, such as `pods`; empty for all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// Which of the matching writes: 1 is the next one.
    #[serde(default = "default_count")]
    pub number: u32,
}

fn default_count() -> u32 {
    1
}

impl WriteMatch {
    fn matches(&self, method: &Method, path: &str) -> bool {
        (self.method.is_empty() || self.method.eq_ignore_ascii_case(method.as_str()))
            && (self.resource.is_empty() || path.split('/').any(|segment| segment == self.resource))
    }
}

/// One life of a component, from its start to its end.
#[derive(Default)]
pub(crate) struct Life {
    over: AtomicBool,
    ended: Notify,
}

impl Life {
    fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.ended.notify_one();
    }

    /// Waits until the component is killed.
    pub(crate) async fn killed(&self) {
        while !self.over.load(Ordering::SeqCst) {
            self.ended.notified().await;
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}

#[derive(Default)]
struct State {
    cut: bool,
    /// The server is down: requests fail at once.
    refused: bool,
    /// The minimum and maximum of what a request takes.
    latency: (Duration, Duration),
    /// How long watch events take.
    lag: Duration,
    crash: Option<CrashPoint>,
    writes: u64,
}

/// The connection of one component.
pub(crate) struct Link {
    state: Mutex<State>,
    life: Mutex<Arc<Life>>,
    changed: Notify,
    rng: Arc<SeededRng>,
}

impl Link {
    pub fn new(rng: Arc<SeededRng>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), life: Mutex::default(), changed: Notify::new(), rng })
    }

    /// Begins a new life; requests of the old one are never answered.
    pub fn begin_life(&self) -> Arc<Life> {
        let mut life = self.life.lock();
        life.over.store(true, Ordering::SeqCst);
        *life = Arc::default();
        life.clone()
    }

    /// Kills the component at a point, instead of at one that was planned before.
    pub fn crash(&self, point: CrashPoint) {
        self.state.lock().crash = match point {
            CrashPoint::Now => {
                self.life.lock().end();
                None
            }
            point => Some(point),
        };
    }

    pub fn set_cut(&self, cut: bool) {
        self.state.lock().cut = cut;
        self.changed.notify_waiters();
    }

    pub fn set_refusing(&self, refused: bool) {
        self.state.lock().refused = refused;
        self.changed.notify_waiters();
    }

    pub fn set_latency(&self, minimum: Duration, maximum: Duration) {
        self.state.lock().latency = (minimum, maximum.max(minimum));
    }

    pub fn set_lag(&self, lag: Duration) {
        self.state.lock().lag = lag;
    }

    pub fn is_cut(&self) -> bool {
        let state = self.state.lock();
        state.cut || state.refused
    }

    /// The number of successful writes since the start.
    pub fn writes(&self) -> u64 {
        self.state.lock().writes
    }

    /// A transport of the current life over `inner`.
    pub fn transport(self: &Arc<Self>, inner: Arc<dyn Transport>) -> Connection {
        Connection { link: self.clone(), life: self.life.lock().clone(), inner }
    }

    /// A transport of informers, which outlive a life of the component.
    pub fn reading(self: &Arc<Self>, inner: Arc<dyn Transport>) -> Connection {
        Connection { link: self.clone(), life: Arc::default(), inner }
    }

    /// Forgets a crash that has not happened.
    pub fn spare(&self) {
        self.state.lock().crash = None;
    }

    fn delay(&self) -> Duration {
        let (minimum, maximum) = self.state.lock().latency;
        let spread = u64::try_from((maximum - minimum).as_micros()).unwrap_or(u64::MAX);
        if spread == 0 { minimum } else { minimum + Duration::from_micros(self.rng.next_u64() % (spread + 1)) }
    }

    async fn until_cut(&self) {
        loop {
            let changed = self.changed.notified();
            if self.is_cut() {
                return;
            }
            changed.await;
        }
    }

    /// Whether the component is killed before this write.
    fn dies_before(&self, method: &Method, path: &str) -> bool {
        let mut state = self.state.lock();
        let dies = match &mut state.crash {
            Some(CrashPoint::Before(m)) if m.matches(method, path) => {
                m.number = m.number.saturating_sub(1);
                m.number == 0
            }
            _ => false,
        };
        if dies {
            state.crash = None;
        }
        dies
    }

    /// Whether the component is killed after this write, which succeeded.
    fn dies_after(&self, method: &Method, path: &str) -> bool {
        let mut state = self.state.lock();
        state.writes += 1;
        let left = match &mut state.crash {
            Some(CrashPoint::AfterWrites(n)) => n,
            Some(CrashPoint::After(m)) if m.matches(method, path) => &mut m.number,
            _ => return false,
        };
        *left = left.saturating_sub(1);
        let dies = *left == 0;
        if dies {
            state.crash = None;
        }
        dies
    }
}

/// The transport of one life of a component.
pub(crate) struct Connection {
    link: Arc<Link>,
    life: Arc<Life>,
    inner: Arc<dyn Transport>,
}

impl Connection {
    /// Waits for ever if the component is dead.
    async fn alive(&self) {
        if self.life.is_over() {
            std::future::pending::<()>().await;
        }
    }

    async fn kill(&self) {
        self.life.end();
        std::future::pending::<()>().await;
    }

    async fn cross(&self) -> Result<(), client::Error> {
        let delay = self.link.delay();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.alive().await;
        if self.link.state.lock().refused {
            return Err(client::Error::Send("the simulated server is down".into()));
        }
        if self.link.is_cut() {
            tokio::time::sleep(CONNECT_TIMEOUT).await;
            self.alive().await;
            return Err(client::Error::Send("the simulated connection is cut".into()));
        }
        Ok(())
    }

    /// Passes on the events of a watch until the connection is cut.
    fn relay(&self, mut from: Batches) -> Batches {
        let (sender, to) = mpsc::channel::<Batch>(1);
        let link = self.link.clone();
        tokio::spawn(async move {
            loop {
                let batch = tokio::select! {
                    biased;
                    () = sender.closed() => return,
                    () = link.until_cut() => return,
                    batch = from.recv() => batch,
                };
                let Some(batch) = batch else { return };
                let lag = link.state.lock().lag;
                if !lag.is_zero() {
                    tokio::time::sleep(lag).await;
                    if link.is_cut() {
                        return;
                    }
                }
                if sender.send(batch).await.is_err() {
                    return;
                }
            }
        });
        to
    }
}

#[async_trait]
impl Transport for Connection {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, client::Error> {
        self.alive().await;
        self.cross().await?;
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let write = method != Method::GET && !path.contains("/events") && !path.contains("/leases");
        if write && self.link.dies_before(&method, &path) {
            self.kill().await;
        }
        let mut response = self.inner.send(request).await?;
        // A write of a dead component does not count for the next crash.
        self.alive().await;
        if write && response.status().is_success() && self.link.dies_after(&method, &path) {
            self.kill().await;
        }
        if let Some(batches) = Handover::<Batches>::take(response.extensions()) {
            let relayed = self.relay(batches);
            Handover::give(response.extensions_mut(), relayed);
            return Ok(response);
        }
        self.cross().await?;
        Ok(response)
    }
}
