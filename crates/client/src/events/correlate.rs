//! Which events are one event (client-go `tools/record/events_cache.go`).

use super::{Regarding, Severity};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// Different messages under one reason before they are joined, and how long they are remembered.
const SIMILAR: usize = 10;
const SIMILAR_SECONDS: i64 = 600;
/// Events about one object, all its fields together, that may come at once, and the seconds after which one more may.
const BURST: f64 = 25.0;
const REFILL_SECONDS: f64 = 300.0;
/// How many of each are remembered.
const REMEMBERED: usize = 4096;

#[derive(Clone, Debug)]
pub(super) struct Told {
    pub about: Regarding,
    pub severity: Severity,
    pub reason: String,
    pub action: String,
    pub message: String,
    pub at: Timestamp,
}

/// An event to be written: anew, or on top of the one of that name.
#[derive(Debug)]
pub(super) struct Send {
    pub told: Told,
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
    last: Timestamp,
    name: Option<String>,
}

struct Messages {
    seen: BTreeSet<String>,
    last: Timestamp,
}

#[derive(Default)]
pub(super) struct Correlator {
    similar: BTreeMap<Similar, Messages>,
    counted: BTreeMap<Same, Counted>,
    tokens: BTreeMap<Regarding, (f64, Timestamp)>,
}

/// Makes room for a key: what has not come for the longest time is forgotten.
fn make_room<K: Ord + Clone, V>(m: &mut BTreeMap<K, V>, key: &K, last: impl Fn(&V) -> Timestamp) {
    if m.len() < REMEMBERED || m.contains_key(key) {
        return;
    }
    let oldest = m.iter().min_by_key(|(_, v)| last(v)).map(|(k, _)| k.clone());
    if let Some(oldest) = oldest {
        m.remove(&oldest);
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

impl Correlator {
    /// `None` when the object has been talked about too much.
    pub fn correlate(&mut self, mut told: Told) -> Option<Send> {
        let mut about = told.about.clone();
        about.resource_version.clear();
        let similar: Similar = (about.clone(), told.severity, told.reason.clone(), told.action.clone());

        make_room(&mut self.similar, &similar, |m| m.last);
        let m =
            self.similar.entry(similar.clone()).or_insert_with(|| Messages { seen: BTreeSet::new(), last: told.at });
        if seconds(m.last, told.at) > SIMILAR_SECONDS as f64 {
            m.seen.clear();
        }
        m.last = told.at;
        m.seen.insert(told.message.clone());
        let mut same = told.message.clone();
        if m.seen.len() >= SIMILAR {
            m.seen.pop_first();
            same = "(combined)".into();
            told.message = format!("(combined from similar events): {}", told.message);
        }

        let key: Same = (similar, same);
        make_room(&mut self.counted, &key, |c| c.last);
        let new = Counted { count: 0, first: told.at, last: told.at, name: None };
        let c = self.counted.entry(key.clone()).or_insert(new);
        c.count += 1;
        c.last = told.at;
        let send = Send { count: c.count, first: c.first, name: c.name.clone(), told, key };

        about.field_path.clear();
        make_room(&mut self.tokens, &about, |(_, last)| *last);
        let (tokens, last) = self.tokens.entry(about).or_insert((BURST, send.told.at));
        *tokens = (*tokens + seconds(*last, send.told.at).max(0.0) / REFILL_SECONDS).min(BURST);
        *last = send.told.at;
        if *tokens < 1.0 {
            return None;
        }
        *tokens -= 1.0;
        Some(send)
    }

    /// The event was written under this name.
    pub fn sent(&mut self, send: &Send, name: String) {
        if let Some(c) = self.counted.get_mut(&send.key) {
            c.name = Some(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(message: &str, second: i64) -> Told {
        Told {
            about: Regarding { name: "p".into(), resource_version: second.to_string(), ..Regarding::default() },
            severity: Severity::Normal,
            reason: "R".into(),
            action: String::new(),
            message: message.into(),
            at: Timestamp::from_second(second).unwrap(),
        }
    }

    #[test]
    fn the_same_is_counted_and_the_similar_is_joined() {
        let mut c = Correlator::default();
        let a = c.correlate(told("x", 1)).unwrap();
        assert_eq!((a.count, a.name.clone()), (1, None));
        c.sent(&a, "p.1".into());
        let b = c.correlate(told("x", 2)).unwrap();
        assert_eq!((b.count, b.name.as_deref(), b.first.as_second()), (2, Some("p.1"), 1));
        let mut c = Correlator::default();
        let last = (0..12).filter_map(|i| c.correlate(told(&format!("m{i}"), i))).last().unwrap();
        assert_eq!(last.told.message, "(combined from similar events): m11");
        assert_eq!(last.count, 3);
    }

    #[test]
    fn who_talks_too_much_is_cut_off() {
        let mut c = Correlator::default();
        let sent = (0..40).filter(|i| c.correlate(told(&format!("{}", i % 3), 5)).is_some()).count();
        assert_eq!(sent, 25);
        assert!(c.correlate(told("later", 5 + 400)).is_some());
    }

    /// Each container of a pod had its own bound.
    #[test]
    fn the_fields_of_an_object_share_its_bound() {
        let mut c = Correlator::default();
        let of_container = |i: i64| {
            let mut told = told("x", 5);
            told.about.field_path = format!("spec.containers{{c{i}}}");
            told
        };
        let sent: Vec<_> = (0..60).filter_map(|i| c.correlate(of_container(i))).collect();
        assert_eq!(sent.len(), 25);
        assert!(sent.iter().all(|s| s.count == 1 && !s.told.about.field_path.is_empty()), "they are different events");
    }

    /// Four thousand objects made the correlator forget who talked too much.
    #[test]
    fn what_came_lately_is_remembered() {
        let mut c = Correlator::default();
        let of_object = |i: i64, second: i64| {
            let mut told = told("x", second);
            told.about.name = format!("p{i}");
            told
        };
        for second in 0..25 {
            assert!(c.correlate(of_object(-1, second)).is_some());
        }
        for i in 0..REMEMBERED as i64 + 200 {
            assert!(c.correlate(of_object(i, 30)).is_some());
            assert_eq!(c.correlate(of_object(-1, 30 + i / 1000)).map(|s| s.count), None, "{i}");
        }
        assert!(c.similar.len() <= REMEMBERED && c.counted.len() <= REMEMBERED && c.tokens.len() <= REMEMBERED);
    }
}
