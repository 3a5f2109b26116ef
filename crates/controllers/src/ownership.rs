//! Adopting and releasing objects of a controller (upstream `controller_ref_manager.go`).
//!
//! [`decide`] has the rules, [`Claims`] executes them. A controller that is being deleted adopts nothing; this is read
//! from the server, not from the cache, before the first adoption.

use crate::context::Error;
use client::{Api, Meta, Patch, WriteOptions};
use meta::{LabelSelector, Object, Value};
use serde_json::json;

/// What to do with an object that a selector or an owner reference selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    Keep,
    Adopt,
    Release,
    /// It belongs to another owner or none, and stays so.
    Ignore,
}

pub fn decide(owner_uid: &str, owner_deleting: bool, selector: &LabelSelector, object: &Meta) -> Claim {
    let matches = selector.matches(|k| object.label(k));
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

    /// Adopts or releases the object if necessary; returns whether it belongs to the owner.
    pub async fn claim(&mut self, selector: &LabelSelector, object: &Meta) -> Result<bool, Error> {
        match decide(self.owner.uid(), self.owner.is_deleting(), selector, object) {
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
            let got = decide("me", owner_deleting, &s, &object(label, owner, deleting));
            assert_eq!(got, expect, "{label} {owner:?} {deleting} {owner_deleting}");
        }
    }
}
