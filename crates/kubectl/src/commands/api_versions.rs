//! `kubectl api-versions`: lists the group versions of the server.

use crate::error::Result;
use crate::kube::Kube;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {}

pub async fn run(_: Arguments, k: &mut Kube) -> Result {
    let mut all = k.refresh().await?.versions.clone();
    all.sort();
    all.iter().for_each(|v| k.println(v));
    Ok(())
}
