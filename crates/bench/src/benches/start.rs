//! Start with an empty directory and with many pods, and usage of an idle server.

use crate::benches::list::fill;
use crate::context::Context;
use crate::{Bench, Error, Outcome, Row};
use async_trait::async_trait;
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, sleep};

pub struct Start;

pub const NAME: &str = "start";
/// Number of starts with an empty directory.
const STARTS: u64 = 5;
const PODS: u64 = 10_000;
/// How long a node may take to become Ready.
const PATIENCE: Duration = Duration::from_secs(60);

#[async_trait]
impl Bench for Start {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "from an empty directory to ready, idle use, and a restart with 10,000 Pods"
    }

    async fn run(&self, cx: &mut Context) -> Result<Outcome, Error> {
        // One start more than is counted: the first reads the program from the disk.
        cx.start_server().await?;
        let (mut ready, mut nodes) = (Vec::new(), Vec::new());
        for _ in 0..STARTS.min(cx.options.count_or(STARTS)) {
            ready.push(cx.start_empty().await?);
            if cx.cluster()?.has_node() {
                node_ready(cx).await?;
                nodes.push(cx.cluster()?.age());
            }
        }
        let mut rows = vec![Row::times("start-ready", ready)];
        if !nodes.is_empty() {
            rows.push(Row::times("start-node", nodes));
        }
        rows.extend(idle(cx).await?);
        let pods = cx.options.count_or(PODS);
        let namespace = cx.enter().await?;
        fill(cx, &namespace, pods).await?;
        let again = cx.start_again().await?;
        rows.push(Row::times("start-again", vec![again]).with_value(pods as f64, "pods"));
        Ok(Outcome::Measured(rows))
    }
}

async fn node_ready(cx: &mut Context) -> Result<(), Error> {
    let path = format!("/api/v1/nodes/{}", cx.cluster()?.node());
    let client = &cx.target()?.client;
    let started = Instant::now();
    loop {
        let node = client::optional(client.get::<Value>(&path).await)?.unwrap_or_default();
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True") {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            return Err(Error::Late { what: "a Ready node".into(), limit: PATIENCE });
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Leaves the server idle, then reads its memory, and its share of a processor in the last half of the time.
async fn idle(cx: &mut Context) -> Result<[Row; 2], Error> {
    let half = cx.options.idle / 2;
    sleep(half).await;
    let before = cx.cluster()?.usage()?;
    let started = Instant::now();
    sleep(half).await;
    let after = cx.cluster()?.usage()?;
    let share = after.cpu.saturating_sub(before.cpu).as_secs_f64() / started.elapsed().as_secs_f64().max(1e-9);
    Ok([
        Row::value("idle-memory", after.memory_bytes as f64 / 1e6, "MB"),
        Row::value("idle-cpu", share * 100.0, "% of a core"),
    ])
}
