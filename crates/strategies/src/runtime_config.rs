//! The served built-in groups, versions and resources (`--runtime-config`;
//! `k8s.io/apiserver/pkg/server/resourceconfig`).
//!
//! Alpha and beta versions are off by default. A setting for a resource overrides one for its version, which overrides
//! one for a class of versions (`api/beta`).

use meta::GroupVersion;
use std::collections::{BTreeMap, BTreeSet};

/// The settings by upstream's keys: `api/all`, `group/version`, `group/version/resource`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// For all, stable, beta and alpha versions.
    classes: [Option<bool>; 4],
    versions: BTreeMap<(String, String), bool>,
    resources: BTreeMap<(String, String, String), bool>,
    /// Alpha and beta versions that are served unless a setting turns them off.
    defaults: BTreeSet<(String, String)>,
}

const CLASSES: [&str; 4] = ["api/all", "api/ga", "api/beta", "api/alpha"];

impl RuntimeConfig {
    /// Parses `key=value` pairs; a key alone means true. The last value of a key wins. Errors name the invalid key.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut settings: BTreeMap<&str, &str> = BTreeMap::new();
        for pair in pairs.into_iter().map(str::trim).filter(|p| !p.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            settings.insert(key.trim(), value.trim());
        }
        if settings.len() == 1 && settings.get(CLASSES[0]) == Some(&"false") {
            return Err(format!("invalid runtime-config with only {}=false", CLASSES[0]));
        }
        let mut out = Self::default();
        let mut unknown = BTreeSet::new();
        for (key, value) in settings {
            if let Some(i) = CLASSES.iter().position(|m| *m == key) {
                out.classes[i] = match value {
                    "true" => Some(true),
                    "false" => Some(false),
                    _ => return Err(format!("invalid value {key}={value}")),
                };
                continue;
            }
            let parts: Vec<&str> = key.split('/').collect();
            let (group, version, resource) = match parts.as_slice() {
                // The core group has two forms.
                [version] | ["api", version] if *version == "v1" => ("", *version, None),
                ["api", version, resource] if *version == "v1" => ("", *version, Some(*resource)),
                [group, version] => (*group, *version, None),
                [group, version, resource] => (*group, *version, Some(*resource)),
                _ => return Err(format!("runtime-config invalid key {key}")),
            };
            let kinds = &kinds::catalog().kinds;
            if !kinds.iter().any(|k| *k.group == *group) {
                unknown.insert(format!("{group}/{version}"));
                continue;
            }
            if !kinds.iter().any(|k| *k.group == *group && *k.version == *version) {
                let gv = GroupVersion::new(group, version);
                return Err(format!("group version {gv} that has not been registered"));
            }
            let on = boolean(key, value)?;
            let (group, version) = (group.to_owned(), version.to_owned());
            match resource {
                None => drop(out.versions.insert((group, version), on)),
                Some(r) if r.chars().any(char::is_uppercase) => {
                    let why = "group/version/resource and resource is always lowercase plural, not";
                    return Err(format!("invalid key {key}: {why} {r:?}"));
                }
                Some(r) => drop(out.resources.insert((group, version, r.to_owned()), on)),
            }
        }
        if !unknown.is_empty() {
            let unknown: Vec<String> = unknown.into_iter().collect();
            return Err(format!("unknown api groups {}", unknown.join(",")));
        }
        Ok(out)
    }

    /// Serves a version, of whatever class, unless a setting turns it off.
    #[must_use]
    pub fn by_default(mut self, group: &str, version: &str) -> Self {
        self.defaults.insert((group.into(), version.into()));
        self
    }

    pub fn serves(&self, kind: &kinds::Kind) -> bool {
        let (group, version) = (kind.group.to_string(), kind.version.to_string());
        let stage = 1 + stage(&version);
        let resource = self.resources.get(&(group.clone(), version.clone(), kind.plural.to_string()));
        let key = (group, version);
        let explicit = resource.or_else(|| self.versions.get(&key)).copied();
        explicit.or(self.classes[stage]).or(self.classes[0]).unwrap_or(stage == 1 || self.defaults.contains(&key))
    }
}

