//! Back-off of containers that ended, and of sandboxes that were lost.
//!
//! The first restart is immediate, the next ones come after 10 s, 20 s, … 5 min (or a configured maximum); ten minutes without an end reset the delay
//! (client-go `flowcontrol.Backoff` as the kubelet uses it).

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

pub const INITIAL: Duration = Duration::from_secs(10);
pub const MAX: Duration = Duration::from_secs(300);

/// A container that ran so long has no back-off any more.
const RESET: Duration = Duration::from_secs(600);

/// The delays of the containers of a pod.
#[derive(Clone, Debug)]
pub struct Backoffs {
    delays: BTreeMap<String, (Duration, Timestamp)>,
    max: Duration,
}

impl Default for Backoffs {
    fn default() -> Self {
        Self::new(MAX)
    }
}

/// The key of a container. One with another image has no back-off yet.
pub fn key_of(name: &str, image: Option<&str>) -> String {
    format!("{name} {}", image.unwrap_or_default())
}

fn since(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}

impl Backoffs {
    /// Delays of up to `max`.
    pub fn new(max: Duration) -> Self {
        Self { delays: BTreeMap::new(), max }
    }

    /// The back-off in force for `key` and how much of it is left, counted from when the container ended.
    pub fn waiting(&self, key: &str, ended: Timestamp, now: Timestamp) -> Option<(Duration, Duration)> {
        let (delay, updated) = self.delays.get(key)?;
        if since(ended, *updated) > RESET {
            return None;
        }
        let left = delay.checked_sub(since(now, ended))?;
        (!left.is_zero()).then_some((*delay, left))
    }

    /// Records that the container is started again.
    pub fn started(&mut self, key: &str, ended: Timestamp, now: Timestamp) {
        let next = match self.delays.get(key) {
            Some((delay, updated)) if since(ended, *updated) <= RESET => (*delay * 2).min(self.max),
            _ => INITIAL.min(self.max),
        };
        self.delays.insert(key.to_owned(), (next, now));
    }

    /// The current delay, for messages.
    pub fn delay(&self, key: &str) -> Duration {
        self.delays.get(key).map_or(INITIAL, |(d, _)| *d)
    }

    pub fn forget(&mut self, key: &str) {
        self.delays.remove(key);
    }
}

/// Formats whole seconds as Go does: `10s`, `1m20s`, `5m0s`.
pub fn go_duration(d: Duration) -> String {
    let s = d.as_secs();
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{}s", s / 60, s % 60),
        _ => format!("{}h{}m{}s", s / 3600, s / 60 % 60, s % 60),
    }
}

/// Formats a duration as Go does after it is truncated to milliseconds: `0s`, `15ms`, `1.5s`, `1m2.034s`.
pub fn go_milliseconds(d: Duration) -> String {
    let fraction = match d.subsec_millis() {
        0 => return go_duration(d),
        ms if d.as_secs() == 0 => return format!("{ms}ms"),
        ms => format!(".{ms:03}"),
    };
    let text = go_duration(d);
    format!("{}{}s", text.trim_end_matches('s'), fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clauses: P10
    #[test]
    fn delays_double_to_five_minutes_and_reset_after_ten() {
        let mut b = Backoffs::default();
        let mut now = Timestamp::from_second(1_000_000).unwrap();
        let mut seen = Vec::new();
        for _ in 0..8 {
            let ended = now;
            match b.waiting("c", ended, now) {
                None => seen.push(0),
                Some((_, left)) => {
                    seen.push(left.as_secs());
                    now += left;
                    assert!(b.waiting("c", ended, now).is_none());
                }
            }
            b.started("c", ended, now);
        }
        assert_eq!(seen, [0, 10, 20, 40, 80, 160, 300, 300]);
        let ended = now + Duration::from_secs(601);
        assert!(b.waiting("c", ended, ended).is_none(), "it ran for ten minutes");
        b.started("c", ended, ended);
        assert_eq!(b.delay("c"), INITIAL);
        assert_eq!(go_duration(Duration::from_secs(300)), "5m0s");
    }

    #[test]
    fn durations_are_shown_as_by_go() {
        let shown = |ms| go_milliseconds(Duration::from_millis(ms));
        assert_eq!(
            [0, 15, 1500, 2000, 62_034, 3_600_500].map(shown),
            ["0s", "15ms", "1.5s", "2s", "1m2.034s", "1h0m0.5s"]
        );
    }
}
