//! `kubectl set selector`: sets the selector of services only, as in upstream.

use super::{Messages, SetFlags, change};
use crate::error::{Error, Result, text};
use crate::flags::label_selector;
use crate::kube::Kube;
use meta::{Map, Value};

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE NAME or TYPE/NAME, then the selector: KEY=VALUE,….
    pub words: Vec<String>,
    /// Only if the object has this resource version.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub resource_version: String,
    #[command(flatten)]
    pub set: SetFlags,
}

/// Returns the labels of a selector that contains only equality.
fn labels(selector: &str) -> Result<Map<String, Value>> {
    let parsed = label_selector(selector)?;
    let go = |e: &Value| {
        let values: Vec<&str> = e["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let s = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        format!("{{{} {} [{}]}}", s(&e["key"]), s(&e["operator"]), values.join(" "))
    };
    match parsed["matchExpressions"].as_array() {
        Some(all) => {
            let all: Vec<String> = all.iter().map(go).collect();
            text(format!("match expression [{}] not supported on this object", all.join(" ")))
        }
        None => Ok(parsed["matchLabels"].as_object().cloned().unwrap_or_default()),
    }
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let Some((selector, words)) = a.words.split_last() else { return text("one selector is required") };
    label_selector(selector)?;
    a.set.dry.strategy()?;
    let (found, unread) = a.set.gather(k, words, "").await?;
    let labels = labels(selector)?;
    let w = Messages { done: "selector updated", failed: "", skip_unchanged: false };
    let mut refused = None;
    let done = change(k, &a.set, &w, (found, Vec::new()), |o| {
        if o.kind() != "Service" {
            refused.get_or_insert_with(|| Error::Text("setting a selector is only supported for Services".into()));
            return text("");
        }
        if !a.resource_version.is_empty() {
            o.set_resource_version(&a.resource_version);
        }
        match labels.is_empty() {
            true => _ = o.remove(&["spec", "selector"]),
            false => o.set(&["spec", "selector"], labels.clone()),
        }
        Ok(())
    })
    .await;
    let mut errors: Vec<Error> = refused.map_or(done, Err).err().into_iter().collect();
    errors.extend(unread);
    Error::collect(errors)
}
