//! Bounds on the bytes that requests hold in memory, for each user and in total.
//!
//! Invariant: what is granted never exceeds either bound. Who waits is served in order, so a large request is not passed by
//! small ones for ever. Users share a few hundred accounts by hash: a collision shares a bound, and nothing is ever removed.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const ACCOUNTS: usize = 256;

pub(crate) struct Budget {
    total: Arc<Semaphore>,
    accounts: Vec<Arc<Semaphore>>,
    per_user: usize,
    hash: RandomState,
}

/// Bytes that are granted until this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    _user: OwnedSemaphorePermit,
    _total: OwnedSemaphorePermit,
}

impl Budget {
    pub fn new(total: usize, per_user: usize) -> Self {
        Self {
            total: Arc::new(Semaphore::new(total)),
            accounts: (0..ACCOUNTS).map(|_| Arc::new(Semaphore::new(per_user))).collect(),
            per_user,
            hash: RandomState::new(),
        }
    }

    /// As [`Self::take`]; what is larger than a quarter of a user's bound takes that much.
    pub async fn take_part(&self, user: &str, bytes: usize, patience: Duration) -> Option<Room> {
        self.take(user, u32::try_from(bytes.min(self.per_user / 4)).unwrap_or(u32::MAX), patience).await
    }

    /// Nothing is granted from now on.
    pub fn close(&self) {
        self.total.close();
        self.accounts.iter().for_each(|a| a.close());
    }

    pub fn is_closed(&self) -> bool {
        self.total.is_closed()
    }

    /// Waits at most `patience` for room; none when there was none in that time.
    pub async fn take(&self, user: &str, bytes: u32, patience: Duration) -> Option<Room> {
        let account = &self.accounts[self.hash.hash_one(user) as usize % ACCOUNTS];
        if let (Ok(u), Ok(t)) =
            (account.clone().try_acquire_many_owned(bytes), self.total.clone().try_acquire_many_owned(bytes))
        {
            return Some(Room { _user: u, _total: t });
        }
        let wait = async {
            // The user's own bound first: who has used it up does not stand in the line of all.
            let user = account.clone().acquire_many_owned(bytes).await.ok()?;
            let total = self.total.clone().acquire_many_owned(bytes).await.ok()?;
            Some(Room { _user: user, _total: total })
        };
        tokio::time::timeout(patience, wait).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;

    #[tokio::test(start_paused = true)]
    async fn a_user_takes_no_more_than_a_share_and_all_no_more_than_there_is() {
        let b = Arc::new(Budget::new(25, 10));
        // Two names of different accounts.
        let other = (0..).map(|i| format!("u{i}")).find(|n| account(&b, n) != account(&b, "a")).unwrap();
        let first = b.take("a", 10, AT_ONCE).await.unwrap();
        assert!(b.take("a", 1, AT_ONCE).await.is_none(), "the user's bound");
        let second = b.take(&other, 10, AT_ONCE).await.unwrap();
        let third =
            (0..).map(|i| format!("v{i}")).find(|n| ![account(&b, "a"), account(&b, &other)].contains(&account(&b, n)));
        let third = third.unwrap();
        assert!(b.take(&third, 6, AT_ONCE).await.is_none(), "the bound of all");
        let waiting = tokio::spawn({
            let (b, third) = (b.clone(), third.clone());
            async move { b.take(&third, 6, Duration::from_secs(5)).await.is_some() }
        });
        tokio::task::yield_now().await;
        drop(first);
        assert!(waiting.await.unwrap(), "room that becomes free is given to who waits");
        drop(second);
        assert!(b.take("a", 10, AT_ONCE).await.is_some());
    }

    fn account(b: &Budget, user: &str) -> usize {
        b.hash.hash_one(user) as usize % ACCOUNTS
    }
}
