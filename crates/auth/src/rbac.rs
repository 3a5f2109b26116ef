//! Role-based access control (`k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac`).

pub mod cache;
pub mod cover;

use crate::{Attributes, Authorizer, Decision, User};
use imbl::{HashMap, OrdMap};
use meta::{Object, Value};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use stored::in_place;

/// All roles and bindings, indexed for lookups. Cheap to clone.
#[derive(Clone, Default)]
pub struct Rbac {
    /// By namespace (empty: cluster roles) and name.
    roles: HashMap<Name, Arc<[PolicyRule]>>,
    bindings: HashMap<Name, Arc<Binding>>,
    by_user: Subjects,
    by_group: Subjects,
}

/// Namespace and name.
type Name = (String, String);

/// By subject name, namespace (empty: cluster-wide), and binding name.
type Subjects = HashMap<String, HashMap<String, OrdMap<String, Arc<Grant>>>>;

/// A rule of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyRule {
    /// The verbs, or `*`.
    pub verbs: Vec<String>,
    /// The API groups, or `*`.
    pub groups: Vec<String>,
    /// The resources, as `pods` or `pods/log`, or `*`.
    pub resources: Vec<String>,
    /// The names of objects; empty for all.
    pub names: Vec<String>,
    /// Paths of non-resource URLs, which may end with `*`.
    pub urls: Vec<String>,
}

struct Grant {
    /// The namespace; empty: cluster-wide.
    namespace: String,
    role: Name,
    binding: String,
    /// Kind and name of the subject.
    to: String,
}

impl Grant {
    /// Formatted like upstream's binding describers.
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
struct Binding {
    name: String,
    namespace: String,
    role: Name,
    /// Subjects by name, with kind and name as in messages.
    users: BTreeMap<String, String>,
    groups: BTreeMap<String, String>,
}

impl Binding {
    fn read(o: &Object) -> Self {
        let text = |path: &[&str]| o.str_at(path).unwrap_or_default().to_owned();
        let namespace = o.namespace().to_owned();
        let role_namespace = if text(&["roleRef", "kind"]) == "Role" { namespace.clone() } else { String::new() };
        let (mut users, mut groups) = (BTreeMap::new(), BTreeMap::new());
        for s in o.get("subjects").and_then(Value::as_array).into_iter().flatten() {
            let name = s["name"].as_str().unwrap_or_default();
            match s["kind"].as_str().unwrap_or_default() {
                "User" => drop(users.insert(name.to_owned(), format!("User {name:?}"))),
                "Group" => drop(groups.insert(name.to_owned(), format!("Group {name:?}"))),
                "ServiceAccount" => {
                    let ns = s["namespace"].as_str().filter(|n| !n.is_empty()).unwrap_or(&namespace);
                    let subject = format!("ServiceAccount \"{name}/{ns}\"");
                    users.insert(format!("system:serviceaccount:{ns}:{name}"), subject);
                }
                _ => {}
            }
        }
        Self { name: o.name().to_owned(), role: (role_namespace, text(&["roleRef", "name"])), namespace, users, groups }
    }
}

impl PolicyRule {
    /// Reads a rule of a role.
    pub fn read(v: &Value) -> Self {
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

    /// As serialized by the API.
    pub fn to_value(&self) -> Value {
        let fields = [
            ("verbs", &self.verbs),
            ("apiGroups", &self.groups),
            ("resources", &self.resources),
            ("resourceNames", &self.names),
            ("nonResourceURLs", &self.urls),
        ];
        let present = fields.into_iter().filter(|(k, l)| *k == "verbs" || !l.is_empty());
        present.map(|(k, l)| (k.to_owned(), l.clone().into())).collect::<serde_json::Map<String, Value>>().into()
    }

    /// Whether the rule allows a request.
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
    /// Adds or replaces a Role or ClusterRole.
    pub fn put_role(&mut self, o: &Object) {
        let rules = o.get("rules").and_then(Value::as_array).into_iter().flatten().map(PolicyRule::read).collect();
        self.roles.insert((o.namespace().to_owned(), o.name().to_owned()), rules);
    }

    /// Removes a role; `namespace` is empty for a ClusterRole.
    pub fn remove_role(&mut self, namespace: &str, name: &str) {
        self.roles.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Adds or replaces a RoleBinding or ClusterRoleBinding.
    pub fn put_binding(&mut self, o: &Object) {
        self.remove_binding(o.namespace(), o.name());
        let b = Arc::new(Binding::read(o));
        for (subjects, index) in [(&b.users, &mut self.by_user), (&b.groups, &mut self.by_group)] {
            for (subject, to) in subjects {
                let (namespace, role) = (b.namespace.clone(), b.role.clone());
                let grant = Grant { namespace, role, binding: b.name.clone(), to: to.clone() };
                let of_subject = index.entry(subject.clone()).or_default();
                of_subject.entry(b.namespace.clone()).or_default().insert(b.name.clone(), Arc::new(grant));
            }
        }
        self.bindings.insert((b.namespace.clone(), b.name.clone()), b);
    }

    /// Removes a binding; `namespace` is empty for a ClusterRoleBinding.
    pub fn remove_binding(&mut self, namespace: &str, name: &str) {
        let Some(b) = self.bindings.remove(&(namespace.to_owned(), name.to_owned())) else { return };
        for (subjects, index) in [(&b.users, &mut self.by_user), (&b.groups, &mut self.by_group)] {
            for subject in subjects.keys() {
                let Some(of_subject) = index.get_mut(subject) else { continue };
                if let Some(here) = of_subject.get_mut(namespace) {
                    here.remove(name);
                    if here.is_empty() {
                        of_subject.remove(namespace);
                    }
                }
                if of_subject.is_empty() {
                    index.remove(subject);
                }
            }
        }
    }

    /// Whether a cluster role, bound or not, allows a request.
    pub fn role_allows(&self, role: &str, a: &Attributes) -> bool {
        self.roles.get(&(String::new(), role.to_owned())).is_some_and(|rules| rules.iter().any(|r| r.allows(a)))
    }

    /// The cluster-wide grants of a user, then those in the namespace.
    fn grants<'a>(&'a self, user: &'a User, namespace: &'a str) -> impl Iterator<Item = &'a Grant> {
        let here = Some(namespace).filter(|n| !n.is_empty());
        [Some(""), here].into_iter().flatten().flat_map(move |namespace| {
            let by_group = user.groups.iter().filter_map(|g| self.by_group.get(g));
            let all = self.by_user.get(&user.name).into_iter().chain(by_group);
            all.filter_map(move |s| s.get(namespace)).flat_map(|bindings| bindings.values().map(Arc::as_ref))
        })
    }

