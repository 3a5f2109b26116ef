//! How long a write takes to reach many watchers.

use crate::context::{Context, post};
use crate::{Bench, Error, Outcome, Row, objects};
use async_trait::async_trait;
use client::client::{JSON, request};
use client::{ApiResource, WatchEvent, WatchOptions};
use futures::StreamExt;
use http::Method;
use serde_json::Value;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

pub struct Watch;

const WATCHERS: u64 = 1000;
/// Watches on one connection: servers allow about a hundred streams.
const SHARE: u64 = 50;
/// How many writes are sent, one after the other.
const WRITES: usize = 50;
const PATIENCE: Duration = Duration::from_secs(30);

/// What a watcher saw, and when.
type Seen = (Instant, Result<(), String>);

#[async_trait]
impl Bench for Watch {
    fn name(&self) -> &'static str {
        "watch"
    }

    fn about(&self) -> &'static str {
        "one write, until each of 1,000 watchers has it"
    }

    async fn run(&self, cx: &mut Context) -> Result<Outcome, Error> {
        let namespace = cx.enter().await?;
        let count = cx.options.count_or(WATCHERS);
        let target = cx.target()?.clone();
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let made = post(&target.client, &path, &objects::config_map("one")).await?;
        let path = format!("{path}/one");
        let options = WatchOptions {
            label_selector: objects::LABEL.into(),
            resource_version: made["metadata"]["resourceVersion"].as_str().unwrap_or_default().into(),
            ..WatchOptions::default()
        };
        let resource = ApiResource::named("", "v1", "configmaps", "ConfigMap", true);
        let (sender, mut seen) = mpsc::unbounded_channel::<Seen>();
        let mut watchers = JoinSet::new();
        for first in (0..count).step_by(SHARE as usize) {
            let client = target.separate_client().await?;
            for _ in first..count.min(first + SHARE) {
                let api = client.dynamic(&resource).namespace(&namespace);
                let mut events = api.watch_raw(&options).await?;
                let sender = sender.clone();
                watchers.spawn(async move {
                    while let Some(event) = events.next().await {
                        let event = match event {
                            Ok(WatchEvent::Modified(_)) => Ok(()),
                            Ok(WatchEvent::Bookmark { .. }) => continue,
                            Ok(e) => Err(format!("unexpected event: {e:?}")),
                            Err(e) => Err(e.to_string()),
                        };
                        if sender.send((Instant::now(), event)).is_err() {
                            return;
                        }
                    }
                    let _ = sender.send((Instant::now(), Err("the watch ended".into())));
                });
            }
        }
        let (mut times, mut errors, mut first_error) = (Vec::new(), 0, None);
        let started = Instant::now();
        for turn in 0..WRITES {
            if errors > 0 || started.elapsed() >= cx.options.duration {
                break;
            }
            let patch = serde_json::json!({"metadata": {"annotations": {"turn": turn.to_string()}}});
            let media = Some(("application/merge-patch+json", patch.to_string().into_bytes()));
            let at = Instant::now();
            // The answer is read while the events arrive.
            let write = target.client.json::<Value>(request(Method::PATCH, &path, JSON, media)?);
            let reads = async {
                for _ in 0..count {
                    let next = match timeout_at(at + PATIENCE, seen.recv()).await {
                        Ok(Some(s)) => s,
                        Ok(None) | Err(_) => (at, Err(format!("a watcher saw nothing within {PATIENCE:?}"))),
                    };
                    match next {
                        (when, Ok(())) => times.push(when.saturating_duration_since(at)),
                        (_, Err(e)) => {
                            errors += 1;
                            first_error.get_or_insert(e);
                            return;
                        }
                    }
                }
            };
            let (written, ()) = tokio::join!(write, reads);
            written?;
        }
        let row = Row::times(self.name(), times).with_rate(started.elapsed()).with_errors(errors, first_error);
        watchers.abort_all();
        Ok(Outcome::Measured(vec![row.with_value(count as f64, "watchers")]))
    }
}
