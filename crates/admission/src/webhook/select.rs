//! Selects the webhooks for a request, and the version in which each receives the object.

use super::conditions;
use super::hook::Hook;
use super::invocation::Invocation;
use crate::plugin::Review;
use auth::Callers;
use meta::{Object, Status};

pub(super) async fn select<'a>(
    callers: &'a Callers,
    hook: &'a Hook,
    review: &Review<'_>,
    object: Option<&Object>,
) -> Result<Option<Invocation<'a>>, Status> {
    let Some((resource, kind)) = hook.matcher.matches(review, object)? else { return Ok(None) };
    let invocation = Invocation { hook, callers, resource, kind };
    Ok(conditions::hold(&invocation, review, object).await?.then_some(invocation))
}
