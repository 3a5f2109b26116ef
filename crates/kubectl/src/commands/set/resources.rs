//! `kubectl set resources`: sets resource requests and limits of containers.

use super::{Messages, SetFlags, change, containers, pod_spec};
use crate::error::{Error, Result, text};
use crate::kube::Kube;
use meta::{Map, Quantity, Value};

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE NAME, or TYPE/NAME.
    pub words: Vec<String>,
    /// Only objects with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Only containers with this name; may contain `*`.
    #[arg(short = 'c', long, default_value = "*", hide_default_value = true)]
    pub containers: String,
    /// Limits: cpu=100m,memory=256Mi.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub limits: String,
    /// Requests: cpu=100m,memory=256Mi.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub requests: String,
    #[command(flatten)]
    pub set: SetFlags,
}

fn quantities(spec: &str) -> Result<Map<String, Value>> {
    let mut out = Map::new();
    for part in spec.split(',').filter(|_| !spec.is_empty()) {
        let Some((name, value)) = part.split_once('=').filter(|(_, v)| !v.contains('=')) else {
            return text(format!("Invalid argument syntax {part}, expected <resource>=<value>"));
        };
        let q = Quantity::parse(value).map_err(|e| Error::Text(e.to_string()))?;
        out.insert(name.to_owned(), q.to_string().into());
    }
    Ok(out)
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let found = a.set.gather(k, &a.words, &a.selector).await?;
    Error::collect(found.1)?;
    a.set.check(&a.selector)?;
    if a.limits.is_empty() && a.requests.is_empty() {
        return text("you must specify an update to requests or limits (in the form of --requests/--limits)");
    }
    let new_values = [("limits", quantities(&a.limits)?), ("requests", quantities(&a.requests)?)];
    let w = Messages {
        done: "resource requirements updated",
        failed: "failed to patch resources update to pod template ",
        skip_unchanged: true,
    };
    let mut missing = Vec::new();
    let done = change(k, &a.set, &w, (found.0, Vec::new()), |o| {
        let all = containers(pod_spec(o)?, &a.containers);
        if all.is_empty() {
            missing.push(Error::Text(format!("error: unable to find container named {}", a.containers)));
        }
        for c in all {
            for (field, values) in new_values.iter().filter(|(_, v)| !v.is_empty()) {
                let r = c.entry("resources").or_insert_with(|| Map::new().into());
                let Some(r) = r.as_object_mut() else { continue };
                let r = r.entry(*field).or_insert_with(|| Map::new().into());
                if let Some(r) = r.as_object_mut() {
                    r.extend(values.clone());
                }
            }
        }
        Ok(())
    })
    .await;
    if let Err(e) = done {
        missing.push(e);
    }
    Error::collect(missing)
}
