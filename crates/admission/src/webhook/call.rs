//! Calls one webhook; shared by mutating and validating webhooks.

use super::exchange::{self, ReviewResponse};
use super::hook::DryRun;
use super::invocation::Invocation;
use crate::plugin::{CallError, Outcome, Review, TOO_MANY_OUTSIDE, WebhookCall};
use meta::{Object, Status, names};
use tokio::time::Instant;

/// Why a call did not admit the request.
pub(super) enum Failure {
    /// The call failed or the response was invalid: `failurePolicy` decides. Carries the HTTP status code.
    Calling { why: String, code: u16 },
    /// The webhook denied the request.
    Refused(Status),
    /// The webhook must not be called, or its patch cannot be applied.
    Unfit(Status),
}

impl Failure {
    /// An invalid response.
    pub fn nonsense(why: String) -> Self {
        Self::Calling { why, code: 503 }
    }

    /// The error for the client, if the failure policy rejects the request.
    pub fn under_policy(self, invocation: &Invocation<'_>) -> Result<(), Status> {
        match self {
            Self::Refused(s) | Self::Unfit(s) => Err(s),
            Self::Calling { why, .. } => {
                let text = format!("failed calling webhook {:?}: {why}", invocation.hook.name);
                if invocation.hook.ignores_failure {
                    return Ok(());
                }
                Err(Status::internal(text))
            }
        }
    }
}

/// Calls a webhook with objects that are already in its version.
pub(super) async fn call(
    invocation: &Invocation<'_>,
    review: &Review<'_>,
    object: Option<&Object>,
    old: Option<&Object>,
    mutating: bool,
) -> Result<ReviewResponse, Failure> {
    let begun = Instant::now();
    let answer = send(invocation, review, object, old, mutating).await;
    let hook = invocation.hook;
    let outcome = match &answer {
        Ok(_) => Outcome::Allowed,
        Err(Failure::Refused(s)) => Outcome::Refused(s.code),
        Err(Failure::Unfit(_)) => Outcome::Unfit,
        Err(Failure::Calling { code, .. }) => Outcome::Failed { open: hook.ignores_failure, code: *code },
    };
    let (operation, took) = (review.operation, begun.elapsed());
    review.host.record_webhook_call(&WebhookCall { hook: &hook.name, mutating, operation, took, outcome });
    answer
}

async fn send(
    invocation: &Invocation<'_>,
    review: &Review<'_>,
    object: Option<&Object>,
    old: Option<&Object>,
    mutating: bool,
) -> Result<ReviewResponse, Failure> {
    let hook = invocation.hook;
    if review.dry_run && hook.dry_run == DryRun::Unsupported {
        let why = format!("admission webhook {:?} does not support dry run", hook.name);
        return Err(Failure::Unfit(Status::bad_request(why)));
    }
    let question = exchange::question(invocation, review, object, old);
    let question = question.map_err(|why| Failure::Calling { why, code: 400 })?;
    let Some(endpoint) = &hook.endpoint else {
        let why = "could not get REST client: webhook configuration must have either service or URL";
        return Err(Failure::Calling { why: why.into(), code: 500 });
    };
    let caller = invocation.callers.to(&endpoint.place);
    let sent = review.host.post(endpoint, caller, hook.timeout, question.body.clone()).await;
    let unanswered = |e: CallError| match e {
        CallError::NotSent(why) => Failure::Calling { why: format!("could not get REST client: {why}"), code: 500 },
        CallError::Failed { code, why } => {
            Failure::Calling { why: format!("failed to call webhook: {why}"), code: code.unwrap_or(503) }
        }
        CallError::Busy => Failure::Unfit(Status::too_many_requests(TOO_MANY_OUTSIDE, 1)),
    };
    let body = sent.map_err(unanswered)?;
    let answer = exchange::answer(&question, &body, mutating).map_err(Failure::nonsense)?;
    answer.warnings.iter().for_each(|w| review.host.warn(w.clone()));
    // Skip keys that are not qualified names.
    for (k, v) in answer.annotations.iter().map(|(k, v)| (format!("{}/{k}", hook.name), v)) {
        if names::qualified_name(&k).is_empty() {
            review.host.annotate(&k, v);
        }
    }
    if !answer.allowed {
        return Err(Failure::Refused(exchange::refusal(&hook.name, answer.result.as_ref())));
    }
    Ok(answer)
}

/// Converts an object to the version of the invocation.
pub(super) async fn versioned(
    invocation: &Invocation<'_>,
    review: &Review<'_>,
    object: Option<&Object>,
) -> Result<Option<Object>, Status> {
    let Some(o) = object else { return Ok(None) };
    if invocation.kind == review.kind {
        return Ok(Some(o.clone()));
    }
    review.host.convert(o.clone(), &invocation.kind).await.map(Some)
}
