//! The agent's metrics: `/metrics` and `/metrics/probes` of the kubelet, under upstream's names (`pkg/kubelet/metrics/metrics.go`,
//! `pkg/kubelet/prober`).

use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use client::Informer;
use metrics::{HealthChecks, Row, Set};
use runtime::{ContainerState, PodState, Runtime};
use tokio::time::Instant;

use crate::affinity::Meters;
use crate::eviction::Evictions;
use crate::objects::Whole;
use crate::pod::probes::Kind;
use crate::runtime_state::RuntimeState;
use crate::shutdown::Shutdown;
use crate::static_pods::StaticPods;
use crate::volumes::usage::VolumeUsages;

/// Go's default buckets.
const SECONDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const START_SECONDS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

const NODE_NAME: Row = Row::gauge("kubelet_node_name", &["node"], "The node's name. The count is always 1.");
const RUNNING_PODS: Row = Row::gauge("kubelet_running_pods", &[], "Pods that have a running pod sandbox.");
const RUNNING_CONTAINERS: Row =
    Row::gauge("kubelet_running_containers", &["container_state"], "Containers by their state.");
const POD_START: Row = Row::histogram(
    "kubelet_pod_start_duration_seconds",
    &[],
    START_SECONDS,
    "Seconds from when the agent saw a pod for the first time until the pod was running.",
);
const STARTED_PODS: Row = Row::counter("kubelet_started_pods_total", &[], "Attempts to start a pod.");
const POD_ERRORS: Row =
    Row::counter("kubelet_started_pods_errors_total", &[], "Attempts to start a pod whose sandbox was not made.");
const STARTED_OWN_USERS: Row = Row::counter(
    "kubelet_started_user_namespaced_pods_total",
    &[],
    "Attempts to start a pod with a user namespace of its own.",
);
const OWN_USERS_ERRORS: Row = Row::counter(
    "kubelet_started_user_namespaced_pods_errors_total",
    &[],
    "Attempts to start a pod with a user namespace of its own, or one of its containers, that failed.",
);
const STARTED: Row =
    Row::counter("kubelet_started_containers_total", &["container_type"], "Attempts to start a container.");
const START_ERRORS: Row = Row::counter(
    "kubelet_started_containers_errors_total",
    &["container_type", "code"],
    "Attempts to start a container that failed.",
);
const TERMINATED: Row = Row::counter(
    "kubelet_terminated_containers_total",
    &["container_type", "exit_code", "reason"],
    "Containers that ended.",
);
const REQUEST: &[&str] = &["method", "path", "server_type", "long_running"];
const REQUESTS: Row = Row::counter("kubelet_http_requests_total", REQUEST, "Requests that were received.");
const INFLIGHT: Row = Row::gauge("kubelet_http_inflight_requests", REQUEST, "Requests that are being answered.");
const REQUEST_SECONDS: Row = Row::histogram(
    "kubelet_http_requests_duration_seconds",
    REQUEST,
    SECONDS,
    "Seconds that it took to answer requests.",
);
const EVICTIONS: Row =
    Row::counter("kubelet_evictions", &["eviction_signal"], "Pods that the agent evicted, by the signal of eviction.");
const AGENT: &[Row] = &[
    NODE_NAME,
    RUNNING_PODS,
    RUNNING_CONTAINERS,
    POD_START,
    STARTED_PODS,
    POD_ERRORS,
    STARTED_OWN_USERS,
    OWN_USERS_ERRORS,
    STARTED,
    START_ERRORS,
    TERMINATED,
    REQUESTS,
    INFLIGHT,
    REQUEST_SECONDS,
    EVICTIONS,
];

const PROBES: Row = Row::counter(
    "prober_probe_total",
    &["probe_type", "result", "container", "pod", "namespace", "pod_uid"],
    "Cumulative number of a liveness, readiness or startup probe for a container by result.",
);
const PROBE_SECONDS: Row = Row::histogram(
    "prober_probe_duration_seconds",
    &["probe_type", "container", "pod", "namespace"],
    SECONDS,
    "Duration in seconds for a probe response.",
);

const HEALTHZ: &str = "healthz";

const RESULTS: [&str; 2] = ["successful", "failed"];

/// HTTP methods that are labels; others are counted together.
const METHODS: [&str; 8] = ["OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"];

