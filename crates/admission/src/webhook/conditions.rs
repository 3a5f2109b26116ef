//! `matchConditions` of a webhook (CEL).

use super::call::versioned;
use super::invocation::Invocation;
use crate::evaluation::{Matched, Subject};
use crate::pace;
use crate::plugin::Review;
use meta::{Object, Status};

/// Whether all match conditions of a webhook hold. An evaluation error counts as a failed call: with `failurePolicy:
/// Ignore` the webhook is skipped, otherwise the request is rejected.
pub(super) async fn hold(
    invocation: &Invocation<'_>,
    review: &Review<'_>,
    object: Option<&Object>,
) -> Result<bool, Status> {
    let hook = invocation.hook;
    if hook.conditions.is_empty() {
        return Ok(true);
    }
    let new = versioned(invocation, review, object).await?;
    let old = versioned(invocation, review, review.old).await?;
    let turn = pace::turn().await;
    let held = turn.take(|| {
        let subject = Subject::new(review, &invocation.resource, &invocation.kind, new.as_ref(), old.as_ref());
        hook.conditions.hold(&subject, review)
    });
    match held {
        Matched::Yes => Ok(true),
        Matched::Failed(why) if !hook.ignores_failure => Err(review.forbidden(&why)),
        Matched::No | Matched::Failed(_) => {
            review.host.record_exclusion(&hook.conditions.owner, review.operation);
            Ok(false)
        }
    }
}
