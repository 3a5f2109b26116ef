//! Owners and what they own: adopting and releasing (upstream `controller_ref_manager.go`), and which owners a change concerns.
//!
//! [`decide`] has the rules, [`Claims`] executes them. A controller that is being deleted adopts nothing; this is read
//! from the server, not from the cache, before the first adoption.

use crate::context::Error;
use crate::views::Selector;
use client::informer::{Owner, View};
use client::{Api, Change, Entry, Expectations, Informer, Key, Meta, Patch, WorkQueue, WriteOptions};
use meta::{Object, Value};
use serde_json::json;
use std::sync::Arc;

/// What to do with an object that a selector or an owner reference selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    Keep,
    Adopt,
    Release,
    /// It belongs to another owner or none, and stays so.
    Ignore,
}

/// `matches`: the owner's selector selects the object.
pub fn decide(owner_uid: &str, owner_deleting: bool, matches: bool, object: &Meta) -> Claim {
    match object.controller() {
        Some(c) if &*c.uid != owner_uid => Claim::Ignore,
        Some(_) if matches => Claim::Keep,
        Some(_) if owner_deleting => Claim::Ignore,
        Some(_) => Claim::Release,
        None if owner_deleting || !matches || object.is_deleting() => Claim::Ignore,
        None => Claim::Adopt,
    }
}

