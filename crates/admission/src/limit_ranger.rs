//! Defaults and bounds of resources from the LimitRanges of a namespace (upstream `plugin/pkg/admission/limitranger`).

use crate::{Lookup, Operation, Plugin, ReadScope, Review, WriteRequest};
use meta::{Map, Object, Quantity, Status, Value};
use quota::{Amounts, amounts, total};
use std::collections::BTreeMap;

pub struct LimitRanger;

/// The annotation that lists the defaults set on a pod.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn reads(&self, write: &WriteRequest<'_>, lookup: &dyn Lookup) -> usize {
        let limited = matches!((write.group, write.resource), ("", "pods" | "persistentvolumeclaims"));
        if limited { lookup.bytes("", "limitranges", Some(write.namespace), ReadScope::All) } else { 0 }
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        if is_pod(review) && !is_going(review) {
            for range in review.lookup.list("", "limitranges", Some(review.namespace)) {
                set_defaults(object, &range?);
            }
        }
        Ok(())
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let Some(object) = object.filter(|_| !is_going(review)) else { return Ok(()) };
        let pod = is_pod(review);
        if !pod && !review.is("", "persistentvolumeclaims") {
            return Ok(());
        }
        // The errors of the first violated LimitRange are returned.
        for range in review.lookup.list("", "limitranges", Some(review.namespace)) {
            let (range, mut wrong) = (range?, Vec::new());
            for item in items(&range) {
                if pod { of_pod(item, object, &mut wrong) } else { of_claim(item, object, &mut wrong) }
            }
            let mut messages = Vec::new();
            wrong.into_iter().for_each(|w| {
                if !messages.contains(&w) {
                    messages.push(w)
                }
            });
            match &messages[..] {
                [] => {}
                [message] => return Err(review.forbidden(message)),
                many => return Err(review.forbidden(&format!("[{}]", many.join(", ")))),
            }
        }
        Ok(())
    }
}

/// A new or resized pod: other updates do not change container resources.
fn is_pod(review: &Review<'_>) -> bool {
    match review.operation {
        Operation::Create => review.is("", "pods"),
        Operation::Update => review.is_part("", "pods", "resize"),
        _ => false,
    }
}

fn is_going(review: &Review<'_>) -> bool {
    review.old.is_some_and(Object::is_deleting)
}

fn items(range: &Object) -> impl Iterator<Item = &Value> {
    range.at(&["spec", "limits"]).and_then(Value::as_array).into_iter().flatten()
}

/// Sets default resources of containers, and records them in an annotation.
fn set_defaults(pod: &mut Object, range: &Object) {
    // The last item for containers is used.
    let mut defaults: BTreeMap<&str, BTreeMap<&str, &Value>> = BTreeMap::new();
    for item in items(range).filter(|i| i["type"] == "Container") {
        for (part, from) in [("requests", "defaultRequest"), ("limits", "default")] {
            let named = item[from].as_object().into_iter().flatten();
            defaults.entry(part).or_default().extend(named.map(|(k, q)| (k.as_str(), q)));
        }
    }
    let mut notes = Vec::new();
    let mut spec = pod.remove(&["spec"]).unwrap_or_default();
    for (list, what) in [("containers", "container"), ("initContainers", "init container")] {
        for c in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let name = c["name"].as_str().unwrap_or_default().to_owned();
            let Some(c) = c.as_object_mut() else { continue };
            let r = c.entry("resources").or_insert_with(|| Value::Object(Map::new()));
            let Some(r) = r.as_object_mut() else { continue };
            for (part, note) in [("requests", "request"), ("limits", "limit")] {
                let set = fill(r, part, defaults.get(part).into_iter().flatten());
                if !set.is_empty() {
                    notes.push(format!("{} {note} for {what} {name}", set.join(", ")));
                }
            }
        }
    }
    pod.set(&["spec"], spec);
    if !notes.is_empty() {
        pod.set_annotation(ANNOTATION, &format!("LimitRanger plugin set: {}", notes.join("; ")));
    }
}

