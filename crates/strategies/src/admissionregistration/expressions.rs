//! Compiles the CEL expressions of webhooks and policies, and reports those that fail to compile.

use crate::read::{is_set, items, text};
use cel::{Env, Type};
use expressions::{self, ExpectedType, Params, compile, message_env, policy_env};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value};

/// Checks the match conditions of a webhook.
pub fn webhook(h: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for (i, c) in items(h, "matchConditions").iter().enumerate() {
        if text(c, "expression").trim().is_empty() {
            errors.push(FieldError::required(&at.child("matchConditions").index(i).child("expression"), ""));
        }
    }
    conditions(h, &expressions::webhook_env(), at, errors);
}

fn conditions(v: &Value, env: &Env, at: &FieldPath, errors: &mut ErrorList) {
    let at = at.child("matchConditions");
    for (i, c) in items(v, "matchConditions").iter().enumerate() {
        check(c, "expression", env, ExpectedType::Bool, &at.index(i), errors);
    }
}

/// Checks the expressions of a validating or mutating policy.
pub fn policy(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let params = if is_set(spec, "paramKind") { Params::Some } else { Params::None };
    let (mut env, mut quiet) = (policy_env(params), message_env(params));
    if !items(spec, "variables").is_empty() {
        (env, quiet) = (env.with_family("variables"), quiet.with_family("variables"));
    }
    for (i, v) in items(spec, "variables").iter().enumerate() {
        if text(v, "expression").trim().is_empty() {
            continue;
        }
        let ty = check(v, "expression", &env, ExpectedType::Any, &path.child("variables").index(i), errors);
        let name = format!("variables.{}", text(v, "name"));
        env = env.with(&name, ty.clone());
        quiet = quiet.with(&name, ty);
    }
    conditions(spec, &policy_env(params), path, errors);
    for (i, v) in items(spec, "validations").iter().enumerate() {
        let at = path.child("validations").index(i);
        check(v, "expression", &env, ExpectedType::Bool, &at, errors);
        check(v, "messageExpression", &quiet, ExpectedType::Text, &at, errors);
    }
    for (i, a) in items(spec, "auditAnnotations").iter().enumerate() {
        let at = path.child("auditAnnotations").index(i);
        check(a, "valueExpression", &env, ExpectedType::TextOrNull, &at, errors);
    }
    let env = env.with_objects();
    for (i, m) in items(spec, "mutations").iter().enumerate() {
        let at = path.child("mutations").index(i);
        let (key, expected) = match text(m, "patchType") {
            "ApplyConfiguration" => ("applyConfiguration", ExpectedType::Object),
            "JSONPatch" => ("jsonPatch", ExpectedType::Patches),
            _ => continue,
        };
        check(&m[key], "expression", &env, expected, &at.child(key), errors);
    }
}

/// Compiles one expression, reports errors, and returns its type.
fn check(v: &Value, key: &str, env: &Env, expected: ExpectedType, at: &FieldPath, errors: &mut ErrorList) -> Type {
    let expression = text(v, key);
    if expression.trim().is_empty() {
        return Type::Dyn;
    }
    match compile(env, expression, expected) {
        Ok((_, ty)) => ty,
        Err(why) => {
            errors.push(FieldError::invalid(&at.child(key), expression, why));
            Type::Dyn
        }
    }
}
