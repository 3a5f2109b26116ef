//! CEL expressions over the claims of a token, and over the resulting user
//! (`k8s.io/apiserver/pkg/authentication/cel`).

use crate::User;
use crate::expression::{Expression, extra, object, texts};
use cel::{Env, Type, Val};
use meta::{Value, names};
use serde_json::json;

/// Expressions that map claims to the user, where no plain claim is configured.
#[derive(Debug, Default)]
pub struct Expressions {
    /// The expression for the name of the user.
    pub username: Option<Expression>,
    /// The expression for the groups.
    pub groups: Option<Expression>,
    /// The expression for the UID.
    pub uid: Option<Expression>,
    /// Expressions for extra attributes, by key.
    pub extra: Vec<(String, Expression)>,
    /// Validation rules for claims, with their error messages.
    claims: Vec<(Expression, String)>,
    /// Validation rules for the user.
    user: Vec<(Expression, String)>,
}

const CLAIMS: &str = "claims";
const USER: &str = "user";

fn claims_env() -> Env {
    Env::default().with(CLAIMS, Type::map(Type::String, Type::Dyn))
}

fn user_env() -> Env {
    let fields = [("username", Type::String), ("uid", Type::String), ("groups", texts()), ("extra", extra())];
    Env::default().with(USER, object("kubernetes.UserInfo", fields))
}

fn text<'a>(v: &'a Value, key: &str) -> &'a str {
    v[key].as_str().unwrap_or_default()
}

fn list<'a>(v: &'a Value, key: &str) -> &'a [Value] {
    v[key].as_array().map_or(&[], Vec::as_slice)
}

/// Compiles the expression in a field; none if it is empty.
fn read(env: &Env, v: &Value, key: &str, at: &str, expected: Option<&Type>) -> Result<Option<Expression>, String> {
    let source = text(v, key);
    if source.is_empty() {
        return Ok(None);
    }
    let compiled = Expression::compile(env, source, expected);
    compiled.map(Some).map_err(|why| format!("{at}.{key}: Invalid value: {source:?}: {why}"))
}

impl Expressions {
    /// Compiles the expressions of one entry of `jwt`. Returns the first error, with its path.
    pub fn read(j: &Value) -> Result<Self, String> {
        let (claims, user) = (claims_env(), user_env());
        let m = &j["claimMappings"];
        let mut out = Self::default();
        for (key, to) in [("username", &mut out.username), ("groups", &mut out.groups), ("uid", &mut out.uid)] {
            let at = format!("claimMappings.{key}");
            let mapping = &m[key];
            *to = read(&claims, mapping, "expression", &at, None)?;
            if to.is_some() && !text(mapping, "claim").is_empty() {
                return Err(format!("{at}: Invalid value: \"\": claim and expression can't both be set"));
            }
            if to.is_some() && mapping["prefix"].is_string() {
                let prefix = &mapping["prefix"];
                return Err(format!(
                    "{at}.prefix: Invalid value: {prefix}: may not be specified when expression is set"
                ));
            }
        }
        for (i, e) in list(m, "extra").iter().enumerate() {
            let at = format!("claimMappings.extra[{i}]");
            let key = text(e, "key");
            extra_key(key).map_err(|why| format!("{at}.key: {why}"))?;
            if out.extra.iter().any(|(k, _)| k == key) {
                return Err(format!("{at}.key: Duplicate value: {key:?}"));
            }
            let made = read(&claims, e, "valueExpression", &at, None)?;
            out.extra.push((key.to_owned(), made.ok_or_else(|| format!("{at}.valueExpression: Required value"))?));
        }
        out.claims = rules(&claims, j, "claimValidationRules")?;
        out.user = rules(&user, j, "userValidationRules")?;
        if let Some(why) = list(j, "userValidationRules").iter().position(|r| text(r, "expression").is_empty()) {
            return Err(format!("userValidationRules[{why}].expression: Required value"));
        }
        out.check_email(text(&m["username"], "expression"))?;
        Ok(out)
    }

    /// An email address as the user name must be verified.
    fn check_email(&self, username: &str) -> Result<(), String> {
        let uses = |e: &Expression, claim: &str| e.selects(CLAIMS, claim);
        let email = self.username.as_ref().is_some_and(|e| uses(e, "email"));
        let rules = self.claims.iter().map(|(e, _)| e);
        let mut all = self.username.iter().chain(self.extra.iter().map(|(_, e)| e)).chain(rules);
        if !email || all.any(|e| uses(e, "email_verified")) {
            return Ok(());
        }
        let why = "claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression";
        Err(format!("claimMappings.username.expression: Invalid value: {username:?}: {why}"))
    }

