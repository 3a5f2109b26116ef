//! Role-based access control (`k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac`).

pub mod cover;

use crate::{Attributes, Authorizer, Decision, User};
use meta::{Object, Value};
use std::collections::HashMap;

/// All roles and bindings, indexed by what they are asked for.
#[derive(Default)]
pub struct Rbac {
    /// By namespace (empty: cluster roles) and name.
    roles: HashMap<(String, String), Vec<PolicyRule>>,
    /// By subject.
    by_user: HashMap<String, Vec<Grant>>,
    by_group: HashMap<String, Vec<Grant>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyRule {
    pub verbs: Vec<String>,
    pub groups: Vec<String>,
    pub resources: Vec<String>,
    pub names: Vec<String>,
    pub urls: Vec<String>,
}

#[derive(Clone)]
struct Grant {
    /// Where it holds; empty for everywhere.
    namespace: String,
    role: (String, String),
    binding: String,
    /// Kind and name of whom it is for.
    to: String,
}

impl Grant {
    /// As upstream's describers of bindings tell it.
    fn why(&self) -> String {
        let kind = if self.role.0.is_empty() { "ClusterRole" } else { "Role" };
        let (role, to) = (&self.role.1, &self.to);
        match self.namespace.as_str() {
            "" => format!("RBAC: allowed by ClusterRoleBinding {:?} of {kind} {role:?} to {to}", self.binding),
            ns => format!("RBAC: allowed by RoleBinding \"{}/{ns}\" of {kind} {role:?} to {to}", self.binding),
        }
    }
}

/// A RoleBinding or ClusterRoleBinding.
pub struct Binding {
    name: String,
    namespace: String,
    role: (String, String),
    /// By name, with kind and name as they are told.
    users: Vec<(String, String)>,
    groups: Vec<(String, String)>,
}

impl Binding {
    pub fn of(o: &Object) -> Self {
        let text = |path: &[&str]| o.str_at(path).unwrap_or_default().to_owned();
        let namespace = o.namespace().to_owned();
        let role_namespace = if text(&["roleRef", "kind"]) == "Role" { namespace.clone() } else { String::new() };
        let (mut users, mut groups) = (Vec::new(), Vec::new());
        for s in o.get("subjects").and_then(Value::as_array).into_iter().flatten() {
            let name = s["name"].as_str().unwrap_or_default();
            match s["kind"].as_str().unwrap_or_default() {
                "User" => users.push((name.to_owned(), format!("User {name:?}"))),
                "Group" => groups.push((name.to_owned(), format!("Group {name:?}"))),
                "ServiceAccount" => {
                    let ns = s["namespace"].as_str().filter(|n| !n.is_empty()).unwrap_or(&namespace);
                    users.push((
                        format!("system:serviceaccount:{ns}:{name}"),
                        format!("ServiceAccount \"{name}/{ns}\""),
                    ));
                }
                _ => {}
            }
        }
        Self { name: o.name().to_owned(), role: (role_namespace, text(&["roleRef", "name"])), namespace, users, groups }
    }
}

impl PolicyRule {
    pub fn of(v: &Value) -> Self {
        let list = |k: &str| -> Vec<String> {
            v[k].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Self {
            verbs: list("verbs"),
            groups: list("apiGroups"),
            resources: list("resources"),
            names: list("resourceNames"),
            urls: list("nonResourceURLs"),
        }
    }

    /// As the API writes it.
    pub fn to_value(&self) -> Value {
        let fields = [
            ("verbs", &self.verbs),
            ("apiGroups", &self.groups),
            ("resources", &self.resources),
            ("resourceNames", &self.names),
            ("nonResourceURLs", &self.urls),
        ];
        let said = fields.into_iter().filter(|(k, l)| *k == "verbs" || !l.is_empty());
        said.map(|(k, l)| (k.to_owned(), l.clone().into())).collect::<serde_json::Map<String, Value>>().into()
    }

    pub fn allows(&self, a: &Attributes) -> bool {
        let any = |list: &[String], x: &str| list.iter().any(|l| l == "*" || l == x);
        if !any(&self.verbs, &a.verb) {
            return false;
        }
        if a.resource.is_empty() {
            return self.urls.iter().any(|u| match u.strip_suffix('*') {
                Some(prefix) => a.path.starts_with(prefix),
                None => *u == a.path,
            });
        }
        let resource = |r: &String| match a.subresource.as_str() {
            "" => r == "*" || *r == a.resource,
            sub => {
                r == "*"
                    || r.strip_prefix("*/").is_some_and(|s| s == sub)
                    || r.split_once('/').is_some_and(|(x, s)| x == a.resource && s == sub)
            }
        };
        any(&self.groups, &a.group)
            && self.resources.iter().any(resource)
            && (self.names.is_empty() || self.names.contains(&a.name))
    }
}

impl Rbac {
    pub fn add_role(&mut self, o: &Object) {
        let rules = o.get("rules").and_then(Value::as_array).into_iter().flatten().map(PolicyRule::of).collect();
        self.roles.insert((o.namespace().to_owned(), o.name().to_owned()), rules);
    }

    pub fn add_binding(&mut self, b: Binding) {
        let grant = |to| Grant { namespace: b.namespace.clone(), role: b.role.clone(), binding: b.name.clone(), to };
        for (name, to) in b.users {
            self.by_user.entry(name).or_default().push(grant(to));
        }
        for (name, to) in b.groups {
            self.by_group.entry(name).or_default().push(grant(to));
        }
    }

