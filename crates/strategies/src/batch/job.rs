//! Job: generated labels and selector, and mutable fields.

use super::{job_spec, job_status};
use crate::Config;
use crate::core::pod_shape;
use crate::pod_template;
use crate::read::{is_set, shown_field, shown_selector, text};
use crate::table::Row;
use kinds::columns::{Cell, condition, duration};
use meta::field::{BadValue, ErrorList, ErrorType};
use meta::{FieldError, FieldPath, Object, Value, names, time};
use registry::{CreateStrategy, DeleteStrategy, Env, ObjectConvertor, Request, TableConvertor, UpdateStrategy};
use serde_json::json;

pub fn row(_: &Config) -> Row {
    Row::stored(Job)
}

pub struct Job;

/// Mutable fields in the template of a suspended job.
const MUTABLE_IN_TEMPLATE: [&[&str]; 6] = [
    &["metadata", "labels"],
    &["metadata", "annotations"],
    &["spec", "nodeSelector"],
    &["spec", "affinity", "nodeAffinity"],
    &["spec", "tolerations"],
    &["spec", "schedulingGates"],
];

impl CreateStrategy for Job {
    fn default(&self, o: &mut Object) {
        if o.labels().next().is_none()
            && let Some(l) = o.at(&["spec", "template", "metadata", "labels"]).cloned()
        {
            o.set(&["metadata", "labels"], l);
        }
        job_spec::default(o, &["spec"]);
    }

    fn prepare_for_create(&self, env: Env<'_>, _request: &Request, o: &mut Object) {
        o.set(&["status"], json!({}));
        if o.at(&["spec", "manualSelector"]) == Some(&Value::Bool(true)) {
            return;
        }
        // The controller labels of the template; a job whose labels are those of the template by default gets them too.
        let (uid, name) = (o.uid().to_owned(), o.name().to_owned());
        let labels = ["spec", "template", "metadata", "labels"];
        let shared = env.labels_are_defaults || o.labels().next().is_none();
        for (k, v) in [
            ("batch.kubernetes.io/controller-uid", &uid),
            ("controller-uid", &uid),
            ("batch.kubernetes.io/job-name", &name),
            ("job-name", &name),
        ] {
            let path: Vec<&str> = labels.into_iter().chain([k]).collect();
            if o.at(&path).is_none() {
                o.set(&path, v.as_str());
            }
            if shared {
                o.set_label(k, v);
            }
        }
        // Other requirements of the selector are kept, and rejected by validation.
        let own = ["spec", "selector", "matchLabels", "batch.kubernetes.io/controller-uid"];
        if o.at(&own).is_none() {
            o.set(&own, uid);
        }
    }

    fn warnings(&self, o: &Object, old: Option<&Object>) -> Vec<String> {
        let mut out = if old.is_none() { pod_template::name_warnings(o.name()) } else { Vec::new() };
        out.extend(job_spec::warnings(o.get("spec").unwrap_or(&Value::Null), &FieldPath::new("spec")));
        out.extend(pod_template::workload_warnings(o, old, &["spec", "template"]));
        out
    }

    /// Whether the labels are those of the template, apart from the server's.
    fn has_derived_labels(&self, o: &Object) -> bool {
        let is_server_label = |k: &String| k.ends_with("controller-uid") || k.ends_with("job-name");
        let labels = o.at(&["metadata", "labels"]).and_then(Value::as_object);
        labels.is_some_and(|l| l.keys().all(is_server_label))
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let spec = o.get("spec").unwrap_or(&Value::Null);
        let path = FieldPath::new("spec");
        let manual = spec["manualSelector"] == true;
        let before = errors.len();
        let mut readable = true;
        if is_set(spec, "selector") {
            schema::rules::selector(&spec["selector"], &path.child("selector"), errors);
            readable = errors.len() == before;
        } else {
            errors.push(FieldError::required(&path.child("selector"), ""));
        }
        if !manual && is_set(spec, "selector") {
            own_labels(o, spec, errors);
        }
        job_spec::validate(spec, &path, errors);
        if readable {
            selects_template(spec, errors);
        }
        hostname(o, spec, errors);
    }
}

