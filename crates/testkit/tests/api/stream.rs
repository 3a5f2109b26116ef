//! Reading the events of a watch.

use apiserver::Body;
use bytes::Bytes;
use http::Response;
use serde_json::Value;
use std::time::Duration;
use testkit::Cluster;

/// Longer than the pause between two bookmarks.
const PATIENCE: Duration = Duration::from_secs(100);

/// A watch whose events are read one by one.
pub struct Watch {
    body: Body,
    buffer: Vec<u8>,
    protobuf: bool,
}

impl Watch {
    /// Starts a watch; the answer itself when it is none.
    pub async fn start(cluster: &Cluster, path: &str, accept: &str) -> Result<Self, Value> {
        let response = cluster.request("GET", path, &[("accept", accept)], Bytes::new()).await;
        Self::over(response).await
    }

    pub async fn over(response: Response<Body>) -> Result<Self, Value> {
        let (parts, body) = response.into_parts();
        if !matches!(body, Body::Stream(_)) {
            return Err(serde_json::from_slice(&body.collect().await.unwrap()).unwrap());
        }
        let media = parts.headers["content-type"].to_str().unwrap();
        Ok(Self { body, buffer: Vec::new(), protobuf: media.starts_with("application/vnd.kubernetes.protobuf") })
    }

    /// The next event as `{"type": …, "object": …}`; none when the stream has ended, or nothing comes.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(e) = self.take() {
                return Some(e);
            }
            let Body::Stream(r) = &mut self.body else { return None };
            let more = tokio::time::timeout(PATIENCE, r.recv()).await.ok()??.ok()?;
            self.buffer.extend_from_slice(&more);
        }
    }

    /// Type and object of the next event.
    pub async fn event(&mut self) -> (String, Value) {
        match self.next().await {
            Some(mut e) => (e["type"].as_str().unwrap_or_default().to_owned(), e["object"].take()),
            None => ("nothing".into(), Value::Null),
        }
    }

    fn take(&mut self) -> Option<Value> {
        if self.protobuf {
            let length = u32::from_be_bytes(self.buffer.get(..4)?.try_into().unwrap()) as usize;
            let frame = self.buffer.get(4..4 + length)?.to_vec();
            self.buffer.drain(..4 + length);
            return Some(event_of(&frame));
        }
        let end = self.buffer.iter().position(|b| *b == b'\n')?;
        let line: Vec<u8> = self.buffer.drain(..=end).collect();
        Some(serde_json::from_slice(&line).unwrap())
    }
}

/// A `WatchEvent`: its type in field 1, in field 2 a message whose field 1 holds the object.
fn event_of(frame: &[u8]) -> Value {
    let fields = length_delimited(frame);
    let of = |n: u64| fields.iter().find(|f| f.0 == n).map(|f| f.1).unwrap();
    let raw = length_delimited(of(2))[0].1;
    serde_json::json!({"type": String::from_utf8(of(1).to_vec()).unwrap(), "object": from_protobuf(raw)})
}

/// The fields of a message that has only texts, bytes and messages.
fn length_delimited(mut rest: &[u8]) -> Vec<(u64, &[u8])> {
    let mut out = Vec::new();
    let varint = |rest: &mut &[u8]| {
        let (mut v, mut shift) = (0u64, 0);
        loop {
            let b = rest[0];
            *rest = &rest[1..];
            v |= u64::from(b & 0x7f) << shift;
            shift += 7;
            if b & 0x80 == 0 {
                return v;
            }
        }
    };
    while !rest.is_empty() {
        let key = varint(&mut rest);
        assert_eq!(key & 7, 2, "a field with a length");
        let length = varint(&mut rest) as usize;
        out.push((key >> 3, &rest[..length]));
        rest = &rest[length..];
    }
    out
}

/// An object in its envelope. Metadata alone is read with the definitions it is made of.
pub fn from_protobuf(bytes: &[u8]) -> Value {
    let schema_of = |version: &str, kind: &str| {
        let gv = meta::GroupVersion::parse(version)?;
        kinds::catalog().schema_of(&gv.with_kind(kind)).map(|s| &**s)
    };
    match codec::protobuf::decode(bytes, schema_of) {
        Ok(o) => o.into_value(),
        Err(codec::protobuf::Error::UnknownKind { kind, .. }) if kind.starts_with("PartialObjectMetadata") => {
            partial(bytes, &kind)
        }
        Err(e) => Value::String(format!("no protobuf: {e}")),
    }
}

fn partial(bytes: &[u8], kind: &str) -> Value {
    let message = |name: &str, bytes: &[u8]| -> Value {
        let name = format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}");
        codec::protobuf::decode_message(bytes, kinds::catalog().definitions.get(&name).unwrap()).unwrap().into()
    };
    let envelope = length_delimited(&bytes[4..]);
    let fields = length_delimited(envelope.iter().find(|f| f.0 == 2).unwrap().1);
    let mut out = serde_json::json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    if kind.ends_with("List") {
        out["metadata"] = message("ListMeta", fields[0].1);
        let items = fields.iter().filter(|f| f.0 == 2);
        out["items"] =
            items.map(|f| serde_json::json!({"metadata": message("ObjectMeta", length_delimited(f.1)[0].1)})).collect();
    } else {
        out["metadata"] = message("ObjectMeta", fields[0].1);
    }
    out
}
