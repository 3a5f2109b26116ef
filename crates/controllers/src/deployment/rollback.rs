//! Rollbacks that an annotation requests, as the former `rollback` subresource did (upstream `rollback.go`). Pure: data to data.

use super::sets::{ROLLBACK_TO, TEMPLATE_HASH, copied, revision, same_template};
use meta::{Object, Value};

/// The reason of the event of a rollback.
pub const DONE: &str = "DeploymentRollback";
const NOT_FOUND: &str = "DeploymentRollbackRevisionNotFound";
const UNCHANGED: &str = "DeploymentRollbackTemplateUnchanged";

/// The requested revision; 0 is the one before the newest. None without a valid request.
pub fn requested(d: &Object) -> Option<i64> {
    d.annotation(ROLLBACK_TO)?.parse().ok()
}

/// The message of a rollback, or the reason and message of why there is none.
pub type Report = Result<String, (&'static str, String)>;

/// The deployment with the template and annotations of revision `to`, or unchanged if that is impossible.
pub fn decide(d: &Object, sets: &[&Object], to: i64) -> (Object, Report) {
    let to = if to == 0 { last_revision(sets) } else { to };
    if to == 0 {
        return (d.clone(), Err((NOT_FOUND, "Unable to find last revision.".into())));
    }
    let Some(set) = sets.iter().find(|s| revision(s) == to) else {
        return (d.clone(), Err((NOT_FOUND, "Unable to find the revision to rollback to.".into())));
    };
    if same_template(d, set) {
        let why = format!("The rollback revision contains the same template as current deployment \"{}\"", d.name());
        return (d.clone(), Err((UNCHANGED, why)));
    }
    let mut next = d.clone();
    let mut template = set.at(&["spec", "template"]).cloned().unwrap_or_default();
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.remove(TEMPLATE_HASH);
    }
    next.set(&["spec", "template"], template);
    let own = d.annotations().filter(|(k, _)| !copied(k));
    let theirs = set.annotations().filter(|(k, _)| copied(k));
    let annotations: Value = own.chain(theirs).map(|(k, v)| (k.to_owned(), Value::from(v))).collect();
    next.set(&["metadata", "annotations"], annotations);
    (next, Ok(format!("Rolled back deployment \"{}\" to revision {to}", d.name())))
}

/// The second largest revision; 0 if there is none.
fn last_revision(sets: &[&Object]) -> i64 {
    let mut all: Vec<i64> = sets.iter().map(|s| revision(s)).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.get(1).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::sets::REVISION;
    use super::*;
    use serde_json::json;

    fn template(image: &str, hash: Option<&str>) -> Value {
        let mut labels = json!({"app": "web"});
        if let Some(hash) = hash {
            labels[TEMPLATE_HASH] = hash.into();
        }
        json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": image}]}})
    }

    #[test]
    fn returns_to_the_requested_revision() {
        let set = |r: &str, image: &str, cause: &str| {
            let annotations = json!({REVISION: r, "kubernetes.io/change-cause": cause});
            let v = json!({"metadata": {"annotations": annotations}, "spec": {"template": template(image, Some("h"))}});
            Object::from_value(v).unwrap()
        };
        let d = Object::from_value(json!({
            "metadata": {"name": "web", "annotations": {REVISION: "3", "kubernetes.io/change-cause": "c", "mine": "x"}},
            "spec": {"template": template("i:3", None)},
        }))
        .unwrap();
        let sets = [set("1", "i:1", "a"), set("2", "i:2", "b"), set("3", "i:3", "c")];
        let all: Vec<&Object> = sets.iter().collect();
        let done = |n| Ok(format!("Rolled back deployment \"web\" to revision {n}"));
        let unchanged = "The rollback revision contains the same template as current deployment \"web\"";
        let cases = [
            (1, &all[..], "i:1", done(1)),
            (0, &all[..], "i:2", done(2)),
            (3, &all[..], "i:3", Err((UNCHANGED, unchanged.to_owned()))),
            (7, &all[..], "i:3", Err((NOT_FOUND, "Unable to find the revision to rollback to.".to_owned()))),
            (0, &all[..1], "i:3", Err((NOT_FOUND, "Unable to find last revision.".to_owned()))),
        ];
        for (to, sets, image, expect) in cases {
            let (next, report) = decide(&d, sets, to);
            assert_eq!(report, expect, "{to}");
            assert_eq!(next.at(&["spec", "template"]), Some(&template(image, None)), "{to}");
        }
        let (next, _) = decide(&d, &all, 1);
        let annotations: Vec<_> = next.annotations().collect();
        assert_eq!(annotations, [(REVISION, "3"), ("kubernetes.io/change-cause", "a")]);
    }

    #[test]
    fn requests_are_numbers() {
        for (text, expect) in [("0", Some(0)), ("5", Some(5)), ("", None), ("x", None)] {
            let mut d = Object::default();
            d.set_annotation(ROLLBACK_TO, text);
            assert_eq!(requested(&d), expect, "{text}");
        }
    }
}
