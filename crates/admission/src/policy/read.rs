//! Policies and bindings, parsed and compiled once and cached until their objects change.

use super::params::{self, ParamRef};
use crate::evaluation::{Conditions, Expression, Variables};
use crate::matching::{GROUP, Matcher};
use crate::plugin::{Lookup, MatchOwner, WriteRequest};
use crate::remembered::{LastResult, ResultPerObject};
use cel::{Env, Program, Type};
use expressions::{ExpectedType, Params, compile, message_env, policy_env};
use meta::{Gvk, LabelSelector, Object, Status, Value};
use std::collections::HashMap;
use std::sync::Arc;

pub(super) struct Policy {
    pub name: String,
    pub matcher: Matcher,
    /// `failurePolicy: Ignore`: errors skip the policy.
    pub ignores_failure: bool,
    pub param_kind: Option<Gvk>,
    pub conditions: Conditions,
    pub variables: Variables,
    pub validations: Vec<Validation>,
    /// The keys and value expressions of audit annotations.
    pub annotations: Vec<(String, Expression)>,
    pub mutations: Vec<Mutation>,
    /// Reinvoked when a later plugin changes the object.
    pub reinvoked: bool,
}

/// A policy with its bindings.
pub(super) struct Bound {
    pub policy: Arc<Policy>,
    pub bindings: Vec<Binding>,
}

pub(super) struct Mutation {
    pub form: Form,
    pub expression: Expression,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    ApplyConfiguration,
    JsonPatch,
}

pub(super) struct Validation {
    pub expression: Expression,
    pub message: String,
    pub message_expression: Option<Program>,
    pub reason: String,
}

pub(super) struct Binding {
    pub name: String,
    pub matcher: Matcher,
    pub param: Option<ParamRef>,
    pub actions: Vec<Action>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Deny,
    Warn,
    Audit,
}

/// The resources of policies and of their bindings.
#[derive(Clone, Copy)]
pub(super) struct Family {
    pub policies: &'static str,
    pub bindings: &'static str,
}

pub(super) struct Policies {
    family: Family,
    read: LastResult<(u64, u64), Vec<Bound>>,
    compiled: ResultPerObject<Policy>,
}

impl Policies {
    pub fn new(family: Family) -> Self {
        Self { family, read: LastResult::default(), compiled: ResultPerObject::default() }
    }

    fn fingerprint(&self, lookup: &dyn Lookup) -> (u64, u64) {
        (lookup.fingerprint(GROUP, self.family.policies), lookup.fingerprint(GROUP, self.family.bindings))
    }

    /// Whether any binding exists; cheap.
    pub fn any(&self, lookup: &dyn Lookup) -> bool {
        let (policies, bindings) = self.fingerprint(lookup);
        policies != 0 && bindings != 0
    }

    /// Bytes of parameters that a write decodes, whatever policies match it. Of policies that are not compiled yet nothing is known.
    pub fn reads(&self, write: &WriteRequest<'_>, lookup: &dyn Lookup) -> usize {
        let known = if self.any(lookup) { self.read.known(&self.fingerprint(lookup)) } else { None };
        let of_policy = |b: &Bound| -> usize {
            let Some(kind) = &b.policy.param_kind else { return 0 };
            let references = b.bindings.iter().filter_map(|b| b.param.as_ref());
            references.map(|r| params::bytes(kind, r, write, lookup)).sum()
        };
        known.map_or(0, |all| all.iter().map(of_policy).sum())
    }

    /// Policies that are bound, in the order of their names. Those that changed are compiled again. Errors if one
    /// cannot be read.
    pub async fn get(&self, lookup: &dyn Lookup) -> Result<Arc<Vec<Bound>>, Status> {
        if let Some(known) = self.read.known(&self.fingerprint(lookup)) {
            return Ok(known);
        }
        let mut compiled = self.compiled.begin().await;
        let now = self.fingerprint(lookup);
        if let Some(known) = self.read.known(&now) {
            return Ok(known);
        }
        let mut by_policy: HashMap<String, Vec<Binding>> = HashMap::new();
        for b in lookup.list(GROUP, self.family.bindings, None) {
            let b = b?;
            let policy = b.str_at(&["spec", "policyName"]).unwrap_or_default().to_owned();
            by_policy.entry(policy).or_default().push(binding(&b));
        }
        let mut all = Vec::new();
        for p in lookup.list(GROUP, self.family.policies, None) {
            let p = p?;
            let Some(bindings) = by_policy.remove(p.name()) else { continue };
            all.push(Bound { policy: compiled.get(&p, policy).await, bindings });
        }
        compiled.end();
        Ok(self.read.put(now, all))
    }
}

