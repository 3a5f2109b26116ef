//! Creates roles and their bindings.

use super::{Generator, Needs, Resolved, WriteFlags};
use crate::error::{Result, text};
use meta::{Map, Value};
use serde_json::json;

const RBAC: &str = "rbac.authorization.k8s.io";

/// Splits `pods`, `deployments.apps`, `pods/log` into resource and subresource, and returns the resources.
fn words(resources: &[String]) -> Vec<&str> {
    effective(resources).iter().filter(|r| wildcard(r).is_none()).map(|r| r.split('/').next().unwrap_or(r)).collect()
}

/// Returns only `*` if it is among the resources.
fn effective(resources: &[String]) -> &[String] {
    let all = resources.iter().position(|r| r == "*");
    all.map_or(resources, |i| &resources[i..=i])
}

/// Returns group and name of `*`, `*.apps` or `*/scale`, which are not looked up on the server.
fn wildcard(resource: &str) -> Option<(String, String)> {
    let (name, sub) = resource.split_once('/').unwrap_or((resource, ""));
    let (name, group) = name.split_once('.').unwrap_or((name, ""));
    let sub = if sub.is_empty() { String::new() } else { format!("/{sub}") };
    (name == "*").then(|| (group.to_owned(), format!("*{sub}")))
}

/// Builds the rules for the resolved resources, one rule per group.
fn rules(verbs: &[String], resources: &[String], names: &[String], resolved: Resolved<'_>) -> Result<Vec<Value>> {
    let Resolved::Resources(resolved) = resolved else { return Ok(Vec::new()) };
    let resources = effective(resources);
    let mut resolved = resolved.into_iter();
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for r in resources {
        let (group, name) = match wildcard(r) {
            Some(all) => all,
            None => {
                let Some(of) = resolved.next() else { continue };
                for (verb, only) in SPECIAL.iter().filter(|(v, _)| verbs.iter().any(|given| given == v)) {
                    if !only.contains(&(of.group.as_str(), of.plural.as_str())) {
                        return text(format!("can not perform '{verb}' on '{}' in group '{}'", of.plural, of.group));
                    }
                }
                let sub = r.split_once('/').filter(|(_, s)| !s.is_empty());
                let sub = sub.map(|(_, s)| format!("/{s}")).unwrap_or_default();
                (of.group.clone(), format!("{}{sub}", of.plural))
            }
        };
        match groups.iter_mut().find(|(g, _)| *g == group) {
            Some((_, all)) if all.contains(&name) => {}
            Some((_, all)) => all.push(name),
            None => groups.push((group, vec![name])),
        }
    }
    let verbs: Vec<&String> = if verbs.iter().any(|v| v == "*") {
        verbs.iter().filter(|v| *v == "*").take(1).collect()
    } else {
        let mut seen = Vec::new();
        for v in verbs {
            if !seen.contains(&v) {
                seen.push(v);
            }
        }
        seen
    };
    groups.sort();
    Ok(groups
        .into_iter()
        .map(|(g, r)| {
            let mut rule = json!({"apiGroups": [g], "resources": r, "verbs": verbs});
            if !names.is_empty() {
                rule["resourceNames"] = names.to_vec().into();
            }
            rule
        })
        .collect())
}

/// Known verbs of resources.
const VERBS: [&str; 14] = [
    "*",
    "get",
    "delete",
    "list",
    "create",
    "update",
    "patch",
    "watch",
    "proxy",
    "deletecollection",
    "use",
    "bind",
    "escalate",
    "impersonate",
];

/// Verbs that are valid for a few resources only.
const SPECIAL: [(&str, &[(&str, &str)]); 4] = [
    ("use", &[("policy", "podsecuritypolicies"), ("extensions", "podsecuritypolicies")]),
    ("bind", &[(RBAC, "roles"), (RBAC, "clusterroles")]),
    ("escalate", &[(RBAC, "roles"), (RBAC, "clusterroles")]),
    ("impersonate", &[("", "users"), ("", "serviceaccounts"), ("", "groups"), ("authentication.k8s.io", "userextras")]),
];

/// Known verbs of non-resource URLs.
const PATH_VERBS: [&str; 8] = ["*", "get", "post", "put", "delete", "patch", "head", "options"];

impl RuleFlags {
    fn unknown_verbs(&self) -> Vec<String> {
        let unknown = self.verb.iter().filter(|v| !self.resource.is_empty() && !VERBS.contains(&v.as_str()));
        unknown.map(|v| format!("Warning: '{v}' is not a standard resource verb")).collect()
    }
}

/// Flags for the rule of a role.
#[derive(clap::Args, Clone, Debug)]
pub struct RuleFlags {
    /// Allowed verbs.
    #[arg(long, value_delimiter = ',')]
    pub verb: Vec<String>,
    /// RESOURCE, RESOURCE.GROUP or RESOURCE/SUBRESOURCE.
    #[arg(long, value_delimiter = ',')]
    pub resource: Vec<String>,
    /// Only objects with these names.
    #[arg(long)]
    pub resource_name: Vec<String>,
}

