//! Server-side apply: every connection applies changes to its own deployments in turn.

use crate::context::{Context, call};
use crate::load::{Load, drive};
use crate::{Bench, Error, Outcome, objects};
use async_trait::async_trait;
use http::Method;

pub struct Apply;

/// Deployments of one connection.
const RING: u64 = 50;

#[async_trait]
impl Bench for Apply {
    fn name(&self) -> &'static str {
        "apply"
    }

    fn about(&self) -> &'static str {
        "server-side applies of Deployments, 16 connections"
    }

    async fn run(&self, cx: &mut Context) -> Result<Outcome, Error> {
        let namespace = cx.enter().await?;
        let o = &cx.options;
        let load = Load { connections: o.connections_or(16), count: o.count_or(1_000_000), duration: o.duration };
        let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
        let samples = drive(cx, &load, move |t| {
            let name = format!("d-{}-{}", t.worker, t.number % RING);
            let body = objects::deployment(&name, t.number / RING);
            let path = format!("{path}/{name}?fieldManager=bench&force=true");
            call(Method::PATCH, &path, Some(("application/apply-patch+yaml", body.to_string().into())))
        });
        Ok(Outcome::Measured(vec![samples.await?.row(self.name())]))
    }
}
