//! Conversions for managed fields: each manager owns fields in the version through which it wrote.
//!
//! Merging is a pure function and cannot await a webhook. It records the conversions it lacks; the caller performs
//! them and calls it again, until none is missing. Each round performs all that the previous one recorded, so there
//! are at most as many rounds as versions.

use crate::Registry;
use crate::row::{Resource, Rows};
use crate::strategy::Request;
use merge::managed;
use merge::typed::TypeRef;
use meta::{GroupVersion, Gvk, Object};
use parking_lot::Mutex;
use schema::Schema;
use std::sync::{Arc, OnceLock};

/// The conversions between versions that an operation needs to merge managed fields: done and pending.
#[derive(Default)]
pub struct Conversions(OnceLock<Mutex<Entries>>);

#[derive(Default)]
struct Entries {
    known: Vec<(Object, Gvk, Result<Object, String>)>,
    pending: Vec<(Object, Gvk)>,
}

impl Conversions {
    fn get(&self, object: &Object, to: &Gvk) -> Result<Object, String> {
        let mut conversions = self.0.get_or_init(Mutex::default).lock();
        if let Some((_, _, answer)) = conversions.known.iter().find(|(o, t, _)| t == to && o == object) {
            return answer.clone();
        }
        if !conversions.pending.iter().any(|(o, t)| t == to && o == object) {
            conversions.pending.push((object.clone(), to.clone()));
        }
        Err("the conversion is pending".into())
    }

    fn take_pending(&self) -> Vec<(Object, Gvk)> {
        self.0.get().map(|a| std::mem::take(&mut a.lock().pending)).unwrap_or_default()
    }

    fn keep(&self, object: Object, to: Gvk, answer: Result<Object, String>) {
        self.0.get_or_init(Mutex::default).lock().known.push((object, to, answer));
    }
}

impl Registry {
    /// Performs pending conversions. Returns false if there were none: the merge result is then final.
    pub(crate) async fn convert_pending(&self, request: &Request, conversions: &Conversions) -> bool {
        let pending = conversions.take_pending();
        let any = !pending.is_empty();
        for (object, to) in pending {
            let answer = Box::pin(self.convert(&request.resource, object.clone(), &to)).await;
            conversions.keep(object, to, answer.map_err(|s| s.message));
        }
        any
    }
}

/// The versions of the resource of a request.
pub(crate) struct Versions<'a> {
    pub request: &'a Request,
    pub conversions: &'a Conversions,
    pub rows: Arc<Rows>,
}

impl Versions<'_> {
    fn row(&self, api_version: &str) -> Option<&Arc<Resource>> {
        let own = &self.request.resource;
        let there = self.rows.kind(&GroupVersion::parse(api_version)?.with_kind(&*own.kind.kind))?;
        let same = own.stored().map(|(name, _)| name) == there.stored().map(|(name, _)| name);
        same.then_some(there)
    }
}

impl managed::Versions for Versions<'_> {
    fn convert(&self, object: &Object, api_version: &str) -> Result<Option<Object>, String> {
        let Some(row) = self.row(api_version) else { return Ok(None) };
        let to = row.kind.gvk();
        // An object without fields is the same in all versions: no conversion.
        let converts = row.strategy.converter().is_some() && object.0.len() > 2;
        let converted = match converts && object.api_version() != api_version {
            true => self.conversions.get(object, &to)?,
            false => row.strategy.convert(object.clone(), &to).map_err(|s| s.message)?,
        };
        // A field that the version does not know has no type there.
        if row.strategy.is_custom() && object.api_version() != api_version {
            merge::typed::validate_object(&converted, TypeRef::new(Some(&row.kind.schema)))?;
        }
        Ok(Some(converted))
    }

    fn has(&self, api_version: &str) -> bool {
        self.row(api_version).is_some()
    }

    fn schema(&self, api_version: &str) -> Option<&Schema> {
        self.row(api_version).map(|r| &*r.kind.schema)
    }
}
