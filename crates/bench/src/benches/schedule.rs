//! The time from a pod's create to its binding, on nodes without agents.

use crate::benches::run::{Follower, Moment};
use crate::context::{Context, call};
use crate::load::{Load, drive};
use crate::{Bench, Error, Outcome, Row, objects};
use async_trait::async_trait;
use client::client::JSON;
use http::Method;
use std::time::Duration;

pub struct Schedule;

const PODS: u64 = 2000;
/// Pods per created node.
const SHARE: u64 = 100;

#[async_trait]
impl Bench for Schedule {
    fn name(&self) -> &'static str {
        "schedule"
    }

    fn about(&self) -> &'static str {
        "Pods from create to bound, on nodes made for it"
    }

    async fn run(&self, cx: &mut Context) -> Result<Outcome, Error> {
        let namespace = cx.enter().await?;
        let count = cx.options.count_or(PODS);
        cx.add_nodes(&namespace, cx.options.nodes.unwrap_or(count.div_ceil(SHARE))).await?;
        let follower = Follower::start(cx.target()?, &namespace, Moment::Bound).await?;
        let load = Load { connections: cx.options.connections_or(64), count, duration: Duration::from_secs(120) };
        let (path, run) = (format!("/api/v1/namespaces/{namespace}/pods"), namespace.clone());
        let sent = follower.sent();
        let made = drive(cx, &load, move |t| {
            let name = format!("s-{}-{}", t.worker, t.number);
            let body = objects::bound_pod(&name, &run).to_string();
            sent.note(&name);
            call(Method::POST, &path, Some((JSON, body.into())))
        });
        let made = made.await?;
        let seen = follower.finish(made.times.len(), cx.options.duration.max(Duration::from_secs(60))).await;
        let errors = made.errors + u64::from(seen.error.is_some());
        let row = Row::times(self.name(), seen.times).with_rate(seen.elapsed);
        Ok(Outcome::Measured(vec![row.with_errors(errors, made.first_error.or(seen.error))]))
    }
}
