//! Measures durable commits: `load DIR [WRITERS] [SECONDS] [BYTES] [WATCHERS]` prints commits per second and latencies, the
//! time to open and the memory of what is there already, and how many events the watchers were told.

#![allow(clippy::unwrap_used, reason = "a test may")]

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::{Action, Expect, Index, Key, Lmdb, LmdbOptions, Op, Options, Retention, Scope, Store};
use tokio::time::Instant;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: load DIR [WRITERS] [SECONDS] [BYTES] [WATCHERS]")?;
    let mut number = |otherwise: usize| arguments.next().map_or(Ok(otherwise), |text| text.parse::<usize>());
    let (writers, seconds, bytes, watchers) = (number(64)?, number(5)?, number(1_000)?, number(0)?);
    let start = Instant::now();
    let clock_start = start;
    let options = Options {
        index: Arc::new(|_, _| Index::default()),
        transform: None,
        retention: Retention::default(),
        clock: Arc::new(move || 1_700_000_000_000 + clock_start.elapsed().as_millis() as u64),
    };
    let store = Store::open(Lmdb::open(directory.as_ref(), LmdbOptions::default())?, options).await?;
    println!("opened {} objects in {:?}", store.stats().objects, start.elapsed());
    let status = std::fs::read_to_string("/proc/self/status")?;
    let memory = status.lines().find(|line| line.starts_with("RssAnon"));
    println!("{}", memory.unwrap_or("no RssAnon"));
    let told = Arc::new(AtomicU64::new(0));
    for _ in 0..watchers {
        let (mut watch, told) = (store.watch(Scope::resource("things"), store.revision())?, told.clone());
        tokio::spawn(async move {
            while let Ok(batch) = watch.next().await {
                told.fetch_add(batch.events.len() as u64, Ordering::Relaxed);
            }
        });
    }
    let end = Instant::now() + Duration::from_secs(seconds as u64);
    let before = store.stats();
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                let value = Bytes::from(vec![b'v'; bytes]);
                for round in 0_u64.. {
                    let started = Instant::now();
                    if started >= end {
                        break;
                    }
                    let key = Key::new("things", "load", &format!("{writer}-{}", round % 1_000));
                    let op = Op { key, expect: Expect::Any, action: Action::Put(value.clone()) };
                    if let Err(error) = store.commit(vec![op]).await {
                        eprintln!("{error}");
                        break;
                    }
                    latencies.push(started.elapsed());
                }
                latencies
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await?);
    }
    latencies.sort();
    let at = |part: f64| latencies.get((latencies.len() as f64 * part) as usize).copied().unwrap_or_default();
    let after = store.stats();
    println!(
        "{writers} writers, {bytes} bytes: {:.0} commits/s, p50 {:?}, p99 {:?}, {:.1} commits per sync",
        latencies.len() as f64 / seconds as f64,
        at(0.5),
        at(0.99),
        (after.transactions - before.transactions) as f64 / (after.batches - before.batches).max(1) as f64,
    );
    println!("{watchers} watchers were told {} events", told.load(Ordering::Relaxed));
    println!("{after:?}");
    store.close().await;
    Ok(())
}
