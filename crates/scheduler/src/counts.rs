//! Numbers of pods by topology domain, which trials change for single domains.

use crate::topology::ByDomain;

/// Counts by topology key and domain. Copies share the counts at the time of the copy.
#[derive(Clone, Default)]
pub struct Counts {
    parts: Vec<(Box<str>, ByDomain)>,
    changed: Vec<(Box<str>, Box<str>, i64)>,
    sum: i64,
}

impl Counts {
    /// Adds counts of domains of a key.
    pub fn extend(&mut self, key: &str, domains: ByDomain) {
        self.sum += domains.values().sum::<i64>();
        self.parts.push((key.into(), domains));
    }

    /// The topology keys with counts; some may come twice.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|(key, _)| &**key).chain(self.changed.iter().map(|(key, ..)| &**key))
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.changed.is_empty()
    }

    /// The number of domains, for the counts of one key.
    pub fn len(&self) -> usize {
        let known = |domain: &str| self.parts.iter().any(|(_, domains)| domains.contains_key(domain));
        let new = self.changed.iter().filter(|(_, domain, _)| !known(domain)).count();
        self.parts.iter().map(|(_, domains)| domains.len()).sum::<usize>() + new
    }

    /// The sum of all counts.
    pub fn sum(&self) -> i64 {
        self.sum
    }

    pub fn get(&self, key: &str, domain: &str) -> i64 {
        let parts = self.parts.iter().filter(|(k, _)| **k == *key).filter_map(|(_, domains)| domains.get(domain));
        let changed = self.changed.iter().filter(|(k, d, _)| **k == *key && **d == *domain);
        parts.sum::<i64>() + changed.map(|(.., delta)| delta).sum::<i64>()
    }

    /// Adds to a count; returns the sum.
    pub fn add(&mut self, key: &str, domain: &str, delta: i64) -> i64 {
        self.sum += delta;
        match self.changed.iter_mut().find(|(k, d, _)| **k == *key && **d == *domain) {
            Some((.., sum)) => *sum += delta,
            None => self.changed.push((key.into(), domain.into(), delta)),
        }
        self.get(key, domain)
    }
}
