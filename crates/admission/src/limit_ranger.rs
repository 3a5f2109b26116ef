//! Defaults and bounds of resources from the LimitRanges of a namespace.

use crate::{Operation, Plugin, Review};
use meta::{Map, Object, Quantity, Status, Value};

pub struct LimitRanger;

impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        if !review.is("", "pods") || review.operation != Operation::Create {
            return Ok(());
        }
        for range in review.lookup.list("", "limitranges", Some(review.namespace)) {
            for item in items(&range, "Container") {
                for list in ["containers", "initContainers"] {
                    set_defaults(object, list, item);
                }
            }
        }
        Ok(())
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let Some(object) = object else { return Ok(()) };
        let pod = review.is("", "pods") && review.operation == Operation::Create;
        let claim = review.is("", "persistentvolumeclaims");
        if !pod && !claim {
            return Ok(());
        }
        let mut wrong = Vec::new();
        for range in review.lookup.list("", "limitranges", Some(review.namespace)) {
            if claim {
                let requests = object.at(&["spec", "resources", "requests"]);
                items(&range, "PersistentVolumeClaim")
                    .for_each(|i| bounds(i, requests, None, "PersistentVolumeClaim", &mut wrong));
                continue;
            }
            for item in items(&range, "Container") {
                for list in ["containers", "initContainers"] {
                    for c in object.at(&["spec", list]).and_then(Value::as_array).into_iter().flatten() {
                        let r = &c["resources"];
                        bounds(item, r.get("requests"), r.get("limits"), "Container", &mut wrong);
                    }
                }
            }
            for item in items(&range, "Pod") {
                let (requests, limits) = (total(object, "requests"), total(object, "limits"));
                bounds(item, Some(&requests), Some(&limits), "Pod", &mut wrong);
            }
        }
        match &wrong[..] {
            [] => Ok(()),
            [one] => Err(review.forbidden(one)),
            many => Err(review.forbidden(&format!("[{}]", many.join(", ")))),
        }
    }
}

fn items<'a>(range: &'a Object, ty: &'a str) -> impl Iterator<Item = &'a Value> {
    let limits = range.at(&["spec", "limits"]).and_then(Value::as_array).into_iter().flatten();
    limits.filter(move |i| i["type"] == ty)
}

fn set_defaults(pod: &mut Object, list: &str, item: &Value) {
    let mut spec = pod.remove(&["spec"]).unwrap_or_default();
    for c in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(c) = c.as_object_mut() else { continue };
        let r = c.entry("resources").or_insert_with(|| Value::Object(Map::new()));
        let Some(r) = r.as_object_mut() else { continue };
        for (part, default) in [("limits", "default"), ("requests", "defaultRequest")] {
            for (name, q) in item[default].as_object().into_iter().flatten() {
                let into = r.entry(part).or_insert_with(|| Value::Object(Map::new()));
                if let Some(into) = into.as_object_mut() {
                    into.entry(name.clone()).or_insert_with(|| q.clone());
                }
            }
        }
    }
    pod.set(&["spec"], spec);
}

fn quantity(v: Option<&Value>) -> Option<Quantity> {
    Quantity::parse(v?.as_str()?).ok()
}

/// The sum over all containers, or the largest init container where that is more.
fn total(pod: &Object, part: &str) -> Value {
    let mut sum: Map<String, Value> = Map::new();
    let each = |list: &str, f: &mut dyn FnMut(&str, Quantity)| {
        for c in pod.at(&["spec", list]).and_then(Value::as_array).into_iter().flatten() {
            for (k, q) in c["resources"][part].as_object().into_iter().flatten() {
                if let Some(q) = quantity(Some(q)) {
                    f(k, q);
                }
            }
        }
    };
    each("containers", &mut |k, q| {
        let all = quantity(sum.get(k)).map_or(q, |s| s + q);
        sum.insert(k.to_owned(), all.to_string().into());
    });
    each("initContainers", &mut |k, q| {
        if quantity(sum.get(k)).is_none_or(|s| q > s) {
            sum.insert(k.to_owned(), q.to_string().into());
        }
    });
    sum.into()
}

fn bounds(item: &Value, requests: Option<&Value>, limits: Option<&Value>, ty: &str, wrong: &mut Vec<String>) {
    let get = |from: Option<&Value>, k: &str| quantity(from.and_then(|f| f.get(k)));
    let of = |part: &str| item[part].as_object().cloned().unwrap_or_default();
    for (k, min) in of("min") {
        let Some(min) = quantity(Some(&min)) else { continue };
        match (get(requests, &k), get(limits, &k)) {
            (Some(r), _) if r < min => wrong.push(format!("minimum {k} usage per {ty} is {min}, but request is {r}")),
            (None, None) => wrong.push(format!("minimum {k} usage per {ty} is {min}.  No request is specified")),
            _ => {}
        }
    }
    for (k, max) in of("max") {
        let Some(max) = quantity(Some(&max)) else { continue };
        match (get(limits, &k), get(requests, &k)) {
            (Some(l), _) if l > max => wrong.push(format!("maximum {k} usage per {ty} is {max}, but limit is {l}")),
            (_, Some(r)) if r > max => wrong.push(format!("maximum {k} usage per {ty} is {max}, but request is {r}")),
            (None, _) if ty != "PersistentVolumeClaim" => {
                wrong.push(format!("maximum {k} usage per {ty} is {max}.  No limit is specified"));
            }
            _ => {}
        }
    }
    for (k, ratio) in of("maxLimitRequestRatio") {
        let Some(ratio) = quantity(Some(&ratio)) else { continue };
        if let (Some(r), Some(l)) = (get(requests, &k), get(limits, &k))
            && r.nano_value() > 0
        {
            let have = l.nano_value() as f64 / r.nano_value() as f64;
            if have * 1e9 > ratio.nano_value() as f64 {
                wrong.push(format!(
                    "{k} max limit to request ratio per {ty} is {ratio}, but provided ratio is {have:.6}"
                ));
            }
        }
    }
}
