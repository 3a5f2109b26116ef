//! The input of every benchmark: the server, a namespace of its own, and the limits.

use crate::cluster::Cluster;
use crate::{Error, Options};
use bytes::Bytes;
use client::api::Api;
use client::client::{JSON, request};
use client::https::Dedicated;
use client::kubeconfig::{Overrides, Resolved, Sources};
use client::{ApiResource, Client, DeleteOptions, Https, ListOptions};
use http::Method;
use http::header::ACCEPT_ENCODING;
use meta::Object;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const USER_AGENT: &str = "kemudi-bench";
/// How long the server may take to remove what a benchmark made.
const CLEANING: Duration = Duration::from_secs(300);

/// Connections to one server.
#[derive(Clone)]
pub struct Target {
    https: Arc<Https>,
    config: client::https::Config,
    resolved: Resolved,
    pub client: Client,
}

impl Target {
    pub async fn open(resolved: Resolved) -> Result<Self, Error> {
        let config = resolved.config().await?;
        let client = Client::new(Https::new(&config)?, USER_AGENT).with_impersonation(&resolved.impersonation)?;
        let client = client.with_timeout(Duration::from_secs(60));
        Ok(Self { https: Arc::new(Https::new(&config)?), config, resolved, client })
    }

    /// The kubeconfig file of a cluster.
    pub async fn of_file(path: &Path) -> Result<Self, Error> {
        let sources = Sources { explicit: Some(path.to_owned()), files: Vec::new() };
        Self::open(sources.resolve(&Overrides::default(), |_| None)?).await
    }

    /// A connection for one worker: HTTP/1.1 without compression.
    pub async fn connect(&self) -> Result<Dedicated, Error> {
        let mut headers = self.client.headers().clone();
        headers.insert(ACCEPT_ENCODING, http::HeaderValue::from_static("identity"));
        Ok(self.https.dedicated(headers).await?)
    }

    /// A client that shares no connection with another.
    pub async fn separate_client(&self) -> Result<Client, Error> {
        let client = Client::new(Https::new(&self.config)?, USER_AGENT);
        Ok(client.with_impersonation(&self.resolved.impersonation)?)
    }
}

pub struct Context {
    pub options: Options,
    target: Option<Target>,
    /// The server that was started for the measurement.
    cluster: Option<Cluster>,
    room: Option<Room>,
}

/// What a benchmark created, removed after it.
struct Room {
    namespace: String,
    /// Names of nodes without agents.
    nodes: Vec<String>,
}

impl Context {
    pub async fn open(options: &Options) -> Result<Self, Error> {
        let mut cx = Self { options: options.clone(), target: None, cluster: None, room: None };
        if options.start.is_none() {
            let sources = Sources::find(options.kubeconfig.clone(), |n| std::env::var(n).ok());
            let overrides = Overrides { context: options.context.clone().unwrap_or_default(), ..Overrides::default() };
            cx.target = Some(Target::open(sources.resolve(&overrides, |n| std::env::var(n).ok())?).await?);
        }
        Ok(cx)
    }

    pub fn target(&self) -> Result<&Target, Error> {
        self.target.as_ref().ok_or_else(|| Error::Answer("no server is running".into()))
    }

    /// Starts a server on an empty directory that the following benchmarks measure.
    pub async fn start_server(&mut self) -> Result<(), Error> {
        let program = self.options.start.clone().ok_or(Error::NothingToStart)?;
        let directory = self.options.data_dir.clone();
        self.cluster = Some(Cluster::new(program, directory, self.options.args.clone())?);
        self.start_empty().await.map(drop)
    }

    /// The server that was started, for its processes.
    pub fn cluster(&mut self) -> Result<&mut Cluster, Error> {
        self.cluster.as_mut().ok_or(Error::NothingToStart)
    }

    /// Removes the started server and starts it on an empty directory; the time until `/readyz`.
    pub async fn start_empty(&mut self) -> Result<Duration, Error> {
        let cluster = self.cluster()?;
        cluster.purge().await?;
        let time = cluster.start().await?;
        self.reach().await?;
        Ok(time)
    }

    /// Stops the started server and starts it on what it has; the time until `/readyz`.
    pub async fn start_again(&mut self) -> Result<Duration, Error> {
        let cluster = self.cluster()?;
        cluster.stop().await?;
        let time = cluster.start_again().await?;
        self.reach().await?;
        Ok(time)
    }

    /// Connects to the server after its last start. It is ready when it answers an authenticated create.
    async fn reach(&mut self) -> Result<(), Error> {
        let path = self.cluster()?.wait_for_kubeconfig().await?;
        let target = self.target.insert(Target::of_file(&path).await?);
        let object = crate::objects::config_map("bench-ready");
        post(&target.client, "/api/v1/namespaces/default/configmaps", &object).await?;
        remove(&target.client, "/api/v1/namespaces/default/configmaps/bench-ready").await
    }

