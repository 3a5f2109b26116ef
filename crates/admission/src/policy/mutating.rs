//! MutatingAdmissionPolicy: applies policies in sequence; each receives the object as the previous ones left it.

use super::params;
use super::read::{Binding, Bound, Family, Form, Mutation, Policies, Policy};
use crate::configuration::{Fields, Kind, STATIC_MANIFESTS, TEXT, without_manifests};
use crate::evaluation::{Composed, EvalError, Matched, Subject};
use crate::grown;
use crate::matching::is_exempt_of_policies;
use crate::pace;
use crate::plugin::{Lookup, PolicyDecision, Reinvocation, Remote, Review, WriteRequest};
use async_trait::async_trait;
use cel::{Budget, RUNTIME_BUDGET};
use merge::json_patch::Patch;
use meta::status::{Cause, Reason};
use meta::{Gvk, Gvr, Object, Status, Value};
use tokio::time::Instant;

/// Maximum number of reported failures: each binding, parameter and mutation may fail.
const MAX_FAILURES: usize = 100;

pub struct Mutating {
    policies: Policies,
}

const KIND: Kind = Kind {
    versions: &[("apiserver.config.k8s.io/v1", "MutatingAdmissionPolicyConfiguration")],
    fields: Fields("MutatingAdmissionPolicyConfiguration", &[(STATIC_MANIFESTS, TEXT)]),
};

impl Mutating {
    pub fn new(config: Option<&Value>) -> Result<Self, String> {
        let config = config.map_or(Ok(Value::Null), |s| KIND.read(s))?;
        without_manifests(&config)?;
        let (policies, bindings) = ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings");
        Ok(Self { policies: Policies::new(Family { policies, bindings }) })
    }
}

#[async_trait]
impl Remote for Mutating {
    fn name(&self) -> &'static str {
        "MutatingAdmissionPolicy"
    }

    fn applies(&self, review: &Review<'_>) -> bool {
        self.policies.any(review.lookup) && !is_exempt_of_policies(review)
    }

    fn reads(&self, write: &WriteRequest<'_>, lookup: &dyn Lookup) -> usize {
        self.policies.reads(write, lookup)
    }

    async fn mutate(&self, review: &Review<'_>, object: &mut Object, rounds: &mut Reinvocation) -> Result<(), Status> {
        if rounds.second {
            rounds.policies.begin_again(Some(object));
        }
        let (mut wrong, before) = (Vec::new(), std::mem::take(&mut rounds.again));
        let bound_policies = self.policies.get(review.lookup).await?;
        for Bound { policy: p, bindings } in bound_policies.iter() {
            match p.matcher.matches(review, Some(object)) {
                Ok(None) => {}
                Ok(Some((resource, kind))) => {
                    for b in bindings {
                        let why = bound(p, b, review, object, (&resource, &kind), rounds).await;
                        let left = MAX_FAILURES.saturating_sub(wrong.len());
                        wrong.extend(
                            why.into_iter().take(left).filter(|_| !p.ignores_failure).map(|why| {
                                format!("policy '{}' with binding '{}' denied request: {why}", p.name, b.name)
                            }),
                        );
                    }
                }
                Err(e) if p.ignores_failure => drop(e),
                Err(e) => {
                    let why = format!("failed to configure policy: {}", e.message);
                    wrong.push(format!("policy {:?} denied request: {why}", p.name));
                }
            }
        }
        if rounds.again {
            // All policies with `reinvocationPolicy: IfNeeded` are reinvoked, the last one too.
            rounds.policies.changed();
        }
        rounds.again |= before;
        if !rounds.second {
            rounds.policies.end(Some(object));
        }
        if wrong.is_empty() { Ok(()) } else { Err(refusal(review, wrong)) }
    }
}

/// Applies a policy with its bindings. Returns the failures.
async fn bound(
    p: &Policy,
    b: &Binding,
    review: &Review<'_>,
    object: &mut Object,
    meant: (&Gvr, &Gvk),
    rounds: &mut Reinvocation,
) -> Vec<String> {
    let unusable = |why: String| vec![format!("failed to configure binding: {why}")];
    match b.matcher.matches(review, Some(object)) {
        Ok(Some(_)) => {}
        Ok(None) => return Vec::new(),
        Err(e) => return unusable(e.message),
    }
    let mut params = match params::find(p.param_kind.as_ref(), b.param.as_ref(), review) {
        Ok(found) => found,
        Err(e) => return unusable(e),
    };
    let mut wrong = Vec::new();
    while let Some(param) = params.next(review).await {
        let param = match param {
            Ok(param) => param,
            Err(e) => return unusable(e),
        };
        match applied(p, b, review, object, meant, param.as_ref(), rounds).await {
            Ok(()) => {}
            Err(why) => wrong.extend(why.into_iter().take(MAX_FAILURES.saturating_sub(wrong.len()))),
        }
    }
    wrong
}

