//! The engine on a disk: LMDB, laid out as a log of revisions with an index of keys.
//!
//! Invariant: a batch is one LMDB transaction with one sync; it is there after a crash or not at all. A failed sync is never
//! retried: what the kernel has dropped cannot be written again by asking once more. Read transactions last one batch of
//! records, so freed pages are reused and the file stays as large as its contents once were.

mod environment;
mod layout;
mod reserve;

use super::ledger::{Ledger, Upkeep};
use super::*;
use crate::Str;
use environment::Environment;
use heed::types::Bytes as Raw;
use heed::{Database, PutFlags, RoTxn, RwTxn};
use layout::{
    At, FORMAT, Pointer, Record, damaged, index_key, numbers, parse_index_prefix, parse_numbers, split_index_key,
};
use parking_lot::{Mutex, RwLock};
use reserve::Reserve;
use std::collections::HashMap;
use std::ops::Bound;
use std::path::Path;

/// Records that one step of compaction looks at, beyond four for each that was written.
const STEP: usize = 512;
/// Bytes of values read in one transaction.
const READ_BYTES: usize = 4 << 20;
/// With less free than this, a write that was cut short was cut by the full disk.
const NEARLY_FULL: u64 = 1 << 20;

type Table = Database<'static, Raw, Raw>;

#[derive(Clone, Copy, Debug)]
pub struct LmdbOptions {
    /// Off only to show that the tests notice.
    pub sync: bool,
    /// Bytes of address space to start with; grows by itself.
    pub initial_map: u64,
    /// Bytes of disk kept free for deletions when the disk is full.
    pub reserve: u64,
}

