//! What plugins are told at the start (`--admission-control-config-file`): an `AdmissionConfiguration`, or one of the two older
//! files that say at once what one plugin wants. Every mistake is named. Reads through its caller, and knows no plugin's own words.

use meta::Value;
use std::collections::HashMap;
use std::io;
use std::path::Path;

/// By the name of the plugin.
#[derive(Debug, Default)]
pub struct Configuration(HashMap<String, Value>);

const KIND: &str = "AdmissionConfiguration";
const VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"];
/// Files without a version, by the key they have, that go to the plugins that read them so.
const UNVERSIONED: [(&str, &str); 2] =
    [("imagePolicy", "ImagePolicyWebhook"), ("podNodeSelectorPluginConfig", "PodNodeSelector")];

impl Configuration {
    /// Paths within the file start where the file is.
    pub fn read(path: &Path, read: impl Fn(&Path) -> io::Result<String>) -> Result<Self, String> {
        let text = read(path).map_err(|e| {
            format!("unable to read admission control configuration from {:?} [{e}]", path.display().to_string())
        })?;
        let document = document(&text)?;
        let version = document["apiVersion"].as_str().unwrap_or_default();
        let old: HashMap<String, Value> = UNVERSIONED
            .iter()
            .filter(|(key, _)| version.is_empty() && document.get(key).is_some())
            .map(|(_, plugin)| ((*plugin).to_owned(), document.clone()))
            .collect();
        if !old.is_empty() {
            return Ok(Self(old));
        }
        expect(&document, &VERSIONS, KIND)?;
        only(&document, "", &["apiVersion", "kind", "plugins"])?;
        let mut all = HashMap::new();
        for (i, p) in document["plugins"].as_array().into_iter().flatten().enumerate() {
            only(p, &format!("plugins[{i}]."), &["name", "path", "configuration"])?;
            let said = match (&p["configuration"], p["path"].as_str().unwrap_or_default()) {
                (Value::Null, "") => continue,
                (Value::Null, file) => {
                    let file = path.parent().unwrap_or(Path::new("")).join(file);
                    let text = read(&file)
                        .map_err(|e| format!("couldn't open admission plugin configuration {}: {e}", file.display()))?;
                    self::document(&text)?
                }
                (nested, _) => nested.clone(),
            };
            // Of two for one plugin, the first counts.
            all.entry(p["name"].as_str().unwrap_or_default().to_owned()).or_insert(said);
        }
        Ok(Self(all))
    }

    /// What a plugin is told, if anything.
    pub fn of(&self, plugin: &str) -> Option<&Value> {
        self.0.get(plugin)
    }

    /// One plugin is told this, for those who have it at hand.
    pub fn with(mut self, plugin: &str, said: Value) -> Self {
        self.0.insert(plugin.to_owned(), said);
        self
    }
}

fn document(text: &str) -> Result<Value, String> {
    let all = codec::yaml::parse(text).map_err(|e| e.to_string())?;
    Ok(all.into_iter().next().unwrap_or_default())
}

/// The document is of this kind, in one of these versions.
pub(crate) fn expect(document: &Value, versions: &[&str], kind: &str) -> Result<(), String> {
    let text = |k: &str| document[k].as_str().unwrap_or_default();
    for k in ["kind", "apiVersion"] {
        if text(k).is_empty() {
            return Err(format!("Object '{}' is missing in '{document}'", if k == "kind" { "Kind" } else { k }));
        }
    }
    if versions.contains(&text("apiVersion")) && text("kind") == kind {
        return Ok(());
    }
    Err(format!("no kind {:?} is registered for version {:?}", text("kind"), text("apiVersion")))
}

/// Nothing stands in it but what is known.
pub(crate) fn only(of: &Value, path: &str, known: &[&str]) -> Result<(), String> {
    let unknown = of.as_object().into_iter().flatten().map(|(k, _)| k).find(|k| !known.contains(&k.as_str()));
    unknown.map_or(Ok(()), |k| Err(format!("strict decoding error: unknown field \"{path}{k}\"")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Result<Configuration, String> {
        Configuration::read(Path::new("/etc/k/admission.yaml"), |p| match p.to_str() {
            Some("/etc/k/admission.yaml") => Ok(text.to_owned()),
            Some("/etc/k/events.yaml") => Ok("limits: [{type: Server}]".to_owned()),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        })
    }

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n";

    #[test]
    fn plugins_are_told_what_stands_in_the_file_or_beside_it() {
        let text = format!(
            "{HEAD}plugins:\n- name: EventRateLimit\n  path: events.yaml\n- name: PodTolerationRestriction\n  configuration: {{default: []}}\n"
        );
        let c = read(&text).unwrap();
        assert_eq!(c.of("EventRateLimit"), Some(&json!({"limits": [{"type": "Server"}]})));
        assert_eq!(c.of("PodTolerationRestriction"), Some(&json!({"default": []})));
        assert_eq!(c.of("PodSecurity"), None);
        let old = read("imagePolicy: {kubeConfigFile: /a}").unwrap();
        assert_eq!(old.of("ImagePolicyWebhook"), Some(&json!({"imagePolicy": {"kubeConfigFile": "/a"}})));
    }

    #[test]
    fn mistakes_are_named() {
        let cases = [
            ("a: b", "Object 'Kind' is missing in '{\"a\":\"b\"}'"),
            ("apiVersion: v1\nkind: Pod", "no kind \"Pod\" is registered for version \"v1\""),
            (&format!("{HEAD}plugin: []"), "strict decoding error: unknown field \"plugin\""),
            (&format!("{HEAD}plugins: [{{names: x}}]"), "strict decoding error: unknown field \"plugins[0].names\""),
            (
                &format!("{HEAD}plugins: [{{name: x, path: no.yaml}}]"),
                "couldn't open admission plugin configuration /etc/k/no.yaml: entity not found",
            ),
        ];
        for (text, why) in cases {
            assert_eq!(read(text).unwrap_err(), why, "{text}");
        }
        let e = Configuration::read(Path::new("none"), |_| Err(io::ErrorKind::NotFound.into())).unwrap_err();
        assert_eq!(e, "unable to read admission control configuration from \"none\" [entity not found]");
    }
}