impl UpdateStrategy for Job {
    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        // Upstream validates the spec again with the old object.
        let again: Vec<FieldError> = errors.iter().filter(|e| is_spec_error(e)).cloned().collect();
        errors.extend(again);
        let spec = FieldPath::new("spec");
        completions(o, old, errors);
        let schedulable = allows_scheduling_updates(old);
        let mut allowed = old.clone();
        if schedulable {
            for path in MUTABLE_IN_TEMPLATE {
                let path: Vec<&str> = ["spec", "template"].iter().chain(path.iter()).copied().collect();
                match o.at(&path).cloned() {
                    Some(v) => allowed.set(&path, v),
                    None => {
                        allowed.remove(&path);
                    }
                }
            }
            for list in ["containers", "initContainers"] {
                take_resources(o, &mut allowed, list);
            }
        }
        let changed = |k: &str, errors: &mut ErrorList| {
            let (new, was) = (o.at(&["spec", k]), old.at(&["spec", k]));
            if new != was {
                let at = spec.child(k);
                let shown = shown_field(new, "io.k8s.api.batch.v1.JobSpec", k, &at);
                errors.push(FieldError::invalid(&at, shown, "field is immutable"));
            }
        };
        changed("selector", errors);
        let template: &[&str] = if schedulable { &["spec", "template", "spec"] } else { &["spec", "template"] };
        if o.at(template) != allowed.at(template) {
            let shown = pod_shape::template(o.at(&["spec", "template"]).unwrap_or(&Value::Null), schedulable);
            errors.push(FieldError::invalid(
                &FieldPath::new(template.join(".")),
                BadValue::formatted(&shown),
                "field is immutable",
            ));
        }
        for k in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
            changed(k, errors);
        }
    }

    fn validate_part(&self, subresource: &str, o: &Object, old: &Object, errors: &mut ErrorList) {
        if subresource == "status" {
            job_status::validate(o, old, errors);
        }
    }
}

impl TableConvertor for Job {
    fn cell(&self, cell: &Cell<'_>) -> Option<Value> {
        cells(cell)
    }
}

impl ObjectConvertor for Job {
    fn unselectable(&self, field: &str) -> Option<String> {
        Some(format!("field label {field:?} not supported for Job"))
    }
}

impl DeleteStrategy for Job {
    fn propagation_warning(&self) -> Option<&'static str> {
        Some(
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
        )
    }
}

registry::strategy!(Job: DeleteStrategy, CreateStrategy, UpdateStrategy, TableConvertor, ObjectConvertor);

/// Whether scheduling fields and resources are mutable: the job is suspended, and has no pods.
fn allows_scheduling_updates(job: &Object) -> bool {
    let conditions = job.at(&["status", "conditions"]).and_then(Value::as_array);
    let stopped =
        conditions.into_iter().flatten().any(|c| text(c, "type") == "Suspended" && text(c, "status") == "True");
    job.at(&["spec", "suspend"]) == Some(&Value::Bool(true))
        && job.int_at(&["status", "active"]).unwrap_or(0) == 0
        && (stopped || job.at(&["status", "startTime"]).is_none())
}

/// Copies the resources of containers whose names are unchanged.
fn take_resources(o: &Object, allowed: &mut Object, list: &str) {
    let path = ["spec", "template", "spec", list];
    let of = |o: &Object| o.at(&path).and_then(Value::as_array).cloned().unwrap_or_default();
    let (now, mut was) = (of(o), of(allowed));
    if now.len() != was.len() {
        return;
    }
    for (w, n) in was.iter_mut().zip(&now).filter(|(w, n)| w["name"] == n["name"]) {
        if let Some(m) = w.as_object_mut() {
            match n.get("resources") {
                Some(r) => m.insert("resources".into(), r.clone()),
                None => m.remove("resources"),
            };
        }
    }
    if !was.is_empty() {
        allowed.set(&path, was);
    }
}

/// Whether an error is from the validation of the spec alone, without metadata.
fn is_spec_error(e: &FieldError) -> bool {
    let own_label = ["controller-uid", "job-name"].iter().any(|k| e.path.ends_with(&format!("{k}]")));
    e.path.starts_with("spec") && !own_label && (e.path != "spec.selector" || e.kind == ErrorType::Required)
}

