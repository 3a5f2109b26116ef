//! `admissionregistration.k8s.io`: validation that webhooks and policies share.

mod binding;
mod expressions;
mod mutating_admission_policy;
mod mutating_admission_policy_binding;
mod mutating_webhook_configuration;
mod policy;
mod validating_admission_policy;
mod validating_admission_policy_binding;
mod validating_webhook_configuration;
pub mod webhooks;

use crate::read::items;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

kinds! {
    mutating_admission_policy,
    mutating_admission_policy_binding,
    mutating_webhook_configuration,
    validating_admission_policy,
    validating_admission_policy_binding,
    validating_webhook_configuration,
}

/// The end of names that configurations from files have.
const STATIC_SUFFIX: &str = ".static.k8s.io";

/// Returns the warning for a name that is reserved for configurations from files.
fn warnings(o: &Object, _: Option<&Object>) -> Vec<String> {
    let why = || {
        format!(
            "metadata.name: names ending with {STATIC_SUFFIX:?} are reserved for static manifest-based configurations and cannot be managed via the API"
        )
    };
    o.name().ends_with(STATIC_SUFFIX).then(why).into_iter().collect()
}

/// Validates the match resources of a policy or binding.
fn match_resources(resources: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for list in ["resourceRules", "excludeResourceRules"] {
        for (i, r) in items(resources, list).iter().enumerate() {
            rule(r, &at.child(list).index(i), errors);
        }
    }
}

/// Rejects rules of mutating policies for operations that cannot be mutated (`DELETE`).
fn mutable(resources: &Value, at: &FieldPath, errors: &mut ErrorList) {
    const OPERATIONS: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
    let at = at.child("resourceRules").child("operations");
    for r in items(resources, "resourceRules") {
        for o in items(r, "operations").iter().filter(|o| !o.as_str().is_some_and(|o| OPERATIONS.contains(&o))) {
            errors.push(FieldError::not_supported(&at, o, &OPERATIONS));
        }
    }
}

/// Validates a rule of a webhook or policy.
fn rule(r: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for (key, what) in [("apiGroups", "API groups"), ("apiVersions", "API versions"), ("operations", "operations")] {
        let list = items(r, key);
        if list.len() > 1 && list.iter().any(|v| v == "*") {
            let why = format!("if '*' is present, must not specify other {what}");
            errors.push(FieldError::invalid(&at.child(key), list, why));
        }
    }
    for key in ["apiVersions", "resources"] {
        for (i, _) in items(r, key).iter().enumerate().filter(|(_, v)| *v == "") {
            errors.push(FieldError::required(&at.child(key).index(i), ""));
        }
    }
    resources(items(r, "resources"), &at.child("resources"), errors);
}

/// Validates resources and subresources, which may not be covered by wildcards of the list.
fn resources(list: &[Value], at: &FieldPath, errors: &mut ErrorList) {
    let all: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
    let mut wildcard_resources: Vec<&str> = Vec::new();
    let mut wildcard_subresources: Vec<&str> = Vec::new();
    for (i, r) in all.iter().enumerate() {
        let Some((resource, sub)) = r.split_once('/') else { continue };
        if wildcard_resources.contains(&resource) {
            let why = format!("if '{resource}/*' is present, must not specify {r}");
            errors.push(FieldError::invalid(&at.index(i), *r, why));
        }
        if wildcard_subresources.contains(&sub) {
            let why = format!("if '*/{sub}' is present, must not specify {r}");
            errors.push(FieldError::invalid(&at.index(i), *r, why));
        }
        if sub == "*" {
            wildcard_resources.push(resource);
        }
        if resource == "*" {
            wildcard_subresources.push(sub);
        }
    }
    if all.len() > 1 && all.contains(&"*/*") {
        errors.push(FieldError::invalid(at, list, "if '*/*' is present, must not specify other resources"));
    }
    if all.len() > 1 && all.contains(&"*") && all.iter().any(|r| *r != "*" && !r.contains('/')) {
        let why = "if '*' is present, must not specify other resources without subresources";
        errors.push(FieldError::invalid(at, list, why));
    }
}
