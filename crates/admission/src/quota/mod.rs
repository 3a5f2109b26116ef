//! What objects take of a quota (`k8s.io/apiserver/pkg/quota/v1`): data to data, for admission and for the controller alike.

mod charge;
mod scopes;
mod usage;

pub use charge::ChargeRequest;
pub(crate) use scopes::{Scope, is_terminating};
pub(crate) use usage::is_ignored;
pub use usage::{counted, is_idle, total, tracks, usage};

use meta::{Map, Object, Quantity, Value};
use std::collections::BTreeMap;

/// Resources by name.
pub type Amounts = BTreeMap<String, Quantity>;

/// A quota as it is stored.
pub struct Quota {
    /// What is to hold (`spec.hard`).
    pub wanted: Amounts,
    /// What holds: the controller has counted since it was wanted.
    pub hard: Amounts,
    pub used: Amounts,
    scopes: Vec<Scope>,
    name: String,
}

impl Quota {
    pub fn read(o: &Object) -> Self {
        Self {
            wanted: amounts(o.at(&["spec", "hard"])),
            hard: amounts(o.at(&["status", "hard"])),
            used: amounts(o.at(&["status", "used"])),
            scopes: scopes::read_scopes(o),
            name: o.name().to_owned(),
        }
    }

    /// Objects of a resource that this quota counts, of those it could.
    pub fn covers(&self, group: &str, resource: &str, object: &Object) -> bool {
        self.scopes.iter().all(|s| s.holds(group, resource, object))
    }

    /// It is wanted that objects of a resource are counted, and nobody has counted them yet.
    pub fn is_uncounted(&self, group: &str, resource: &str) -> bool {
        self.wanted.keys().any(|k| tracks(group, resource, k) && !self.hard.contains_key(k))
    }
}

/// Quantities by name; what is none is left out.
pub fn amounts(v: Option<&Value>) -> Amounts {
    let all = v.and_then(Value::as_object).into_iter().flatten();
    all.filter_map(|(k, q)| Some((k.clone(), Quantity::parse(q.as_str()?).ok()?))).collect()
}

/// As an object's status has them.
pub fn to_value(a: &Amounts) -> Value {
    Value::Object(a.iter().map(|(k, q)| (k.clone(), q.to_string().into())).collect::<Map<_, _>>())
}

/// Adds amounts up.
pub fn add(to: &mut Amounts, more: Amounts) {
    for (k, q) in more {
        let sum = to.get(&k).map_or(q, |t| *t + q);
        to.insert(k, sum);
    }
}
