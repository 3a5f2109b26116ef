//! Validation of the API approval annotation of Kubernetes community groups.

use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object};

pub fn validate(o: &Object, old: Option<&Object>, group: &str, errors: &mut ErrorList) {
    const KEY: &str = "api-approved.kubernetes.io";
    let community = ["k8s.io", "kubernetes.io"].iter().any(|d| group == *d || group.ends_with(&format!(".{d}")));
    let state = |o: &Object| {
        let v = o.annotation(KEY).unwrap_or_default();
        let url =
            v.split_once("://").is_some_and(|(s, host)| !s.is_empty() && !host.is_empty() && !host.starts_with('/'));
        (v.is_empty(), url || v.starts_with("unapproved"))
    };
    let (missing, approved) = state(o);
    if !community || approved || old.is_some_and(|old| state(old) == (missing, approved)) {
        return;
    }
    let path = FieldPath::new("metadata.annotations").key(KEY);
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    errors.push(if missing {
        FieldError::required(&path, &format!("protected groups must have approval annotation {KEY:?}, {see}"))
    } else {
        let why = format!(
            "protected groups must have approval annotation {KEY:?} with either a URL or a reason starting with \"unapproved\", {see}"
        );
        FieldError::invalid(&path, o.annotation(KEY).unwrap_or_default(), why)
    });
}
