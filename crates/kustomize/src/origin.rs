//! The origin of an object and the transformations applied to it (`buildMetadata`).

use crate::files::join;
use meta::{Map, Value};

pub const ORIGIN: &str = "config.kubernetes.io/origin";
pub const TRANSFORMATIONS: &str = "alpha.config.kubernetes.io/transformations";

/// The origin of an object, or of a transformation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub path: String,
    pub configured_in: String,
    /// Version, kind, name and namespace of the plugin.
    pub configured_by: [String; 4],
}

impl Origin {
    /// Returns the origin of a path in this directory.
    pub fn append(&self, path: &str) -> Self {
        Self { path: join(&self.path, path), ..self.clone() }
    }

    /// Returns the origin of what a built-in field of the kustomization `file` did.
    pub fn builtin(&self, file: &str, kind: &str) -> Self {
        Self {
            path: String::new(),
            configured_in: join(&self.path, file),
            configured_by: ["builtin".to_owned(), kind.to_owned(), String::new(), String::new()],
        }
    }

    /// Formats as YAML, with `indent` before each line.
    pub fn yaml(&self, indent: &str) -> String {
        let mut lines = Vec::new();
        let mut add = |depth: &str, key: &str, value: &str| {
            if !value.is_empty() {
                let pair: Map<String, Value> = [(key.to_owned(), Value::from(value))].into_iter().collect();
                lines.push(format!("{depth}{}", codec::yaml::to_string(&pair.into())));
            }
        };
        add("", "path", &self.path);
        add("", "configuredIn", &self.configured_in);
        if self.configured_by.iter().any(|t| !t.is_empty()) {
            let [version, kind, name, namespace] = &self.configured_by;
            let mut inner = Vec::new();
            for (k, v) in [("apiVersion", version), ("kind", kind), ("name", name), ("namespace", namespace)] {
                if !v.is_empty() {
                    let pair: Map<String, Value> = [(k.to_owned(), Value::from(v.as_str()))].into_iter().collect();
                    inner.push(format!("  {}", codec::yaml::to_string(&pair.into())));
                }
            }
            lines.push(format!("configuredBy:\n{}", inner.concat()));
        }
        let text = lines.concat();
        text.split_inclusive('\n').map(|l| format!("{indent}{l}")).collect()
    }
}
