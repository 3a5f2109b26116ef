//! Names of objects in scenarios: `deployment/web`, `shop/deployment/web`, or a map with `apiVersion`, `kind`, `namespace` and `name`.

use meta::Gvk;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// Names an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectName {
    pub api_version: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

/// The map form.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    api_version: String,
    kind: String,
    #[serde(default = "default_namespace")]
    namespace: String,
    name: String,
}

fn default_namespace() -> String {
    "default".into()
}

impl ObjectName {
    /// An object in the namespace `default`.
    pub fn new(api_version: &str, kind: &str, name: &str) -> Self {
        Self { api_version: api_version.into(), kind: kind.into(), namespace: default_namespace(), name: name.into() }
    }

    /// The kind of the object.
    pub(crate) fn gvk(&self) -> Gvk {
        let (group, version) = self.api_version.rsplit_once('/').unwrap_or(("", &self.api_version));
        Gvk::new(group, version, &self.kind)
    }

    /// Parses `KIND/NAME` or `NAMESPACE/KIND/NAME`, with the kind, plural or short name of a built-in kind in any case.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let (namespace, kind, name) = match parts[..] {
            [kind, name] => ("default", kind, name),
            [namespace, kind, name] => (namespace, kind, name),
            _ => return Err(format!("{text:?} is not KIND/NAME or NAMESPACE/KIND/NAME")),
        };
        if namespace.is_empty() || name.is_empty() {
            return Err(format!("{text:?} is not KIND/NAME or NAMESPACE/KIND/NAME"));
        }
        let wanted = kind.to_lowercase();
        let is_named = |k: &&kinds::Kind| {
            k.kind.to_lowercase() == wanted
                || *k.plural == *wanted
                || k.short_names.iter().any(|short| **short == *wanted)
        };
        let found = kinds::catalog().kinds.iter().find(is_named);
        let found = found
            .ok_or_else(|| format!("there is no built-in kind {kind:?}; name others by apiVersion, kind and name"))?;
        let namespace = namespace.into();
        Ok(Self {
            api_version: found.group_version().to_string(),
            kind: found.kind.to_string(),
            namespace,
            name: name.into(),
        })
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.to_lowercase(), self.namespace, self.name)
    }
}

impl<'de> Deserialize<'de> for ObjectName {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = ObjectName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("KIND/NAME, or a map with apiVersion, kind and name")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<ObjectName, E> {
                ObjectName::parse(text).map_err(E::custom)
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<ObjectName, A::Error> {
                let Fields { api_version, kind, namespace, name } =
                    Fields::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                Ok(ObjectName { api_version, kind, namespace, name })
            }
        }
        d.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_short_and_long_form() {
        let web = ObjectName::new("apps/v1", "Deployment", "web");
        for text in ["deployment/web", "deploy/web", "Deployments/web", "default/deployment/web"] {
            assert_eq!(ObjectName::parse(text).as_ref(), Ok(&web), "{text}");
        }
        assert_eq!(ObjectName::parse("shop/sts/db").unwrap().to_string(), "statefulset shop/db");
        for text in ["web", "deployment/", "/deployment/web", "a/b/c/d", "rollout/web", ""] {
            assert!(ObjectName::parse(text).is_err(), "{text}");
        }
        let json = serde_json::to_value(&web).unwrap();
        assert_eq!(serde_json::from_value::<ObjectName>(json).unwrap(), web);
    }
}