/// The labels of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodLabels {
    pub name: String,
    pub namespace: String,
    pub uid: String,
}

/// What the agent's parts and its HTTP service share.
pub(crate) struct Known {
    agent: Set,
    probes: Set,
    checks: HealthChecks,
    /// The pods of the node, once the agent runs.
    pub pods: RwLock<Option<Informer<Whole>>>,
    pub static_pods: Arc<StaticPods>,
    pub shutdown: Shutdown,
    pub evictions: Evictions,
    pub volumes: Arc<VolumeUsages>,
    pub runtime: RuntimeState,
    /// The metrics of the managers of processors, memory and topology, once the agent runs.
    pub managers: RwLock<Arc<Meters>>,
    begun: Instant,
    /// When the agent was made, on the monotonic clock.
    started: String,
    /// When the agent's loop ran last, in milliseconds since `begun`; 0 before its first iteration.
    beat: AtomicU64,
}

impl Known {
    pub fn new(node: &str, now: jiff::Timestamp) -> Self {
        let agent = Set::new(AGENT).with_process();
        agent.gauge(&NODE_NAME, &[node]).set(1);
        let probes = Set::new(&[PROBES, PROBE_SECONDS]);
        Self {
            agent,
            probes,
            checks: HealthChecks::default(),
            pods: RwLock::default(),
            static_pods: Arc::default(),
            shutdown: Shutdown::default(),
            evictions: Evictions::default(),
            volumes: Arc::default(),
            runtime: RuntimeState::default(),
            managers: RwLock::default(),
            begun: Instant::now(),
            started: meta::time::format(now),
            beat: AtomicU64::new(0),
        }
    }

    /// When the agent was made.
    pub fn started(&self) -> &str {
        &self.started
    }

    /// Records an iteration of the agent's loop.
    pub fn beat(&self) {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.beat.store(now.max(1), Ordering::Relaxed);
    }

    /// How long ago the last iteration of the loop was; `None` before the first.
    pub fn since_beat(&self) -> Option<Duration> {
        let beat = Some(self.beat.load(Ordering::Relaxed)).filter(|b| *b > 0)?;
        Some(self.begun.elapsed().saturating_sub(Duration::from_millis(beat)))
    }

    /// Records that a pod runs, and how long after the agent saw it first.
    pub fn pod_started(&self, after: Duration) {
        self.agent.histogram(&POD_START, &[]).observe(after.as_secs_f64());
    }

    /// Records an attempt to make the sandbox of a pod.
    pub fn sandbox_started(&self, own_users: bool, failed: bool) {
        self.agent.counter(&STARTED_PODS, &[]).inc();
        if own_users {
            self.agent.counter(&STARTED_OWN_USERS, &[]).inc();
        }
        if failed {
            self.agent.counter(&POD_ERRORS, &[]).inc();
            self.user_namespace_failed(own_users);
        }
    }

    /// Records that something of a pod did not start, if it has users of its own: that may be why.
    pub fn user_namespace_failed(&self, own_users: bool) {
        if own_users {
            self.agent.counter(&OWN_USERS_ERRORS, &[]).inc();
        }
    }

    /// Records the start of a container; `error` is the reason if it failed.
    pub fn container_started(&self, kind: &str, error: Option<&str>) {
        self.agent.counter(&STARTED, &[kind]).inc();
        if let Some(code) = error {
            self.agent.counter(&START_ERRORS, &[kind, code]).inc();
        }
    }

    /// Records the end of a container.
    pub fn container_ended(&self, kind: &str, exit_code: i32, reason: &str) {
        self.agent.counter(&TERMINATED, &[kind, &exit_code.to_string(), reason]).inc();
    }

    /// Records the eviction of a pod.
    pub fn evicted(&self, signal: &str) {
        self.agent.counter(&EVICTIONS, &[signal]).inc();
    }

    /// Records the result of a check of `/healthz`.
    pub fn checked(&self, name: &str, passed: bool) {
        self.checks.count(name, HEALTHZ, passed);
    }

