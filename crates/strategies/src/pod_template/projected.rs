//! Validation of projected volumes and downward API files.

use super::env::{Consumer, field_ref, resource_ref};
use crate::read::{is_set, items, shown, shown_selector, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value};
use schema::rules::local_path;
use std::collections::HashSet;

/// Pod fields that files may contain.
const FILE_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

const KINDS: [&str; 6] =
    ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"];

pub fn rules(projected: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let mut taken: HashSet<&str> = HashSet::new();
    for (i, s) in items(projected, "sources").iter().enumerate() {
        let s_at = at.child("sources").index(i);
        for k in ["secret", "configMap"].into_iter().filter(|k| is_set(s, k)) {
            let name = text(&s[k], "name");
            if name.is_empty() {
                errors.push(FieldError::required(&s_at.child(k).child("name"), ""));
            }
            for (j, item) in items(&s[k], "items").iter().enumerate() {
                let position = s_at.child(k).child("items").index(j);
                order_errors_at(&position, errors, |errors| take(text(item, "path"), name, &mut taken, at, errors));
            }
        }
        for (j, item) in items(&s["downwardAPI"], "items").iter().enumerate() {
            let inner = s_at.child("downwardAPI");
            order_errors_at(&inner.child("items").index(j), errors, |errors| {
                downward_file(item, &inner, errors);
                let path = text(item, "path");
                take(path, path, &mut taken, at, errors);
            });
        }
        let token = &s["serviceAccountToken"];
        if token.is_object() {
            self::token(token, &s_at.child("serviceAccountToken"), at, errors);
        }
        let bundle = &s["clusterTrustBundle"];
        if bundle.is_object() {
            trust_bundle(bundle, &s_at.child("clusterTrustBundle"), errors);
            let path = text(bundle, "path");
            if !taken.insert(path) {
                let e = FieldError::invalid(at, path, "conflicting duplicate paths");
                errors.push(e.ordered_at(&s_at.child("clusterTrustBundle").child("path")));
            }
        }
        if KINDS.iter().filter(|k| is_set(s, k)).count() > 1 {
            errors.push(FieldError::forbidden(&s_at, "may not specify more than 1 volume type per source"));
        }
    }
}

/// Checks that the paths of the volume are unique. `reported` is the value in the error.
fn take<'a>(path: &'a str, reported: &str, taken: &mut HashSet<&'a str>, at: &FieldPath, errors: &mut ErrorList) {
    if !path.is_empty() && !taken.insert(path) {
        errors.push(FieldError::invalid(at, reported, "conflicting duplicate paths"));
    }
}

/// Validates a token source. Upstream reports its path as the volume's.
fn token(token: &Value, at: &FieldPath, volume: &FieldPath, errors: &mut ErrorList) {
    let seconds = token["expirationSeconds"].as_i64().unwrap_or(3600);
    let at_seconds = at.child("expirationSeconds");
    if seconds < 600 {
        errors.push(FieldError::invalid(&at_seconds, seconds, "may not specify a duration less than 10 minutes"));
    }
    if seconds > 1 << 32 {
        errors.push(FieldError::invalid(&at_seconds, seconds, "may not specify a duration larger than 2^32 seconds"));
    }
    let path = text(token, "path");
    order_errors_at(&at.child("path"), errors, |errors| match path {
        "" => errors.push(FieldError::required(&volume.child("path"), "")),
        path => local_path(path, &volume.child("path"), errors),
    });
}

/// Runs `rules` and orders their errors as if they were reported at `position`.
pub fn order_errors_at(position: &FieldPath, errors: &mut ErrorList, rules: impl FnOnce(&mut ErrorList)) {
    let before = errors.len();
    rules(errors);
    for e in errors.iter_mut().skip(before) {
        e.order_path = Some(position.to_string());
    }
}

/// Validates a trust bundle source: one bundle by name, or those of a signer that match a selector.
fn trust_bundle(bundle: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let (name, signer) = (bundle["name"].as_str(), bundle["signerName"].as_str());
    match (name, signer) {
        (Some(_), Some(_)) => {
            let shown = shown(bundle, "io.k8s.api.core.v1.ClusterTrustBundleProjection", at);
            errors.push(FieldError::invalid(at, shown, "only one of name and signerName may be used"));
        }
        (Some(name), None) => {
            let at_name = at.child("name");
            if name.is_empty() {
                errors.push(FieldError::required(&at_name, "must be a valid object name"));
            }
            for m in bundle_name(name) {
                errors.push(FieldError::invalid(&at_name, name, format!("not a valid clustertrustbundlename: {m}")));
            }
            if is_set(bundle, "labelSelector") {
                let why = "labelSelector must be unset if name is specified";
                let at = at.child("labelSelector");
                errors.push(FieldError::invalid(&at, shown_selector(&bundle["labelSelector"], &at), why));
            }
        }
        (None, Some(signer)) => {
            let at_signer = at.child("signerName");
            if signer.is_empty() {
                errors.push(FieldError::required(&at_signer, "must be a valid signer name"));
            }
            crate::certificates::certificate_signing_request::signer_name(signer, &at_signer, errors);
            schema::rules::selector(&bundle["labelSelector"], &at.child("labelSelector"), errors);
        }
        (None, None) => errors.push(FieldError::required(at, "either name or signerName must be specified")),
    }
    let path = text(bundle, "path");
    if path.is_empty() {
        errors.push(FieldError::required(&at.child("path"), ""));
    }
    local_path(path, &at.child("path"), errors);
}

/// Validates the name of a bundle, with or without a signer prefix (`example.com:sign:name`).
fn bundle_name(name: &str) -> Vec<String> {
    meta::names::dns_subdomain(name.rsplit(':').next().unwrap_or(name))
}

/// Validates a downward API file. Upstream's error paths contain no item index.
pub fn downward_file(file: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let path = text(file, "path");
    if path.is_empty() {
        errors.push(FieldError::required(&at.child("path"), ""));
    }
    local_path(path, &at.child("path"), errors);
    let (field, resource) = (is_set(file, "fieldRef"), is_set(file, "resourceFieldRef"));
    if field {
        field_ref(&file["fieldRef"], &FILE_FIELDS, &at.child("fieldRef"), errors);
        if resource {
            let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.push(FieldError::invalid(at, "resource", why));
        }
    } else if resource {
        resource_ref(&file["resourceFieldRef"], Consumer::Volume, &at.child("resourceFieldRef"), errors);
    } else {
        errors.push(FieldError::required(at, "one of fieldRef and resourceFieldRef is required"));
    }
    if file["mode"].as_i64().is_some_and(|m| !(0..=0o777).contains(&m)) {
        let why = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(&at.child("mode"), &file["mode"], why));
    }
}
