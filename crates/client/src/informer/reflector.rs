//! The state machine of an informer: list, then watch; list again when the revision is lost.

use super::sink::Sink;
use crate::api::{Listed, Watched, repeated_page};
use crate::backoff::{Backoff, unit};
use crate::shared::{Batch, Batches, Kind, Stored};
use crate::watch::RawEvents;
use crate::{Api, Error, ListOptions, WatchEvent, WatchOptions};
use bytes::Bytes;
use futures::StreamExt;
use meta::{Object, Rng};
use serde::Deserialize;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use supervisor::Setter;
use supervisor::panics::caught;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A watch that ends sooner than this without an event counts as a failure.
const TOO_SHORT: Duration = Duration::from_secs(1);
/// After this time, a watch is assumed to have delivered what happened before it, if the server sends no bookmark.
const CATCH_UP: Duration = Duration::from_secs(1);
/// Page size of the initial list, so that large lists neither block others nor are held twice.
const PAGE: u32 = 500;

/// Byte limit of a list from a server in another process; protects against endless pagination.
const MAX_COPIED: usize = 512 << 20;
/// How long a list may take.
const MOST_TIME: Duration = Duration::from_secs(600);
/// The kind of objects of which the server sends the metadata alone.
const PARTIAL: &str = "PartialObjectMetadata";

/// The kind of an object.
#[derive(Deserialize)]
struct Kinded<'a> {
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
}

/// Minimum cost of a page, besides its items.
const MIN_PAGE_COST: usize = 64 << 10;

/// The state of a reflector.
enum State {
    /// List, from any state that the server has (`0`) or from the newest (empty).
    List { resource_version: &'static str },
    /// Watch the changes after this revision.
    Watch { resource_version: String },
}

/// How a watch ended.
enum Ended {
    /// The server ended it after its timeout; everything up to this revision was seen.
    Time {
        resource_version: String,
    },
    /// The revision is gone.
    Expired,
    Failed {
        resource_version: String,
        error: Error,
    },
    /// It did not begin, because the server did not answer.
    Unanswered {
        resource_version: String,
        error: Error,
    },
}

pub(super) struct Reflector {
    pub api: Api<Object>,
    /// Other media types for lists and watches.
    pub accept: Option<(&'static str, &'static str)>,
    pub label_selector: String,
    pub field_selector: String,
    pub sink: Box<dyn Sink>,
    pub synced: Setter,
    pub rng: Arc<dyn Rng>,
    /// Notified when the server answers an informer of the same client again.
    pub recoveries: Arc<Notify>,
}

impl Reflector {
    /// Runs for ever.
    pub(super) async fn run(self) {
        let mut backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(30), 2.0, 1.0);
        let mut state = State::List { resource_version: "0" };
        loop {
            let recovered = self.recoveries.notified();
            tokio::pin!(recovered);
            recovered.as_mut().enable();
            state = match state {
                State::List { resource_version } => {
                    match self.caught("list", self.list_in_time(resource_version)).await {
                        Ok(at) => {
                            self.answered();
                            self.connected();
                            self.synced.set();
                            State::Watch { resource_version: at }
                        }
                        // The store can answer what a cache could not.
                        Err(e) if e.is_expired() && !resource_version.is_empty() => {
                            State::List { resource_version: "" }
                        }
                        Err(e) => {
                            self.log_error("list", &e);
                            let delay = tokio::time::sleep(backoff.next(&*self.rng));
                            if e.is_unanswered() {
                                self.sink.connection().set(false);
                                Self::recovered(recovered, delay).await;
                            } else {
                                self.answered();
                                self.connected();
                                delay.await;
                            }
                            State::List { resource_version }
                        }
                    }
                }
                State::Watch { resource_version } => {
                    let start = Instant::now();
                    let ended = self.caught("watch", self.watched(resource_version)).await;
                    self.sink.connection().set(false);
                    match ended {
                        Err(error) => {
                            self.log_error("watch", &error);
                            tokio::time::sleep(backoff.next(&*self.rng)).await;
                            State::List { resource_version: "" }
                        }
                        Ok(Ended::Expired) => State::List { resource_version: "" },
                        Ok(Ended::Time { resource_version }) => {
                            if start.elapsed() < TOO_SHORT {
                                // A server that ends all its watches at once would keep the cache unconnected for ever.
                                self.connected();
                                tokio::time::sleep(backoff.next(&*self.rng)).await;
                            } else {
                                backoff.reset();
                            }
                            State::Watch { resource_version }
                        }
                        Ok(Ended::Failed { resource_version, error }) => {
                            self.log_error("watch", &error);
                            if error.status().is_some() {
                                self.connected();
                            }
                            if start.elapsed() > Duration::from_secs(60) {
                                backoff.reset();
                            }
                            tokio::time::sleep(backoff.next(&*self.rng)).await;
                            State::Watch { resource_version }
                        }
                        Ok(Ended::Unanswered { resource_version, error }) => {
                            self.log_error("watch", &error);
                            let delay = tokio::time::sleep(backoff.next(&*self.rng));
                            Self::recovered(recovered, delay).await;
                            State::Watch { resource_version }
                        }
                    }
                }
            };
        }
    }

