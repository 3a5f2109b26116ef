//! Whether the container runtime works, for the node's condition `Ready` (kubelet `runtime.go`, `updateRuntimeUp`).

use std::time::Duration;

use parking_lot::Mutex;
use runtime::{Condition, Runtime};
use tokio::time::Instant;

/// The time between two checks.
const PERIOD: Duration = Duration::from_secs(5);
/// How long after its last good answer a runtime is down.
const THRESHOLD: Duration = Duration::from_secs(30);

/// What the last checks of the runtime found.
#[derive(Default)]
pub(crate) struct RuntimeState(Mutex<State>);

#[derive(Default)]
struct State {
    /// When the runtime was ready last.
    synced: Option<Instant>,
    problems: Vec<String>,
}

impl RuntimeState {
    /// Checks the runtime, for ever.
    pub async fn follow(&self, runtime: &dyn Runtime) {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.check(runtime).await;
        }
    }

    /// Asks the runtime for its state.
    pub async fn check(&self, runtime: &dyn Runtime) {
        let status = match runtime.status().await {
            Ok(status) => status,
            Err(error) => {
                tracing::warn!(%error, "the container runtime does not report its state; retrying");
                return;
            }
        };
        let mut state = self.0.lock();
        state.problems.clear();
        if status.runtime.is_ready {
            state.synced = Some(Instant::now());
        } else {
            state.problems.push(problem("container runtime not ready", "RuntimeReady", &status.runtime));
        }
        if !status.network.is_ready {
            state.problems.push(problem("container runtime network not ready", "NetworkReady", &status.network));
        }
    }

    /// Why the node is not ready; empty if the runtime works.
    pub fn problems(&self) -> Vec<String> {
        let state = self.0.lock();
        let age = match state.synced {
            None => Some("container runtime status check may not have completed yet"),
            Some(at) if at.elapsed() >= THRESHOLD => Some("container runtime is down"),
            Some(_) => None,
        };
        age.map(str::to_owned).into_iter().chain(state.problems.iter().cloned()).collect()
    }
}

fn problem(what: &str, kind: &str, condition: &Condition) -> String {
    let Condition { is_ready, reason, message } = condition;
    format!("{what}: {kind}={is_ready} reason:{reason} message:{message}")
}
