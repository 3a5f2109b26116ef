//! Whether the container runtime works, for the node's condition `Ready` (kubelet `runtime.go`, `updateRuntimeUp`).

use std::time::Duration;

use parking_lot::Mutex;
use runtime::{Condition, Runtime};
use tokio::time::Instant;

use crate::bounded::{MAX_MESSAGE, MAX_WORD, cut};
use crate::pod::network::Network;

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
    runtime_problem: Option<String>,
    network_problem: Option<String>,
}

impl RuntimeState {
    /// Checks the runtime, for ever.
    pub async fn follow(&self, runtime: &dyn Runtime, network: Option<&Network>) {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.check(runtime, network).await;
        }
    }

    /// Asks the runtime and the network for their states.
    pub async fn check(&self, runtime: &dyn Runtime, network: Option<&Network>) {
        let of_runtime = self.check_runtime(runtime).await;
        let Some(condition) = (match network {
            Some(network) => {
                let own = network.status().await;
                of_runtime.map(|of_runtime| if own.is_ready { of_runtime } else { own })
            }
            None => of_runtime,
        }) else {
            return;
        };
        let what = "container runtime network not ready";
        self.0.lock().network_problem = (!condition.is_ready).then(|| problem(what, "NetworkReady", &condition));
    }

    /// Asks the runtime for its state. Returns that of its network.
    async fn check_runtime(&self, runtime: &dyn Runtime) -> Option<Condition> {
        let status = match runtime.status().await {
            Ok(status) => status,
            Err(error) => {
                tracing::warn!(%error, "the container runtime does not report its state; retrying");
                return None;
            }
        };
        let mut state = self.0.lock();
        state.runtime_problem = None;
        if status.runtime.is_ready {
            state.synced = Some(Instant::now());
        } else {
            state.runtime_problem = Some(problem("container runtime not ready", "RuntimeReady", &status.runtime));
        }
        Some(status.network)
    }

    /// Why no pod can be connected, as far as it is known.
    pub fn network_problem(&self) -> Option<String> {
        self.0.lock().network_problem.clone()
    }

    /// Why the node is not ready; empty if the runtime works.
    pub fn problems(&self) -> Vec<String> {
        let state = self.0.lock();
        let age = match state.synced {
            None => Some("container runtime status check may not have completed yet"),
            Some(at) if at.elapsed() >= THRESHOLD => Some("container runtime is down"),
            Some(_) => None,
        };
        let problems = state.runtime_problem.iter().chain(&state.network_problem);
        age.map(str::to_owned).into_iter().chain(problems.cloned()).collect()
    }
}

fn problem(what: &str, kind: &str, condition: &Condition) -> String {
    let Condition { is_ready, reason, message } = condition;
    let (reason, message) = (cut(reason, MAX_WORD), cut(message, MAX_MESSAGE));
    format!("{what}: {kind}={is_ready} reason:{reason} message:{message}")
}
