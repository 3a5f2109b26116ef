//! Whose copy of a volume is next: one is made at a time, since each may take the disk for minutes, and namespaces take turns.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// When a copy that waits is tried again.
pub(super) const WAIT: Duration = Duration::from_secs(5);
/// A namespace that has not asked for so long waits no more.
const FORGOTTEN: Duration = Duration::from_secs(20);
/// Namespaces whose turns are remembered.
const MOST: usize = 1_000;

#[derive(Default)]
struct State {
    is_taken: bool,
    /// When each waiting namespace has asked for the last time.
    asked: BTreeMap<String, Instant>,
    /// The number of the last turn of each namespace.
    served: BTreeMap<String, u64>,
    turns: u64,
}

#[derive(Default)]
pub(super) struct Turns(Mutex<State>);

/// The turn of a copy, until it is dropped.
pub(super) struct Turn<'a>(&'a Turns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.0.lock().is_taken = false;
    }
}

impl Turns {
    /// The turn, if no copy is made and no waiting namespace was served longer ago. A namespace that gets none asks again after [`WAIT`].
    pub fn take(&self, namespace: &str, now: Instant) -> Option<Turn<'_>> {
        let mut state = self.0.lock();
        state.asked.retain(|_, at| now.saturating_duration_since(*at) < FORGOTTEN);
        state.asked.insert(namespace.to_owned(), now);
        let last = |name: &String| state.served.get(name).copied().unwrap_or(0);
        let next = state.asked.keys().min_by_key(|name| last(name));
        if state.is_taken || next.is_none_or(|next| next != namespace) {
            return None;
        }
        state.asked.remove(namespace);
        state.is_taken = true;
        state.turns += 1;
        let turn = state.turns;
        if state.served.len() >= MOST {
            state.served.clear();
        }
        state.served.insert(namespace.to_owned(), turn);
        Some(Turn(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn namespaces_take_turns() {
        let (turns, begin) = (Turns::default(), Instant::now());
        let first = turns.take("many", begin).unwrap();
        assert!(turns.take("many", begin).is_none() && turns.take("few", begin).is_none());
        drop(first);
        assert!(turns.take("many", begin).is_none(), "the other one waits");
        let few = turns.take("few", begin).unwrap();
        drop(few);
        assert!(turns.take("many", begin).is_some());
        // One that went away delays nobody for long.
        assert!(turns.take("few", begin).is_some());
        drop(turns.take("gone", begin + WAIT).unwrap());
        let busy = turns.take("many", begin + WAIT).unwrap();
        assert!(turns.take("gone", begin + WAIT).is_none());
        drop(busy);
        assert!(turns.take("few", begin + WAIT).is_some());
        assert!(turns.take("many", begin + WAIT + FORGOTTEN).is_some());
    }
}
