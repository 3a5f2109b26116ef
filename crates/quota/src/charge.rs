//! Charges a new or changed object to the quotas of its namespace
//! (`k8s.io/apiserver/pkg/admission/plugin/resourcequota`).

use crate::{Amounts, Quota, Scope, tracks, usage};
use meta::{Object, Quantity};

/// An object to write.
pub struct ChargeRequest<'a> {
    /// API group of the object; empty for the core group.
    pub group: &'a str,
    /// Plural resource name of the object.
    pub resource: &'a str,
    /// The object to write.
    pub object: &'a Object,
    /// The stored object, on update.
    pub old: Option<&'a Object>,
    /// Charge without rejecting an exceeded quota.
    pub only_counted: bool,
}

impl ChargeRequest<'_> {
    /// The usage of the object. Errors with upstream's rejection message.
    pub fn usage(&self) -> Result<Amounts, String> {
        let all = usage(self.group, self.resource, self.object, None);
        let negative: Vec<&str> = all.iter().filter(|(_, q)| q.sign() < 0).map(|(k, _)| k.as_str()).collect();
        if negative.is_empty() {
            return Ok(all);
        }
        Err(format!("quota usage is negative for resource(s): {}", negative.join(",")))
    }

    /// The increase in usage.
    pub fn more(&self, usage: &Amounts) -> Amounts {
        let before = self.old.map(|o| crate::usage(self.group, self.resource, o, None)).unwrap_or_default();
        let more = usage.iter().map(|(k, q)| match before.get(k) {
            Some(b) if q > b => (k.clone(), *q - *b),
            Some(_) => (k.clone(), Quantity::from_int(0)),
            None => (k.clone(), *q),
        });
        more.filter(|(_, q)| !q.is_zero()).collect()
    }
}

impl Quota {
    /// The resources that the quota limits for the object; none if the quota does not count it. An error is a
    /// rejection message.
    pub fn concerns(&self, request: &ChargeRequest<'_>) -> Result<Option<Vec<&str>>, String> {
        let (group, resource) = (request.group, request.resource);
        let names: Vec<&str> = self.hard.keys().map(String::as_str).filter(|n| tracks(group, resource, n)).collect();
        if names.is_empty() || !self.covers(group, resource, request.object) {
            return Ok(None);
        }
        if group.is_empty()
            && resource == "pods"
            && let Some(missing) = usage::missing(&names, request.object)
        {
            return Err(format!("failed quota: {}: must specify {missing}", self.name));
        }
        if names.iter().any(|n| !self.used.contains_key(*n)) {
            let names = names.join(",");
            return Err(format!("status unknown for quota: {}, resources: {names}", self.name));
        }
        Ok(Some(names))
    }

    /// The increase for this quota: all usage if it did not count the old object.
    pub fn more(&self, request: &ChargeRequest<'_>, usage: &Amounts) -> Amounts {
        match request.old.filter(|o| self.covers(request.group, request.resource, o)) {
            Some(_) => request.more(usage),
            None => usage.iter().filter(|(_, q)| !q.is_zero()).map(|(k, q)| (k.clone(), *q)).collect(),
        }
    }

    /// The matching scopes, whatever the quota's resources.
    pub fn scopes_of<'a>(&'a self, request: &'a ChargeRequest<'_>) -> impl Iterator<Item = &'a Scope> {
        self.scopes.iter().filter(|s| s.holds(request.group, request.resource, request.object))
    }

    /// The quota's usage plus the increase; none if it is unchanged. An error is a rejection message.
    pub fn charge(&self, request: &ChargeRequest<'_>, mut more: Amounts) -> Result<Option<Amounts>, String> {
        more.retain(|k, _| self.hard.contains_key(k));
        if more.is_empty() {
            return Ok(None);
        }
        let mut used = self.used.clone();
        super::add(&mut used, more.clone());
        let beyond = |k: &String| matches!((used.get(k), self.hard.get(k)), (Some(u), Some(h)) if u > h);
        let exceeded: Vec<&String> = more.keys().filter(|k| beyond(k)).collect();
        if exceeded.is_empty() || request.only_counted {
            return Ok(Some(used));
        }
        let print = |amounts: &Amounts| {
            let entry = |k: &&String| amounts.get(*k).map(|q| format!("{k}={q}"));
            exceeded.iter().filter_map(entry).collect::<Vec<_>>().join(",")
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
