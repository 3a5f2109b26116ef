//! Key rotation while the server runs: applies new rules, then rewrites all records that are stored in another form.
//!
//! Invariant: rejects rules that lack a key which a record in the store needs, or which a write under way may use.

use crate::known::Known;
use crate::source::Encryption;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use store::{CommitError, Key, SnapshotError, Store, Str};
use supervisor::Shutdown;

/// Objects that are rewritten between two log lines of progress.
const STEP: usize = 1_000;

/// The error of applying new rules or rewriting records.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error(transparent)]
    Source(#[from] crate::Error),
    #[error("the key {0:?} is still used for writing: put the new key before it, and remove it later")]
    InUse(String),
    #[error("{count} records need what is missing; {key}: {why}")]
    Needed { count: usize, key: Key, why: String },
    #[error("reading the store: {0}")]
    Read(#[from] SnapshotError),
    #[error("writing: {0}")]
    Write(#[from] CommitError),
}

impl Encryption {
    /// Rewrites values that the configuration would now encrypt otherwise, and checks for a new configuration every `every`, until shutdown.
    pub async fn run(self: Arc<Self>, store: Store, every: Duration, shutdown: Shutdown) {
        let mut reported = String::new();
        while store.is_alive() {
            for resource in self.take_stale() {
                if let Err(error) = rewrite(&store, &resource).await
                    && store.is_alive()
                {
                    tracing::error!("encrypting {resource} again: {error}");
                    self.note_stale(&resource);
                }
            }
            if shutdown.race(tokio::time::sleep(every)).await.is_none() {
                return;
            }
            match self.reload(&store).await {
                Ok(()) => reported.clear(),
                // Reports the same problem only once.
                Err(error) if error.to_string() == reported => {}
                Err(error) => {
                    reported = error.to_string();
                    tracing::error!(
                        "new encryption configuration not applied: {reported}; the previous one stays in force"
                    );
                }
            }
        }
    }

    async fn reload(&self, store: &Store) -> Result<(), Problem> {
        let Some((text, new)) = self.changed()? else { return Ok(()) };
        let old = self.known();
        let resources: Vec<Str> = store.snapshot().resources().cloned().collect();
        for resource in &resources {
            if let Some(writing) = old.writing(resource)
                && !new.keys().any(|key| key.prefix == writing.prefix)
            {
                return Err(Problem::InUse(writing.name.clone()));
            }
            if old.writing(resource).is_none() && !new.reads_plain(resource) {
                let key = Key::new(resource, "", "");
                let why = "they are written as plain text now, and the new providers do not include identity";
                return Err(Problem::Needed { count: 0, key, why: why.into() });
            }
        }
        let new = Arc::new(new);
        let mut changed = Vec::new();
        for resource in resources {
            let named = |known: &Known| !known.rules.providers(&resource).is_empty();
            if !named(&old) && !named(&new) {
                continue;
            }
            let needed = Arc::new(Mutex::new((0, None)));
            let (found, rules) = (needed.clone(), new.clone());
            let look = move |key: &Key, _: u64, stored: &[u8]| {
                if let Some(why) = rules.missing(&key.resource, stored) {
                    let mut found = found.lock();
                    found.0 += 1;
                    found.1.get_or_insert((key.clone(), why));
                }
            };
            store.visit(&resource, Arc::new(look)).await?;
            let (count, first) = std::mem::take(&mut *needed.lock());
            if let Some((key, why)) = first {
                return Err(Problem::Needed { count, key, why });
            }
            changed.push(resource);
        }
        let Some(new) = Arc::into_inner(new) else { unreachable!("those who looked at the records have dropped it") };
        self.replace(text, new);
        tracing::info!("the configuration of encryption was changed");
        changed.iter().for_each(|resource| self.note_stale(resource));
        // Before the next round of waiting.
        for resource in self.take_stale() {
            if let Err(error) = rewrite(store, &resource).await {
                self.note_stale(&resource);
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Rewrites records of a resource until all are in the current form.
async fn rewrite(store: &Store, resource: &Str) -> Result<(), Problem> {
    let mut done = 0;
    loop {
        let stale = store.stale(resource).await?;
        if stale.is_empty() {
            if done > 0 {
                tracing::info!("{resource}: all records have the present key; {done} were written again");
            }
            return Ok(());
        }
        let (before, total) = (done, done + stale.len());
        for part in stale.chunks(STEP) {
            done += store.reseal(part).await?;
            tracing::info!("{resource}: {done} of {total} records were written again");
        }
        let snapshot = store.snapshot();
        if done == before && stale.iter().all(|(key, _)| snapshot.damaged(key).is_some()) {
            tracing::warn!("{resource}: {} records do not open and stay as they are", stale.len());
            return Ok(());
        }
    }
}