impl Default for LmdbOptions {
    fn default() -> LmdbOptions {
        LmdbOptions { sync: true, initial_map: 1 << 30, reserve: 16 << 20 }
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

/// What only the writer touches.
struct Writing {
    ledger: Ledger,
    reserve: Reserve,
}

/// Clones are the same data.
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
        match Inner::start(&environment, path, &options) {
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

impl Inner {
    fn start(
        environment: &Environment,
        path: &Path,
        options: &LmdbOptions,
    ) -> Result<(Tables, RwLock<Resources>, Mutex<Writing>), EngineError> {
        // Looks before it touches anything: a newer release may have changed everything but this record.
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
        Ok((tables, RwLock::new(resources), Mutex::new(Writing { ledger, reserve })))
    }

    fn load_blocking(&self, decode: &Decode) -> Result<Loaded, EngineError> {
        let (ledger, newest) =
            self.environment.read(|_, txn| Ok((read_ledger(&self.tables, txn)?, self.newest(txn)?)))?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = newest.len().div_ceil(threads).max(1_024);
        let parts: Vec<Result<Vec<Arc<Entry>>, EngineError>> = std::thread::scope(|scope| {
            let workers: Vec<_> =
                newest.chunks(share).map(|part| scope.spawn(move || self.load_part(part, decode))).collect();
            let panicked = |_| Err(damaged("a thread that loaded values panicked"));
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(panicked)).collect()
        });
        let mut entries = Vec::with_capacity(newest.len());
        for part in parts {
            entries.extend(part?);
        }
        // The index is ordered by the numbers of resources; the order by their names is what was promised.
        entries.sort_by(|a, b| a.key.resource.cmp(&b.key.resource));
        Ok(Loaded { revision: ledger.revision, compacted: ledger.compacted, entries })
    }

    /// The newest version of every key that is not deleted.
    fn newest(&self, txn: &RoTxn<'_, heed::WithoutTls>) -> Result<Vec<(Key, At)>, EngineError> {
        let resources = self.resources.read();
        let mut newest = Vec::new();
        let mut last: Option<(&[u8], u64, Pointer)> = None;
        let mut namespace: Str = "".into();
        let mut add = |(prefix, revision, pointer): (&[u8], u64, Pointer)| {
            if !pointer.deleted {
                let (resource, ns, name) = parse_index_prefix(prefix)?;
                let resource = resources.names.get(&resource).ok_or_else(|| damaged("an unknown resource"))?.clone();
                if *namespace != *ns {
                    namespace = ns.into();
                }
                let key = Key { resource, namespace: namespace.clone(), name: name.into() };
                newest.push((key, At { revision, position: pointer.position }));
            }
            Ok::<(), EngineError>(())
        };
        for item in self.tables.index.iter(txn)? {
            let (key, pointer) = item?;
            let (prefix, revision) = split_index_key(key)?;
            if let Some(before) = last.filter(|before| before.0 != prefix) {
                add(before)?;
            }
            last = Some((prefix, revision, Pointer::parse(pointer)?));
        }
        if let Some(before) = last {
            add(before)?;
        }
        Ok(newest)
    }

    fn load_part(&self, part: &[(Key, At)], decode: &Decode) -> Result<Vec<Arc<Entry>>, EngineError> {
        self.environment.read(|_, txn| {
            let mut entries = Vec::with_capacity(part.len());
            for (key, at) in part {
                let bytes =
                    self.tables.values.get(txn, &at.key())?.ok_or_else(|| damaged("a version without value"))?;
                let value = Record::parse(bytes)?.value.ok_or_else(|| damaged("a deleted newest version"))?;
                entries.push(decode(key, at.revision, value)?);
            }
            Ok(entries)
        })
    }

    fn changes_blocking(
        &self,
        scope: Option<&Scope>,
        after: u64,
        upto: u64,
        limit: usize,
    ) -> Result<Changes, EngineError> {
        let resources = self.resources.read();
        let only = match scope {
            None => None,
            Some(scope) => match resources.ids.get(&scope.resource) {
                Some(id) => Some((*id, scope)),
                // Never written: no record can match, but the history must still be there.
                None => Some((u32::MAX, scope)),
            },
        };
        self.environment.read(|_, txn| {
            let compacted = read_ledger_state(&self.tables, txn)?.1;
            if after < compacted {
                return Err(EngineError::Expired { oldest: compacted });
            }
            let mut found = Changes { changes: Vec::new(), through: upto.max(after) };
            let (mut last, mut bytes, mut looked) = (after, 0, 0);
            let first = At { revision: after + 1, position: 0 }.key();
            let end = At { revision: upto.saturating_add(1), position: 0 }.key();
            for item in self.tables.values.range(txn, &(Bound::Included(&first[..]), Bound::Excluded(&end[..])))? {
                let (key, record) = item?;
                let at = At::parse(key)?;
                if (looked >= limit || bytes > READ_BYTES) && at.revision > last {
                    found.through = last;
                    break;
                }
                (last, looked) = (at.revision, looked + 1);
                let record = Record::parse(record)?;
                if only.is_some_and(|(id, scope)| {
                    id != record.resource || !scope.contains_place(record.namespace, record.name)
                }) {
                    continue;
                }
                let resource = resources.names.get(&record.resource).ok_or_else(|| damaged("an unknown resource"))?;
                let key =
                    Key { resource: resource.clone(), namespace: record.namespace.into(), name: record.name.into() };
                let mut previous = None;
                if let Some((at, _)) = record.previous {
                    let bytes = self.tables.values.get(txn, &at.key())?.ok_or_else(|| damaged("a lost version"))?;
                    let value = Record::parse(bytes)?.value.map(Bytes::copy_from_slice);
                    previous = value.map(|value| Version { revision: at.revision, value });
                }
                let value = record.value.map(Bytes::copy_from_slice);
                bytes += value.as_ref().map_or(0, Bytes::len) + previous.as_ref().map_or(0, |it| it.value.len());
                found.changes.push(RawChange { revision: at.revision, key, value, previous });
            }
            Ok(found)
        })
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

    /// Forgets what the next revision replaced; the number of records looked at.
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

    /// Whether there is room for puts: the reserve, or as many free pages.
    fn has_room(&self, reserve: &mut Reserve, bytes: u64) -> Result<bool, EngineError> {
        if reserve.held() || reserve.restore() {
            return Ok(true);
        }
        let free = self.environment.read(|env, txn| {
            let Tables { values, index, resources, marks, meta } = self.tables;
            let mut used = env.unnamed_database_stat().non_free_page_size();
            for table in [values, index, resources, marks, meta] {
                used += table.stat(txn)?.non_free_page_size();
            }
            Ok(env.real_disk_size()?.saturating_sub(used as u64))
        })?;
        Ok(free > reserve.size() + 4 * bytes)
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
            while budget > 0 && ledger.wants(upkeep) {
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
        let Writing { ledger, reserve } = &mut *writing;
        let mut upkeep = *upkeep;
        if !reserve.held() {
            let puts =
                batch.iter().flat_map(|transaction| &transaction.writes).filter_map(|write| write.value.as_ref());
            let bytes: u64 = puts.map(|value| value.len() as u64 + 1).sum();
            if bytes > 0 && !self.inner.has_room(reserve, bytes)? {
                return Err(WriteError::NoSpace);
            }
            if !reserve.held() {
                // Room is worth more than history now.
                upkeep.compact_to = u64::MAX;
            }
        }
        if batch.is_empty() && !ledger.wants(&upkeep) {
            return Ok(Written { compacted: ledger.compacted, behind: false });
        }
        match self.inner.write_once(batch, &upkeep, ledger) {
            Ok(written) => *ledger = written,
            Err(error)
                if is_no_space(&error)
                    || is_short_write(&error) && reserve.disk_free().is_some_and(|free| free < NEARLY_FULL) =>
            {
                reserve.release();
                return Err(WriteError::NoSpace);
            }
            Err(error) => return Err(WriteError::Fatal(error.into())),
        }
        Ok(Written { compacted: ledger.compacted, behind: ledger.wants(&upkeep) })
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

/// Damage found within a write transaction, which speaks heed's errors.
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

/// LMDB reports a write that was cut short, as the last one on a full disk may be, like a failed device. On a disk that is
/// not nearly full it is taken for the latter.
fn is_short_write(error: &heed::Error) -> bool {
    os_code(error) == Some(nix::libc::EIO)
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
        let options = LmdbOptions { sync: false, initial_map: 1 << 20, reserve: 0 };
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
