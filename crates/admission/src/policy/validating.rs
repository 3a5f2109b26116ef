//! The plugin ValidatingAdmissionPolicy.

use super::params;
use super::read::{Action, Binding, Family, Policies, Policy, Validation};
use crate::expressions::{Composed, Matched, Subject};
use crate::matching::is_exempt;
use crate::plugin::{Plugin, Review};
use cel::{Budget, RUNTIME_BUDGET, Val};
use meta::status::{Cause, Reason};
use meta::{Gvk, Gvr, Object, Status};
use std::borrow::Cow;

/// The longest message an expression may make.
const LONGEST_MESSAGE: usize = 5 * 1024;

pub struct Validating {
    policies: Policies,
}

impl Default for Validating {
    fn default() -> Self {
        let (policies, bindings) = ("validatingadmissionpolicies", "validatingadmissionpolicybindings");
        Self { policies: Policies::new(Family { policies, bindings }) }
    }
}

/// Why a request is not as a policy wants it.
struct Denial {
    policy: String,
    binding: Option<String>,
    message: String,
    reason: String,
}

impl Plugin for Validating {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        if !self.policies.any(review.lookup) || is_exempt(review) {
            return Ok(());
        }
        let mut denials = Vec::new();
        for p in self.policies.get(review.lookup).iter() {
            match p.matcher.matches(review, object) {
                Ok(None) => {}
                Ok(Some((resource, kind))) => {
                    for b in &p.bindings {
                        bound(p, b, review, object, (&resource, &kind), &mut denials);
                    }
                }
                Err(e) => unusable(p, None, &e.message, &mut denials),
            }
        }
        // The first denial is the one that is told.
        denials.into_iter().next().map_or(Ok(()), |d| Err(refusal(review, &d)))
    }
}

/// A policy or a binding cannot be applied.
fn unusable(p: &Policy, b: Option<&Binding>, why: &str, denials: &mut Vec<Denial>) {
    if !p.ignores_failure {
        let what = if b.is_some() { "binding" } else { "policy" };
        denials.push(Denial {
            policy: p.name.clone(),
            binding: b.map(|b| b.name.clone()),
            message: format!("failed to configure {what}: {why}"),
            reason: String::new(),
        });
    }
}

fn bound<'o>(
    p: &Policy,
    b: &Binding,
    review: &Review<'o>,
    object: Option<&'o Object>,
    meant: (&Gvr, &Gvk),
    denials: &mut Vec<Denial>,
) {
    match b.matcher.matches(review, object) {
        Ok(Some(_)) => {}
        Ok(None) => return,
        Err(e) => {
            unusable(p, Some(b), &e.message, denials);
            return;
        }
    }
    let params = match params::find(p.param_kind.as_ref(), b.param.as_ref(), review) {
        Ok(found) => found,
        Err(e) => {
            unusable(p, Some(b), &e, denials);
            return;
        }
    };
    let versioned = |o: Option<&'o Object>| match o {
        Some(o) if *meant.1 != review.kind => review.host.convert(o.clone(), meant.1).map(|o| Some(Cow::Owned(o))),
        o => Ok(o.map(Cow::Borrowed)),
    };
    let (new, old) = match (versioned(object), versioned(review.old)) {
        (Ok(new), Ok(old)) => (new, old),
        (Err(e), _) | (_, Err(e)) => {
            unusable(p, Some(b), &format!("failed to convert object version: {}", e.message), denials);
            return;
        }
    };
    for param in &params {
        let subject =
            Subject::new(review, meant.0, meant.1, new.as_deref(), old.as_deref()).with_params(param.as_ref());
        for (message, reason) in evaluate(p, &subject) {
            for action in &b.actions {
                match action {
                    Action::Deny => denials.push(Denial {
                        policy: p.name.clone(),
                        binding: Some(b.name.clone()),
                        message: message.clone(),
                        reason: reason.clone(),
                    }),
                    Action::Warn => review.host.warn(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                        p.name, b.name
                    )),
                    Action::Audit => {}
                }
            }
        }
        for message in annotate(p, &subject) {
            let (policy, binding) = (p.name.clone(), Some(b.name.clone()));
            denials.push(Denial { policy, binding, message, reason: String::new() });
        }
    }
}

/// What a policy has against a request: messages and reasons.
fn evaluate(p: &Policy, subject: &Subject<'_>) -> Vec<(String, String)> {
    let failed = |why: String| if p.ignores_failure { Vec::new() } else { vec![(why, String::new())] };
    match p.conditions.hold(subject) {
        Matched::Yes => {}
        Matched::No => return Vec::new(),
        Matched::Failed(why) => return failed(why),
    }
    let vars = Composed::new(subject, &p.variables);
    let mut budget = Budget::new(RUNTIME_BUDGET);
    let mut against = Vec::new();
    for v in &p.validations {
        match v.expression.eval(&vars, &mut budget) {
            Ok(Val::Bool(true)) => {}
            Ok(_) => against.push((message(v, &vars, &mut budget), v.reason.clone())),
            Err(why) => against.extend(failed(why)),
        }
    }
    against
}

fn message<'s>(v: &'s Validation, vars: &Composed<'s>, budget: &mut Budget) -> String {
    let made = v.message_expression.as_ref().and_then(|m| m.eval(vars, budget).ok());
    let made = made.as_ref().and_then(Val::as_str).map(str::trim);
    let well = |m: &&str| !m.is_empty() && m.len() <= LONGEST_MESSAGE && !m.contains('\n');
    match made.filter(well) {
        Some(m) => m.to_owned(),
        None if v.message.is_empty() => format!("failed expression: {}", v.expression.text.trim()),
        None => v.message.clone(),
    }
}

/// What is wrong with the audit annotations, where that counts.
fn annotate(p: &Policy, subject: &Subject<'_>) -> Vec<String> {
    if p.annotations.is_empty() || p.ignores_failure || !matches!(p.conditions.hold(subject), Matched::Yes) {
        return Vec::new();
    }
    let vars = Composed::new(subject, &p.variables);
    let mut budget = Budget::new(RUNTIME_BUDGET);
    let mut wrong = Vec::new();
    for a in &p.annotations {
        match a.eval(&vars, &mut budget) {
            Ok(Val::Str(_) | Val::Null) => {}
            Ok(v) => wrong.push(format!(
                "valueExpression '{}' resulted in unsupported return type: {}. Return type must be either string or null.",
                a.text,
                v.type_name()
            )),
            Err(why) => wrong.push(why),
        }
    }
    wrong
}

fn refusal(review: &Review<'_>, d: &Denial) -> Status {
    let by = match &d.binding {
        Some(b) => format!("ValidatingAdmissionPolicy '{}' with binding '{b}' denied request: {}", d.policy, d.message),
        None => format!("ValidatingAdmissionPolicy '{}' denied request: {}", d.policy, d.message),
    };
    let mut s = review.forbidden(&by);
    let (code, reason) = match d.reason.as_str() {
        "Unauthorized" => (401, Reason::Unauthorized),
        "Forbidden" => (403, Reason::Forbidden),
        "RequestEntityTooLarge" => (413, Reason::RequestEntityTooLarge),
        _ => (422, Reason::Invalid),
    };
    (s.code, s.reason) = (code, reason);
    if let Some(details) = &mut s.details {
        details.causes.push(Cause { message: by, ..Cause::default() });
    }
    s
}
