//! Delays before a failed part of a pod is tried again.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

/// The name under which the sandbox is held, and under which a lost one backs off.
pub const SANDBOX: &str = "";
/// The name under which the volumes are held.
pub const VOLUMES: &str = "\u{1}volumes";
/// The delays between tries of sandboxes and volumes, doubled from the first to the last.
pub const FIRST_RETRY: Duration = Duration::from_secs(1);
pub const LAST_RETRY: Duration = Duration::from_secs(120);
/// A container that cannot be made is tried again as upstream's kubelet does it: with the pod's next synchronization after a failed one.
pub const SYNC_RETRY: Duration = Duration::from_secs(10);

struct Hold {
    until: Timestamp,
    delay: Duration,
}

/// Containers, by name, and other parts of a pod that are not tried again yet.
#[derive(Default)]
pub struct Holds(BTreeMap<String, Hold>);

/// Twice the delay before, between the first and the last.
fn next_delay(before: Option<Duration>, first: Duration, last: Duration) -> Duration {
    before.map_or(first, |delay| (delay * 2).clamp(first, last))
}

impl Holds {
    /// Holds `name` for a while, longer each time.
    pub fn hold(&mut self, name: &str, first: Duration, last: Duration, now: Timestamp) {
        let delay = next_delay(self.0.get(name).map(|h| h.delay), first, last);
        self.0.insert(name.to_owned(), Hold { until: now + delay, delay });
    }

    /// Ends the hold of what has succeeded.
    pub fn release(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Ends all holds: something they wait for may have changed.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn is_held(&self, name: &str, now: Timestamp) -> bool {
        self.0.get(name).is_some_and(|h| h.until > now)
    }

    /// How long until the first hold ends; never zero.
    pub fn first_end(&self, now: Timestamp) -> Option<Duration> {
        let left = |h: &Hold| meta::time::left(now, h.until);
        self.0.values().map(left).min().map(|d| d.max(Duration::from_millis(10)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container with a wrong configuration was tried again after one second, two, four, and made an event each time.
    #[test]
    fn tries_are_as_far_apart_as_upstreams() {
        let delays = |first, last| {
            let mut before = None;
            let mut next = || {
                before = Some(next_delay(before, first, last));
                before.unwrap_or_default().as_secs()
            };
            [(); 4].map(|()| next())
        };
        assert_eq!(delays(SYNC_RETRY, SYNC_RETRY), [10, 10, 10, 10]);
        assert_eq!(delays(FIRST_RETRY, LAST_RETRY), [1, 2, 4, 8]);
    }

    #[test]
    fn holds_end_in_time_or_when_released() {
        let (mut holds, now) = (Holds::default(), Timestamp::from_second(1_000).unwrap());
        holds.hold("a", FIRST_RETRY, LAST_RETRY, now);
        assert!(holds.is_held("a", now) && !holds.is_held("b", now));
        assert_eq!(holds.first_end(now), Some(FIRST_RETRY));
        assert!(!holds.is_held("a", now + FIRST_RETRY));
        assert_eq!(holds.first_end(now + LAST_RETRY), Some(Duration::from_millis(10)));
        holds.release("a");
        assert_eq!(holds.first_end(now), None);
    }
}
