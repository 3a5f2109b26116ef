//! Binding: assigns a pod to a node.

use crate::Config;
use crate::table::Row;
use async_trait::async_trait;
use meta::{GroupResource, Object, Status, Value};
use registry::{AdmitAll, CostEstimator, Env, Function, Preconditions, Request, Target, WriteOptions};
use serde_json::json;
use stored::amount;

pub fn row(_: &Config) -> Row {
    Row::computed(Binding, Binding)
}

pub struct Binding;

/// The strategy of `bindings`: without a pod in the path, the binding's name is that of the pod.
impl CostEstimator for Binding {
    fn reads(&self, env: Env<'_>, _subresource: &str, namespace: &str, _name: &str) -> usize {
        amount::largest(&env.registry.store.snapshot(), "pods", Some(namespace))
    }
}

registry::strategy!(Binding: CostEstimator);

#[async_trait]
impl Function for Binding {
    fn check_name(&self, object: &Object, url: &str) -> Result<(), Status> {
        match object.name() == url {
            true => Ok(()),
            false => Err(Status::bad_request("name in URL does not match name in Binding object")),
        }
    }

    async fn create(
        &self,
        env: Env<'_>,
        request: &Request,
        binding: Object,
        options: &WriteOptions,
    ) -> Result<Object, Status> {
        let rows = env.registry.rows();
        let pods = rows.stored("", "pods").ok_or_else(|| Status::internal("pods are not served"))?.clone();
        let node = binding.str_at(&["target", "name"]).unwrap_or_default().to_owned();
        let kind = binding.str_at(&["target", "kind"]).unwrap_or_default();
        if node.is_empty() || !matches!(kind, "" | "Node") {
            let e = if node.is_empty() {
                meta::FieldError::required(&meta::FieldPath::new("target.name"), "")
            } else {
                meta::FieldError::not_supported(&meta::FieldPath::new("target.kind"), kind, &["Node", "<empty>"])
            };
            let gk = meta::GroupKind { group: String::new(), kind: "Binding".into() };
            return Err(Status::invalid(&gk, binding.name(), &[e]));
        }
        let pod = Request {
            user: request.user.clone(),
            verb: request.verb,
            resource: pods.clone(),
            // Written as a subresource, so that the rules for updates of a running pod do not apply.
            subresource: "binding".into(),
            namespace: request.namespace.clone(),
            name: binding.name().to_owned(),
        };
        let now = meta::time::format(env.clock().now());
        let change = |live: Option<&Object>, _: &_| {
            let gr = pods.group_resource();
            let Some(live) = live else { return Err(Status::not_found(&gr, binding.name())) };
            let gr = GroupResource { group: String::new(), resource: "pods/binding".into() };
            if live.is_deleting() {
                return Err(Status::conflict(
                    &gr,
                    live.name(),
                    &format!("pod {} is being deleted, cannot be assigned to a host", live.name()),
                ));
            }
            let have = live.str_at(&["spec", "nodeName"]).unwrap_or_default();
            if !have.is_empty() {
                let why = format!("pod {} is already assigned to node {have:?}", live.name());
                return Err(Status::conflict(&gr, live.name(), &why));
            }
            let gates = live.at(&["spec", "schedulingGates"]).and_then(Value::as_array);
            if gates.is_some_and(|g| !g.is_empty()) {
                return Err(Status::conflict(
                    &gr,
                    live.name(),
                    &format!("pod {} has non-empty .spec.schedulingGates", live.name()),
                ));
            }
            let mut o = live.clone();
            o.set(&["spec", "nodeName"], node.as_str());
            o.remove(&["status", "nominatedNodeName"]);
            for (k, v) in binding.annotations() {
                o.set_annotation(k, v);
            }
            for (k, v) in binding.labels() {
                o.set(&["metadata", "labels", k], v);
            }
            set_condition(&mut o, "PodScheduled", &now);
            Ok(Target::object(o))
        };
        let non_empty = |s: &str| Some(s.to_owned()).filter(|s| !s.is_empty());
        let p =
            Preconditions { uid: non_empty(binding.uid()), resource_version: non_empty(binding.resource_version()) };
        env.registry.update(&pod, &change, &p, &options.untracked(), &AdmitAll).await?;
        let v = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Object::from_value(v).ok_or_else(|| Status::internal("no status"))
    }
}

/// Sets a condition to `True`.
fn set_condition(o: &mut Object, ty: &str, now: &str) {
    let mut all = o.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let new = json!({"type": ty, "status": "True", "lastProbeTime": null, "lastTransitionTime": now});
    match all.iter_mut().find(|c| c["type"] == ty) {
        Some(c) => *c = new,
        None => all.push(new),
    }
    o.set(&["status", "conditions"], all);
}
