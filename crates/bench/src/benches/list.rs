//! Listing many pods whole, over one connection, without compression.

use crate::context::{Context, call};
use crate::load::{Load, answer, drive};
use crate::{Bench, Error, Outcome, Row, objects};
use async_trait::async_trait;
use client::client::JSON;
use client::{ApiResource, ListOptions};
use http::Method;
use std::time::Duration;
use tokio::time::Instant;

pub struct List;

const PODS: u64 = 10_000;
/// Number of lists: odd, so that the median is one of them.
const LISTS: usize = 21;
/// With this a pod has about 5 KB.
const PADDING: usize = 3000;

#[async_trait]
impl Bench for List {
    fn name(&self) -> &'static str {
        "list"
    }

    fn about(&self) -> &'static str {
        "LISTs of 10,000 Pods of 5 KB, one connection"
    }

    async fn run(&self, cx: &mut Context) -> Result<Outcome, Error> {
        let namespace = cx.enter().await?;
        let count = cx.options.count_or(PODS);
        fill(cx, &namespace, count).await?;
        let target = cx.target()?;
        let pods = ApiResource::named("", "v1", "pods", "Pod", true);
        let all = target.client.dynamic(&pods).namespace(&namespace).list_raw(&ListOptions::default()).await?;
        if all.items.len() as u64 != count {
            return Err(Error::Answer(format!("{} pods were made, and {} are listed", count, all.items.len())));
        }
        drop(all);
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let mut connection = target.connect().await?;
        let (mut times, mut bytes) = (Vec::new(), 0);
        let started = Instant::now();
        while times.len() < LISTS && (times.is_empty() || started.elapsed() < cx.options.duration) {
            let at = Instant::now();
            bytes = answer(&mut connection, call(Method::GET, &path, None)?).await?;
            times.push(at.elapsed());
        }
        let row = Row::times(self.name(), times).with_rate(started.elapsed());
        Ok(Outcome::Measured(vec![row.with_value(bytes as f64 / 1e6, "MB")]))
    }
}

/// Creates pods of about 5 KB that no scheduler binds.
pub async fn fill(cx: &Context, namespace: &str, count: u64) -> Result<(), Error> {
    let load = Load { connections: cx.options.connections_or(64), count, duration: Duration::from_secs(300) };
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let made = drive(cx, &load, move |t| {
        let body = objects::pod(&format!("l-{}-{}", t.worker, t.number), t.number, PADDING);
        call(Method::POST, &path, Some((JSON, body.to_string().into())))
    });
    let made = made.await?;
    match made.first_error {
        None if made.times.len() as u64 == count => Ok(()),
        why => Err(Error::Answer(format!("{} of {count} pods were made: {why:?}", made.times.len()))),
    }
}
