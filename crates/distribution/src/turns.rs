//! Turns of pulls: a few at a time from each registry, shared among namespaces.
//!
//! **Invariant.** A namespace without a running pull from a registry waits for no other one: its first pull begins at once, even if
//! others have all the turns of the registry. Among those that wait, the namespace with the fewest running pulls is next.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

pub(crate) struct Turns {
    /// Pulls from one registry at a time, besides the first one of each namespace.
    limit: usize,
    registries: Mutex<HashMap<String, Registry>>,
}

#[derive(Default)]
struct Registry {
    /// Numbers of running pulls by namespace.
    running: HashMap<String, usize>,
    waiting: VecDeque<(String, oneshot::Sender<Turn>)>,
}

impl Registry {
    fn running_of(&self, namespace: &str) -> usize {
        self.running.get(namespace).copied().unwrap_or(0)
    }

    fn may_begin(&self, namespace: &str, limit: usize) -> bool {
        self.running_of(namespace) == 0 || self.running.values().sum::<usize>() < limit
    }

    fn begin(&mut self, namespace: &str) {
        *self.running.entry(namespace.to_owned()).or_default() += 1;
    }

    fn end(&mut self, namespace: &str) {
        let left = self.running_of(namespace).saturating_sub(1);
        match left {
            0 => drop(self.running.remove(namespace)),
            _ => drop(self.running.insert(namespace.to_owned(), left)),
        }
    }

    /// Removes the next one that may begin from those that wait.
    fn next(&mut self, limit: usize) -> Option<(String, oneshot::Sender<Turn>)> {
        self.waiting.retain(|(_, sender)| !sender.is_closed());
        let fits = self.waiting.iter().enumerate().filter(|(_, (namespace, _))| self.may_begin(namespace, limit));
        let (index, _) = fits.min_by_key(|(index, (namespace, _))| (self.running_of(namespace), *index))?;
        self.waiting.remove(index)
    }
}

/// The right to pull, until it is dropped.
pub(crate) struct Turn {
    turns: Arc<Turns>,
    registry: String,
    namespace: String,
}

impl Turns {
    pub fn new(limit: usize) -> Arc<Turns> {
        Arc::new(Turns { limit, registries: Mutex::default() })
    }

    /// Waits for a turn.
    pub async fn wait(self: &Arc<Self>, registry: &str, namespace: &str) -> Turn {
        let receiver = {
            let mut registries = self.registries.lock();
            let line = registries.entry(registry.to_owned()).or_default();
            if line.may_begin(namespace, self.limit) {
                line.begin(namespace);
                return self.turn(registry, namespace);
            }
            let (sender, receiver) = oneshot::channel();
            line.waiting.push_back((namespace.to_owned(), sender));
            receiver
        };
        match receiver.await {
            Ok(turn) => turn,
            // Its sender is dropped only with the turn sent.
            Err(_) => std::future::pending().await,
        }
    }

    fn turn(self: &Arc<Self>, registry: &str, namespace: &str) -> Turn {
        Turn { turns: self.clone(), registry: registry.to_owned(), namespace: namespace.to_owned() }
    }

    fn end(self: &Arc<Self>, registry: &str, namespace: &str) {
        let mut begun = Vec::new();
        {
            let mut registries = self.registries.lock();
            let Some(line) = registries.get_mut(registry) else { return };
            line.end(namespace);
            while let Some((namespace, sender)) = line.next(self.limit) {
                line.begin(&namespace);
                begun.push((namespace, sender));
            }
            if line.running.is_empty() && line.waiting.is_empty() {
                registries.remove(registry);
            }
        }
        for (namespace, sender) in begun {
            // If nothing waits for it any more, the turn ends again here.
            drop(sender.send(self.turn(registry, &namespace)));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.end(&self.registry, &self.namespace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn a_namespace_does_not_wait_for_others() {
        let turns = Turns::new(2);
        let wait = |namespace: &'static str| {
            let turns = turns.clone();
            Box::pin(async move { turns.wait("r", namespace).await })
        };
        let (first, _second) = (wait("a").await, wait("a").await);
        let mut third = wait("a");
        assert!((&mut third).now_or_never().is_none());
        let b = wait("b").now_or_never().expect("the first one of another namespace");
        let mut waiting = wait("b");
        assert!((&mut waiting).now_or_never().is_none());
        assert!(turns.wait("other", "a").now_or_never().is_some(), "another registry");
        drop(first);
        assert!((&mut third).now_or_never().is_none(), "two are running");
        // The namespace with the fewest is next, even if another one waits for longer.
        drop(b);
        let b = (&mut waiting).now_or_never().expect("the turn of b");
        assert!((&mut third).now_or_never().is_none());
        drop(b);
        assert!((&mut third).now_or_never().is_some());
    }

    #[tokio::test]
    async fn turns_that_nothing_waits_for_are_passed_on() {
        let turns = Turns::new(1);
        let first = turns.wait("r", "a").await;
        let (mut gone, mut next) = (Box::pin(turns.wait("r", "a")), Box::pin(turns.wait("r", "a")));
        assert!((&mut gone).now_or_never().is_none() && (&mut next).now_or_never().is_none());
        drop(first);
        drop(gone);
        assert!(next.now_or_never().is_some());
        assert!(turns.registries.lock().is_empty());
    }
}
