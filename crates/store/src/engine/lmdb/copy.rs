//! Backups: a new data directory with the newest state.
//!
//! Invariant: the directory appears complete or not at all. It holds the newest state only; its history starts at its revision.

use super::environment::{Environment, sync_directory};
use super::{Lmdb, LmdbOptions, put_state};
use crate::engine::{EngineError, SoleWriter, Transaction, Upkeep, Write, WriteError};
use crate::options::Retention;
use crate::{Key, Str};
use bytes::Bytes;
use std::collections::HashMap;
use std::path::Path;

/// Bytes and revisions written in one transaction.
const BATCH_BYTES: usize = 8 << 20;
const BATCH: usize = 4_096;

/// Nothing is compacted while a copy is written.
const UPKEEP: Upkeep = Upkeep {
    now: 0,
    retention: Retention { age_ms: u64::MAX, bytes: u64::MAX, live_percent: 0, log_events: 0, log_bytes: 0 },
    compact_to: 0,
};

impl Lmdb {
    /// Copies the newest state of a data directory into a new one. Another process may use the first one, and write it.
    ///
    /// # Errors
    /// There is no data, or the new directory exists.
    pub fn copy(from: &Path, to: &Path) -> Result<(), EngineError> {
        Environment::copy(from, to)
    }

    /// Makes the directory, which must not exist, of sealed objects in the order of their revisions, as of a revision that is
    /// not below theirs. What [`Lmdb::open`] then reads are the same keys, values and revisions.
    pub fn create(
        directory: &Path,
        revision: u64,
        objects: impl Iterator<Item = Result<(Key, u64, Bytes), EngineError>>,
    ) -> Result<(), EngineError> {
        let failed = |source| EngineError::File { path: directory.to_path_buf(), source };
        if directory.exists() {
            return Err(failed(std::io::ErrorKind::AlreadyExists.into()));
        }
        let mut partial = directory.as_os_str().to_owned();
        partial.push(".partial");
        let partial = Path::new(&partial);
        if partial.exists() {
            std::fs::remove_dir_all(partial).map_err(failed)?;
        }
        let engine = Lmdb::open(partial, LmdbOptions { sync: false, reserve: 0, ..LmdbOptions::default() })?;
        let filled = engine.fill(revision, objects);
        engine.inner.environment.close();
        if let Err(error) = filled {
            let _ = std::fs::remove_dir_all(partial);
            return Err(error);
        }
        sync_directory(partial)?;
        std::fs::rename(partial, directory).map_err(failed)?;
        match directory.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => sync_directory(parent),
            None => sync_directory(Path::new(".")),
        }
    }

    fn fill(
        &self,
        revision: u64,
        objects: impl Iterator<Item = Result<(Key, u64, Bytes), EngineError>>,
    ) -> Result<(), EngineError> {
        let (mut batch, mut bytes) = (Vec::<Transaction>::new(), 0);
        // One allocation per name, not per object.
        let mut names: HashMap<Str, Str> = HashMap::new();
        for object in objects {
            let (mut key, at, value) = object?;
            key.resource = names.entry(key.resource.clone()).or_insert(key.resource).clone();
            let same = batch.last().is_some_and(|last| last.revision == at);
            if !same && (bytes > BATCH_BYTES || batch.len() >= BATCH) {
                self.write_all(&std::mem::take(&mut batch))?;
                bytes = 0;
            }
            bytes += value.len();
            let write = Write { key, value: Some(value), previous: 0 };
            match batch.last_mut().filter(|_| same) {
                Some(last) => last.writes.push(write),
                None => batch.push(Transaction { revision: at, writes: vec![write] }),
            }
        }
        self.write_all(&batch)?;
        let mut writing = self.inner.writing.lock();
        let tables = self.inner.tables;
        writing.ledger.revision = revision;
        writing.ledger.compacted = revision;
        self.inner.environment.write(|_, txn| {
            tables.marks.clear(txn)?;
            put_state(&tables, txn, &writing.ledger)
        })?;
        self.inner.environment.sync()
    }

    fn write_all(&self, batch: &[Transaction]) -> Result<(), EngineError> {
        match self.write(batch, &UPKEEP) {
            Ok(_) => Ok(()),
            Err(WriteError::Fatal(error)) => Err(error),
            Err(error) => Err(EngineError::Failed(error.to_string())),
        }
    }
}
