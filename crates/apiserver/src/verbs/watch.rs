//! Watch: a stream of events, each encoded from the bytes of its object.

use super::list::{self, For};
use super::shared;
use crate::answer::bytes;
use crate::body::Body;
use crate::content::{self, Encoding, META_V1, Shape, Wanted};
use crate::handle::Call;
use crate::metrics::table::{WATCH_EVENTS, WATCH_SIZES};
use crate::{Server, table};
use bytes::Bytes;
use http::Response;
use meta::{Object, Status, Value};
use registry::{Batch, Initial, ObjectEvent, ObjectWatch, Request, WatchOptions, encode};
use serde_json::json;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use store::Entry;
use tokio::sync::mpsc;

/// How often a quiet watch says how far it is.
const BOOKMARK: Duration = Duration::from_secs(60);
/// Pieces that wait for a slow client. One that falls behind further reads from the store's log, not from memory of its own.
const PENDING: usize = 16;

pub fn watch(server: &Arc<Server>, call: &Call, request: Request) -> Result<Response<Body>, Status> {
    let list = list::options(call, &request, For::Watch)?;
    let q = &call.query;
    let timeout = match list::seconds(q)? {
        0 => lifetime(server),
        s => Duration::from_secs(s),
    };
    let initial = match (q.has("sendInitialEvents"), q.is_true("sendInitialEvents")) {
        (false, _) => Initial::Unsaid,
        (true, true) => Initial::Send,
        (true, false) => Initial::Skip,
    };
    let options = WatchOptions { list, initial };
    let watch = server.registry.watch(&request, &options);
    if shared::wanted(call) {
        return match watch {
            Err(s) if !matches!(s.code, 410 | 504) => Err(s),
            watch => Ok(shared::watch(server, &call.trace, request.resource.clone(), watch, timeout, BOOKMARK)),
        };
    }
    let (sender, receiver) = mpsc::channel(PENDING);
    let kind = &request.resource.kind;
    let (group, version, plural) = (kind.group.clone(), kind.version.clone(), kind.plural.clone());
    let labels = [&*group, &*version, &*plural];
    let stream = Stream {
        server: server.clone(),
        request,
        wanted: call.wanted,
        include: q.get("includeObject").to_owned(),
        bookmarks: q.is_true("allowWatchBookmarks"),
        sender,
        headers_sent: false,
        sent: server.metrics.set.counter(&WATCH_EVENTS, &labels),
        sizes: server.metrics.set.histogram(&WATCH_SIZES, &labels),
    };
    match watch {
        Ok(w) => drop(tokio::spawn(stream.run(w, timeout))),
        // A request that was understood has a stream, even if all it says is that the revision is gone.
        Err(s) if matches!(s.code, 410 | 504) => {
            let mut out = Vec::new();
            stream.error(&mut out, &s);
            let _ = stream.sender.try_send(out.into());
        }
        Err(s) => return Err(s),
    }
    let media = match call.wanted.encoding {
        Encoding::Yaml => "application/yaml;stream=watch",
        Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        Encoding::Cbor => "application/cbor-seq",
        Encoding::Json => "application/json",
    };
    Ok(bytes(200, media, Body::stream(receiver)))
}

/// How long a watch lives when the client does not say. Those that began together do not end together.
fn lifetime(server: &Server) -> Duration {
    let least = server.options.min_request_timeout;
    let share = server.registry.rng.next_u64() >> 32;
    least + least.mul_f64(share as f64 / f64::from(u32::MAX))
}

struct Stream {
    server: Arc<Server>,
    request: Request,
    wanted: Wanted,
    include: String,
    bookmarks: bool,
    sender: mpsc::Sender<Bytes>,
    /// The columns of a table are said once.
    headers_sent: bool,
    sent: metrics::Counter,
    sizes: metrics::Histogram,
}

