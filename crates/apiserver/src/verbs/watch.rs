//! Watch: a stream of events, each encoded from the stored bytes.

use super::list::{self, ListOrWatch};
use super::pipe::{ClientGone, PIECE, Pipe, SHARED};
use super::shared;
use crate::answer::bytes;
use crate::body::Body;
use crate::call::Call;
use crate::content::{self, Encoding, META_V1, Negotiated, STREAMS, Shape};
use crate::encoded::EventSource;
use crate::listing::pieces_by;
use crate::metrics::table::{TERMINATED_WATCHERS, WATCH_EVENTS, WATCH_SIZES};
use crate::{Server, order, table};
use bytes::Bytes;
use http::Response;
use meta::{Object, Status, Value};
use registry::{Batch, Initial, ObjectEvent, ObjectWatch, Request, WatchOptions};
use serde_json::json;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use store::Entry;
use stored::encode;

/// Interval of bookmarks on a quiet watch.
const BOOKMARK: Duration = Duration::from_secs(60);

pub fn watch(server: &Arc<Server>, call: &Call, request: Request) -> Result<Response<Body>, Status> {
    // YAML has no streams.
    if call.negotiated.encoding == Encoding::Yaml {
        let list = STREAMS.join(", ");
        return Err(Status::not_acceptable(format!("only the following media types are accepted: {list}")));
    }
    let list = list::options(call, &request, ListOrWatch::Watch)?;
    let q = &call.query;
    let timeout = match list::seconds(q)? {
        0 => lifetime(server),
        s => meta::time::seconds(i64::try_from(s).unwrap_or(i64::MAX)),
    };
    let initial = match (q.has("sendInitialEvents"), q.is_true("sendInitialEvents")) {
        (false, _) => Initial::Unsaid,
        (true, true) => Initial::Send,
        (true, false) => Initial::Skip,
    };
    let options = WatchOptions { list, initial };
    let watch = server.registry.watch(&request, &options);
    if shared::negotiated(call) {
        return match watch {
            Err(s) if !matches!(s.code, 410 | 504) => Err(s),
            watch => {
                let representation = (request.resource.clone(), call.negotiated.shape);
                Ok(shared::watch(server, &call.trace, representation, watch, timeout, BOOKMARK))
            }
        };
    }
    let kind = &request.resource.kind;
    let (group, version, plural) = (kind.group.clone(), kind.version.clone(), kind.plural.clone());
    let labels = [&*group, &*version, &*plural];
    let left = server.metrics.set.counter(&TERMINATED_WATCHERS, &[&group, &plural]);
    let (pipe, receiver) = Pipe::new(server, call, left);
    let stream = Stream {
        server: server.clone(),
        request,
        negotiated: call.negotiated,
        include: q.get("includeObject").to_owned(),
        bookmarks: q.is_true("allowWatchBookmarks"),
        pipe,
        out: Vec::new(),
        headers_sent: false,
        sent: server.metrics.set.counter(&WATCH_EVENTS, &labels),
        sizes: server.metrics.set.histogram(&WATCH_SIZES, &labels),
    };
    match watch {
        Ok(w) => drop(tokio::spawn(stream.run(w, timeout))),
        // A valid request gets a stream, even if its only event is an expired resource version.
        Err(s) if matches!(s.code, 410 | 504) => drop(tokio::spawn(stream.fail(s))),
        Err(s) => return Err(s),
    }
    let media = match call.negotiated.encoding {
        Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        Encoding::Cbor => "application/cbor-seq",
        Encoding::Json | Encoding::Yaml => "application/json",
    };
    Ok(bytes(200, media, Body::stream(receiver)))
}

/// The default timeout of a watch, randomised to spread reconnects.
fn lifetime(server: &Server) -> Duration {
    let least = server.options.min_request_timeout;
    let share = server.registry.rng.next_u64() >> 32;
    least + least.mul_f64(share as f64 / f64::from(u32::MAX))
}

struct Stream {
    server: Arc<Server>,
    request: Request,
    negotiated: Negotiated,
    include: String,
    bookmarks: bool,
    pipe: Pipe,
    /// The buffer of the next piece.
    out: Vec<u8>,
    /// Only the first table has column definitions.
    headers_sent: bool,
    sent: metrics::Counter,
    sizes: metrics::Histogram,
}

