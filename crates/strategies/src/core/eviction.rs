//! Eviction: a deletion subject to disruption budgets.

use async_trait::async_trait;
use meta::status::{Cause, Details};
use meta::{GroupResource, Gvk, LabelSelector, Object, Reason, Status, Value};
use registry::{AdmitAll, DeleteOptions, Env, Function, Preconditions, Request, Target, WriteOptions};
use serde_json::json;
use std::sync::Arc;
use store::Entry;
use stored::encode;

pub struct Eviction;

#[async_trait]
impl Function for Eviction {
    fn check_name(&self, object: &Object, url: &str) -> Result<(), Status> {
        match object.name() == url {
            true => Ok(()),
            false => Err(Status::bad_request("name in URL does not match name in Eviction object")),
        }
    }

    /// Clients from before v1.22 send `policy/v1beta1`.
    fn accepts(&self, sent: &Gvk) -> bool {
        (&*sent.group, &*sent.version, &*sent.kind) == ("policy", "v1beta1", "Eviction")
    }

    async fn create(
        &self,
        env: Env<'_>,
        request: &Request,
        eviction: Object,
        write: &WriteOptions,
    ) -> Result<Object, Status> {
        let pod_request = subresource(request, "");
        let mut options = match eviction.get("deleteOptions").cloned().and_then(Object::from_value) {
            Some(o) => {
                DeleteOptions::check(&o)?;
                DeleteOptions::from_object(&o)
            }
            None => DeleteOptions::default(),
        };
        options.dry_run |= write.dry_run;
        let write =
            WriteOptions { dry_run: options.dry_run, manager: write.manager.clone(), ..WriteOptions::default() };
        let enforced = options.preconditions.resource_version.as_ref().is_none_or(String::is_empty);
        for attempt in 1.. {
            let pod = env.registry.get(&pod_request).await?;
            let phase = pod.str_at(&["status", "phase"]);
            let (mut unchanged, mut budget) = (options.clone(), None);
            if matches!(phase, Some("Succeeded" | "Failed" | "Pending")) || pod.is_deleting() {
                // A pending pod must not become ready in between.
                if enforced && phase == Some("Pending") && !pod.is_deleting() {
                    unchanged.preconditions.resource_version = Some(pod.resource_version().to_owned());
                }
            } else if let Some(name) = take(env, request, &pod, &write).await? {
                unchanged.preconditions.resource_version = Some(pod.resource_version().to_owned());
                budget = Some(name);
            }
            match mark_and_delete(env, &pod_request, unchanged, &write).await {
                Ok(()) => break,
                Err(e) if e.code == 409 && enforced => match budget {
                    Some(name) => {
                        let why = format!("The disruption budget {name} is still being processed by the server.");
                        return Err(budget_violation(why, 10));
                    }
                    None if attempt < ATTEMPTS => {}
                    None => return Err(e),
                },
                Err(e) => return Err(e),
            }
        }
        let v = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Object::from_value(v).ok_or_else(|| Status::internal("no status"))
    }
}

/// Attempts to evict a pending pod that changes meanwhile.
const ATTEMPTS: u32 = 20;

/// The same request for another subresource; empty for the object itself.
fn subresource(request: &Request, name: &str) -> Request {
    Request {
        user: request.user.clone(),
        verb: request.verb,
        resource: request.resource.clone(),
        subresource: name.into(),
        namespace: request.namespace.clone(),
        name: request.name.clone(),
    }
}

/// Deletes a pod whose condition `DisruptionTarget` then says why it ends.
async fn mark_and_delete(
    env: Env<'_>,
    pod: &Request,
    mut options: DeleteOptions,
    write: &WriteOptions,
) -> Result<(), Status> {
    if !options.dry_run {
        let now = meta::time::format(env.clock().now());
        let change = |live: Option<&Object>, _: &_| {
            let Some(live) = live else { return Err(Status::not_found(&pod.resource.group_resource(), &pod.name)) };
            let mut o = live.clone();
            mark(&mut o, &now);
            Ok(Target::object(o))
        };
        let (status, write) = (subresource(pod, "status"), write.untracked());
        let updated = env.registry.update(&status, &change, &options.preconditions, &write, &AdmitAll).await?;
        if let Some(version) = options.preconditions.resource_version.as_mut().filter(|v| !v.is_empty()) {
            updated.into_written().object.resource_version().clone_into(version);
        }
    }
    env.registry.delete(pod, &options, &AdmitAll).await.map(|_| ())
}

