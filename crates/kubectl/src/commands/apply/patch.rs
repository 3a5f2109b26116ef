//! The patch that client-side apply sends.

use crate::error::{Error, Result};
use crate::resource::Info;
use crate::resource::last_applied::LAST_APPLIED;
use client::Patch;
use meta::{Map, Object, Value};

/// A patch, and its text as it is sent.
pub struct Made {
    pub patch: Patch,
    pub text: String,
}

/// From what was applied last, what is, and what is to be. `overwrite`: the new configuration wins over changes of others.
pub fn three_way(i: &Info, current: &Object, modified: &Object, overwrite: bool) -> Result<Made> {
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
    Ok(Made { patch, text })
}
