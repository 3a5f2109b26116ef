//! The probes of one pod: a task per running container, and the health of the container.
//!
//! Follows kubelet's `prober/worker.go`: a startup probe runs first and alone; delays count from the container's start; a threshold
//! of equal results in a row changes the result. A container that was ready before the agent restarted stays ready until a probe
//! fails.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container as Spec, Probe};
use parking_lot::Mutex;
use runtime::Runtime;
use supervisor::panics::caught;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::probe::{Action, Attempt, Names, Purpose, Target};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Liveness => "liveness",
            Self::Readiness => "readiness",
        }
    }

    /// The kind in messages and metrics.
    pub fn title(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// The health of a running container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Its startup probe has succeeded, or it has none.
    pub started: bool,
    pub ready: bool,
    /// The probe whose failure ends the container.
    pub failed: Option<Kind>,
}

/// Counts equal results in a row.
#[derive(Clone, Copy, Debug)]
struct Threshold {
    success: i32,
    failure: i32,
    last: Option<bool>,
    run: i32,
}

impl Threshold {
    fn new(p: &Probe) -> Self {
        let at_least_one = |n: Option<i32>, default| n.filter(|n| *n > 0).unwrap_or(default);
        Self {
            success: at_least_one(p.success_threshold, 1),
            failure: at_least_one(p.failure_threshold, 3),
            last: None,
            run: 0,
        }
    }

    /// Counts a result. Returns it once there were enough in a row.
    fn count(&mut self, good: bool) -> Option<bool> {
        self.run = if self.last == Some(good) { self.run.saturating_add(1) } else { 1 };
        self.last = Some(good);
        let needed = if good { self.success } else { self.failure };
        (self.run >= needed).then_some(good)
    }
}

/// What all probes of a pod share.
pub struct Context {
    pub runtime: Arc<dyn Runtime>,
    pub node_namespace: Option<std::path::PathBuf>,
    pub clock: Arc<dyn meta::Clock>,
    pub pod_ip: Option<IpAddr>,
    pub names: Names,
    /// Notified when the health of a container changes.
    pub wake: Arc<Notify>,
    /// Called for every failure and warning: container name, reason of the event, and message.
    pub unhealthy: Arc<dyn Fn(&str, &str, String) + Send + Sync>,
    /// Called for every attempt: kind, container name, whether it succeeded, and its duration.
    pub probed: Arc<dyn Fn(Kind, &str, bool, Duration) + Send + Sync>,
}

struct Probed {
    id: String,
    health: Arc<Mutex<Health>>,
    task: Option<JoinHandle<()>>,
}

impl Drop for Probed {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// The probes of one pod. Dropping it ends them.
#[derive(Default)]
pub struct Probes {
    all: BTreeMap<String, Probed>,
    /// Whether the pod terminates, so that no container is restarted any more.
    is_ending: Arc<AtomicBool>,
}

impl Probes {
    /// Starts the probes of a running container, unless they run. `was_ready` and `was_started` are from the status that an earlier
    /// agent reported.
    pub fn watch(
        &mut self,
        context: &Arc<Context>,
        spec: &Spec,
        container: &runtime::Container,
        was_started: bool,
        was_ready: bool,
    ) {
        if self.all.get(&spec.name).is_some_and(|p| p.id == container.id) {
            return;
        }
        let health = Arc::new(Mutex::new(Health {
            started: spec.startup_probe.is_none() || was_started,
            ready: (spec.readiness_probe.is_none() && spec.startup_probe.is_none()) || was_ready,
            failed: None,
        }));
        let probed = spec.startup_probe.is_some() || spec.liveness_probe.is_some() || spec.readiness_probe.is_some();
        let task = probed.then(|| {
            let age = container
                .started_at
                .and_then(|t| Duration::try_from(context.clock.now().duration_since(crate::instant(t))).ok())
                .unwrap_or_default();
            let run = Run {
                context: context.clone(),
                spec: spec.clone(),
                id: container.id.clone(),
                health: health.clone(),
                is_ending: self.is_ending.clone(),
                born: tokio::time::Instant::now().checked_sub(age),
            };
            tokio::spawn(run.run_probes())
        });
        self.all.insert(spec.name.clone(), Probed { id: container.id.clone(), health, task });
    }

    /// Ends the probes of containers for which `running` is false (name and id).
    pub fn retain(&mut self, running: impl Fn(&str, &str) -> bool) {
        self.all.retain(|name, p| running(name, &p.id));
    }

