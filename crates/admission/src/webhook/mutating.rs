//! MutatingAdmissionWebhook: calls webhooks in sequence; each receives the object as the previous ones left it.

use super::call::{Failure, call, versioned};
use super::hook::Hooks;
use super::invocation::Invocation;
use super::select::select;
use crate::grown;
use crate::matching::is_exempt;
use crate::plugin::{Reinvocation, Remote, Review};
use async_trait::async_trait;
use merge::json_patch::Patch;
use meta::{Clock, Object, Status, Value};
use serde_json::json;
use std::sync::Arc;

const RESOURCE: &str = "mutatingwebhookconfigurations";

pub struct Mutating {
    hooks: Hooks,
}

impl Mutating {
    pub fn new(config: Option<&Value>) -> Result<Self, String> {
        Ok(Self { hooks: Hooks::new(config)? })
    }
}

#[async_trait]
impl Remote for Mutating {
    fn name(&self) -> &'static str {
        "MutatingAdmissionWebhook"
    }

    async fn open(&mut self, _clock: &Arc<dyn Clock>) -> Result<(), String> {
        self.hooks.open()
    }

    fn applies(&self, review: &Review<'_>) -> bool {
        self.hooks.any(review.lookup, RESOURCE) && !is_exempt(review)
    }

    async fn mutate(&self, review: &Review<'_>, object: &mut Object, rounds: &mut Reinvocation) -> Result<(), Status> {
        mutate(&self.hooks, review, Some(object), rounds).await
    }

    /// A deletion has no object to mutate, but webhooks are called.
    async fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        match object {
            None => mutate(&self.hooks, review, None, &mut Reinvocation::default()).await,
            Some(_) => Ok(()),
        }
    }
}

async fn mutate(
    hooks: &Hooks,
    review: &Review<'_>,
    mut object: Option<&mut Object>,
    rounds: &mut Reinvocation,
) -> Result<(), Status> {
    let callers = &hooks.callers;
    let hooks = hooks.get(review.lookup, RESOURCE).await?;
    if rounds.second {
        rounds.webhooks.begin_again(object.as_deref());
    }
    for (index, hook) in hooks.iter().enumerate() {
        let Some(invocation) = select(callers, hook, review, object.as_deref()).await? else { continue };
        // The second round calls only webhooks that the first round called.
        if rounds.second && !rounds.webhooks.is_due(&hook.uid) {
            continue;
        }
        let key = format!("mutation.webhook.admission.k8s.io/round_{}_index_{index}", u8::from(rounds.second));
        let outcome = call_and_patch(&invocation, review, object.as_deref_mut(), &key).await;
        let mutated = matches!(outcome, Ok(true));
        let (configuration, name) = (&hook.configuration, &hook.name);
        let note = json!({"configuration": configuration, "webhook": name, "mutated": mutated});
        review.host.annotate(&key, &go_struct(&note, &["configuration", "webhook", "mutated"]));
        match outcome {
            Ok(false) => {}
            Ok(true) => {
                rounds.webhooks.changed();
                rounds.again = true;
            }
            Err(f) => {
                f.under_policy(&invocation)?;
                review.host.annotate(&format!("failed-open.{key}"), name);
            }
        }
        if hook.reinvoked {
            rounds.webhooks.mark(&hook.uid);
        }
    }
    if !rounds.second {
        rounds.webhooks.end(object.as_deref());
    }
    Ok(())
}

/// Serializes an object with its fields in the given order, as Go writes the struct.
fn go_struct(v: &Value, fields: &[&str]) -> String {
    let all: Vec<String> = fields.iter().map(|f| format!("{:?}:{}", f, v[*f])).collect();
    format!("{{{}}}", all.join(","))
}

/// Serializes a JSON patch as Go does: the fields of each operation sorted by name.
fn go_patch(patch: &Value) -> String {
    let operation = |o: &Value| {
        let mut names: Vec<&str> = o.as_object().into_iter().flatten().map(|(k, _)| k.as_str()).collect();
        names.sort_unstable();
        go_struct(o, &names)
    };
    let all: Vec<String> = patch.as_array().into_iter().flatten().map(operation).collect();
    format!("[{}]", all.join(","))
}

/// Calls one webhook and applies its patch. Returns true if the object changed. `key` is the audit annotation of the
/// call.
async fn call_and_patch(
    invocation: &Invocation<'_>,
    review: &Review<'_>,
    object: Option<&mut Object>,
    key: &str,
) -> Result<bool, Failure> {
    let new = versioned(invocation, review, object.as_deref()).await.map_err(Failure::Unfit)?;
    let old = versioned(invocation, review, review.old).await.map_err(Failure::Unfit)?;
    let answer = call(invocation, review, new.as_ref(), old.as_ref(), true).await?;
    let Some(patch) = answer.patch else { return Ok(false) };
    let undecodable = |e: String| Failure::nonsense(format!("received undecodable patch in webhook response: {e}"));
    let sent: Value = meta::depth::from_slice(&patch).map_err(|e| undecodable(e.to_string()))?;
    if sent == json!([]) || sent.is_null() {
        return Ok(false);
    }
    let patch = Patch::decode(sent.clone()).map_err(|e| undecodable(e.to_string()))?;
    let internal = |why: String| Failure::Unfit(Status::internal(why));
    let (Some(object), Some(new)) = (object, new) else {
        let name = &invocation.hook.name;
        return Err(internal(format!(
            "admission webhook {name:?} attempted to modify the object, which is not supported for this operation"
        )));
    };
    let mut doc = new.clone().into_value();
    patch.apply(&mut doc).map_err(|e| internal(e.to_string()))?;
    grown::check(&doc).map_err(internal)?;
    let patched = review.host.read(doc, &invocation.kind).map_err(|s| internal(s.message))?;
    let (configuration, name) = (&invocation.hook.configuration, &invocation.hook.name);
    let note = json!({"configuration": configuration, "webhook": name});
    let (note, sent) = (go_struct(&note, &["configuration", "webhook"]), go_patch(&sent));
    let note = format!("{},\"patch\":{sent},\"patchType\":\"JSONPatch\"}}", note.trim_end_matches('}'));
    review.host.annotate_details(&key.replacen("mutation.", "patch.", 1), &note);
    if patched == new {
        return Ok(false);
    }
    *object = if invocation.kind == review.kind {
        patched
    } else {
        review.host.convert(patched, &review.kind).await.map_err(Failure::Unfit)?
    };
    Ok(true)
}
