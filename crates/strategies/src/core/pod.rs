//! Pod: defaults, QoS class, updates of a running pod, graceful deletion.

use super::pod_fields::items;
use super::pod_qos::qos_class;
use super::{
    binding, eviction, pod_apparmor, pod_cells, pod_ephemeral_containers, pod_resize, pod_status, pod_update, proxy,
};
use crate::Config;
use crate::pod_template::{self, SpecOwner, annotations};
use crate::read::text;
use crate::table::Row;
use kinds::columns::Cell;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Status, Value, names};
use registry::{
    CostEstimator, CreateStrategy, DeleteOptions, DeleteStrategy, Env, ProxyTarget, Request, ResetFieldsStrategy, Sub,
    Subresources, TableConvertor, UpdateStrategy, Upstream, take_field,
};
use serde_json::json;
use std::sync::Arc;

pub fn row(_: &Config) -> Row {
    Row::stored(Pod)
}

pub struct Pod;

impl CreateStrategy for Pod {
    fn default(&self, o: &mut Object) {
        if o.at(&["spec", "enableServiceLinks"]).is_none() {
            o.set(&["spec", "enableServiceLinks"], true);
        }
        pod_template::default(o, &["spec"]);
        requests_from_limits(o);
        if let Some(mut spec) = o.remove(&["spec"]) {
            pod_template::host_network_ports(&mut spec);
            pod_template::default_of_pod(&mut spec);
            o.set(&["spec"], spec);
        }
        first_address(o);
        // Upstream treats a negative grace period as one second.
        if o.int_at(&["spec", "terminationGracePeriodSeconds"]).is_some_and(|n| n < 0) {
            o.set(&["spec", "terminationGracePeriodSeconds"], 1);
        }
    }

    fn prepare_for_create(&self, env: Env<'_>, _request: &Request, o: &mut Object) {
        let qos = qos_class(o);
        o.set(&["status"], json!({"phase": "Pending", "qosClass": qos}));
        if o.at(&["spec", "schedulingGates"]).and_then(Value::as_array).is_some_and(|g| !g.is_empty()) {
            let now = meta::time::format(env.clock().now());
            let c = json!([{"type": "PodScheduled", "status": "False", "lastProbeTime": null, "lastTransitionTime": now,
                "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates"}]);
            o.set(&["status", "conditions"], c);
        }
        pod_update::merge_label_keys(o);
        pod_apparmor::fields_from_annotations(o, env);
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let spec = o.get("spec").unwrap_or(&Value::Null);
        annotations::rules(annotations_of(o), spec, &FieldPath::new("metadata.annotations"), errors);
        pod_template::spec(spec, SpecOwner::Pod(o.name()), &FieldPath::new("spec"), errors);
    }

    fn validate_since(&self, o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
        if old.is_some() {
            return;
        }
        let (spec, at) = (o.get("spec").unwrap_or(&Value::Null), FieldPath::new("spec"));
        if !items(o, "ephemeralContainers").is_empty() {
            errors.push(FieldError::forbidden(&at.child("ephemeralContainers"), "cannot be set on create"));
        }
        if !text(spec, "nodeName").is_empty() && !items(o, "schedulingGates").is_empty() {
            let why = "cannot be set until all schedulingGates have been cleared";
            errors.push(FieldError::forbidden(&at.child("nodeName"), why));
        }
        annotations::agree_with_fields(annotations_of(o), spec, &at, errors);
    }

    fn warnings(&self, o: &Object, old: Option<&Object>) -> Vec<String> {
        // Pods are mostly updated by programs, not users.
        if old.is_some() {
            return Vec::new();
        }
        let part = |k: &str| o.get(k).unwrap_or(&Value::Null);
        let bad = names::dns_label(o.name());
        let mut out = Vec::new();
        if !bad.is_empty() {
            out.push(format!("metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [{}]", bad.join(" ")));
        }
        out.extend(pod_template::pod_warnings(part("metadata"), part("spec"), &FieldPath::root()));
        out
    }
}

