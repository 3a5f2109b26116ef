//! Reading an `EncryptionConfiguration` (upstream: `apiserver/pkg/server/options/encryptionconfig`).

use crate::provider::{Cipher, DataKey, Provider};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

/// The error of an invalid configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text is no YAML.
    #[error(transparent)]
    Yaml(#[from] codec::yaml::Error),
    /// The document is not of the expected kind, or a field has a wrong type.
    #[error("{0}")]
    Shape(String),
    /// Every problem with its path.
    #[error("{}", .0.join("; "))]
    Invalid(Vec<String>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    kind: String,
    resources: Vec<ResourceConfiguration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourceConfiguration {
    resources: Vec<String>,
    providers: Vec<ProviderConfiguration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderConfiguration {
    aesgcm: Option<Keys>,
    aescbc: Option<Keys>,
    secretbox: Option<Keys>,
    identity: Option<Nothing>,
    kms: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    keys: Vec<Key>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    name: String,
    secret: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// The resources of a rule: one resource, those of a group, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    /// `None` for every group.
    group: Option<String>,
    /// `None` for every resource.
    resource: Option<String>,
}

impl Pattern {
    /// `secrets`, `deployments.apps`, `*.` (the core group), `*.apps`, `*.*`.
    fn parse(text: &str) -> Result<Pattern, &'static str> {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        match (resource, group) {
            ("", _) => Err("names no resource"),
            ("*", "") if !text.ends_with('.') => Err("use '*.' for the core group or '*.*' for everything"),
            ("*", "*") => Ok(Pattern { group: None, resource: None }),
            (_, "*") => Err("a resource of every group cannot be named"),
            ("*", group) => Ok(Pattern { group: Some(group.into()), resource: None }),
            (resource, _) if resource.contains(['/', '*']) => Err("subresources and parts of names cannot be named"),
            (resource, group) => Ok(Pattern { group: Some(group.into()), resource: Some(resource.into()) }),
        }
    }

    /// Whether this pattern matches everything that `other` matches.
    fn covers(&self, other: &Pattern) -> bool {
        let part = |mine: &Option<String>, theirs: &Option<String>| mine.is_none() || mine == theirs;
        part(&self.group, &other.group) && part(&self.resource, &other.resource)
    }

    /// `storage`: a storage name, `apps/deployments` or `secrets`.
    fn matches(&self, storage: &str) -> bool {
        let (group, resource) = storage.split_once('/').unwrap_or(("", storage));
        self.group.as_deref().is_none_or(|mine| mine == group)
            && self.resource.as_deref().is_none_or(|mine| mine == resource)
    }
}

struct Rule {
    patterns: Vec<Pattern>,
    providers: Vec<Provider>,
}

/// The rules of a configuration. The first rule that names a resource applies.
#[derive(Default)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Parses an `EncryptionConfiguration`. Reports all problems.
    pub fn parse(text: &str) -> Result<Rules, ConfigError> {
        let mut documents = codec::yaml::parse_strict(text)?.into_iter().filter(|document| !document.is_null());
        let (Some(document), None) = (documents.next(), documents.next()) else {
            return Err(ConfigError::Shape("one document of kind EncryptionConfiguration is expected".into()));
        };
        let document: Document =
            serde_json::from_value(document).map_err(|error| ConfigError::Shape(error.to_string()))?;
        if (&*document.api_version, &*document.kind) != ("apiserver.config.k8s.io/v1", "EncryptionConfiguration") {
            let found = format!("{}, kind {}", document.api_version, document.kind);
            let expected = "apiserver.config.k8s.io/v1, kind EncryptionConfiguration";
            return Err(ConfigError::Shape(format!("this is {found}, not {expected}")));
        }
        let mut problems = Vec::new();
        let mut rules: Vec<Rule> = Vec::new();
        for (at, configuration) in document.resources.into_iter().enumerate() {
            let path = format!("resources[{at}]");
            let rule = read_rule(&path, configuration, &rules, &mut problems);
            rules.push(rule);
        }
        if rules.is_empty() {
            problems.push("resources: at least one is required".into());
        }
        if problems.is_empty() { Ok(Rules(rules)) } else { Err(ConfigError::Invalid(problems)) }
    }

    /// The providers of a resource by its storage name; none if it is not encrypted.
    pub(crate) fn providers(&self, storage: &str) -> &[Provider] {
        let rule = self.0.iter().find(|rule| rule.patterns.iter().any(|pattern| pattern.matches(storage)));
        rule.map_or(&[], |rule| &rule.providers)
    }

    /// The providers of all rules.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &DataKey> {
        self.0.iter().flat_map(|rule| &rule.providers).flat_map(|provider| match provider {
            Provider::Keyed(keys) => keys.as_slice(),
            Provider::Identity => &[],
        })
    }
}

fn read_rule(path: &str, from: ResourceConfiguration, before: &[Rule], problems: &mut Vec<String>) -> Rule {
    let mut patterns: Vec<Pattern> = Vec::new();
    for (at, text) in from.resources.iter().enumerate() {
        match Pattern::parse(text) {
            Err(why) => problems.push(format!("{path}.resources[{at}]: {text:?}: {why}")),
            Ok(pattern) => {
                let earlier = before.iter().flat_map(|rule| &rule.patterns).chain(&patterns);
                if earlier.into_iter().any(|earlier| earlier.covers(&pattern)) {
                    problems.push(format!("{path}.resources[{at}]: {text:?}: an earlier entry covers it"));
                }
                patterns.push(pattern);
            }
        }
    }
    if from.resources.is_empty() {
        problems.push(format!("{path}.resources: at least one is required"));
    }
    if from.providers.is_empty() {
        problems.push(format!("{path}.providers: at least one is required"));
    }
    let mut providers = Vec::new();
    for (at, configuration) in from.providers.into_iter().enumerate() {
        providers.extend(read_provider(&format!("{path}.providers[{at}]"), configuration, problems));
    }
    Rule { patterns, providers }
}