    /// Whether a cluster role, bound or not, allows a request.
    pub fn role_allows(&self, role: &str, a: &Attributes) -> bool {
        self.roles.get(&(String::new(), role.to_owned())).is_some_and(|rules| rules.iter().any(|r| r.allows(a)))
    }

    fn grants<'a>(&'a self, user: &'a User) -> impl Iterator<Item = &'a Grant> {
        let by_group = user.groups.iter().filter_map(|g| self.by_group.get(g)).flatten();
        self.by_user.get(&user.name).into_iter().flatten().chain(by_group)
    }

    /// The rules that hold for a user in a namespace (empty: cluster-wide).
    pub fn rules_for<'a>(&'a self, user: &'a User, namespace: &'a str) -> impl Iterator<Item = &'a PolicyRule> {
        self.grants(user)
            .filter(move |g| g.namespace.is_empty() || g.namespace == namespace)
            .filter_map(|g| self.roles.get(&g.role))
            .flatten()
    }
}

impl Authorizer for Rbac {
    fn authorize(&self, a: &Attributes) -> Decision {
        // The group of the cluster's owners needs no role.
        if a.user.is_in(crate::user::GROUP_MASTERS) {
            return Decision::Allow(String::new());
        }
        for g in self.grants(&a.user) {
            if !g.namespace.is_empty() && g.namespace != a.namespace {
                continue;
            }
            if self.roles.get(&g.role).is_some_and(|rules| rules.iter().any(|r| r.allows(a))) {
                return Decision::Allow(g.why());
            }
        }
        Decision::NoOpinion(String::new())
    }

    fn rules(&self, user: &User, namespace: &str) -> Vec<PolicyRule> {
        let all = || vec!["*".to_owned()];
        let mut rules: Vec<PolicyRule> = self.rules_for(user, namespace).cloned().collect();
        if user.is_in(crate::user::GROUP_MASTERS) {
            rules.push(PolicyRule { verbs: all(), groups: all(), resources: all(), ..PolicyRule::default() });
            rules.push(PolicyRule { verbs: all(), urls: all(), ..PolicyRule::default() });
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rbac() -> Rbac {
        let mut r = Rbac::default();
        let object = |v: Value| Object::from_value(v).unwrap();
        r.add_role(&object(json!({"metadata": {"name": "reader"}, "rules": [
            {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "pods/log"]},
            {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["one"]},
            {"verbs": ["get"], "nonResourceURLs": ["/healthz", "/apis/*"]}]})));
        r.add_binding(Binding::of(&object(json!({"metadata": {"name": "b", "namespace": "x"},
            "roleRef": {"kind": "ClusterRole", "name": "reader"},
            "subjects": [{"kind": "ServiceAccount", "name": "sa"}, {"kind": "Group", "name": "team"}]}))));
        r
    }

    #[test]
    fn who_gave_a_permission_is_told() {
        let mut r = rbac();
        let binding = json!({"metadata": {"name": "c"}, "roleRef": {"kind": "ClusterRole", "name": "reader"},
            "subjects": [{"kind": "User", "name": "eve"}]});
        r.add_binding(Binding::of(&Object::from_value(binding).unwrap()));
        let why = |user: &str, group: &str| {
            let user = User::new(user, &[group]);
            let a = Attributes {
                user,
                verb: "get".into(),
                resource: "pods".into(),
                namespace: "x".into(),
                ..Attributes::default()
            };
            match r.authorize(&a) {
                Decision::Allow(why) => why,
                other => format!("{other:?}"),
            }
        };
        let cases = [
            ("eve", "", "RBAC: allowed by ClusterRoleBinding \"c\" of ClusterRole \"reader\" to User \"eve\""),
            ("joe", "team", "RBAC: allowed by RoleBinding \"b/x\" of ClusterRole \"reader\" to Group \"team\""),
            (
                "system:serviceaccount:x:sa",
                "",
                "RBAC: allowed by RoleBinding \"b/x\" of ClusterRole \"reader\" to ServiceAccount \"sa/x\"",
            ),
        ];
        for (user, group, want) in cases {
            assert_eq!(why(user, group), want);
        }
    }

    fn asks(user: &User, verb: &str, ns: &str, resource: &str, sub: &str, name: &str) -> bool {
        let a = Attributes {
            user: user.clone(),
            verb: verb.into(),
            namespace: ns.into(),
            resource: resource.into(),
            subresource: sub.into(),
            name: name.into(),
            ..Attributes::default()
        };
        rbac().authorize(&a).allowed()
    }

    /// Clauses: K10.get-without-list
    #[test]
    fn roles_grant_what_they_say_and_no_more() {
        let sa = User::new("system:serviceaccount:x:sa", &[]);
        assert!(asks(&sa, "get", "x", "pods", "", "p") && asks(&sa, "get", "x", "pods", "log", "p"));
        assert!(!asks(&sa, "get", "y", "pods", "", "p") && !asks(&sa, "delete", "x", "pods", "", "p"));
        assert!(!asks(&sa, "get", "x", "pods", "exec", "p") && !asks(&sa, "get", "", "pods", "", ""));
        assert!(asks(&sa, "get", "x", "secrets", "", "one") && !asks(&sa, "list", "x", "secrets", "", ""));
        assert!(!asks(&sa, "get", "x", "secrets", "", "two"));
        let team = User::new("someone", &["team"]);
        assert!(asks(&team, "list", "x", "pods", "", ""));
        assert!(!asks(&User::new("other", &[]), "list", "x", "pods", "", ""));
        assert!(asks(&User::new("root", &["system:masters"]), "delete", "y", "nodes", "", "n"));
    }
}
