//! The frame of every controller: watch objects, enqueue the keys that their changes concern, reconcile each key with a number of
//! workers.
//!
//! Rate limits, back-off of failed keys, panics of a key and metrics of the queue are those of [`client::queue`]. Invariant:
//! level-based. No key is reconciled before all watched informers have synced, nor while one of them has lost its connection: a cache of
//! owners that recovers later than that of their dependents shows owners that are gone, and their dependents would be created again and again.
//! What an event contained is not kept, only its key.

use crate::context::{Context, Error};
use crate::start::queue_name;
use client::informer::{Subscription, View};
use client::{ApiResource, Change, Informer, Key, Outcome, RateLimit, Scope, WorkQueue};
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

/// What a controller does with a key.
pub trait Reconcile: Send + Sync + 'static {
    /// Names what is reconciled at a time, usually an object.
    type Key: Ord + Clone + Debug + Send + Sync + 'static;

    /// Brings the object of `key` to its desired state. The key comes again after an error, later each time, and after a change.
    fn reconcile(&self, key: Self::Key) -> impl Future<Output = Result<Outcome, Error>> + Send;
}

/// An informer of any view.
trait Followed: Send + Sync {
    fn synced(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    fn connected(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

impl<V: View> Followed for Informer<V> {
    fn synced(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(Informer::synced(self))
    }

    fn connected(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(Informer::connected(self))
    }
}

/// Builds and runs a controller.
pub struct Builder<K = Key> {
    context: Context,
    queue: Arc<WorkQueue<K>>,
    informers: Vec<Arc<dyn Followed>>,
    /// Handlers of changes end with the controller, so that one that is started again has each once.
    subscriptions: Vec<Subscription>,
}

impl<K: Ord + Clone + Debug + Send + Sync + 'static> Builder<K> {
    pub fn new(context: &Context) -> Self {
        Self::with_rate_limit(context, RateLimit::default())
    }

    /// A controller with another back-off of keys that fail.
    pub fn with_rate_limit(context: &Context, limit: RateLimit) -> Self {
        let queue = Arc::new(WorkQueue::new(limit));
        Self { context: context.clone(), queue, informers: Vec::new(), subscriptions: Vec::new() }
    }

    /// The queue, for keys that no change brings.
    pub fn queue(&self) -> Arc<WorkQueue<K>> {
        self.queue.clone()
    }

    /// The informer of all objects of a resource.
    pub fn watch<V: View>(&mut self, resource: &ApiResource) -> Informer<V> {
        self.watch_scope(resource, &Scope::default())
    }

    /// The informer of the objects of a resource that are in `scope`.
    pub fn watch_scope<V: View>(&mut self, resource: &ApiResource, scope: &Scope) -> Informer<V> {
        let informer = self.context.informers.informer(resource, scope);
        self.wait_for(&informer);
        informer
    }

    /// Reconciles nothing before `informer` has synced, and while it has no connection.
    pub fn wait_for<V: View>(&mut self, informer: &Informer<V>) {
        self.informers.push(Arc::new(informer.clone()));
    }

    /// Calls `enqueue` for each change; it adds the keys that the change concerns. It must not block.
    pub fn on_change<V: View>(
        &mut self,
        informer: &Informer<V>,
        enqueue: impl Fn(&Change<V>, &WorkQueue<K>) + Send + Sync + 'static,
    ) {
        let queue = self.queue.clone();
        self.subscriptions.push(informer.subscribe(move |change| enqueue(change, &queue)));
    }

    /// Calls a method of the controller for each change, as [`Self::on_change`] does.
    pub fn handle<C: Send + Sync + 'static, V: View>(
        &mut self,
        controller: &Arc<C>,
        informer: &Informer<V>,
        enqueue: fn(&C, &Change<V>, &WorkQueue<K>),
    ) {
        let controller = Arc::downgrade(controller);
        self.on_change(informer, move |change, queue| {
            if let Some(controller) = controller.upgrade() {
                enqueue(&controller, change, queue);
            }
        });
    }

    /// Reconciles keys with `workers` workers until shutdown, under the name of the controller's queue.
    pub async fn run(self, workers: usize, controller: Arc<impl Reconcile<Key = K>>) {
        let name = queue_name(self.context.name);
        self.run_as(name, workers, controller).await;
    }

    /// The same for a controller with several queues, of which each has its own name in metrics and logs.
    pub async fn run_as(self, queue: &'static str, workers: usize, controller: Arc<impl Reconcile<Key = K>>) {
        let shutdown = self.context.shutdown.clone();
        let synced = async {
            for informer in &self.informers {
                informer.synced().await;
            }
        };
        if shutdown.race(synced).await.is_none() {
            return;
        }
        let informers: Arc<[Arc<dyn Followed>]> = self.informers.into();
        client::queue::work(queue, self.queue, workers, shutdown, move |key| {
            let (controller, informers) = (controller.clone(), informers.clone());
            async move {
                for informer in &*informers {
                    informer.connected().await;
                }
                match controller.reconcile(key).await {
                    // Nothing is created in a namespace that is being deleted.
                    Err(Error::Api(e)) if e.is_namespace_terminating() => Ok(Outcome::Done),
                    other => other,
                }
            }
        })
        .await;
    }
}

impl Builder<Key> {
    /// Enqueues the key of each changed object.
    pub fn enqueue<V: View>(&mut self, informer: &Informer<V>) {
        self.on_change(informer, |change, queue| queue.add(change.key()));
    }
}
