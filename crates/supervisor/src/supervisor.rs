//! Supervision: a service that ends is started again with back-off, or ends the process.

use crate::panics::{Everything, caught};
use crate::shutdown::Shutdown;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The delay before the first restart. It doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(60);
/// A service that ran for this long is healthy: its next restart has the first delay again.
const HEALTHY: Duration = Duration::from_secs(300);

/// What follows when a service ends before the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnEnd {
    /// It is started again.
    Restart,
    /// The process cannot do its work without it and ends.
    Fatal,
    /// It may complete: only a panic or an error starts it again.
    Complete,
}

/// The state of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs.
    Running,
    /// It did its work ([`OnEnd::Complete`]).
    Completed,
    /// It ended for this reason, and waits for its restart or has ended the process.
    Failed(String),
    /// It ended because of the shutdown.
    Stopped,
}

/// A service at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// The component it belongs to, such as `controller-manager`.
    pub component: &'static str,
    /// Its name, unique within the component.
    pub name: &'static str,
    /// Whether it runs.
    pub state: State,
    /// How many times it was started again.
    pub restarts: u64,
}

impl Status {
    /// Whether it runs or has done its work.
    pub fn is_healthy(&self) -> bool {
        !matches!(self.state, State::Failed(_))
    }
}

/// The end of a service without which the process cannot go on.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{component}: {name} ended: {reason}")]
pub struct Failure {
    /// The component of the service.
    pub component: &'static str,
    /// The name of the service.
    pub name: &'static str,
    /// Why it ended.
    pub reason: String,
}

/// How a service ended: `()`, or a `Result` with an error to show.
pub trait End {
    /// The error, if it ended with one.
    fn error(self) -> Option<String>;
}

impl End for () {
    fn error(self) -> Option<String> {
        None
    }
}

impl<E: Display> End for Result<(), E> {
    fn error(self) -> Option<String> {
        self.err().map(|e| e.to_string())
    }
}

#[derive(Default)]
struct Inner {
    /// By component and name.
    services: Mutex<BTreeMap<(&'static str, &'static str), Entry>>,
    failure: Mutex<Option<Failure>>,
    changed: Notify,
}

struct Entry {
    state: State,
    restarts: u64,
}

/// The supervised services of a process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Supervisor(Arc<Inner>);

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.statuses()).finish()
    }
}

impl Supervisor {
    /// The services of one component. They end with `shutdown` and run on the threads of `runtime`.
    pub fn component(&self, name: &'static str, shutdown: &Shutdown, runtime: &Handle) -> Component {
        Component { all: self.clone(), name, shutdown: shutdown.clone(), runtime: runtime.clone() }
    }

    /// All services, ordered by component and name.
    pub fn statuses(&self) -> Vec<Status> {
        let services = self.0.services.lock();
        let status = |(&(component, name), e): (&(&'static str, &'static str), &Entry)| Status {
            component,
            name,
            state: e.state.clone(),
            restarts: e.restarts,
        };
        services.iter().map(status).collect()
    }

    /// Whether the component has services and all of them are healthy.
    pub fn is_healthy(&self, component: &str) -> bool {
        let all = self.statuses();
        let mut own = all.iter().filter(|s| s.component == component).peekable();
        own.peek().is_some() && own.all(|s| s.is_healthy() && s.state != State::Stopped)
    }

    /// Waits for the end of a service whose end is fatal.
    pub async fn failure(&self) -> Failure {
        loop {
            let changed = self.0.changed.notified();
            if let Some(failure) = self.0.failure.lock().clone() {
                return failure;
            }
            changed.await;
        }
    }

    fn set(&self, component: &'static str, name: &'static str, state: State) {
        let mut services = self.0.services.lock();
        let entry = services.entry((component, name)).or_insert(Entry { state: State::Running, restarts: 0 });
        entry.restarts += u64::from(matches!(entry.state, State::Failed(_)) && state == State::Running);
        entry.state = state;
        drop(services);
        self.0.changed.notify_waiters();
    }
}

/// A component of the process: a group of services with one shutdown signal.
#[derive(Clone, Debug)]
pub struct Component {
    all: Supervisor,
    name: &'static str,
    shutdown: Shutdown,
    runtime: Handle,
}

impl Component {
    /// The signal that ends the services.
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// The same component, for services that run on the threads of another runtime.
    #[must_use]
    pub fn on(&self, runtime: &Handle) -> Self {
        Self { runtime: runtime.clone(), ..self.clone() }
    }