/// The names of the missing resources.
fn fill<'a>(
    resources: &mut Map<String, Value>,
    part: &str,
    defaults: impl Iterator<Item = (&'a &'a str, &'a &'a Value)>,
) -> Vec<&'a str> {
    let mut set = Vec::new();
    for (name, q) in defaults {
        let into = resources.entry(part).or_insert_with(|| Value::Object(Map::new()));
        if let Some(into) = into.as_object_mut().filter(|i| !i.contains_key(*name)) {
            into.insert((*name).to_owned(), (*q).clone());
            set.push(*name);
        }
    }
    set
}

fn of_pod(item: &Value, pod: &Object, wrong: &mut Vec<String>) {
    match item["type"].as_str() {
        Some("Container") => {
            for list in ["containers", "initContainers"] {
                for c in pod.at(&["spec", list]).and_then(Value::as_array).into_iter().flatten() {
                    let resources = |part: &str| amounts(c["resources"].get(part));
                    Taken { subject: "Container", requests: resources("requests"), limits: resources("limits") }
                        .check(item, wrong);
                }
            }
        }
        Some("Pod") => {
            let taken = Taken { subject: "Pod", requests: total(pod, "requests"), limits: total(pod, "limits") };
            taken.check(item, wrong);
        }
        _ => {}
    }
}

/// Checks the storage request of a claim; claims have no limits.
fn of_claim(item: &Value, claim: &Object, wrong: &mut Vec<String>) {
    if item["type"] != "PersistentVolumeClaim" {
        return;
    }
    let requests = amounts(claim.at(&["spec", "resources", "requests"]));
    let taken = Taken { subject: "PersistentVolumeClaim", requests, limits: Amounts::new() };
    amounts(item.get("min")).iter().for_each(|(k, q)| wrong.extend(taken.too_little(k, q)));
    for (k, max) in amounts(item.get("max")) {
        let bound = format!("maximum {k} usage per {} is {max}", taken.subject);
        match taken.requests.get(&k) {
            None => wrong.push(format!("{bound}.  No request is specified")),
            Some(r) if *r > max => wrong.push(format!("{bound}, but request is {r}")),
            Some(_) => {}
        }
    }
}

/// The resources of a container, pod or claim.
struct Taken {
    subject: &'static str,
    requests: Amounts,
    limits: Amounts,
}

impl Taken {
    fn check(&self, item: &Value, wrong: &mut Vec<String>) {
        amounts(item.get("min")).iter().for_each(|(k, q)| wrong.extend(self.too_little(k, q)));
        amounts(item.get("max")).iter().for_each(|(k, q)| wrong.extend(self.too_much(k, q)));
        amounts(item.get("maxLimitRequestRatio")).iter().for_each(|(k, q)| wrong.extend(self.too_far(k, q)));
    }

    fn too_little(&self, k: &str, min: &Quantity) -> Option<String> {
        let bound = format!("minimum {k} usage per {} is {min}", self.subject);
        match (self.requests.get(k), self.limits.get(k)) {
            (None, _) => Some(format!("{bound}.  No request is specified")),
            (Some(r), _) if r < min => Some(format!("{bound}, but request is {r}")),
            (_, Some(l)) if l < min => Some(format!("{bound}, but limit is {l}")),
            _ => None,
        }
    }

    fn too_much(&self, k: &str, max: &Quantity) -> Option<String> {
        let bound = format!("maximum {k} usage per {} is {max}", self.subject);
        match (self.limits.get(k), self.requests.get(k)) {
            (None, _) => Some(format!("{bound}.  No limit is specified")),
            (Some(l), _) if l > max => Some(format!("{bound}, but limit is {l}")),
            (_, Some(r)) if r > max => Some(format!("{bound}, but request is {r}")),
            _ => None,
        }
    }

    fn too_far(&self, k: &str, ratio: &Quantity) -> Option<String> {
        let bound = format!("{k} max limit to request ratio per {} is {ratio}", self.subject);
        let some = |from: &Amounts| from.get(k).filter(|q| !q.is_zero()).map(Quantity::nano_value);
        let Some(request) = some(&self.requests) else {
            return Some(format!("{bound}, but no request is specified or request is 0"));
        };
        let Some(limit) = some(&self.limits) else {
            return Some(format!("{bound}, but no limit is specified or limit is 0"));
        };
        let have = limit as f64 / request as f64;
        (have * 1e9 > ratio.nano_value() as f64).then(|| format!("{bound}, but provided ratio is {have:.6}"))
    }
}
