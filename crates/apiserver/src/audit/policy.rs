//! The policy of `--audit-policy-file`: which requests to record, and at which level
//! (`k8s.io/apiserver/pkg/audit/policy`). The first matching rule decides.

use auth::Attributes;
use meta::{FieldError, FieldPath, Value, names};
use serde::Deserialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    #[default]
    None,
    Metadata,
    Request,
    RequestResponse,
}

const LEVELS: [(&str, Level); 4] = [
    ("None", Level::None),
    ("Metadata", Level::Metadata),
    ("Request", Level::Request),
    ("RequestResponse", Level::RequestResponse),
];

impl Level {
    pub fn as_str(self) -> &'static str {
        LEVELS.iter().find(|(_, l)| *l == self).map_or("", |(n, _)| n)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    RequestReceived,
    /// Only for watches and streams.
    ResponseStarted,
    ResponseComplete,
    Panic,
}

const STAGES: [(&str, Stage); 4] = [
    ("RequestReceived", Stage::RequestReceived),
    ("ResponseStarted", Stage::ResponseStarted),
    ("ResponseComplete", Stage::ResponseComplete),
    ("Panic", Stage::Panic),
];

impl Stage {
    pub fn as_str(self) -> &'static str {
        STAGES.iter().find(|(_, s)| *s == self).map_or("", |(n, _)| n)
    }
}

/// The result of a policy for one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestAuditConfig {
    pub level: Level,
    pub omit: Vec<Stage>,
    pub omit_managed_fields: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed decoding: {0}")]
    Decode(String),
    #[error("unknown group version field {0} in policy")]
    Kind(String),
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Invalid(Vec<FieldError>),
    #[error("loaded illegal policy with 0 rules")]
    Empty,
}

/// A parsed and validated policy.
#[derive(Debug, Default)]
pub struct Policy {
    rules: Vec<Rule>,
    otherwise: RequestAuditConfig,
}

