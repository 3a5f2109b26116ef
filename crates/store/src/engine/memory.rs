//! An engine in memory, with the same history and compaction as on disk, for tests and simulations.
//!
//! Invariant: a store opened again on the same [`Memory`] finds what was committed. Writes do not wait, so the store makes
//! them in the caller's task, and a simulation in virtual time stays deterministic.

use super::ledger::{Ledger, Upkeep};
use super::*;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};

/// Records that one step of compaction visits, beyond those written.
const STEP: usize = 256;

/// Revision and position in its transaction.
type At = (u64, u32);

struct Record {
    key: Key,
    value: Option<Bytes>,
    previous: Option<At>,
}

impl Record {
    fn size(&self) -> u64 {
        (self.key.namespace.len() + self.key.name.len() + self.value.as_ref().map_or(0, Bytes::len) + 64) as u64
    }
}

#[derive(Default)]
struct Data {
    ledger: Ledger,
    records: BTreeMap<At, Record>,
    newest: HashMap<Key, At>,
}

/// The engine in memory.
pub struct Memory {
    data: Mutex<Data>,
}

impl Memory {
    /// An empty engine.
    pub fn new() -> Arc<Memory> {
        Arc::new(Memory { data: Mutex::new(Data { ledger: Ledger::new(), ..Data::default() }) })
    }
}

impl Data {
    fn append(&mut self, revision: u64, position: u32, write: &Write) {
        let at = (revision, position);
        let previous = self.newest.get(&write.key).copied();
        let record = Record { key: write.key.clone(), value: write.value.clone(), previous };
        let (size, replaced) = (record.size(), previous.and_then(|at| self.records.get(&at)).map_or(0, Record::size));
        self.ledger.total += size;
        self.ledger.live -= replaced;
        if record.value.is_some() {
            self.ledger.live += size;
            self.newest.insert(write.key.clone(), at);
        } else {
            self.newest.remove(&write.key);
        }
        self.records.insert(at, record);
    }

    fn remove(&mut self, at: At) {
        if let Some(record) = self.records.remove(&at) {
            self.ledger.total -= record.size();
        }
    }

    /// Compacts one revision. Returns the number of visited records.
    fn compact_one(&mut self) -> usize {
        let revision = self.ledger.compacted + 1;
        let seen: Vec<(At, Option<At>, bool)> = self
            .records
            .range((revision, 0)..(revision + 1, 0))
            .map(|(at, record)| (*at, record.previous, record.value.is_none()))
            .collect();
        for (at, previous, deleted) in &seen {
            if let Some(previous) = previous {
                self.remove(*previous);
            }
            if *deleted {
                self.remove(*at);
            }
        }
        self.ledger.compacted = revision;
        seen.len() + 1
    }
}

#[async_trait]
impl Engine for Memory {
    fn capabilities(&self) -> Capabilities {
        Capabilities { history: true, max_ops: 100_000, max_bytes: 256 << 20 }
    }

    async fn load(&self, decode: Decode) -> Result<Loaded, EngineError> {
        let data = self.data.lock();
        let mut newest: Vec<(&Key, &At)> = data.newest.iter().collect();
        newest.sort();
        let mut decoded = Decoded::default();
        for (key, at) in newest {
            let value = data.records.get(at).and_then(|record| record.value.as_ref());
            let value = value.ok_or_else(|| EngineError::Corrupt(format!("{key} has no value")))?;
            decoded.add(key, at.0, decode(key, at.0, value))?;
        }
        let Decoded { entries, damaged } = decoded;
        Ok(Loaded { revision: data.ledger.revision, compacted: data.ledger.compacted, entries, damaged })
    }

    async fn visit(&self, resource: &str, visit: Visit) -> Result<(), EngineError> {
        let data = self.data.lock();
        for (key, at) in data.newest.iter().filter(|(key, _)| *key.resource == *resource) {
            if let Some(value) = data.records.get(at).and_then(|record| record.value.as_ref()) {
                visit(key, at.0, value);
            }
        }
        Ok(())
    }

    async fn changes(
        &self,
        scope: Option<&Scope>,
        after: u64,
        upto: u64,
        limit: usize,
    ) -> Result<Changes, EngineError> {
        let data = self.data.lock();
        if after < data.ledger.compacted {
            return Err(EngineError::Expired { oldest: data.ledger.compacted });
        }
        let mut found = Changes { changes: Vec::new(), through: upto.max(after) };
        let mut last = after;
        for (looked, (at, record)) in data.records.range((after + 1, 0)..(upto.saturating_add(1), 0)).enumerate() {
            if looked >= limit && at.0 > last {
                found.through = last;
                break;
            }
            last = at.0;
            if scope.is_some_and(|scope| !scope.contains(&record.key)) {
                continue;
            }
            let previous = record.previous.and_then(|at| {
                let value = data.records.get(&at)?.value.clone()?;
                Some(Version { revision: at.0, value })
            });
            let (key, value) = (record.key.clone(), record.value.clone());
            found.changes.push(RawChange { revision: at.0, key, value, previous });
        }
        Ok(found)
    }

    fn usage(&self) -> Usage {
        let data = self.data.lock();
        Usage { live: data.ledger.live, history: data.ledger.history(), ..Usage::default() }
    }

    fn role(self: Arc<Self>) -> Role {
        Role::Sole(self)
    }

    async fn close(&self) {}
}

impl SoleWriter for Memory {
    fn waits(&self) -> bool {
        false
    }

    fn write(&self, batch: &[Transaction], upkeep: &Upkeep) -> Result<Written, WriteError> {
        let mut data = self.data.lock();
        let mut budget = STEP;
        for transaction in batch {
            for (position, write) in transaction.writes.iter().enumerate() {
                data.append(transaction.revision, position as u32, write);
                budget += 4;
            }
            data.ledger.wrote(transaction.revision, upkeep.now);
        }
        while data.ledger.is_due(upkeep) && budget > 0 {
            budget = budget.saturating_sub(data.compact_one());
        }
        data.ledger.passed_marks();
        Ok(Written { compacted: data.ledger.compacted, behind: data.ledger.is_due(upkeep) })
    }
}
