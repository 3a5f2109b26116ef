//! Conditions that drivers set before a device can be used (`bindingConditions`).

use super::write;
use crate::devices::DeviceClaimInfo;
use client::{Client, Error};
use meta::Clock;
use serde_json::Value;
use std::time::Duration;

/// The pause between two looks at a claim.
const PAUSE: Duration = Duration::from_secs(5);

/// Whether the devices of a claim can be used.
#[derive(Debug, PartialEq, Eq)]
enum Binding {
    Ready,
    Waiting,
    Failed { reason: String, message: String },
}

fn strings<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a str> {
    value[field].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// The state of an allocation with the statuses of its devices (`status.devices`).
fn binding(allocation: &Value, devices: &Value) -> Binding {
    for result in allocation["devices"]["results"].as_array().into_iter().flatten() {
        if strings(result, "bindingConditions").next().is_none() {
            continue;
        }
        let same = |d: &&Value| ["driver", "pool", "device", "shareID"].iter().all(|f| d[f] == result[f]);
        let Some(device) = devices.as_array().into_iter().flatten().find(same) else { return Binding::Waiting };
        let is_true = |kind: &str| {
            let conditions = device["conditions"].as_array().into_iter().flatten();
            conditions.into_iter().find(|c| c["type"] == kind && c["status"] == "True")
        };
        if let Some(failed) = strings(result, "bindingFailureConditions").find_map(is_true) {
            let text = |field: &str| failed[field].as_str().unwrap_or_default().to_owned();
            return Binding::Failed { reason: text("reason"), message: text("message") };
        }
        if strings(result, "bindingConditions").any(|kind| is_true(kind).is_none()) {
            return Binding::Waiting;
        }
    }
    Binding::Ready
}

/// Whether the devices have had `timeout` since they were allocated.
fn is_late(allocation: &Value, timeout: Duration, clock: Option<&dyn Clock>) -> bool {
    let since = allocation["allocationTimestamp"].as_str().and_then(|t| t.parse::<jiff::Timestamp>().ok());
    let (Some(since), Some(clock)) = (since, clock) else { return false };
    clock.now().duration_since(since) > jiff::SignedDuration::try_from(timeout).unwrap_or(jiff::SignedDuration::MAX)
}

/// Whether binding the devices of a claim has failed, or has taken too long.
pub fn has_failed(claim: &DeviceClaimInfo, timeout: Duration, clock: Option<&dyn Clock>) -> bool {
    match binding(&claim.allocation, &claim.statuses) {
        Binding::Ready => false,
        Binding::Failed { .. } => true,
        Binding::Waiting => is_late(&claim.allocation, timeout, clock),
    }
}

/// Whether a pod waits for conditions of the devices of an allocation.
pub fn has_conditions(allocation: &Value) -> bool {
    let results = allocation["devices"]["results"].as_array().into_iter().flatten();
    results.into_iter().any(|result| strings(result, "bindingConditions").next().is_some())
}

/// Waits until the devices of a claim can be used. Errors if that fails, or takes longer than `timeout`.
pub async fn wait(
    client: &Client,
    clock: &dyn Clock,
    (namespace, name): (&str, &str),
    timeout: Duration,
) -> Result<(), Error> {
    let claims = client.dynamic(&write::resource()).namespace(namespace);
    loop {
        let now = claims.get(name).await?;
        let status = |field: &str| now.at(&["status", field]).cloned().unwrap_or_default();
        let allocation = status("allocation");
        match binding(&allocation, &status("devices")) {
            Binding::Ready => return Ok(()),
            Binding::Failed { reason, message } => {
                return Err(Error::Unexpected(format!(
                    "device binding failed: claim={name}, reason={reason}, message={message:?}"
                )));
            }
            Binding::Waiting if is_late(&allocation, timeout, Some(clock)) => {
                return Err(Error::Unexpected(format!("device binding timeout: claim={name}")));
            }
            Binding::Waiting => tokio::time::sleep(PAUSE).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_binding_conditions_are_needed() {
        let result = json!({"driver": "d", "pool": "p", "device": "x", "bindingConditions": ["attached", "ready"],
            "bindingFailureConditions": ["broken"]});
        let allocation = json!({"devices": {"results": [result, {"driver": "d", "pool": "p", "device": "free"}]}});
        let check = |conditions: &[(&str, &str)]| {
            let conditions: Vec<_> = conditions
                .iter()
                .map(|(t, s)| json!({"type": t, "status": s, "reason": "R", "message": "M"}))
                .collect();
            binding(&allocation, &json!([{"driver": "d", "pool": "p", "device": "x", "conditions": conditions}]))
        };
        assert_eq!(binding(&allocation, &json!([])), Binding::Waiting);
        assert_eq!(check(&[("attached", "True")]), Binding::Waiting);
        assert_eq!(check(&[("attached", "True"), ("ready", "False")]), Binding::Waiting);
        assert_eq!(check(&[("attached", "True"), ("ready", "True"), ("broken", "False")]), Binding::Ready);
        let failed = Binding::Failed { reason: "R".into(), message: "M".into() };
        assert_eq!(check(&[("attached", "True"), ("ready", "True"), ("broken", "True")]), failed);
    }
}
