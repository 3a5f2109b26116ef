//! Lists and watches for informers of the same process: shares the stored objects without encoding, see
//! [`client::shared`].

use crate::Server;
use crate::answer::bytes;
use crate::body::Body;
use crate::call::Call;
use crate::content::{Encoding, Shape};
use crate::listing::pieces;
use crate::metrics::table::WATCH_EVENTS;
use crate::trace::{Running, Trace};
use bytes::Bytes;
use client::informer::Labels;
use client::shared::{Batch, Handover, HandoverRequest, Kind, Page, Stored};
use http::Response;
use meta::{Object, Status};
use registry::{Batch as Watched, ObjectEventKind, ObjectWatch, Resource};
use std::sync::Arc;
use std::time::Duration;
use store::Entry;
use stored::encode;
use tokio::sync::mpsc;

/// Buffered batches per informer.
const PENDING: usize = 16;

/// Whether the request is for shared objects or their metadata.
pub fn negotiated(call: &Call) -> bool {
    let shape = call.negotiated.encoding == Encoding::Json && call.negotiated.shape != Shape::Table;
    shape && call.parts.extensions.get::<HandoverRequest>().is_some()
}

pub async fn list(
    server: &Server,
    row: &Resource,
    shape: Shape,
    page: &registry::Page,
) -> Result<Response<Body>, Status> {
    let objects = all_stored(server, row, shape, &page.entries).await?;
    let page =
        Page { objects, resource_version: page.revision.to_string(), continue_token: page.continue_token.clone() };
    Ok(hand_over(page))
}

fn hand_over<T: Send + 'static>(thing: T) -> Response<Body> {
    let mut response = bytes(200, "application/json", Body::empty());
    Handover::give(response.extensions_mut(), thing);
    response
}

/// The stored bytes in the served version. For metadata the storage version suffices: only a webhook may change
/// metadata in a conversion.
async fn all_stored(
    server: &Server,
    row: &Resource,
    shape: Shape,
    entries: &[Arc<Entry>],
) -> Result<Vec<Arc<Stored>>, Status> {
    let metadata = shape != Shape::Object && row.strategy.converter().is_none();
    if metadata || entries.iter().all(|e| row.serves_bytes(e)) {
        let kept = |e: &Arc<Entry>| e.memo.get_or_make(|| stored(e, e.value.clone(), e.index().mark as usize));
        return entries.iter().map(kept).collect();
    }
    let one = |(e, o): (&Arc<Entry>, Object)| {
        let value = encode::encode(&o);
        let mark = encode::mark(&value);
        stored(e, value, mark).map(Arc::new)
    };
    let mut all = Vec::with_capacity(entries.len());
    for piece in pieces(row, entries) {
        let objects = server.registry.all_from_stored(row, piece).await?;
        for pair in piece.iter().zip(objects) {
            all.push(one(pair)?);
        }
        tokio::task::yield_now().await;
    }
    Ok(all)
}

fn stored(e: &Entry, value: Bytes, mark: usize) -> Result<Stored, Status> {
    let name = (e.key.namespace.clone(), e.key.name.clone());
    let labels = Labels::from_sorted(e.index().labels.clone());
    Stored::new(name, labels, value, mark, e.revision).map_err(Status::internal)
}

/// Watches until the timeout, server shutdown, or the receiver is gone.
pub fn watch(
    server: &Arc<Server>,
    trace: &Arc<Trace>,
    (row, shape): (Arc<Resource>, Shape),
    watch: Result<ObjectWatch, Status>,
    timeout: Duration,
    bookmark: Duration,
) -> Response<Body> {
    let (sender, receiver) = mpsc::channel(PENDING);
    match watch {
        Ok(watch) => {
            let (server, running) = (server.clone(), trace.run_on());
            tokio::spawn(
                async move { follow(&server, (&row, shape), watch, &sender, timeout, bookmark, running).await },
            );
        }
        Err(s) => drop(sender.try_send(Batch::Failed(s))),
    }
    hand_over(receiver)
}

async fn follow(
    server: &Server,
    (row, shape): (&Resource, Shape),
    mut watch: ObjectWatch,
    sender: &mpsc::Sender<Batch>,
    timeout: Duration,
    bookmark: Duration,
    _running: Running,
) {
    let kind = &row.kind;
    let sent = server.metrics.set.counter(&WATCH_EVENTS, &[&kind.group, &kind.version, &kind.plural]);
    let end = tokio::time::sleep(timeout);
    tokio::pin!(end);
    let mut tick = tokio::time::interval(bookmark);
    tick.reset();
    let drained = server.lifecycle.drained();
    tokio::pin!(drained);
    let mut caught_up = false;
    loop {
        let batch = tokio::select! {
            // Biased, so that runs in virtual time are reproducible.
            biased;
            () = sender.closed() => return,
            () = &mut end => return,
            () = &mut drained => return,
            _ = tick.tick() => Batch::Bookmark(watch.revision()),
            batch = watch.next(&server.registry) => match batch {
                Ok(Watched::InitialEnd(revision)) => Batch::Bookmark(revision),
                Ok(Watched::Events(events)) => {
                    let kind = |e: &registry::ObjectEvent| match e.kind {
                        ObjectEventKind::Deleted => Kind::Deleted,
                        _ => Kind::Put,
                    };
                    sent.inc_by(events.len() as u64);
                    let entries: Vec<Arc<Entry>> = events.iter().map(|e| e.entry.clone()).collect();
                    let objects = all_stored(server, row, shape, &entries).await;
                    objects.map_or_else(Batch::Failed, |o| Batch::Events(events.iter().map(kind).zip(o).collect()))
                }
                Err(s) => Batch::Failed(s),
            },
            // Informers learn that they have all earlier events.
            () = std::future::ready(()), if !caught_up => {
                caught_up = true;
                Batch::Bookmark(watch.revision())
            }
        };
        let failed = matches!(batch, Batch::Failed(_));
        if sender.send(batch).await.is_err() || failed {
            return;
        }
    }
}
