//! Validation of the device spec of claims and claim templates.

use super::parts::{at_most, configuration, every, fully_qualified, messages, toleration};
use super::selectors;
use crate::read::{delegated, is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use std::collections::{HashMap, HashSet};

/// Maximum number of requests, constraints and configurations of a claim, and of the requests that one of these names.
const LISTED_MAX: usize = 32;
/// Maximum number of alternatives of a request.
const ALTERNATIVES_MAX: usize = 8;
const REQUEST: &str = "io.k8s.api.resource.v1.DeviceRequest";
const ONE: &str = "exactly one of `exactly` or `firstAvailable` is required";
const REFERENCE: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

pub fn delegated_spec(o: &Object, definition: &str, errors: &mut ErrorList) {
    if let Some(schema) = kinds::catalog().definitions.get(definition) {
        schema::rules::validate_field(&o.0, schema, "spec", &FieldPath::root(), errors);
    }
}

/// Request names, with the names of their subrequests.
pub struct Requests<'a>(HashMap<&'a str, HashSet<&'a str>>);

impl<'a> Requests<'a> {
    pub fn new(devices: &'a Value) -> Self {
        let alternatives = |r: &'a Value| items(r, "firstAvailable").iter().map(|s| text(s, "name")).collect();
        Self(items(devices, "requests").iter().map(|r| (text(r, "name"), alternatives(r))).collect())
    }

    fn has(&self, name: &str) -> bool {
        match name.split_once('/') {
            None => self.0.contains_key(name),
            Some((request, alternative)) => self.0.get(request).is_some_and(|s| s.contains(alternative)),
        }
    }

    pub fn check(&self, name: &str, at: &FieldPath, errors: &mut ErrorList) {
        if name.split('/').count() <= 2 {
            for part in name.split('/') {
                messages(names::dns_label(part), at, part, errors);
            }
            if self.has(name) {
                return;
            }
        }
        errors.push(FieldError::invalid(at, name, REFERENCE));
    }

    /// Checks all names in the field `requests`.
    pub fn check_all(&self, v: &Value, at: &FieldPath, errors: &mut ErrorList) {
        at_most(LISTED_MAX, v, "requests", at, |r, at| self.check(r.as_str().unwrap_or_default(), at, errors));
    }
}

pub fn spec(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let devices = &spec["devices"];
    let path = path.child("devices");
    let requests = Requests::new(devices);
    at_most(LISTED_MAX, devices, "requests", &path, |r, at| {
        match (is_set(r, "exactly"), items(r, "firstAvailable").is_empty()) {
            (false, true) => errors.push(FieldError::required(at, ONE)),
            (true, false) => {
                let why = format!("{ONE}, but multiple fields are set");
                errors.push(FieldError::invalid(at, Value::Null, why));
            }
            (true, true) => {
                delegated(r, REQUEST, "exactly", at, errors);
                request(&r["exactly"], &at.child("exactly"), errors);
            }
            (false, false) => {
                delegated(r, REQUEST, "firstAvailable", at, errors);
                at_most(ALTERNATIVES_MAX, r, "firstAvailable", at, |s, at| request(s, at, errors));
            }
        }
    });
    at_most(LISTED_MAX, devices, "constraints", &path, |c, at| {
        requests.check_all(c, at, errors);
        match ["matchAttribute", "distinctAttribute"].into_iter().find_map(|k| Some((k, c[k].as_str()?))) {
            Some((key, name)) => fully_qualified(name, &at.child(key), errors),
            None => {
                let why = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
                errors.push(FieldError::required(at, why));
            }
        }
    });
    at_most(LISTED_MAX, devices, "config", &path, |c, at| {
        requests.check_all(c, at, errors);
        configuration(c, at, errors);
    });
}

fn request(r: &Value, at: &FieldPath, errors: &mut ErrorList) {
    selectors(r, at, errors);
    let count = r["count"].as_i64().unwrap_or_default();
    let why = match text(r, "allocationMode") {
        "All" if count != 0 => Some("must not be specified when allocationMode is 'All'"),
        "ExactCount" if count <= 0 => Some("must be greater than zero"),
        _ => None,
    };
    if let Some(why) = why {
        errors.push(FieldError::invalid(&at.child("count"), count, why));
    }
    every(r, "tolerations", at, |t, at| toleration(t, at, errors));
}

#[cfg(test)]
mod tests {
    use crate::resource::{resource_claim, resource_claim_template};
    use crate::testing::{check_create, check_update};
    use serde_json::{Value, json};

    #[test]
    fn validates_claims_on_create() {
        for (kind, strategy, pointer, path) in [
            ("ResourceClaim", resource_claim::rules(), "/spec/devices", "spec.devices"),
            ("ResourceClaimTemplate", resource_claim_template::rules(), "/spec/spec/devices", "spec.spec.devices"),
        ] {
            let mut base = json!({"apiVersion": "resource.k8s.io/v1", "kind": kind});
            *crate::testing::field(&mut base, pointer) = json!({"requests": [{"name": "r"}]});
            let why =
                format!("{path}.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required");
            check_create(&strategy, &base, &[("", Value::Null, &[&why])]);
            // Updates of templates validate the spec, too.
            let unchanged: &[&str] = if kind == "ResourceClaim" { &[] } else { &[&why] };
            check_update(
                &strategy,
                &base,
                &[
                    ("/metadata/labels", json!({"a": "b"}), unchanged),
                    (pointer, json!({}), &["spec: Invalid value: …"]),
                ],
            );
        }
    }
}
