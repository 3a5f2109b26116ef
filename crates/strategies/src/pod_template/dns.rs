//! Validation of the pod's DNS policy and configuration.

use crate::read::{items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value, names};

const SEARCHES_MAX: usize = 32;
const SEARCHES_LENGTH_MAX: usize = 2048;
const NAMESERVERS_MAX: usize = 3;

pub fn rules(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let config = &spec["dnsConfig"];
    let at = path.child("dnsConfig");
    let nameservers = items(config, "nameservers");
    if spec["dnsPolicy"] == "None" {
        if !config.is_object() {
            let why = "must provide `dnsConfig` when `dnsPolicy` is None";
            errors.push(FieldError::required(&at, why));
            return;
        }
        if nameservers.is_empty() {
            let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.push(FieldError::required(&at.child("nameservers"), why));
            return;
        }
    }
    if nameservers.len() > NAMESERVERS_MAX {
        let why = format!("must not have more than {NAMESERVERS_MAX} nameservers");
        errors.push(FieldError::invalid(&at.child("nameservers"), nameservers, why));
    }
    let searches = items(config, "searches");
    let at_searches = at.child("searches");
    if searches.len() > SEARCHES_MAX {
        let why = format!("must not have more than {SEARCHES_MAX} search paths");
        errors.push(FieldError::invalid(&at_searches, searches, why));
    }
    let length: usize = searches.iter().map(|s| s.as_str().map_or(0, str::len) + 1).sum();
    if length > SEARCHES_LENGTH_MAX + 1 {
        let why =
            format!("must not have more than {SEARCHES_LENGTH_MAX} characters (including spaces) in the search list");
        errors.push(FieldError::invalid(&at_searches, searches, why));
    }
    for (i, s) in searches.iter().enumerate() {
        let s = s.as_str().unwrap_or_default();
        if s != "." {
            let name = s.strip_suffix('.').unwrap_or(s);
            let bad = names::dns_subdomain_with_underscores(name);
            errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at_searches.index(i), name, m)));
        }
    }
    for (i, option) in items(config, "options").iter().enumerate() {
        if text(option, "name").is_empty() {
            errors.push(FieldError::required(&at.child("options").index(i), "must not be empty"));
        }
    }
}