    /// Runs the future that `start` returns until shutdown, when it is dropped. If it ends, fails or panics before that, `on_end` says what
    /// follows.
    pub fn spawn<F, Fut>(&self, name: &'static str, on_end: OnEnd, start: F)
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output: End> + Send,
    {
        let shutdown = self.shutdown.clone();
        self.spawn_graceful(name, on_end, move || {
            let (shutdown, running) = (shutdown.clone(), start());
            async move { shutdown.race(running).await.map_or(Ok(()), |end| end.error().map_or(Ok(()), Err)) }
        });
    }

    /// Like [`Self::spawn`], for a service that ends by itself after the signal, when it has finished what it has begun.
    pub fn spawn_graceful<F, Fut>(&self, name: &'static str, on_end: OnEnd, start: F)
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output: End> + Send,
    {
        let this = self.clone();
        self.all.set(self.name, name, State::Running);
        self.runtime.spawn(async move { this.supervise(name, on_end, start).await });
    }

    /// Waits until all services have ended after the shutdown, or completed, or failed for good.
    pub async fn ended(&self) {
        loop {
            let changed = self.all.0.changed.notified();
            let statuses = self.all.statuses();
            let mut own = statuses.iter().filter(|s| s.component == self.name);
            let is_running = |s: &Status| s.state == State::Running || !self.shutdown.is_triggered();
            if !own.any(is_running) {
                return;
            }
            changed.await;
        }
    }

    async fn supervise<F, Fut>(self, name: &'static str, on_end: OnEnd, start: F)
    where
        F: Fn() -> Fut,
        Fut: Future<Output: End>,
    {
        let mut delay = FIRST_DELAY;
        loop {
            let started = Instant::now();
            let ended = caught(name, Everything, async { start().await }).await.map(End::error);
            if self.shutdown.is_triggered() {
                return self.all.set(self.name, name, State::Stopped);
            }
            let reason = match ended {
                Ok(None) if on_end == OnEnd::Complete => return self.all.set(self.name, name, State::Completed),
                Ok(None) => "it returned".to_owned(),
                Ok(Some(error)) => error,
                Err(panicked) => panicked.to_string(),
            };
            self.all.set(self.name, name, State::Failed(reason.clone()));
            if on_end == OnEnd::Fatal {
                tracing::error!(component = self.name, service = name, "service ended: {reason}");
                *self.all.0.failure.lock() = Some(Failure { component: self.name, name, reason });
                return self.all.0.changed.notify_waiters();
            }
            if started.elapsed() >= HEALTHY {
                delay = FIRST_DELAY;
            }
            tracing::error!(
                component = self.name,
                service = name,
                "service ended: {reason}; it is started again in {} s",
                delay.as_secs()
            );
            if self.shutdown.race(tokio::time::sleep(delay)).await.is_none() {
                return self.all.set(self.name, name, State::Stopped);
            }
            delay = (delay * 2).min(MAX_DELAY);
            self.all.set(self.name, name, State::Running);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shutdown::shutdown;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn counted() -> (Arc<AtomicU32>, impl Fn() -> u32) {
        let n = Arc::new(AtomicU32::new(0));
        let read = n.clone();
        (n, move || read.load(Ordering::SeqCst))
    }

    #[tokio::test(start_paused = true)]
    async fn ended_services_start_again_later_each_time() {
        let supervisor = Supervisor::default();
        let (trigger, signal) = shutdown();
        let component = supervisor.component("test", &signal, &Handle::current());
        let (n, count) = counted();
        component.spawn("fails", OnEnd::Restart, move || {
            let round = n.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::task::yield_now().await;
                assert_ne!(round, 1, "a panic is an end too");
                Err::<(), _>(format!("round {round}"))
            }
        });
        let mut at = Duration::ZERO;
        for (round, delay) in [0, 1, 2, 4, 8, 16, 32, 60, 60].into_iter().enumerate() {
            at += Duration::from_secs(delay);
            tokio::time::sleep_until(
                Instant::now() + Duration::from_secs(delay) - Duration::from_millis(u64::from(round > 0)),
            )
            .await;
            tokio::time::sleep(Duration::from_millis(2)).await;
            assert_eq!(count() as usize, round + 1, "after {at:?}");
            let status = &supervisor.statuses()[0];
            assert!(!status.is_healthy() && status.restarts == round as u64, "{status:?}");
        }
        assert!(!supervisor.is_healthy("test"));
        trigger.trigger();
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!((supervisor.statuses()[0].state.clone(), count()), (State::Stopped, 9));
    }

    #[tokio::test(start_paused = true)]
    async fn fatal_ends_and_completed_work_are_told_apart() {
        let supervisor = Supervisor::default();
        let (_trigger, signal) = shutdown();
        let component = supervisor.component("test", &signal, &Handle::current());
        let (n, count) = counted();
        component.spawn("once", OnEnd::Complete, move || {
            n.fetch_add(1, Ordering::SeqCst);
            async {}
        });
        tokio::time::sleep(Duration::from_secs(1000)).await;
        assert_eq!((supervisor.is_healthy("test"), count()), (true, 1));
        assert!(!supervisor.is_healthy("other"), "a component without services does not run");
        component.spawn("listener", OnEnd::Fatal, || async {});
        let failure = supervisor.failure().await;
        assert_eq!(failure.to_string(), "test: listener ended: it returned");
        assert!(!supervisor.is_healthy("test"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_shutdown_is_no_failure() {
        let supervisor = Supervisor::default();
        let (trigger, signal) = shutdown();
        let component = supervisor.component("test", &signal, &Handle::current());
        let seen = signal.clone();
        component.spawn_graceful("waits", OnEnd::Fatal, move || {
            let seen = seen.clone();
            async move {
                seen.wait().await;
                tokio::time::sleep(Duration::from_secs(7)).await;
            }
        });
        component.spawn("is cut off", OnEnd::Restart, std::future::pending::<()>);
        tokio::task::yield_now().await;
        assert!(supervisor.is_healthy("test"));
        trigger.trigger();
        let before = Instant::now();
        component.ended().await;
        assert_eq!(before.elapsed(), Duration::from_secs(7));
        assert!(supervisor.statuses().iter().all(|s| s.state == State::Stopped));
    }
}
