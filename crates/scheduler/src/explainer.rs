//! Explains waiting pods from the state of a running scheduler.
//!
//! The scheduling loop only copies its state; the explanation is made on a thread for blocking work, one at a time. So each explanation
//! delays the loop by one copy, and one is in memory at a time.

use crate::cluster::Cluster;
use crate::decision::ExtenderRefusal;
use crate::explain::{Explanation, explain};
use crate::framework::Framework;
use crate::pod::Pod;
use crate::queue::Position;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// What a running scheduler knows of a waiting pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodDecision {
    /// The `schedulerName`.
    pub scheduler: String,
    /// When the state was read that the explanation is made from.
    pub time: String,
    pub queue: Position,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_decision: Option<LastDecision>,
    pub explanation: Explanation,
}

/// The last time that no node was found for a pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastDecision {
    pub time: String,
    /// The message of the event and of the condition.
    pub message: String,
    /// Which extenders refused which nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extenders: Vec<ExtenderRefusal>,
}

/// A copy of what a scheduler knows of a pod.
pub(crate) struct State {
    pub cluster: Cluster,
    pub pod: Arc<Pod>,
    pub framework: Arc<Framework>,
    pub time: Timestamp,
    pub position: Position,
    pub last_decision: Option<LastDecision>,
}

/// A request for the state of a pod; dropped if the pod does not wait.
pub(crate) struct Request {
    pub uid: Arc<str>,
    pub reply: oneshot::Sender<State>,
}

/// A decision, and the turn that was taken for it: the next one is made when this value is dropped.
pub struct Explained {
    pub decision: PodDecision,
    _turn: OwnedSemaphorePermit,
}

/// Explains the pods that wait for the scheduler that runs, if one does.
pub struct Explainer {
    requests: Mutex<Option<mpsc::Sender<Request>>>,
    profiles: Mutex<Vec<String>>,
    turn: Arc<Semaphore>,
}

/// How long one explanation may take, so that a pod with very many terms delays others little.
const LIMIT: Duration = Duration::from_secs(2);

impl Default for Explainer {
    fn default() -> Self {
        Self { requests: Mutex::default(), profiles: Mutex::default(), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl Explainer {
    /// The requests to a scheduler that starts with profiles of these names.
    pub(crate) fn connect(&self, profiles: Vec<String>) -> mpsc::Receiver<Request> {
        let (sender, receiver) = mpsc::channel(1);
        *self.profiles.lock() = profiles;
        *self.requests.lock() = Some(sender);
        receiver
    }

    /// The names of the profiles of the scheduler that runs; none if none does.
    pub fn profiles(&self) -> Vec<String> {
        let runs = self.requests.lock().as_ref().is_some_and(|requests| !requests.is_closed());
        if runs { self.profiles.lock().clone() } else { Vec::new() }
    }

    /// Explains why a pod waits. None if no scheduler runs here, or the pod is not in its queue.
    pub async fn explain(&self, uid: &str) -> Option<Explained> {
        let turn = self.turn.clone().acquire_owned().await.ok()?;
        let requests = self.requests.lock().clone()?;
        let (reply, state) = oneshot::channel();
        requests.send(Request { uid: uid.into(), reply }).await.ok()?;
        let state = state.await.ok()?;
        let explained = tokio::task::spawn_blocking(move || {
            let decision = PodDecision {
                scheduler: state.framework.name.to_string(),
                time: meta::time::format(state.time),
                queue: state.position,
                last_decision: state.last_decision,
                explanation: explain(&state.framework, &state.pod, &state.cluster, LIMIT),
            };
            Explained { decision, _turn: turn }
        });
        explained.await.ok()
    }
}