/// Validates the controller labels of the template.
fn own_labels(o: &Object, spec: &Value, errors: &mut ErrorList) {
    let at = FieldPath::new("spec.template.metadata.labels");
    let labels = &spec["template"]["metadata"]["labels"];
    for (k, expected) in [
        ("controller-uid", o.uid()),
        ("job-name", o.name()),
        ("batch.kubernetes.io/controller-uid", o.uid()),
        ("batch.kubernetes.io/job-name", o.name()),
    ] {
        let why = format!("must be '{expected}'");
        match labels[k].as_str() {
            None => errors.push(FieldError::required(&at.key(k), &why)),
            Some(v) if v != expected => errors.push(FieldError::invalid(&at.key(k), v, why)),
            Some(_) => {}
        }
    }
    // The selector may only require the generated labels.
    let own = |k: &str| match k {
        "controller-uid" | "batch.kubernetes.io/controller-uid" => Some(o.uid()),
        "job-name" | "batch.kubernetes.io/job-name" => Some(o.name()),
        _ => None,
    };
    if meta::LabelSelector::from_value(spec.get("selector")).is_ok_and(|s| !s.matches(own)) {
        let path = FieldPath::new("spec.selector");
        let value = shown_selector(&spec["selector"], &path);
        let e = FieldError::invalid(&path, value, "`selector` not auto-generated");
        errors.push(e.ordered_at(&at.key("job-name")));
    }
}

fn selects_template(spec: &Value, errors: &mut ErrorList) {
    let labels = &spec["template"]["metadata"]["labels"];
    let selector = meta::LabelSelector::from_value(spec.get("selector"));
    let fits = match selector {
        Ok(s) => is_set(spec, "selector") && s.matches(|k| labels.get(k).and_then(Value::as_str)),
        // The invalid selector is already reported.
        Err(_) => true,
    };
    if !fits {
        let at = FieldPath::new("spec.template.metadata.labels");
        errors.push(FieldError::invalid(&at, labels, "`selector` does not match template `labels`"));
    }
}

/// Checks that pod hostnames of an indexed job are valid: the job's name and the completion index.
fn hostname(o: &Object, spec: &Value, errors: &mut ErrorList) {
    let Some(n) = spec["completions"].as_i64().filter(|n| *n > 0) else { return };
    if text(spec, "completionMode") == "Indexed" {
        let pod = format!("{}-{}", o.name(), n - 1);
        if !names::dns_label(&pod).is_empty() {
            let why = format!("will not able to create pod with invalid DNS label: {pod}");
            errors.push(FieldError::invalid(&FieldPath::new("metadata.name"), o.name(), why));
        }
    }
}

/// Checks that `completions` is unchanged, except together with `parallelism` of an indexed job.
fn completions(o: &Object, old: &Object, errors: &mut ErrorList) {
    let of = |o: &Object, k: &str| o.int_at(&["spec", k]);
    let (new, was) = (of(o, "completions"), of(old, "completions"));
    if new == was {
        return;
    }
    let at = FieldPath::new("spec.completions");
    if o.str_at(&["spec", "completionMode"]) != Some("Indexed") {
        errors.push(FieldError::invalid(
            &at,
            o.at(&["spec", "completions"]).cloned().unwrap_or_default(),
            "field is immutable",
        ));
    } else if new.is_some() && new != of(o, "parallelism") {
        errors.push(FieldError::invalid(&at, new, "can only be modified in tandem with spec.parallelism"));
    }
}

/// Evaluates the table cell functions of the kind.
pub fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "jobStatus" => job_status(o).into(),
        "jobCompletions" => {
            let done = o.int_at(&["status", "succeeded"]).unwrap_or(0);
            let parallelism = o.int_at(&["spec", "parallelism"]).unwrap_or(0);
            match o.int_at(&["spec", "completions"]) {
                Some(c) => format!("{done}/{c}").into(),
                None if parallelism > 1 => format!("{done}/1 of {parallelism}").into(),
                None => format!("{done}/1").into(),
            }
        }
        "jobDuration" => {
            let at = |k: &str| o.str_at(&["status", k]).and_then(time::parse);
            match (at("startTime"), at("completionTime").or_else(|| time::parse(cell.now))) {
                (Some(s), Some(e)) => duration(e.as_second() - s.as_second()).into(),
                _ => "".into(),
            }
        }
        _ => return None,
    })
}

