//! One call of one hook, the same for mutating and validating ones.

use super::exchange::{self, Answer};
use super::hook::DryRun;
use super::select::Invocation;
use crate::plugin::{Asked, Outcome, Review};
use meta::{Object, Status};
use tokio::time::Instant;

/// Why a call brought no permission.
pub(super) enum Failure {
    /// The hook could not be asked or answered nonsense: its `failurePolicy` decides.
    Calling(String),
    /// It answered, or must not be asked.
    Refused(Status),
}

impl Failure {
    /// What the client gets, if anything.
    pub fn under_policy(self, invocation: &Invocation<'_>) -> Result<(), Status> {
        match self {
            Self::Refused(s) => Err(s),
            Self::Calling(why) => {
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
) -> Result<Answer, Failure> {
    let begun = Instant::now();
    let answer = ask(invocation, review, object, old, mutating).await;
    let hook = invocation.hook;
    let outcome = match &answer {
        Ok(_) => Outcome::Allowed,
        Err(Failure::Refused(s)) => Outcome::Refused(s.code),
        Err(Failure::Calling(_)) => Outcome::Failed { open: hook.ignores_failure },
    };
    let (operation, took) = (review.operation, begun.elapsed());
    review.host.asked(&Asked { hook: &hook.name, mutating, operation, took, outcome });
    answer
}

async fn ask(
    invocation: &Invocation<'_>,
    review: &Review<'_>,
    object: Option<&Object>,
    old: Option<&Object>,
    mutating: bool,
) -> Result<Answer, Failure> {
    let hook = invocation.hook;
    if review.dry_run && hook.dry_run == DryRun::Unsupported {
        let why = format!("admission webhook {:?} does not support dry run", hook.name);
        return Err(Failure::Refused(Status::bad_request(why)));
    }
    let question = exchange::question(invocation, review, object, old).map_err(Failure::Calling)?;
    let Some(endpoint) = &hook.endpoint else {
        let why = "could not get REST client: webhook configuration must have either service or URL";
        return Err(Failure::Calling(why.into()));
    };
    let sent = review.host.post(endpoint, hook.timeout, question.body.clone()).await;
    let body = sent.map_err(|e| Failure::Calling(format!("failed to call webhook: {e}")))?;
    let answer = exchange::answer(&question, &body, mutating).map_err(Failure::Calling)?;
    answer.warnings.iter().for_each(|w| review.host.warn(w.clone()));
    for (k, v) in &answer.annotations {
        review.host.annotate(&format!("{}/{k}", hook.name), v);
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