#[derive(clap::Args, Clone, Debug)]
pub struct Role {
    /// Name of the role.
    pub name: String,
    #[command(flatten)]
    pub rule: RuleFlags,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for Role {
    fn needs(&self) -> Needs<'_> {
        Needs::Resources(words(&self.rule.resource))
    }

    fn warnings(&self) -> Vec<String> {
        self.rule.unknown_verbs()
    }

    fn build(&self) -> Result<Value> {
        self.build_with(Resolved::Nothing)
    }

    fn build_with(&self, resolved: Resolved<'_>) -> Result<Value> {
        if self.rule.verb.is_empty() {
            return text("at least one verb must be specified");
        }
        if self.rule.resource.is_empty() {
            return text("at least one resource must be specified");
        }
        let rules = rules(&self.rule.verb, &self.rule.resource, &self.rule.resource_name, resolved)?;
        Ok(json!({"apiVersion": format!("{RBAC}/v1"), "kind": "Role", "metadata": {"name": self.name}, "rules": rules}))
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct ClusterRole {
    /// Name of the cluster role.
    pub name: String,
    #[command(flatten)]
    pub rule: RuleFlags,
    /// Non-resource URLs, such as /healthz.
    #[arg(long = "non-resource-url", value_delimiter = ',')]
    pub non_resource_url: Vec<String>,
    /// Labels KEY=VALUE of the roles to aggregate.
    #[arg(long, value_delimiter = ',', value_parser = pair)]
    pub aggregation_rule: Vec<String>,
    #[command(flatten)]
    pub write: WriteFlags,
}

/// Checks that the value of a flag is a pair of two texts, and returns it unchanged.
fn pair(s: &str) -> std::result::Result<String, String> {
    match s.contains('=') {
        true => Ok(s.to_owned()),
        false => Err("malformed pair, expect string=string".into()),
    }
}

impl Generator for ClusterRole {
    fn needs(&self) -> Needs<'_> {
        Needs::Resources(words(&self.rule.resource))
    }

    fn warnings(&self) -> Vec<String> {
        self.rule.unknown_verbs()
    }

    fn build(&self) -> Result<Value> {
        self.build_with(Resolved::Nothing)
    }

    fn build_with(&self, resolved: Resolved<'_>) -> Result<Value> {
        let mut o = json!({"apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": {"name": self.name}});
        let (rule, paths) = (&self.rule, &self.non_resource_url);
        if !self.aggregation_rule.is_empty() {
            if !(paths.is_empty() && rule.verb.is_empty() && rule.resource.is_empty() && rule.resource_name.is_empty())
            {
                return text(
                    "aggregation rule must be specified without nonResourceURLs, verbs, resources or resourceNames",
                );
            }
            let pairs = self.aggregation_rule.iter().filter_map(|l| l.split_once('='));
            let labels: Map<String, Value> = pairs.map(|(k, v)| (k.to_owned(), v.into())).collect();
            o["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": labels}]});
            o["rules"] = Value::Null;
            return Ok(o);
        }
        if self.rule.verb.is_empty() {
            return text("at least one verb must be specified");
        }
        if self.rule.resource.is_empty() && self.non_resource_url.is_empty() {
            return text("one of resource or nonResourceURL must be specified");
        }
        let mut all = rules(&self.rule.verb, &self.rule.resource, &self.rule.resource_name, resolved)?;
        if !paths.is_empty() {
            if let Some(v) = rule.verb.iter().find(|v| !PATH_VERBS.contains(&v.as_str())) {
                return text(format!("invalid verb: '{v}' for nonResourceURL"));
            }
            for p in paths.iter().filter(|p| *p != "*") {
                if !p.starts_with('/') {
                    return text("nonResourceURL should start with /");
                }
                if p[..p.len() - 1].contains('*') {
                    return text("nonResourceURL only supports wildcard matches when '*' is at the end");
                }
            }
            all.push(json!({"nonResourceURLs": self.non_resource_url, "verbs": self.rule.verb}));
        }
        o["rules"] = all.into();
        Ok(o)
    }
}

/// Builds the subjects of a binding.
fn subjects(users: &[String], groups: &[String], accounts: &[String]) -> Result<Vec<Value>> {
    let mut out = Vec::new();
    for (kind, all) in [("User", users), ("Group", groups)] {
        out.extend(all.iter().map(|n| json!({"apiGroup": RBAC, "kind": kind, "name": n})));
    }
    for a in accounts {
        match a.split_once(':') {
            Some((ns, name)) if !ns.is_empty() && !name.is_empty() && !name.contains(':') => {
                out.push(json!({"kind": "ServiceAccount", "name": name, "namespace": ns}));
            }
            _ => return text("serviceaccount must be <namespace>:<name>"),
        }
    }
    Ok(out)
}

