//! What objects take of a quota (`k8s.io/apiserver/pkg/quota/v1`): data to data, for admission and for the controller alike.

mod scopes;
mod usage;

pub use usage::{counted, total, tracks, usage};

use meta::{Map, Object, Quantity, Value};
use scopes::Scope;
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
    pub fn of(o: &Object) -> Self {
        Self {
            wanted: amounts(o.at(&["spec", "hard"])),
            hard: amounts(o.at(&["status", "hard"])),
            used: amounts(o.at(&["status", "used"])),
            scopes: scopes::of(o),
            name: o.name().to_owned(),
        }
    }

    /// Objects of a resource that this quota counts, of those it could.
    pub fn covers(&self, group: &str, resource: &str, object: &Object) -> bool {
        self.scopes.iter().all(|s| s.holds(group, resource, object))
    }

    /// The usage after a new or changed object; none when it stays as it is. An error is upstream's reason to refuse.
    pub fn charge(
        &self,
        group: &str,
        resource: &str,
        object: &Object,
        old: Option<&Object>,
    ) -> Result<Option<Amounts>, String> {
        let names: Vec<&str> = self.hard.keys().map(String::as_str).filter(|n| tracks(group, resource, n)).collect();
        if names.is_empty() || !self.covers(group, resource, object) {
            return Ok(None);
        }
        if group.is_empty()
            && resource == "pods"
            && let Some(missing) = usage::missing(&names, object)
        {
            return Err(format!("failed quota: {}: must specify {missing}", self.name));
        }
        if names.iter().any(|n| !self.used.contains_key(*n)) {
            let names = names.join(",");
            return Err(format!("status unknown for quota: {}, resources: {names}", self.name));
        }
        let mut asked = usage(group, resource, object, None);
        let negative: Vec<&str> = asked.iter().filter(|(_, q)| q.sign() < 0).map(|(k, _)| k.as_str()).collect();
        if !negative.is_empty() {
            return Err(format!("quota usage is negative for resource(s): {}", negative.join(",")));
        }
        if let Some(old) = old.filter(|o| self.covers(group, resource, o)) {
            for (k, before) in usage(group, resource, old, None) {
                if let Some(q) = asked.get_mut(&k) {
                    *q = if *q > before { *q - before } else { Quantity::from_int(0) };
                }
            }
        }
        asked.retain(|k, q| !q.is_zero() && self.hard.contains_key(k));
        if asked.is_empty() {
            return Ok(None);
        }
        let mut used = self.used.clone();
        for (k, q) in &asked {
            let sum = used.get(k).map_or(*q, |u| *u + *q);
            used.insert(k.clone(), sum);
        }
        let beyond = |k: &String| matches!((used.get(k), self.hard.get(k)), (Some(u), Some(h)) if u > h);
        let exceeded: Vec<&String> = asked.keys().filter(|k| beyond(k)).collect();
        if exceeded.is_empty() {
            return Ok(Some(used));
        }
        let print = |of: &Amounts| {
            let one = |k: &&String| of.get(*k).map(|q| format!("{k}={q}"));
            exceeded.iter().filter_map(one).collect::<Vec<_>>().join(",")
        };
        Err(format!(
            "exceeded quota: {}, requested: {}, used: {}, limited: {}",
            self.name,
            print(&asked),
            print(&self.used),
            print(&self.hard)
        ))
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
