//! The engine on a disk: LMDB, laid out as a log of revisions with an index of keys.
//!
//! Invariant: a batch is one LMDB transaction with one sync; it is there after a crash or not at all. A failed sync is never
//! retried: the kernel has dropped the pages, and another sync would not write them. Read transactions last one batch of
//! records, so freed pages are reused and the file stays as large as its contents once were.

mod copy;
mod environment;
#[cfg(test)]
mod failure;
mod layout;
mod read;
mod reserve;

use super::ledger::{Ledger, Upkeep};
use super::*;
use crate::Str;
use environment::Environment;
use heed::types::Bytes as Raw;
use heed::{Database, PutFlags, RoTxn, RwTxn};
use layout::{At, FORMAT, Pointer, Record, damaged, index_key, numbers, parse_numbers};
use parking_lot::{Mutex, RwLock};
use reserve::Reserve;
use std::collections::HashMap;
use std::ops::Bound;
use std::path::Path;

/// Records that one step of compaction visits, beyond four for each written record.
const STEP: usize = 512;
/// Free disk space that a write needs beyond twice its own bytes, for index pages and compaction.
const HEADROOM: u64 = 1 << 20;

type Table = Database<'static, Raw, Raw>;

/// Options of the engine on disk.
#[derive(Clone, Copy, Debug)]
pub struct LmdbOptions {
    /// Whether commits are synced; off only to verify the tests.
    pub sync: bool,
    /// Bytes of address space to start with; grows by itself.
    pub initial_map: u64,
    /// Bytes of disk kept free for deletions when the disk is full.
    pub reserve: u64,
    /// A larger data file of which three quarters are free is written anew when it is opened.
    pub shrink: u64,
}

impl Default for LmdbOptions {
    fn default() -> LmdbOptions {
        LmdbOptions { sync: true, initial_map: 1 << 30, reserve: 16 << 20, shrink: 256 << 20 }
    }
}

#[derive(Clone, Copy)]
struct Tables {
    values: Table,
    index: Table,
    resources: Table,
    marks: Table,
    meta: Table,
}

/// Resource names and their numbers.
#[derive(Default)]
struct Resources {
    ids: HashMap<Str, u32>,
    names: HashMap<u32, Str>,
}

/// The state of the writer.
struct Writing {
    ledger: Ledger,
    reserve: Reserve,
    /// The failure after which nothing may be written.
    failed: Option<String>,
}

/// The engine on disk. Clones share the data.
#[derive(Clone)]
pub struct Lmdb {
    inner: Arc<Inner>,
}

struct Inner {
    environment: Environment,
    tables: Tables,
    resources: RwLock<Resources>,
    writing: Mutex<Writing>,
}

impl Lmdb {
    /// Opens or creates the data in this directory. Blocks for milliseconds.
    pub fn open(path: &Path, options: LmdbOptions) -> Result<Arc<Lmdb>, EngineError> {
        let environment = Environment::open(path, &options)?;
        match Inner::start_small(&environment, path, &options) {
            Ok((tables, resources, writing)) => {
                Ok(Arc::new(Lmdb { inner: Arc::new(Inner { environment, tables, resources, writing }) }))
            }
            Err(error) => {
                environment.close();
                Err(error)
            }
        }
    }
}

impl Tables {
    /// Bytes of the data file, and those in use.
    fn pages(
        &self,
        env: &heed::Env<heed::WithoutTls>,
        txn: &RoTxn<'_, heed::WithoutTls>,
    ) -> Result<(u64, u64), EngineError> {
        let Tables { values, index, resources, marks, meta } = *self;
        let mut used = env.unnamed_database_stat().non_free_page_size();
        for table in [values, index, resources, marks, meta] {
            used += table.stat(txn)?.non_free_page_size();
        }
        Ok((env.real_disk_size()?, used as u64))
    }
}

