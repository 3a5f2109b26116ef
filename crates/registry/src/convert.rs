//! Between the versions of a resource: the stored one, the served ones, and those that others ask for.
//!
//! A strategy that knows its versions brings an object from one to another at once ([`Strategy::convert`]). One whose versions
//! only somebody outside knows names him ([`Strategy::converter`]): he is asked first, once for all objects that are to be
//! read together, and [`Strategy::convert`] then gives what came back the form of its schema. Whatever is read or written
//! goes through here; for a resource without such a converter it is one call of a method, and no more.

use crate::row::Resource;
use crate::strategy::Env;
use crate::{Registry, encode};
use async_trait::async_trait;
use auth::Endpoint;
use bytes::Bytes;
use meta::{Gvk, Object, Status};
use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;
use store::Entry;

/// Somebody outside who knows how the versions of a resource differ.
#[async_trait]
pub trait Converter: Send + Sync {
    /// All objects are in other versions than `to`. As many come back, in the same order, in that version.
    async fn convert(&self, env: Env<'_>, objects: Vec<Object>, to: &Gvk) -> Result<Vec<Object>, Status>;
}

/// The way out of the server.
#[async_trait]
pub trait WebhookTransport: Send + Sync {
    /// Sends JSON and answers with the body of a success; an error is told as Go's client would.
    async fn post(
        &self,
        registry: &Registry,
        to: &Endpoint,
        timeout: Duration,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, String>;

    /// A converter was asked about a definition's objects.
    fn converted(&self, _conversion: &Conversion<'_>) {}
}

/// A call of a converter, for those who count.
pub struct Conversion<'a> {
    pub definition: &'a str,
    pub from: &'a str,
    pub to: &'a str,
    pub took: Duration,
    /// None: it succeeded. Otherwise upstream's word for what went wrong.
    pub failure: Option<&'static str>,
}

impl Registry {
    /// A stored entry in the served version.
    pub async fn from_stored(&self, row: &Resource, entry: &Entry) -> Result<Object, Status> {
        let object = encode::decode(entry)?;
        if row.serves_bytes(entry) {
            return Ok(object);
        }
        if row.strategy.converter().is_none() {
            return row.strategy.convert(object, &row.kind.gvk());
        }
        if let Some(known) = row.converted.get(entry) {
            return Ok(known);
        }
        let object = self.convert(row, object, &row.kind.gvk()).await?;
        row.converted.keep(entry, &object);
        Ok(object)
    }

    /// Stored entries in the served version; a converter is asked once for all.
    pub async fn all_from_stored(&self, row: &Resource, entries: &[Arc<Entry>]) -> Result<Vec<Object>, Status> {
        let to = row.kind.gvk();
        let form = |(o, e): (Object, &Arc<Entry>)| match row.serves_bytes(e) {
            true => Ok(o),
            false => row.strategy.convert(o, &to),
        };
        if row.strategy.converter().is_none() {
            return entries.iter().map(|e| form((encode::decode(e)?, e))).collect();
        }
        let mut known: Vec<Option<Object>> = entries.iter().map(|e| row.converted.get(e)).collect();
        let unknown: Vec<&Arc<Entry>> =
            entries.iter().zip(&known).filter(|(_, k)| k.is_none()).map(|(e, _)| e).collect();
        let asked = unknown.iter().map(|e| encode::decode(e)).collect::<Result<_, _>>()?;
        let mut answers = Box::pin(self.call_webhook(row, asked, &to)).await?.into_iter().zip(unknown);
        for place in known.iter_mut().filter(|k| k.is_none()) {
            let Some((object, entry)) = answers.next() else { break };
            let object = form((object, entry))?;
            if !row.serves_bytes(entry) {
                row.converted.keep(entry, &object);
            }
            *place = Some(object);
        }
        Ok(known.into_iter().flatten().collect())
    }

    /// The bytes of an object in the stored version. What could not be read again is refused here, whatever made it.
    pub(crate) async fn to_stored(&self, row: &Resource, object: &Object) -> Result<Bytes, Status> {
        encode::check_depth(object)?;
        let bytes = match row.stored() {
            Some((_, version)) if row.converts() => {
                let converted = self.convert(row, object.clone(), version).await?;
                encode::check_depth(&converted)?;
                encode::encode(&converted)
            }
            _ => encode::encode(object),
        };
        if bytes.len() > store::MAX_OBJECT && !object.is_deleting() {
            let (size, limit) = (bytes.len(), store::MAX_OBJECT);
            let why = format!("Request entity too large: {size} bytes are too much, the limit is {limit}");
            return Err(Status::too_large(why));
        }
        Ok(bytes)
    }

    /// An object of a resource in another version of it.
    pub async fn convert(&self, row: &Resource, object: Object, to: &Gvk) -> Result<Object, Status> {
        if row.strategy.converter().is_none() || object.api_version() == to.api_version() {
            return row.strategy.convert(object, to);
        }
        let mut asked = Box::pin(self.call_webhook(row, vec![object], to)).await?;
        let object = asked.pop().unwrap_or_default();
        // What came from outside takes the form that the schema of its version gives it.
        let rows = self.rows();
        let target: &Resource = rows.kind(to).map_or(row, Borrow::borrow);
        target.strategy.convert(object, to)
    }

    async fn call_webhook(&self, row: &Resource, mut objects: Vec<Object>, to: &Gvk) -> Result<Vec<Object>, Status> {
        let Some(converter) = row.strategy.converter() else { return Ok(objects) };
        let version = to.api_version();
        let others: Vec<usize> = (0..objects.len()).filter(|i| objects[*i].api_version() != version).collect();
        if others.is_empty() {
            return Ok(objects);
        }
        let sent = others.iter().map(|i| std::mem::take(&mut objects[*i])).collect();
        let converted = converter.convert(self.env(), sent, to).await?;
        for (i, o) in others.into_iter().zip(converted) {
            objects[i] = o;
        }
        Ok(objects)
    }
}