async fn applied(
    p: &Policy,
    b: &Binding,
    review: &Review<'_>,
    object: &mut Object,
    (resource, kind): (&Gvr, &Gvk),
    param: Option<&Object>,
    rounds: &mut Reinvocation,
) -> Result<(), Vec<String>> {
    let same = *kind == review.kind;
    let convert = async |o: &Object, to: &Gvk| match same {
        true => Ok(o.clone()),
        false => review.host.convert(o.clone(), to).await.map_err(|s| vec![s.message]),
    };
    let mut new = convert(object, kind).await?;
    let old = match review.old {
        Some(o) => Some(convert(o, kind).await?),
        None => None,
    };
    let before = new.clone();
    let turn = pace::turn().await;
    let held = turn.take(|| {
        let subject = Subject::new(review, resource, kind, Some(&new), old.as_ref()).with_params(param);
        p.conditions.hold(&subject, review)
    });
    match held {
        Matched::Yes => {}
        Matched::No => return Ok(()),
        Matched::Failed(why) => return Err(vec![why]),
    }
    let of_param = param.map(|o| format!("{}/{}", o.namespace(), o.name())).unwrap_or_default();
    let key = format!("policy/{}/{}/{of_param}", p.name, b.name);
    // The second round applies only policies that the first round applied.
    if rounds.second && !rounds.policies.is_due(&key) {
        return Ok(());
    }
    let (mut wrong, mut applied) = (Vec::new(), false);
    for m in &p.mutations {
        let turn = pace::turn().await;
        let begun = Instant::now();
        let made = turn.take(|| {
            let subject = Subject::new(review, resource, kind, Some(&new), old.as_ref()).with_params(param);
            mutate(m, p, &subject, &new, review, kind)
        });
        let error = made.as_ref().err().map_or("no_error", EvalError::error_type);
        let (policy, binding) = (p.name.as_str(), b.name.as_str());
        review.host.record_policy_decision(&PolicyDecision {
            policy,
            binding,
            error,
            action: None,
            took: begun.elapsed(),
        });
        match made {
            Ok(o) => (new, applied) = (o, true),
            Err(why) => wrong.push(why.to_string()),
        }
    }
    if new != before {
        *object = convert(&new, &review.kind).await?;
        rounds.policies.changed();
    }
    if p.reinvoked {
        rounds.policies.mark(&key);
    }
    // An applied mutation causes a second round, even if it changed nothing.
    rounds.again |= applied;
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// Returns the object after one mutation.
fn mutate(
    m: &Mutation,
    p: &Policy,
    subject: &Subject<'_>,
    object: &Object,
    review: &Review<'_>,
    kind: &Gvk,
) -> Result<Object, EvalError> {
    let vars = Composed::new(subject, &p.variables);
    let mut made = m.expression.eval(&vars, &mut Budget::new(RUNTIME_BUDGET))?.to_json()?;
    let live = object.clone().into_value();
    let doc = match m.form {
        Form::JsonPatch => {
            let mut doc = live;
            let patch = Patch::decode(made).map_err(|e| e.to_string())?;
            patch.apply(&mut doc).map_err(|e| format!("JSON Patch: {e}"))?;
            doc
        }
        Form::ApplyConfiguration => {
            made["apiVersion"] = kind.api_version().into();
            made["kind"] = (&*kind.kind).into();
            review.host.merge(&live, &made, kind)?
        }
    };
    grown::check(&doc)?;
    review.host.read(doc, kind).map_err(|s| s.message.into())
}

fn refusal(review: &Review<'_>, wrong: Vec<String>) -> Status {
    let mut s = review.forbidden("admission request denied by policy");
    s.reason = Reason::Invalid;
    s.message = wrong.first().cloned().unwrap_or_default();
    if let Some(details) = &mut s.details {
        details.causes.extend(wrong.into_iter().map(|message| Cause { message, ..Cause::default() }));
    }
    s
}
