//! The plugin ValidatingAdmissionPolicy.

use super::params;
use super::read::{Action, Binding, Bound, Family, Policies, Policy, Validation};
use crate::configuration::{Fields, Kind, STATIC_MANIFESTS, TEXT, without_manifests};
use crate::evaluation::{Composed, EvalError, INVALID, Matched, Subject};
use crate::matching::is_exempt_of_policies;
use crate::pace;
use crate::plugin::{Lookup, PolicyDecision, Remote, Review, WriteRequest};
use async_trait::async_trait;
use cel::{Budget, RUNTIME_BUDGET, Val};
use meta::status::{Cause, Reason};
use meta::{Gvk, Gvr, Object, Status, Value};
use serde_json::json;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum length of a message expression's result.
const LONGEST_MESSAGE: usize = 5 * 1024;

pub struct Validating {
    policies: Policies,
}

const KIND: Kind = Kind {
    versions: &[("apiserver.config.k8s.io/v1", "ValidatingAdmissionPolicyConfiguration")],
    fields: Fields("ValidatingAdmissionPolicyConfiguration", &[(STATIC_MANIFESTS, TEXT)]),
};

impl Validating {
    pub fn new(config: Option<&Value>) -> Result<Self, String> {
        let config = config.map_or(Ok(Value::Null), |s| KIND.read(s))?;
        without_manifests(&config)?;
        let (policies, bindings) = ("validatingadmissionpolicies", "validatingadmissionpolicybindings");
        Ok(Self { policies: Policies::new(Family { policies, bindings }) })
    }
}

/// The audit annotation for failed validations with the action `Audit`.
const FAILURES: &str = "validation.policy.admission.k8s.io/validation_failure";

/// Maximum length of an annotation value in bytes; longer values are truncated.
const LONGEST_ANNOTATION: usize = 10 * 1024;
/// Maximum number of values per annotation: each binding and parameter may add one.
const MAX_VALUES: usize = 100;

/// The results of all policies for a request.
#[derive(Default)]
struct Evaluation {
    /// The first denial; further ones are dropped.
    denial: Option<Denial>,
    /// The first failure, for the audit log: an annotation is written once, so its list has a single entry.
    failure: Option<Value>,
    /// Distinct values of all bindings, by policy and key.
    annotations: BTreeMap<String, Vec<String>>,
}

impl Evaluation {
    fn deny(&mut self, denial: Denial) {
        self.denial.get_or_insert(denial);
    }

    /// Records a policy or binding that cannot be applied.
    fn unusable(&mut self, p: &Policy, b: Option<&Binding>, why: &str) {
        if !p.ignores_failure {
            let what = if b.is_some() { "binding" } else { "policy" };
            self.deny(Denial {
                policy: p.name.clone(),
                binding: b.map(|b| b.name.clone()),
                message: format!("failed to configure {what}: {why}"),
                reason: String::new(),
            });
        }
    }

    fn annotate(&self, review: &Review<'_>) {
        if let Some(first) = &self.failure {
            review.host.annotate(FAILURES, &Value::from(vec![first.clone()]));
        }
        for (key, values) in &self.annotations {
            review.host.annotate(key, &values.join(", "));
        }
    }
}

/// A denial of the request.
struct Denial {
    policy: String,
    binding: Option<String>,
    message: String,
    reason: String,
}

#[async_trait]
impl Remote for Validating {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    fn applies(&self, review: &Review<'_>) -> bool {
        self.policies.any(review.lookup) && !is_exempt_of_policies(review)
    }

    fn reads(&self, write: &WriteRequest<'_>, lookup: &dyn Lookup) -> usize {
        self.policies.reads(write, lookup)
    }

    async fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let mut evaluation = Evaluation::default();
        let bound_policies = self.policies.get(review.lookup).await?;
        for Bound { policy: p, bindings } in bound_policies.iter() {
            match p.matcher.matches(review, object) {
                Ok(None) => {}
                Ok(Some((resource, kind))) => {
                    for b in bindings {
                        bound(p, b, review, object, (&resource, &kind), &mut evaluation).await;
                    }
                }
                Err(e) => evaluation.unusable(p, None, &e.message),
            }
        }
        evaluation.annotate(review);
        evaluation.denial.map_or(Ok(()), |d| Err(refusal(review, &d)))
    }
}

