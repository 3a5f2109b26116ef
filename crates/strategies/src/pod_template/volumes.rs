//! Volumes: a source each, the files in them, and what claims them.

use crate::read::{is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value, names};
use std::collections::HashMap;

/// Checks volumes and gives those that are right, by name: others are not there to be mounted.
pub fn rules<'a>(volumes: &'a [Value], path: &FieldPath, errors: &mut ErrorList) -> HashMap<&'a str, &'a Value> {
    let mut good = HashMap::new();
    let mut seen = HashMap::new();
    for (i, v) in volumes.iter().enumerate() {
        let at = path.index(i);
        let prefix = format!("{at}.");
        let bad_field = errors.iter().any(|e| e.path.as_str().starts_with(&prefix));
        let before = errors.len();
        source(v, &at, errors);
        let name = text(v, "name");
        if name.is_empty() {
            errors.push(FieldError::required(&at.child("name"), ""));
        } else {
            errors.extend(names::dns_label(name).into_iter().map(|m| FieldError::invalid(&at.child("name"), name, m)));
            if seen.insert(name, i).is_some() {
                errors.push(FieldError::duplicate(&at.child("name"), name));
            }
        }
        if errors.len() == before && !bad_field {
            good.insert(name, v);
        }
    }
    good
}

fn source(v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let sources: Vec<&String> = v.as_object().into_iter().flatten().map(|(k, _)| k).filter(|k| *k != "name").collect();
    match &sources[..] {
        [] => errors.push(FieldError::required(at, "must specify a volume type")),
        [_] => {}
        [_, rest @ ..] => {
            for s in rest {
                errors.push(FieldError::forbidden(&at.child(s), "may not specify more than 1 volume type"));
            }
        }
    }
    for item in items(&v["downwardAPI"], "items") {
        downward_file(item, &at.child("downwardAPI"), errors);
    }
    let at = at.child("projected");
    for (i, s) in items(&v["projected"], "sources").iter().enumerate() {
        let s_at = at.child("sources").index(i);
        let kinds: Vec<&String> = s.as_object().into_iter().flatten().map(|(k, _)| k).collect();
        for k in kinds.iter().skip(1) {
            let why = "may not specify more than 1 volume type per source";
            errors.push(FieldError::forbidden(&s_at.child(k), why));
        }
        for k in ["secret", "configMap"] {
            if is_set(s, k) && text(&s[k], "name").is_empty() {
                errors.push(FieldError::required(&s_at.child(k).child("name"), ""));
            }
        }
        for item in items(&s["downwardAPI"], "items") {
            downward_file(item, &s_at.child("downwardAPI"), errors);
        }
        let token = &s["serviceAccountToken"];
        if token.is_object() {
            let token_at = s_at.child("serviceAccountToken");
            let seconds = token["expirationSeconds"].as_i64().unwrap_or(3600);
            if seconds < 600 {
                let why = "may not specify a duration less than 10 minutes";
                errors.push(FieldError::invalid(&token_at.child("expirationSeconds"), seconds, why));
            }
            if seconds > 1 << 32 {
                let why = "may not specify a duration larger than 2^32 seconds";
                errors.push(FieldError::invalid(&token_at.child("expirationSeconds"), seconds, why));
            }
            if text(token, "path").is_empty() {
                errors.push(FieldError::required(&at.child("path"), ""));
            }
        }
    }
}

/// A file of the downward API. Its paths do not say which of the items it is.
fn downward_file(file: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let path = text(file, "path");
    if path.is_empty() {
        errors.push(FieldError::required(&at.child("path"), ""));
    } else {
        local_path(path, &at.child("path"), errors);
    }
    match (is_set(file, "fieldRef"), is_set(file, "resourceFieldRef")) {
        (true, true) => {
            let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.push(FieldError::invalid(at, "resource", why));
        }
        (true, false) => super::containers::field_ref(
            &file["fieldRef"],
            &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"],
            &at.child("fieldRef"),
            errors,
        ),
        (false, true) => {
            let r = &file["resourceFieldRef"];
            let at = at.child("resourceFieldRef");
            if text(r, "containerName").is_empty() {
                errors.push(FieldError::required(&at.child("containerName"), ""));
            } else {
                super::containers::resource_ref(r, &at, errors);
            }
        }
        (false, false) => errors.push(FieldError::required(at, "one of fieldRef and resourceFieldRef is required")),
    }
}

fn local_path(path: &str, at: &FieldPath, errors: &mut ErrorList) {
    if path.starts_with('/') {
        errors.push(FieldError::invalid(at, path, "must be a relative path"));
    }
    if path.split('/').any(|s| s == "..") {
        errors.push(FieldError::invalid(at, path, "must not contain '..'"));
    }
    if path.starts_with("..") {
        errors.push(FieldError::invalid(at, path, "must not start with '..'"));
    }
}

/// A token needs an account to be a token of.
pub fn tokens(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    if !text(spec, "serviceAccountName").is_empty() {
        return;
    }
    for (i, v) in items(spec, "volumes").iter().enumerate() {
        for (j, s) in items(&v["projected"], "sources").iter().enumerate() {
            if s["serviceAccountToken"].is_object() {
                let at = path.child("volumes").index(i).child("projected").child("sources").index(j);
                let why = "must not be specified when serviceAccountName is not set";
                errors.push(FieldError::forbidden(&at.child("serviceAccountToken"), why));
            }
        }
    }
}
