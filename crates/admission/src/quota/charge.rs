//! What a new or changed object asks of the quotas of its namespace (`k8s.io/apiserver/pkg/admission/plugin/resourcequota`).

use super::{Amounts, Quota, Scope, tracks, usage};
use meta::{Object, Quantity};

/// An object that is to be written.
pub struct ChargeRequest<'a> {
    pub group: &'a str,
    pub resource: &'a str,
    pub object: &'a Object,
    pub old: Option<&'a Object>,
    /// It is not refused for being too much, only counted.
    pub only_counted: bool,
}

impl ChargeRequest<'_> {
    /// What the object takes. An error is upstream's reason to refuse.
    pub fn usage(&self) -> Result<Amounts, String> {
        let all = usage(self.group, self.resource, self.object, None);
        let negative: Vec<&str> = all.iter().filter(|(_, q)| q.sign() < 0).map(|(k, _)| k.as_str()).collect();
        if negative.is_empty() {
            return Ok(all);
        }
        Err(format!("quota usage is negative for resource(s): {}", negative.join(",")))
    }

    /// What of a usage is new.
    pub fn more(&self, usage: &Amounts) -> Amounts {
        let before = self.old.map(|o| super::usage(self.group, self.resource, o, None)).unwrap_or_default();
        let more = usage.iter().map(|(k, q)| match before.get(k) {
            Some(b) if q > b => (k.clone(), *q - *b),
            Some(_) => (k.clone(), Quantity::from_int(0)),
            None => (k.clone(), *q),
        });
        more.filter(|(_, q)| !q.is_zero()).collect()
    }
}

impl Quota {
    /// The resources that the quota limits for the object; none when it does not count it. An error is a reason to refuse.
    pub fn concerns(&self, asked: &ChargeRequest<'_>) -> Result<Option<Vec<&str>>, String> {
        let (group, resource) = (asked.group, asked.resource);
        let names: Vec<&str> = self.hard.keys().map(String::as_str).filter(|n| tracks(group, resource, n)).collect();
        if names.is_empty() || !self.covers(group, resource, asked.object) {
            return Ok(None);
        }
        if group.is_empty()
            && resource == "pods"
            && let Some(missing) = usage::missing(&names, asked.object)
        {
            return Err(format!("failed quota: {}: must specify {missing}", self.name));
        }
        if names.iter().any(|n| !self.used.contains_key(*n)) {
            let names = names.join(",");
            return Err(format!("status unknown for quota: {}, resources: {names}", self.name));
        }
        Ok(Some(names))
    }

    /// What is new for this quota: all, where it did not count what was there before.
    pub fn more(&self, asked: &ChargeRequest<'_>, usage: &Amounts) -> Amounts {
        match asked.old.filter(|o| self.covers(asked.group, asked.resource, o)) {
            Some(_) => asked.more(usage),
            None => usage.iter().filter(|(_, q)| !q.is_zero()).map(|(k, q)| (k.clone(), *q)).collect(),
        }
    }

    /// The scopes in which the object is, whatever else the quota says.
    pub(crate) fn scopes_of<'a>(&'a self, asked: &'a ChargeRequest<'_>) -> impl Iterator<Item = &'a Scope> {
        self.scopes.iter().filter(|s| s.holds(asked.group, asked.resource, asked.object))
    }

    /// The usage with what is new; none when it stays as it is. An error is a reason to refuse.
    pub fn charge(&self, asked: &ChargeRequest<'_>, mut more: Amounts) -> Result<Option<Amounts>, String> {
        more.retain(|k, _| self.hard.contains_key(k));
        if more.is_empty() {
            return Ok(None);
        }
        let mut used = self.used.clone();
        super::add(&mut used, more.clone());
        let beyond = |k: &String| matches!((used.get(k), self.hard.get(k)), (Some(u), Some(h)) if u > h);
        let exceeded: Vec<&String> = more.keys().filter(|k| beyond(k)).collect();
        if exceeded.is_empty() || asked.only_counted {
            return Ok(Some(used));
        }
        let print = |of: &Amounts| {
            let one = |k: &&String| of.get(*k).map(|q| format!("{k}={q}"));
            exceeded.iter().filter_map(one).collect::<Vec<_>>().join(",")
        };
        Err(format!(
            "exceeded quota: {}, requested: {}, used: {}, limited: {}",
            self.name,
            print(&more),
            print(&self.used),
            print(&self.hard)
        ))
    }
}
