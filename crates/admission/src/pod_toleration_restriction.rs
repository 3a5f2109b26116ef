//! PodTolerationRestriction: default tolerations and a whitelist per namespace or cluster (upstream
//! `plugin/pkg/admission/podtolerationrestriction`, `pkg/util/tolerations`).

use crate::configuration::{Fields, Form, Kind, LONG, TEXT};
use crate::{Operation, Plugin, Review};
use meta::status::Reason;
use meta::{GroupResource, Object, Quantity, Status, Value};
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Defaults for namespaces without annotations.
#[derive(Default)]
pub struct PodTolerationRestriction {
    default: Vec<Value>,
    whitelist: Vec<Value>,
}

const KIND: Kind = Kind {
    versions: &[("podtolerationrestriction.admission.k8s.io/v1alpha1", "Configuration")],
    fields: Fields("Configuration", &[("default", Form::List(&TOLERATION)), ("whitelist", Form::List(&TOLERATION))]),
};
const TOLERATION: Form = Form::Object(Fields(
    "Toleration",
    &[("key", TEXT), ("operator", TEXT), ("value", TEXT), ("effect", TEXT), ("tolerationSeconds", LONG)],
));
const DEFAULT: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const WHITELIST: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";
const FIELDS: [&str; 5] = ["key", "operator", "value", "effect", "tolerationSeconds"];

impl PodTolerationRestriction {
    pub fn new(config: Option<&Value>) -> Result<Self, String> {
        let Some(config) = config else { return Ok(Self::default()) };
        let config = KIND.read(config)?;
        let list = |key: &str| -> Result<Vec<Value>, String> {
            let all = config[key].as_array().cloned().unwrap_or_default();
            for (i, t) in all.iter().enumerate() {
                check(t).map_err(|why| format!("{key}[{i}].{why}"))?;
            }
            Ok(all)
        };
        Ok(Self { default: list("default")?, whitelist: list("whitelist")? })
    }

    fn check(&self, review: &Review<'_>, pod: &Object) -> Result<(), Status> {
        let all = tolerations(pod);
        if all.is_empty() {
            return Ok(());
        }
        let own = annotated_tolerations(&*namespace(review)?, WHITELIST)?;
        let scope = if own.is_some() { "namespace" } else { "cluster" };
        let allowed = own.as_deref().unwrap_or(&self.whitelist);
        if allowed.is_empty() || {
            let allowed = Covering::new(allowed);
            all.iter().all(|t| allowed.covers(t))
        } {
            return Ok(());
        }
        let why = "pod tolerations (possibly merged with namespace default tolerations) conflict with its";
        Err(unknown(format!("{why} {scope} whitelist")))
    }
}

fn handles(review: &Review<'_>) -> bool {
    matches!(review.operation, Operation::Create | Operation::Update) && review.is("", "pods")
}

impl Plugin for PodTolerationRestriction {
    fn name(&self) -> &'static str {
        "PodTolerationRestriction"
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        if !handles(review) {
            return Ok(());
        }
        let mut more = Vec::new();
        if review.operation == Operation::Create {
            more = annotated_tolerations(&*namespace(review)?, DEFAULT)?.unwrap_or_else(|| self.default.clone());
        }
        if !is_best_effort(object) {
            more.push(
                json!({"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"}),
            );
        }
        if !more.is_empty() {
            let mut all = tolerations(object);
            all.extend(more);
            object.set(&["spec", "tolerations"], merged(&all));
        }
        self.check(review, object)
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        object.filter(|_| handles(review)).map_or(Ok(()), |pod| self.check(review, pod))
    }
}

fn tolerations(pod: &Object) -> Vec<Value> {
    pod.at(&["spec", "tolerations"]).and_then(Value::as_array).cloned().unwrap_or_default()
}