fn job_status(o: &Object) -> String {
    let holds = |ty: &str| condition(o, ty).is_some_and(|c| c["status"] == "True");
    for (ty, status) in [("Complete", "Complete"), ("Failed", "Failed")] {
        if holds(ty) {
            return status.into();
        }
    }
    if o.is_deleting() {
        return "Terminating".into();
    }
    for (ty, status) in
        [("Suspended", "Suspended"), ("FailureTarget", "FailureTarget"), ("SuccessCriteriaMet", "SuccessCriteriaMet")]
    {
        if holds(ty) {
            return status.into();
        }
    }
    "Running".into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_update};

    #[test]
    fn derives_labels_without_own_ones() {
        for (labels, derived) in [
            (json!({"job-name": "x", "batch.kubernetes.io/controller-uid": "u"}), true),
            (json!({"job-name": "x", "a": "b"}), false),
            (Value::Null, false),
        ] {
            let job = Object::from_value(json!({"metadata": {"labels": labels}})).unwrap();
            assert_eq!(Job.has_derived_labels(&job), derived, "{labels}");
        }
    }

    fn job(spec: Value) -> Value {
        let labels = json!({"controller-uid": "u", "batch.kubernetes.io/controller-uid": "u", "job-name": "j",
            "batch.kubernetes.io/job-name": "j"});
        let mut job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "uid": "u"}, "spec": {
            "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}},
            "template": {"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never",
                "containers": [{"name": "c", "image": "i"}]}}}});
        job["spec"].as_object_mut().unwrap().extend(spec.as_object().cloned().unwrap_or_default());
        job
    }

    #[test]
    fn validates_a_new_job() {
        let label = "spec.template.metadata.labels[controller-uid]: Invalid value: \"v\": must be 'u'";
        check_create(
            &Job,
            &job(json!({})),
            &[
                ("", Value::Null, &[]),
                (
                    "/spec/selector",
                    Value::Null,
                    &[
                        "spec.selector: Required value",
                        "spec.template.metadata.labels: Invalid value: …: `selector` does not match template `labels`",
                    ],
                ),
                ("/spec/template/metadata/labels/controller-uid", json!("v"), &[label]),
                (
                    "/spec",
                    json!({"manualSelector": true, "selector": {"matchLabels": {"a b": "c"}}, "template": job(json!({}))["spec"]["template"]}),
                    &["spec.selector.matchLabels: Invalid value: \"a b\": name part must consist of…"],
                ),
                (
                    "/spec/selector/matchLabels/a",
                    json!("b"),
                    &[
                        "spec.selector: Invalid value: …: `selector` not auto-generated",
                        "spec.template.metadata.labels: Invalid value: …: `selector` does not match template `labels`",
                    ],
                ),
                (
                    "/spec/template/spec/restartPolicy",
                    json!("Always"),
                    &["spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""],
                ),
                ("/spec/completionMode", json!("Indexed"), &[]),
                (
                    "/spec/backoffLimitPerIndex",
                    json!(1),
                    &["spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode"],
                ),
                (
                    "/spec/managedBy",
                    json!("a"),
                    &["spec.managedBy: Invalid value: \"a\": must be a domain-prefixed path (such as \"acme.io/foo\")"],
                ),
                (
                    "/spec/parallelism",
                    json!(-1),
                    &["spec.parallelism: Invalid value: -1: must be greater than or equal to 0"],
                ),
                (
                    "/spec/podReplacementPolicy",
                    json!("Other"),
                    &[
                        r#"spec.podReplacementPolicy: Unsupported value: "Other": supported values: "Failed", "TerminatingOrFailed""#,
                    ],
                ),
            ],
        );
        let indexed = json!({"completionMode": "Indexed", "completions": 3, "backoffLimitPerIndex": 1});
        check_create(
            &Job,
            &job(indexed),
            &[
                ("/spec/maxFailedIndexes", json!(3), &[]),
                (
                    "/spec/maxFailedIndexes",
                    json!(4),
                    &["spec.maxFailedIndexes: Invalid value: 4: must be less than or equal to completions"],
                ),
                (
                    "/spec/parallelism",
                    json!(100_001),
                    &[
                        "spec.parallelism: Invalid value: 100001: must be less than or equal to 100000 when completion mode is Indexed",
                    ],
                ),
            ],
        );
    }

    #[test]
    fn validates_an_update() {
        let immutable = "field is immutable";
        check_update(
            &Job,
            &job(json!({"completions": 2})),
            &[
                ("/spec/parallelism", json!(5), &[]),
                ("/spec/completions", json!(3), &[&format!("spec.completions: Invalid value: 3: {immutable}")]),
                (
                    "/spec/template/spec/containers/0/image",
                    json!("j"),
                    &[&format!("spec.template: Invalid value: …: {immutable}")],
                ),
                (
                    "/spec/completionMode",
                    json!("Indexed"),
                    &[&format!("spec.completionMode: Invalid value: \"Indexed\": {immutable}")],
                ),
            ],
        );
        check_update(
            &Job,
            &job(json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed"})),
            &[
                ("", Value::Null, &[]),
                (
                    "/spec/completions",
                    json!(3),
                    &["spec.completions: Invalid value: 3: can only be modified in tandem with spec.parallelism"],
                ),
            ],
        );
        check_update(
            &Job,
            &job(json!({"suspend": true})),
            &[
                ("/spec/template/spec/nodeSelector", json!({"a": "b"}), &[]),
                ("/spec/template/spec/containers/0/resources", json!({"requests": {"cpu": "1"}}), &[]),
                (
                    "/spec/template/spec/containers/0/image",
                    json!("j"),
                    &[&format!("spec.template.spec: Invalid value: …: {immutable}")],
                ),
            ],
        );
    }

    #[test]
    fn validates_failure_and_success_policies() {
        let rules = "/spec/podFailurePolicy/rules";
        let rule = "spec.podFailurePolicy.rules[0]";
        let one = format!("{rule}: Invalid value: specifying one of OnExitCodes and OnPodConditions is required");
        check_create(
            &Job,
            &job(json!({"podFailurePolicy": {"rules": []}})),
            &[
                (rules, json!([{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1, 2]}}]), &[]),
                (rules, json!([{"action": "FailJob"}]), &[&one]),
                (
                    rules,
                    json!([{"action": "Other", "onPodConditions": [{"type": "A", "status": "True"}]}]),
                    &[&format!(
                        r#"{rule}.action: Unsupported value: "Other": supported values: "Count", "FailIndex", "FailJob", "Ignore""#
                    )],
                ),
                (
                    rules,
                    json!([{"action": "FailIndex", "onPodConditions": [{"type": "A", "status": "True"}]}]),
                    &[&format!(
                        "{rule}.action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set"
                    )],
                ),
                (
                    rules,
                    json!([{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [2, 0]}}]),
                    &[
                        &format!("{rule}.onExitCodes.values[1]: Invalid value: 0: must not be 0 for the In operator"),
                        &format!("{rule}.onExitCodes.values: Invalid value: [2,0]: must be ordered"),
                    ],
                ),
            ],
        );
        let success = "spec.successPolicy.rules[0]";
        let field = "/spec/successPolicy/rules";
        check_create(
            &Job,
            &job(json!({"completionMode": "Indexed", "completions": 5, "successPolicy": {"rules": []}})),
            &[
                (
                    "",
                    Value::Null,
                    &[
                        "spec.successPolicy.rules: Required value: at least one rules must be specified when the successPolicy is specified",
                    ],
                ),
                (field, json!([{"succeededIndexes": "0-2,4", "succeededCount": 4}]), &[]),
                (
                    field,
                    json!([{}]),
                    &[&format!(
                        "{success}: Required value: at least one of succeededCount or succeededIndexes must be specified"
                    )],
                ),
                (
                    field,
                    json!([{"succeededIndexes": "0-2", "succeededCount": 4}]),
                    &[&format!(
                        "{success}.succeededCount: Invalid value: 4: must be less than or equal to 3 (the number of indexes in the specified succeededIndexes field)"
                    )],
                ),
                (
                    field,
                    json!([{"succeededCount": 6}]),
                    &[&format!(
                        "{success}.succeededCount: Invalid value: 6: must be less than or equal to 5 (the number of specified completions)"
                    )],
                ),
                (
                    field,
                    json!([{"succeededIndexes": "3,1"}]),
                    &[&format!(
                        "{success}.succeededIndexes: Invalid value: \"3,1\": error parsing succeededIndexes: …"
                    )],
                ),
            ],
        );
    }
}