/// The controller reference to `owner`.
pub fn controller_reference(owner: &Object) -> Value {
    json!({
        "apiVersion": owner.api_version(), "kind": owner.kind(), "name": owner.name(), "uid": owner.uid(),
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// The member of a strategic merge patch with finalizers to remove.
pub const REMOVE_FINALIZERS: &str = "$deleteFromPrimitiveList/finalizers";

/// `metadata.ownerReferences` with these owners.
pub fn owner_references(owners: &[Owner]) -> Vec<Value> {
    let reference = |o: &Owner| {
        let mut r = json!({"apiVersion": o.api_version, "kind": o.kind, "name": o.name, "uid": &*o.uid});
        if o.controller {
            r["controller"] = true.into();
        }
        if o.block_owner_deletion {
            r["blockOwnerDeletion"] = true.into();
        }
        r
    };
    owners.iter().map(reference).collect()
}

/// The controller of `object` among the objects of a kind, if it has the UID that the reference names.
pub fn owner_of<V: View>(kind: &str, objects: &Informer<V>, object: &Meta) -> Option<Arc<Entry<V>>> {
    let owner = object.controller().filter(|o| o.kind == kind)?;
    objects.get(&Key::new(object.namespace.clone(), owner.name.as_str())).filter(|held| held.meta.uid == owner.uid)
}

/// The objects whose controller has this UID, and those of the namespace without a controller that `matches` selects.
pub fn candidates<V: View>(
    objects: &Informer<V>,
    namespace: &str,
    owner_uid: &str,
    matches: impl Fn(&Meta) -> bool,
) -> Vec<Arc<Entry<V>>> {
    let mut found = objects.controlled_or_orphaned(owner_uid, namespace);
    found.retain(|o| o.meta.controller().is_some() || matches(&o.meta));
    found
}

/// Finds the objects of one kind that own others or could adopt them.
pub struct Owners<V> {
    kind: &'static str,
    objects: Informer<V>,
    selector: fn(&V) -> &Selector,
}

impl<V: View> Owners<V> {
    /// `selector` returns the selector with which an owner adopts orphans.
    pub fn new(kind: &'static str, objects: &Informer<V>, selector: fn(&V) -> &Selector) -> Self {
        Self { kind, objects: objects.clone(), selector }
    }

    /// The key of the controller of `object`, if it is of this kind and has the UID that the reference names.
    pub fn owner(&self, object: &Meta) -> Option<Key> {
        owner_of(self.kind, &self.objects, object).map(|owner| owner.key())
    }

    /// Notes an expected creation or deletion. Call this before [`Self::enqueue`], so that no worker sees the key too early.
    pub fn observe<P>(&self, change: &Change<P>, expected: &Expectations<Key>) {
        let latest = &change.latest().meta;
        let Some(key) = self.owner(latest) else { return };
        if change.new.is_none() || latest.is_deleting() {
            expected.deletion_observed(&key, &latest.uid);
        } else if change.old.is_none() {
            expected.creation_observed(&key);
        }
    }

    /// Enqueues an owner that changed. What was expected of an object that is gone, or replaced by one of the same name, is forgotten:
    /// nothing that happens to its pods would be counted.
    pub fn enqueue_owner(&self, change: &Change<V>, expected: &Expectations<Key>, queue: &WorkQueue<Key>) {
        let uid = |o: &Option<Arc<Entry<V>>>| o.as_ref().map(|o| o.meta.uid.clone());
        if change.old.is_some() && uid(&change.old) != uid(&change.new) {
            expected.forget(&change.key());
        }
        queue.add(change.key());
    }

    /// Enqueues what a change of an object concerns: its owner, its previous owner, and, for an orphan that is new or has other
    /// labels than before, all that select it.
    pub fn enqueue<P>(&self, change: &Change<P>, queue: &WorkQueue<Key>) {
        let old = change.old.as_ref();
        let latest = &change.latest().meta;
        let owner = self.owner(latest);
        if let Some(key) = &owner {
            queue.add(key.clone());
        }
        // The previous owner has one object less.
        if let Some(before) = old.and_then(|o| self.owner(&o.meta))
            && Some(&before) != owner.as_ref()
        {
            queue.add(before);
        }
        let gone = change.new.as_ref().is_none_or(|n| n.meta.is_deleting());
        let relabelled = || old.is_none_or(|o| o.meta.labels != latest.labels || o.meta.controller().is_some());
        if !gone && latest.controller().is_none() && relabelled() {
            for candidate in self.objects.cache().in_namespace(&latest.namespace) {
                if (self.selector)(&candidate.view).selects(latest) {
                    queue.add(candidate.key());
                }
            }
        }
    }
}

/// Adopts and releases objects for one owner.
pub struct Claims<'a> {
    owner: &'a Object,
    owners: &'a Api<Object>,
    objects: &'a Api<Object>,
    may_adopt: Option<bool>,
    finalizer: Option<&'static str>,
}

impl<'a> Claims<'a> {
    /// `owners` and `objects` are in the owner's namespace.
    pub fn new(owner: &'a Object, owners: &'a Api<Object>, objects: &'a Api<Object>) -> Self {
        Self { owner, owners, objects, may_adopt: None, finalizer: None }
    }

    /// Adopted objects get this finalizer, and released ones lose it.
    #[must_use]
    pub fn with_finalizer(mut self, finalizer: &'static str) -> Self {
        self.finalizer = Some(finalizer);
        self
    }

    /// The objects of a cache that belong to the owner, by name, after adopting those that `matches` selects and releasing others.
    pub async fn claim_all<V: View>(
        &mut self,
        matches: impl Fn(&Meta) -> bool,
        informer: &Informer<V>,
    ) -> Result<Vec<Arc<Entry<V>>>, Error> {
        let mut candidates = candidates(informer, self.owner.namespace(), self.owner.uid(), &matches);
        candidates.sort_by(|a, b| a.meta.name.cmp(&b.meta.name));
        let mut owned = Vec::with_capacity(candidates.len());
        for object in candidates {
            if self.claim(matches(&object.meta), &object.meta).await? {
                owned.push(object);
            }
        }
        Ok(owned)
    }

    /// Adopts or releases the object if necessary; returns whether it belongs to the owner.
    pub async fn claim(&mut self, matches: bool, object: &Meta) -> Result<bool, Error> {
        match decide(self.owner.uid(), self.owner.is_deleting(), matches, object) {
            Claim::Keep => Ok(true),
            Claim::Ignore => Ok(false),
            Claim::Adopt => self.adopt(object).await,
            Claim::Release => self.release(object).await,
        }
    }

    async fn adopt(&mut self, object: &Meta) -> Result<bool, Error> {
        if self.may_adopt.is_none() {
            let fresh = self.owners.get(self.owner.name()).await?;
            if fresh.uid() != self.owner.uid() {
                return Err(Error::Waiting(format!(
                    "original {} {}/{} is gone: got uid {}, wanted {}",
                    self.owner.kind(),
                    self.owner.namespace(),
                    self.owner.name(),
                    fresh.uid(),
                    self.owner.uid()
                )));
            }
            self.may_adopt = Some(!fresh.is_deleting());
        }
        if self.may_adopt != Some(true) {
            return Ok(false);
        }
        let mut patch =
            json!({"metadata": {"uid": &*object.uid, "ownerReferences": [controller_reference(self.owner)]}});
        if let Some(finalizer) = self.finalizer {
            patch["metadata"]["finalizers"] = json!([finalizer]);
        }
        match self.objects.patch(&object.name, &WriteOptions::default(), &Patch::Strategic(patch)).await {
            Ok(_) => Ok(true),
            Err(e) if e.is_not_found() => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    async fn release(&mut self, object: &Meta) -> Result<bool, Error> {
        let mut patch = json!({"metadata": {
            "uid": &*object.uid,
            "ownerReferences": [{"$patch": "delete", "uid": self.owner.uid()}],
        }});
        if let Some(finalizer) = self.finalizer {
            patch["metadata"][REMOVE_FINALIZERS] = json!([finalizer]);
        }
        match self.objects.patch(&object.name, &WriteOptions::default(), &Patch::Strategic(patch)).await {
            // It is gone or replaced: in either case it does not belong to the owner.
            Err(e) if !e.is_not_found() && !e.is_invalid() => Err(e.into()),
            _ => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meta::LabelSelector;

    fn object(labels: &str, owner: Option<&str>, deleting: bool) -> Meta {
        let mut m = json!({"labels": {"app": labels}});
        if let Some(o) = owner {
            m["ownerReferences"] = json!([{"uid": o, "controller": true}]);
        }
        if deleting {
            m["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        client::Entry::<()>::new(json!({"metadata": m}).to_string().into()).unwrap().meta.clone()
    }

    #[test]
    fn adopts_and_releases() {
        let s = LabelSelector::parse("app=a").unwrap();
        let cases = [
            ("a", Some("me"), false, false, Claim::Keep),
            ("a", Some("other"), false, false, Claim::Ignore),
            ("b", Some("me"), false, false, Claim::Release),
            ("b", Some("me"), false, true, Claim::Ignore),
            ("a", None, false, false, Claim::Adopt),
            ("a", None, true, false, Claim::Ignore),
            ("a", None, false, true, Claim::Ignore),
            ("b", None, false, false, Claim::Ignore),
        ];
        for (label, owner, deleting, owner_deleting, expect) in cases {
            let object = object(label, owner, deleting);
            let got = decide("me", owner_deleting, s.matches(|k| object.label(k)), &object);
            assert_eq!(got, expect, "{label} {owner:?} {deleting} {owner_deleting}");
        }
    }
}