fn read_provider(path: &str, from: ProviderConfiguration, problems: &mut Vec<String>) -> Option<Provider> {
    let ProviderConfiguration { aesgcm, aescbc, secretbox, identity, kms } = from;
    let keyed = [(Cipher::AesGcm, aesgcm), (Cipher::AesCbc, aescbc), (Cipher::Secretbox, secretbox)];
    let given = keyed.iter().filter(|(_, keys)| keys.is_some()).count();
    match given + usize::from(identity.is_some()) + usize::from(kms.is_some()) {
        1 => {}
        0 => problems.push(format!("{path}: names no provider")),
        _ => problems.push(format!("{path}: names more than one provider; each wants an entry of its own")),
    }
    if kms.is_some() {
        problems.push(format!("{path}.kms: is not supported; use aesgcm, aescbc, secretbox or identity"));
    }
    if identity.is_some() {
        return Some(Provider::Identity);
    }
    let (cipher, keys) = keyed.into_iter().find_map(|(cipher, keys)| Some((cipher, keys?)))?;
    let path = format!("{path}.{}.keys", cipher.name());
    if keys.keys.is_empty() {
        problems.push(format!("{path}: at least one is required"));
    }
    let mut read: Vec<DataKey> = Vec::new();
    for (at, Key { name, secret }) in keys.keys.into_iter().enumerate() {
        let path = format!("{path}[{at}]");
        if name.is_empty() || name.contains(':') {
            problems.push(format!("{path}.name: must be given and have no ':'"));
        }
        if read.iter().any(|key| key.name == name) {
            problems.push(format!("{path}.name: {name:?} is another key's"));
        }
        match STANDARD.decode(&secret) {
            Err(_) => problems.push(format!("{path}.secret: must be base64")),
            Ok(secret) => match DataKey::new(cipher, name, &secret) {
                Some(key) => read.push(key),
                None => {
                    let sizes = cipher.sizes();
                    problems.push(format!("{path}.secret: has {} bytes instead of one of {sizes:?}", secret.len()));
                }
            },
        }
    }
    Some(Provider::Keyed(read))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(resources: &str, providers: &str) -> String {
        format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: {resources}\n  providers: {providers}\n"
        )
    }

    #[test]
    fn patterns_name_resources_by_group() {
        let rules = Rules::parse(&configuration("['secrets', 'deployments.apps', '*.batch', '*.']", "[identity: {}]"));
        let rules = rules.unwrap();
        for (storage, named) in [
            ("secrets", true),
            ("apps/deployments", true),
            ("apps/replicasets", false),
            ("batch/jobs", true),
            ("configmaps", true),
            ("example.com/secrets", false),
        ] {
            assert_eq!(!rules.providers(storage).is_empty(), named, "{storage}");
        }
        assert!(!Rules::parse(&configuration("['*.*']", "[identity: {}]")).unwrap().providers("a/b").is_empty());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_path() {
        let key = |secret: &str| format!("{{keys: [{{name: k, secret: {secret}}}]}}");
        let good = STANDARD.encode([7; 32]);
        let short = STANDARD.encode([7; 5]);
        for (resources, providers, problem) in [
            ("[]", "[identity: {}]".to_owned(), "resources[0].resources: at least one"),
            ("[secrets]", "[]".to_owned(), "resources[0].providers: at least one"),
            ("[secrets, secrets]", "[identity: {}]".to_owned(), "resources[0].resources[1]: \"secrets\": an earlier"),
            ("['*.*', secrets]", "[identity: {}]".to_owned(), "resources[0].resources[1]"),
            ("['*']", "[identity: {}]".to_owned(), "resources[0].resources[0]"),
            ("['pods/status']", "[identity: {}]".to_owned(), "resources[0].resources[0]"),
            (
                "[secrets]",
                format!("[aesgcm: {}]", key(&short)),
                "resources[0].providers[0].aesgcm.keys[0].secret: has 5",
            ),
            ("[secrets]", format!("[aesgcm: {}]", key("'%'")), "resources[0].providers[0].aesgcm.keys[0].secret: must"),
            ("[secrets]", "[aescbc: {keys: []}]".to_owned(), "resources[0].providers[0].aescbc.keys: at least"),
            ("[secrets]", "[kms: {name: x}]".to_owned(), "resources[0].providers[0].kms: is not supported"),
            ("[secrets]", "[{}]".to_owned(), "resources[0].providers[0]: names no provider"),
            ("[secrets]", format!("[{{identity: {{}}, aesgcm: {}}}]", key(&good)), "names more than one provider"),
            ("[secrets]", "[aesgmc: {}]".to_owned(), "unknown field `aesgmc`"),
        ] {
            let error = Rules::parse(&configuration(resources, &providers)).err().map(|error| error.to_string());
            assert!(error.as_ref().is_some_and(|error| error.contains(problem)), "{providers}: {error:?}");
            assert!(!error.unwrap_or_default().contains(&good), "a key is not printed");
        }
        assert!(Rules::parse("kind: Pod\napiVersion: v1\nresources: []\n").is_err());
        assert!(Rules::parse("").is_err());
    }
}