/// An engine's parts that are read from its data.
type Parts = (Tables, RwLock<Resources>, Mutex<Writing>);

impl Inner {
    /// Starts, and once more with a smaller file if most of it is free.
    fn start_small(environment: &Environment, path: &Path, options: &LmdbOptions) -> Result<Parts, EngineError> {
        let parts = Inner::start(environment, path, options)?;
        let (file, used) = environment.read(|env, txn| parts.0.pages(env, txn))?;
        if file <= options.shrink || used > file / 4 {
            return Ok(parts);
        }
        environment.rewrite(options)?;
        Inner::start(environment, path, options)
    }

    fn start(environment: &Environment, path: &Path, options: &LmdbOptions) -> Result<Parts, EngineError> {
        // Checks the format first: a newer release may have changed everything but this record.
        let mut found = None;
        if let Some(meta) = environment.table("meta")? {
            found = environment.read(|_, txn| meta.get(txn, b"format")?.map(parse_numbers::<1>).transpose())?;
        }
        let found = found.map(|[format]| format as u32);
        if let Some(found) = found.filter(|found| *found > FORMAT) {
            return Err(EngineError::NewerFormat { found, known: FORMAT });
        }
        let mut reserve = Reserve::new(path, options.reserve);
        let create = || {
            let [values, index, resources, marks, meta] =
                environment.tables(["values", "index", "resources", "marks", "meta"])?;
            let tables = Tables { values, index, resources, marks, meta };
            if found.is_none() {
                environment.write(|_, txn| {
                    put_state(&tables, txn, &Ledger::new())?;
                    meta.put(txn, b"format", &numbers([u64::from(FORMAT)]))
                })?;
            }
            Ok(tables)
        };
        let tables = match create() {
            Err(error) if is_no_space(&error) && reserve.release() => create()?,
            other => other?,
        };
        let (resources, ledger) =
            environment.read(|_, txn| Ok((read_resources(&tables, txn)?, read_ledger(&tables, txn)?)))?;
        Ok((tables, RwLock::new(resources), Mutex::new(Writing { ledger, reserve, failed: None })))
    }

    /// Numbers for resources that have none yet, written with the batch.
    fn number(&self, batch: &[Transaction]) -> Vec<(Str, u32)> {
        let resources = self.resources.read();
        let mut new: Vec<(Str, u32)> = Vec::new();
        for write in batch.iter().flat_map(|transaction| &transaction.writes) {
            let name = &write.key.resource;
            if !resources.ids.contains_key(name) && !new.iter().any(|(known, _)| known == name) {
                new.push((name.clone(), (resources.ids.len() + new.len()) as u32));
            }
        }
        new
    }

    fn append(
        &self,
        txn: &mut RwTxn<'_>,
        ids: &HashMap<Str, u32>,
        transaction: &Transaction,
        ledger: &mut Ledger,
    ) -> heed::Result<()> {
        let (mut record, mut key) = (Vec::new(), Vec::new());
        for (position, write) in transaction.writes.iter().enumerate() {
            let at = At { revision: transaction.revision, position: position as u32 };
            let resource = ids.get(&write.key.resource).copied().unwrap_or(u32::MAX);
            let (namespace, name) = (&*write.key.namespace, &*write.key.name);
            let mut previous = None;
            if write.previous != 0 {
                index_key(&mut key, resource, namespace, name, write.previous);
                let pointer = self.tables.index.get(txn, &key)?.map(Pointer::parse);
                let pointer = pointer.unwrap_or_else(|| Err(damaged("a version without index"))).map_err(as_heed)?;
                previous = Some((At { revision: write.previous, position: pointer.position }, pointer.size));
                ledger.live = ledger.live.saturating_sub(u64::from(pointer.size));
            }
            let value = write.value.as_deref();
            let new = Record { resource, namespace, name, value, previous };
            new.write(&mut record);
            self.tables.values.put_with_flags(txn, PutFlags::APPEND, &at.key(), &record)?;
            index_key(&mut key, resource, namespace, name, at.revision);
            let pointer = Pointer { position: at.position, size: new.size(), deleted: value.is_none() };
            self.tables.index.put(txn, &key, &pointer.bytes())?;
            ledger.total += u64::from(pointer.size);
            if !pointer.deleted {
                ledger.live += u64::from(pointer.size);
            }
        }
        Ok(())
    }