    /// The rules of each role of a user in a namespace (empty: cluster-wide), with its first grant. A role bound
    /// several times is returned once.
    fn roles_of<'a>(
        &'a self,
        user: &'a User,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a Grant, &'a Arc<[PolicyRule]>)> {
        let mut seen = HashSet::new();
        let all = self.grants(user, namespace).filter_map(|g| Some((g, self.roles.get(&g.role)?)));
        all.filter(move |(_, rules)| rules.len() < FEW || seen.insert(rules.as_ptr()))
    }
}

/// Roles with at most this many rules are not deduplicated.
const FEW: usize = 8;
/// After this many rules, the decision continues while another thread handles requests.
const MANY: usize = 5_000;
/// Maximum total size ([`PolicyRule::weight`]) of the rules listed for a user; the list ends with the rule that
/// exceeds it.
pub const MOST_LISTED: usize = 256 << 10;

impl PolicyRule {
    /// The approximate size of the rule in a response, in bytes.
    pub fn weight(&self) -> usize {
        let lists = [&self.verbs, &self.groups, &self.resources, &self.names, &self.urls];
        lists.into_iter().flatten().map(|text| text.len() + 8).sum::<usize>() + 32
    }
}

impl Authorizer for Rbac {
    fn authorize(&self, a: &Attributes) -> Decision {
        // The group `system:masters` needs no role.
        if a.user.is_in(meta::user::GROUP_MASTERS) {
            return Decision::Allow(String::new());
        }
        let mut roles = self.roles_of(&a.user, &a.namespace);
        let allows = |(_, rules): &(&Grant, &Arc<[PolicyRule]>)| rules.iter().any(|r| r.allows(a));
        let mut looked_at = 0;
        let found = loop {
            let Some(role) = roles.next() else { break None };
            if allows(&role) {
                break Some(role);
            }
            looked_at += role.1.len();
            if looked_at > MANY {
                break in_place::long(|| roles.find(allows));
            }
        };
        found.map_or(Decision::NoOpinion(String::new()), |(grant, _)| Decision::Allow(grant.why()))
    }

    fn rules(&self, user: &User, namespace: &str) -> Vec<PolicyRule> {
        let mut rules = Vec::new();
        let mut listed = 0;
        for rule in self.roles_of(user, namespace).flat_map(|(_, rules)| rules.iter()) {
            rules.push(rule.clone());
            listed += rule.weight();
            if listed > MOST_LISTED {
                break;
            }
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
        r.put_role(&object(json!({"metadata": {"name": "reader"}, "rules": [
            {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "pods/log"]},
            {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["one"]},
            {"verbs": ["get"], "nonResourceURLs": ["/healthz", "/apis/*"]}]})));
        r.put_binding(&object(json!({"metadata": {"name": "b", "namespace": "x"},
            "roleRef": {"kind": "ClusterRole", "name": "reader"},
            "subjects": [{"kind": "ServiceAccount", "name": "sa"}, {"kind": "Group", "name": "team"}]})));
        r
    }

