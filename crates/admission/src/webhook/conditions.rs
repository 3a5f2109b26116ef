//! `matchConditions`, which are written in CEL. This is the only place that knows about them: what evaluates them belongs here.

use super::hook::Hook;
use crate::plugin::Review;
use meta::{Object, Status};

/// The conditions of a hook hold (all of them), or do not.
///
/// There is no evaluation yet. A hook with conditions is treated as upstream treats one whose conditions fail to evaluate: with
/// `failurePolicy: Ignore` it is not called, otherwise the request is refused.
pub(super) fn hold(hook: &Hook, review: &Review<'_>, _object: Option<&Object>) -> Result<bool, Status> {
    let Some((name, _)) = hook.conditions.first() else { return Ok(true) };
    if hook.ignores_failure {
        return Ok(false);
    }
    Err(review.forbidden(&format!("match condition {name:?} of webhook {:?} cannot be evaluated", hook.name)))
}
