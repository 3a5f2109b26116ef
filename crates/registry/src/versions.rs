//! Other versions of a resource, for managed fields: each manager owns fields of the version through which it wrote.
//!
//! Merging is a pure function and cannot wait for a webhook. What it would have to ask is therefore noted, asked afterwards,
//! and the function is called once more with the answers, until it has no more questions; each round answers all that the one
//! before noted, so there are no more rounds than versions.

use crate::Registry;
use crate::row::{Resource, Rows};
use crate::strategy::Request;
use merge::managed;
use meta::{GroupVersion, Gvk, Object};
use parking_lot::Mutex;
use schema::Schema;
use std::sync::{Arc, OnceLock};

/// What somebody outside was asked during a request, and what is still to be asked.
#[derive(Default)]
pub struct Conversions(OnceLock<Mutex<Answers>>);

#[derive(Default)]
struct Answers {
    known: Vec<(Object, Gvk, Result<Object, String>)>,
    wanted: Vec<(Object, Gvk)>,
}

impl Conversions {
    fn get(&self, object: &Object, to: &Gvk) -> Result<Object, String> {
        let mut asked = self.0.get_or_init(Mutex::default).lock();
        if let Some((_, _, answer)) = asked.known.iter().find(|(o, t, _)| t == to && o == object) {
            return answer.clone();
        }
        if !asked.wanted.iter().any(|(o, t)| t == to && o == object) {
            asked.wanted.push((object.clone(), to.clone()));
        }
        Err("it has not been asked yet".into())
    }

    fn take_wanted(&self) -> Vec<(Object, Gvk)> {
        self.0.get().map(|a| std::mem::take(&mut a.lock().wanted)).unwrap_or_default()
    }

    fn keep(&self, object: Object, to: Gvk, answer: Result<Object, String>) {
        self.0.get_or_init(Mutex::default).lock().known.push((object, to, answer));
    }
}

impl Registry {
    /// Asks what was noted. False: nothing was, and what was made without asking is right.
    pub(crate) async fn ask_noted(&self, request: &Request) -> bool {
        let wanted = request.conversions.take_wanted();
        let any = !wanted.is_empty();
        for (object, to) in wanted {
            let answer = Box::pin(self.convert(&request.resource, object.clone(), &to)).await;
            request.conversions.keep(object, to, answer.map_err(|s| s.message));
        }
        any
    }
}

/// The versions of the resource of a request.
pub(crate) struct Versions<'a> {
    pub request: &'a Request,
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
        // An object without fields is the same in all versions, and nobody is asked about it.
        let asks = row.strategy.converter().is_some() && object.0.len() > 2;
        if asks && object.api_version() != api_version {
            return self.request.conversions.get(object, &to).map(Some);
        }
        row.strategy.convert(object.clone(), &to).map(Some).map_err(|s| s.message)
    }

    fn has(&self, api_version: &str) -> bool {
        self.row(api_version).is_some()
    }

    fn schema(&self, api_version: &str) -> Option<&Schema> {
        self.row(api_version).map(|r| &*r.kind.schema)
    }
}