#[derive(Debug)]
struct Rule {
    matches: Matches,
    audit_config: RequestAuditConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct File {
    api_version: String,
    kind: String,
    rules: Vec<Written>,
    omit_stages: Vec<String>,
    omit_managed_fields: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Written {
    level: String,
    omit_stages: Vec<String>,
    omit_managed_fields: Option<bool>,
    #[serde(flatten)]
    matches: Matches,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Matches {
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<Resources>,
    namespaces: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Resources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

impl Policy {
    /// Parses YAML or JSON.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let documents = codec::yaml::parse(text).map_err(|e| Error::Decode(e.to_string()))?;
        let value = documents.into_iter().find(|d| !d.is_null()).unwrap_or(Value::Null);
        let file: File = serde_json::from_value(value).map_err(|e| Error::Decode(e.to_string()))?;
        if (file.api_version.as_str(), file.kind.as_str()) != ("audit.k8s.io/v1", "Policy") {
            return Err(Error::Kind(format!("{}, Kind={}", file.api_version, file.kind)));
        }
        let mut errors = Vec::new();
        let everywhere = stages(&file.omit_stages, &FieldPath::new("omitStages"), &mut errors);
        let mut rules = Vec::new();
        for (i, r) in file.rules.into_iter().enumerate() {
            let path = FieldPath::new("rules").index(i);
            let level = level(&r.level, &path.child("level"), &mut errors);
            check(&r.matches, &path, &mut errors);
            let mut omit = stages(&r.omit_stages, &path.child("omitStages"), &mut errors);
            omit.extend(&everywhere);
            let omit_managed_fields = r.omit_managed_fields.unwrap_or(file.omit_managed_fields);
            rules.push(Rule {
                matches: r.matches,
                audit_config: RequestAuditConfig { level, omit, omit_managed_fields },
            });
        }
        if !errors.is_empty() {
            return Err(Error::Invalid(errors));
        }
        if rules.is_empty() {
            return Err(Error::Empty);
        }
        Ok(Self { rules, otherwise: RequestAuditConfig { omit: everywhere, ..RequestAuditConfig::default() } })
    }

    pub fn evaluate(&self, a: &Attributes) -> &RequestAuditConfig {
        self.rules.iter().find(|r| r.matches.all(a)).map_or(&self.otherwise, |r| &r.audit_config)
    }
}

fn level(text: &str, path: &FieldPath, errors: &mut Vec<FieldError>) -> Level {
    match LEVELS.iter().find(|(n, _)| *n == text) {
        Some((_, l)) => *l,
        None => {
            errors.push(match text {
                "" => FieldError::required(path, ""),
                other => FieldError::not_supported(path, other, &LEVELS.map(|(n, _)| n)),
            });
            Level::None
        }
    }
}

fn stages(list: &[String], path: &FieldPath, errors: &mut Vec<FieldError>) -> Vec<Stage> {
    let mut out = Vec::new();
    for (i, text) in list.iter().enumerate() {
        match STAGES.iter().find(|(n, _)| n == text) {
            Some((_, s)) => out.push(*s),
            None => {
                let why = format!("allowed stages are {}", STAGES.map(|(n, _)| n).join(","));
                errors.push(FieldError::invalid(&path.index(i), text.as_str(), why));
            }
        }
    }
    out
}

fn check(m: &Matches, path: &FieldPath, errors: &mut Vec<FieldError>) {
    let urls = path.child("nonResourceURLs");
    for (i, url) in m.non_resource_urls.iter().enumerate().filter(|(_, u)| *u != "*") {
        if !url.starts_with('/') {
            let why = "non-resource URL rules must begin with a '/' character";
            errors.push(FieldError::invalid(&urls.index(i), url.as_str(), why));
        }
        if url.char_indices().any(|(at, c)| c == '*' && at + 1 < url.len()) {
            let why = "non-resource URL wildcards '*' must be the final character of the rule";
            errors.push(FieldError::invalid(&urls.index(i), url.as_str(), why));
        }
    }
    for r in &m.resources {
        let at = path.child("resources");
        if !r.group.is_empty() && r.group != "*" {
            let wrong = names::dns_subdomain(&r.group);
            if !wrong.is_empty() {
                errors.push(FieldError::invalid(&at.child("group"), r.group.as_str(), wrong.join(",")));
            }
        }
        if !r.resource_names.is_empty() && r.resources.is_empty() {
            let why = "using resourceNames requires at least one resource";
            errors.push(FieldError::invalid(&at.child("resourceNames"), r.resource_names.clone(), why));
        }
    }
    if !m.non_resource_urls.is_empty() && (!m.resources.is_empty() || !m.namespaces.is_empty()) {
        let why = "rules cannot apply to both regular resources and non-resource URLs";
        errors.push(FieldError::invalid(&urls, m.non_resource_urls.clone(), why));
    }
}

/// An empty list matches everything.
fn allows(list: &[String], value: &str) -> bool {
    list.is_empty() || list.iter().any(|v| v == value)
}

impl Matches {
    fn all(&self, a: &Attributes) -> bool {
        allows(&self.users, &a.user.name)
            && (self.user_groups.is_empty() || self.user_groups.iter().any(|g| a.user.is_in(g)))
            && allows(&self.verbs, &a.verb)
            && self.what(a)
    }

    fn what(&self, a: &Attributes) -> bool {
        let resource = !a.resource.is_empty();
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return resource
                && allows(&self.namespaces, &a.namespace)
                && (self.resources.is_empty() || self.resources.iter().any(|r| r.has(a)));
        }
        if self.non_resource_urls.is_empty() {
            return true;
        }
        let path = |spec: &String| *spec == a.path || spec.strip_suffix('*').is_some_and(|p| a.path.starts_with(p));
        !resource && self.non_resource_urls.iter().any(path)
    }
}

impl Resources {
    fn has(&self, a: &Attributes) -> bool {
        if self.group != "*" && self.group != a.group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        if !allows(&self.resource_names, &a.name) {
            return false;
        }
        self.resources.iter().any(|r| match r.split_once('/') {
            None => r == "*" || (*r == a.resource && a.subresource.is_empty()),
            Some(("*", sub)) => sub == a.subresource,
            Some((resource, "*")) => resource == a.resource,
            Some((resource, sub)) => resource == a.resource && sub == a.subresource,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use auth::User;

    const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [system:kube-proxy]
  verbs: [watch]
  resources: [{group: '', resources: [endpoints, services]}]
- level: None
  nonResourceURLs: ['/healthz*', /version]
- level: Metadata
  resources: [{group: '', resources: [secrets, configmaps]}]
  omitManagedFields: true
- level: Request
  resources: [{group: '', resources: ['pods/*']}]
  omitStages: [ResponseStarted]
- level: RequestResponse
  namespaces: [kube-system]
  resources: [{group: apps}, {group: '*', resources: ['*/scale', jobs], resourceNames: [one]}]
- level: Metadata
  userGroups: [auditors]
";

    fn attributes(user: &str, verb: &str, what: &str, namespace: &str, name: &str) -> Attributes {
        let (user, group) = user.split_once('/').unwrap_or((user, "others"));
        let mut a = Attributes {
            user: User::new(user, &[group]),
            verb: verb.into(),
            namespace: namespace.into(),
            name: name.into(),
            ..Attributes::default()
        };
        match what.strip_prefix('/') {
            Some(_) => a.path = what.into(),
            None => {
                let mut parts = what.split(':');
                a.group = parts.next().unwrap_or_default().into();
                a.resource = parts.next().unwrap_or_default().into();
                a.subresource = parts.next().unwrap_or_default().into();
            }
        }
        a
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let p = Policy::parse(POLICY).unwrap();
        let check = |a: Attributes, level: Level| assert_eq!(p.evaluate(&a).level, level, "{a:?}");
        check(attributes("system:kube-proxy", "watch", ":services", "", ""), Level::None);
        check(attributes("x/auditors", "watch", ":services", "", ""), Level::Metadata);
        check(attributes("x", "get", "/healthz/etcd", "", ""), Level::None);
        check(attributes("x/auditors", "get", "/healthz/etcd", "", ""), Level::None);
        check(attributes("x/auditors", "get", "/metrics", "", ""), Level::Metadata);
        check(attributes("x", "get", ":secrets", "a", "s"), Level::Metadata);
        check(attributes("x", "create", ":pods:exec", "a", "p"), Level::Request);
        check(attributes("x", "get", "apps:deployments", "kube-system", "d"), Level::RequestResponse);
        check(attributes("x", "get", "apps:deployments", "default", "d"), Level::None);
        check(attributes("x", "update", "apps:deployments:scale", "kube-system", "d"), Level::RequestResponse);
        check(attributes("x", "get", "batch:jobs", "kube-system", "one"), Level::RequestResponse);
        check(attributes("x", "get", "batch:jobs", "kube-system", "two"), Level::None);
        let secret = p.evaluate(&attributes("x", "get", ":secrets", "a", "s"));
        assert!(secret.omit_managed_fields && secret.omit == [Stage::RequestReceived]);
        let pod = p.evaluate(&attributes("x", "get", ":pods:log", "a", "p"));
        assert_eq!(pod.omit, [Stage::ResponseStarted, Stage::RequestReceived]);
        assert!(!pod.omit_managed_fields);
    }

    #[test]
    fn mistakes_are_told() {
        let check = |text: &str, expected: &str| {
            let error = Policy::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        let head = "apiVersion: audit.k8s.io/v1\nkind: Policy\n";
        check("kind: Policy\napiVersion: audit.k8s.io/v1beta1", "unknown group version field audit.k8s.io/v1beta1");
        check(head, "loaded illegal policy with 0 rules");
        check(&format!("{head}rules: [{{}}]"), "rules[0].level: Required value");
        check(&format!("{head}rules: [{{level: All}}]"), "rules[0].level: Unsupported value: \"All\"");
        check(&format!("{head}rules: [{{level: None, nonResourceURLs: [healthz, '/a*b']}}]"), "must begin with a '/'");
        check(&format!("{head}rules: [{{level: None, nonResourceURLs: ['/a*b']}}]"), "must be the final character");
        check(&format!("{head}omitStages: [Never]\nrules: [{{level: None}}]"), "allowed stages are RequestReceived,");
        check(
            &format!("{head}rules: [{{level: None, nonResourceURLs: [/a], namespaces: [b]}}]"),
            "cannot apply to both",
        );
    }
}
