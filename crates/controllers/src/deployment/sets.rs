//! The replica sets of a deployment: which is the new one, and their annotations (upstream `deployment_util.go`).

use crate::history;
use jiff::Timestamp;
use meta::{Map, Object, Value};
use std::cmp::Ordering;

pub const REVISION: &str = "deployment.kubernetes.io/revision";
pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
pub const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
pub const TEMPLATE_HASH: &str = "pod-template-hash";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The annotation with the revision to which a deployment is rolled back; 0 is the last one.
pub const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";
/// Maximum length of the list of former revisions of one set, in characters.
const MAX_HISTORY: usize = 2000;
/// Maximum length of the name of an object (`DNS1123SubdomainMaxLength`).
const MAX_NAME: usize = 253;

/// `spec.replicas` with its default.
pub fn replicas(o: &Object) -> i64 {
    o.int_at(&["spec", "replicas"]).unwrap_or(1)
}

pub fn status(o: &Object, field: &str) -> i64 {
    o.int_at(&["status", field]).unwrap_or(0)
}

pub fn min_ready(o: &Object) -> i64 {
    o.int_at(&["spec", "minReadySeconds"]).unwrap_or(0)
}

pub fn created(o: &Object) -> Option<Timestamp> {
    meta::time::parse(o.creation_timestamp())
}

/// Older first, then by name.
pub fn by_age(a: &Object, b: &Object) -> Ordering {
    created(a).cmp(&created(b)).then_with(|| a.name().cmp(b.name()))
}

pub fn revision(o: &Object) -> i64 {
    o.annotation(REVISION).and_then(|r| r.parse().ok()).unwrap_or(0)
}

/// The count in an annotation; none if it is no 32-bit number or negative.
pub fn annotated_count(o: &Object, annotation: &str) -> Option<i64> {
    let count: i32 = o.annotation(annotation)?.parse().ok()?;
    (count >= 0).then_some(count.into())
}

/// The template without the label that the deployment adds.
fn bare(template: Option<&Value>) -> Value {
    let mut t = history::bare(template);
    if let Some(m) = t.get_mut("metadata").and_then(Value::as_object_mut)
        && let Some(l) = m.get_mut("labels").and_then(Value::as_object_mut)
    {
        l.remove(TEMPLATE_HASH);
        if l.is_empty() {
            m.remove("labels");
        }
    }
    t
}

pub fn same_template(a: &Object, b: &Object) -> bool {
    bare(a.at(&["spec", "template"])) == bare(b.at(&["spec", "template"]))
}

/// A short hash of the template, for the name of its set.
pub fn template_hash(template: &Value, collisions: Option<i64>) -> String {
    history::hash(&bare(Some(template)), collisions)
}

/// Splits the sets into the one with the deployment's template (the oldest, if there are two) and the others.
pub fn split(deployment: &Object, mut sets: Vec<Object>) -> (Option<Object>, Vec<Object>) {
    sets.sort_by(by_age);
    let new = sets.iter().position(|s| same_template(s, deployment)).map(|i| sets.remove(i));
    (new, sets)
}

/// Whether an annotation of a deployment is copied to its new set.
pub fn copied(annotation: &str) -> bool {
    ![LAST_APPLIED, REVISION, REVISION_HISTORY, DESIRED_REPLICAS, MAX_REPLICAS, ROLLBACK_TO].contains(&annotation)
}

/// Updates the new set's annotations and returns whether any changed (upstream `SetNewReplicaSetAnnotations`).
pub fn annotate_new(set: &mut Object, deployment: &Object, new_revision: i64, exists: bool, max_surge: i64) -> bool {
    let before = set.clone();
    let theirs: Vec<(String, String)> =
        deployment.annotations().filter(|(k, _)| copied(k)).map(|(k, v)| (k.into(), v.into())).collect();
    for (k, v) in theirs {
        set.set_annotation(&k, &v);
    }
    let old = set.annotation(REVISION).map(str::to_owned);
    if old.as_deref().is_some_and(|o| !o.is_empty() && o.parse::<i64>().is_err()) {
        // Another client writes this annotation.
        *set = before;
        return false;
    }
    if revision(set) < new_revision {
        set.set_annotation(REVISION, &new_revision.to_string());
        if let Some(old) = old {
            add_to_history(set, &old);
        }
    }
    if !exists {
        annotate_replicas(set, replicas(deployment), replicas(deployment) + max_surge);
    }
    *set != before
}

