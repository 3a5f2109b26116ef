//! Runs a case: an API server in memory, the scheduler with all its queues, and clients that create pods.

use crate::cases::{BEFORE, Case, HIGH_PRIORITY, MEASURED, NODES, node, node_name};
use auth::user::GROUP_MASTERS;
use bench::Row;
use client::client::{JSON, request};
use client::{ApiResource, Client, Informers, WatchEvent, WatchOptions};
use futures::stream::{self, StreamExt, TryStreamExt};
use http::Method;
use serde_json::{Value, json};
use std::time::Duration;
use testkit::Cluster;
use tokio::time::{Instant, timeout};

const NODES_PATH: &str = "/api/v1/nodes";
const MERGE: &str = "application/merge-patch+json";
/// Creates at a time.
const AT_A_TIME: usize = 64;
/// How often a pod of the churn is created.
const CHURN: Duration = Duration::from_millis(200);
/// How long all pods of a phase may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Why a case has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Client(#[from] client::Error),
    #[error("starting the runtime: {0}")]
    Runtime(#[from] std::io::Error),
    #[error("the scheduler decided only about {done} of {wanted} pods within {PATIENCE:?}")]
    Late { done: u64, wanted: u64 },
    #[error("the watch of pods ended")]
    Watch,
    #[error("a create panicked")]
    Panic,
}

/// Runs a case with this number of nodes, and pods in proportion.
pub async fn measure(case: &Case, nodes: u64) -> Result<Row, Error> {
    let share = |pods: u64| if pods == 0 { 0 } else { (pods * nodes / NODES).max(1) };
    let cluster = Cluster::start(1).await;
    let client = cluster.client(auth::User::new("system:kube-scheduler", &[GROUP_MASTERS]));
    let class = json!({"metadata": {"name": HIGH_PRIORITY}, "value": 10});
    create(&client, "/apis/scheduling.k8s.io/v1/priorityclasses", &class).await?;
    for name in [BEFORE, MEASURED] {
        create(&client, "/api/v1/namespaces", &json!({"metadata": {"name": name}})).await?;
        let accounts = format!("/api/v1/namespaces/{name}/serviceaccounts");
        create(&client, &accounts, &json!({"metadata": {"name": "default"}})).await?;
    }
    create_all(&client, NODES_PATH, (0..nodes).map(|n| node(n, case.zones))).await?;
    untaint(&client, nodes).await?;

    let (trigger, shutdown) = client::shutdown();
    let informers = Informers::new(client.clone(), cluster.rng.clone(), shutdown.clone());
    let options = scheduler::Options::new(client.clone(), informers, cluster.clock.clone(), cluster.rng.clone());
    let scheduler = tokio::spawn(scheduler::run(options, shutdown));

    let (count, pod) = case.before;
    schedule(&client, BEFORE, share(count), pod, Until::Bound).await?;
    let (count, pod) = case.waiting;
    schedule(&client, BEFORE, share(count), pod, Until::Refused).await?;
    let churn = case.churn.map(|pod| tokio::spawn(create_repeatedly(client.clone(), pod)));
    let (count, pod) = case.measured;
    let elapsed = schedule(&client, MEASURED, share(count), pod, Until::Bound).await;
    if let Some(churn) = churn {
        churn.abort();
    }
    trigger.trigger();
    let _ = scheduler.await;
    Ok(Row { name: case.name.into(), n: share(count), ..Row::default() }.with_rate(elapsed?))
}

fn pods_in(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

async fn create(client: &Client, path: &str, object: &Value) -> Result<(), Error> {
    let encode = |source| client::Error::Encode { what: "request body", source };
    let body = serde_json::to_vec(object).map_err(encode)?;
    client.bytes(request(Method::POST, path, JSON, Some((JSON, body)))?).await?;
    Ok(())
}

async fn create_all(client: &Client, path: &str, objects: impl Iterator<Item = Value>) -> Result<(), Error> {
    let creates =
        stream::iter(objects.map(|object| {
            let (client, path) = (client.clone(), path.to_owned());
            // As a task, so that several run at once.
            async move {
                tokio::spawn(async move { create(&client, &path, &object).await }).await.unwrap_or(Err(Error::Panic))
            }
        }));
    creates.buffer_unordered(AT_A_TIME).try_collect().await
}

/// Removes the taint that new nodes have until a controller has seen that they are ready.
async fn untaint(client: &Client, nodes: u64) -> Result<(), Error> {
    let patches = stream::iter((0..nodes).map(|n| async move {
        let (path, body) = (format!("{NODES_PATH}/{}", node_name(n)), json!({"spec": {"taints": null}}).to_string());
        client.bytes(request(Method::PATCH, &path, JSON, Some((MERGE, body.into_bytes())))?).await?;
        Ok(())
    }));
    patches.buffer_unordered(AT_A_TIME).try_collect().await
}

/// Which pods a phase waits for.
#[derive(Clone, Copy)]
enum Until {
    /// All are bound.
    Bound,
    /// The scheduler has written of each why it waits.
    Refused,
}

/// Creates pods, and waits for all of them. Returns how long this took.
async fn schedule(
    client: &Client,
    namespace: &str,
    count: u64,
    pod: fn() -> Value,
    until: Until,
) -> Result<Duration, Error> {
    let resource = ApiResource::named("", "v1", "pods", "Pod", true);
    // A pod is added to the first watch when it is bound, and modified in the second when it is refused.
    let field_selector = match until {
        Until::Bound => "spec.nodeName!=",
        Until::Refused => "spec.nodeName=",
    };
    let options = WatchOptions { field_selector: field_selector.into(), ..WatchOptions::default() };
    let mut watch = client.dynamic(&resource).namespace(namespace).watch_raw(&options).await?;
    let started = Instant::now();
    let (creator, path) = (client.clone(), pods_in(namespace));
    let created = tokio::spawn(async move { create_all(&creator, &path, (0..count).map(|_| pod())).await });
    let mut done = 0;
    while done < count {
        let rest = PATIENCE.saturating_sub(started.elapsed());
        let event = match timeout(rest, watch.next()).await {
            Ok(Some(event)) => event?,
            Ok(None) => return Err(Error::Watch),
            Err(_) => return Err(Error::Late { done, wanted: count }),
        };
        done += u64::from(match until {
            Until::Bound => matches!(event, WatchEvent::Added(_)),
            Until::Refused => matches!(event, WatchEvent::Modified(_)),
        });
    }
    let elapsed = started.elapsed();
    created.await.unwrap_or(Err(Error::Panic))?;
    Ok(elapsed)
}

/// Creates a pod at every interval of the churn.
async fn create_repeatedly(client: Client, pod: fn() -> Value) {
    let path = pods_in(BEFORE);
    let mut interval = tokio::time::interval(CHURN);
    loop {
        interval.tick().await;
        // One that fails is missed in no count.
        let _ = create(&client, &path, &pod()).await;
    }
}