/// Returns the index of a version's class among beta and alpha: 0 for stable, 1 for beta, 2 for alpha.
fn stage(version: &str) -> usize {
    if version.contains("alpha") { 2 } else { usize::from(version.contains("beta")) }
}

/// Parses a boolean like Go's `strconv.ParseBool`; empty means true.
fn boolean(key: &str, value: &str) -> Result<bool, String> {
    match value {
        "" | "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => {
            let why = format!("strconv.ParseBool: parsing {value:?}: invalid syntax");
            Err(format!("invalid value of {key}: {value}, err: {why}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meta::Gvk;

    fn serves(settings: &[&str], group: &str, version: &str, kind: &str) -> bool {
        let kind = kinds::catalog().kind(&Gvk::new(group, version, kind)).unwrap();
        RuntimeConfig::parse(settings.iter().copied()).unwrap().serves(kind)
    }

    #[test]
    fn the_most_specific_setting_wins() {
        let preset = |settings: &[&str]| serves(settings, "settings.k8s.io", "v1alpha1", "PodPreset");
        let deployment = |settings: &[&str]| serves(settings, "apps", "v1", "Deployment");
        assert!(!preset(&[]) && deployment(&[]));
        let metrics = |settings: &[&str]| {
            let kind = kinds::catalog().kind(&Gvk::new("metrics.k8s.io", "v1beta1", "PodMetrics")).unwrap();
            crate::metrics::serve(RuntimeConfig::parse(settings.iter().copied()).unwrap()).serves(kind)
        };
        assert!(metrics(&[]) && !metrics(&["api/beta=false"]) && !metrics(&["metrics.k8s.io/v1beta1=false"]));
        assert!(!serves(&[], "metrics.k8s.io", "v1beta1", "PodMetrics"));
        assert!(preset(&["settings.k8s.io/v1alpha1=true"]) && preset(&["settings.k8s.io/v1alpha1"]));
        assert!(preset(&["api/all=true"]) && preset(&["api/alpha=true"]) && !preset(&["api/beta=true"]));
        assert!(!preset(&["api/alpha=true", "settings.k8s.io/v1alpha1=false"]));
        assert!(preset(&["settings.k8s.io/v1alpha1/podpresets=true"]));
        assert!(!preset(&["settings.k8s.io/v1alpha1=true", "settings.k8s.io/v1alpha1/podpresets=false"]));
        assert!(!deployment(&["api/all=false", "apps/v1=false"]) && deployment(&["api/all=false", "apps/v1=1"]));
        assert!(!deployment(&["api/all=true", "api/ga=false"]));
        assert!(!deployment(&["apps/v1/deployments=false"]));
        assert!(serves(&["apps/v1/deployments=false"], "apps", "v1", "ReplicaSet"));
        for key in ["v1=false", "api/v1=false"] {
            assert!(!serves(&[key], "", "v1", "Pod"), "{key}");
        }
    }

    #[test]
    fn rejects_invalid_settings() {
        let cases = [
            ("api/all=false", "invalid runtime-config with only api/all=false"),
            ("api/all=1", "invalid value api/all=1"),
            ("a/b/c/d=true", "runtime-config invalid key a/b/c/d"),
            ("nobody/v1=true", "unknown api groups nobody/v1"),
            ("apps/v7=true", "group version apps/v7 that has not been registered"),
            ("apps/v1=yes", "invalid value of apps/v1: yes, err: strconv.ParseBool: parsing \"yes\": invalid syntax"),
            (
                "apps/v1/Deployment=true",
                "invalid key apps/v1/Deployment: group/version/resource and resource is always lowercase plural, not \"Deployment\"",
            ),
        ];
        for (settings, expected) in cases {
            assert_eq!(RuntimeConfig::parse([settings]).unwrap_err(), expected);
        }
    }
}
