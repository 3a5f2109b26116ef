//! `PodSecurityConfiguration`: defaults for namespaces without labels, and exemptions
//! (`k8s.io/pod-security-admission/admission/api`).

use super::PodSecurity;
use super::policy::{BAD_LEVEL, BAD_VERSION, Level, LevelVersion, Policy, Version, level, version};
use crate::configuration::{Fields, Form, Kind, TEXT, TEXTS, aggregate};
use crate::plugin::Unmade;
use meta::{FieldError, FieldPath, Value, names};

const NAME: &str = "PodSecurityConfiguration";
const KIND: Kind = Kind {
    versions: &[
        ("pod-security.admission.config.k8s.io/v1", NAME),
        ("pod-security.admission.config.k8s.io/v1beta1", NAME),
        ("pod-security.admission.config.k8s.io/v1alpha1", NAME),
    ],
    fields: Fields(NAME, &[("defaults", DEFAULTS), ("exemptions", EXEMPTIONS)]),
};
const DEFAULTS: Form = Form::Object(Fields(
    "PodSecurityDefaults",
    &[
        ("enforce", TEXT),
        ("enforce-version", TEXT),
        ("audit", TEXT),
        ("audit-version", TEXT),
        ("warn", TEXT),
        ("warn-version", TEXT),
    ],
));
const EXEMPTIONS: Form = Form::Object(Fields(
    "PodSecurityExemptions",
    &[("usernames", TEXTS), ("namespaces", TEXTS), ("runtimeClasses", TEXTS)],
));

/// Exempt users, namespaces and runtime classes.
#[derive(Default)]
pub(super) struct Exemptions {
    users: Vec<String>,
    namespaces: Vec<String>,
    runtime_classes: Vec<String>,
}

impl Exemptions {
    pub fn namespace(&self, name: &str) -> bool {
        self.namespaces.iter().any(|n| n == name)
    }

    /// The reason for an exemption, as in the audit annotation.
    pub fn request(&self, namespace: &str, user: &str) -> Option<&'static str> {
        if self.namespace(namespace) {
            return Some("namespace");
        }
        self.users.iter().any(|u| u == user).then_some("user")
    }

    pub fn runtime_class(&self, spec: Option<&Value>) -> bool {
        let class = spec.and_then(|s| s["runtimeClassName"].as_str());
        class.is_some_and(|c| self.runtime_classes.iter().any(|r| r == c))
    }
}

impl PodSecurity {
    pub fn new(config: Option<&Value>) -> Result<Self, Unmade> {
        let config = config.map_or(Ok(Value::Null), |s| KIND.read(s))?;
        let mut wrong = Vec::new();
        let [enforce, audit, warn] = ["enforce", "audit", "warn"].map(|m| mode(&config["defaults"], m, &mut wrong));
        aggregate(&wrong).map_err(|why| Unmade::Unready(format!("PodSecurity configuration error: {why}")))?;
        let mut wrong = Vec::new();
        let mut list =
            |key: &str, check: fn(&str) -> Vec<String>| exempt(&config["exemptions"], key, check, &mut wrong);
        let exempt = Exemptions {
            namespaces: list("namespaces", names::dns_label),
            runtime_classes: list("runtimeClasses", names::dns_subdomain),
            users: list("usernames", |u| if u.is_empty() { vec!["username must not be empty".into()] } else { vec![] }),
        };
        aggregate(&wrong).map_err(|why| Unmade::Unready(format!("PodSecurity invalid: {why}")))?;
        Ok(Self { default: Policy { enforce, audit, warn }, exempt })
    }
}

fn mode(defaults: &Value, mode: &str, wrong: &mut Vec<String>) -> LevelVersion {
    let value = |key: &str| defaults[key].as_str().filter(|t| !t.is_empty()).map(str::to_owned);
    let mut bad = |key: &str, why: &str| wrong.push(format!("{key}: {why}"));
    let level = value(mode).map_or(Some(Level::Privileged), |t| level(&t)).unwrap_or_else(|| {
        bad(mode, BAD_LEVEL);
        Level::Restricted
    });
    let key = format!("{mode}-version");
    let version = value(&key).map_or(Some(Version::Latest), |t| version(&t)).unwrap_or_else(|| {
        bad(&key, BAD_VERSION);
        Version::Latest
    });
    LevelVersion { level, version }
}

fn exempt(exemptions: &Value, key: &str, check: fn(&str) -> Vec<String>, wrong: &mut Vec<FieldError>) -> Vec<String> {
    let path = FieldPath::new("exemptions").child(key);
    let mut all: Vec<String> = Vec::new();
    for (i, item) in exemptions[key].as_array().into_iter().flatten().enumerate() {
        let item = item.as_str().unwrap_or_default();
        match check(item) {
            why if !why.is_empty() => wrong.push(FieldError::invalid(&path.index(i), item, why.join(", "))),
            _ if all.iter().any(|o| o == item) => wrong.push(FieldError::duplicate(&path.index(i), item)),
            _ => all.push(item.to_owned()),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plugin(defaults: Value, exemptions: Value) -> Result<PodSecurity, String> {
        let config =
            json!({"apiVersion": KIND.versions[0].0, "kind": NAME, "defaults": defaults, "exemptions": exemptions});
        PodSecurity::new(Some(&config)).map_err(|e| e.message("PodSecurity"))
    }

    #[test]
    fn defaults_are_privileged_and_latest_where_nothing_is_said() {
        let free = PodSecurity::new(None).unwrap_or_else(|_| panic!("the default is valid"));
        assert!(free.default.is_privileged() && free.default.enforce.version == Version::Latest);
        let own = plugin(json!({"enforce": "baseline", "warn-version": "v1.20", "audit": ""}), json!({})).unwrap();
        let modes: Vec<String> = own.default.modes().iter().map(|(_, m)| m.to_string()).collect();
        assert_eq!(modes, ["baseline:latest", "privileged:latest", "privileged:v1.20"]);
    }

    #[test]
    fn mistakes_are_told_as_upstream_tells_them() {
        let failed = |why: &str| format!("failed to initialize admission plugin \"PodSecurity\": PodSecurity {why}");
        let cases = [
            (json!({"enforce": "strict"}), json!({}), failed("configuration error: enforce: must be one of privileged, baseline, restricted")),
            (
                json!({"enforce": "x", "warn-version": "1.20"}),
                json!({}),
                failed(&format!("configuration error: [enforce: {BAD_LEVEL}, warn-version: must be \"latest\" or \"v1.x\"]")),
            ),
            (
                json!({}),
                json!({"usernames": ["", "a", "a"], "namespaces": ["b", "b"]}),
                failed(
                    "invalid: [exemptions.namespaces[1]: Duplicate value: \"b\", exemptions.usernames[0]: Invalid value: \"\": \
                     username must not be empty, exemptions.usernames[2]: Duplicate value: \"a\"]",
                ),
            ),
            (
                json!({"enforced": "x"}),
                json!({}),
                "couldn't init admission plugin \"PodSecurity\": strict decoding error: unknown field \"defaults.enforced\"".into(),
            ),
        ];
        for (defaults, exemptions, expected) in cases {
            assert_eq!(plugin(defaults, exemptions).err().unwrap(), expected);
        }
        let why = plugin(json!({}), json!({"runtimeClasses": ["A b"]})).err().unwrap();
        assert!(
            why.starts_with(&failed(
                "invalid: exemptions.runtimeClasses[0]: Invalid value: \"A b\": a lowercase RFC 1123 "
            )),
            "{why}"
        );
    }
}
