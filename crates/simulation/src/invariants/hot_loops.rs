//! No object is written, and none is created, again and again without a reason.

use super::objects::Objects;
use super::{Excused, Invariant};
use crate::trace::Commit;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use store::Key;

/// The most writes of one object within [`PERIOD`].
const MAX: usize = 300;
/// The most objects of a resource that are created in a namespace within [`PERIOD`].
const MAX_CREATED: usize = 1000;
const PERIOD: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct HotLoops {
    writes: BTreeMap<Key, VecDeque<Duration>>,
}

impl Invariant for HotLoops {
    fn name(&self) -> &'static str {
        "no hot loops"
    }

    fn observe(&mut self, commit: &Commit, _: &Objects, _: &Excused) -> Result<(), String> {
        for change in &commit.changes {
            if change.new.is_none() {
                self.writes.remove(&change.key);
                continue;
            }
            let written = self.count(change.key.clone(), commit.at);
            if written > MAX {
                return Err(format!("{} was written {written} times within {PERIOD:?}", change.key));
            }
            if change.old.is_none() {
                let group = Key { name: "".into(), ..change.key.clone() };
                let created = self.count(group, commit.at);
                if created > MAX_CREATED {
                    return Err(format!("{created} objects like {} were created within {PERIOD:?}", change.key));
                }
            }
        }
        Ok(())
    }
}

impl HotLoops {
    /// Counts a write, and returns the number of those within the period.
    fn count(&mut self, key: Key, at: Duration) -> usize {
        let writes = self.writes.entry(key).or_default();
        writes.push_back(at);
        while writes.front().is_some_and(|first| *first + PERIOD < at) {
            writes.pop_front();
        }
        writes.len()
    }
}
