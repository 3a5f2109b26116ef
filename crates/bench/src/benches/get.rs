//! Reading one object over and over.

use crate::context::{Context, call, post};
use crate::load::{Load, drive};
use crate::{Bench, Error, Outcome, objects};
use async_trait::async_trait;
use http::Method;

pub struct Get;

#[async_trait]
impl Bench for Get {
    fn name(&self) -> &'static str {
        "get"
    }

    fn about(&self) -> &'static str {
        "GETs of one ConfigMap of 1 KB"
    }

    async fn run(&self, cx: &mut Context) -> Result<Outcome, Error> {
        let namespace = cx.enter().await?;
        let o = &cx.options;
        let load = Load { connections: o.connections_or(64), count: o.count_or(1_000_000), duration: o.duration };
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        post(&cx.target()?.client, &path, &objects::config_map("one")).await?;
        let path = format!("{path}/one");
        let samples = drive(cx, &load, move |_| call(Method::GET, &path, None)).await?;
        Ok(Outcome::Measured(vec![samples.row(self.name())]))
    }
}
