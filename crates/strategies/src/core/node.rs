//! Node: allocatable follows capacity; taints; the pod ranges are given once.

use crate::plain::said_twice;
use crate::read::{items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Status, Value, names};
use registry::{Env, Place, Request, Strategy, Sub, Upstream};
use std::collections::HashSet;

pub struct Node;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

impl Strategy for Node {
    fn default(&self, o: &mut Object) {
        // The old field is the first of the list.
        if let Some(c) = o.str_at(&["spec", "podCIDR"]).filter(|c| !c.is_empty()).map(str::to_owned)
            && o.at(&["spec", "podCIDRs"]).is_none_or(|l| l[0] != c.as_str())
        {
            o.set(&["spec", "podCIDRs"], vec![c]);
        }
        if o.at(&["status", "allocatable"]).is_none()
            && let Some(c) = o.at(&["status", "capacity"]).cloned()
        {
            o.set(&["status", "allocatable"], c);
        }
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let spec = o.get("spec").unwrap_or(&Value::Null);
        let at = FieldPath::new("spec.podCIDRs");
        for (i, c) in items(spec, "podCIDRs").iter().enumerate() {
            schema::rules::cidr(c.as_str().unwrap_or_default(), &at.index(i), errors);
        }
        let mut seen = HashSet::new();
        for (i, t) in items(spec, "taints").iter().enumerate() {
            let at = FieldPath::new("metadata.taints").index(i);
            let (key, value, effect) = (text(t, "key"), text(t, "value"), text(t, "effect"));
            errors
                .extend(names::qualified_name(key).into_iter().map(|m| FieldError::invalid(&at.child("key"), key, m)));
            let bad = names::label_value(value);
            if !bad.is_empty() {
                errors.push(FieldError::invalid(&at.child("value"), value, bad.join(";")));
            }
            if effect.is_empty() {
                errors.push(FieldError::required(&at.child("effect"), ""));
            } else if !EFFECTS.contains(&effect) {
                errors.push(FieldError::not_supported(&at.child("effect"), effect, &EFFECTS));
            }
            if !seen.insert((key, effect)) {
                errors.push(FieldError::duplicate(&at, t.clone()));
            }
        }
    }

    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        said_twice(errors, |e| e.path.starts_with("metadata.taints"));
        let ranges = |o: &Object| o.at(&["spec", "podCIDRs"]).cloned();
        if ranges(old).is_some() && ranges(o) != ranges(old) {
            let why = "node updates may not change podCIDR except from \"\" to valid";
            errors.push(FieldError::forbidden(&FieldPath::new("spec.podCIDRs"), why));
        }
        let provider = |o: &Object| o.str_at(&["spec", "providerID"]).unwrap_or_default().to_owned();
        if !provider(old).is_empty() && provider(o) != provider(old) {
            let why = "node updates may not change providerID except from \"\" to valid";
            errors.push(FieldError::forbidden(&FieldPath::new("spec.providerID"), why));
        }
    }

    fn proxy(&self, _env: Env<'_>, _request: &Request, o: &Object, place: &Place) -> Result<Upstream, Status> {
        super::proxy::node(o, place)
    }

    fn subresource(&self, name: &str) -> Option<Sub> {
        (name == "proxy").then_some(Sub::Connect)
    }
}