/// How to encode an entry for watchers without decoding it.
#[derive(Clone, Copy)]
enum Splice {
    Whole,
    Metadata,
}

impl Stream {
    async fn run(mut self, mut watch: ObjectWatch, timeout: Duration) {
        let end = tokio::time::sleep(timeout);
        tokio::pin!(end);
        let mut tick = tokio::time::interval(BOOKMARK);
        tick.reset();
        let server = self.server.clone();
        let drained = server.lifecycle.drained();
        // Built-in rows are never removed.
        let gone = (!self.request.resource.bare_items).then(|| self.server.registry.gone(&self.request.resource));
        let gone = async move {
            match gone {
                Some(gone) => gone.await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(drained, gone);
        loop {
            let sent = tokio::select! {
                // Biased: a busy watch must not delay its end or bookmarks, and runs in virtual time are
                // reproducible.
                biased;
                () = self.pipe.closed() => return,
                () = &mut end => return,
                () = &mut drained => return,
                _ = tick.tick(), if self.bookmarks => self.bookmark(watch.revision(), false).await,
                batch = watch.next(&server.registry) => match batch {
                    // `PartialObjectMetadataList` cannot represent an object: like upstream, ends the stream at the
                    // first event.
                    Ok(Batch::Events(_)) if self.negotiated.shape == Shape::PartialMetadataList => return,
                    Ok(Batch::Events(events)) => match self.all_events(&events).await {
                        Ok(sent) => sent,
                        // Continuing would silently skip an event that cannot be encoded.
                        Err(s) => return self.fail(s).await,
                    },
                    Ok(Batch::InitialEnd(revision)) if self.bookmarks => self.bookmark(revision, true).await,
                    Ok(Batch::InitialEnd(_)) => Ok(()),
                    Err(s) => return self.fail(s).await,
                },
                // After pending events: the objects were deleted before their definition.
                () = &mut gone => return,
            };
            if sent.is_err() {
                return;
            }
        }
    }

    /// In chunks, since many large objects may need decoding.
    async fn all_events(&mut self, events: &[ObjectEvent]) -> Result<Result<(), ClientGone>, Status> {
        for (number, piece) in pieces_by(events, |e| e.entry.value.len()).enumerate() {
            if number > 0 {
                tokio::task::yield_now().await;
            }
            let sent = self.events(piece).await?;
            if sent.is_err() {
                return Ok(sent);
            }
        }
        Ok(Ok(()))
    }

    async fn events(&mut self, events: &[ObjectEvent]) -> Result<Result<(), ClientGone>, Status> {
        let (server, row) = (self.server.clone(), self.request.resource.clone());
        let negotiated = self.negotiated;
        let made = |e: &ObjectEvent| {
            server.encoded.get(&EventSource { row: &row, entry: &e.entry, kind: e.kind, negotiated: &negotiated })
        };
        // Cached encodings from other watchers, per event that is not spliced.
        let mut shared: Vec<Option<Bytes>> = Vec::new();
        let mut others: Vec<Arc<Entry>> = Vec::new();
        for e in events.iter().filter(|e| self.spliced(&e.entry).is_none()) {
            let found = made(e);
            if found.is_none() {
                others.push(e.entry.clone());
            }
            shared.push(found);
        }
        let mut objects = Vec::new().into_iter();
        if !others.is_empty() {
            objects = server.registry.all_from_stored(&row, &others).await?.into_iter();
        }
        let mut shared = shared.into_iter();
        let mut held: usize = events.iter().map(|e| e.entry.value.len()).sum();
        for e in events {
            let size = match self.spliced(&e.entry) {
                Some(Splice::Whole) if e.entry.value.len() >= SHARED => {
                    let _ = write!(self.out, "{{\"type\":\"{}\",\"object\":", e.kind.as_str());
                    let rest = encode::split(&mut self.out, &e.entry);
                    let size = self.out.len() + rest.len();
                    if self.flush(held).await.is_err() || self.pipe.send(rest, held).await.is_err() {
                        return Ok(Err(ClientGone));
                    }
                    self.out.extend_from_slice(b"}\n");
                    size
                }
                Some(splice) => {
                    let before = self.out.len();
                    let _ = write!(self.out, "{{\"type\":\"{}\",\"object\":", e.kind.as_str());
                    match splice {
                        Splice::Whole => encode::splice(&mut self.out, &e.entry),
                        Splice::Metadata => encode::splice_metadata(&mut self.out, &e.entry),
                    }
                    self.out.extend_from_slice(b"}\n");
                    self.out.len() - before
                }
                None => {
                    let event = match shared.next().flatten() {
                        Some(made) => made,
                        None => {
                            let Some(object) = objects.next() else { continue };
                            let shaped = self.shape(&object);
                            let mut out = Vec::new();
                            self.write(&mut out, e.kind.as_str(), shaped);
                            let source =
                                EventSource { row: &row, entry: &e.entry, kind: e.kind, negotiated: &negotiated };
                            server.encoded.keep(&source, out.into())
                        }
                    };
                    let size = event.len();
                    if size < SHARED {
                        self.out.extend_from_slice(&event);
                    } else if self.flush(held).await.is_err() || self.pipe.send(event, held).await.is_err() {
                        return Ok(Err(ClientGone));
                    }
                    size
                }
            };
            self.sent.inc();
            self.sizes.observe(size as f64);
            held = held.saturating_sub(e.entry.value.len());
            if self.out.len() >= PIECE && self.flush(held).await.is_err() {
                return Ok(Err(ClientGone));
            }
        }
        Ok(self.flush(0).await)
    }

    /// Sends the buffer.
    async fn flush(&mut self, held: usize) -> Result<(), ClientGone> {
        if self.out.is_empty() {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.out);
        self.pipe.send(piece.into(), held).await
    }

    /// Ends the stream with an error event.
    async fn fail(mut self, s: Status) {
        let mut out = std::mem::take(&mut self.out);
        self.error(&mut out, &s);
        let _ = self.pipe.send(out.into(), 0).await;
    }

    /// How to encode an entry without decoding it, if possible.
    fn spliced(&self, e: &Entry) -> Option<Splice> {
        match self.negotiated.shape {
            _ if self.negotiated.encoding != Encoding::Json || encode::check_form(e).is_err() => None,
            Shape::Object if self.request.resource.serves_bytes(e) => Some(Splice::Whole),
            Shape::PartialMetadata if self.negotiated.meta == META_V1 => Some(Splice::Metadata),
            _ => None,
        }
    }

    fn shape(&mut self, object: &Object) -> Value {
        match self.negotiated.shape {
            Shape::Object | Shape::PartialMetadataList => object.clone().into_value(),
            Shape::PartialMetadata => table::partial(object, self.negotiated.meta),
            Shape::Table => {
                let now = meta::time::format(self.server.registry.clock.now());
                let list = json!({"resourceVersion": object.resource_version()});
                let headers = !std::mem::replace(&mut self.headers_sent, true);
                let how =
                    table::TableOptions { meta: self.negotiated.meta, include: &self.include, headers, now: &now };
                table::table(&self.request.resource, std::slice::from_ref(object), list, &how)
            }
        }
    }

    fn write(&self, out: &mut Vec<u8>, kind: &str, object: Value) {
        if self.negotiated.encoding == Encoding::Protobuf {
            // Without a protobuf encoding, sends an error instead of skipping the event.
            let bytes = content::to_protobuf(&object).map(|b| codec::protobuf::watch_event(kind, &b)).or_else(|| {
                let s = Status::not_acceptable("the kind has no protobuf");
                Some(codec::protobuf::watch_event("ERROR", &content::to_protobuf(&s.to_value())?))
            });
            out.extend_from_slice(&bytes.unwrap_or_default());
            return;
        }
        if self.negotiated.encoding == Encoding::Cbor {
            return codec::cbor::write_event(out, kind, &object);
        }
        order::write_event(out, kind, &object);
    }

    async fn bookmark(&mut self, revision: u64, initial_end: bool) -> Result<(), ClientGone> {
        if self.negotiated.shape == Shape::PartialMetadataList {
            return Err(ClientGone);
        }
        let row = &self.request.resource;
        let mut object = Object::new(&row.kind.gvk());
        object.set_resource_version(&revision.to_string());
        if initial_end {
            object.set_annotation("k8s.io/initial-events-end", "true");
        }
        let v = self.shape(&object);
        let mut out = std::mem::take(&mut self.out);
        self.write(&mut out, "BOOKMARK", v);
        self.pipe.send(out.into(), 0).await
    }

    fn error(&self, out: &mut Vec<u8>, s: &Status) {
        self.write(out, "ERROR", s.to_value());
    }
}
