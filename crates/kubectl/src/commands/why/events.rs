//! Events, as a last resort: they show what happened, not the current state.

use super::fields::text;
use super::finding::Finding;
use super::reader::{Reader, escaped};
use crate::error::Result;
use meta::Value;

/// The latest warnings about an object, one for each reason, with their times.
pub async fn latest(r: &mut Reader<'_>, namespace: &str, uid: &str) -> Result<Vec<Finding>> {
    if uid.is_empty() {
        return Ok(Vec::new());
    }
    let events =
        r.select("v1", namespace, "events", &format!("fieldSelector=involvedObject.uid%3D{}", escaped(uid))).await?;
    Ok(warnings(&events))
}

/// How many events are shown.
const MOST: usize = 2;

fn time(event: &Value) -> &str {
    let times = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"];
    times.into_iter().map(|at| text(event, at)).find(|t| !t.is_empty()).unwrap_or_default()
}

/// The newest warnings, one for each reason; and `Killing`, which names a failed probe.
fn warnings(events: &[Value]) -> Vec<Finding> {
    let counts = |e: &&Value| {
        // The scheduler's live decision replaces this one.
        e["reason"] != "FailedScheduling" && (e["type"] == "Warning" || text(e, "/message").contains("probe"))
    };
    let mut all: Vec<&Value> = events.iter().filter(counts).collect();
    all.sort_by_key(|e| std::cmp::Reverse(meta::time::parse(time(e))));
    let mut seen: Vec<&str> = Vec::new();
    let mut findings = Vec::new();
    for event in all {
        let reason = text(event, "/reason");
        if seen.contains(&reason) || findings.len() == MOST {
            continue;
        }
        seen.push(reason);
        let message = format!("{reason}: {}", text(event, "/message"));
        findings.push(Finding { event_time: Some(time(event).to_owned()), ..Finding::new("Event", message) });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn shows_the_newest_warning_of_each_reason() {
        let event = |reason: &str, kind: &str, message: &str, time: &str| json!({"reason": reason, "type": kind, "message": message, "lastTimestamp": time});
        let found = warnings(&[
            event("FailedMount", "Warning", "old", "2026-11-21T11:00:00Z"),
            event("FailedMount", "Warning", "new", "2026-11-21T11:30:00Z"),
            event("FailedScheduling", "Warning", "0/1", "2026-11-21T11:40:00Z"),
            event("Killing", "Normal", "Container c failed liveness probe", "2026-11-21T11:20:00Z"),
            event("Pulled", "Normal", "x", "2026-11-21T11:50:00Z"),
        ]);
        let messages: Vec<&str> = found.iter().map(|f| f.message.as_str()).collect();
        assert_eq!(messages, ["FailedMount: new", "Killing: Container c failed liveness probe"]);
        assert_eq!(found[0].event_time.as_deref(), Some("2026-11-21T11:30:00Z"));
    }
}