    /// Removes the versions that the next revision replaced. Returns the number of visited records.
    fn compact_one(&self, txn: &mut RwTxn<'_>, ledger: &mut Ledger) -> heed::Result<usize> {
        let revision = ledger.compacted + 1;
        let first = At { revision, position: 0 }.key();
        let end = At { revision: revision + 1, position: 0 }.key();
        let mut gone: Vec<(At, Vec<u8>, u32)> = Vec::new();
        let mut looked = 1;
        for item in self.tables.values.range(txn, &(Bound::Included(&first[..]), Bound::Excluded(&end[..])))? {
            let (key, bytes) = item?;
            let (at, record) = (At::parse(key).map_err(as_heed)?, Record::parse(bytes).map_err(as_heed)?);
            looked += 1;
            let mut forget = |at: At, size| {
                let mut key = Vec::new();
                index_key(&mut key, record.resource, record.namespace, record.name, at.revision);
                gone.push((at, key, size));
            };
            if let Some((previous, size)) = record.previous {
                forget(previous, size);
            }
            if record.value.is_none() {
                forget(at, record.size());
            }
        }
        for (at, key, size) in gone {
            self.tables.values.delete(txn, &at.key())?;
            self.tables.index.delete(txn, &key)?;
            ledger.total = ledger.total.saturating_sub(u64::from(size));
        }
        ledger.compacted = revision;
        Ok(looked)
    }

    /// Whether there is space for puts: the reserve, or as many free pages.
    fn has_room(&self, reserve: &mut Reserve, bytes: u64) -> Result<bool, EngineError> {
        if reserve.held() || reserve.restore() {
            return Ok(true);
        }
        let (file, used) = self.environment.read(|env, txn| self.tables.pages(env, txn))?;
        Ok(file.saturating_sub(used) > reserve.size() + 4 * bytes)
    }

    fn write_once(&self, batch: &[Transaction], upkeep: &Upkeep, ledger: &Ledger) -> heed::Result<Ledger> {
        let new = self.number(batch);
        let written = self.environment.write(|_, txn| {
            let mut ledger = ledger.clone();
            let mut ids = self.resources.read().ids.clone();
            for (name, id) in &new {
                self.tables.resources.put(txn, name.as_bytes(), &id.to_le_bytes())?;
                ids.insert(name.clone(), *id);
            }
            let mut budget = STEP;
            for transaction in batch {
                self.append(txn, &ids, transaction, &mut ledger)?;
                if let Some((revision, time)) = ledger.wrote(transaction.revision, upkeep.now) {
                    self.tables.marks.put(txn, &revision.to_be_bytes(), &numbers([time]))?;
                }
                budget += 4 * transaction.writes.len();
            }
            while budget > 0 && ledger.is_due(upkeep) {
                budget = budget.saturating_sub(self.compact_one(txn, &mut ledger)?);
            }
            for revision in ledger.passed_marks() {
                self.tables.marks.delete(txn, &revision.to_be_bytes())?;
            }
            put_state(&self.tables, txn, &ledger)?;
            Ok(ledger)
        })?;
        let mut resources = self.resources.write();
        for (name, id) in new {
            resources.names.insert(id, name.clone());
            resources.ids.insert(name, id);
        }
        Ok(written)
    }
}

#[async_trait]
impl Engine for Lmdb {
    fn capabilities(&self) -> Capabilities {
        Capabilities { history: true, max_ops: 100_000, max_bytes: 256 << 20 }
    }

