//! MutatingAdmissionWebhook: hooks are asked one after the other, and each sees what the ones before made.

use super::call::{Failure, call, versioned};
use super::hook::Hooks;
use super::select::{Invocation, select};
use crate::matching::is_exempt;
use crate::plugin::{Remote, Review, Rounds};
use async_trait::async_trait;
use merge::json_patch::Patch;
use meta::{Object, Status};

const RESOURCE: &str = "mutatingwebhookconfigurations";

#[derive(Default)]
pub struct Mutating {
    hooks: Hooks,
}

#[async_trait]
impl Remote for Mutating {
    fn name(&self) -> &'static str {
        "MutatingAdmissionWebhook"
    }

    fn wants(&self, review: &Review<'_>) -> bool {
        self.hooks.any(review.lookup, RESOURCE) && !is_exempt(review)
    }

    async fn mutate(&self, review: &Review<'_>, object: &mut Object, rounds: &mut Rounds) -> Result<(), Status> {
        mutate(&self.hooks, review, Some(object), rounds).await
    }

    /// A deletion has no object to change, but hooks are asked.
    async fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        match object {
            None => mutate(&self.hooks, review, None, &mut Rounds::default()).await,
            Some(_) => Ok(()),
        }
    }
}

async fn mutate(
    hooks: &Hooks,
    review: &Review<'_>,
    mut object: Option<&mut Object>,
    rounds: &mut Rounds,
) -> Result<(), Status> {
    let hooks = hooks.get(review.lookup, RESOURCE);
    if rounds.second && rounds.last.as_ref() != object.as_deref() {
        rounds.changed();
    }
    for hook in hooks.iter() {
        let Some(invocation) = select(hook, review, object.as_deref()).await? else { continue };
        // Who was not asked in the first round is not asked in the second either.
        if rounds.second && !rounds.due.contains(&hook.uid) {
            continue;
        }
        match ask(&invocation, review, object.as_deref_mut()).await {
            Ok(false) => {}
            Ok(true) => {
                rounds.changed();
                rounds.again = true;
            }
            Err(f) => f.under_policy(&invocation)?,
        }
        if hook.reinvoked {
            rounds.invoked.insert(hook.uid.clone());
        }
    }
    if rounds.again && !rounds.second {
        rounds.last = object.as_deref().cloned();
    }
    Ok(())
}

/// Asks one hook and applies its patch. True: the object is another now.
async fn ask(invocation: &Invocation<'_>, review: &Review<'_>, object: Option<&mut Object>) -> Result<bool, Failure> {
    let new = versioned(invocation, review, object.as_deref()).await.map_err(Failure::Refused)?;
    let old = versioned(invocation, review, review.old).await.map_err(Failure::Refused)?;
    let answer = call(invocation, review, new.as_ref(), old.as_ref(), true).await?;
    let Some(patch) = answer.patch else { return Ok(false) };
    let undecodable = |e: String| Failure::Calling(format!("received undecodable patch in webhook response: {e}"));
    let patch: meta::Value = serde_json::from_slice(&patch).map_err(|e| undecodable(e.to_string()))?;
    if patch == serde_json::json!([]) || patch.is_null() {
        return Ok(false);
    }
    let patch = Patch::decode(patch).map_err(|e| undecodable(e.to_string()))?;
    let internal = |why: String| Failure::Refused(Status::internal(why));
    let (Some(object), Some(new)) = (object, new) else {
        let name = &invocation.hook.name;
        return Err(internal(format!(
            "admission webhook {name:?} attempted to modify the object, which is not supported for this operation"
        )));
    };
    let mut doc = new.clone().into_value();
    patch.apply(&mut doc).map_err(|e| internal(e.to_string()))?;
    let patched = review.host.read(doc, &invocation.kind).map_err(|s| internal(s.message))?;
    if patched == new {
        return Ok(false);
    }
    *object = if invocation.kind == review.kind {
        patched
    } else {
        review.host.convert(patched, &review.kind).await.map_err(Failure::Refused)?
    };
    Ok(true)
}
