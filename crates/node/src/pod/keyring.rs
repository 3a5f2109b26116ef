//! Credentials for image pulls from the pod's secrets (upstream `credentialprovider/keyring.go`).

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use distribution::Credentials;
use k8s_openapi::api::core::v1::{Pod, Secret};
use runtime::image::{PullSecret, PullSource};
use serde::Deserialize;

use super::spec::text;
use crate::objects::{Kind, Reference};

/// The key of Docker Hub.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// The secrets that a pod's images are pulled with.
pub fn references(pod: &Pod) -> BTreeSet<Reference> {
    let namespace = text(&pod.metadata.namespace);
    let reference =
        |name: &str| Reference { kind: Kind::Secret, namespace: namespace.to_owned(), name: name.to_owned() };
    names(pod).map(reference).collect()
}

/// The names of the secrets, in order.
pub fn names(pod: &Pod) -> impl Iterator<Item = &str> {
    let secrets = pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten());
    secrets.map(|s| s.name.as_str()).filter(|n| !n.is_empty())
}

#[derive(Deserialize)]
struct DockerConfigJson {
    #[serde(default)]
    auths: DockerConfig,
}

type DockerConfig = BTreeMap<String, Entry>;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    username: String,
    password: String,
    auth: String,
}

impl Entry {
    /// User and password; `auth` wins. `None` if it cannot be decoded.
    fn credentials(self) -> Option<Credentials> {
        if self.auth.is_empty() {
            return Some(Credentials { username: self.username, password: self.password });
        }
        let engine = if self.auth.trim().ends_with('=') { STANDARD } else { STANDARD_NO_PAD };
        let decoded = String::from_utf8(engine.decode(&self.auth).ok()?).ok()?;
        let (username, password) = decoded.split_once(':')?;
        Some(Credentials { username: username.to_owned(), password: password.to_owned() })
    }
}

/// Credentials, and whose they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullCredentials {
    pub credentials: Credentials,
    pub source: PullSource,
}

/// The record of a secret and of the digest of its credentials.
fn pull_secret(secret: &Secret, credentials: &Credentials) -> PullSecret {
    let (user, password) = (&credentials.username, &credentials.password);
    let mut content = u64::to_le_bytes(user.len() as u64).to_vec();
    content.extend_from_slice(user.as_bytes());
    content.extend_from_slice(password.as_bytes());
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &content);
    let m = &secret.metadata;
    PullSecret {
        namespace: text(&m.namespace).to_owned(),
        name: text(&m.name).to_owned(),
        uid: text(&m.uid).to_owned(),
        digest: digest.as_ref().iter().map(|b| format!("{b:02x}")).collect(),
    }
}

/// Credentials by the registries and paths that they are for.
#[derive(Default)]
pub struct Keyring(BTreeMap<String, Vec<PullCredentials>>);

impl Keyring {
    /// Adds the entries of a secret of a type for image pulls. Errors with a message if the secret cannot be decoded.
    pub fn add(&mut self, secret: &Secret) -> Result<(), String> {
        let data = |key: &str| secret.data.as_ref().and_then(|d| d.get(key)).map(|v| v.0.as_slice());
        let config = match (text(&secret.type_), data(".dockerconfigjson"), data(".dockercfg")) {
            ("kubernetes.io/dockerconfigjson", Some(bytes), _) => {
                serde_json::from_slice(bytes).map(|c: DockerConfigJson| c.auths)
            }
            ("kubernetes.io/dockercfg", _, Some(bytes)) => serde_json::from_slice(bytes),
            _ => return Ok(()),
        };
        for (location, entry) in config.map_err(|e| e.to_string())? {
            let credentials = entry.credentials().ok_or("unable to parse auth field")?;
            let source = PullSource::Secret(pull_secret(secret, &credentials));
            self.0.entry(key(&location)).or_default().push(PullCredentials { credentials, source });
        }
        Ok(())
    }

    /// The credentials for a repository, such as `docker.io/library/nginx`; those of the longest path first.
    pub fn find(&self, repository: &str) -> Vec<PullCredentials> {
        let fitting = self.0.iter().rev().filter(|(key, _)| matches(key, repository));
        let found: Vec<PullCredentials> = fitting.flat_map(|(_, c)| c).cloned().collect();
        if found.is_empty() && repository.starts_with("docker.io/") {
            return self.0.get(DEFAULT_REGISTRY).cloned().unwrap_or_default();
        }
        found
    }
}

/// The host and path of an entry, without scheme and version.
pub fn key(location: &str) -> String {
    let rest = location.strip_prefix("https://").or_else(|| location.strip_prefix("http://")).unwrap_or(location);
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = if path.starts_with("/v1/") || path.starts_with("/v2/") { &path[3..] } else { path };
    if path == "/" { host.to_owned() } else { format!("{host}{path}") }
}

