//! When the change of a service or a pod happened that new endpoints follow from (upstream `trigger_time_tracker.go`), for the annotation
//! `endpoints.kubernetes.io/last-change-trigger-time`.

use client::Key;
use jiff::Timestamp;
use meta::Object;
use parking_lot::Mutex;
use std::collections::BTreeMap;

const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The times that were seen of each service.
#[derive(Default)]
pub(super) struct TriggerTimes(Mutex<BTreeMap<Key, Seen>>);

#[derive(Default)]
struct Seen {
    created: Option<Timestamp>,
    /// When each pod became ready or stopped being so.
    pods: BTreeMap<Box<str>, Timestamp>,
}

impl TriggerTimes {
    /// The earliest change since the last call. At the first call for a service this is its creation.
    pub fn next<'a>(
        &self,
        service: &Key,
        created: Option<Timestamp>,
        pods: impl Iterator<Item = (&'a str, Option<Timestamp>)>,
    ) -> Option<Timestamp> {
        let now = Seen { created, pods: pods.filter_map(|(name, at)| Some((name.into(), at?))).collect() };
        let mut all = self.0.lock();
        let Some(before) = all.get_mut(service) else {
            all.insert(service.clone(), now);
            return created;
        };
        let later = |at: &Timestamp, before: Option<&Timestamp>| before.is_none_or(|b| at > b);
        let pods = now.pods.iter().filter(|(name, at)| later(at, before.pods.get(*name))).map(|(_, at)| *at);
        let service = now.created.filter(|at| later(at, before.created.as_ref()));
        let first = pods.chain(service).min();
        *before = now;
        first
    }

    pub fn forget(&self, service: &Key) {
        self.0.lock().remove(service);
    }
}

/// Sets the annotation of an object that is written, or removes an older one.
pub(super) fn annotate(o: &mut Object, time: Option<Timestamp>) {
    match time {
        Some(at) => o.set_annotation(ANNOTATION, &meta::time::format(at)),
        None => {
            o.remove(&["metadata", "annotations", ANNOTATION]);
            if o.annotations().next().is_none() {
                o.metadata_mut().remove("annotations");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_earliest_change_since_the_last_time_counts() {
        let at = |s: i64| Some(Timestamp::from_second(1_800_000_000 + s).unwrap());
        let (times, key) = (TriggerTimes::default(), Key::new("x", "s"));
        let next = |pods: &[(&'static str, Option<Timestamp>)]| times.next(&key, at(0), pods.iter().copied());
        assert_eq!(next(&[("a", at(5))]), at(0), "the service is new");
        assert_eq!(next(&[("a", at(5))]), None);
        assert_eq!(next(&[("a", at(9)), ("b", at(7)), ("c", None)]), at(7));
        assert_eq!(next(&[("a", at(9))]), None, "a pod that is gone has no time");
        times.forget(&key);
        assert_eq!(next(&[]), at(0));
    }

    #[test]
    fn an_older_annotation_is_removed() {
        let mut o = Object::from_value(json!({"metadata": {"name": "s"}})).unwrap();
        let before = o.clone();
        annotate(&mut o, Some(Timestamp::UNIX_EPOCH));
        assert_eq!(o.annotation(ANNOTATION), Some("1970-01-01T00:00:00Z"));
        annotate(&mut o, None);
        assert_eq!(o, before);
    }
}
