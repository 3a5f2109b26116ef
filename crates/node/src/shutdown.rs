//! Graceful shutdown of the node: pods end in the order of their priority, each group within its time
//! (`pkg/kubelet/nodeshutdown`).
//!
//! [`Shutdown`] is requested through [`Handle::shut_down`](crate::Handle::shut_down). **Invariant.** From then on the node admits no pod
//! and is not ready, until a new agent starts. Left out: inhibitor locks of systemd.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::admission::{Admission, Rejection};
use crate::configuration::{KubeletConfiguration, ShutdownGracePeriod};
use crate::dispatch::{Wakes, wake};

/// Reason and message of pods that the shutdown ends.
pub const TERMINATED: (&str, &str) = ("Terminated", "Pod was terminated in response to imminent node shutdown.");
/// The message of the node's condition `Ready`.
pub const NOT_READY: &str = "node is shutting down";

/// The priority from which on pods are critical to the system.
const CRITICAL: i32 = 2_000_000_000;
/// The times of pods, and of critical pods, if none are configured.
const DEFAULT: [u32; 2] = [20, 10];
/// How long the status of a pod that was killed at the end of its time may take.
const REPORT: Duration = Duration::from_secs(2);
/// How long the end of a shutdown may take longer than its pods.
const SPARE: Duration = Duration::from_secs(10);

/// Rejects a pod that arrives during the shutdown.
pub fn rejection() -> Rejection {
    Rejection::new("NodeShutdown", "Pod was rejected as the node is shutting down.")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    Requested,
    Ended,
}

/// The shutdown of a node.
pub struct Shutdown {
    stage: watch::Sender<Stage>,
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Default)]
struct State {
    /// The pods to end by UID, with their time.
    periods: BTreeMap<String, Duration>,
    /// Those of them that have not ended.
    pending: BTreeSet<String>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { stage: watch::Sender::new(Stage::Running), state: Mutex::default(), ended: Notify::new() }
    }
}

impl Shutdown {
    /// Whether the node shuts down.
    pub fn is_active(&self) -> bool {
        *self.stage.borrow() != Stage::Running
    }

    /// Waits until a shutdown is requested.
    pub async fn requested(&self) {
        let mut stage = self.stage.subscribe();
        let requested = stage.wait_for(|s| *s != Stage::Running).await.is_ok();
        if !requested {
            std::future::pending::<()>().await;
        }
    }

    /// The time in which a pod has to end; `None` if it is not its turn.
    pub fn period(&self, uid: &str) -> Option<Duration> {
        self.state.lock().periods.get(uid).copied()
    }

    /// Records that a pod has ended and that this is reported.
    pub fn pod_ended(&self, uid: &str) {
        if self.state.lock().pending.remove(uid) {
            self.ended.notify_one();
        }
    }

    fn begin(&self, pods: &BTreeSet<String>, period: Duration) {
        let mut state = self.state.lock();
        state.periods.extend(pods.iter().map(|uid| (uid.clone(), period)));
        state.pending = pods.clone();
    }

    fn is_group_over(&self) -> bool {
        self.state.lock().pending.is_empty()
    }

    /// Requests the shutdown, and waits until all pods have ended, or their time is over.
    pub async fn shut_down(&self, configuration: &KubeletConfiguration) {
        let mut stage = self.stage.subscribe();
        self.stage.send_if_modified(|stage| {
            let is_new = *stage == Stage::Running;
            if is_new {
                *stage = Stage::Requested;
            }
            is_new
        });
        let limit = groups(configuration).iter().map(|g| meta::time::seconds(g.shutdown_grace_period_seconds)).sum();
        let ended = stage.wait_for(|s| *s == Stage::Ended);
        if tokio::time::timeout(SPARE.saturating_add(limit), ended).await.is_err() {
            tracing::warn!("pods did not end in time before the shutdown of the node");
        }
    }
}