/// Whether the key covers the repository. Labels of its host may have wildcards.
pub fn matches(key: &str, repository: &str) -> bool {
    let split = |url: &str| {
        let (authority, path) = url.split_at(url.find('/').unwrap_or(url.len()));
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, ""));
        (host.to_owned(), port.to_owned(), path.to_owned())
    };
    let ((pattern, port, path), (host, own_port, own_path)) = (split(key), split(repository));
    let labels = pattern.split('.').zip(host.split('.'));
    port == own_port
        && pattern.split('.').count() == host.split('.').count()
        && own_path.starts_with(&path)
        && labels.into_iter().all(|(pattern, label)| matches_label(pattern, label))
}

/// Whether a pattern of `*` and `?` covers a label.
fn matches_label(pattern: &str, label: &str) -> bool {
    let (pattern, label): (Vec<char>, Vec<char>) = (pattern.chars().collect(), label.chars().collect());
    let (mut p, mut l, mut star) = (0, 0, None);
    while l < label.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, l));
                p += 1;
            }
            Some(c) if *c == '?' || *c == label[l] => (p, l) = (p + 1, l + 1),
            _ => match star {
                // The last star takes one more character.
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, l) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn secret(kind: &str, key: &str, config: Value) -> Secret {
        let data = STANDARD.encode(config.to_string());
        serde_json::from_value(json!({"type": kind, "data": {key: data}})).unwrap()
    }

    fn found(entries: &[&str], repository: &str) -> Vec<String> {
        let auths: BTreeMap<&str, Value> =
            entries.iter().map(|e| (*e, json!({"username": e, "password": "p"}))).collect();
        let mut keyring = Keyring::default();
        let config = json!({ "auths": auths });
        keyring.add(&secret("kubernetes.io/dockerconfigjson", ".dockerconfigjson", config)).unwrap();
        keyring.find(repository).into_iter().map(|c| c.credentials.username).collect()
    }

    /// Clauses: K03.secrets
    #[test]
    fn credentials_are_found_by_host_path_and_wildcards() {
        let repository = "reg.example.com:5000/team/app";
        for (entry, expect) in [
            ("reg.example.com:5000", true),
            ("https://reg.example.com:5000", true),
            ("http://reg.example.com:5000/v2/", true),
            ("https://reg.example.com:5000/v1/team", true),
            ("reg.example.com:5000/team/app", true),
            ("*.example.com:5000", true),
            ("r?g.*.c*m:5000", true),
            ("reg.example.com", false),
            ("*.com:5000", false),
            ("reg.example.com:5000/other", false),
            ("*.example.com:5001", false),
            ("rega.example.com:5000", false),
        ] {
            assert_eq!(!found(&[entry], repository).is_empty(), expect, "{entry}");
        }
        let all = ["reg.example.com:5000", "reg.example.com:5000/team", "other.example.com"];
        assert_eq!(found(&all, repository), [all[1], all[0]]);
        let hub = "https://index.docker.io/v1/";
        assert_eq!(found(&[hub, "quay.io"], "docker.io/library/nginx"), [hub]);
        assert_eq!(found(&[hub, "docker.io"], "docker.io/library/nginx"), ["docker.io"]);
        assert!(found(&[hub], "quay.io/a").is_empty());
    }

    /// Clauses: K03.secrets
    #[test]
    fn both_types_of_secrets_are_read() {
        let mut keyring = Keyring::default();
        let entries =
            json!({"a.example": {"auth": "dTpwOnE="}, "b.example": {"username": "x", "password": "y", "auth": "dTpw"}});
        keyring.add(&secret("kubernetes.io/dockercfg", ".dockercfg", entries.clone())).unwrap();
        let credentials = |u: &str, p: &str| Credentials { username: u.into(), password: p.into() };
        let found = |repository| keyring.find(repository).into_iter().map(|c| c.credentials).collect::<Vec<_>>();
        assert_eq!(found("a.example/x"), [credentials("u", "p:q")]);
        assert_eq!(found("b.example/x"), [credentials("u", "p")]);
        let digest = |repository| match keyring.find(repository).remove(0).source {
            PullSource::Secret(secret) => secret.digest,
            other => panic!("{other:?}"),
        };
        assert!(digest("a.example/x").len() == 64 && digest("a.example/x") != digest("b.example/x"));
        let mut none = Keyring::default();
        none.add(&secret("Opaque", ".dockercfg", entries)).unwrap();
        assert!(none.0.is_empty());
        for wrong in [json!({"a": {"auth": "%"}}), json!({"a": {"auth": "dXA="}}), json!([])] {
            assert!(none.add(&secret("kubernetes.io/dockercfg", ".dockercfg", wrong)).is_err());
        }
    }
}
