//! The order in which objects are applied: dependencies first.

use meta::Object;

/// Namespaces first, then definitions (until they are served), then everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Namespaces,
    Definitions,
    Rest,
}

/// Returns the API group of an object.
pub fn group(o: &Object) -> &str {
    o.api_version().split_once('/').map_or("", |(g, _)| g)
}

/// Returns the stage in which an object is applied.
pub fn stage(o: &Object) -> Stage {
    match (group(o), o.kind()) {
        ("", "Namespace") => Stage::Namespaces,
        ("apiextensions.k8s.io", "CustomResourceDefinition") => Stage::Definitions,
        _ => Stage::Rest,
    }
}

/// Kinds that others refer to come first. Kinds that check requests come last, so that they do not check this apply.
const RANKS: [&[&str]; 6] = [
    &["ResourceQuota", "LimitRange", "PriorityClass", "StorageClass", "RuntimeClass", "IngressClass"],
    &["ServiceAccount", "Role", "ClusterRole"],
    &["RoleBinding", "ClusterRoleBinding"],
    &["ConfigMap", "Secret", "PersistentVolume"],
    &["PersistentVolumeClaim", "Service", "NetworkPolicy"],
    &["Pod", "ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"],
];
const LAST: [&str; 7] = [
    "APIService",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// The sort key of an object. Objects with the same key keep the order of the files.
pub fn rank(o: &Object) -> (Stage, usize) {
    let own = group(o).is_empty() || group(o).ends_with(".k8s.io") || !group(o).contains('.');
    let at = RANKS.iter().position(|kinds| own && kinds.contains(&o.kind()));
    let rank = if own && LAST.contains(&o.kind()) { RANKS.len() + 1 } else { at.unwrap_or(RANKS.len()) };
    (stage(o), rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Clauses: G03.order
    #[test]
    fn dependencies_come_first() {
        let mut all: Vec<Object> = [
            ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
            ("apps/v1", "Deployment"),
            ("e.com/v1", "Secret"),
            ("v1", "Secret"),
            ("rbac.authorization.k8s.io/v1", "RoleBinding"),
            ("rbac.authorization.k8s.io/v1", "Role"),
            ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
            ("v1", "Namespace"),
            ("v1", "Service"),
        ]
        .into_iter()
        .map(|(v, k)| Object::from_value(json!({"apiVersion": v, "kind": k})).unwrap())
        .collect();
        all.sort_by_key(rank);
        let kinds: Vec<&str> = all.iter().map(Object::kind).collect();
        assert_eq!(
            kinds,
            [
                "Namespace",
                "CustomResourceDefinition",
                "Role",
                "RoleBinding",
                "Secret",
                "Service",
                "Deployment",
                "Secret",
                "ValidatingWebhookConfiguration"
            ]
        );
    }
}
