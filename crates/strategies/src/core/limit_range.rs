//! LimitRange: defaults and consistency of the limits of each type.

use super::resource_quota::{QUOTA, is_huge};
use crate::Config;
use crate::pod_template::{overcommits, resource_name};
use crate::read::{items, text};
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Quantity, Value, names};
use registry::{CreateStrategy, Env, Request};
use std::collections::{BTreeSet, HashSet};

pub fn row(_: &Config) -> Row {
    Row::stored(LimitRange)
}

/// The strategy of LimitRange.
pub struct LimitRange;

impl CreateStrategy for LimitRange {
    fn default(&self, o: &mut Object) {
        default(o);
    }

    fn prepare_for_create(&self, env: Env<'_>, _request: &Request, o: &mut Object) {
        // The name is optional.
        if o.name().is_empty() && o.generate_name().is_empty() {
            o.set_name(&meta::random::uuid(env.rng()));
        }
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        validate(o, errors);
    }
}

registry::strategy!(LimitRange: CreateStrategy);

/// Sets absent defaults of a container limit: `default` from `max`, `defaultRequest` from `default` and `min`.
fn default(o: &mut Object) {
    let Some(Value::Array(mut limits)) = o.at(&["spec", "limits"]).cloned() else { return };
    for limit in &mut limits {
        if text(limit, "type") != "Container" {
            continue;
        }
        for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
            let Some(source) = limit[from].as_object().cloned() else { continue };
            for (k, v) in source {
                if limit[to].get(&k).is_none() {
                    limit[to][k] = v;
                }
            }
        }
    }
    o.set(&["spec", "limits"], limits);
}

fn validate(o: &Object, errors: &mut ErrorList) {
    let path = FieldPath::new("spec.limits");
    let mut types = HashSet::new();
    let spec = o.get("spec").unwrap_or(&Value::Null);
    for (i, limit) in items(spec, "limits").iter().enumerate() {
        let at = path.index(i);
        let kind = text(limit, "type");
        let bad = names::qualified_name(kind);
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child("type"), kind, m)));
        if !kind.contains('/')
            && names::qualified_name(kind).is_empty()
            && !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim")
        {
            let why = "must be a standard limit type or fully qualified";
            errors.push(FieldError::invalid(&at.child("type"), kind, why));
        }
        if !types.insert(kind) {
            errors.push(FieldError::duplicate(&at.child("type"), kind));
        }
        bounds(limit, kind, &at, errors);
    }
}

fn bounds(limit: &Value, kind: &str, at: &FieldPath, errors: &mut ErrorList) {
    let mut all: BTreeSet<&String> = BTreeSet::new();
    let forbidden = |part: &str| kind == "Pod" && part.starts_with("default");
    for part in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        let amounts = limit[part].as_object();
        if forbidden(part) && amounts.is_some_and(|m| !m.is_empty()) {
            errors.push(FieldError::forbidden(&at.child(part), "may not be specified when `type` is 'Pod'"));
            continue;
        }
        for k in amounts.into_iter().flatten().map(|(k, _)| k) {
            if matches!(kind, "Pod" | "Container") {
                resource_name(k, &at.child(part).key(k), errors);
            } else {
                counted_name(k, &at.child(part).key(k), errors);
            }
            all.insert(k);
        }
    }
    if kind == "PersistentVolumeClaim" {
        let has = |part: &str| limit[part].get("storage").is_some();
        if !has("max") && !has("min") {
            let why = "either minimum or maximum storage value is required, but neither was provided";
            errors.push(FieldError::required(&at.child("limits"), why));
        }
    }
    for k in all {
        let of = |part: &str| quantity(&limit[part][k.as_str()]).filter(|_| !forbidden(part));
        let mut above = |part: &str, name: &str, bound: &str, bound_name: &str, reported: &str, shown: &str| {
            if let (Some(a), Some(b)) = (of(part), of(bound))
                && a > b
            {
                let why = format!("{name} value {a} is greater than {bound_name} value {b}");
                let e = FieldError::invalid(&at.child(reported).key(k), &limit[shown][k.as_str()], why);
                errors.push(e.ordered_at(at));
            }
        };
        above("min", "min", "max", "max", "min", "min");
        above("min", "min", "defaultRequest", "default request", "defaultRequest", "defaultRequest");
        above("defaultRequest", "default request", "max", "max", "defaultRequest", "defaultRequest");
        above("defaultRequest", "default request", "default", "default limit", "defaultRequest", "defaultRequest");
        above("min", "min", "default", "default", "default", "min");
        above("default", "default", "max", "max", "default", "max");
        if let Some(ratio) = of("maxLimitRequestRatio")
            && ratio < Quantity::from_int(1)
        {
            let why = format!("ratio {ratio} is less than 1");
            let value = limit["maxLimitRequestRatio"][k.as_str()].clone();
            let e = FieldError::invalid(&at.child("maxLimitRequestRatio").key(k), value, why);
            errors.push(e.ordered_at(at));
        }
        if let (Some(ratio), Some(min), Some(max)) = (of("maxLimitRequestRatio"), of("min"), of("max")) {
            let value = |q: Quantity| q.nano_value() as f64;
            let max_ratio = value(max) / value(min);
            if value(ratio) / 1e9 > max_ratio {
                let why = format!("ratio {ratio} is greater than max/min = {max_ratio:.6}");
                let e = FieldError::invalid(&at.child("maxLimitRequestRatio").key(k), ratio.to_string(), why);
                errors.push(e.ordered_at(at));
            }
        }
        if !overcommits(k)
            && let (Some(default), Some(request)) = (of("default"), of("defaultRequest"))
            && default != request
        {
            let why = format!("default value {default} must equal to defaultRequest value {request} in {k}");
            let e = FieldError::invalid(&at.child("defaultRequest").key(k), request.to_string(), why);
            errors.push(e.ordered_at(at));
        }
    }
}

