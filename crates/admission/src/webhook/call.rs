//! One call of one hook, the same for mutating and validating ones.

use super::exchange::{self, ReviewResponse};
use super::hook::DryRun;
use super::select::Invocation;
use crate::plugin::{CallError, Outcome, Review, TOO_MANY_OUTSIDE, WebhookCall};
use meta::{Object, Status, names};
use tokio::time::Instant;

/// Why a call brought no permission.
pub(super) enum Failure {
    /// The hook could not be asked or answered nonsense: its `failurePolicy` decides. With the HTTP code that tells why.
    Calling { why: String, code: u16 },
    /// It answered.
    Refused(Status),
    /// It must not be asked, or what it wants cannot be done.
    Unfit(Status),
}

impl Failure {
    /// What came back means nothing.
    pub fn nonsense(why: String) -> Self {
        Self::Calling { why, code: 503 }
    }

    /// What the client gets, if anything.
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

/// Asks a hook about objects that are in its version already.
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
    // What is no name is left out.
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

/// An object in the version of an invocation.
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
