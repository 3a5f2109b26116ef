//! Role and ClusterRole: rules and aggregation.

use super::escalation;
use crate::Config;
use crate::read::items;
use crate::table::Row;
use auth::Authorizer;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Status, Value};
use registry::{CostEstimator, CreateStrategy, Env, NameRule, Request};
use std::sync::Arc;

pub fn row(config: &Config) -> Row {
    Row::stored(Role(config.authorizer.clone()))
}

pub struct Role(Arc<dyn Authorizer>);

impl CreateStrategy for Role {
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn permit(&self, env: Env<'_>, request: &Request, o: &Object, old: Option<&Object>) -> Result<(), Status> {
        escalation::check(&*self.0, env, request, o, old)
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        validate(o, errors);
    }
}

impl CostEstimator for Role {
    fn reads(&self, env: Env<'_>, _subresource: &str, namespace: &str, _name: &str) -> usize {
        escalation::reads(env, namespace)
    }
}

registry::strategy!(Role: CreateStrategy, CostEstimator);

fn validate(o: &Object, errors: &mut ErrorList) {
    let all = o.clone().into_value();
    for (i, r) in items(&all, "rules").iter().enumerate() {
        rule(r, o.kind() == "Role", &FieldPath::new("rules").index(i), errors);
    }
    let aggregation = &all["aggregationRule"];
    let at = FieldPath::new("aggregationRule.clusterRoleSelectors");
    if aggregation.is_object() && items(aggregation, "clusterRoleSelectors").is_empty() {
        let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        errors.push(FieldError::required(&at, why));
    }
    for (i, s) in items(aggregation, "clusterRoleSelectors").iter().enumerate() {
        let before = errors.len();
        schema::rules::selector(s, &at.index(i), errors);
        if errors.len() > before {
            errors.push(FieldError::invalid(&at.index(i), Value::Null, "invalid label selector."));
        }
    }
}

fn rule(r: &Value, namespaced: bool, at: &FieldPath, errors: &mut ErrorList) {
    if !items(r, "nonResourceURLs").is_empty() {
        if namespaced {
            let why = "namespaced rules cannot apply to non-resource URLs";
            errors.push(FieldError::invalid(&at.child("nonResourceURLs"), &r["nonResourceURLs"], why));
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|k| !items(r, k).is_empty()) {
            let why = "rules cannot apply to both regular resources and non-resource URLs";
            errors.push(FieldError::invalid(&at.child("nonResourceURLs"), &r["nonResourceURLs"], why));
        }
        return;
    }
    if items(r, "apiGroups").is_empty() {
        errors.push(FieldError::required(&at.child("apiGroups"), "resource rules must supply at least one api group"));
    }
    if items(r, "resources").is_empty() {
        errors.push(FieldError::required(&at.child("resources"), "resource rules must supply at least one resource"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_create;
    use serde_json::json;

    #[test]
    fn validates_rules() {
        let validate = |o: &Object, errors: &mut ErrorList| validate(o, errors);
        let role = |kind: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "r"}, "rules": []});
        let mixed = "rules[0].nonResourceURLs: Invalid value: [\"/a\"]: rules cannot apply to both regular resources and non-resource URLs";
        let namespaced =
            "rules[0].nonResourceURLs: Invalid value: [\"/a\"]: namespaced rules cannot apply to non-resource URLs";
        let group = "rules[0].apiGroups: Required value: resource rules must supply at least one api group";
        let resource = "rules[0].resources: Required value: resource rules must supply at least one resource";
        let verb = "rules[0].verbs: Required value: verbs must contain at least one value";
        check_create(
            &crate::plain::Ruled::new(validate),
            &role("ClusterRole"),
            &[
                ("", Value::Null, &[]),
                ("/rules", json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]), &[]),
                ("/rules", json!([{"verbs": ["get"], "nonResourceURLs": ["/a"]}]), &[]),
                ("/rules", json!([{"verbs": ["get"]}]), &[group, resource]),
                ("/rules", json!([{"verbs": [], "apiGroups": [""], "resources": ["pods"]}]), &[verb]),
                ("/rules", json!([{"verbs": ["get"], "nonResourceURLs": ["/a"], "resources": ["pods"]}]), &[mixed]),
                (
                    "/aggregationRule",
                    json!({}),
                    &[
                        "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil",
                    ],
                ),
            ],
        );
        check_create(
            &crate::plain::Ruled::new(validate),
            &role("Role"),
            &[("/rules", json!([{"verbs": ["get"], "nonResourceURLs": ["/a"]}]), &[namespaced])],
        );
    }
}