/// Sets the condition of an evicted pod.
fn mark(pod: &mut Object, now: &str) {
    let mut all = pod.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let held = all.iter().position(|c| c["type"] == "DisruptionTarget");
    let since = held.map(|i| &all[i]).filter(|c| c["status"] == "True").map(|c| c["lastTransitionTime"].clone());
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
        "lastTransitionTime": since.unwrap_or_else(|| now.into()), "lastProbeTime": null,
    });
    match held {
        Some(i) => all[i] = condition,
        None => all.push(condition),
    }
    pod.set(&["status", "conditions"], all);
}

const BUDGETS: &str = "policy/poddisruptionbudgets";

/// Returns the bytes of disruption budgets that an eviction in a namespace reads.
pub fn reads(env: Env<'_>, namespace: &str) -> usize {
    stored::amount::all(&env.registry.store.snapshot(), BUDGETS, Some(namespace))
}

/// Takes one disruption from the budget that selects the pod (`registry/core/pod/storage/eviction.go`). The budget is
/// updated at the revision that was read, so that no disruption is granted twice. An unready pod may be evicted without taking one, as long as it
/// is unready: then the name of its budget is returned.
async fn take(env: Env<'_>, request: &Request, pod: &Object, write: &WriteOptions) -> Result<Option<String>, Status> {
    let rows = env.registry.rows();
    let Some(budgets) = rows.stored("policy", "poddisruptionbudgets").cloned() else { return Ok(None) };
    // Only the selector is decoded of budgets that do not select the pod.
    let selecting: Vec<Arc<Entry>> = {
        let snapshot = env.registry.store.snapshot();
        let all = snapshot.range(BUDGETS, Some(pod.namespace()), None);
        registry::check_readable(&snapshot, BUDGETS, Some(pod.namespace()))?;
        let mut selecting = Vec::new();
        for e in all {
            let selector = encode::part(e, &["spec", "selector"])?;
            if LabelSelector::from_value(selector.as_ref()).is_ok_and(|s| s.matches(|k| pod.label(k))) {
                selecting.push(e.clone());
            }
        }
        selecting
    };
    let budget = match &selecting[..] {
        [] => return Ok(None),
        [one] => encode::decode(one)?,
        _ => {
            return Err(Status::internal(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            ));
        }
    };
    if !is_ready(pod) {
        // Evicting an unready pod is allowed if the budget is met, or its policy is `AlwaysAllow`.
        let number = |k: &str| budget.int_at(&["status", k]).unwrap_or(0);
        let met = number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0;
        if met || budget.str_at(&["spec", "unhealthyPodEvictionPolicy"]) == Some("AlwaysAllow") {
            return Ok(Some(budget.name().to_owned()));
        }
    }
    let now = meta::time::format(env.clock().now());
    let change = |live: Option<&Object>, _: &_| {
        let Some(live) = live else { return Err(Status::not_found(&budgets.group_resource(), budget.name())) };
        let mut o = live.clone();
        take_disruption(&mut o, pod.name(), &now)?;
        Ok(Target::object(o))
    };
    let target = Request {
        user: request.user.clone(),
        verb: request.verb,
        resource: budgets.clone(),
        subresource: "status".into(),
        namespace: pod.namespace().to_owned(),
        name: budget.name().to_owned(),
    };
    env.registry.update(&target, &change, &Preconditions::default(), write, &AdmitAll).await.map(|_| None)
}

/// Maximum number of evicted pods that the controller has not yet observed.
const MAX_DISRUPTED: usize = 2000;

