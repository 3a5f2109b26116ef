//! Priority: resolves priority classes to numbers, and rejects a second default class.

use crate::remembered::LastResult;
use crate::{Lookup, Operation, Plugin, Review};
use meta::{Object, Status};
use std::sync::Arc;

#[derive(Default)]
pub struct Priority {
    default: LastResult<u64, Option<Arc<Object>>>,
}

const GROUP: &str = "scheduling.k8s.io";

/// The default class; the lowest value if there are several. Errors if a class cannot be read.
fn default_class(lookup: &dyn Lookup) -> Result<Option<Arc<Object>>, Status> {
    let all = lookup.list(GROUP, "priorityclasses", None);
    let defaults = all.filter(|c| c.as_ref().map_or(true, is_default)).collect::<Result<Vec<_>, _>>()?;
    Ok(defaults.into_iter().min_by_key(|c| c.int_at(&["value"]).unwrap_or(0)).map(Arc::new))
}

fn is_default(class: &Object) -> bool {
    class.get("globalDefault").is_some_and(|d| d == true)
}

impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        if !review.is("", "pods") {
            return Ok(());
        }
        if review.operation == Operation::Update {
            // A resolved priority stays, even if the class has changed since.
            for path in [["spec", "priority"], ["spec", "preemptionPolicy"]] {
                let old = review.old.and_then(|o| o.at(&path)).filter(|v| !v.is_null());
                if let (None, Some(v)) = (object.at(&path).filter(|v| !v.is_null()), old.cloned()) {
                    object.set(&path, v);
                }
            }
            return Ok(());
        }
        let name = object.str_at(&["spec", "priorityClassName"]).unwrap_or_default().to_owned();
        let class = if name.is_empty() {
            let now = review.lookup.fingerprint(GROUP, "priorityclasses");
            let class = match self.default.known(&now) {
                Some(known) => known,
                None => self.default.put(now, default_class(review.lookup)?),
            };
            let class = Option::clone(&class);
            if let Some(c) = class.as_deref() {
                let name = c.name().to_owned();
                object.set(&["spec", "priorityClassName"], name);
            }
            class
        } else {
            let class = review.lookup.get(GROUP, "priorityclasses", "", &name)?;
            if class.is_none() {
                return Err(review.forbidden(&format!("no PriorityClass with name {name} was found")));
            }
            class
        };
        let class = class.as_deref();
        let value = class.and_then(|c| c.int_at(&["value"])).unwrap_or(0);
        if let Some(requested) = object.int_at(&["spec", "priority"])
            && requested != value
        {
            let why = format!(
                "the integer value of priority ({requested}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
            );
            return Err(review.forbidden(&why));
        }
        let policy = class.and_then(|c| c.str_at(&["preemptionPolicy"])).unwrap_or("PreemptLowerPriority");
        match object.str_at(&["spec", "preemptionPolicy"]) {
            Some(p) if p != policy => {
                let why = format!(
                    "the string value of PreemptionPolicy ({p}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
                );
                return Err(review.forbidden(&why));
            }
            _ => object.set(&["spec", "preemptionPolicy"], policy),
        }
        object.set(&["spec", "priority"], value);
        Ok(())
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        if !review.is(GROUP, "priorityclasses") {
            return Ok(());
        }
        let Some(object) = object.filter(|o| is_default(o)) else { return Ok(()) };
        let mut others = review.lookup.list(GROUP, "priorityclasses", None);
        let other = others.find(|c| c.as_ref().map_or(true, |c| is_default(c) && c.name() != object.name()));
        match other.transpose()? {
            Some(o) => {
                let why =
                    format!("PriorityClass {} is already marked as default. Only one default can exist", o.name());
                Err(review.forbidden(&why))
            }
            None => Ok(()),
        }
    }
}
