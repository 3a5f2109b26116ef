//! Aggregation of similar events (client-go `tools/record/events_cache.go`).

use super::{Regarding, Severity};
use jiff::Timestamp;
use lru::LruCache;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

/// Different messages with one reason before they are aggregated, and seconds for which they are remembered.
const SIMILAR: usize = 10;
const SIMILAR_SECONDS: i64 = 600;
/// Burst of events for one object, all its fields together, and the seconds after which one more is allowed.
const BURST: f64 = 25.0;
const REFILL_SECONDS: f64 = 300.0;
/// Maximum number of entries of each kind that are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

#[derive(Clone, Debug)]
pub(super) struct Event {
    pub about: Regarding,
    /// Another object that the action concerns.
    pub related: Option<Regarding>,
    pub severity: Severity,
    pub reason: String,
    pub action: String,
    pub message: String,
    pub annotations: BTreeMap<String, String>,
    pub at: Timestamp,
}

/// An event to write: a new object, or an update of the object of that name.
#[derive(Debug)]
pub(super) struct Send {
    pub event: Event,
    pub count: u32,
    pub first: Timestamp,
    pub name: Option<String>,
    key: Same,
}

type Similar = (Regarding, Severity, String, String);
type Same = (Similar, String);

struct Counted {
    count: u32,
    first: Timestamp,
    name: Option<String>,
}

struct Messages {
    seen: BTreeSet<String>,
    last: Timestamp,
}

/// What was seen lately. Each cache drops the entry that was used longest ago.
pub(super) struct Correlator {
    similar: LruCache<Similar, Messages>,
    counted: LruCache<Same, Counted>,
    tokens: LruCache<Regarding, (f64, Timestamp)>,
}

impl Default for Correlator {
    fn default() -> Self {
        Self {
            similar: LruCache::new(REMEMBERED),
            counted: LruCache::new(REMEMBERED),
            tokens: LruCache::new(REMEMBERED),
        }
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

impl Correlator {
    /// Returns `None` when the object has exceeded its rate limit.
    pub fn correlate(&mut self, mut event: Event) -> Option<Send> {
        let mut about = event.about.clone();
        about.resource_version.clear();
        let similar: Similar = (about.clone(), event.severity, event.reason.clone(), event.action.clone());

        let m = self.similar.get_or_insert_mut(similar.clone(), || Messages { seen: BTreeSet::new(), last: event.at });
        if seconds(m.last, event.at) > SIMILAR_SECONDS as f64 {
            m.seen.clear();
        }
        m.last = event.at;
        m.seen.insert(event.message.clone());
        let mut same = event.message.clone();
        if m.seen.len() >= SIMILAR {
            m.seen.pop_first();
            same = "(combined)".into();
            event.message = format!("(combined from similar events): {}", event.message);
        }

        let key: Same = (similar, same);
        let c = self.counted.get_or_insert_mut(key.clone(), || Counted { count: 0, first: event.at, name: None });
        c.count += 1;
        let send = Send { count: c.count, first: c.first, name: c.name.clone(), event, key };

        about.field_path.clear();
        let (tokens, last) = self.tokens.get_or_insert_mut(about, || (BURST, send.event.at));
        *tokens = (*tokens + seconds(*last, send.event.at).max(0.0) / REFILL_SECONDS).min(BURST);
        *last = send.event.at;
        if *tokens < 1.0 {
            return None;
        }
        *tokens -= 1.0;
        Some(send)
    }

    /// Records the name under which the event was written.
    pub fn sent(&mut self, send: &Send, name: String) {
        if let Some(c) = self.counted.peek_mut(&send.key) {
            c.name = Some(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(message: &str, second: i64) -> Event {
        Event {
            about: Regarding { name: "p".into(), resource_version: second.to_string(), ..Regarding::default() },
            related: None,
            severity: Severity::Normal,
            reason: "R".into(),
            action: String::new(),
            message: message.into(),
            annotations: BTreeMap::new(),
            at: Timestamp::from_second(second).unwrap(),
        }
    }

    #[test]
    fn repeated_events_are_counted_and_similar_ones_aggregated() {
        let mut c = Correlator::default();
        let a = c.correlate(event("x", 1)).unwrap();
        assert_eq!((a.count, a.name.clone()), (1, None));
        c.sent(&a, "p.1".into());
        let b = c.correlate(event("x", 2)).unwrap();
        assert_eq!((b.count, b.name.as_deref(), b.first.as_second()), (2, Some("p.1"), 1));
        let mut c = Correlator::default();
        let last = (0..12).filter_map(|i| c.correlate(event(&format!("m{i}"), i))).last().unwrap();
        assert_eq!(last.event.message, "(combined from similar events): m11");
        assert_eq!(last.count, 3);
    }

    #[test]
    fn an_object_is_rate_limited() {
        let mut c = Correlator::default();
        let sent = (0..40).filter(|i| c.correlate(event(&format!("{}", i % 3), 5)).is_some()).count();
        assert_eq!(sent, 25);
        assert!(c.correlate(event("later", 5 + 400)).is_some());
    }

    /// Each container of a pod had its own limit.
    #[test]
    fn the_fields_of_an_object_share_its_limit() {
        let mut c = Correlator::default();
        let of_container = |i: i64| {
            let mut event = event("x", 5);
            event.about.field_path = format!("spec.containers{{c{i}}}");
            event
        };
        let sent: Vec<_> = (0..60).filter_map(|i| c.correlate(of_container(i))).collect();
        assert_eq!(sent.len(), 25);
        assert!(sent.iter().all(|s| s.count == 1 && !s.event.about.field_path.is_empty()), "they are different events");
    }

    /// With events for four thousand objects the correlator forgot which objects had exceeded their limit.
    #[test]
    fn recent_entries_are_remembered() {
        let mut c = Correlator::default();
        let about_object = |i: i64, second: i64| {
            let mut event = event("x", second);
            event.about.name = format!("p{i}");
            event
        };
        for second in 0..25 {
            assert!(c.correlate(about_object(-1, second)).is_some());
        }
        for i in 0..REMEMBERED.get() as i64 + 200 {
            assert!(c.correlate(about_object(i, 30)).is_some());
            assert_eq!(c.correlate(about_object(-1, 30 + i / 1000)).map(|s| s.count), None, "{i}");
        }
        let most = REMEMBERED.get();
        assert!(c.similar.len() <= most && c.counted.len() <= most && c.tokens.len() <= most);
    }
}