fn text<'a>(v: &'a Value, k: &str) -> &'a str {
    v[k].as_str().unwrap_or_default()
}

fn items<'a>(v: &'a Value, k: &str) -> impl Iterator<Item = &'a Value> {
    v[k].as_array().into_iter().flatten()
}

/// The variables of a policy, and environments in which they are known: with and without an authorizer.
fn variables(spec: &Value, params: Params) -> (Variables, Env, Env) {
    let (mut env, mut quiet) = (policy_env(params), message_env(params));
    let mut all = Variables::default();
    if items(spec, "variables").next().is_some() {
        (env, quiet) = (env.with_family("variables"), quiet.with_family("variables"));
    }
    for v in items(spec, "variables") {
        let name = text(v, "name");
        let made = compile(&env, text(v, "expression"), ExpectedType::Any);
        let ty = made.as_ref().map_or(Type::Dyn, |(_, t)| t.clone());
        env = env.with(&format!("variables.{name}"), ty.clone());
        quiet = quiet.with(&format!("variables.{name}"), ty);
        all.add(name, made.map(|(p, _)| p));
    }
    (all, env, quiet)
}

fn policy(o: &Object) -> Policy {
    let none = Value::Null;
    let spec = o.get("spec").unwrap_or(&none);
    let param_kind = spec["paramKind"].is_object().then(|| {
        let api_version = text(&spec["paramKind"], "apiVersion");
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Gvk::new(group, version, text(&spec["paramKind"], "kind"))
    });
    let params = if param_kind.is_some() { Params::Some } else { Params::None };
    let (variables, env, quiet) = variables(spec, params);
    let validations = items(spec, "validations").map(|v| Validation {
        expression: Expression::new(&env, text(v, "expression"), ExpectedType::Bool),
        message: text(v, "message").trim().to_owned(),
        message_expression: Some(text(v, "messageExpression"))
            .filter(|e| !e.trim().is_empty())
            .and_then(|e| compile(&quiet, e, ExpectedType::Text).ok())
            .map(|(p, _)| p),
        reason: text(v, "reason").to_owned(),
    });
    let annotation = |a: &Value| {
        let value = Expression::new(&env, text(a, "valueExpression"), ExpectedType::TextOrNull);
        (text(a, "key").to_owned(), value)
    };
    let annotations = items(spec, "auditAnnotations").map(annotation).collect();
    let objects = env.clone().with_objects();
    let mutations = items(spec, "mutations").filter_map(|m| {
        let (form, key, expected) = match text(m, "patchType") {
            "ApplyConfiguration" => (Form::ApplyConfiguration, "applyConfiguration", ExpectedType::Object),
            "JSONPatch" => (Form::JsonPatch, "jsonPatch", ExpectedType::Patches),
            _ => return None,
        };
        Some(Mutation { form, expression: Expression::new(&objects, text(&m[key], "expression"), expected) })
    });
    let owner = MatchOwner { kind: "policy", when: "validate", name: o.name().to_owned() };
    Policy {
        name: o.name().to_owned(),
        mutations: mutations.collect(),
        reinvoked: spec["reinvocationPolicy"] == "IfNeeded",
        matcher: Matcher::of_constraints(&spec["matchConstraints"]),
        ignores_failure: spec["failurePolicy"] == "Ignore",
        param_kind,
        conditions: Conditions::read(&spec["matchConditions"], &policy_env(params), owner),
        validations: validations.collect(),
        annotations,
        variables,
    }
}

fn binding(o: &Object) -> Binding {
    let none = Value::Null;
    let spec = o.get("spec").unwrap_or(&none);
    let r = &spec["paramRef"];
    Binding {
        name: o.name().to_owned(),
        matcher: Matcher::of_binding(&spec["matchResources"]),
        param: r.is_object().then(|| ParamRef {
            name: text(r, "name").to_owned(),
            namespace: text(r, "namespace").to_owned(),
            selector: r.get("selector").filter(|s| !s.is_null()).map(|s| LabelSelector::from_value(Some(s))),
            denies_absence: r["parameterNotFoundAction"] == "Deny",
        }),
        actions: items(spec, "validationActions")
            .filter_map(|a| match a.as_str()? {
                "Deny" => Some(Action::Deny),
                "Warn" => Some(Action::Warn),
                "Audit" => Some(Action::Audit),
                _ => None,
            })
            .collect(),
    }
}
