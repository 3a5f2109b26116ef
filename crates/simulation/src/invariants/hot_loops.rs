//! No object is written again and again without a reason.

use super::objects::Objects;
use super::{Excused, Invariant};
use crate::trace::Commit;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use store::Key;

/// The most writes of one object within [`PERIOD`].
const MAX: usize = 300;
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
            let writes = self.writes.entry(change.key.clone()).or_default();
            writes.push_back(commit.at);
            while writes.front().is_some_and(|first| *first + PERIOD < commit.at) {
                writes.pop_front();
            }
            if writes.len() > MAX {
                return Err(format!("{} was written {} times within {PERIOD:?}", change.key, writes.len()));
            }
        }
        Ok(())
    }
}
