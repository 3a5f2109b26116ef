//! `matchConditions` of a hook, which are written in CEL.

use super::call::versioned;
use super::select::Invocation;
use crate::expressions::{Matched, Subject};
use crate::pace;
use crate::plugin::Review;
use meta::{Object, Status};

/// The conditions of a hook hold (all of them), or do not. One that has no value is as a hook that cannot be called: with
/// `failurePolicy: Ignore` it is not asked, otherwise the request is refused.
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
            review.host.record_exclusion(&hook.conditions.whose, review.operation);
            Ok(false)
        }
    }
}
