//! `kubectl set serviceaccount`: sets the service account of pods.

use super::{Messages, SetFlags, change, pod_spec};
use crate::error::{Error, Result, text};
use crate::kube::Kube;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE NAME or TYPE/NAME, then the name of the service account.
    pub words: Vec<String>,
    #[command(flatten)]
    pub set: SetFlags,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    a.set.check("")?;
    let Some((account, words)) = a.words.split_last() else { return text("serviceaccount is required") };
    let words = if a.set.local { &[] } else { words };
    let (found, errors) = a.set.gather(k, words, "").await?;
    Error::collect(errors)?;
    let w = Messages {
        done: "serviceaccount updated",
        failed: "failed to patch ServiceAccountName ",
        skip_unchanged: false,
    };
    change(k, &a.set, &w, (found, Vec::new()), |o| {
        pod_spec(o)?.insert("serviceAccountName".into(), account.as_str().into());
        Ok(())
    })
    .await
}
