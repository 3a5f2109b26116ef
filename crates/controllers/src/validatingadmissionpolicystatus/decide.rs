//! The warnings about a policy.

use super::custom::Custom;
use cel::{Env, Type};
use expressions::{ExpectedType, Params, compile, kind_type, policy_env};
use meta::{GroupVersion, Gvk, Gvr, Object, Value};
use serde_json::json;

/// The maximum number of kinds that a policy is checked against.
const MAX: usize = 10;

/// The warnings about each expression, with the path of its field.
pub fn warnings(policy: &Object, custom: &Custom) -> Vec<Value> {
    let none = Value::Null;
    let spec = policy.get("spec").unwrap_or(&none);
    let checks: Vec<(Gvk, Env)> = kinds(spec, custom)
        .into_iter()
        .filter_map(|k| Some((env(spec, &k, custom)?, k)))
        .map(|(e, k)| (k, e))
        .collect();
    let mut out = Vec::new();
    for (i, v) in items(spec, "validations").enumerate() {
        for key in ["expression", "messageExpression"] {
            let text = v[key].as_str().unwrap_or_default();
            if text.is_empty() {
                continue;
            }
            let messages = checks.iter().filter_map(|(kind, env)| {
                let why = compile(env, text, ExpectedType::Any).err()?;
                Some(format!("{}, Kind={}: {why}\n", kind.api_version(), kind.kind))
            });
            let messages: Vec<String> = messages.collect();
            if !messages.is_empty() {
                let at = format!("spec.validations[{i}].{key}");
                out.push(json!({"fieldRef": at, "warning": messages.join("\n")}));
            }
        }
    }
    out
}

fn items<'a>(v: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    v[key].as_array().into_iter().flatten()
}

/// The group versions of custom kinds that a policy names.
pub fn versions(policy: &Object) -> Vec<GroupVersion> {
    let none = Value::Null;
    let spec = policy.get("spec").unwrap_or(&none);
    let known = |gvr: &Gvr| kinds::catalog().resource(gvr).is_some();
    let of_rules = resources(spec).into_iter().filter(|r| !known(r)).map(|r| GroupVersion::new(r.group, r.version));
    let of_params = param_kind(spec).filter(|k| kind_type(k).is_none()).map(|k| GroupVersion::new(k.group, k.version));
    let mut out: Vec<GroupVersion> = Vec::new();
    for gv in of_rules.chain(of_params).filter(|gv| !gv.group.is_empty()) {
        if !out.contains(&gv) {
            out.push(gv);
        }
    }
    out.truncate(MAX);
    out
}

fn param_kind(spec: &Value) -> Option<Gvk> {
    let params = spec["paramKind"].as_object()?;
    let text = |k: &str| params.get(k).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    Some(Gvk::new(group, version, text("kind")))
}

fn env(spec: &Value, kind: &Gvk, custom: &Custom) -> Option<Env> {
    let type_of = |k: &Gvk| kind_type(k).or_else(|| custom.type_of(k));
    let object = type_of(kind)?;
    let params = param_kind(spec);
    let mut env = policy_env(if params.is_some() { Params::Some } else { Params::None });
    env = env.with("object", object.clone()).with("oldObject", object);
    if let Some(k) = params {
        env = env.with("params", type_of(&k).unwrap_or(Type::Dyn));
    }
    for v in items(spec, "variables") {
        let text = |k: &str| v[k].as_str().unwrap_or_default();
        let ty = compile(&env, text("expression"), ExpectedType::Any).map_or(Type::Dyn, |(_, t)| t);
        env = env.with(&format!("variables.{}", text("name")), ty);
    }
    Some(env)
}

/// The kinds of a policy's match constraints.
fn kinds(spec: &Value, custom: &Custom) -> Vec<Gvk> {
    let kind = |r: &Gvr| kinds::catalog().resource(r).map(|k| k.gvk()).or_else(|| custom.kind(r));
    let mut out: Vec<Gvk> = resources(spec).iter().filter_map(kind).collect();
    out.sort_by(|a, b| (&a.group, &a.version, &a.kind).cmp(&(&b.group, &b.version, &b.kind)));
    out.dedup();
    out.truncate(MAX);
    out
}

/// The resources of a policy's match constraints; none where they have a wildcard.
fn resources(spec: &Value) -> Vec<Gvr> {
    let mut out = Vec::new();
    for rule in items(&spec["matchConstraints"], "resourceRules") {
        let list = |key: &str| -> Vec<&str> { items(rule, key).filter_map(Value::as_str).collect() };
        let (groups, versions) = (list("apiGroups"), list("apiVersions"));
        if groups.iter().chain(&versions).any(|s| s.contains('*')) {
            continue;
        }
        for group in &groups {
            for version in &versions {
                let named = list("resources").into_iter().filter(|r| !r.contains(['*', '/']));
                out.extend(named.map(|r| Gvr {
                    group: (*group).into(),
                    version: (*version).into(),
                    resource: r.into(),
                }));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_checked_against_every_kind() {
        let policy = |expression: &str, resources: Value| {
            let v = json!({"metadata": {"name": "p"}, "spec": {"variables": [{"name": "n", "expression": "object.spec.replicas"}],
                "matchConstraints": {"resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["*"],
                    "resources": resources}]}, "validations": [{"expression": expression}]}});
            warnings(&Object::from_value(v).unwrap(), &Custom::default())
        };
        let one = json!(["deployments"]);
        assert!(policy("object.spec.replicas > 1 && variables.n < 5", one.clone()).is_empty());
        assert!(
            policy(
                "object.metadata.namespace == 'x' && object.spec.template.spec.containers.all(c, c.image != '')",
                one.clone()
            )
            .is_empty()
        );
        let wrong = policy("object.replicas > 1", one.clone());
        assert_eq!(wrong[0]["fieldRef"], "spec.validations[0].expression");
        let text = wrong[0]["warning"].as_str().unwrap();
        assert!(
            text.starts_with(
                "apps/v1, Kind=Deployment: compilation failed: ERROR: <input>:1:7: undefined field 'replicas'"
            ),
            "{text}"
        );
        assert_eq!(policy("variables.n == 'a'", one).len(), 1);
        let two = policy("object.spec.replicas > 1", json!(["daemonsets", "deployments"]));
        assert!(two[0]["warning"].as_str().unwrap().starts_with("apps/v1, Kind=DaemonSet: "), "{two:?}");
        assert!(policy("object.nothing", json!(["*"])).is_empty());
    }
}
