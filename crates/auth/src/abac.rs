//! Attribute-based access control: a file of policies, one JSON object per line (`k8s.io/kubernetes/pkg/auth/authorizer/abac`).
//!
//! Reads policies of `abac.authorization.kubernetes.io/v1beta1` and the older unversioned form. Policies only allow;
//! everything else is left to the next authorizer. Not implemented: reloading; like upstream, the file is read once
//! at startup.

use crate::attributes::Attributes;
use crate::rbac::PolicyRule;
use crate::{Authorizer, Decision, User, user};
use serde_json::{Map, Value};

const VERSIONS: [&str; 2] = ["abac.authorization.kubernetes.io/v1beta1", "abac.authorization.kubernetes.io/v0"];
const MEMBERS: [&str; 7] = ["user", "group", "readonly", "apiGroup", "resource", "namespace", "nonResourcePath"];
const READING: [&str; 3] = ["get", "list", "watch"];

/// One line of the file. An empty field matches only empty values, and `*` matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Policy {
    user: String,
    group: String,
    readonly: bool,
    api_group: String,
    resource: String,
    namespace: String,
    path: String,
}

/// The policies of an ABAC policy file; any of them may allow a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies(Vec<Policy>);

impl Policies {
    /// Parses the lines of a file; skips empty lines and comments (`#`).
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().enumerate().map(|(i, l)| (i + 1, l.trim()));
        let policy_lines = lines.filter(|(_, l)| !l.is_empty() && !l.starts_with('#'));
        policy_lines
            .map(|(i, l)| Policy::parse(l).map_err(|why| format!("error reading policy file line {i}: {l}: {why}")))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl Policy {
    fn parse(line: &str) -> Result<Self, String> {
        let line: Map<String, Value> = serde_json::from_str(line).map_err(|e| e.to_string())?;
        let text = |m: &Map<String, Value>, k: &str| match m.get(k) {
            None | Some(Value::Null) => Ok(String::new()),
            Some(Value::String(s)) => Ok(s.clone()),
            Some(_) => Err(format!("{k} must be a string")),
        };
        let (version, kind) = (text(&line, "apiVersion")?, text(&line, "kind")?);
        let unversioned = version.is_empty() && kind.is_empty();
        if !unversioned && (kind != "Policy" || !VERSIONS.contains(&version.as_str())) {
            return Err(format!("no kind {kind:?} is registered for version {version:?}"));
        }
        let old = unversioned || version == VERSIONS[1];
        let spec = match line.get("spec") {
            _ if old => &line,
            Some(Value::Object(spec)) => spec,
            None | Some(Value::Null) => &Map::new(),
            Some(_) => return Err("spec must be an object".into()),
        };
        if let Some(k) =
            spec.keys().find(|k| !MEMBERS.contains(&k.as_str()) && (!old || *k != "apiVersion" && *k != "kind"))
        {
            return Err(format!("unknown field {k:?}"));
        }
        let readonly = match spec.get("readonly") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(b)) => *b,
            Some(_) => return Err("readonly must be a boolean".into()),
        };
        let text = |k| text(spec, k);
        let mut p = Self {
            user: text("user")?,
            group: text("group")?,
            readonly,
            api_group: text("apiGroup")?,
            resource: text("resource")?,
            namespace: text("namespace")?,
            path: text("nonResourcePath")?,
        };
        let everybody = p.user == "*" || p.group == "*" || old && p.user.is_empty() && p.group.is_empty();
        if everybody {
            (p.user, p.group) = (String::new(), user::GROUP_AUTHENTICATED.into());
        }
        if old {
            // Fields that the older form omits match everything.
            let all = || "*".to_owned();
            p.api_group = all();
            p.path = if p.namespace.is_empty() && p.resource.is_empty() { all() } else { String::new() };
            for part in [&mut p.namespace, &mut p.resource] {
                if part.is_empty() {
                    *part = all();
                }
            }
        }
        Ok(p)
    }

    /// The user and the group of a policy must both match.
    fn is_of(&self, user: &User) -> bool {
        let named = !self.user.is_empty() || !self.group.is_empty();
        named && (self.user.is_empty() || self.user == user.name) && (self.group.is_empty() || user.is_in(&self.group))
    }

    fn allows(&self, a: &Attributes) -> bool {
        if !self.is_of(&a.user) || self.readonly && !READING.contains(&a.verb.as_str()) {
            return false;
        }
        let is = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        if a.resource.is_empty() {
            let below = self.path.strip_suffix('*').is_some_and(|p| a.path.starts_with(p));
            return below || self.path == a.path;
        }
        is(&self.namespace, &a.namespace) && is(&self.resource, &a.resource) && is(&self.api_group, &a.group)
    }

    /// The policies as rules, for SelfSubjectRulesReview.
    fn rules(&self, namespace: &str) -> Vec<PolicyRule> {
        let verbs = || if self.readonly { READING.map(str::to_owned).to_vec() } else { vec!["*".to_owned()] };
        let mut all = Vec::new();
        if !self.resource.is_empty() && (self.namespace == "*" || self.namespace == namespace) {
            let (groups, resources) = (vec![self.api_group.clone()], vec![self.resource.clone()]);
            all.push(PolicyRule { verbs: verbs(), groups, resources, ..PolicyRule::default() });
        }
        if !self.path.is_empty() {
            all.push(PolicyRule { verbs: verbs(), urls: vec![self.path.clone()], ..PolicyRule::default() });
        }
        all
    }
}

