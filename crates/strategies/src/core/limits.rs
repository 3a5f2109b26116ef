//! LimitRange, ResourceQuota and RuntimeClass: resources by name.

use crate::pod_template::{amount, old_label, overcommits, overhead, resource_name, scheduling::tolerations};
use crate::read::{items, shown, text};
use kinds::columns::{Cell, display};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Quantity, Value, names};
use std::collections::{BTreeSet, HashSet};

/// Resources that only a quota counts.
const QUOTA: [&str; 18] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
];

const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

fn quantity(v: &Value) -> Option<Quantity> {
    v.as_str().and_then(|s| Quantity::parse(s).ok())
}

/// What a limit leaves out follows from its neighbours.
pub fn default_limit_range(o: &mut Object) {
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

pub fn limit_range(o: &Object, errors: &mut ErrorList) {
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
    for part in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        for k in limit[part].as_object().into_iter().flatten().map(|(k, _)| k) {
            if kind == "Pod" && part.starts_with("default") {
                let why = "may not be specified when `type` is 'Pod'";
                errors.push(FieldError::forbidden(&at.child(part), why));
            } else if matches!(kind, "Pod" | "Container") {
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
        let of = |part: &str| quantity(&limit[part][k.as_str()]);
        let mut above = |part: &str, name: &str, bound: &str, bound_name: &str, said_of: &str, shown: &str| {
            if let (Some(a), Some(b)) = (of(part), of(bound))
                && a > b
            {
                let why = format!("{name} value {a} is greater than {bound_name} value {b}");
                let e = FieldError::invalid(&at.child(said_of).key(k), &limit[shown][k.as_str()], why);
                errors.push(e.said_with(at));
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
            errors.push(e.said_with(at));
        }
        if let (Some(ratio), Some(min), Some(max)) = (of("maxLimitRequestRatio"), of("min"), of("max")) {
            let value = |q: Quantity| q.nano_value() as f64;
            let most = value(max) / value(min);
            if value(ratio) / 1e9 > most {
                let why = format!("ratio {ratio} is greater than max/min = {most:.6}");
                let e = FieldError::invalid(&at.child("maxLimitRequestRatio").key(k), ratio.to_string(), why);
                errors.push(e.said_with(at));
            }
        }
        if !overcommits(k)
            && let (Some(default), Some(request)) = (of("default"), of("defaultRequest"))
            && default != request
        {
            let why = format!("default value {default} must equal to defaultRequest value {request} in {k}");
            let e = FieldError::invalid(&at.child("defaultRequest").key(k), request.to_string(), why);
            errors.push(e.said_with(at));
        }
    }
}

/// The name of a resource of anything but containers: one of Kubernetes' own, or somebody's.
fn counted_name(name: &str, at: &FieldPath, errors: &mut ErrorList) {
    let bad = names::qualified_name(name);
    errors.extend(bad.into_iter().map(|m| FieldError::invalid(at, name, m)));
    let own = QUOTA.contains(&name) || matches!(name, "storage" | "services.loadbalancers");
    if !name.contains('/') && !own && !is_huge(name) {
        errors.push(FieldError::invalid(at, name, "must be a standard resource type or fully qualified"));
    }
}

fn is_huge(name: &str) -> bool {
    ["hugepages-", "requests.hugepages-", "limits.hugepages-"].iter().any(|p| name.starts_with(p))
}

/// Amounts of what a quota counts.
fn counted(amounts: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for (k, v) in amounts.as_object().into_iter().flatten() {
        let at = at.key(k);
        let bad = names::qualified_name(k);
        let qualified = bad.is_empty();
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at, k.as_str(), m)));
        if !k.contains('/') && !QUOTA.contains(&k.as_str()) && k != "services.loadbalancers" && !is_huge(k) {
            if qualified && k != "storage" {
                errors.push(FieldError::invalid(
                    &at,
                    k.as_str(),
                    "must be a standard resource type or fully qualified",
                ));
            }
            errors.push(FieldError::invalid(&at, k.as_str(), "must be a standard resource for quota"));
        }
        amount(k, v, &at, errors);
    }
}

pub fn resource_quota_status(o: &Object, _old: &Object, errors: &mut ErrorList) {
    let status = o.get("status").unwrap_or(&Value::Null);
    for part in ["hard", "used"] {
        counted(&status[part], &FieldPath::new("status").child(part), errors);
    }
}

pub fn resource_quota(o: &Object, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    counted(&spec["hard"], &path.child("hard"), errors);
    let (scopes, hard) = (items(spec, "scopes"), &spec["hard"]);
    let at = path.child("scopes");
    let mut wrong = |why: &str| errors.push(FieldError::invalid(&at, scopes, why));
    for scope in scopes.iter().map(|s| s.as_str().unwrap_or_default()) {
        if !SCOPES.contains(&scope) {
            wrong("unsupported scope");
        }
        (0..misapplied(scope, hard)).for_each(|_| wrong(MISAPPLIED));
    }
    (0..conflicts(|s| scopes.iter().any(|x| *x == s))).for_each(|_| wrong(CONFLICTING));
    if spec["scopeSelector"].is_object() {
        scope_selector(spec, &path.child("scopeSelector"), errors);
    }
}

