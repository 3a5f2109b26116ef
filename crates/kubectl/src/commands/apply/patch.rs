//! The patch that client-side apply sends.

use crate::error::{Error, Result};
use crate::resource::Info;
use crate::resource::last_applied::LAST_APPLIED;
use client::Patch;
use meta::{Map, Object, Value};

/// A patch and its serialized text.
pub struct GeneratedPatch {
    pub patch: Patch,
    pub text: String,
}

/// Computes the patch from the last applied, the live and the new configuration. With `overwrite` the new configuration
/// replaces changes of others; otherwise they are an error.
pub fn three_way(i: &Info, current: &Object, modified: &Object, overwrite: bool) -> Result<GeneratedPatch> {
    let original: Map<String, Value> = match current.annotation(LAST_APPLIED) {
        None => Map::new(),
        Some(text) => serde_json::from_str(text)
            .map_err(|e| Error::Text(format!("reading the last applied configuration of {}: {e}", i.to_name())))?,
    };
    let patch = match kinds::catalog().schema_of(&i.resource.gvk()) {
        Some(schema) => {
            let overwrite = match overwrite {
                true => merge::strategic::Overwrite::Yes,
                false => merge::strategic::Overwrite::No,
            };
            let m = merge::strategic::three_way(&original, &modified.0, &current.0, Some(schema), overwrite);
            let m = m.map_err(|e| {
                Error::Text(e.to_string()).about(
                    format!(
                        "creating patch with:\noriginal:\n{}\nmodified:\n{}\ncurrent:\n{}\nfor:",
                        Value::Object(original.clone()),
                        Value::Object(modified.0.clone()),
                        Value::Object(current.0.clone())
                    ),
                    &i.source,
                )
            })?;
            Patch::Strategic(Value::Object(m))
        }
        None => Patch::Merge(Value::Object(merge::merge_patch::three_way(&original, &modified.0, &current.0))),
    };
    let text = codec::json::to_string(patch.document(), codec::json::Html::Escape);
    Ok(GeneratedPatch { patch, text })
}
