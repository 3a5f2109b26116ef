//! Work whose result can be checked after any crash: what a writer does at step n is a pure function of the writer and n.
//!
//! Invariant: each writer has one transaction under way, which also notes its step under the writer's progress key. So after
//! a crash the noted step is the last acknowledged one or the one after, and every key of the writer is what replaying
//! exactly that many steps gives.

use bytes::Bytes;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use store::{Action, Clock, Committed, Expect, Index, Key, Lmdb, LmdbOptions, Op, Options, Retention, Store};
use tokio::time::Instant;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

const WRITERS: u64 = 8;
/// Keys per writer: few, so that overwrites, deletions and compaction meet often.
const KEYS: u64 = 24;

/// A number that looks random.
pub fn mix(mut seed: u64) -> u64 {
    seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    seed = (seed ^ (seed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    seed ^ (seed >> 31)
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(bytes.len() as u64, |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(sum ^ u64::from_le_bytes(word))
    })
}

fn key(name: &str) -> Key {
    Key::new("power", "test", name)
}

/// What a step writes: names with the seed of the new value, or none for a deletion.
fn step(writer: u64, number: u64) -> Vec<(String, Option<u64>)> {
    let random = mix(writer << 40 | number);
    let first = random % KEYS;
    let mut writes = vec![(format!("w{writer}-{first}"), (random >> 8 & 7 != 0).then_some(random))];
    if random >> 16 & 3 == 0 {
        let second = (first + 1) % KEYS;
        writes.push((format!("w{writer}-{second}"), Some(random ^ 1)));
    }
    writes
}

fn value(seed: u64) -> Vec<u8> {
    let length = if seed >> 20 & 63 == 0 { 60_000 } else { seed >> 24 & 0xfff };
    (0..length).map(|at| (mix(seed ^ (at >> 3)) >> (8 * (at & 7))) as u8).collect()
}

pub fn options() -> Options {
    let start = Instant::now();
    let clock: Clock = Arc::new(move || 1_700_000_000_000 + start.elapsed().as_millis() as u64);
    // So little history that compaction is always at work.
    let retention = Retention { bytes: 4 << 20, live_percent: 0, ..Retention::default() };
    Options { index: Arc::new(|_, _| Index::default()), transform: None, retention, clock }
}

async fn open(directory: &Path, sync: bool) -> Result<Store, Failure> {
    let engine =
        Lmdb::open(directory, LmdbOptions { sync, initial_map: 1 << 20, reserve: 1 << 20, ..LmdbOptions::default() })?;
    Ok(Store::open(engine, options()).await?)
}

/// The step that a writer noted, with its revision.
fn progress(store: &Store, writer: u64) -> Result<(u64, u64), Failure> {
    match store.snapshot().get(&key(&format!("progress-{writer}"))) {
        None => Ok((0, 0)),
        Some(entry) => Ok((std::str::from_utf8(&entry.value)?.parse()?, entry.revision)),
    }
}

/// Writes until the process is killed, and reports each acknowledgement as a line
/// `ack WRITER STEP REVISION KEY CHECKSUM`. First come the steps that the data holds already.
pub async fn write(directory: &Path, sync: bool, out: impl Write + Send + 'static) -> Result<(), Failure> {
    let store = open(directory, sync).await?;
    let mut out = out;
    // A step that was written but not reported when the last process died counts from now on, before another follows.
    for writer in 0..WRITERS {
        let (done, revision) = progress(&store, writer)?;
        if done > 0 {
            writeln!(out, "ack {writer} {done} {revision} found 0")?;
        }
    }
    out.flush()?;
    let out = Arc::new(Mutex::new(out));
    let mut tasks = Vec::new();
    for writer in 0..WRITERS {
        let (store, out) = (store.clone(), out.clone());
        let (done, _) = progress(&store, writer)?;
        tasks.push(tokio::spawn(async move {
            for number in done + 1.. {
                let committed = commit(&store, writer, number).await?;
                let (name, seed) = &step(writer, number)[0];
                let sum = seed.map_or(0, |seed| checksum(&value(seed)));
                let line = format!("ack {writer} {number} {} {name} {sum:016x}\n", committed.revision);
                let mut out = out.lock().map_err(|_| "a writer panicked")?;
                out.write_all(line.as_bytes())?;
                out.flush()?;
            }
            Ok::<(), Failure>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn commit(store: &Store, writer: u64, number: u64) -> Result<Committed, Failure> {
    let put =
        |name: &str, value: Vec<u8>| Op { key: key(name), expect: Expect::Any, action: Action::Put(value.into()) };
    let mut ops: Vec<Op> = step(writer, number)
        .into_iter()
        .map(|(name, seed)| match seed {
            Some(seed) => put(&name, value(seed)),
            None => Op { key: key(&name), expect: Expect::Any, action: Action::Delete },
        })
        .collect();
    ops.push(put(&format!("progress-{writer}"), number.to_string().into_bytes()));
    Ok(store.commit(ops).await?)
}

/// The last acknowledgement of each writer: its step and revision.
#[derive(Clone, Debug, Default)]
pub struct Acknowledged {
    last: HashMap<u64, (u64, u64)>,
    pub count: usize,
}

impl Acknowledged {
    /// Lines that are not acknowledgements are ignored; so is a last line without its end.
    pub fn note(&mut self, line: &str) {
        let Some(start) = line.find("ack ").filter(|_| line.ends_with('\n')) else { return };
        let mut words = line[start + 4..].split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(writer)), Some(Ok(number)), Some(Ok(revision))) = (words.next(), words.next(), words.next())
        else {
            return;
        };
        let last = self.last.entry(writer).or_default();
        *last = (*last).max((number, revision));
        self.count += 1;
    }
}

/// Whether the data is what the acknowledgements promise: nothing lost, nothing invented, nothing torn.
pub async fn check(directory: &Path, acknowledged: &Acknowledged) -> Result<String, Failure> {
    let store = open(directory, true).await?;
    let result = verify(&store, acknowledged);
    store.close().await;
    result
}

fn verify(store: &Store, acknowledged: &Acknowledged) -> Result<String, Failure> {
    let (mut steps, mut expected) = (0, HashMap::new());
    for writer in 0..WRITERS {
        let (noted, revision) = progress(store, writer)?;
        let (last, at) = acknowledged.last.get(&writer).copied().unwrap_or_default();
        if noted < last {
            return Err(format!("lost: writer {writer} was acknowledged step {last}, the store has {noted}").into());
        }
        if noted > last + 1 {
            return Err(format!("invented: writer {writer} was at step {last}, the store has {noted}").into());
        }
        if noted == last && revision != at {
            return Err(format!("writer {writer}: step {last} was acknowledged at {at} and lies at {revision}").into());
        }
        if store.revision() < at.max(revision) {
            return Err(format!("the store is at {}, before {at} or {revision}", store.revision()).into());
        }
        for number in 1..=noted {
            expected.extend(step(writer, number));
        }
        steps += noted;
    }
    let mut present = 0;
    for (name, seed) in &expected {
        let found = store.snapshot().get(&key(name)).map(|entry| entry.value.clone());
        if found != seed.map(|seed| Bytes::from(value(seed))) {
            let length = found.map(|value| value.len());
            return Err(format!("torn or wrong: {name} has {length:?} bytes that are not the expected ones").into());
        }
        present += usize::from(seed.is_some());
    }
    let noted = (0..WRITERS).filter(|writer| progress(store, *writer).is_ok_and(|(noted, _)| noted > 0)).count();
    let objects = store.snapshot().count("power", None);
    if objects != present + noted {
        return Err(format!("invented: {objects} objects instead of {}", present + noted).into());
    }
    Ok(format!("good: {steps} steps, {objects} objects, revision {}", store.revision()))
}
