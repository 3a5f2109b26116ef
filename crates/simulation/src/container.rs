//! What simulated containers do: the name of their image says it.

use jiff::Timestamp;
use meta::{Rng, Value};
use serde_json::json;

/// What the container of a pod does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It becomes ready and runs until it is stopped.
    Runs,
    /// It runs, but never becomes ready.
    NeverReady,
    /// It exits with a code after a number of seconds.
    Exits(i64, u64),
}

impl Outcome {
    /// The outcome of an image: `exit:1,0` exits with the first code for the index 0 of a job and with the last one for all further indexes;
    /// `flaky:3` fails one time in three, at random; `sleep:60` exits after a minute; `never-ready` is one; all others run.
    pub fn parse(image: &str, index: usize, rng: &dyn Rng) -> Self {
        if image == "never-ready" {
            return Self::NeverReady;
        }
        if let Some(codes) = image.strip_prefix("exit:") {
            let codes: Vec<i64> = codes.split(',').filter_map(|c| c.parse().ok()).collect();
            return codes.get(index).or(codes.last()).map_or(Self::Runs, |code| Self::Exits(*code, 1));
        }
        if let Some(seconds) = image.strip_prefix("sleep:").and_then(|n| n.parse().ok()) {
            return Self::Exits(0, seconds);
        }
        match image.strip_prefix("flaky:").and_then(|n| n.parse::<u64>().ok()) {
            Some(n) => Self::Exits(i64::from(rng.next_u64().is_multiple_of(n.max(1))), 1),
            None => Self::Runs,
        }
    }
}

/// The status of a pod whose container runs.
pub(crate) fn running(now: Timestamp, ready: bool) -> Value {
    let now = meta::time::format(now);
    let status = if ready { "True" } else { "False" };
    json!({
        "phase": "Running", "startTime": now,
        "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": now}],
    })
}

/// The status of a pod whose container exited.
pub(crate) fn ended(code: i64, now: Timestamp) -> Value {
    let now = meta::time::format(now);
    json!({
        "phase": if code == 0 { "Succeeded" } else { "Failed" },
        "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": now}],
        "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {
            "exitCode": code, "startedAt": now, "finishedAt": now,
        }}}],
    })
}