    async fn load(&self, decode: Decode) -> Result<Loaded, EngineError> {
        let this = self.clone();
        blocking(move || this.inner.load_blocking(&decode)).await
    }

    async fn visit(&self, resource: &str, visit: Visit) -> Result<(), EngineError> {
        let (this, resource) = (self.clone(), resource.to_owned());
        blocking(move || this.inner.visit_blocking(&resource, &visit)).await
    }

    async fn changes(
        &self,
        scope: Option<&Scope>,
        after: u64,
        upto: u64,
        limit: usize,
    ) -> Result<Changes, EngineError> {
        let (this, scope) = (self.clone(), scope.cloned());
        blocking(move || this.inner.changes_blocking(scope.as_ref(), after, upto, limit)).await
    }

    fn usage(&self) -> Usage {
        let (live, history, full) = {
            let writing = self.inner.writing.lock();
            (writing.ledger.live, writing.ledger.history(), !writing.reserve.held())
        };
        let file = std::fs::metadata(self.inner.environment.path().join("data.mdb")).map_or(0, |data| data.len());
        Usage { live, history, file, full }
    }

    fn role(self: Arc<Self>) -> Role {
        Role::Sole(self)
    }

    async fn close(&self) {
        let this = self.clone();
        let _ = tokio::task::spawn_blocking(move || this.inner.environment.close()).await;
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, EngineError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(EngineError::Backend(error.to_string())))
}

impl SoleWriter for Lmdb {
    fn waits(&self) -> bool {
        true
    }

    fn write(&self, batch: &[Transaction], upkeep: &Upkeep) -> Result<Written, WriteError> {
        let mut writing = self.inner.writing.lock();
        let Writing { ledger, reserve, failed } = &mut *writing;
        if let Some(why) = failed {
            return Err(WriteError::Fatal(EngineError::Failed(why.clone())));
        }
        let mut upkeep = *upkeep;
        let puts = batch.iter().flat_map(|transaction| &transaction.writes).filter_map(|write| write.value.as_ref());
        let bytes: u64 = puts.map(|value| value.len() as u64 + 1).sum();
        // The last write before the disk is full would be cut short, and that looks like a failed device: stop before.
        if reserve.held() && bytes > 0 && reserve.disk_free().is_some_and(|free| free < 2 * bytes + HEADROOM) {
            reserve.release();
        }
        if !reserve.held() {
            if bytes > 0 && !self.inner.has_room(reserve, bytes)? {
                return Err(WriteError::NoSpace);
            }
            if !reserve.held() {
                // Space is now more important than history.
                upkeep.compact_to = u64::MAX;
            }
        }
        if batch.is_empty() && !ledger.is_due(&upkeep) {
            return Ok(Written { compacted: ledger.compacted, behind: false });
        }
        match self.inner.write_once(batch, &upkeep, ledger) {
            Ok(written) => *ledger = written,
            Err(error) if is_no_space(&error) => {
                reserve.release();
                return Err(WriteError::NoSpace);
            }
            Err(error) => {
                *failed = Some(error.to_string());
                return Err(WriteError::Fatal(error.into()));
            }
        }
        Ok(Written { compacted: ledger.compacted, behind: ledger.is_due(&upkeep) })
    }
}

fn put_state(tables: &Tables, txn: &mut RwTxn<'_>, ledger: &Ledger) -> heed::Result<()> {
    let state = numbers([ledger.revision, ledger.compacted, ledger.total, ledger.live]);
    tables.meta.put(txn, b"state", &state)
}

/// Revision, compacted revision, total and live bytes.
fn read_ledger_state(tables: &Tables, txn: &RoTxn<'_, heed::WithoutTls>) -> Result<(u64, u64, u64, u64), EngineError> {
    let state = tables.meta.get(txn, b"state")?.ok_or_else(|| damaged("no state in meta"))?;
    let [revision, compacted, total, live] = parse_numbers(state)?;
    Ok((revision, compacted, total, live))
}