fn binding(kind: &str, name: &str, role: (&str, &str), subjects: Vec<Value>) -> Value {
    let mut o = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": role.0, "name": role.1},
    });
    if !subjects.is_empty() {
        o["subjects"] = subjects.into();
    }
    o
}

#[derive(clap::Args, Clone, Debug)]
pub struct RoleBinding {
    /// Name of the role binding.
    pub name: String,
    /// Role to bind.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub role: String,
    /// Cluster role to bind.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub clusterrole: String,
    /// The users of the flag --user, which does not select a kubeconfig user here.
    #[arg(skip)]
    pub users: Vec<String>,
    /// Group to bind; may be repeated.
    #[arg(long)]
    pub group: Vec<String>,
    /// Service account NAMESPACE:NAME.
    #[arg(long)]
    pub serviceaccount: Vec<String>,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for RoleBinding {
    fn build(&self) -> Result<Value> {
        let role = match (self.role.as_str(), self.clusterrole.as_str()) {
            (r, "") if !r.is_empty() => ("Role", r),
            ("", c) if !c.is_empty() => ("ClusterRole", c),
            _ => return text("exactly one of clusterrole or role must be specified"),
        };
        Ok(binding("RoleBinding", &self.name, role, subjects(&self.users, &self.group, &self.serviceaccount)?))
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct ClusterRoleBinding {
    /// Name of the cluster role binding.
    pub name: String,
    /// Cluster role to bind.
    #[arg(long, required = true)]
    pub clusterrole: String,
    /// The users of the flag --user, which does not select a kubeconfig user here.
    #[arg(skip)]
    pub users: Vec<String>,
    /// Group to bind; may be repeated.
    #[arg(long)]
    pub group: Vec<String>,
    /// Service account NAMESPACE:NAME.
    #[arg(long)]
    pub serviceaccount: Vec<String>,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for ClusterRoleBinding {
    fn build(&self) -> Result<Value> {
        let all = subjects(&self.users, &self.group, &self.serviceaccount)?;
        Ok(binding("ClusterRoleBinding", &self.name, ("ClusterRole", &self.clusterrole), all))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};

    #[tokio::test]
    async fn checks_rules() {
        let s = Server::new();
        for (line, expected) in [
            (
                "create role r --verb=frob --resource=pods --dry-run=client -o name",
                "role.rbac.authorization.k8s.io/r\n! Warning: 'frob' is not a standard resource verb\n",
            ),
            (
                "create role r --verb=get --resource=nope --dry-run=client",
                "! the server doesn't have a resource type \"nope\"\nexit 1\n",
            ),
            (
                "create role r --verb=* --resource=*.apps,pods,*/scale --dry-run=client -o jsonpath={.rules}",
                r#"[{"apiGroups":[""],"resources":["pods","*/scale"],"verbs":["*"]},{"apiGroups":["apps"],"resources":["*"],"verbs":["*"]}]"#,
            ),
            (
                "create clusterrole r --verb=list --non-resource-url=/a --dry-run=client",
                "! error: invalid verb: 'list' for nonResourceURL\nexit 1\n",
            ),
            (
                "create clusterrole r --verb=get --non-resource-url=a --dry-run=client",
                "! error: nonResourceURL should start with /\nexit 1\n",
            ),
            (
                "create clusterrole r --verb=get --aggregation-rule=a=b --dry-run=client",
                "! error: aggregation rule must be specified without nonResourceURLs, verbs, resources or resourceNames\nexit 1\n",
            ),
            (
                "create clusterrole r --aggregation-rule=a",
                "! error: invalid argument \"a\" for \"--aggregation-rule\" flag: malformed pair, expect string=string\n! See 'kubectl create clusterrole --help' for usage.\nexit 1\n",
            ),
            ("create rolebinding b --role=r --group=a,b --dry-run=client -o jsonpath={.subjects[*].name}", "a,b"),
            ("create token t --duration=-1s", "! error: --duration must be greater than or equal to 0\nexit 1\n"),
            (
                "create token t --bound-object-kind=Foo --bound-object-name=x",
                "! error: supported --bound-object-kind values are Node, Pod, Secret\nexit 1\n",
            ),
            (
                "create pdb p --selector=a=b,!c --min-available=1 --dry-run=client -o jsonpath={.spec.selector}",
                "{\"matchExpressions\":[{\"key\":\"c\",\"operator\":\"DoesNotExist\"}],\"matchLabels\":{\"a\":\"b\"}}",
            ),
            (
                "create pdb p --selector=a!=b --min-available=1 --dry-run=client",
                "! error: \"!=\" is not a valid label selector operator\nexit 1\n",
            ),
            (
                "create job j --image=i --from=cronjob/c",
                "! error: either --image or --from must be specified\nexit 1\n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }
}
