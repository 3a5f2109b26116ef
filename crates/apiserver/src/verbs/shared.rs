//! Lists and watches for informers of the same process: the stored objects themselves change hands, see [`client::shared`].

use crate::Server;
use crate::body::Body;
use crate::content::{Encoding, Shape};
use crate::handle::{Call, bytes};
use crate::metrics::table::WATCH_EVENTS;
use crate::trace::{Running, Trace};
use client::informer::Labels;
use client::shared::{Ask, Batch, Handover, Kind, Page, Stored};
use http::Response;
use meta::Status;
use registry::{Batch as Watched, ObjectEventKind, ObjectWatch, Resource, encode};
use std::sync::Arc;
use std::time::Duration;
use store::Entry;
use tokio::sync::mpsc;

/// Batches that wait for an informer.
const PENDING: usize = 16;

/// Whether the objects themselves are asked for. Metadata alone is a part of them.
pub fn wanted(call: &Call) -> bool {
    let shape = call.wanted.encoding == Encoding::Json && call.wanted.shape != Shape::Table;
    shape && call.parts.extensions.get::<Ask>().is_some()
}

pub fn list(server: &Server, row: &Resource, page: &registry::Page) -> Result<Response<Body>, Status> {
    let objects = page.entries.iter().map(|e| stored(server, row, e)).collect::<Result<_, _>>()?;
    let page =
        Page { objects, resource_version: page.revision.to_string(), continue_token: page.continue_token.clone() };
    Ok(hand_over(page))
}

fn hand_over<T: Send + 'static>(thing: T) -> Response<Body> {
    let mut response = bytes(200, "application/json", Body::empty());
    Handover::give(response.extensions_mut(), thing);
    response
}

/// The stored form in the served version.
fn stored(server: &Server, row: &Resource, e: &Entry) -> Result<Arc<Stored>, Status> {
    let made = |value, mark| {
        let name = (e.key.namespace.clone(), e.key.name.clone());
        let labels = Labels::from_sorted(e.index.labels.clone());
        Stored::new(name, labels, value, mark, e.revision).map_err(Status::internal)
    };
    if row.serves_bytes(e) {
        return e.memo.get_or_make(|| made(e.value.clone(), e.index.mark as usize));
    }
    let value = encode::encode(&server.registry.from_stored(row, e)?);
    let mark = encode::mark(&value);
    made(value, mark).map(Arc::new)
}

/// A watch that hands over until its time is up, the server ends or nobody takes any more.
pub fn watch(
    server: &Arc<Server>,
    trace: &Arc<Trace>,
    row: Arc<Resource>,
    watch: Result<ObjectWatch, Status>,
    timeout: Duration,
    bookmark: Duration,
) -> Response<Body> {
    let (sender, receiver) = mpsc::channel(PENDING);
    match watch {
        Ok(watch) => {
            let (server, running) = (server.clone(), trace.run_on());
            tokio::spawn(async move { follow(&server, &row, watch, &sender, timeout, bookmark, running).await });
        }
        Err(s) => drop(sender.try_send(Batch::Failed(s))),
    }
    hand_over(receiver)
}

async fn follow(
    server: &Server,
    row: &Resource,
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
    loop {
        let batch = tokio::select! {
            // In this order, so that a run in virtual time can be repeated.
            biased;
            () = sender.closed() => return,
            () = &mut end => return,
            () = &mut drained => return,
            _ = tick.tick() => Batch::Bookmark(watch.revision()),
            batch = watch.next() => match batch {
                Ok(Watched::InitialEnd(revision)) => Batch::Bookmark(revision),
                Ok(Watched::Events(events)) => {
                    let one = |e: &registry::ObjectEvent| {
                        let kind = if e.kind == ObjectEventKind::Deleted { Kind::Deleted } else { Kind::Put };
                        Ok((kind, stored(server, row, &e.entry)?))
                    };
                    sent.inc_by(events.len() as u64);
                    events.iter().map(one).collect::<Result<_, _>>().map_or_else(Batch::Failed, Batch::Events)
                }
                Err(s) => Batch::Failed(s),
            },
        };
        let failed = matches!(batch, Batch::Failed(_));
        if sender.send(batch).await.is_err() || failed {
            return;
        }
    }
}