/// Appends a former revision to those of a set, and drops the oldest if the list becomes too long.
fn add_to_history(set: &mut Object, former: &str) {
    let held = set.annotation(REVISION_HISTORY).unwrap_or_default().to_owned();
    let mut history: Vec<&str> = held.split(',').collect();
    if history.first().is_none_or(|oldest| oldest.is_empty()) {
        return set.set_annotation(REVISION_HISTORY, former);
    }
    history.push(former);
    let mut first = 0;
    let mut length = held.len() + former.len() + 1;
    while length > MAX_HISTORY && first + 1 < history.len() {
        length -= history[first].len() + 1;
        first += 1;
    }
    if length <= MAX_HISTORY {
        set.set_annotation(REVISION_HISTORY, &history[first..].join(","));
    }
}

/// The name of the set of a template. A long name of the deployment is cut.
pub fn set_name(deployment: &str, hash: &str) -> String {
    let end = deployment.len().min(MAX_NAME.saturating_sub(hash.len() + 1));
    format!("{}-{hash}", deployment.get(..end).unwrap_or(deployment))
}

/// Writes the deployment's size for proportional scaling later. Returns whether it changed.
pub fn annotate_replicas(set: &mut Object, desired: i64, max: i64) -> bool {
    let (d, m) = (desired.to_string(), max.to_string());
    if set.annotation(DESIRED_REPLICAS) == Some(&*d) && set.annotation(MAX_REPLICAS) == Some(&*m) {
        return false;
    }
    set.set_annotation(DESIRED_REPLICAS, &d);
    set.set_annotation(MAX_REPLICAS, &m);
    true
}

/// The set for a template that has none.
pub fn new_set(deployment: &Object, hash: &str) -> Object {
    let mut template = deployment.at(&["spec", "template"]).cloned().unwrap_or_default();
    let labels = |v: &Value| v.as_object().cloned().unwrap_or_default();
    let mut tl = labels(&template["metadata"]["labels"]);
    tl.insert(TEMPLATE_HASH.into(), hash.into());
    template["metadata"]["labels"] = Value::Object(tl.clone());
    let mut selector = deployment.at(&["spec", "selector"]).cloned().unwrap_or_default();
    let mut ml = labels(&selector["matchLabels"]);
    ml.insert(TEMPLATE_HASH.into(), hash.into());
    selector["matchLabels"] = Value::Object(ml);
    let mut spec = Map::new();
    spec.insert("replicas".into(), 0.into());
    spec.insert("selector".into(), selector);
    spec.insert("template".into(), template);
    if min_ready(deployment) > 0 {
        spec.insert("minReadySeconds".into(), min_ready(deployment).into());
    }
    let mut set = Object::default();
    set.set(&["apiVersion"], "apps/v1");
    set.set(&["kind"], "ReplicaSet");
    set.set_name(&set_name(deployment.name(), hash));
    set.set_namespace(deployment.namespace());
    set.set(&["metadata", "labels"], tl);
    let owner = vec![crate::ownership::controller_reference(deployment)];
    set.set(&["metadata", "ownerReferences"], owner);
    set.set(&["spec"], spec);
    set
}