    /// Ends startup and liveness probes: the pod terminates. Readiness probes go on, because endpoints follow them.
    pub fn end_restarts(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Ends the probes of a container.
    pub fn stop(&mut self, name: &str) {
        self.all.remove(name);
    }

    pub fn health(&self) -> BTreeMap<String, Health> {
        self.all.iter().map(|(n, p)| (n.clone(), *p.health.lock())).collect()
    }
}

struct Run {
    context: Arc<Context>,
    spec: Spec,
    id: String,
    health: Arc<Mutex<Health>>,
    is_ending: Arc<AtomicBool>,
    /// When the container started; `None` if the clock does not reach back so far.
    born: Option<tokio::time::Instant>,
}

impl Run {
    async fn run_probes(self) {
        if let Some(p) = &self.spec.startup_probe
            && !self.health.lock().started
        {
            self.until_settled(Kind::Startup, p).await;
            if !self.health.lock().started {
                return;
            }
        }
        let liveness = async {
            if let Some(p) = &self.spec.liveness_probe {
                self.until_settled(Kind::Liveness, p).await;
            }
        };
        let readiness = async {
            match &self.spec.readiness_probe {
                Some(p) => self.until_settled(Kind::Readiness, p).await,
                None => self.change(|h| h.ready = true),
            }
        };
        tokio::join!(liveness, readiness);
    }

    fn change(&self, f: impl FnOnce(&mut Health)) {
        let mut health = self.health.lock();
        let before = *health;
        f(&mut health);
        if *health != before {
            self.context.wake.notify_one();
        }
    }

    /// Probes until the container has started or failed. A readiness probe never ends.
    async fn until_settled(&self, kind: Kind, probe: &Probe) {
        let seconds = |n: Option<i32>, default: i32| meta::time::seconds(n.filter(|n| *n > 0).unwrap_or(default));
        let (period, timeout) = (seconds(probe.period_seconds, 10), seconds(probe.timeout_seconds, 1));
        if let Some(born) = self.born {
            tokio::time::sleep_until(born + seconds(probe.initial_delay_seconds, 0)).await;
        }
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut threshold = Threshold::new(probe);
        loop {
            ticks.tick().await;
            if kind != Kind::Readiness && self.is_ending.load(Ordering::Relaxed) {
                return;
            }
            let begun = tokio::time::Instant::now();
            let result = caught("probe", &self.spec.name, self.attempt(probe, timeout)).await;
            let result = result.unwrap_or_else(|panicked| Attempt::Failure(panicked.to_string()));
            (self.context.probed)(kind, &self.spec.name, result.is_good(), begun.elapsed());
            let event = match &result {
                Attempt::Success => None,
                Attempt::Warning(what) => Some(("ProbeWarning", format!("{} probe warning: {what}", kind.title()))),
                Attempt::Failure(why) => Some(("Unhealthy", format!("{} probe failed: {why}", kind.title()))),
            };
            if let Some((reason, message)) = event {
                (self.context.unhealthy)(&self.spec.name, reason, message);
            }
            let Some(verdict) = threshold.count(result.is_good()) else { continue };
            match (kind, verdict) {
                (Kind::Readiness, good) => self.change(|h| h.ready = good),
                (Kind::Startup, true) => return self.change(|h| h.started = true),
                (Kind::Liveness, true) => {}
                (Kind::Startup | Kind::Liveness, false) => return self.change(|h| h.failed = Some(kind)),
            }
        }
    }

    async fn attempt(&self, probe: &Probe, timeout: Duration) -> Attempt {
        let action = match (&probe.exec, &probe.http_get, &probe.tcp_socket, &probe.grpc) {
            (Some(a), ..) => Action::Exec(a),
            (_, Some(a), ..) => Action::Http(a, Purpose::Probe),
            (_, _, Some(a), _) => Action::Tcp(a),
            (_, _, _, Some(a)) => Action::Grpc(a),
            _ => return Attempt::Failure("missing probe handler".into()),
        };
        let target = Target {
            runtime: &*self.context.runtime,
            container_id: &self.id,
            spec: &self.spec,
            pod_ip: self.context.pod_ip,
            node_namespace: self.context.node_namespace.clone(),
            names: &self.context.names,
        };
        target.attempt(&action, timeout).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_need_equal_results_in_a_row() {
        let mut t =
            Threshold::new(&Probe { success_threshold: Some(2), failure_threshold: Some(3), ..Probe::default() });
        let got: Vec<_> =
            [false, false, true, false, false, false, true, true].into_iter().map(|g| t.count(g)).collect();
        assert_eq!(got, [None, None, None, None, None, Some(false), None, Some(true)]);
    }
}
