//! A runtime that counts sandboxes and holds them until they are released, or whose containers never start.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use runtime::*;
use tokio::sync::{broadcast, watch};

pub struct Held {
    inner: Embedded,
    go: watch::Sender<bool>,
    now: watch::Sender<usize>,
    most: AtomicUsize,
    listings: AtomicUsize,
    /// The container that does not start, if none does, until it is stopped.
    stuck: Option<watch::Sender<Option<String>>>,
}

impl Held {
    pub fn new(inner: Embedded) -> Held {
        Held {
            inner,
            go: watch::channel(false).0,
            now: watch::channel(0).0,
            most: AtomicUsize::new(0),
            listings: AtomicUsize::new(0),
            stuck: None,
        }
    }

    /// No container starts.
    pub fn stuck(inner: Embedded) -> Held {
        Held { go: watch::channel(true).0, stuck: Some(watch::channel(None).0), ..Held::new(inner) }
    }

    /// Waits until there is a container that does not start, or none any more.
    pub async fn until_stuck(&self, expected: bool) {
        let mut stuck = self.stuck.as_ref().unwrap().subscribe();
        let wait = stuck.wait_for(|id| id.is_some() == expected);
        tokio::time::timeout(Duration::from_secs(30), wait).await.unwrap().unwrap();
    }

    /// Waits until so many are being made at a time.
    pub async fn until(&self, expected: usize) {
        let mut now = self.now.subscribe();
        let wait = now.wait_for(|n| *n == expected);
        tokio::time::timeout(Duration::from_secs(30), wait).await.unwrap().unwrap();
    }

    pub fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    /// How often all pods, or all containers, were listed.
    pub fn listings(&self) -> usize {
        self.listings.load(Ordering::SeqCst)
    }

    pub fn release(&self) {
        self.go.send_replace(true);
    }
}

#[async_trait]
impl Runtime for Held {
    async fn run_pod(&self, config: PodConfig) -> Result<Pod> {
        self.now.send_modify(|n| {
            *n += 1;
            self.most.fetch_max(*n, Ordering::SeqCst);
        });
        let _ = self.go.subscribe().wait_for(|go| *go).await;
        let made = Runtime::run_pod(&self.inner, config).await;
        self.now.send_modify(|n| *n -= 1);
        made
    }

    fn version(&self) -> (String, String) {
        self.inner.version()
    }
    async fn stop_pod(&self, pod: &str) -> Result<()> {
        Runtime::stop_pod(&self.inner, pod).await
    }
    async fn remove_pod(&self, pod: &str) -> Result<()> {
        Runtime::remove_pod(&self.inner, pod).await
    }
    async fn pod_records(&self, uid: &str) -> Result<PodRecords> {
        self.inner.pod_records(uid).await
    }
    async fn list_pods(&self) -> Result<Vec<Pod>> {
        self.listings.fetch_add(1, Ordering::SeqCst);
        self.inner.list_pods().await
    }
    async fn pod_status(&self, pod: &str) -> Result<Pod> {
        self.inner.pod_status(pod).await
    }
    async fn create_container(&self, pod: &str, config: ContainerConfig) -> Result<String> {
        self.inner.create_container(pod, config).await
    }
    async fn start_container(&self, container: &str) -> Result<()> {
        if let Some(stuck) = &self.stuck {
            stuck.send_replace(Some(container.to_owned()));
            std::future::pending::<()>().await;
        }
        self.inner.start_container(container).await
    }
    async fn stop_container(&self, container: &str, grace: Duration) -> Result<()> {
        if let Some(stuck) = &self.stuck {
            stuck.send_if_modified(|id| id.take_if(|id| id == container).is_some());
        }
        self.inner.stop_container(container, grace).await
    }
    async fn remove_container(&self, container: &str) -> Result<()> {
        self.inner.remove_container(container).await
    }
    async fn container_status(&self, container: &str) -> Result<Container> {
        self.inner.container_status(container).await
    }
    async fn list_containers(&self) -> Result<Vec<Container>> {
        self.listings.fetch_add(1, Ordering::SeqCst);
        self.inner.list_containers().await
    }
    async fn update_container(&self, container: &str, resources: Resources) -> Result<()> {
        self.inner.update_container(container, resources).await
    }
    async fn reopen_log(&self, container: &str) -> Result<()> {
        self.inner.reopen_log(container).await
    }
    async fn exec(&self, container: &str, request: ExecRequest) -> Result<ExecSession> {
        self.inner.exec(container, request).await
    }
    async fn exec_sync(
        &self,
        container: &str,
        command: Vec<String>,
        timeout: Option<Duration>,
        most: u64,
    ) -> Result<ExecResult> {
        self.inner.exec_sync(container, command, timeout, most).await
    }
    async fn attach(&self, container: &str, stdin: bool) -> Result<AttachSession> {
        self.inner.attach(container, stdin).await
    }
    async fn forward_port(&self, pod: &str, port: u16) -> Result<PortForward> {
        self.inner.forward_port(pod, port).await
    }
    async fn container_stats(&self, container: &str) -> Result<Stats> {
        self.inner.container_stats(container).await
    }
    async fn container_layer(&self, container: &str) -> Result<(u64, u64)> {
        self.inner.container_layer(container).await
    }
    async fn pod_stats(&self, pod: &str) -> Result<Stats> {
        self.inner.pod_stats(pod).await
    }
    fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.inner.subscribe()
    }
}