    /// Evaluates an expression over claims to a string.
    pub fn evaluate(e: &Expression, claims: &Value, what: &str) -> Result<String, String> {
        let failed = |why: String| format!("oidc: error evaluating {what} claim expression: {why}");
        let made = e.eval(CLAIMS, claims).map_err(failed)?;
        match made.as_str() {
            Some(t) => Ok(t.to_owned()),
            None => Err(failed(format!("{what} claim expression must return a string"))),
        }
    }

    /// Evaluates an expression over claims to a list of strings: one, several, or none.
    pub fn many(e: &Expression, claims: &Value, what: &str) -> Result<Vec<String>, String> {
        let failed = |why: String| format!("oidc: error evaluating {what} claim expression: {why}");
        let made = e.eval(CLAIMS, claims).map_err(failed)?;
        let made = if let Val::Null = made { Value::Null } else { made.to_json().map_err(failed)? };
        match made {
            Value::Null => Ok(Vec::new()),
            Value::String(t) => Ok(Some(t).filter(|t| !t.is_empty()).into_iter().collect()),
            Value::Array(all) if all.iter().all(Value::is_string) => {
                Ok(all.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            }
            other => Err(failed(format!("expression must return a string or a list of strings, not {other}"))),
        }
    }

    /// Evaluates the validation rules for claims. Errors with the message of the rule that fails.
    pub fn check_claims(&self, claims: &Value) -> Result<(), String> {
        let checked = self.claims.iter().try_for_each(|(e, message)| holds(e, message, CLAIMS, claims));
        checked.map_err(|why| format!("oidc: error evaluating claim validation expression: {why}"))
    }

    /// Evaluates the validation rules for the user. Errors with the message of the rule that fails.
    pub fn check_user(&self, user: &User) -> Result<(), String> {
        if self.user.is_empty() {
            return Ok(());
        }
        let value = json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra});
        let checked = self.user.iter().try_for_each(|(e, message)| holds(e, message, USER, &value));
        checked.map_err(|why| format!("oidc: error evaluating user info validation rule: {why}"))
    }
}

fn rules(env: &Env, j: &Value, key: &str) -> Result<Vec<(Expression, String)>, String> {
    let mut out: Vec<(Expression, String)> = Vec::new();
    for (i, r) in list(j, key).iter().enumerate() {
        let at = format!("{key}[{i}]");
        let Some(e) = read(env, r, "expression", &at, Some(&Type::Bool))? else { continue };
        if !text(r, "claim").is_empty() {
            let claim = &r["claim"];
            return Err(format!("{at}: Invalid value: {claim}: claim and expression can't both be set"));
        }
        if !text(r, "requiredValue").is_empty() {
            let value = &r["requiredValue"];
            return Err(format!(
                "{at}.requiredValue: Invalid value: {value}: may not be specified when expression is set"
            ));
        }
        if out.iter().any(|(o, _)| *o == e) {
            return Err(format!("{at}.expression: Duplicate value: {:?}", e.text));
        }
        out.push((e, text(r, "message").to_owned()));
    }
    Ok(out)
}

fn holds(e: &Expression, message: &str, variable: &'static str, value: &Value) -> Result<(), String> {
    match e.eval(variable, value)?.as_bool() {
        Some(true) => Ok(()),
        Some(false) => Err(format!("validation expression '{}' failed: {message}", e.text)),
        None => Err("validation expression must return a boolean".into()),
    }
}

fn extra_key(key: &str) -> Result<(), String> {
    if key.is_empty() {
        return Err("Required value".into());
    }
    let (domain, path) = key.split_once('/').unwrap_or(("", ""));
    if domain.is_empty() || path.is_empty() || !names::dns_subdomain(domain).is_empty() {
        return Err(format!("Invalid value: {key:?}: must be a domain-prefixed path (such as \"acme.io/foo\")"));
    }
    if key.chars().any(char::is_uppercase) {
        return Err(format!("Invalid value: {key:?}: must be lowercase"));
    }
    let reserved = |of: &str| domain == of || domain.ends_with(&format!(".{of}"));
    if reserved("kubernetes.io") || reserved("k8s.io") {
        let why = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
        return Err(format!("Invalid value: {key:?}: {why}"));
    }
    Ok(())
}