/// The old sets to delete because of `revisionHistoryLimit`: the oldest revisions without pods.
pub fn beyond_history<'a>(deployment: &Object, old: &'a [Object]) -> Vec<&'a Object> {
    let Some(limit) = deployment.int_at(&["spec", "revisionHistoryLimit"]).filter(|l| *l != i64::from(i32::MAX)) else {
        return Vec::new();
    };
    let mut alive: Vec<&Object> = old.iter().filter(|s| !s.is_deleting()).collect();
    let excess = alive.len().saturating_sub(limit.max(0) as usize);
    alive.sort_by(|a, b| revision(a).cmp(&revision(b)).then_with(|| by_age(a, b)));
    alive
        .into_iter()
        .take(excess)
        .filter(|s| status(s, "replicas") == 0 && replicas(s) == 0 && s.generation() <= status(s, "observedGeneration"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployment() -> Object {
        Object::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "n", "uid": "u", "annotations": {
                "kubernetes.io/change-cause": "first", LAST_APPLIED: "{}", REVISION: "1"}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "revisionHistoryLimit": 1,
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}},
        }))
        .unwrap()
    }

    #[test]
    fn a_new_set_is_recognised_and_its_hash_is_stable() {
        let d = deployment();
        let hash = template_hash(d.at(&["spec", "template"]).unwrap(), None);
        assert_eq!(hash, template_hash(d.at(&["spec", "template"]).unwrap(), None));
        assert_ne!(hash, template_hash(d.at(&["spec", "template"]).unwrap(), Some(1)));
        let s = new_set(&d, &hash);
        assert!(same_template(&s, &d));
        assert_eq!(s.name(), format!("web-{hash}"));
        assert_eq!(s.at(&["spec", "selector", "matchLabels"]).unwrap(), &json!({"app": "web", TEMPLATE_HASH: hash}));
        let mut other = d.clone();
        other.set(&["spec", "template", "metadata", "annotations"], json!({"kubectl.kubernetes.io/restartedAt": "x"}));
        assert!(!same_template(&s, &other));
        let (new, old) = split(&d, vec![s.clone()]);
        assert_eq!((new.unwrap().name(), old.len()), (s.name(), 0));
    }

    /// Clauses: C05.change-cause, C05.revision
    #[test]
    fn annotations_have_revision_cause_and_sizes() {
        let d = deployment();
        let mut s = new_set(&d, "h");
        assert!(annotate_new(&mut s, &d, 2, false, 1));
        let all: std::collections::BTreeMap<_, _> = s.annotations().collect();
        let expect =
            [(DESIRED_REPLICAS, "3"), (MAX_REPLICAS, "4"), (REVISION, "2"), ("kubernetes.io/change-cause", "first")];
        assert_eq!(all.into_iter().collect::<Vec<_>>(), expect);
        assert!(!annotate_new(&mut s, &d, 2, true, 1));
        assert!(annotate_new(&mut s, &d, 5, true, 1));
        assert_eq!((s.annotation(REVISION), s.annotation(REVISION_HISTORY)), (Some("5"), Some("2")));
        assert!(annotate_new(&mut s, &d, 7, true, 1));
        assert_eq!(s.annotation(REVISION_HISTORY), Some("2,5"));
        let full = vec!["1234"; 400].join(",");
        let cases =
            [("", "7".to_owned()), (&full[5..], format!("{},7", &full[5..])), (&full, format!("{},7", &full[5..]))];
        for (held, expect) in cases {
            s.set_annotation(REVISION_HISTORY, held);
            add_to_history(&mut s, "7");
            assert_eq!(s.annotation(REVISION_HISTORY), Some(&*expect));
        }
        s.set_annotation(REVISION, "first");
        s.set_annotation("kubernetes.io/change-cause", "other");
        let before = s.clone();
        assert!(!annotate_new(&mut s, &d, 9, true, 1), "a revision that is no number is left alone");
        assert_eq!(s, before);
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(set_name("web", "abc"), "web-abc");
        assert_eq!(set_name(&"x".repeat(253), "abc"), format!("{}-abc", "x".repeat(249)));
    }

    #[test]
    fn counts_in_annotations() {
        let cases = [("3", Some(3)), ("0", Some(0)), ("-1", None), ("2147483648", None), ("x", None), ("", None)];
        for (text, expect) in cases {
            let mut s = Object::default();
            s.set_annotation(DESIRED_REPLICAS, text);
            assert_eq!(annotated_count(&s, DESIRED_REPLICAS), expect, "{text}");
        }
    }

    /// Clauses: C05.revisionHistoryLimit
    #[test]
    fn only_empty_sets_beyond_the_limit_are_deleted() {
        let set = |revision: i64, replicas: i64| {
            Object::from_value(json!({
                "metadata": {"name": format!("s{revision}"), "generation": 1, "annotations": {REVISION: revision.to_string()}},
                "spec": {"replicas": replicas}, "status": {"observedGeneration": 1, "replicas": replicas},
            }))
            .unwrap()
        };
        let old = [set(3, 0), set(1, 2), set(2, 0)];
        let mut d = deployment();
        let names = |d: &Object| beyond_history(d, &old).iter().map(|s| s.name().to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&d), ["s2"], "s1 still has pods");
        d.set(&["spec", "revisionHistoryLimit"], 0);
        assert_eq!(names(&d), ["s2", "s3"]);
        d.remove(&["spec", "revisionHistoryLimit"]);
        assert!(names(&d).is_empty());
    }
}
