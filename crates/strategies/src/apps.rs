//! The workloads of `apps`: selector and template belong together.

use crate::core::persistent_volume_claim;
use crate::read::{delegated, items, shown, text};
use crate::replicas::{self, Counts};
use crate::{plain, pod_template};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, LabelSelector, Object, Value};
use registry::{Env, NameRule, Request, Strategy, Sub};
use serde_json::json;
use std::collections::HashSet;

const CLAIM: &str = "persistentVolumeClaim";

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// What may change in a stateful set.
const STATEFUL_MUTABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

pub struct Workload {
    pub selector_is_immutable: bool,
    pub names: NameRule,
}

impl Strategy for Workload {
    fn name_rule(&self) -> NameRule {
        self.names
    }

    fn default(&self, o: &mut Object) {
        pod_template::default(o, &["spec", "template", "spec"]);
        match o.kind() {
            "DaemonSet" if o.annotation(TEMPLATE_GENERATION).is_none() => o.set_annotation(TEMPLATE_GENERATION, "1"),
            "StatefulSet" => {
                let Some(meta::Value::Array(mut claims)) = o.remove(&["spec", "volumeClaimTemplates"]) else { return };
                for c in &mut claims {
                    c["apiVersion"] = "v1".into();
                    c["kind"] = "PersistentVolumeClaim".into();
                }
                o.set(&["spec", "volumeClaimTemplates"], claims);
            }
            _ => {}
        }
    }

    fn prepare_for_create(&self, _env: Env<'_>, _request: &Request, o: &mut Object) {
        let empty = match o.kind() {
            "Deployment" => serde_json::json!({}),
            "DaemonSet" => serde_json::json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0,
                "numberMisscheduled": 0, "numberReady": 0}),
            "StatefulSet" => serde_json::json!({"replicas": 0, "availableReplicas": 0}),
            _ => serde_json::json!({"replicas": 0}),
        };
        o.set(&["status"], empty);
    }

    fn warnings(&self, o: &Object, old: Option<&Object>) -> Vec<String> {
        let named = matches!(o.kind(), "Deployment" | "ReplicaSet") && old.is_none();
        let mut out = if named { pod_template::of_name(o.name()) } else { Vec::new() };
        out.extend(pod_template::of_workload(o, old, &["spec", "template"]));
        if o.kind() == "StatefulSet" {
            out.extend(stateful_warnings(o, old));
        }
        out
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let spec = o.get("spec").unwrap_or(&Value::Null);
        let path = FieldPath::new("spec");
        let at = path.child("template");
        let readable = selector(o.kind(), spec, &path, errors);
        let validated = readable || !matches!(o.kind(), "Deployment" | "ReplicaSet");
        if let Some(t) = spec.get("template").filter(|_| validated) {
            let definition = match o.kind() {
                "Deployment" => "io.k8s.api.apps.v1.DeploymentSpec",
                "ReplicaSet" => "io.k8s.api.apps.v1.ReplicaSetSpec",
                "StatefulSet" => "io.k8s.api.apps.v1.StatefulSetSpec",
                _ => "io.k8s.api.apps.v1.DaemonSetSpec",
            };
            delegated(spec, definition, "template", &path, errors);
            let with_claims =
                (o.kind() == "StatefulSet").then(|| mounting_claims(t, items(spec, "volumeClaimTemplates")));
            let t = with_claims.as_ref().unwrap_or(t);
            pod_template::validate(Some(t), &at, errors);
            if with_claims.is_some() {
                schema::rules::labels(&t["metadata"]["labels"], &at.child("labels"), errors);
            }
            // A deployment speaks of what it makes.
            let said = if o.kind() == "Deployment" { "ReplicaSet" } else { o.kind() };
            pod_template::always_restarts(said, t, &at, errors);
        }
        match o.kind() {
            "Deployment" => deployment(spec, &path, errors),
            "StatefulSet" => stateful_set(spec, &path, errors),
            "DaemonSet" => daemon_set(spec, &path, errors),
            _ => {}
        }
    }

    fn prepare_for_update(&self, _env: Env<'_>, _request: &Request, o: &mut Object, old: &Object) {
        if o.kind() == "DaemonSet" {
            let template = |o: &Object| o.at(&["spec", "template"]).cloned();
            let was: i64 = old.annotation(TEMPLATE_GENERATION).and_then(|n| n.parse().ok()).unwrap_or(0);
            let now = was + i64::from(template(o) != template(old));
            o.set_annotation(TEMPLATE_GENERATION, &now.to_string());
        }
    }

    fn validate_since(&self, o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
        if o.kind() == "StatefulSet" && old.is_none() {
            fixed_of_stateful_set(o.get("spec").unwrap_or(&Value::Null), &FieldPath::new("spec"), errors);
        }
    }

    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        let (new, was) = (o.at(&["spec", "selector"]), old.at(&["spec", "selector"]));
        if self.selector_is_immutable && o.kind() != "StatefulSet" && new != was {
            let value = new.cloned().unwrap_or_default();
            errors.push(FieldError::invalid(&FieldPath::new("spec.selector"), value, "field is immutable"));
        }
        if o.kind() == "StatefulSet" {
            let mut allowed = old.clone();
            for k in STATEFUL_MUTABLE {
                match o.at(&["spec", k]).cloned() {
                    Some(v) => allowed.set(&["spec", k], v),
                    None => {
                        allowed.remove(&["spec", k]);
                    }
                }
            }
            if allowed.get("spec") != o.get("spec") {
                let why = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
                errors.push(FieldError::forbidden(&FieldPath::new("spec"), why));
            }
        }
    }

    fn validate_part(&self, subresource: &str, o: &Object, old: &Object, errors: &mut ErrorList) {
        if subresource == "status" {
            replicas::status(o, old, counts(o.kind()), errors);
        }
    }

    fn fixed_by_status(&self, old: &Object) -> &'static [&'static str] {
        if old.kind() == "Deployment" { &["labels"] } else { &[] }
    }

    fn subresource(&self, name: &str) -> Option<Sub> {
        (name == "scale").then_some(Sub::Scale(registry::Scale::usual(plain::label_selector)))
    }
}