/// Carries out the shutdown when it is requested.
pub async fn run(shutdown: &Shutdown, configuration: &KubeletConfiguration, admission: &Admission, wakes: &Wakes) {
    shutdown.requested().await;
    let groups = groups(configuration);
    for (group, pods) in groups.iter().zip(by_priority(&groups, &admission.priorities())) {
        if pods.is_empty() {
            continue;
        }
        let period = meta::time::seconds(group.shutdown_grace_period_seconds);
        tracing::info!(priority = group.priority, pods = pods.len(), ?period, "ending pods before the shutdown");
        shutdown.begin(&pods, period);
        pods.iter().for_each(|uid| wake(wakes, uid));
        let over = async {
            while !shutdown.is_group_over() {
                shutdown.ended.notified().await;
            }
        };
        if tokio::time::timeout(period.saturating_add(REPORT), over).await.is_err() {
            tracing::warn!(priority = group.priority, "pods did not end in time before the shutdown of the node");
        }
    }
    shutdown.stage.send_replace(Stage::Ended);
}

/// The groups of priorities, the lowest first.
fn groups(configuration: &KubeletConfiguration) -> Vec<ShutdownGracePeriod> {
    let mut groups = configuration.shutdown_grace_period_by_pod_priority.clone();
    if groups.is_empty() {
        let all = configuration.shutdown_grace_period.get().as_secs();
        let critical = configuration.shutdown_grace_period_critical_pods.get().as_secs();
        let periods = match all {
            0 => DEFAULT.map(u64::from),
            all => [all.saturating_sub(critical), critical],
        };
        groups = [0, CRITICAL]
            .into_iter()
            .zip(periods)
            .map(|(priority, seconds)| ShutdownGracePeriod {
                priority,
                shutdown_grace_period_seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
            })
            .collect();
    }
    groups.sort_by_key(|g| g.priority);
    groups
}

/// The pods of each group: a pod is in the last group whose priority is not above its own, or in the first one.
fn by_priority(groups: &[ShutdownGracePeriod], pods: &[(String, i32)]) -> Vec<BTreeSet<String>> {
    let mut out = vec![BTreeSet::new(); groups.len()];
    for (uid, priority) in pods {
        let index = groups.iter().rposition(|g| g.priority <= *priority).unwrap_or(0);
        if let Some(group) = out.get_mut(index) {
            group.insert(uid.clone());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::GoDuration;

    fn names(groups: Vec<BTreeSet<String>>) -> Vec<String> {
        groups.into_iter().map(|g| g.into_iter().collect::<Vec<_>>().join(",")).collect()
    }

    fn period(priority: i32, seconds: i64) -> ShutdownGracePeriod {
        ShutdownGracePeriod { priority, shutdown_grace_period_seconds: seconds }
    }

    /// Clauses: P04.node-shutdown
    #[test]
    fn groups_are_upstreams() {
        let both = KubeletConfiguration {
            shutdown_grace_period: GoDuration::seconds(30),
            shutdown_grace_period_critical_pods: GoDuration::seconds(10),
            ..KubeletConfiguration::default()
        };
        assert_eq!(groups(&both), [period(0, 20), period(CRITICAL, 10)]);
        assert_eq!(groups(&KubeletConfiguration::default()), [period(0, 20), period(CRITICAL, 10)]);
        let listed = KubeletConfiguration {
            shutdown_grace_period_by_pod_priority: vec![period(100, 2), period(0, 1)],
            ..KubeletConfiguration::default()
        };
        assert_eq!(groups(&listed), [period(0, 1), period(100, 2)]);
    }

    #[test]
    fn pods_are_in_the_group_of_their_priority() {
        let pods: Vec<(String, i32)> =
            [("low", -5), ("none", 0), ("middle", 99), ("high", 100), ("static", CRITICAL + 1000)]
                .map(|(name, priority)| (name.to_owned(), priority))
                .into();
        let groups = [period(0, 1), period(100, 2), period(CRITICAL, 3)];
        assert_eq!(names(by_priority(&groups, &pods)), ["low,middle,none", "high", "static"]);
    }

    #[tokio::test(start_paused = true)]
    async fn groups_end_one_after_the_other() {
        let shutdown = Shutdown::default();
        let first = BTreeSet::from(["a".to_owned()]);
        assert!(!shutdown.is_active());
        shutdown.begin(&first, Duration::from_secs(5));
        assert_eq!((shutdown.period("a"), shutdown.period("b")), (Some(Duration::from_secs(5)), None));
        assert!(!shutdown.is_group_over());
        shutdown.pod_ended("b");
        assert!(!shutdown.is_group_over());
        shutdown.pod_ended("a");
        assert!(shutdown.is_group_over());
    }
}
