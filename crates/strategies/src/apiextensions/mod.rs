//! CustomResourceDefinition: validation, names and conditions, and the rows of defined resources.

mod conversion;
mod custom;
mod custom_resource_definition;
mod defaults;
pub mod definition;
mod definitions;
mod embedded;
mod field_path;
mod json_schema;
mod naming;
mod patterns;
pub(crate) mod rules;
mod spec;
mod structural;

pub use definitions::Definitions;

use meta::{Object, Value};

kinds! { custom_resource_definition }

/// The finalizer of definitions until their objects are deleted.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

fn versions(o: &Object) -> &[Value] {
    o.at(&["spec", "versions"]).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn storage_version(o: &Object) -> Option<String> {
    Some(versions(o).iter().find(|v| v["storage"] == true)?["name"].as_str()?.to_owned())
}

fn strings(v: Option<&Value>) -> Vec<String> {
    v.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Whether a condition of a definition is `True`.
pub fn is_true(o: &Object, condition: &str) -> bool {
    let all = o.at(&["status", "conditions"]).and_then(Value::as_array);
    all.into_iter().flatten().any(|c| c["type"] == condition && c["status"] == "True")
}