const OF_DEPLOYMENTS: Counts = Counts {
    all: &[
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ],
    parts: &["updatedReplicas", "readyReplicas", "availableReplicas"],
    ready: Some("cannot be greater than readyReplicas"),
};
const OF_REPLICA_SETS: Counts = Counts {
    all: &[
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "terminatingReplicas",
        "observedGeneration",
    ],
    parts: &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
    ready: Some("cannot be greater than readyReplicas"),
};
const OF_STATEFUL_SETS: Counts = Counts {
    all: &[
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ],
    parts: &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"],
    ready: Some("cannot be greater than status.readyReplicas"),
};
const OF_DAEMON_SETS: Counts = Counts {
    all: &[
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ],
    parts: &[],
    ready: None,
};

fn counts(kind: &str) -> &'static Counts {
    match kind {
        "Deployment" => &OF_DEPLOYMENTS,
        "StatefulSet" => &OF_STATEFUL_SETS,
        "DaemonSet" => &OF_DAEMON_SETS,
        _ => &OF_REPLICA_SETS,
    }
}

/// A selector, and that it selects the template's pods. Answers whether it can be read: a template is not looked at beside one
/// that cannot, where replicas are made of it.
fn selector(kind: &str, spec: &Value, path: &FieldPath, errors: &mut ErrorList) -> bool {
    let at = path.child("selector");
    let selector = spec.get("selector").filter(|s| !s.is_null());
    let before = errors.len();
    match selector {
        None if kind == "DaemonSet" => {}
        None => errors.push(FieldError::required(&at, "")),
        Some(s) => {
            schema::rules::selector(s, &at, errors);
            if s.as_object().is_some_and(|m| m.is_empty()) {
                let name = if kind == "ReplicaSet" { "deployment".to_owned() } else { kind.to_lowercase() };
                errors.push(FieldError::invalid(&at, s, format!("empty selector is invalid for {name}")));
                return true;
            }
            if errors.len() > before {
                let why = if kind == "StatefulSet" { "" } else { "invalid label selector" };
                if kind != "DaemonSet" {
                    errors.push(FieldError::invalid(&at, s, why));
                }
                return false;
            }
        }
    }
    let labels = &spec["template"]["metadata"]["labels"];
    let fits = selector.is_some()
        && LabelSelector::from_value(selector).is_ok_and(|s| s.matches(|k| labels.get(k).and_then(Value::as_str)));
    if !fits {
        let at = path.child("template").child("metadata").child("labels");
        errors.push(FieldError::invalid(&at, labels, "`selector` does not match template `labels`"));
    }
    true
}

/// The template as its pods will be: claims are mounted like volumes, in place of volumes of their name.
fn mounting_claims(template: &Value, claims: &[Value]) -> Value {
    let names: HashSet<&str> = claims.iter().map(|c| text(&c["metadata"], "name")).collect();
    let mut volumes: Vec<Value> = names.iter().map(|n| json!({"name": n, CLAIM: {"claimName": n}})).collect();
    let own = items(&template["spec"], "volumes");
    volumes.extend(own.iter().filter(|v| !names.contains(&text(v, "name"))).cloned());
    let mut out = template.clone();
    if out["spec"].is_object() {
        out["spec"]["volumes"] = volumes.into();
    }
    out
}