    #[test]
    fn who_gave_a_permission_is_told() {
        let mut r = rbac();
        let binding = json!({"metadata": {"name": "c"}, "roleRef": {"kind": "ClusterRole", "name": "reader"},
            "subjects": [{"kind": "User", "name": "eve"}]});
        r.put_binding(&Object::from_value(binding).unwrap());
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
        for (user, group, expected) in cases {
            assert_eq!(why(user, group), expected);
        }
    }

    fn allowed(user: &User, verb: &str, ns: &str, resource: &str, sub: &str, name: &str) -> bool {
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
        assert!(allowed(&sa, "get", "x", "pods", "", "p") && allowed(&sa, "get", "x", "pods", "log", "p"));
        assert!(!allowed(&sa, "get", "y", "pods", "", "p") && !allowed(&sa, "delete", "x", "pods", "", "p"));
        assert!(!allowed(&sa, "get", "x", "pods", "exec", "p") && !allowed(&sa, "get", "", "pods", "", ""));
        assert!(allowed(&sa, "get", "x", "secrets", "", "one") && !allowed(&sa, "list", "x", "secrets", "", ""));
        assert!(!allowed(&sa, "get", "x", "secrets", "", "two"));
        let team = User::new("someone", &["team"]);
        assert!(allowed(&team, "list", "x", "pods", "", ""));
        assert!(!allowed(&User::new("other", &[]), "list", "x", "pods", "", ""));
        assert!(allowed(&User::new("root", &["system:masters"]), "delete", "y", "nodes", "", "n"));
    }

    #[test]
    fn a_role_that_is_bound_many_times_counts_once() {
        let mut r = Rbac::default();
        let object = |v: Value| Object::from_value(v).unwrap();
        let rule = |n: usize| json!({"verbs": ["get"], "apiGroups": [""], "resources": [format!("r{n}")]});
        for role in 0..2 {
            let rules: Vec<Value> = (0..40_000).map(|n| rule(role * 40_000 + n)).collect();
            let name = format!("role{role}");
            r.put_role(&object(json!({"metadata": {"name": name, "namespace": "x"}, "rules": rules})));
            for n in 0..100 {
                r.put_binding(&object(json!({"metadata": {"name": format!("b{role}-{n}"), "namespace": "x"},
                    "roleRef": {"kind": "Role", "name": name}, "subjects": [{"kind": "User", "name": "joe"}]})));
            }
        }
        let joe = User::new("joe", &[]);
        let listed = r.rules(&joe, "x");
        let weights: Vec<usize> = listed.iter().map(PolicyRule::weight).collect();
        let (last, others) = weights.split_last().unwrap();
        let before: usize = others.iter().sum();
        assert!(before <= MOST_LISTED && before + last > MOST_LISTED && listed.len() > 2_000, "{}", listed.len());
        let decide = |resource: &str| {
            let (verb, namespace, resource) = ("get".into(), "x".into(), resource.into());
            r.authorize(&Attributes { user: joe.clone(), verb, namespace, resource, ..Attributes::default() })
        };
        assert!(decide("r1").allowed() && decide("r79999").allowed() && !decide("r80000").allowed());
        let Decision::Allow(why) = decide("r79999") else { panic!("refused") };
        assert_eq!(why, "RBAC: allowed by RoleBinding \"b1-0/x\" of Role \"role1\" to User \"joe\"");
    }

    #[test]
    fn what_changed_takes_the_place_of_what_was() {
        let mut r = rbac();
        let sa = User::new("system:serviceaccount:x:sa", &[]);
        let allowed = |r: &Rbac, user: &User, namespace: &str| {
            let (verb, resource) = ("list".into(), "pods".into());
            let a =
                Attributes { user: user.clone(), verb, resource, namespace: namespace.into(), ..Attributes::default() };
            r.authorize(&a).allowed()
        };
        let before = r.clone();
        let binding = |subjects: Value| {
            let role = json!({"kind": "ClusterRole", "name": "reader"});
            Object::from_value(
                json!({"metadata": {"name": "b", "namespace": "x"}, "roleRef": role, "subjects": subjects}),
            )
        };
        r.put_binding(&binding(json!([{"kind": "Group", "name": "team"}, {"kind": "Group", "name": "team"}])).unwrap());
        let team = User::new("someone", &["team"]);
        assert_eq!((allowed(&r, &sa, "x"), allowed(&r, &team, "x"), allowed(&r, &team, "y")), (false, true, false));
        assert_eq!(r.rules(&team, "x").len(), 3, "a subject that comes twice counts once");
        r.remove_role("", "reader");
        assert!(!allowed(&r, &team, "x"));
        assert!(allowed(&before, &sa, "x"), "a copy stays what it was");
        r.remove_binding("x", "b");
        r.remove_binding("x", "b");
        assert!(r.by_user.is_empty() && r.by_group.is_empty() && r.bindings.is_empty() && r.roles.is_empty());
    }
}