fn quantity(v: &Value) -> Option<Quantity> {
    v.as_str().and_then(|s| Quantity::parse(s).ok())
}

/// Validates a resource name for types other than Pod and Container: a standard or a qualified name.
fn counted_name(name: &str, at: &FieldPath, errors: &mut ErrorList) {
    let bad = names::qualified_name(name);
    if !bad.is_empty() {
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(at, name, m)));
        return;
    }
    let own = QUOTA.contains(&name) || matches!(name, "storage" | "services.loadbalancers");
    if !name.contains('/') && !own && !is_huge(name) {
        errors.push(FieldError::invalid(at, name, "must be a standard resource type or fully qualified"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_create;
    use serde_json::json;

    fn range(limit: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": [limit]}})
    }

    #[test]
    fn validates_limits() {
        let check = |limit: Value, errors: &[&str]| {
            let errors: Vec<String> = errors.iter().map(|e| format!("spec.limits[0].{e}")).collect();
            let errors: Vec<&str> = errors.iter().map(String::as_str).collect();
            check_create(&LimitRange, &range(limit), &[("", Value::Null, &errors)]);
        };
        check(json!({"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1"}}), &[]);
        check(
            json!({"type": "Other"}),
            &["type: Invalid value: \"Other\": must be a standard limit type or fully qualified"],
        );
        check(
            json!({"type": "Pod", "max": {"cpu": "1"}, "min": {"cpu": "2"}}),
            &["min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1"],
        );
        check(
            json!({"type": "Pod", "max": {"cpu": "1"}, "default": {"cpu": "1", "a b": "1", "memory": "1"}}),
            &["default: Forbidden: may not be specified when `type` is 'Pod'"],
        );
        check(
            json!({"type": "PersistentVolumeClaim", "max": {"storage": "1", "a b": "1", "other": "1"}}),
            &[
                "max[a b]: Invalid value: \"a b\": name part must consist of…",
                "max[other]: Invalid value: \"other\": must be a standard resource type or fully qualified",
            ],
        );
        check(
            json!({"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}}),
            &[
                "defaultRequest[cpu]: Invalid value: \"2\": default request value 2 is greater than default limit value 1",
            ],
        );
        check(
            json!({"type": "Pod", "maxLimitRequestRatio": {"cpu": "500m"}}),
            &["maxLimitRequestRatio[cpu]: Invalid value: \"500m\": ratio 500m is less than 1"],
        );
        check(
            json!({"type": "Pod", "max": {"cpu": "4"}, "min": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "3"}}),
            &["maxLimitRequestRatio[cpu]: Invalid value: \"3\": ratio 3 is greater than max/min = 2.000000"],
        );
        check(
            json!({"type": "PersistentVolumeClaim", "max": {"requests.storage": "1"}}),
            &["limits: Required value: either minimum or maximum storage value is required, but neither was provided"],
        );
    }

    #[test]
    fn defaults_follow_bounds() {
        let mut limits =
            Object::from_value(range(json!({"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1"}})))
                .expect("an object");
        default(&mut limits);
        let limit = &limits.0["spec"]["limits"][0];
        assert_eq!(limit["default"], json!({"cpu": "2"}));
        assert_eq!(limit["defaultRequest"], json!({"cpu": "2", "memory": "1"}));
    }
}