async fn bound<'o>(
    p: &Policy,
    b: &Binding,
    review: &Review<'o>,
    object: Option<&'o Object>,
    meant: (&Gvr, &Gvk),
    evaluation: &mut Evaluation,
) {
    match b.matcher.matches(review, object) {
        Ok(Some(_)) => {}
        Ok(None) => return,
        Err(e) => {
            evaluation.unusable(p, Some(b), &e.message);
            return;
        }
    }
    let mut params = match params::find(p.param_kind.as_ref(), b.param.as_ref(), review) {
        Ok(params) => params,
        Err(e) => {
            evaluation.unusable(p, Some(b), &e);
            return;
        }
    };
    let versioned = async |o: Option<&'o Object>| match o {
        Some(o) if *meant.1 != review.kind => {
            review.host.convert(o.clone(), meant.1).await.map(|o| Some(Cow::Owned(o)))
        }
        o => Ok(o.map(Cow::Borrowed)),
    };
    let (new, old) = match (versioned(object).await, versioned(review.old).await) {
        (Ok(new), Ok(old)) => (new, old),
        (Err(e), _) | (_, Err(e)) => {
            evaluation.unusable(p, Some(b), &format!("failed to convert object version: {}", e.message));
            return;
        }
    };
    while let Some(param) = params.next(review).await {
        let param = match param {
            Ok(param) => param,
            Err(e) => {
                evaluation.unusable(p, Some(b), &e);
                return;
            }
        };
        let turn = pace::turn().await;
        let (against, wrong) = turn.take(|| {
            let mut wrong = Vec::new();
            let subject =
                Subject::new(review, meant.0, meant.1, new.as_deref(), old.as_deref()).with_params(param.as_ref());
            let against = match p.conditions.hold(&subject, review) {
                Matched::No => Vec::new(),
                Matched::Failed(_) if p.ignores_failure => Vec::new(),
                Matched::Failed(message) => vec![Against::conditions_failed(message)],
                Matched::Yes => {
                    for why in annotate(p, &subject, &mut evaluation.annotations) {
                        review.host.record_policy_decision(&decided(p, b, why.error_type(), "deny", Duration::ZERO));
                        wrong.push(why.to_string());
                    }
                    evaluate(p, &subject)
                }
            };
            (against, wrong)
        });
        for against in against {
            if against.no_value && p.ignores_failure {
                review.host.record_policy_decision(&decided(p, b, against.error, "allow", against.took));
                continue;
            }
            let mut audited = false;
            for action in &b.actions {
                review.host.record_policy_decision(&decided(p, b, against.error, action.word(), against.took));
                match action {
                    Action::Deny => evaluation.deny(Denial {
                        policy: p.name.clone(),
                        binding: Some(b.name.clone()),
                        message: against.message.clone(),
                        reason: against.reason.clone(),
                    }),
                    Action::Warn => review.host.warn(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                        p.name, b.name, against.message
                    )),
                    Action::Audit => audited = true,
                }
            }
            if audited && evaluation.failure.is_none() {
                evaluation.failure = Some(json!({"message": against.message, "policy": p.name, "binding": b.name,
                    "expressionIndex": against.index, "validationActions": actions(b)}));
            }
        }
        for message in wrong {
            let (policy, binding) = (p.name.clone(), Some(b.name.clone()));
            evaluation.deny(Denial { policy, binding, message, reason: String::new() });
        }
    }
}

fn actions(b: &Binding) -> Vec<&'static str> {
    let name = |a: &Action| match a {
        Action::Deny => "Deny",
        Action::Warn => "Warn",
        Action::Audit => "Audit",
    };
    b.actions.iter().map(name).collect()
}

impl Action {
    /// The enforcement action, as labelled in metrics.
    fn word(&self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Warn => "warn",
            Self::Audit => "audit",
        }
    }
}

fn decided<'a>(
    p: &'a Policy,
    b: &'a Binding,
    error: &'static str,
    action: &'static str,
    took: Duration,
) -> PolicyDecision<'a> {
    PolicyDecision { policy: &p.name, binding: &b.name, error, action: Some(action), took }
}

/// A failed validation.
struct Against {
    /// Index of the validation in the policy.
    index: usize,
    message: String,
    /// See [`EvalError::error_type`].
    error: &'static str,
    reason: String,
    /// The evaluation failed.
    no_value: bool,
    took: Duration,
}

impl Against {
    fn conditions_failed(message: String) -> Self {
        Self { index: 0, message, error: INVALID, reason: String::new(), no_value: false, took: Duration::ZERO }
    }
}

/// The violations of a policy.
fn evaluate(p: &Policy, subject: &Subject<'_>) -> Vec<Against> {
    let vars = Composed::new(subject, &p.variables);
    let mut budget = Budget::new(RUNTIME_BUDGET);
    let mut against = Vec::new();
    for (index, v) in p.validations.iter().enumerate() {
        let begun = Instant::now();
        let (message, error, reason, no_value) = match v.expression.eval(&vars, &mut budget) {
            Ok(Val::Bool(true)) => continue,
            Ok(_) => (message(v, &vars, &mut budget), INVALID, v.reason.clone(), false),
            Err(why) => (why.to_string(), why.error_type(), String::new(), true),
        };
        against.push(Against { index, message, error, reason, no_value, took: begun.elapsed() });
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

/// Adds audit annotations. Returns their errors if the failure policy rejects the request.
fn annotate(p: &Policy, subject: &Subject<'_>, all: &mut BTreeMap<String, Vec<String>>) -> Vec<EvalError> {
    let vars = Composed::new(subject, &p.variables);
    let mut budget = Budget::new(RUNTIME_BUDGET);
    let mut wrong = Vec::new();
    for (key, value) in &p.annotations {
        match value.eval(&vars, &mut budget) {
            Ok(Val::Null) => {}
            Ok(v) => match v.as_str().map(str::trim) {
                Some("") => {}
                Some(text) => {
                    let text = &text[..text.floor_char_boundary(LONGEST_ANNOTATION)];
                    let values = all.entry(format!("{}/{key}", p.name)).or_default();
                    if values.len() < MAX_VALUES && !values.iter().any(|s| s == text) {
                        values.push(text.to_owned());
                    }
                }
                None => wrong.push(EvalError::Invalid(format!(
                    "valueExpression '{}' resulted in unsupported return type: {}. Return type must be either string or null.",
                    value.text,
                    v.type_name()
                ))),
            },
            Err(why) => wrong.push(why),
        }
    }
    if p.ignores_failure { Vec::new() } else { wrong }
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
