//! Matches requests against the rules of a FlowSchema (`apf rule.go`).

use meta::User;
use serde::Deserialize;

/// The attributes of a request that rules match.
#[derive(Clone, Copy, Debug)]
pub struct RequestDigest<'a> {
    pub user: &'a User,
    pub verb: &'a str,
    pub group: &'a str,
    /// Empty for a non-resource request.
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub path: &'a str,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Rules {
    subjects: Vec<Subject>,
    resource_rules: Vec<ResourceRule>,
    non_resource_rules: Vec<NonResourceRule>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
struct Subject {
    kind: String,
    user: Option<SubjectName>,
    group: Option<SubjectName>,
    service_account: Option<SubjectName>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
struct SubjectName {
    name: String,
    namespace: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
struct ResourceRule {
    verbs: Vec<String>,
    api_groups: Vec<String>,
    resources: Vec<String>,
    cluster_scope: bool,
    namespaces: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
struct NonResourceRule {
    verbs: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    urls: Vec<String>,
}

impl Rules {
    pub fn matches(&self, d: &RequestDigest<'_>) -> bool {
        self.subjects.iter().any(|s| s.matches(d.user))
            && if d.resource.is_empty() {
                self.non_resource_rules.iter().any(|r| r.matches(d))
            } else {
                self.resource_rules.iter().any(|r| r.matches(d))
            }
    }
}

impl Subject {
    fn matches(&self, user: &User) -> bool {
        match self.kind.as_str() {
            "User" => self.user.as_ref().is_some_and(|u| u.name == "*" || u.name == user.name),
            "Group" => self.group.as_ref().is_some_and(|g| g.name == "*" || user.is_in(&g.name)),
            "ServiceAccount" => match (&self.service_account, user.service_account()) {
                (Some(a), Some((namespace, name))) => a.namespace == namespace && (a.name == "*" || a.name == name),
                _ => false,
            },
            _ => false,
        }
    }
}

/// Whether the list contains the value, or is exactly `*`.
fn contains(list: &[String], value: &str) -> bool {
    list.iter().any(|v| v == value) || matches!(list, [one] if one == "*")
}

impl ResourceRule {
    fn matches(&self, d: &RequestDigest<'_>) -> bool {
        let resource = |r: &String| match r.split_once('/') {
            None => *r == d.resource && d.subresource.is_empty(),
            Some((resource, sub)) => resource == d.resource && sub == d.subresource,
        };
        contains(&self.verbs, d.verb)
            && (self.resources.iter().any(resource) || matches!(&self.resources[..], [one] if one == "*"))
            && contains(&self.api_groups, d.group)
            && if d.namespace.is_empty() { self.cluster_scope } else { contains(&self.namespaces, d.namespace) }
    }
}

impl NonResourceRule {
    fn matches(&self, d: &RequestDigest<'_>) -> bool {
        let url = |u: &String| {
            let start = u.trim_end_matches('*').trim_end_matches('/');
            u == "*" || u == d.path || d.path.strip_prefix(start).is_some_and(|rest| rest.starts_with('/'))
        };
        contains(&self.verbs, d.verb) && self.urls.iter().any(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rules_match_users_resources_and_paths() {
        let rules = |v| serde_json::from_value::<Rules>(v).unwrap();
        let jane = User::new("jane", &["developers"]);
        let account = User::new("system:serviceaccount:team:builder", &[]);
        let check = |r: &Rules, user: &User, what: [&str; 5], want: bool| {
            let [verb, group, resource, subresource, namespace] = what;
            let d = RequestDigest { user, verb, group, resource, subresource, namespace, path: "" };
            assert_eq!(r.matches(&d), want, "{d:?}");
        };
        let by_group = rules(json!({"subjects": [{"kind": "Group", "group": {"name": "developers"}}],
            "resourceRules": [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "nodes/status"],
                "namespaces": ["a"], "clusterScope": true}],
            "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/openapi/*"]}]}));
        check(&by_group, &jane, ["get", "", "pods", "", "a"], true);
        check(&by_group, &jane, ["get", "", "pods", "", "b"], false);
        check(&by_group, &jane, ["get", "", "pods", "", ""], true);
        check(&by_group, &jane, ["get", "", "pods", "log", "a"], false);
        check(&by_group, &jane, ["get", "", "nodes", "status", ""], true);
        check(&by_group, &jane, ["create", "", "pods", "", "a"], false);
        check(&by_group, &jane, ["get", "apps", "pods", "", "a"], false);
        check(&by_group, &account, ["get", "", "pods", "", "a"], false);
        for (path, want) in
            [("/healthz", true), ("/healthz/etcd", true), ("/healthzz", false), ("/openapi/v3", true), ("/api", false)]
        {
            let d = RequestDigest {
                user: &jane,
                verb: "get",
                group: "",
                resource: "",
                subresource: "",
                namespace: "",
                path,
            };
            assert_eq!(by_group.matches(&d), want, "{path}");
        }
        let everything = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}]);
        let of_team = rules(
            json!({"subjects": [{"kind": "ServiceAccount", "serviceAccount": {"namespace": "team", "name": "*"}}],
            "resourceRules": everything}),
        );
        check(&of_team, &account, ["watch", "apps", "deployments", "scale", "x"], true);
        check(&of_team, &account, ["watch", "apps", "deployments", "", ""], false);
        check(&of_team, &User::new("system:serviceaccount:teams:builder", &[]), ["get", "", "pods", "", "x"], false);
    }
}