impl Stream {
    async fn run(mut self, mut watch: ObjectWatch, timeout: Duration) {
        let end = tokio::time::sleep(timeout);
        tokio::pin!(end);
        let mut tick = tokio::time::interval(BOOKMARK);
        tick.reset();
        let drained = self.server.lifecycle.drained();
        // Built-in rows stay.
        let gone = (!self.request.resource.bare_items).then(|| self.server.registry.gone(&self.request.resource));
        let gone = async move {
            match gone {
                Some(gone) => gone.await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(drained, gone);
        loop {
            let mut out = Vec::new();
            tokio::select! {
                // In this order: an end or a bookmark is not put off by a busy watch, and a run in virtual time can be repeated.
                biased;
                () = self.sender.closed() => return,
                () = &mut end => return,
                () = &mut drained => return,
                _ = tick.tick(), if self.bookmarks => self.bookmark(&mut out, watch.revision(), false),
                batch = watch.next() => match batch {
                    Ok(Batch::Events(events)) => {
                        if let Err(s) = self.events(&mut out, &events).await {
                            // Whoever went on would never hear of what could not be told.
                            self.error(&mut out, &s);
                            let _ = self.sender.send(out.into()).await;
                            return;
                        }
                    }
                    Ok(Batch::InitialEnd(revision)) if self.bookmarks => self.bookmark(&mut out, revision, true),
                    Ok(Batch::InitialEnd(_)) => {}
                    Err(s) => {
                        self.error(&mut out, &s);
                        let _ = self.sender.send(out.into()).await;
                        return;
                    }
                },
                // After what is still to be said: the objects went before their definition.
                () = &mut gone => return,
            }
            // No object is a list: upstream ends such a stream at the first of them.
            if self.wanted.shape == Shape::PartialMetadataList && !out.is_empty()
                || self.sender.send(out.into()).await.is_err()
            {
                return;
            }
        }
    }

    async fn events(&mut self, out: &mut Vec<u8>, events: &[ObjectEvent]) -> Result<(), Status> {
        let others: Vec<Arc<Entry>> =
            events.iter().filter(|e| self.spliced(&e.entry).is_none()).map(|e| e.entry.clone()).collect();
        let mut objects = Vec::new().into_iter();
        if !others.is_empty() {
            objects = self.server.registry.all_from_stored(&self.request.resource, &others).await?.into_iter();
        }
        for e in events {
            let before = out.len();
            if let Some(splice) = self.spliced(&e.entry) {
                let _ = write!(out, "{{\"type\":\"{}\",\"object\":", e.kind.as_str());
                splice(out, &e.entry);
                out.extend_from_slice(b"}\n");
            } else if let Some(object) = objects.next() {
                let shaped = self.shape(&object);
                self.write(out, e.kind.as_str(), shaped);
            }
            self.sent.inc();
            self.sizes.observe((out.len() - before) as f64);
        }
        Ok(())
    }

    /// How an entry is told without being decoded, where that is possible.
    fn spliced(&self, e: &Entry) -> Option<fn(&mut Vec<u8>, &Entry)> {
        match self.wanted.shape {
            _ if self.wanted.encoding != Encoding::Json => None,
            Shape::Object if self.request.resource.serves_bytes(e) => Some(encode::splice),
            Shape::PartialMetadata if self.wanted.meta == META_V1 => Some(encode::splice_metadata),
            _ => None,
        }
    }

    fn shape(&mut self, object: &Object) -> Value {
        match self.wanted.shape {
            Shape::Object | Shape::PartialMetadataList => object.clone().into_value(),
            Shape::PartialMetadata => table::partial(object, self.wanted.meta),
            Shape::Table => {
                let now = meta::time::format(self.server.registry.clock.now());
                let list = json!({"resourceVersion": object.resource_version()});
                let headers = !std::mem::replace(&mut self.headers_sent, true);
                let how = table::Making { meta: self.wanted.meta, include: &self.include, headers, now: &now };
                table::table(&self.request.resource, std::slice::from_ref(object), list, &how)
            }
        }
    }

    fn write(&self, out: &mut Vec<u8>, kind: &str, object: Value) {
        if self.wanted.encoding == Encoding::Protobuf {
            // What has no messages is said to be an error rather than left out.
            let bytes = content::to_protobuf(&object).map(|b| codec::protobuf::watch_event(kind, &b)).or_else(|| {
                let s = Status::not_acceptable("the kind has no protobuf");
                Some(codec::protobuf::watch_event("ERROR", &content::to_protobuf(&s.to_value())?))
            });
            out.extend_from_slice(&bytes.unwrap_or_default());
            return;
        }
        if self.wanted.encoding == Encoding::Cbor {
            return codec::cbor::write_event(out, kind, &object);
        }
        let event = json!({"type": kind, "object": object});
        if self.wanted.encoding == Encoding::Yaml {
            out.extend_from_slice(b"---\n");
            out.extend_from_slice(&content::write(&self.wanted, &event).1);
        } else {
            let _ = serde_json::to_writer(&mut *out, &event);
            out.push(b'\n');
        }
    }

    fn bookmark(&mut self, out: &mut Vec<u8>, revision: u64, initial_end: bool) {
        let row = &self.request.resource;
        let mut object = Object::new(&row.kind.gvk());
        object.set_resource_version(&revision.to_string());
        if initial_end {
            object.set_annotation("k8s.io/initial-events-end", "true");
        }
        let v = self.shape(&object);
        self.write(out, "BOOKMARK", v);
    }

    fn error(&self, out: &mut Vec<u8>, s: &Status) {
        self.write(out, "ERROR", s.to_value());
    }
}
