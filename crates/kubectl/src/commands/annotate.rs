//! `kubectl annotate`: sets and removes annotations.

use super::keys;
use crate::error::Result;
use crate::kube::Kube;

pub use keys::Arguments;

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    keys::run(a, k, keys::Keys::Annotations).await
}
