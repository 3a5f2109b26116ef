//! Requests to a pod by its own address and through the address of a service, in turns. This process has to reach both.

use crate::benches::run::running;
use crate::context::{Context, post};
use crate::{Bench, Error, Outcome, Row};
use async_trait::async_trait;
use bytes::Bytes;
use client::https::Config;
use client::{Https, Transport};
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

pub struct Services;

const CONNECTIONS: usize = 16;
/// The port of the built-in image.
const PORT: u16 = 8080;
/// How often each address has its turn.
const TURNS: u32 = 3;
/// How long the rules of a service may take.
const PATIENCE: Duration = Duration::from_secs(10);

#[async_trait]
impl Bench for Services {
    fn name(&self) -> &'static str {
        "services"
    }

    fn about(&self) -> &'static str {
        "Requests to a Pod by its own address and through a Service"
    }

    fn is_default(&self) -> bool {
        false
    }

    async fn run(&self, cx: &mut Context) -> Result<Outcome, Error> {
        let namespace = cx.enter().await?;
        let Some(pods) = running(cx, &namespace, 1).await? else {
            return Ok(Outcome::Skipped("no node is Ready".into()));
        };
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "bench"},
            "spec": {"selector": {"app": "bench"}, "ports": [{"port": 80, "targetPort": PORT}]}});
        let made: Value =
            post(&cx.target()?.client, &format!("/api/v1/namespaces/{namespace}/services"), &service).await?;
        let own = format!("http://{}:{PORT}", pods[0].address);
        let through = format!("http://{}:80", made["spec"]["clusterIP"].as_str().unwrap_or_default());
        for url in [&own, &through] {
            await_answer(url).await?;
        }
        let connections = cx.options.connections_or(CONNECTIONS);
        let turn = cx.options.duration / TURNS;
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..TURNS {
            for (url, times) in [&own, &through].into_iter().zip(&mut times) {
                times.extend(load(url, connections, turn).await?);
            }
        }
        let elapsed = turn * TURNS;
        let rate = |i: usize| times[i].len() as f64 / elapsed.as_secs_f64().max(1e-9);
        let share = rate(1) / rate(0).max(1e-9) * 100.0;
        let [own, through] = times;
        Ok(Outcome::Measured(vec![
            Row::times("services-pod", own).with_rate(elapsed),
            Row::times("services-cluster-ip", through).with_rate(elapsed).with_value(share, "% of the pod's"),
        ]))
    }
}

fn request() -> Request<Bytes> {
    Request::new(Bytes::new())
}

async fn await_answer(url: &str) -> Result<(), Error> {
    let end = Instant::now() + PATIENCE;
    loop {
        let sent = timeout(Duration::from_secs(1), Https::new(&Config::new(url))?.send(request())).await;
        match sent {
            Ok(Ok(_)) => return Ok(()),
            _ if Instant::now() < end => tokio::time::sleep(Duration::from_millis(20)).await,
            _ => return Err(Error::Late { what: format!("an answer of {url}"), limit: PATIENCE }),
        }
    }
}

/// The latencies of the requests of some connections, which each sends one after the other.
async fn load(url: &str, connections: usize, duration: Duration) -> Result<Vec<Duration>, Error> {
    let server = Https::new(&Config::new(url))?;
    let mut tasks = JoinSet::new();
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(server.dedicated(HeaderMap::new()).await?);
    }
    let end = Instant::now() + duration;
    for mut connection in open {
        tasks.spawn(async move {
            let mut times = Vec::new();
            while Instant::now() < end {
                let begun = Instant::now();
                let answer = connection.send(request()).await?;
                answer.into_body().collect().await.map_err(|e| client::Error::Body(e.into()))?;
                times.push(begun.elapsed());
            }
            Ok::<_, Error>(times)
        });
    }
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.extend(done.map_err(|e| Error::Answer(e.to_string()))??);
    }
    Ok(all)
}
