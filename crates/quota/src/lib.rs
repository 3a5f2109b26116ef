//! Quota evaluation (`k8s.io/apiserver/pkg/quota/v1`): pure functions for admission and the controller.

#![warn(missing_docs)]

mod charge;
pub mod extended;
mod scopes;
mod usage;

pub use charge::ChargeRequest;
pub use scopes::{Scope, is_terminating};
pub use usage::is_ignored;
pub use usage::{Basis, counted, is_idle, resources_of_pod, total, tracks, usage};

use meta::{Map, Object, Quantity, Value};
use std::collections::BTreeMap;

/// Resources by name.
pub type Amounts = BTreeMap<String, Quantity>;

/// A stored quota.
pub struct Quota {
    /// Desired limits (`spec.hard`).
    pub desired: Amounts,
    /// Limits in force: the controller has computed usage for them.
    pub hard: Amounts,
    /// Usage by limited resource (`status.used`).
    pub used: Amounts,
    scopes: Vec<Scope>,
    name: String,
}

impl Quota {
    /// Reads a `ResourceQuota`. Skips quantities that cannot be parsed.
    pub fn read(o: &Object) -> Self {
        Self {
            desired: amounts(o.at(&["spec", "hard"])),
            hard: amounts(o.at(&["status", "hard"])),
            used: amounts(o.at(&["status", "used"])),
            scopes: scopes::read_scopes(o),
            name: o.name().to_owned(),
        }
    }

    /// Whether all scopes of the quota match an object.
    pub fn covers(&self, group: &str, resource: &str, object: &Object) -> bool {
        self.scopes.iter().all(|s| s.holds(group, resource, object))
    }

    /// Whether the quota limits objects of a resource but the controller has not counted them yet.
    pub fn is_uncounted(&self, group: &str, resource: &str) -> bool {
        self.desired.keys().any(|k| tracks(group, resource, k) && !self.hard.contains_key(k))
    }
}

/// Quantities by name; skips unparsable ones.
pub fn amounts(v: Option<&Value>) -> Amounts {
    let all = v.and_then(Value::as_object).into_iter().flatten();
    all.filter_map(|(k, q)| Some((k.clone(), Quantity::parse(q.as_str()?).ok()?))).collect()
}

/// Formats amounts as in the status of an object.
pub fn to_value(a: &Amounts) -> Value {
    Value::Object(a.iter().map(|(k, q)| (k.clone(), q.to_string().into())).collect::<Map<_, _>>())
}

/// Adds amounts.
pub fn add(to: &mut Amounts, more: Amounts) {
    for (k, q) in more {
        let sum = to.get(&k).map_or(q, |t| *t + q);
        to.insert(k, sum);
    }
}