fn read_ledger(tables: &Tables, txn: &RoTxn<'_, heed::WithoutTls>) -> Result<Ledger, EngineError> {
    let mut marks = Vec::new();
    for item in tables.marks.iter(txn)? {
        let (revision, time) = item?;
        let revision = revision.try_into().map_err(|_| damaged("a key of marks"))?;
        let [time] = parse_numbers(time)?;
        marks.push((u64::from_be_bytes(revision), time));
    }
    let (revision, compacted, total, live) = read_ledger_state(tables, txn)?;
    Ok(Ledger::restore(revision, compacted, total, live, marks))
}

fn read_resources(tables: &Tables, txn: &RoTxn<'_, heed::WithoutTls>) -> Result<Resources, EngineError> {
    let mut resources = Resources::default();
    for item in tables.resources.iter(txn)? {
        let (name, id) = item?;
        let name: Str = std::str::from_utf8(name).map_err(|_| damaged("a resource name"))?.into();
        let id = u32::from_le_bytes(id.try_into().map_err(|_| damaged("a resource number"))?);
        resources.names.insert(id, name.clone());
        resources.ids.insert(name, id);
    }
    Ok(resources)
}

/// Damage found within a write transaction, as an error of heed.
fn as_heed(error: EngineError) -> heed::Error {
    heed::Error::Decoding(Box::new(error))
}

fn os_code(error: &heed::Error) -> Option<i32> {
    match error {
        heed::Error::Io(error) => error.raw_os_error(),
        heed::Error::Mdb(heed::MdbError::Other(code)) => Some(*code),
        _ => None,
    }
}

/// The transaction was aborted before its root was written; nothing of it counts, and later ones write all their pages anew.
fn is_no_space(error: &heed::Error) -> bool {
    matches!(os_code(error), Some(code) if code == nix::libc::ENOSPC || code == nix::libc::EDQUOT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_a_newer_release_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Lmdb::open(directory.path(), LmdbOptions { reserve: 0, ..LmdbOptions::default() });
        let engine = open().unwrap();
        let meta = engine.inner.tables.meta;
        let newer = numbers([u64::from(FORMAT) + 1]);
        engine.inner.environment.write(|_, txn| meta.put(txn, b"format", &newer)).unwrap();
        engine.inner.environment.close();
        drop(engine);
        let refused = open().map(drop);
        assert!(matches!(refused, Err(EngineError::NewerFormat { found: 2, known: 1 })), "{refused:?}");
    }

    /// A batch larger than the map makes the map grow and is written whole.
    #[test]
    fn the_map_grows_under_a_batch() {
        let directory = tempfile::tempdir().unwrap();
        let options = LmdbOptions { sync: false, initial_map: 1 << 20, reserve: 0, shrink: u64::MAX };
        let engine = Lmdb::open(directory.path(), options).unwrap();
        let value = Some(Bytes::from(vec![7; 100_000]));
        let batch: Vec<Transaction> = (2..102)
            .map(|revision| {
                let key = Key::new("things", "", &revision.to_string());
                Transaction { revision, writes: vec![Write { key, value: value.clone(), previous: 0 }] }
            })
            .collect();
        let upkeep = Upkeep { now: 0, retention: crate::Retention::default(), compact_to: 0 };
        engine.write(&batch, &upkeep).unwrap();
        let (mut revisions, mut through, mut reads) = (Vec::new(), 1, 0);
        while through < 101 {
            let changes = engine.inner.changes_blocking(None, through, 101, 1_000).unwrap();
            revisions.extend(changes.changes.iter().map(|change| change.revision));
            (through, reads) = (changes.through, reads + 1);
        }
        assert_eq!(revisions, (2..102).collect::<Vec<u64>>());
        assert!(reads > 1, "a read transaction is short");
    }
}
