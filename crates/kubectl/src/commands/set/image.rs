//! `kubectl set image`: sets images of containers.

use super::{Messages, SetFlags, change, pod_spec, split};
use crate::error::{Error, Result};
use crate::kube::Kube;
use meta::Value;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE/NAME, then CONTAINER=IMAGE (`*` means every container).
    pub words: Vec<String>,
    /// Only objects with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    #[command(flatten)]
    pub set: SetFlags,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let is_pair = |w: &str| w.contains('=') && !w.starts_with('=') || w.ends_with('-') && w != "-";
    let (words, pairs) = split(&a.words, "image", is_pair)?;
    let mut wrong: Vec<Error> = Vec::new();
    let mut usage_error = |t: &str| wrong.push(Error::Text(t.into()));
    let images: Vec<(&str, &str)> = pairs.iter().filter_map(|p| p.split_once('=')).collect();
    if images.len() < pairs.len() {
        let malformed: Vec<&str> = pairs.iter().filter(|p| !p.contains('=')).map(String::as_str).collect();
        return Err(Error::Text(format!("invalid image format: {}", malformed.join(", "))));
    }
    let (found, unread) = a.set.gather(k, &words, &a.selector).await?;
    Error::collect(unread)?;
    if a.set.all && !a.selector.is_empty() {
        usage_error("cannot set --all and --selector at the same time");
    }
    if images.is_empty() {
        usage_error("at least one image update is required");
    } else if images.len() > 1 && images.iter().any(|(c, _)| *c == "*") {
        usage_error(
            "all containers are already specified by *, but saw more than one container_name=container_image pairs",
        );
    }
    Error::collect(wrong)?;
    a.set.check(&a.selector)?;
    let w = Messages {
        done: "image updated",
        failed: "failed to patch image update to pod template: ",
        skip_unchanged: true,
    };
    let mut missing = Vec::new();
    let done = change(k, &a.set, &w, (found, Vec::new()), |o| {
        let spec = pod_spec(o)?;
        for (name, image) in &images {
            let mut any = false;
            for field in ["initContainers", "containers"] {
                for c in spec.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
                    if c["name"] == *name || *name == "*" {
                        any = true;
                        c["image"] = (*image).into();
                    }
                }
            }
            if !any {
                missing.push(Error::Text(format!("error: unable to find container named {name:?}")));
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
