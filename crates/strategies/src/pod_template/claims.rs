//! Resource claims of pods, and their use by containers.

use crate::read::{items, shown, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value, names};
use std::collections::{BTreeSet, HashMap, HashSet};

const WAYS: [&str; 2] = ["resourceClaimName", "resourceClaimTemplateName"];

pub fn of_pod(spec: &Value, list: &FieldPath, errors: &mut ErrorList) {
    let mut seen = HashSet::new();
    for (i, c) in items(spec, "resourceClaims").iter().enumerate() {
        let at = list.index(i);
        let name = text(c, "name");
        if name.is_empty() {
            errors.push(FieldError::required(&at.child("name"), ""));
        } else if !seen.insert(name) {
            errors.push(FieldError::duplicate(&at.child("name"), name));
        } else {
            errors.extend(names::dns_label(name).into_iter().map(|m| FieldError::invalid(&at.child("name"), name, m)));
        }
        let why = match WAYS.iter().filter(|k| c[**k].is_string()).count() {
            0 => Some("must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
            1 => None,
            _ => Some("at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"),
        };
        errors
            .extend(why.map(|why| FieldError::invalid(&at, shown(c, "io.k8s.api.core.v1.PodResourceClaim", &at), why)));
        for (k, name) in WAYS.iter().filter_map(|k| Some((k, c[*k].as_str()?))) {
            errors.extend(names::dns_subdomain(name).into_iter().map(|m| FieldError::invalid(&at.child(k), name, m)));
        }
    }
}

/// Maximum length of the claim names in an error, in characters: every error for an unknown claim lists them.
const LISTED: usize = 4096;

/// Validates the claims of a container: each claim, or each of its requests, at most once.
pub fn of_container(resources: &Value, spec: &Value, list: &FieldPath, errors: &mut ErrorList) {
    let claims = items(resources, "claims");
    if claims.is_empty() {
        return;
    }
    let known: BTreeSet<&str> =
        items(spec, "resourceClaims").iter().map(|c| text(c, "name")).filter(|n| !n.is_empty()).collect();
    let which = match known.iter().copied().collect::<Vec<_>>() {
        others if others.is_empty() => " which is empty".to_owned(),
        others => format!(": {}", others.join(", ")).chars().take(LISTED).collect(),
    };
    let mut used: HashSet<String> = HashSet::new();
    // The number of requests used of each claim.
    let mut requested: HashMap<&str, usize> = HashMap::new();
    for (i, c) in claims.iter().enumerate() {
        let at = list.index(i);
        let (name, request) = (text(c, "name"), text(c, "request"));
        if name.is_empty() {
            errors.push(FieldError::required(&at, ""));
            continue;
        }
        if used.contains(name) {
            errors.push(FieldError::duplicate(&at, name));
        } else {
            let key = if request.is_empty() { name.to_owned() } else { format!("{name}/{request}") };
            if !request.is_empty() {
                let bad = names::dns_label(request);
                errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child("request"), request, m)));
            }
            if used.contains(&key) {
                errors.push(FieldError::duplicate(&at, key.as_str()));
            } else if request.is_empty() {
                let parts = requested.get(name).copied().unwrap_or_default();
                errors.extend((0..parts).map(|_| FieldError::duplicate(&at, name)));
            }
            if used.insert(key) && !request.is_empty() {
                *requested.entry(name).or_default() += 1;
            }
        }
        if !known.contains(name) {
            let why = format!("must be one of the names in pod.spec.resourceClaims{which}");
            errors.push(FieldError::not_found(&at, name).with_detail(why));
        }
    }
}
