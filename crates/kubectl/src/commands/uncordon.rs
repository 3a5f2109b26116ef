//! `kubectl uncordon`: marks nodes as schedulable.

use super::cordon;
use crate::error::Result;
use crate::kube::Kube;

pub use cordon::Arguments;

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    cordon::run_for(a, k, false).await
}
