//! The desired rules by namespaces: a change is computed for its own namespace alone, so its cost does not depend on the others.

use crate::{Desired, Reserved};
use network::ServicePort;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Namespaces whose services or endpoints have changed.
#[derive(Clone, Default)]
pub struct Changed(Arc<Mutex<BTreeSet<Arc<str>>>>);

impl Changed {
    /// Adds a namespace.
    pub fn add(&self, namespace: &Arc<str>) {
        let mut all = self.0.lock();
        if !all.contains(namespace) {
            all.insert(namespace.clone());
        }
    }

    /// Takes all of them. Changes that follow are there the next time, so caches are read afterwards.
    pub fn take(&self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.0.lock())
    }
}

/// What the rules of every namespace depend on: the zone of this node, and the reserved addresses.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    pub zone: String,
    pub reserved: Reserved,
}

/// The desired rules of all namespaces that have some.
#[derive(Default)]
pub struct Namespaces {
    surroundings: Surroundings,
    all: BTreeMap<Arc<str>, Desired>,
}

impl Namespaces {
    /// Computes the rules of namespaces that have changed; of all, if the surroundings have.
    pub fn update(
        &mut self,
        mut changed: BTreeSet<Arc<str>>,
        surroundings: Surroundings,
        desired: impl Fn(&str, &Surroundings) -> Desired,
    ) {
        if self.surroundings != surroundings {
            changed.extend(self.all.keys().cloned());
            self.surroundings = surroundings;
        }
        for namespace in changed {
            let own = desired(&namespace, &self.surroundings);
            if own == Desired::default() {
                self.all.remove(&namespace);
            } else {
                self.all.insert(namespace, own);
            }
        }
    }

    /// The rules of all namespaces.
    pub fn all(&self) -> impl Iterator<Item = &Desired> {
        self.all.values()
    }

    /// The ports of all services.
    pub fn ports(&self) -> Vec<Arc<ServicePort>> {
        self.all().flat_map(|desired| &desired.ports).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Excess;
    use std::cell::RefCell;

    #[test]
    fn only_what_has_changed_is_computed_again() {
        let computed = RefCell::new(Vec::new());
        let compute = |namespace: &str, surroundings: &Surroundings| {
            computed.borrow_mut().push(format!("{namespace}{}", surroundings.zone));
            let excess = (namespace != "empty").then(|| (namespace.to_owned(), Excess::default()));
            Desired { excess: excess.into_iter().collect(), ..Desired::default() }
        };
        let (changed, mut namespaces) = (Changed::default(), Namespaces::default());
        let mut update = |names: &[&str], zone: &str| {
            names.iter().for_each(|name| changed.add(&Arc::from(*name)));
            let surroundings = Surroundings { zone: zone.into(), ..Surroundings::default() };
            namespaces.update(changed.take(), surroundings, compute);
            (std::mem::take(&mut *computed.borrow_mut()).join(" "), namespaces.all().count())
        };
        assert_eq!(update(&["a", "b", "a", "empty"], ""), ("a b empty".into(), 2));
        assert_eq!(update(&["b"], ""), ("b".into(), 2));
        assert_eq!(update(&[], ""), (String::new(), 2));
        assert_eq!(update(&["c"], "z"), ("az bz cz".into(), 3));
    }
}