    /// The server answered this informer. Others need not wait longer.
    fn answered(&self) {
        if !self.sink.connection().get() {
            self.recoveries.notify_waiters();
        }
    }

    /// The cache shows what happened while there was no connection, or nothing more can be expected.
    fn connected(&self) {
        self.sink.connection().set(true);
    }

    /// Waits for a delay, or until the server answers another informer.
    async fn recovered(recovered: impl Future<Output = ()>, delay: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = recovered => {}
            () = delay => {}
        }
    }

    /// Turns a panic into an error; a list follows, because it is unknown which events were handled.
    async fn caught<T>(&self, verb: &str, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let done = caught("informer", self.api.resource(), work).await;
        done.unwrap_or_else(|panicked| Err(Error::Unexpected(format!("{verb}: {panicked}"))))
    }

    async fn watched(&self, resource_version: String) -> Result<Ended, Error> {
        Ok(self.watch(resource_version).await)
    }

    fn log_error(&self, verb: &str, e: &Error) {
        tracing::debug!(resource = ?self.api.resource(), "{verb}: {e}");
    }

    /// Lists all objects. Fails if the server sends them too slowly.
    async fn list_in_time(&self, resource_version: &str) -> Result<String, Error> {
        let late = |_| Error::Unexpected(format!("the list did not end within {MOST_TIME:?}"));
        tokio::time::timeout(MOST_TIME, self.list(resource_version)).await.map_err(late)?
    }

    async fn list(&self, resource_version: &str) -> Result<String, Error> {
        let mut options = ListOptions {
            label_selector: self.label_selector.clone(),
            field_selector: self.field_selector.clone(),
            resource_version: resource_version.into(),
            limit: PAGE,
            ..ListOptions::default()
        };
        let api = match self.accept {
            Some((list, _)) => self.api.clone().accept(list),
            None => self.api.clone(),
        };
        let (mut listing, mut copied) = (self.sink.list(), 0);
        loop {
            let (revision, continue_token) = match api.list_shared(&options).await? {
                Listed::Shared(page) => {
                    page.objects.into_iter().for_each(|o| listing.add(o));
                    (page.resource_version, page.continue_token)
                }
                Listed::Encoded(page) => {
                    // Pages without items must not continue for ever either.
                    copied += MIN_PAGE_COST + page.items.iter().map(Bytes::len).sum::<usize>();
                    if copied > MAX_COPIED {
                        let why = format!("the list has more than {} MiB", MAX_COPIED >> 20);
                        return Err(Error::Unexpected(why));
                    }
                    for b in page.items {
                        // A page is one allocation: an entry with a slice of it would keep all of it.
                        listing.add(self.whole(Bytes::copy_from_slice(&b))?);
                    }
                    (page.resource_version, page.continue_token)
                }
            };
            if continue_token.is_empty() {
                listing.finish();
                self.sink.reached(&revision);
                return Ok(revision);
            }
            if continue_token == options.continue_token {
                return Err(repeated_page());
            }
            // In one process a page may come without waiting: yield to other tasks.
            tokio::task::yield_now().await;
            options.continue_token = continue_token;
            options.resource_version.clear();
        }
    }

    fn whole(&self, bytes: Bytes) -> Result<Arc<Stored>, Error> {
        let undecodable = |source| Error::Decode { what: format!("{:?}", self.api.resource()), source };
        let Kinded { kind } = serde_json::from_slice(&bytes).map_err(undecodable)?;
        // Items of lists have no kind.
        if !kind.is_empty() && kind != self.api.resource().kind() && kind != PARTIAL {
            let why = format!("the server sent a {kind} in place of a {}", self.api.resource().kind());
            return Err(Error::Unexpected(why));
        }
        Stored::whole(bytes).map(Arc::new).map_err(undecodable)
    }

    async fn watch(&self, mut resource_version: String) -> Ended {
        let options = WatchOptions {
            label_selector: self.label_selector.clone(),
            field_selector: self.field_selector.clone(),
            resource_version: resource_version.clone(),
            bookmarks: true,
            // Random, so that the watches of many clients do not end together.
            timeout_seconds: Some(300 + (unit(&*self.rng) * 300.0) as u32),
            ..WatchOptions::default()
        };
        let ended = |resource_version, error: Error| {
            if error.is_expired() { Ended::Expired } else { Ended::Failed { resource_version, error } }
        };
        let api = match self.accept {
            Some((_, watch)) => self.api.clone().accept(watch),
            None => self.api.clone(),
        };
        let watched = match api.watch_shared(&options).await {
            Ok(w) => w,
            Err(error) if error.is_unanswered() => return Ended::Unanswered { resource_version, error },
            Err(e) => return ended(resource_version, e),
        };
        self.answered();
        let followed = async {
            match watched {
                Watched::Shared(batches) => self.follow_shared(batches, &mut resource_version).await,
                Watched::Encoded(events) => self.follow(events, &mut resource_version).await,
            }
        };
        let without_bookmark = async {
            tokio::time::sleep(CATCH_UP).await;
            self.connected();
            std::future::pending().await
        };
        let end = tokio::select! {
            biased;
            end = followed => end,
            end = without_bookmark => end,
        };
        match end {
            Ok(()) => Ended::Time { resource_version },
            Err(e) => ended(resource_version, e),
        }
    }

    async fn follow(&self, mut events: RawEvents, seen: &mut String) -> Result<(), Error> {
        while let Some(event) = events.next().await {
            *seen = match event? {
                WatchEvent::Bookmark { resource_version, .. } => {
                    self.connected();
                    resource_version
                }
                WatchEvent::Added(b) | WatchEvent::Modified(b) => self.put(self.whole(b)?),
                WatchEvent::Deleted(b) => self.remove(self.whole(b)?),
            };
            self.sink.reached(seen);
        }
        Ok(())
    }

    async fn follow_shared(&self, mut batches: Batches, seen: &mut String) -> Result<(), Error> {
        while let Some(batch) = batches.recv().await {
            match batch {
                Batch::Failed(status) => return Err(status.into()),
                Batch::Bookmark(revision) => {
                    self.connected();
                    *seen = revision.to_string();
                }
                Batch::Events(events) => {
                    for (kind, o) in events {
                        *seen = match kind {
                            Kind::Put => self.put(o),
                            Kind::Deleted => self.remove(o),
                        };
                    }
                }
            }
            self.sink.reached(seen);
        }
        Ok(())
    }

    /// Stores an object and returns its revision, as does [`Self::remove`].
    fn put(&self, o: Arc<Stored>) -> String {
        let at = o.meta.resource_version.clone();
        self.sink.put(o);
        at
    }

    fn remove(&self, o: Arc<Stored>) -> String {
        let at = o.meta.resource_version.clone();
        self.sink.remove(o);
        at
    }
}