/// Makes `podIP` the first item of `podIPs`: it decides if they differ (`Convert_v1_PodStatus_To_core_PodStatus`).
fn first_address(o: &mut Object) {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let one = o.at(&["status", "podIP"]).map(text).unwrap_or_default();
    let first = o.at(&["status", "podIPs"]).and_then(|l| l.get(0)).map(|p| text(&p["ip"]));
    match first {
        Some(first) if one.is_empty() && !first.is_empty() => o.set(&["status", "podIP"], first),
        first if !one.is_empty() && first.as_ref() != Some(&one) => {
            o.set(&["status", "podIPs"], json!([{"ip": one}]));
        }
        _ => {}
    }
}

impl UpdateStrategy for Pod {
    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        let at = FieldPath::new("metadata.annotations");
        annotations::update(annotations_of(o), annotations_of(old), &at, errors);
        // Upstream validates the annotations twice on update.
        annotations::rules(annotations_of(o), o.get("spec").unwrap_or(&Value::Null), &at, errors);
        pod_update::validate(o, old, errors);
    }

    fn validate_part(&self, subresource: &str, o: &Object, old: &Object, errors: &mut ErrorList) {
        let rule = match subresource {
            "ephemeralcontainers" => pod_ephemeral_containers::validate,
            "resize" => pod_resize::validate,
            "status" => return pod_status::validate(o, old, errors),
            _ => return,
        };
        let at = FieldPath::new("metadata.annotations");
        if let Some(schema) = kinds::catalog().schema_of(&meta::Gvk::new("", "v1", "Pod")) {
            schema::rules::validate(&o.0, schema, errors);
        }
        self.validate(o, errors);
        if subresource == "ephemeralcontainers" {
            annotations::update(annotations_of(o), annotations_of(old), &at, errors);
        }
        rule(o, old, errors);
    }

    fn part_warnings(&self, subresource: &str, o: &Object) -> Vec<String> {
        let status = o.get("status").filter(|_| subresource == "status").unwrap_or(&Value::Null);
        let of_list = |key: &str| {
            let at = FieldPath::new("status").child(key);
            let all = crate::read::items(status, key).iter().enumerate();
            let warn = |(i, a): (usize, &Value)| schema::rules::ip_warning(text(a, "ip"), &at.index(i).child("ip"));
            all.filter_map(warn).collect::<Vec<_>>()
        };
        ["podIPs", "hostIPs"].into_iter().flat_map(of_list).collect()
    }

    fn counts_generation(&self, subresource: &str) -> bool {
        matches!(subresource, "" | "ephemeralcontainers" | "resize")
    }

    fn take_part(&self, subresource: &str, o: &mut Object, old: &Object) {
        match subresource {
            // The binding function sets only the allowed fields.
            "binding" => {}
            "ephemeralcontainers" => {
                let list = o.at(&["spec", "ephemeralContainers"]).cloned();
                *o = old.clone();
                match list {
                    Some(l) => o.set(&["spec", "ephemeralContainers"], l),
                    None => {
                        o.remove(&["spec", "ephemeralContainers"]);
                    }
                }
                pod_template::default(o, &["spec"]);
            }
            "resize" => {
                let sent = std::mem::replace(o, old.clone());
                pod_resize::take_resources(o, &sent);
            }
            _ => {
                take_field(subresource, o, old, &["ownerReferences", "deletionTimestamp"]);
                pod_status::keep(o, old);
            }
        }
    }
}

impl ResetFieldsStrategy for Pod {
    fn resets(&self, subresource: &str) -> Option<&'static [&'static [&'static str]]> {
        let of_status: &[&[&str]] = &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]];
        (subresource == "status").then_some(of_status)
    }
}

impl DeleteStrategy for Pod {
    fn grace_period(&self, o: &Object, options: &DeleteOptions) -> Option<i64> {
        let requested = options.grace_period_seconds;
        let mut grace = requested.or_else(|| o.int_at(&["spec", "terminationGracePeriodSeconds"])).unwrap_or(30);
        let unscheduled = o.str_at(&["spec", "nodeName"]).unwrap_or_default().is_empty();
        let finished = matches!(o.str_at(&["status", "phase"]), Some("Succeeded" | "Failed"));
        if unscheduled || finished {
            grace = 0;
        }
        Some(if grace < 0 { 1 } else { grace })
    }
}

impl Subresources for Pod {
    fn proxy(&self, _env: Env<'_>, _request: &Request, o: &Object, target: &ProxyTarget) -> Result<Upstream, Status> {
        proxy::pod(o, target)
    }