    /// Counts a request until this is dropped. `path` is the label of the metric, one of a few.
    pub fn request(&self, method: &str, path: &str, long_running: bool) -> InFlight<'_> {
        let method = METHODS.iter().find(|m| **m == method).map_or("other", |m| *m);
        let long = if long_running { "true" } else { "false" };
        let labels = [method.to_owned(), path.to_owned(), "readwrite".to_owned(), long.to_owned()];
        let request = InFlight { known: self, labels, begun: Instant::now() };
        self.agent.counter(&REQUESTS, &request.labels()).inc();
        self.agent.gauge(&INFLIGHT, &request.labels()).inc();
        request
    }

    pub fn probed(&self, kind: Kind, good: bool, container: &str, pod: &PodLabels, took: Duration) {
        let (kind, result) = (kind.title(), RESULTS[usize::from(!good)]);
        self.probes.counter(&PROBES, &[kind, result, container, &pod.name, &pod.namespace, &pod.uid]).inc();
        let labels = [kind, container, &pod.name, &pod.namespace];
        self.probes.histogram(&PROBE_SECONDS, &labels).observe(took.as_secs_f64());
    }

    /// Removes the metrics of the probes of a pod that is gone.
    pub fn forget<'a>(&self, pod: &PodLabels, containers: impl Iterator<Item = &'a str>) {
        for container in containers {
            for kind in [Kind::Startup, Kind::Liveness, Kind::Readiness].map(Kind::title) {
                for result in RESULTS {
                    let labels = [kind, result, container, &pod.name, &pod.namespace, &pod.uid];
                    self.probes.remove(&PROBES, &labels);
                }
                self.probes.remove(&PROBE_SECONDS, &[kind, container, &pod.name, &pod.namespace]);
            }
        }
    }

    /// The text of `/metrics`.
    pub async fn agent_text(&self, runtime: &dyn Runtime) -> Result<String, runtime::Error> {
        let pods = runtime.list_pods().await?;
        let ready = pods.iter().filter(|p| p.state == PodState::Ready).count();
        self.agent.gauge(&RUNNING_PODS, &[]).set(i64::try_from(ready).unwrap_or(i64::MAX));
        let containers = runtime.list_containers().await?;
        for (state, label) in [
            (ContainerState::Created, "created"),
            (ContainerState::Running, "running"),
            (ContainerState::Exited, "exited"),
            (ContainerState::Unknown, "unknown"),
        ] {
            let count = containers.iter().filter(|c| c.state == state).count();
            self.agent.gauge(&RUNNING_CONTAINERS, &[label]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        Ok(self.agent.text() + &self.managers.read().text())
    }

    /// The text of `/metrics/probes`.
    pub fn probes_text(&self) -> String {
        self.probes.text()
    }

    /// The text of `/metrics/slis`.
    pub fn checks_text(&self) -> String {
        self.checks.text()
    }
}

/// A request in flight.
pub(crate) struct InFlight<'a> {
    known: &'a Known,
    labels: [String; 4],
    begun: Instant,
}

impl InFlight<'_> {
    fn labels(&self) -> [&str; 4] {
        self.labels.each_ref().map(String::as_str)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.known.agent.gauge(&INFLIGHT, &self.labels()).dec();
        let took = self.begun.elapsed().as_secs_f64();
        self.known.agent.histogram(&REQUEST_SECONDS, &self.labels()).observe(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn probes_are_counted_and_forgotten() {
        let known = Known::new("n", jiff::Timestamp::UNIX_EPOCH);
        let pod = PodLabels { name: "p".into(), namespace: "ns".into(), uid: "u".into() };
        known.probed(Kind::Readiness, true, "c", &pod, Duration::from_millis(20));
        known.probed(Kind::Liveness, false, "c", &pod, Duration::from_millis(20));
        let text = known.probes_text();
        for line in [
            "prober_probe_total{container=\"c\",namespace=\"ns\",pod=\"p\",pod_uid=\"u\",probe_type=\"Readiness\",result=\"successful\"} 1",
            "prober_probe_total{container=\"c\",namespace=\"ns\",pod=\"p\",pod_uid=\"u\",probe_type=\"Liveness\",result=\"failed\"} 1",
            "prober_probe_duration_seconds_count{container=\"c\",namespace=\"ns\",pod=\"p\",probe_type=\"Liveness\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        known.forget(&pod, ["c"].into_iter());
        assert_eq!(known.probes_text(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn the_loop_is_late_when_it_does_not_come_round() {
        let known = Known::new("n", jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(known.since_beat(), None);
        known.beat();
        tokio::time::advance(Duration::from_secs(90)).await;
        assert!(known.since_beat().unwrap() >= Duration::from_secs(89));
    }
}
