//! The types of kinds that are not built in, as the server publishes them (upstream `ClientDiscoveryResolver`).

use crate::context::Context;
use crate::discovery;
use cel::{Field, Type};
use client::ApiResource;
use expressions::{metadata_type, schema_type};
use meta::{GroupVersion, Gvk, Gvr, Value};

const METADATA: &str = "metadata";

/// The kinds and schemas of one version of a group.
struct Version {
    gv: GroupVersion,
    resources: Vec<ApiResource>,
    document: Value,
}

/// Types of the custom kinds that a policy names.
#[derive(Default)]
pub struct Custom(Vec<Version>);

impl Custom {
    /// Reads them from the server; kinds that it does not publish are unknown.
    pub async fn read(context: &Context, versions: Vec<GroupVersion>) -> Self {
        let mut out = Vec::new();
        for gv in versions {
            let resources = discovery::of_version(&context.client, &gv).await;
            let document = context.client.get::<Value>(&format!("/openapi/v3/apis/{gv}")).await;
            if let (Ok(resources), Ok(document)) = (resources, document) {
                out.push(Version { gv, resources, document });
            }
        }
        Self(out)
    }

    fn version(&self, group: &str, version: &str) -> Option<&Version> {
        self.0.iter().find(|v| v.gv.group == group && v.gv.version == version)
    }

    pub fn kind(&self, gvr: &Gvr) -> Option<Gvk> {
        let of = self.version(&gvr.group, &gvr.version)?;
        let found = of.resources.iter().find(|r| r.gvr().resource == gvr.resource)?;
        Some(Gvk::new(&gvr.group, &gvr.version, found.kind()))
    }

    pub fn type_of(&self, kind: &Gvk) -> Option<Type> {
        let schemas = self.version(&kind.group, &kind.version)?.document["components"]["schemas"].as_object()?;
        let is = |s: &Value| {
            let all = s["x-kubernetes-group-version-kind"].as_array().map(Vec::as_slice).unwrap_or_default();
            all.iter().any(|g| g["group"] == *kind.group && g["version"] == *kind.version && g["kind"] == *kind.kind)
        };
        let schema = schemas.values().find(|s| is(s))?;
        let Type::Object(made) = schema_type(&resolved(schema, schemas, &mut Vec::new()))? else {
            return None;
        };
        // The fields of every object are the same for all kinds.
        let mut object = (*made).clone();
        if let Some(decl) = metadata_type().filter(|_| object.fields.contains_key(METADATA)) {
            object.fields.insert(METADATA.into(), Field { json: METADATA.into(), decl: decl.into() });
        }
        Some(Type::Object(object.into()))
    }
}

/// Resolves the references of a schema; recursion ends at the first repetition.
fn resolved(schema: &Value, all: &serde_json::Map<String, Value>, within: &mut Vec<String>) -> Value {
    let reference = |v: &Value| Some(v["$ref"].as_str()?.rsplit('/').next()?.to_owned());
    let to = reference(schema).or_else(|| match schema["allOf"].as_array().map(Vec::as_slice) {
        Some([one]) => reference(one),
        _ => None,
    });
    if let Some(name) = to {
        let Some(found) = all.get(&name).filter(|_| !within.contains(&name)) else { return Value::Null };
        within.push(name);
        let out = resolved(found, all, within);
        within.pop();
        return out;
    }
    let mut out = schema.clone();
    for key in ["items", "additionalProperties"] {
        if schema[key].is_object() {
            out[key] = resolved(&schema[key], all, within);
        }
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        out["properties"][name] = resolved(property, all, within);
    }
    out
}
