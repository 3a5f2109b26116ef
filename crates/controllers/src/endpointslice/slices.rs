//! The slices that one controller manages.

use super::reconcile::{Desired, Plan, plan};
use super::tracker::Tracker;
use super::trigger::annotate;
use super::{MANAGED_BY, SERVICE};
use crate::context::{Context, Error, object};
use crate::controller::Builder;
use crate::meters;
use ::metrics::Row;
use client::{ApiResource, Change, DeleteOptions, Informer, Key, Meta, WriteOptions};
use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use meta::Object;
use std::sync::Arc;

/// The index of slices by the service that they belong to.
const BY_SERVICE: &str = "service";

/// The slices that have the label of one controller.
pub(super) struct Slices {
    context: Context,
    pub(super) written: Informer<()>,
    managed_by: &'static str,
    /// Counts changes.
    changes: Row,
    tracker: Arc<Tracker>,
}

/// Why slices could not be written.
#[derive(Debug)]
pub(super) enum WriteError {
    /// The cache does not show earlier writes.
    Stale,
    Failed(Error),
}

impl From<client::Error> for WriteError {
    fn from(e: client::Error) -> Self {
        Self::Failed(e.into())
    }
}

impl From<WriteError> for Error {
    fn from(e: WriteError) -> Self {
        match e {
            WriteError::Stale => Self::Waiting("the cache does not show the endpoint slices that were written".into()),
            WriteError::Failed(e) => e,
        }
    }
}

/// The service that a slice belongs to.
fn service(slice: &Meta) -> Option<Key> {
    Some(Key::new(slice.namespace.clone(), slice.label(SERVICE)?))
}

impl Slices {
    pub(super) fn resource() -> ApiResource {
        ApiResource::typed::<EndpointSlice>()
    }

    pub(super) fn new(builder: &mut Builder, context: Context, managed_by: &'static str, changes: Row) -> Self {
        let written: Informer<()> = builder.watch(&Self::resource());
        written.index(BY_SERVICE, |e| service(&e.meta).map(|s| s.to_string()).into_iter().collect());
        let tracker: Arc<Tracker> = Arc::default();
        let observed = tracker.clone();
        builder.on_change(&written, move |c, _| {
            if let (None, Some(old)) = (&c.new, &c.old)
                && let Some(service) = service(&old.meta)
            {
                observed.deletion_observed(&service, &old.meta.uid);
            }
        });
        Self { context, written, managed_by, changes, tracker }
    }

    /// Whether a change is a write of this controller.
    pub(super) fn is_own<V>(&self, service: &Key, change: &Change<V>) -> bool {
        let latest = change.new.as_ref().map(|o| &o.meta);
        latest.is_some_and(|m| self.tracker.is_own(service, &m.uid, &m.resource_version))
    }

    /// Forgets the writes for a service that is gone.
    pub(super) fn forget(&self, service: &Key) {
        self.tracker.forget(service);
    }

    /// Writes the slices of a service. Fails while the cache does not show earlier writes: a decision on such a cache would create slices
    /// twice. `changed` returns the time of the change that is the reason, and `finish` completes the plan.
    pub(super) async fn write(
        &self,
        service: &Key,
        desired: Desired,
        changed: impl FnOnce() -> Option<Timestamp>,
        finish: impl FnOnce(&mut Plan),
    ) -> Result<(), WriteError> {
        let resource = Self::resource();
        let api = self.context.client.dynamic(&resource).namespace(&service.namespace);
        let have = {
            let cache = self.written.cache();
            let index = service.to_string();
            let ours: Vec<_> = cache
                .by_index(BY_SERVICE, &index)
                .filter(|e| e.meta.label(MANAGED_BY) == Some(self.managed_by))
                .collect();
            if self.tracker.is_stale(service, ours.iter().map(|e| (&*e.meta.uid, &*e.meta.resource_version))) {
                return Err(WriteError::Stale);
            }
            let have: Result<Vec<Object>, _> = ours.into_iter().map(|e| object(&resource, e)).collect();
            have?
        };
        let changed = changed();
        let mut plan = plan(have, desired);
        finish(&mut plan);
        let Plan { create, update, delete, .. } = plan;
        for mut o in create {
            annotate(&mut o, changed);
            o.set_gvk(&resource.gvk());
            o.set_namespace(&service.namespace);
            o.metadata_mut().insert("generateName".into(), crate::pod_control::name_prefix(&service.name).into());
            let made = api.create(&WriteOptions::default(), &o).await?;
            self.tracker.written(service, made.uid(), made.resource_version());
            self.count("create");
        }
        for mut o in update {
            annotate(&mut o, changed);
            let made = api.update(o.name(), &WriteOptions::default(), &o).await?;
            self.tracker.written(service, made.uid(), made.resource_version());
            self.count("update");
        }
        for o in delete {
            if client::optional(api.delete(o.name(), &DeleteOptions::uid(o.uid())).await)?.is_some() {
                self.tracker.deleted(service, o.uid());
                self.count("delete");
            }
        }
        Ok(())
    }

