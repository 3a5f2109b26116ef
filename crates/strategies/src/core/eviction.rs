//! Eviction: a deletion that disruption budgets may refuse.

use async_trait::async_trait;
use meta::status::{Cause, Details};
use meta::{LabelSelector, Object, Reason, Status};
use registry::{AdmitAll, DeleteOptions, Env, Function, Request, WriteOptions, encode};
use serde_json::json;

pub struct Eviction;

#[async_trait]
impl Function for Eviction {
    async fn create(
        &self,
        env: Env<'_>,
        request: &Request,
        eviction: Object,
        write: &WriteOptions,
    ) -> Result<Object, Status> {
        let pods = request.resource.clone();
        let pod_request = Request {
            user: request.user.clone(),
            resource: pods,
            subresource: String::new(),
            namespace: request.namespace.clone(),
            name: request.name.clone(),
            warnings: Default::default(),
        };
        let pod = env.registry.get(&pod_request).await?;
        let done = matches!(pod.str_at(&["status", "phase"]), Some("Succeeded" | "Failed" | "Pending"));
        if !done && !pod.is_deleting() {
            allow(env, &pod)?;
        }
        let mut options = match eviction.get("deleteOptions").cloned().and_then(Object::from_value) {
            Some(o) => DeleteOptions::from_object(&o),
            None => DeleteOptions::default(),
        };
        options.dry_run |= write.dry_run;
        env.registry.delete(&pod_request, &options, &AdmitAll).await?;
        let v = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Object::from_value(v).ok_or_else(|| Status::internal("no status"))
    }
}

/// Asks the budgets that select the pod.
fn allow(env: Env<'_>, pod: &Object) -> Result<(), Status> {
    let snapshot = env.registry.store.snapshot();
    let budgets: Vec<Object> = snapshot
        .range("policy/poddisruptionbudgets", Some(pod.namespace()), None)
        .map(|e| encode::decode(e))
        .filter(|b| {
            let s = LabelSelector::from_value(b.at(&["spec", "selector"]));
            s.is_ok_and(|s| s.matches(|k| pod.label(k)))
        })
        .collect();
    match &budgets[..] {
        [] => Ok(()),
        [b] if b.int_at(&["status", "disruptionsAllowed"]).unwrap_or(0) > 0 => Ok(()),
        [b] => {
            let message = "Cannot evict pod as it would violate the pod's disruption budget.";
            let have = b.int_at(&["status", "currentHealthy"]).unwrap_or(0);
            let want = b.int_at(&["status", "desiredHealthy"]).unwrap_or(0);
            let cause = Cause {
                reason: "DisruptionBudget".into(),
                message: format!(
                    "The disruption budget {} needs {want} healthy pods and has {have} currently",
                    b.name()
                ),
                field: String::new(),
            };
            Err(Status::new(429, Reason::TooManyRequests, message)
                .with_details(Details { causes: vec![cause], ..Details::default() }))
        }
        _ => Err(Status::internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        )),
    }
}