/// Decrements the allowed disruptions of a budget, or fails with the reason why none is allowed.
fn take_disruption(b: &mut Object, pod: &str, now: &str) -> Result<(), Status> {
    let number = |k: &str| b.int_at(&["status", k]).unwrap_or(0);
    let forbidden = |why: &str| {
        let gr = GroupResource { group: "policy".into(), resource: "poddisruptionbudgets".into() };
        Err(Status::forbidden(&gr, b.name(), why))
    };
    if number("observedGeneration") < b.generation() {
        let why = format!("The disruption budget {} is still being processed by the server.", b.name());
        return Err(budget_violation(why, 10));
    }
    let allowed = number("disruptionsAllowed");
    if allowed < 0 {
        return forbidden("pdb disruptions allowed is negative");
    }
    if b.at(&["status", "disruptedPods"]).and_then(Value::as_object).is_some_and(|p| p.len() > MAX_DISRUPTED) {
        return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    if allowed == 0 {
        let (want, have) = (number("desiredHealthy"), number("currentHealthy"));
        let why = format!("The disruption budget {} needs {want} healthy pods and has {have} currently", b.name());
        return Err(budget_violation(why, 0));
    }
    b.set(&["status", "disruptionsAllowed"], allowed - 1);
    b.set(&["status", "disruptedPods", pod], now);
    if allowed == 1 {
        let mut all = b.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
        all.retain(|c| c["type"] != "DisruptionAllowed");
        all.push(json!({"type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
            "lastTransitionTime": now, "observedGeneration": b.generation()}));
        b.set(&["status", "conditions"], all);
    }
    Ok(())
}

fn budget_violation(why: String, retry_after_seconds: u32) -> Status {
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    let cause = Cause { reason: "DisruptionBudget".into(), message: why, field: String::new() };
    Status::new(429, Reason::TooManyRequests, message).with_details(Details {
        causes: vec![cause],
        retry_after_seconds,
        ..Details::default()
    })
}

fn is_ready(pod: &Object) -> bool {
    let all = pod.at(&["status", "conditions"]).and_then(Value::as_array);
    all.is_some_and(|c| c.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(status: Value) -> Object {
        Object::from_value(json!({"metadata": {"name": "b", "generation": 2}, "status": status})).expect("an object")
    }

    #[test]
    fn takes_disruptions_from_budgets() {
        let mut b = budget(json!({"observedGeneration": 2, "disruptionsAllowed": 2}));
        take_disruption(&mut b, "p", "now").expect("a disruption");
        let expected = json!({"observedGeneration": 2, "disruptionsAllowed": 1, "disruptedPods": {"p": "now"}});
        assert_eq!(b.0["status"], expected);
        take_disruption(&mut b, "q", "now").expect("the last disruption");
        let condition = &b.0["status"]["conditions"][0];
        assert_eq!((&b.0["status"]["disruptionsAllowed"], &condition["status"]), (&json!(0), &json!("False")));
    }

    #[test]
    fn marks_evicted_pods() {
        let mut pod = Object::from_value(json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}))
            .expect("an object");
        mark(&mut pod, "first");
        mark(&mut pod, "second");
        let all = pod.at(&["status", "conditions"]).and_then(Value::as_array).expect("conditions");
        assert_eq!(all.len(), 2);
        assert_eq!(
            (&all[1]["reason"], &all[1]["lastTransitionTime"]),
            (&json!("EvictionByEvictionAPI"), &json!("first"))
        );
    }

    /// The status of a budget, and code, cause or message, and delay of the refusal.
    #[test]
    fn refuses_disruptions() {
        let many: Value = (0..2_001).map(|i| (format!("p{i}"), json!("now"))).collect::<serde_json::Map<_, _>>().into();
        for (status, code, message, delay) in [
            (
                json!({"observedGeneration": 1, "disruptionsAllowed": 1}),
                429,
                "The disruption budget b is still being processed by the server.",
                10,
            ),
            (json!({"observedGeneration": 2, "disruptionsAllowed": -1}), 403, "pdb disruptions allowed is negative", 0),
            (
                json!({"observedGeneration": 2, "disruptionsAllowed": 1, "disruptedPods": many}),
                403,
                "DisruptedPods map too big",
                0,
            ),
            (
                json!({"observedGeneration": 2, "disruptionsAllowed": 0, "desiredHealthy": 3, "currentHealthy": 2}),
                429,
                "The disruption budget b needs 3 healthy pods and has 2 currently",
                0,
            ),
        ] {
            let mut b = budget(status);
            let before = b.clone();
            let refused = take_disruption(&mut b, "p", "now").expect_err("no disruption");
            let details = refused.details.clone().unwrap_or_default();
            let text = details.causes.first().map_or(refused.message.as_str(), |c| c.message.as_str());
            assert!(refused.code == code && text.contains(message), "{refused:?}");
            assert_eq!(details.retry_after_seconds, delay, "{message}");
            assert_eq!(b, before, "{message}");
        }
    }
}