fn namespace(review: &Review<'_>) -> Result<Arc<Object>, Status> {
    let found = review.lookup.get("", "namespaces", "", review.namespace)?;
    found.ok_or_else(|| {
        let gr = GroupResource { group: String::new(), resource: "namespaces".into() };
        Status::not_found(&gr, review.namespace)
    })
}

/// Parses the annotation; none if it is missing, which differs from an empty list.
fn annotated_tolerations(namespace: &Object, annotation: &str) -> Result<Option<Vec<Value>>, Status> {
    let Some(text) = namespace.annotation(annotation) else { return Ok(None) };
    if text.is_empty() {
        return Ok(Some(Vec::new()));
    }
    serde_json::from_str::<Option<Vec<Value>>>(text)
        .map(|all| Some(all.unwrap_or_default()))
        .map_err(|e| unknown(e.to_string()))
}

/// An error without one of Kubernetes' standard reasons.
fn unknown(why: String) -> Status {
    Status::new(500, Reason::Unknown, why)
}

/// Whether no container requests or limits CPU or memory.
fn is_best_effort(pod: &Object) -> bool {
    let has_resources = |container: &Value| {
        ["requests", "limits"]
            .iter()
            .flat_map(|l| ["cpu", "memory"].map(|r| &container["resources"][*l][r]))
            .any(|q| q.as_str().and_then(|q| Quantity::parse(q).ok()).is_some_and(|q| q.sign() > 0))
    };
    let Some(spec) = pod.at(&["spec"]) else { return true };
    let lists = ["containers", "initContainers"].iter().filter_map(|l| spec[*l].as_array());
    !has_resources(spec) && !lists.flatten().any(has_resources)
}

fn text<'a>(t: &'a Value, key: &str) -> &'a str {
    t[key].as_str().unwrap_or_default()
}

fn same(a: &Value, b: &Value) -> bool {
    FIELDS[..4].iter().all(|k| text(a, k) == text(b, k)) && a[FIELDS[4]].as_i64() == b[FIELDS[4]].as_i64()
}

/// Whether `more` tolerates everything that `less` tolerates.
fn covers(more: &Value, less: &Value) -> bool {
    if same(more, less) {
        return true;
    }
    let everything = text(more, "key").is_empty() && text(more, "operator") == "Exists";
    if text(more, "key") != text(less, "key") && !everything {
        return false;
    }
    let effect = text(more, "effect");
    if !effect.is_empty() && effect != text(less, "effect") {
        return false;
    }
    if let (true, Some(longest)) = (effect == "NoExecute", more["tolerationSeconds"].as_i64())
        && less["tolerationSeconds"].as_i64().is_none_or(|s| s > longest)
    {
        return false;
    }
    match text(more, "operator") {
        "" | "Equal" => text(less, "operator") == "Equal" && text(more, "value") == text(less, "value"),
        "Exists" => true,
        _ => false,
    }
}

/// Tolerations indexed by what a covering toleration must have, to avoid comparing all pairs.
#[derive(Default)]
struct Covering<'a> {
    all: HashMap<Place<'a>, Strongest<'a>>,
    /// All tolerations, for exact matches.
    whole: HashSet<(&'a str, &'a str, &'a str, &'a str, Option<i64>)>,
}

/// A key, or none for any key; an effect; a value, or none for any value.
type Place<'a> = (Option<&'a str>, &'a str, Option<&'a str>);

/// Of tolerations that differ only in `tolerationSeconds`: the longest, and the longest different one.
#[derive(Default)]
struct Strongest<'a> {
    first: Option<&'a Value>,
    other: Option<&'a Value>,
}

/// The duration of a toleration, for comparison.
fn lasts(t: &Value) -> i64 {
    let seconds = t["tolerationSeconds"].as_i64().filter(|_| text(t, "effect") == "NoExecute");
    seconds.unwrap_or(i64::MAX)
}

impl<'a> Covering<'a> {
    fn new(all: &'a [Value]) -> Self {
        let mut covering = Self::default();
        all.iter().for_each(|t| covering.add(t));
        covering
    }

