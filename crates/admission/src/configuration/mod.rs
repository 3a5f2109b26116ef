//! Plugin configurations (`--admission-control-config-file`): an `AdmissionConfiguration`, or one of two older files
//! that configure a single plugin directly. Reports every error. Reads files through its caller and does not know the
//! fields of plugins (`k8s.io/apiserver/pkg/admission/config.go`).

pub(crate) use schema::form::{ANY, Fields, Form, Kind, LONG, NUMBER, TEXT, TEXTS, aggregate};

use crate::plugin::failed_start;
use codec::yaml::{DEPTH_LIMIT, Error, parse_within};
use meta::{FieldError, FieldPath, Value};
use std::collections::HashMap;
use std::path::Path;

/// Configurations by plugin name. An unreadable file matters only if its plugin is enabled.
#[derive(Debug, Default)]
pub struct Configuration(HashMap<String, Result<Value, String>>);

const KIND: Kind = Kind {
    versions: &[
        ("apiserver.config.k8s.io/v1", "AdmissionConfiguration"),
        ("apiserver.k8s.io/v1alpha1", "AdmissionConfiguration"),
    ],
    fields: Fields("AdmissionConfiguration", &[("plugins", Form::List(&PLUGIN))]),
};
const PLUGIN: Form =
    Form::Object(Fields("AdmissionPluginConfiguration", &[("name", TEXT), ("path", TEXT), ("configuration", ANY)]));
/// Keys of unversioned files. Such a file applies to all of these plugins, and their own configuration is unversioned
/// too.
const UNVERSIONED: [(&str, &str); 2] =
    [("imagePolicy", "ImagePolicyWebhook"), ("podNodeSelectorPluginConfig", "PodNodeSelector")];

impl Configuration {
    /// Relative paths start at the file's directory. Errors of `read` have Go's messages.
    pub fn read(path: &Path, read: impl Fn(&Path) -> Result<String, String>) -> Result<Self, String> {
        let text = read(path).map_err(|e| {
            format!("unable to read admission control configuration from {:?} [{e}]", path.display().to_string())
        })?;
        let (document, twice) = document(&text)?;
        if let Err(why) = KIND.registered(&document) {
            if !UNVERSIONED.iter().any(|(key, _)| document.get(key).is_some()) {
                return Err(why);
            }
            let same = UNVERSIONED.map(|(_, plugin)| (plugin.to_owned(), Ok(document.clone())));
            return Ok(Self(same.into()));
        }
        twice.map_or(Ok(()), Err)?;
        let mut all = HashMap::new();
        for p in KIND.read(&document)?["plugins"].as_array().into_iter().flatten() {
            let name = p["name"].as_str().unwrap_or_default();
            let configuration = match (&p["configuration"], p["path"].as_str().unwrap_or_default()) {
                (Value::Null, "") => continue,
                (Value::Null, file) => beside(name, &path.parent().unwrap_or(Path::new("")).join(file), &read),
                (nested, _) => Ok(nested.clone()),
            };
            // The first entry for a plugin is used.
            all.entry(name.to_owned()).or_insert(configuration);
        }
        Ok(Self(all))
    }

    /// The configuration of a plugin, if any.
    pub fn get(&self, plugin: &str) -> Result<Option<&Value>, String> {
        self.0.get(plugin).map(Result::as_ref).transpose().map_err(Clone::clone)
    }

    /// Sets the configuration of one plugin.
    pub fn with(mut self, plugin: &str, config: Value) -> Self {
        self.0.insert(plugin.to_owned(), Ok(config));
        self
    }
}

/// The field for a directory of static policies or webhooks.
pub(crate) const STATIC_MANIFESTS: &str = "staticManifestsDir";

/// Rejects `staticManifestsDir`, as v1.36 does with its feature gate off.
pub(crate) fn without_manifests(config: &Value) -> Result<(), String> {
    if config[STATIC_MANIFESTS].as_str().is_none_or(str::is_empty) {
        return Ok(());
    }
    let why = "staticManifestsDir requires the ManifestBasedAdmissionControlConfig feature gate to be enabled";
    Err(FieldError::forbidden(&FieldPath::new(STATIC_MANIFESTS), why).to_string())
}

