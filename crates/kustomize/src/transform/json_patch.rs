//! Applies JSON patches (RFC 6902) to the selected objects.

use super::Transform;
use crate::Error;
use crate::go::go_struct;
use crate::kustomization::Selector;
use crate::resource::Resource;
use crate::resources::Resources;
use crate::root::Root;
use meta::{Map, Value};

go_struct! {
    /// The older form, `patchesJson6902`.
    JsonPatch "PatchJson6902Transformer" {
        target: Option<Selector> = "target",
        path: String = "path",
        json_op: String = "jsonOp",
    }
}

/// Parses operations in YAML or JSON.
pub fn operations(text: &str) -> Result<Value, Error> {
    let value = if text.starts_with('[') {
        serde_json::from_str(text).map_err(Error::text)?
    } else {
        codec::yaml::parse(text).map_err(Error::text)?.into_iter().next().unwrap_or_default()
    };
    merge::json_patch::Patch::decode(value.clone()).map_err(Error::text)?;
    Ok(value)
}

/// Applies operations to an object.
pub fn apply(r: &mut Resource, operations: &Value) -> Result<(), Error> {
    // Upstream stores its history in annotations, so that the map exists for a patch to add to.
    if r.has_history() {
        let slot = r.metadata_mut().entry("annotations").or_insert(Value::Null);
        if slot.is_null() {
            *slot = Value::Object(Map::new());
        }
    }
    let patch = merge::json_patch::Patch::decode(operations.clone()).map_err(Error::text)?;
    let mut document = Value::Object(std::mem::take(&mut r.object));
    let result = patch.apply(&mut document).map_err(Error::text);
    if let Value::Object(m) = document {
        r.object = m;
    }
    if let Some(Value::Object(m)) = r.object.get_mut("metadata")
        && m.get("annotations").and_then(Value::as_object).is_some_and(Map::is_empty)
    {
        m.remove("annotations");
    }
    result
}

impl JsonPatch {
    /// Reads and parses the patch.
    pub fn load(mut self, root: &Root<'_>) -> Result<Loaded, Error> {
        let Some(target) = self.target.take().filter(|t| !t.name.is_empty()) else {
            return Err(Error::text("must specify the target name"));
        };
        let text = match (self.path.as_str(), self.json_op.as_str()) {
            ("", "") => return Err(Error::text("empty file path and empty jsonOp")),
            ("", text) => text.to_owned(),
            (path, "") => root.read_text(path)?,
            _ => return Err(Error::text("must specify a file path or jsonOp, not both")),
        };
        if text.is_empty() {
            return Err(Error::text(format!("patch file '{}' empty seems to be empty", self.path)));
        }
        let operations = operations(&text).map_err(|e| Error::text(format!("decoding {text}: {e}")))?;
        if operations.as_array().is_none_or(Vec::is_empty) {
            return Err(Error::text(format!("patch appears to be empty; file={}, JsonOp={}", self.path, self.json_op)));
        }
        Ok(Loaded { target, operations })
    }
}

/// A patch with its parsed operations.
pub struct Loaded {
    target: Selector,
    operations: Value,
}

impl Transform for Loaded {
    fn apply(&self, all: &mut Resources) -> Result<(), Error> {
        for i in all.select(&self.target)? {
            apply(&mut all.0[i], &self.operations)?;
        }
        Ok(())
    }
}