const MISAPPLIED: &str = "unsupported scope applied to resource";
const CONFLICTING: &str = "conflicting scopes";

/// How many pairs of scopes there are of which one leaves nothing to the other.
fn conflicts(has: impl Fn(&str) -> bool) -> usize {
    [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")]
        .iter()
        .filter(|(a, b)| has(a) && has(b))
        .count()
}

/// What of a pod, and of a claim, a scope can be said of.
const OF_PODS: [&str; 7] = ["pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
const OF_CLAIMS: [&str; 2] = ["persistentvolumeclaims", "requests.storage"];

/// Of how many things that are limited a scope makes no sense.
fn misapplied(scope: &str, hard: &Value) -> usize {
    let limited = hard.as_object().into_iter().flatten().map(|(k, _)| k.as_str());
    let limited = limited.filter(|k| QUOTA.contains(k) || *k == "services.loadbalancers" || is_huge(k));
    let wrong = |k: &&str| match scope {
        "BestEffort" => *k != "pods",
        "VolumeAttributesClass" => !OF_CLAIMS.contains(k),
        known if SCOPES.contains(&known) => !OF_PODS.contains(k),
        _ => false,
    };
    limited.filter(wrong).count()
}

/// Upstream does not number what it finds wrong.
fn scope_selector(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let s = &spec["scopeSelector"];
    let at = path.child("matchExpressions");
    let expressions = items(s, "matchExpressions");
    for e in expressions {
        let (scope, operator, values) = (text(e, "scopeName"), text(e, "operator"), items(e, "values"));
        if !SCOPES.contains(&scope) {
            errors.push(FieldError::invalid(&at.child("scopeName"), scope, "unsupported scope"));
        }
        for _ in 0..misapplied(scope, &spec["hard"]) {
            let shown = shown(s, "io.k8s.api.core.v1.ScopeSelector", path);
            errors.push(FieldError::invalid(&at, shown, MISAPPLIED));
        }
        let valued = matches!(scope, "PriorityClass" | "VolumeAttributesClass");
        if !valued && SCOPES.contains(&scope) && operator != "Exists" {
            let why = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.push(FieldError::invalid(&at.child("operator"), operator, why));
        }
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.push(FieldError::required(&at.child("values"), why));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.push(FieldError::invalid(&at.child("values"), values, why));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.push(FieldError::invalid(&at.child("operator"), other, "not a valid selector operator")),
        }
    }
    // What is shown is not what is meant.
    for _ in 0..conflicts(|s| expressions.iter().any(|e| e["scopeName"] == s)) {
        errors.push(FieldError::invalid(&at, &spec["scopes"], CONFLICTING));
    }
}

pub fn runtime_class(o: &Object, errors: &mut ErrorList) {
    let fixed = o.at(&["overhead", "podFixed"]).unwrap_or(&Value::Null);
    overhead(fixed, &FieldPath::new("overhead"), errors);
    tolerations(o.get("scheduling").unwrap_or(&Value::Null), &FieldPath::new("scheduling"), errors);
}

pub fn runtime_class_warnings(o: &Object, _old: Option<&Object>) -> Vec<String> {
    let keys = o.at(&["scheduling", "nodeSelector"]).and_then(Value::as_object).into_iter().flatten();
    keys.filter_map(|(k, _)| old_label(k)).map(|why| format!("scheduling.nodeSelector: {why}")).collect()
}

/// A LimitRange that fills itself in.
pub struct LimitRange;

impl registry::Strategy for LimitRange {
    fn default(&self, o: &mut Object) {
        default_limit_range(o);
    }

    fn prepare_for_create(&self, env: registry::Env<'_>, _request: &registry::Request, o: &mut Object) {
        // It may do without a name.
        if o.name().is_empty() && o.generate_name().is_empty() {
            o.set_name(&meta::random::uuid(env.rng()));
        }
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        limit_range(o, errors);
    }
}

/// The cells that only quotas have.
pub fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "quotaRequest" | "quotaLimit" => quota(o, cell.function == "quotaLimit").into(),
        _ => return None,
    })
}

fn quota(o: &Object, limits: bool) -> String {
    let hard = o.at(&["status", "hard"]).or_else(|| o.at(&["spec", "hard"]));
    let all: Vec<String> = hard
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(k, _)| k.starts_with("limits.") == limits)
        .map(|(k, h)| format!("{k}: {}/{}", o.str_at(&["status", "used", k]).unwrap_or("0"), display(h)))
        .collect();
    all.join(", ")
}