/// The configuration file of one plugin.
fn beside(plugin: &str, file: &Path, read: impl Fn(&Path) -> Result<String, String>) -> Result<Value, String> {
    let text =
        read(file).map_err(|e| format!("couldn't open admission plugin configuration {}: {e}", file.display()))?;
    let unversioned = UNVERSIONED.iter().any(|(_, p)| *p == plugin);
    let (document, twice) = document(&text).map_err(|why| failed_start(plugin, &why))?;
    match twice.filter(|_| !unversioned) {
        Some(why) => Err(failed_start(plugin, &why)),
        None => Ok(document),
    }
}

/// The first YAML document, with a strict decoder's errors for duplicate keys.
fn document(text: &str) -> Result<(Value, Option<String>), String> {
    let (all, twice) = parse_within(text, DEPTH_LIMIT).map_err(|e| e.to_string())?;
    let twice = (!twice.is_empty()).then(|| format!("strict decoding error: {}", Error::Duplicates(twice)));
    Ok((all.into_iter().next().unwrap_or_default(), twice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Result<Configuration, String> {
        Configuration::read(Path::new("/etc/k/admission.yaml"), |p| match p.to_str() {
            Some("/etc/k/admission.yaml") => Ok(text.to_owned()),
            Some("/etc/k/events.yaml") => Ok("limits: [{type: Server}]".to_owned()),
            _ => Err(format!("open {}: no such file or directory", p.display())),
        })
    }

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n";

    #[test]
    fn plugins_are_told_what_stands_in_the_file_or_beside_it() {
        let text = format!(
            "{HEAD}plugins:\n- name: EventRateLimit\n  path: events.yaml\n- name: PodTolerationRestriction\n  configuration: {{default: []}}\n"
        );
        let c = read(&text).unwrap();
        assert_eq!(c.get("EventRateLimit").unwrap(), Some(&json!({"limits": [{"type": "Server"}]})));
        assert_eq!(c.get("PodTolerationRestriction").unwrap(), Some(&json!({"default": []})));
        assert_eq!(c.get("PodSecurity"), Ok(None));
        let old = read("imagePolicy: {kubeConfigFile: /a}").unwrap();
        for plugin in ["ImagePolicyWebhook", "PodNodeSelector"] {
            assert_eq!(old.get(plugin).unwrap(), Some(&json!({"imagePolicy": {"kubeConfigFile": "/a"}})));
        }
    }

    #[test]
    fn mistakes_are_named() {
        let cases = [
            ("a: b", "Object 'Kind' is missing in '{\"a\":\"b\"}'"),
            ("apiVersion: v1\nkind: Pod", "no kind \"Pod\" is registered for version \"v1\""),
            (&format!("{HEAD}plugin: []"), "strict decoding error: unknown field \"plugin\""),
            (&format!("{HEAD}plugins: [{{names: x}}]"), "strict decoding error: unknown field \"plugins[0].names\""),
            (
                &format!("{HEAD}plugins: []\nplugins: []"),
                "strict decoding error: yaml: unmarshal errors:\n  line 4: key \"plugins\" already set in map",
            ),
            (
                &format!("{HEAD}plugins: [{{name: [x]}}]"),
                "json: cannot unmarshal array into Go struct field AdmissionPluginConfiguration.plugins.name of type string",
            ),
        ];
        for (text, why) in cases {
            assert_eq!(read(text).unwrap_err(), why, "{text}");
        }
        let e =
            Configuration::read(Path::new("none"), |_| Err("open none: no such file or directory".into())).unwrap_err();
        let why = "open none: no such file or directory";
        assert_eq!(e, format!("unable to read admission control configuration from \"none\" [{why}]"));
    }

    #[test]
    fn a_file_that_is_not_there_matters_to_its_plugin_alone() {
        let c = read(&format!("{HEAD}plugins: [{{name: x, path: no.yaml}}]")).unwrap();
        assert_eq!(c.get("y"), Ok(None));
        let why = "open /etc/k/no.yaml: no such file or directory";
        assert_eq!(
            c.get("x").unwrap_err(),
            format!("couldn't open admission plugin configuration /etc/k/no.yaml: {why}")
        );
    }
}