/// A count, or how many in a hundred. What is neither counts as nothing.
fn count(v: &Value) -> i64 {
    match v {
        Value::Number(n) => n.as_i64().unwrap_or(0),
        Value::String(s) => percent(v).or_else(|| s.parse().ok()).unwrap_or(0),
        _ => 0,
    }
}

fn percent(v: &Value) -> Option<i64> {
    let digits = v.as_str()?.strip_suffix('%')?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// A share of the whole, of which is said at a place what is more than that.
fn at_most_all(v: &Value, at: &FieldPath, place: &FieldPath, errors: &mut ErrorList) {
    if percent(v).is_some_and(|n| n > 100) {
        errors.push(FieldError::invalid(at, v, "must not be greater than 100%").said_with(place));
    }
}

fn deployment(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let strategy = &spec["strategy"];
    let at = path.child("strategy");
    let rolling = &strategy["rollingUpdate"];
    match text(strategy, "type") {
        "Recreate" if rolling.is_object() => {
            let why = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(FieldError::forbidden(&at.child("rollingUpdate"), why));
        }
        "RollingUpdate" if !rolling.is_object() => {
            errors.push(FieldError::required(&at.child("rollingUpdate"), "this should be defaulted and never be nil"));
        }
        "RollingUpdate" => {
            let at = at.child("rollingUpdate");
            let (most, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            // What is wrong with either by itself is said before.
            let (most_at, last) = (at.child("maxUnavailable"), at.child("maxSurge"));
            if count(most) == 0 && count(surge) == 0 {
                let why = "may not be 0 when `maxSurge` is 0";
                errors.push(FieldError::invalid(&most_at, most, why).said_with(&last));
            }
            at_most_all(most, &most_at, &last, errors);
        }
        "Recreate" => {}
        _ => {
            let shown = shown(strategy, "io.k8s.api.apps.v1.DeploymentStrategy", &at);
            errors.push(FieldError::not_supported(&at, shown, &["Recreate", "RollingUpdate"]));
        }
    }
    let ready = spec["minReadySeconds"].as_i64().unwrap_or(0);
    if let Some(deadline) = spec["progressDeadlineSeconds"].as_i64()
        && deadline <= ready
    {
        let why = "must be greater than minReadySeconds";
        errors.push(FieldError::invalid(&path.child("progressDeadlineSeconds"), deadline, why));
    }
}

fn stateful_set(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let strategy = &spec["updateStrategy"];
    let at = path.child("updateStrategy");
    match text(strategy, "type") {
        "" => errors.push(FieldError::required(&at, "")),
        "OnDelete" if strategy["rollingUpdate"].is_object() => {
            let why = "only allowed for updateStrategy 'RollingUpdate'";
            let at = at.child("rollingUpdate");
            let shown = shown(&strategy["rollingUpdate"], "io.k8s.api.apps.v1.RollingUpdateStatefulSetStrategy", &at);
            errors.push(FieldError::invalid(&at, shown, why));
        }
        "OnDelete" | "RollingUpdate" => {
            let most = &strategy["rollingUpdate"]["maxUnavailable"];
            let at = at.child("rollingUpdate").child("maxUnavailable");
            if !most.is_null() && count(most) == 0 {
                errors.push(FieldError::invalid(&at, most, "cannot be 0"));
            }
            at_most_all(most, &at, &at, errors);
        }
        _ => {
            let shown = shown(strategy, "io.k8s.api.apps.v1.StatefulSetUpdateStrategy", &at);
            errors.push(FieldError::invalid(&at, shown, "must be 'RollingUpdate' or 'OnDelete'"));
        }
    }
}

/// The fields of a stateful set that are validated on create only, as they may not change.
fn fixed_of_stateful_set(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    delegated(spec, "io.k8s.api.apps.v1.StatefulSetSpec", "volumeClaimTemplates", path, errors);
    for (i, claim) in items(spec, "volumeClaimTemplates").iter().enumerate() {
        persistent_volume_claim::claim_spec(
            &claim["spec"],
            &path.child("volumeClaimTemplates").index(i).child("spec"),
            errors,
        );
    }
    let service = text(spec, "serviceName");
    if !service.is_empty() {
        let at = path.child("serviceName");
        errors.extend(meta::names::dns_label(service).into_iter().map(|m| FieldError::invalid(&at, service, m)));
    }
}

/// What a stateful set says that is not meant so. The path of a claim differs when it is said again, as upstream has it.
fn stateful_warnings(o: &Object, old: Option<&Object>) -> Vec<String> {
    let mut out = Vec::new();
    let claims = o.at(&["spec", "volumeClaimTemplates"]).and_then(Value::as_array);
    for (i, claim) in claims.into_iter().flatten().enumerate() {
        let at = FieldPath::new("spec.volumeClaimTemplates").index(i);
        let at = if old.is_some() { at.child("Spec") } else { at };
        out.extend(pod_template::claim_sizes(&claim["spec"], &at));
    }
    if o.int_at(&["spec", "revisionHistoryLimit"]).is_some_and(|n| n < 0) {
        let why = "a negative value retains all historical revisions; a value >= 0 is recommended";
        out.push(format!("spec.revisionHistoryLimit: {why}"));
    }
    out
}

fn daemon_set(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let strategy = &spec["updateStrategy"];
    let at = path.child("updateStrategy");
    match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" if !strategy["rollingUpdate"].is_object() => {
            errors.push(FieldError::required(&at.child("rollingUpdate"), ""));
        }
        "RollingUpdate" => {
            let at = at.child("rollingUpdate");
            let rolling = &strategy["rollingUpdate"];
            let (most, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            let (most_at, last) = (at.child("maxUnavailable"), at.child("maxSurge"));
            at_most_all(most, &most_at, &last, errors);
            at_most_all(surge, &last, &last, errors);
            match (count(most), count(surge)) {
                (0, 0) => {
                    let e = FieldError::required(&most_at, "cannot be 0 when maxSurge is 0");
                    errors.push(e.said_with(&last));
                }
                (0, _) | (_, 0) => {}
                _ => {
                    let why = "may not be set when maxUnavailable is non-zero";
                    errors.push(FieldError::invalid(&last, surge, why));
                }
            }
        }
        _ => {
            let shown = shown(strategy, "io.k8s.api.apps.v1.DaemonSetUpdateStrategy", &at);
            errors.push(FieldError::not_supported(&at, shown, &["RollingUpdate", "OnDelete"]));
        }
    }
}

pub fn controller_revision(o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
    if old.is_none() && o.get("data").is_none_or(Value::is_null) {
        errors.push(FieldError::required(&FieldPath::new("data"), "data is mandatory"));
    }
}

pub fn controller_revision_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    if o.get("data") != old.get("data") {
        let value = o.get("data").cloned().unwrap_or_default();
        errors.push(FieldError::invalid(&FieldPath::new("data"), value, "field is immutable"));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::rows::ruled;
    use crate::testing::{check_create, check_update};

    fn workload(kind: &str) -> Value {
        let pod = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "x"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": pod}})
    }

    const WORKLOAD: Workload = Workload { selector_is_immutable: true, names: NameRule::DnsSubdomain };

    #[test]
    fn a_template_is_validated_beside_a_selector_that_can_be_read() {
        let mut base = workload("Deployment");
        base["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "Other".into();
        let pull = "spec.template.spec.containers[0].imagePullPolicy: Unsupported value: \"Other\"…";
        let operator =
            "spec.selector.matchExpressions[0].operator: Invalid value: \"Other\": not a valid selector operator";
        let selector = "spec.selector: Invalid value: {\"matchExpressions\":…";
        check_create(
            &WORKLOAD,
            &base,
            &[
                ("", Value::Null, &[pull]),
                ("/spec/selector/matchExpressions", json!([{"key": "k", "operator": "Other"}]), &[operator, selector]),
            ],
        );
    }

    #[test]
    fn claims_of_a_stateful_set_are_validated_on_create() {
        let mut base = workload("StatefulSet");
        base["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "v"}, "spec": {}}]);
        base["spec"]["serviceName"] = "A".into();
        let modes = "spec.volumeClaimTemplates[0].spec.accessModes: Required value: at least 1 access mode is required";
        let size = "spec.volumeClaimTemplates[0].spec.resources[storage]: Required value";
        check_create(
            &WORKLOAD,
            &base,
            &[("", Value::Null, &[modes, size, "spec.serviceName: Invalid value: \"A\": a lowercase…"])],
        );
        let forbidden = "spec: Forbidden: updates to statefulset spec for fields other than…";
        check_update(
            &WORKLOAD,
            &base,
            &[("/spec/replicas", json!(2), &[]), ("/spec/serviceName", json!("B"), &[forbidden])],
        );
    }

    #[test]
    fn controller_revisions() {
        let strategy = ruled("apps", "controllerrevisions").unwrap();
        let base = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1, "data": {"a": 1}});
        check_create(&strategy, &base, &[("/data", Value::Null, &["data: Required value: data is mandatory"])]);
        check_update(
            &strategy,
            &base,
            &[
                ("/data", json!({"a": 2}), &["data: Invalid value: {\"a\":2}: field is immutable"]),
                ("/data", Value::Null, &["data: Invalid value: null: field is immutable"]),
                ("/revision", json!(-1), &["revision: Invalid value: -1: must be greater than or equal to 0"]),
            ],
        );
    }
}
