//! Converts between versions of a resource: storage version, served versions, and requested ones.
//!
//! A strategy with local conversion converts directly ([`ObjectConvertor::convert`]). With an external
//! [`ObjectConvertor::converter`], one call converts all objects that are read together. Every read and write goes
//! through this module; without a converter it is a single method call.
//!
//! What is stored conforms to the schema of the storage version, with its defaults; the served version only prunes what
//! it does not know (the storage codec of `k8s.io/apiextensions-apiserver/pkg/apiserver/customresource_handler.go`).
//! Conversions of objects that are not stored, for admission and managed fields, apply no schema.
//!
//! [`ObjectConvertor::convert`]: crate::ObjectConvertor::convert
//! [`ObjectConvertor::converter`]: crate::ObjectConvertor::converter

use crate::Registry;
use crate::row::Resource;
use crate::strategy::{Defaults, Env};
use async_trait::async_trait;
use auth::Endpoint;
use bytes::Bytes;
use meta::{Gvk, Object, Status, Value};
use serde_json::Number;
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
        let external = row.strategy.converter().is_some();
        if let Some(known) = row.converted.get(entry).filter(|_| external) {
            return Ok(known);
        }
        let object = self.serve(row, object).await?;
        if external {
            row.converted.keep(entry, &object);
        }
        Ok(object)
    }

    /// Decodes stored entries in the served version, with one converter call for all.
    pub async fn all_from_stored(&self, row: &Resource, entries: &[Arc<Entry>]) -> Result<Vec<Object>, Status> {
        let external = row.strategy.converter().is_some();
        let known = |e: &Entry| match row.serves_bytes(e) {
            true => encode::decode(e).map(Some),
            false if external => Ok(row.converted.get(e)),
            false => Ok(None),
        };
        let mut objects = entries.iter().map(|e| known(e)).collect::<Result<Vec<_>, _>>()?;
        let unknown: Vec<&Arc<Entry>> =
            entries.iter().zip(&objects).filter(|(_, o)| o.is_none()).map(|(e, _)| e).collect();
        let decoded = unknown.iter().map(|e| encode::decode(e)).collect::<Result<_, _>>()?;
        let mut served = self.serve_all(row, decoded).await?.into_iter().zip(unknown);
        for slot in objects.iter_mut().filter(|o| o.is_none()) {
            let Some((object, entry)) = served.next() else { break };
            if external {
                row.converted.keep(entry, &object);
            }
            *slot = Some(object);
        }
        Ok(objects.into_iter().flatten().collect())
    }

    async fn serve(&self, row: &Resource, object: Object) -> Result<Object, Status> {
        Ok(Box::pin(self.serve_all(row, vec![object])).await?.pop().unwrap_or_default())
    }

    /// Brings stored objects into the served version.
    async fn serve_all(&self, row: &Resource, objects: Vec<Object>) -> Result<Vec<Object>, Status> {
        let conformed = objects.into_iter().map(|o| row.strategy.conform(o, Defaults::Fill));
        let objects = conformed.collect::<Result<Vec<_>, _>>()?;
        self.convert_and_prune(row, objects, &row.kind.gvk()).await
    }

    async fn convert_and_prune(&self, row: &Resource, objects: Vec<Object>, to: &Gvk) -> Result<Vec<Object>, Status> {
        let version = to.api_version();
        let converted: Vec<bool> = objects.iter().map(|o| o.api_version() != version).collect();
        let objects = Box::pin(self.call_webhook(row, objects, to)).await?;
        let prune = |(o, converted): (Object, bool)| match converted {
            true => row.strategy.conform(row.strategy.convert(o, to)?, Defaults::Omit),
            false => Ok(o),
        };
        objects.into_iter().zip(converted).map(prune).collect()
    }

    /// Encodes an object in the storage version. `object` becomes what a read of the result returns: both versions
    /// have to know a field. Errors if it could not be decoded again.
    pub(crate) async fn to_stored(&self, row: &Resource, object: &mut Object) -> Result<Bytes, Status> {
        encode::check_depth(object)?;
        let bytes = match self.store_and_read(row, object).await? {
            Some(stored) => {
                encode::check_depth(&stored)?;
                encode::encode(&stored)
            }
            None => encode::encode(object),
        };
        if bytes.len() > store::MAX_OBJECT && !object.is_deleting() {
            let (size, limit) = (bytes.len(), store::MAX_OBJECT);
            let why = format!("Request entity too large: {size} bytes are too much, the limit is {limit}");
            return Err(Status::too_large(why));
        }
        Ok(bytes)
    }

    /// Returns an object in the storage version, none if it is of that version. `object` becomes what a read of it
    /// returns.
    pub(crate) async fn store_and_read(&self, row: &Resource, object: &mut Object) -> Result<Option<Object>, Status> {
        let Some((_, version)) = row.stored().filter(|_| row.converts()) else {
            if row.strategy.is_custom() && object.0.values().any(|v| !is_settled(v)) {
                *object = row.strategy.conform(std::mem::take(object), Defaults::Fill)?;
                object.0.values_mut().for_each(settle_numbers);
            }
            return Ok(None);
        };
        let stored = self.convert_and_prune(row, vec![object.clone()], version).await?.pop().unwrap_or_default();
        // Upstream fills these in on every read; here, stored bytes are served as they are.
        let mut stored = row.strategy.conform(stored, Defaults::Fill)?;
        stored.0.values_mut().for_each(settle_numbers);
        *object = self.serve(row, stored.clone()).await?;
        Ok(Some(stored))
    }

    /// Converts an object to another version of its resource. The result need not conform to the schema of the version.
    pub async fn convert(&self, row: &Resource, object: Object, to: &Gvk) -> Result<Object, Status> {
        if row.strategy.converter().is_none() || object.api_version() == to.api_version() {
            return row.strategy.convert(object, to);
        }
        let mut converted = Box::pin(self.call_webhook(row, vec![object], to)).await?;
        Ok(converted.pop().unwrap_or_default())
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

/// Whether a value is stored as it is: without `null`, which server-side apply leaves for validation, and without floats
/// that Go writes as integers.
fn is_settled(v: &Value) -> bool {
    match v {
        Value::Null => false,
        Value::Number(n) => integer(n).is_none(),
        Value::Object(m) => m.values().all(is_settled),
        Value::Array(a) => a.iter().all(is_settled),
        _ => true,
    }
}

fn settle_numbers(v: &mut Value) {
    match v {
        Value::Number(n) => {
            if let Some(i) = integer(n) {
                *v = i.into();
            }
        }
        Value::Object(m) => m.values_mut().for_each(settle_numbers),
        Value::Array(a) => a.iter_mut().for_each(settle_numbers),
        _ => {}
    }
}

/// A float without a fraction, if it is an integer of 64 bits.
fn integer(n: &Number) -> Option<i64> {
    const END: f64 = 9_223_372_036_854_775_808.0;
    let f = n.as_f64().filter(|_| n.is_f64())?;
    (f.fract() == 0.0 && (-END..END).contains(&f)).then_some(f as i64)
}