impl Authorizer for Policies {
    fn authorize(&self, a: &Attributes) -> Decision {
        if self.0.iter().any(|p| p.allows(a)) {
            return Decision::Allow(String::new());
        }
        Decision::NoOpinion("No policy matched.".into())
    }

    fn rules(&self, user: &User, namespace: &str) -> Vec<PolicyRule> {
        self.0.iter().filter(|p| p.is_of(user)).flat_map(|p| p.rules(namespace)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the documentation, and the older form.
    const FILE: &str = r#"
# Who may do what
{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"user": "alice", "namespace": "*", "resource": "*", "apiGroup": "*"}}
{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"user": "kubelet", "namespace": "*", "resource": "pods", "readonly": true}}
{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"user": "kubelet", "namespace": "*", "resource": "events"}}
{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"user": "bob", "namespace": "projectCaribou", "resource": "pods", "readonly": true}}
{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"group": "system:authenticated", "readonly": true, "nonResourcePath": "/version"}}
{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"user": "*", "readonly": true, "nonResourcePath": "/healthz*"}}
{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"user": "eve", "group": "night", "namespace": "*", "resource": "secrets"}}
{"user": "old", "readonly": true}
{"user": "older", "namespace": "a", "resource": "pods"}
"#;

    fn user_in(name: &str, groups: &[&str]) -> User {
        User { name: name.into(), groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..User::default() }
    }

    fn may(policies: &Policies, user: &str, groups: &[&str], verb: &str, what: &str) -> bool {
        let mut a = Attributes { user: user_in(user, groups), verb: verb.into(), ..Attributes::default() };
        if what.starts_with('/') {
            a.path = what.into();
        } else {
            let parts: Vec<&str> = what.split(' ').collect();
            (a.group, a.resource, a.namespace) = (parts[0].replace('-', ""), parts[1].into(), parts[2].into());
        }
        policies.authorize(&a).allowed()
    }

    #[test]
    fn policies_allow_what_they_say() {
        let p = Policies::parse(FILE).unwrap();
        let yes = [
            ("alice", "delete", "apps deployments x"),
            ("kubelet", "list", "- pods x"),
            ("kubelet", "create", "- events x"),
            ("bob", "get", "- pods projectCaribou"),
            ("anybody", "get", "/version"),
            ("anybody", "get", "/healthz/ping"),
            ("old", "watch", "batch jobs x"),
            ("old", "get", "/anything"),
            ("older", "delete", "- pods a"),
        ];
        for (user, verb, what) in yes {
            assert!(may(&p, user, &["system:authenticated"], verb, what), "{user} {verb} {what}");
        }
        let no = [
            ("alice", "get", "/metrics"),
            ("kubelet", "create", "- pods x"),
            ("kubelet", "create", "events.k8s.io events x"),
            ("bob", "get", "- pods other"),
            ("anybody", "post", "/version"),
            ("anybody", "get", "/version/x"),
            ("eve", "get", "- secrets x"),
            ("old", "create", "batch jobs x"),
            ("older", "get", "/anything"),
        ];
        for (user, verb, what) in no {
            assert!(!may(&p, user, &["system:authenticated"], verb, what), "{user} {verb} {what}");
        }
        assert!(!may(&p, "anonymous", &["system:unauthenticated"], "get", "/version"));
        assert!(may(&p, "eve", &["night"], "get", "- secrets x"), "who is named must be all of it");
    }

    #[test]
    fn rules_say_the_same() {
        let p = Policies::parse(FILE).unwrap();
        let rules = p.rules(&user_in("bob", &["system:authenticated"]), "projectCaribou");
        assert_eq!(
            (rules.len(), &rules[0].verbs[..], &rules[0].resources[..]),
            (3, &READING.map(str::to_owned)[..], &["pods".to_owned()][..])
        );
        assert_eq!(p.rules(&user_in("bob", &[]), "other"), []);
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "{",
            "[]",
            r#"{"apiVersion": "v1", "kind": "Policy", "spec": {}}"#,
            r#"{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"usr": "x"}}"#,
            r#"{"user": 1}"#,
            r#"{"user": "a", "readonly": "yes"}"#,
        ] {
            let text = format!("# first\n{bad}\n");
            let why = Policies::parse(&text).unwrap_err();
            assert!(why.starts_with("error reading policy file line 2"), "{why}");
        }
    }
}
