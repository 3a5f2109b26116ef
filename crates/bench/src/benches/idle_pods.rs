//! What pods cost that only wait: memory of the node agent and of the pods' own processes, and time of the processor.

use crate::benches::run::running;
use crate::context::Context;
use crate::{Bench, Error, Outcome, Row};
use async_trait::async_trait;
use tokio::time::{Instant, sleep};

pub struct IdlePods;

/// As many as a node takes by default.
const PODS: u64 = 110;

#[async_trait]
impl Bench for IdlePods {
    fn name(&self) -> &'static str {
        "idle-pods"
    }

    fn about(&self) -> &'static str {
        "memory and processor time of 110 Pods that wait (with --start)"
    }

    fn is_default(&self) -> bool {
        false
    }

    async fn run(&self, cx: &mut Context) -> Result<Outcome, Error> {
        if cx.options.start.is_none() {
            return Ok(Outcome::Skipped("it needs --start: the processes of the server are measured".into()));
        }
        let count = cx.options.count_or(PODS);
        let before = cx.cluster()?.usage()?;
        let namespace = cx.enter().await?;
        let Some(pods) = running(cx, &namespace, count).await? else {
            return Ok(Outcome::Skipped("no node is Ready".into()));
        };
        sleep(cx.options.idle / 2).await;
        let (first, begun) = (cx.cluster()?.usage()?, Instant::now());
        sleep(cx.options.idle / 2).await;
        let last = cx.cluster()?.usage()?;
        let (took, spent) = (begun.elapsed().as_secs_f64().max(1e-9), last.cpu.saturating_sub(first.cpu));
        let per_pod = |bytes: u64| bytes as f64 / 1e6 / pods.len().max(1) as f64;
        Ok(Outcome::Measured(vec![
            Row::value("idle-pods-cpu", spent.as_secs_f64() / took * 100.0, "% of a core"),
            Row::value("idle-pods-server", per_pod(last.server_bytes.saturating_sub(before.server_bytes)), "MB/pod"),
            Row::value("idle-pods-shim", per_pod(last.shim_bytes), "MB/pod"),
        ]))
    }
}
