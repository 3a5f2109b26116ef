//! Converts between versions of a resource: storage version, served versions, and requested ones.
//!
//! A strategy with local conversion converts directly ([`ObjectConvertor::convert`]). With an external
//! [`ObjectConvertor::converter`], one call converts all objects that are read together, and
//! [`ObjectConvertor::convert`] then applies the schema to the results. Every read and write goes through this module;
//! without a converter it is a single method call.
//!
//! [`ObjectConvertor::convert`]: crate::ObjectConvertor::convert
//! [`ObjectConvertor::converter`]: crate::ObjectConvertor::converter

use crate::Registry;
use crate::row::Resource;
use crate::strategy::Env;
use async_trait::async_trait;
use auth::Endpoint;
use bytes::Bytes;
use meta::{Gvk, Object, Status};
use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;
use store::Entry;
use stored::encode;

/// An external converter between the versions of a resource.
#[async_trait]
pub trait Converter: Send + Sync {
    /// Converts objects of other versions to `to`. Returns as many, in the same order.
    async fn convert(&self, env: Env<'_>, objects: Vec<Object>, to: &Gvk) -> Result<Vec<Object>, Status>;
}

/// The transport for webhook calls.
#[async_trait]
pub trait WebhookTransport: Send + Sync {
    /// Posts JSON. Returns the body of a successful response; errors have the messages of Go's client.
    async fn post(
        &self,
        registry: &Registry,
        to: &Endpoint,
        timeout: Duration,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, String>;

    /// Records a call of a converter.
    fn converted(&self, _conversion: &Conversion<'_>) {}
}

/// A call of a converter, for metrics.
pub struct Conversion<'a> {
    pub definition: &'a str,
    pub from: &'a str,
    pub to: &'a str,
    pub took: Duration,
    /// None on success, otherwise upstream's failure label.
    pub failure: Option<&'static str>,
}

impl Registry {
    /// Decodes a stored entry in the served version.
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

    /// Decodes stored entries in the served version, with one converter call for all.
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
        let objects = unknown.iter().map(|e| encode::decode(e)).collect::<Result<_, _>>()?;
        let mut answers = Box::pin(self.call_webhook(row, objects, &to)).await?.into_iter().zip(unknown);
        for slot in known.iter_mut().filter(|k| k.is_none()) {
            let Some((object, entry)) = answers.next() else { break };
            let object = form((object, entry))?;
            if !row.serves_bytes(entry) {
                row.converted.keep(entry, &object);
            }
            *slot = Some(object);
        }
        Ok(known.into_iter().flatten().collect())
    }

    /// Encodes an object in the storage version. Errors if it could not be decoded again.
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

    /// Converts an object to another version of its resource.
    pub async fn convert(&self, row: &Resource, object: Object, to: &Gvk) -> Result<Object, Status> {
        if row.strategy.converter().is_none() || object.api_version() == to.api_version() {
            return row.strategy.convert(object, to);
        }
        let mut converted = Box::pin(self.call_webhook(row, vec![object], to)).await?;
        let object = converted.pop().unwrap_or_default();
        // Apply the schema of the target version to the converter's result.
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