    fn add(&mut self, t: &'a Value) {
        let [key, operator, value, effect] = ["key", "operator", "value", "effect"].map(|k| text(t, k));
        self.whole.insert((key, operator, value, effect, t["tolerationSeconds"].as_i64()));
        let index_key = match operator {
            "" | "Equal" => (Some(key), effect, Some(value)),
            "Exists" => (Some(key).filter(|k| !k.is_empty()), effect, None),
            _ => return,
        };
        let s = self.all.entry(index_key).or_default();
        match (s.first, s.other) {
            (None, _) => s.first = Some(t),
            (Some(f), _) if same(f, t) => {}
            (Some(f), _) if lasts(t) > lasts(f) => (s.first, s.other) = (Some(t), Some(f)),
            (_, Some(o)) if lasts(t) <= lasts(o) => {}
            _ => s.other = Some(t),
        }
    }

    /// Candidates that may cover a toleration: if any toleration does, one of these does.
    fn candidates(&self, t: &Value) -> impl Iterator<Item = &'a Value> {
        let [key, operator, value, effect] = ["key", "operator", "value", "effect"].map(|k| text(t, k));
        let value = Some(value).filter(|_| operator == "Equal");
        let places = [Some(key), None].into_iter().flat_map(move |k| {
            let values = [None].into_iter().chain(value.map(Some));
            values.flat_map(move |v| ["", effect].map(|e| (k, e, v)))
        });
        let found: Vec<&'a Value> =
            places.filter_map(|p| self.all.get(&p)).flat_map(|s| s.first.into_iter().chain(s.other)).collect();
        found.into_iter()
    }

    /// Whether a toleration covers or equals `t`.
    fn covers(&self, t: &Value) -> bool {
        let [key, operator, value, effect] = ["key", "operator", "value", "effect"].map(|k| text(t, k));
        self.whole.contains(&(key, operator, value, effect, t["tolerationSeconds"].as_i64()))
            || self.candidates(t).any(|o| covers(o, t))
    }

    /// Whether another toleration covers `t`.
    fn covers_otherwise(&self, t: &Value) -> bool {
        self.candidates(t).any(|o| !same(o, t) && covers(o, t))
    }
}

/// Removes tolerations covered by others; the first of equal ones stays.
fn merged(all: &[Value]) -> Vec<Value> {
    let mut later = Covering::default();
    let mut kept: Vec<bool> = Vec::with_capacity(all.len());
    for t in all.iter().rev() {
        kept.push(!later.covers_otherwise(t));
        later.add(t);
    }
    let mut before = Covering::default();
    let mut out = Vec::new();
    for (t, kept) in all.iter().zip(kept.into_iter().rev()) {
        if kept && !before.covers(t) {
            before.add(t);
            out.push(t.clone());
        }
    }
    out
}

