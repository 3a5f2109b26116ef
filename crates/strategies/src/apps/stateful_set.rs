//! StatefulSet: volume claim templates, update strategy, and mutable fields.

use super::workload::{Workload, at_most_100_percent, count};
use crate::Config;
use crate::core::persistent_volume_claim;
use crate::pod_template;
use crate::read::{delegated, items, shown, text};
use crate::replicas::Counts;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};
use registry::NameRule;
use serde_json::json;

pub fn row(_: &Config) -> Row {
    Row::stored(workload())
}

fn workload() -> Workload {
    Workload {
        names: NameRule::DnsLabel,
        selector_is_immutable: false,
        empty_status: || json!({"replicas": 0, "availableReplicas": 0}),
        default,
        validate,
        since: validate_since,
        update: validate_update,
        warnings,
        ..Workload::new("io.k8s.api.apps.v1.StatefulSetSpec", &COUNTS)
    }
}

/// The mutable fields of the spec.
const MUTABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

const STRATEGY: &str = "io.k8s.api.apps.v1.StatefulSetUpdateStrategy";

const COUNTS: Counts = Counts {
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

fn default(o: &mut Object) {
    let Some(meta::Value::Array(mut claims)) = o.remove(&["spec", "volumeClaimTemplates"]) else { return };
    for c in &mut claims {
        c["apiVersion"] = "v1".into();
        c["kind"] = "PersistentVolumeClaim".into();
    }
    o.set(&["spec", "volumeClaimTemplates"], claims);
}

fn validate(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
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
            delegated(strategy, STRATEGY, "rollingUpdate", &at, errors);
            let unavailable = &strategy["rollingUpdate"]["maxUnavailable"];
            let at = at.child("rollingUpdate").child("maxUnavailable");
            if !unavailable.is_null() && count(unavailable) == 0 {
                errors.push(FieldError::invalid(&at, unavailable, "cannot be 0"));
            }
            at_most_100_percent(unavailable, &at, &at, errors);
        }
        _ => {
            let shown = shown(strategy, STRATEGY, &at);
            errors.push(FieldError::invalid(&at, shown, "must be 'RollingUpdate' or 'OnDelete'"));
        }
    }
}

fn validate_since(o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
    if old.is_none() {
        immutable_fields(o.get("spec").unwrap_or(&Value::Null), &FieldPath::new("spec"), errors);
    }
}

/// Validates immutable fields, which upstream does on create only.
fn immutable_fields(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
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

fn validate_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    let mut allowed = old.clone();
    for k in MUTABLE {
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

/// Returns the warnings for claim templates, whose path differs on update as upstream, and for the history limit.
fn warnings(o: &Object, old: Option<&Object>) -> Vec<String> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::workload::tests::base;
    use crate::testing::{check_create, check_update};
    use serde_json::json;

    #[test]
    fn validates_claims_on_create() {
        let mut base = base("StatefulSet");
        base["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "v"}, "spec": {}}]);
        base["spec"]["serviceName"] = "A".into();
        let modes = "spec.volumeClaimTemplates[0].spec.accessModes: Required value: at least 1 access mode is required";
        let size = "spec.volumeClaimTemplates[0].spec.resources[storage]: Required value";
        check_create(
            &workload(),
            &base,
            &[("", Value::Null, &[modes, size, "spec.serviceName: Invalid value: \"A\": a lowercase…"])],
        );
        let forbidden = "spec: Forbidden: updates to statefulset spec for fields other than…";
        check_update(
            &workload(),
            &base,
            &[("/spec/replicas", json!(2), &[]), ("/spec/serviceName", json!("B"), &[forbidden])],
        );
    }

    #[test]
    fn validates_the_update_strategy_and_the_template() {
        let path = "spec.updateStrategy";
        check_create(
            &workload(),
            &base("StatefulSet"),
            &[
                ("", Value::Null, &[]),
                ("/spec/updateStrategy", json!({"type": "OnDelete"}), &[]),
                (
                    "/spec/updateStrategy",
                    json!({"type": "OnDelete", "rollingUpdate": {}}),
                    &[&format!(
                        "{path}.rollingUpdate: Invalid value: …: only allowed for updateStrategy 'RollingUpdate'"
                    )],
                ),
                (
                    "/spec/updateStrategy",
                    json!({"type": "Other"}),
                    &[&format!("{path}: Invalid value: …: must be 'RollingUpdate' or 'OnDelete'")],
                ),
                (
                    "/spec/updateStrategy",
                    json!({"type": "RollingUpdate", "rollingUpdate": {"partition": -1}}),
                    &[&format!(
                        "{path}.rollingUpdate.partition: Invalid value: -1: must be greater than or equal to 0"
                    )],
                ),
                (
                    "/spec/podManagementPolicy",
                    json!("Other"),
                    &["spec.podManagementPolicy: Invalid value: \"Other\": must be 'OrderedReady' or 'Parallel'"],
                ),
                (
                    "/spec/template/spec/restartPolicy",
                    json!("Never"),
                    &["spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\""],
                ),
                (
                    "/spec/ordinals",
                    json!({"start": -1}),
                    &["spec.ordinals.start: Invalid value: -1: must be greater than or equal to 0"],
                ),
            ],
        );
        let mounted = json!([{"name": "v", "mountPath": "/a"}]);
        let mut claims = base("StatefulSet");
        claims["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1"}}}}]);
        check_create(&workload(), &claims, &[("/spec/template/spec/containers/0/volumeMounts", mounted.clone(), &[])]);
        let missing = "spec.template.spec.containers[0].volumeMounts[0].name: Not found: \"v\"";
        check_create(
            &workload(),
            &base("StatefulSet"),
            &[("/spec/template/spec/containers/0/volumeMounts", mounted, &[missing])],
        );
    }
}
