//! Pods that really run: from create to Running, one after the other, and all at once.

use crate::context::{Context, Target, post};
use crate::{Bench, Error, Outcome, Row, objects};
use async_trait::async_trait;
use client::{ApiResource, ListOptions, WatchEvent, WatchOptions};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

pub struct RunPods;

const NAME: &str = "run-pods";
const PODS: u64 = 50;
/// How long all the pods may take.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long a node may take to be ready.
const NODE_PATIENCE: Duration = Duration::from_secs(5);

#[async_trait]
impl Bench for RunPods {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "Pods from create to Running, one after the other and at once"
    }

    async fn run(&self, cx: &mut Context) -> Result<Outcome, Error> {
        if !has_ready_node(cx.target()?).await? {
            return Ok(Outcome::Skipped("no node is Ready".into()));
        }
        let count = cx.options.count_or(PODS);
        let single = one_by_one(cx, count).await?;
        cx.leave().await;
        let burst = at_once(cx, count).await?;
        Ok(Outcome::Measured(vec![single, burst]))
    }
}

/// Whether a node is ready, or becomes so soon: a cluster that was just started may have none yet.
async fn has_ready_node(target: &Target) -> Result<bool, Error> {
    let ready = |n: &Value| {
        let conditions = n["status"]["conditions"].as_array();
        conditions.is_some_and(|c| c.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
    };
    let end = Instant::now() + NODE_PATIENCE;
    loop {
        let nodes: Value = target.client.get("/api/v1/nodes").await?;
        if nodes["items"].as_array().is_some_and(|i| i.iter().any(ready)) {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn one_by_one(cx: &mut Context, count: u64) -> Result<Row, Error> {
    let namespace = cx.enter().await?;
    let target = cx.target()?.clone();
    let mut follower = Follower::start(&target, &namespace, Moment::Running).await?;
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let end = Instant::now() + PATIENCE;
    for i in 0..count {
        create(cx, &follower, &path, i).await?;
        if !follower.next(end).await {
            break;
        }
    }
    let seen = follower.finish(count as usize, Duration::ZERO).await;
    let errors = u64::from(seen.error.is_some());
    Ok(Row::times(NAME, seen.times).with_errors(errors, seen.error))
}

async fn at_once(cx: &mut Context, count: u64) -> Result<Row, Error> {
    let namespace = cx.enter().await?;
    let follower = Follower::start(cx.target()?, &namespace, Moment::Running).await?;
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    for i in 0..count {
        create(cx, &follower, &path, i).await?;
    }
    let seen = follower.finish(count as usize, PATIENCE).await;
    let errors = u64::from(seen.error.is_some());
    Ok(Row::times(format!("{NAME}-at-once"), seen.times).with_rate(seen.elapsed).with_errors(errors, seen.error))
}

async fn create(cx: &Context, follower: &Follower, path: &str, i: u64) -> Result<(), Error> {
    let name = format!("r-{i}");
    let body = objects::running_pod(&name, &cx.options.image);
    follower.sent().note(&name);
    post(&cx.target()?.client, path, &body).await.map(drop)
}

/// A pod that runs.
pub struct Running {
    pub name: String,
    pub address: String,
}

/// Creates pods and waits until all of them run. None without a ready node.
pub async fn running(cx: &Context, namespace: &str, count: u64) -> Result<Option<Vec<Running>>, Error> {
    if !has_ready_node(cx.target()?).await? {
        return Ok(None);
    }
    let follower = Follower::start(cx.target()?, namespace, Moment::Running).await?;
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    for i in 0..count {
        create(cx, &follower, &path, i).await?;
    }
    if let Some(error) = follower.finish(count as usize, PATIENCE).await.error {
        return Err(Error::Answer(error));
    }
    let list: Value = cx.target()?.client.get(&path).await?;
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let pods = list["items"].as_array().into_iter().flatten();
    Ok(Some(
        pods.map(|p| Running { name: text(&p["metadata"]["name"]), address: text(&p["status"]["podIP"]) }).collect(),
    ))
}

/// The moment of a pod that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Bound,
    Running,
}

impl Moment {
    fn reached(self, p: &Pod) -> bool {
        match self {
            Self::Bound => !p.spec.node_name.is_empty(),
            Self::Running => p.status.phase == "Running",
        }
    }
}

/// The fields of a pod that are measured.
#[derive(Deserialize)]
pub struct Pod {
    pub metadata: Metadata,
    #[serde(default)]
    pub spec: Spec,
    #[serde(default)]
    pub status: Status,
}

#[derive(Deserialize)]
pub struct Metadata {
    pub name: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    pub node_name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Status {
    pub phase: String,
}

/// When each create was sent.
#[derive(Clone, Default)]
pub struct Sent(Arc<Mutex<BTreeMap<String, Instant>>>);

impl Sent {
    pub fn note(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), Instant::now());
    }
}

/// Watches the pods of a namespace and records when each reaches a moment.
pub struct Follower {
    sent: Sent,
    events: mpsc::UnboundedReceiver<Result<(String, Instant), String>>,
    reached: BTreeMap<String, Instant>,
    error: Option<String>,
    task: JoinHandle<()>,
}

/// The result of a [`Follower`].
pub struct Seen {
    /// From create to the moment, of each pod that reached it.
    pub times: Vec<Duration>,
    /// From the first create to the last moment.
    pub elapsed: Duration,
    pub error: Option<String>,
}

impl Follower {
    pub async fn start(target: &Target, namespace: &str, moment: Moment) -> Result<Self, Error> {
        let pods = ApiResource::named("", "v1", "pods", "Pod", true);
        let api = target.separate_client().await?.dynamic(&pods).namespace(namespace);
        let list = api.list_raw(&ListOptions::default()).await?;
        let options = WatchOptions { resource_version: list.resource_version, ..WatchOptions::default() };
        let mut watch = api.watch_raw(&options).await?;
        let (sender, events) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(event) = watch.next().await {
                let at = Instant::now();
                let seen = match event {
                    Ok(WatchEvent::Added(b) | WatchEvent::Modified(b)) => match serde_json::from_slice::<Pod>(&b) {
                        Ok(p) if moment.reached(&p) => Ok((p.metadata.name, at)),
                        Ok(_) => continue,
                        Err(e) => Err(e.to_string()),
                    },
                    Ok(WatchEvent::Deleted(_) | WatchEvent::Bookmark { .. }) => continue,
                    Err(e) => Err(e.to_string()),
                };
                if sender.send(seen).is_err() {
                    return;
                }
            }
            let _ = sender.send(Err("the watch ended".into()));
        });
        Ok(Self { sent: Sent::default(), events, reached: BTreeMap::new(), error: None, task })
    }

    pub fn sent(&self) -> Sent {
        self.sent.clone()
    }

    /// Waits for one more pod; `false` after a timeout.
    async fn next(&mut self, end: Instant) -> bool {
        let before = self.reached.len();
        while self.reached.len() == before && self.error.is_none() {
            match timeout_at(end, self.events.recv()).await {
                Ok(Some(Ok((name, at)))) => {
                    self.reached.entry(name).or_insert(at);
                }
                Ok(Some(Err(e))) => self.error = Some(e),
                Ok(None) | Err(_) => return false,
            }
        }
        self.reached.len() > before
    }

    /// Waits until `count` pods in all have reached the moment, for `patience` at most.
    pub async fn finish(mut self, count: usize, patience: Duration) -> Seen {
        let end = Instant::now() + patience;
        while self.reached.len() < count {
            if !self.next(end).await {
                break;
            }
        }
        self.task.abort();
        let sent = self.sent.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pairs = self.reached.iter().filter_map(|(name, at)| Some((*sent.get(name)?, *at)));
        let times: Vec<Duration> = pairs.map(|(from, to)| to.saturating_duration_since(from)).collect();
        let elapsed = match (sent.values().min(), self.reached.values().max()) {
            (Some(first), Some(last)) => last.saturating_duration_since(*first),
            _ => Duration::ZERO,
        };
        let error = self
            .error
            .clone()
            .or_else(|| (times.len() < count).then(|| format!("{} of {count} pods got there in time", times.len())));
        Seen { times, elapsed, error }
    }
}