/// Validates the cluster's list; a namespace's list is not validated.
fn check(t: &Value) -> Result<(), String> {
    let (key, operator, value, effect) = (text(t, "key"), text(t, "operator"), text(t, "value"), text(t, "effect"));
    if key.is_empty() && operator != "Exists" {
        let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        return Err(format!("operator: Invalid value: {operator:?}: {why}"));
    }
    if !t["tolerationSeconds"].is_null() && effect != "NoExecute" {
        return Err(format!(
            "effect: Invalid value: {effect:?}: effect must be 'NoExecute' when `tolerationSeconds` is set"
        ));
    }
    if operator == "Exists" && !value.is_empty() {
        return Err(format!("operator: Invalid value: {value:?}: value must be empty when `operator` is 'Exists'"));
    }
    if !["", "Exists", "Equal"].contains(&operator) {
        return Err(format!("operator: Unsupported value: {operator:?}: supported values: \"Equal\", \"Exists\""));
    }
    if !["", "NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
        return Err(format!(
            "effect: Unsupported value: {effect:?}: supported values: \"NoExecute\", \"NoSchedule\", \"PreferNoSchedule\""
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_covered_is_left_out() {
        let t = |key: &str, operator: &str, value: &str, effect: &str, seconds: Option<i64>| json!({"key": key, "operator": operator, "value": value, "effect": effect, "tolerationSeconds": seconds});
        let all = t("", "Exists", "", "", None);
        let foo = t("foo", "Exists", "", "", None);
        let bar = t("foo", "Equal", "bar", "NoSchedule", None);
        let baz = t("foo", "Equal", "baz", "NoSchedule", None);
        let ten = t("foo", "Exists", "", "NoExecute", Some(10));
        let five = t("foo", "Exists", "", "NoExecute", Some(5));
        let ever = t("foo", "Exists", "", "NoExecute", None);
        let cases: [(&[&Value], &[&Value]); 6] = [
            (&[&bar, &foo], &[&foo]),
            (&[&all, &bar, &ten], &[&all]),
            (&[&bar, &baz], &[&bar, &baz]),
            (&[&five, &ten], &[&ten]),
            (&[&ten, &ever], &[&ever]),
            (&[&bar, &bar], &[&bar]),
        ];
        for (given, kept) in cases {
            let own = |l: &[&Value]| -> Vec<Value> { l.iter().map(|v| (*v).clone()).collect() };
            assert_eq!(merged(&own(given)), own(kept));
        }
    }

    /// As upstream does: compares all pairs.
    fn merged_simply(all: &[Value]) -> Vec<Value> {
        let mut out: Vec<Value> = Vec::new();
        for (i, t) in all.iter().enumerate() {
            let later = all[i + 1..].iter().any(|o| !same(o, t) && covers(o, t));
            if !later && !out.iter().any(|o| covers(o, t)) {
                out.push(t.clone());
            }
        }
        out
    }

    #[test]
    fn it_is_the_same_as_comparing_each_with_each() {
        let mut seed = 7_u64;
        let mut next = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(seed >> 33).unwrap() % n
        };
        for _ in 0..3000 {
            let mut any = || {
                let key = ["", "a", "b"][next(3)];
                let operator = ["", "Equal", "Exists", "Other"][next(4)];
                let value = ["", "x", "y"][next(3)];
                let effect = ["", "NoSchedule", "NoExecute"][next(3)];
                let seconds = [None, Some(1), Some(5), Some(9)][next(4)];
                json!({"key": key, "operator": operator, "value": value, "effect": effect, "tolerationSeconds": seconds})
            };
            let all: Vec<Value> = (0..7).map(|_| any()).collect();
            assert_eq!(merged(&all), merged_simply(&all), "{all:?}");
            let allowed: Vec<Value> = (0..4).map(|_| any()).collect();
            let covering = Covering::new(&allowed);
            for t in &all {
                assert_eq!(covering.covers(t), allowed.iter().any(|a| covers(a, t)), "{t} by {allowed:?}");
            }
        }
    }

    /// A body of 3 MB has 30,000 of them; comparing all pairs would take hours.
    #[test]
    fn many_are_merged_in_proportion_to_their_number() {
        let toleration = |i| json!({"key": format!("k{i}"), "operator": "Exists", "effect": "NoExecute"});
        let all: Vec<Value> = (0..200_000).map(toleration).collect();
        assert_eq!(merged(&all).len(), all.len());
    }

    #[test]
    fn a_wrong_list_of_the_cluster_is_refused() {
        let error = |list: Value| {
            let config = json!({"apiVersion": KIND.versions[0].0, "kind": "Configuration", "whitelist": list});
            PodTolerationRestriction::new(Some(&config)).err().unwrap_or_default()
        };
        assert_eq!(error(json!([{"key": "a", "operator": "Exists"}])), "");
        assert!(error(json!([{"operator": "Equal"}])).starts_with("whitelist[0].operator: Invalid value: \"Equal\""));
        assert!(error(json!([{"keys": "a"}])).contains("unknown field \"whitelist[0].keys\""));
    }
}
