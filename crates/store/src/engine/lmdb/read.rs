//! Reads: the newest state when the store opens, history, and stored forms.
//!
//! Invariant: a read transaction lasts one batch of records, except before the first write.

use super::layout::{At, Pointer, Record, damaged, parse_index_prefix, split_index_key};
use super::{Inner, read_ledger, read_ledger_state};
use crate::Str;
use crate::engine::*;
use heed::RoTxn;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of values read in one transaction.
const READ_BYTES: usize = 4 << 20;
/// Records shown in one transaction.
const VISIT: usize = 512;
/// Records that a thread loads at a time.
const SHARE: usize = 1_024;

/// The loaded entries of one share, with their numbers.
struct Part {
    entries: Vec<(u32, Arc<Entry>)>,
    damaged: Vec<Damaged>,
}

impl Inner {
    pub(super) fn load_blocking(&self, decode: &Decode) -> Result<Loaded, EngineError> {
        let (ledger, newest) =
            self.environment.read(|_, txn| Ok((read_ledger(&self.tables, txn)?, self.newest(txn, None)?)))?;
        // Values are read in the order of their revisions, which is nearly that of the file: much faster from a cold disk, and by half from a
        // warm one.
        let mut order: Vec<u32> = (0..newest.len() as u32).collect();
        order.sort_unstable_by_key(|number| newest[*number as usize].1.key());
        // Shares are small, so that no thread waits long for another at the end.
        let shares: Vec<&[u32]> = order.chunks(SHARE).collect();
        let next = AtomicUsize::new(0);
        let work = || -> Result<Vec<Part>, EngineError> {
            let mut parts = Vec::new();
            while let Some(share) = shares.get(next.fetch_add(1, Ordering::Relaxed)) {
                parts.push(self.load_part(share, &newest, decode)?);
            }
            Ok(parts)
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(shares.len());
        let parts: Result<Vec<Vec<Part>>, EngineError> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let panicked = |_| Err(damaged("a thread that loaded values panicked"));
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(panicked)).collect()
        });
        let mut places: Vec<Option<Arc<Entry>>> = vec![None; newest.len()];
        let mut damaged = Vec::new();
        for part in parts?.into_iter().flatten() {
            part.entries.into_iter().for_each(|(number, entry)| places[number as usize] = Some(entry));
            damaged.extend(part.damaged);
        }
        let mut entries: Vec<Arc<Entry>> = places.into_iter().flatten().collect();
        // The index is ordered by the numbers of resources; the order by their names is what was promised.
        entries.sort_by(|a, b| a.key.resource.cmp(&b.key.resource));
        Ok(Loaded { revision: ledger.revision, compacted: ledger.compacted, entries, damaged })
    }

    /// The newest version of every key (of one resource or all) that is not deleted.
    fn newest(&self, txn: &RoTxn<'_, heed::WithoutTls>, only: Option<u32>) -> Result<Vec<(Key, At)>, EngineError> {
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
        let ends = only.map(|id| (id.to_be_bytes(), id.saturating_add(1).to_be_bytes()));
        let range = match &ends {
            None => (Bound::Unbounded, Bound::Unbounded),
            Some((first, end)) => (Bound::Included(&first[..]), Bound::Excluded(&end[..])),
        };
        for item in self.tables.index.range(txn, &range)? {
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

    /// Some of the newest versions, by their numbers.
    fn load_part(&self, part: &[u32], newest: &[(Key, At)], decode: &Decode) -> Result<Part, EngineError> {
        self.environment.read(|_, txn| {
            let mut loaded = Part { entries: Vec::with_capacity(part.len()), damaged: Vec::new() };
            for number in part {
                let (key, at) = &newest[*number as usize];
                let bytes =
                    self.tables.values.get(txn, &at.key())?.ok_or_else(|| damaged("a version without value"))?;
                let value = Record::parse(bytes)?.value.ok_or_else(|| damaged("a deleted newest version"))?;
                match decode(key, at.revision, value) {
                    Ok(entry) => loaded.entries.push((*number, entry)),
                    Err(error) => loaded.damaged.push(Damaged::new(key, at.revision, error)?),
                }
            }
            Ok(loaded)
        })
    }

    pub(super) fn visit_blocking(&self, resource: &str, visit: &Visit) -> Result<(), EngineError> {
        let Some(id) = self.resources.read().ids.get(resource).copied() else { return Ok(()) };
        let newest = self.environment.read(|_, txn| self.newest(txn, Some(id)))?;
        for part in newest.chunks(VISIT) {
            self.environment.read(|_, txn| {
                for (key, at) in part {
                    // Written again since, and already compacted.
                    let Some(bytes) = self.tables.values.get(txn, &at.key())? else { continue };
                    if let Some(value) = Record::parse(bytes)?.value {
                        visit(key, at.revision, value);
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    pub(super) fn changes_blocking(
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
}