    /// Makes a namespace in which pods can be made, also where no controller is there to prepare it.
    pub async fn enter(&mut self) -> Result<String, Error> {
        let target = self.target()?.clone();
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "bench-"}});
        let made: Value = post(&target.client, "/api/v1/namespaces", &body).await?;
        let namespace = made["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        self.room = Some(Room { namespace: namespace.clone(), nodes: Vec::new() });
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        match post(&target.client, &path, &account).await {
            Err(Error::Client(e)) if e.is_already_exists() => {}
            other => drop(other?),
        }
        Ok(namespace)
    }

    /// Creates nodes without agents, for the pods of a namespace. They are removed with it.
    pub async fn add_nodes(&mut self, namespace: &str, count: u64) -> Result<(), Error> {
        let client = self.target()?.client.clone();
        for i in 0..count {
            let n = crate::objects::node(&format!("{namespace}-{i}"), namespace);
            if let (Some(r), Some(name)) = (&mut self.room, n["metadata"]["name"].as_str()) {
                r.nodes.push(name.to_owned());
            }
            let made: Value = post(&client, "/api/v1/nodes", &n).await?;
            let path = format!("/api/v1/nodes/{}/status", made["metadata"]["name"].as_str().unwrap_or_default());
            let status = json!({"status": n["status"]}).to_string().into_bytes();
            let media = Some(("application/merge-patch+json", status));
            client.bytes(request(Method::PATCH, &path, JSON, media)?).await?;
        }
        Ok(())
    }

    /// Removes what the last benchmark created. Failures are printed, and do not affect results.
    pub async fn leave(&mut self) {
        let (Some(room), Ok(target)) = (self.room.take(), self.target()) else { return };
        match timeout(CLEANING, room.remove(&target.client)).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => eprintln!("warning: removing namespace {}: {e}", room.namespace),
            Err(_) => eprintln!("warning: namespace {} was not gone after {CLEANING:?}", room.namespace),
        }
    }

    /// Stops the started server.
    pub async fn close(&mut self) {
        self.leave().await;
        if let Some(mut c) = self.cluster.take()
            && let Err(e) = c.remove().await
        {
            eprintln!("warning: {e}");
        }
    }

    pub async fn version(&self) -> String {
        let Some(target) = &self.target else { return String::new() };
        let answer = target.client.get::<Value>("/version").await.unwrap_or_default();
        answer["gitVersion"].as_str().unwrap_or_default().to_owned()
    }
}

pub async fn post(client: &Client, path: &str, body: &Value) -> Result<Value, Error> {
    Ok(client.json(request(Method::POST, path, JSON, Some((JSON, body.to_string().into_bytes())))?).await?)
}

/// A request that a worker sends.
pub fn call(method: Method, path: &str, body: Option<(&str, Bytes)>) -> Result<http::Request<Bytes>, Error> {
    let mut r = request(method, path, JSON, None)?;
    if let Some((media, bytes)) = body {
        let media = http::HeaderValue::from_str(media).map_err(|e| Error::Answer(e.to_string()))?;
        r.headers_mut().insert(http::header::CONTENT_TYPE, media);
        *r.body_mut() = bytes;
    }
    Ok(r)
}

impl Room {
    async fn remove(&self, client: &Client) -> Result<(), Error> {
        // Large objects are deleted even if no controller empties the namespace.
        for (group, resource, kind) in
            [("apps", "deployments", "Deployment"), ("", "pods", "Pod"), ("", "configmaps", "ConfigMap")]
        {
            let api: Api<Object> = client.dynamic(&ApiResource::named(group, "v1", resource, kind, true));
            match self.empty(api.namespace(&self.namespace)).await {
                // The deletion of the namespace removes them too.
                Err(Error::Client(e)) if e.is_forbidden() => {}
                other => other?,
            }
        }
        for n in &self.nodes {
            remove(client, &format!("/api/v1/nodes/{n}")).await?;
        }
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        remove(client, &path).await?;
        let started = Instant::now();
        while let Some(left) = client::optional(client.get::<Value>(&path).await)? {
            // Without a controller the deletion never finishes.
            if started.elapsed() > Duration::from_secs(60) {
                let why = left["status"]["conditions"].to_string();
                return Err(Error::Late {
                    what: format!("the end of the namespace ({why})"),
                    limit: started.elapsed(),
                });
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    async fn empty(&self, api: Api<Object>) -> Result<(), Error> {
        let one = ListOptions { limit: 1, ..ListOptions::default() };
        // Pods on nodes without agents never end; those of real nodes end by themselves.
        let options =
            if self.nodes.is_empty() { DeleteOptions::default() } else { DeleteOptions::default().with_grace(0) };
        while !api.list_raw(&one).await?.items.is_empty() {
            match api.delete_collection(&options, &ListOptions::default()).await {
                // A request for many objects may time out; its progress is kept.
                Err(e) if e.is_transient() => {}
                other => other?,
            }
            if api.list_raw(&one).await?.items.is_empty() {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}

async fn remove(client: &Client, path: &str) -> Result<(), Error> {
    let answer = client.bytes(request(Method::DELETE, path, JSON, None)?).await;
    client::optional(answer)?;
    Ok(())
}