    fn count(&self, operation: &str) {
        meters::count(&self.changes, &[operation]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpointslice::reconcile::Group;
    use bytes::Bytes;
    use client::{Body, Client, Informers, Transport};
    use futures::{StreamExt, stream};
    use http::{Method, Request, Response};
    use http_body::Frame;
    use http_body_util::{BodyExt, Full, StreamBody};
    use serde_json::{Value, json};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// An API server whose watches never show created objects.
    #[derive(Clone, Default)]
    struct Late(Arc<AtomicU64>);

    #[async_trait::async_trait]
    impl Transport for Late {
        async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, client::Error> {
            let whole = |v: Value| Full::new(Bytes::from(v.to_string())).map_err(|e| match e {}).boxed_unsync();
            Ok(match *request.method() {
                Method::POST => {
                    let n = self.0.fetch_add(1, Ordering::SeqCst) + 1;
                    let mut v: Value = serde_json::from_slice(request.body()).unwrap();
                    v["metadata"]["name"] = format!("s-{n}").into();
                    v["metadata"]["uid"] = format!("u{n}").into();
                    v["metadata"]["resourceVersion"] = (n + 1).to_string().into();
                    Response::builder().status(201).body(whole(v)).unwrap()
                }
                _ if request.uri().query().is_some_and(|q| q.contains("watch=true")) => {
                    let metadata =
                        json!({"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}});
                    let bookmark = json!({"type": "BOOKMARK", "object": {"metadata": metadata}}).to_string() + "\n";
                    let first = stream::iter([Ok(Frame::data(Bytes::from(bookmark)))]);
                    Response::new(StreamBody::new(first.chain(stream::pending())).boxed_unsync())
                }
                _ => Response::new(whole(json!({"metadata": {"resourceVersion": "1"}, "items": []}))),
            })
        }
    }

    struct Fixed;

    impl meta::Clock for Fixed {
        fn now(&self) -> jiff::Timestamp {
            jiff::Timestamp::UNIX_EPOCH
        }
    }

    impl meta::Rng for Fixed {
        fn next_u64(&self) -> u64 {
            7
        }
    }

    /// Each reconcile with a late cache created the slices of the service again.
    #[tokio::test]
    async fn a_late_cache_creates_no_slices_twice() {
        let (server, (_trigger, shutdown)) = (Late::default(), client::shutdown());
        let client = Client::new(server.clone(), "test");
        let (rng, clock) = (Arc::new(Fixed), Arc::new(Fixed));
        let informers = Informers::new(client.clone(), rng.clone(), shutdown.clone());
        let context = Context { name: "test", client, informers, clock, rng, shutdown };
        let slices = Slices::new(&mut Builder::new(&context), context, "test", meters::SLICE_CHANGES);
        slices.written.synced().await;
        let group = Group { address_type: "IPv4", ports: Vec::new(), endpoints: Vec::new() };
        let desired = || Desired { groups: vec![group.clone()], per_slice: 100, ..Desired::default() };
        let service = Key::new("x", "s");
        let write = || slices.write(&service, desired(), || None, |_| {});
        assert!(write().await.is_ok());
        assert!(matches!(write().await, Err(WriteError::Stale)));
        assert_eq!(server.0.load(Ordering::SeqCst), 1);
    }
}