    fn subresource(&self, name: &str) -> Option<Sub> {
        match name {
            "log" | "exec" | "attach" | "portforward" | "proxy" => Some(Sub::Connect),
            "binding" => Some(Sub::Function(Arc::new(binding::Binding))),
            "eviction" => Some(Sub::Function(Arc::new(eviction::Eviction))),
            _ => None,
        }
    }
}

impl TableConvertor for Pod {
    fn cell(&self, cell: &Cell<'_>) -> Option<Value> {
        pod_cells::cells(cell)
    }
}

impl CostEstimator for Pod {
    fn reads(&self, env: Env<'_>, subresource: &str, namespace: &str, _name: &str) -> usize {
        if subresource == "eviction" { eviction::reads(env, namespace) } else { 0 }
    }
}

registry::strategy!(Pod: CreateStrategy, UpdateStrategy, ResetFieldsStrategy, DeleteStrategy, Subresources, TableConvertor, CostEstimator);

fn annotations_of(o: &Object) -> &Value {
    o.at(&["metadata", "annotations"]).unwrap_or(&Value::Null)
}

/// Sets absent requests of containers from their limits.
fn requests_from_limits(o: &mut Object) {
    let Some(mut spec) = o.remove(&["spec"]) else { return };
    for list in ["containers", "initContainers"] {
        for c in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let limits = c["resources"]["limits"].as_object().cloned().unwrap_or_default();
            for (k, v) in limits {
                if c["resources"]["requests"].get(&k).is_none() {
                    c["resources"]["requests"][k] = v;
                }
            }
        }
    }
    o.set(&["spec"], spec);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_pod_spec, check_update};

    fn pod(spec: Value) -> Value {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        pod["spec"].as_object_mut().unwrap().extend(spec.as_object().cloned().unwrap_or_default());
        pod
    }

    fn object(value: Value) -> Object {
        Object::from_value(value).unwrap()
    }

    #[test]
    fn validates_a_new_pod() {
        let restart =
            r#"restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never""#;
        let port =
            "containers[0].ports[0].hostPort: Invalid value: 81: must match `containerPort` when `hostNetwork` is true";
        check_pod_spec(&[
            ("", Value::Null, &[]),
            ("/containers", json!([]), &["containers: Required value"]),
            (
                "/containers/0/name",
                json!("C"),
                &["containers[0].name: Invalid value: \"C\": a lowercase RFC 1123 label…"],
            ),
            ("/containers/0/image", json!(""), &["containers[0].image: Required value"]),
            (
                "/containers/0/image",
                json!("i "),
                &["containers[0].image: Invalid value: \"i \": must not have leading or trailing whitespace"],
            ),
            (
                "/initContainers",
                json!([{"name": "c", "image": "i"}]),
                &["initContainers[0].name: Duplicate value: \"c\""],
            ),
            (
                "/ephemeralContainers",
                json!([{"name": "e", "image": "i"}]),
                &["ephemeralContainers: Forbidden: cannot be set on create"],
            ),
            ("/restartPolicy", json!("Sometimes"), &[restart]),
            (
                "/activeDeadlineSeconds",
                json!(0),
                &["activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"],
            ),
            ("/terminationGracePeriodSeconds", json!(-5), &[]),
        ]);
        let mut base = pod(json!({"hostNetwork": true}));
        base["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80}]);
        let (path, error) = ("/spec/containers/0/ports/0/hostPort", format!("spec.{port}"));
        check_create(&Pod, &base, &[("", Value::Null, &[]), (path, json!(80), &[]), (path, json!(81), &[&error])]);
        let gated = pod(json!({"schedulingGates": [{"name": "g"}]}));
        let node = "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared";
        check_create(&Pod, &gated, &[("", Value::Null, &[]), ("/spec/nodeName", json!("n"), &[node])]);
    }

    #[test]
    fn validates_an_update() {
        let old = pod(json!({"activeDeadlineSeconds": 60, "tolerations": [{"key": "a", "operator": "Exists"}]}));
        let other = "spec: Forbidden: pod updates may not change fields other than…";
        let toleration =
            "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds";
        let gate =
            "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'g'";
        check_update(
            &Pod,
            &old,
            &[
                ("", Value::Null, &[]),
                ("/spec/containers/0/image", json!("j"), &[]),
                ("/spec/containers/0/command", json!(["a"]), &[other]),
                ("/spec/nodeName", json!("n"), &[other]),
                ("/spec/hostname", json!("h"), &[other]),
                (
                    "/spec/containers/1",
                    json!({"name": "d", "image": "i"}),
                    &["spec.containers: Forbidden: pod updates may not add or remove containers"],
                ),
                ("/spec/activeDeadlineSeconds", json!(30), &[]),
                (
                    "/spec/activeDeadlineSeconds",
                    json!(61),
                    &["spec.activeDeadlineSeconds: Invalid value: 61: must be less than or equal to previous value"],
                ),
                ("/spec/tolerations/1", json!({"key": "b", "operator": "Exists"}), &[]),
                ("/spec/tolerations", json!([]), &[toleration]),
                ("/spec/schedulingGates", json!([{"name": "g"}]), &[gate]),
            ],
        );
    }

    #[test]
    fn validates_an_update_of_a_gated_pod() {
        let terms = json!([{"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}]);
        let affinity =
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
        let old = pod(json!({"schedulingGates": [{"name": "g"}], "nodeSelector": {"a": "b"}, "affinity": affinity}));
        let selector = "spec.nodeSelector: Invalid value: {\"a\":\"c\"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        let at = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
        let only = format!("{at}[0]: Invalid value: …");
        check_update(
            &Pod,
            &old,
            &[
                ("/spec/schedulingGates", json!([]), &[]),
                ("/spec/nodeSelector", json!({"a": "b", "c": "d"}), &[]),
                ("/spec/nodeSelector", json!({"a": "c"}), &[selector]),
                (&format!("{terms}/0/matchExpressions/1"), json!({"key": "l", "operator": "Exists"}), &[]),
                (&format!("{terms}/0/matchExpressions/0/values"), json!(["w"]), &[&only]),
            ],
        );
    }

    /// Clauses: R04.qos
    #[test]
    fn determines_the_grace_period() {
        let check = |pod: Value, requested: Option<i64>, grace: i64| {
            let options = DeleteOptions { grace_period_seconds: requested, ..DeleteOptions::default() };
            assert_eq!(Pod.grace_period(&object(pod.clone()), &options), Some(grace), "{pod} {requested:?}");
        };
        let bound = |extra: Value| {
            let mut pod = pod(json!({"nodeName": "n", "terminationGracePeriodSeconds": 10}));
            pod.as_object_mut().unwrap().extend(extra.as_object().cloned().unwrap_or_default());
            pod
        };
        check(bound(json!({})), None, 10);
        check(bound(json!({})), Some(5), 5);
        check(bound(json!({})), Some(0), 0);
        check(bound(json!({})), Some(-1), 1);
        check(bound(json!({"status": {"phase": "Succeeded"}})), Some(5), 0);
        check(pod(json!({})), Some(5), 0);
        check(pod(json!({"nodeName": "n"})), None, 30);
    }

    #[test]
    fn sets_defaults() {
        let mut pod = object(pod(
            json!({"hostNetwork": true, "terminationGracePeriodSeconds": -1, "serviceAccount": "a",
            "volumes": [{"name": "v"}, {"name": "w", "image": {"reference": "i:1"}}, {"name": "x", "image": {"reference": "i"}}],
            "containers": [{"name": "c", "image": "i:1", "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "1"}}}]}),
        ));
        Pod.default(&mut pod);
        let at = |path: &str| pod.0["spec"].pointer(path).cloned().unwrap_or_default();
        assert_eq!(at("/enableServiceLinks"), true);
        assert_eq!(at("/terminationGracePeriodSeconds"), 1);
        assert_eq!(at("/serviceAccountName"), "a");
        assert_eq!(at("/volumes/0/emptyDir"), json!({}));
        assert_eq!(
            (at("/volumes/1/image/pullPolicy"), at("/volumes/2/image/pullPolicy")),
            (json!("IfNotPresent"), json!("Always"))
        );
        assert_eq!(at("/containers/0/imagePullPolicy"), "IfNotPresent");
        assert_eq!(at("/containers/0/ports/0/hostPort"), 80);
        assert_eq!(at("/containers/0/resources/requests/cpu"), "1");
    }
}
