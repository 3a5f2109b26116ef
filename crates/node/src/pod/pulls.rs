//! Back-off of image pulls that failed: after 10 s, 20 s, … 5 min (kubelet `images/image_manager.go`).

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::backoff::{INITIAL, MAX};

/// How long after a failed pull the container reports its back-off.
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// How often the node checks meanwhile whether the image was imported.
const LOOK: Duration = Duration::from_secs(10);

/// The failed pulls of a pod, by image.
#[derive(Debug, Default)]
pub(super) struct Pulls(BTreeMap<String, Failed>);

#[derive(Debug)]
struct Failed {
    until: Timestamp,
    delay: Duration,
    error: String,
}

impl Pulls {
    /// The error of the last pull of `image`, while it backs off.
    pub(super) fn backs_off(&self, image: &str, now: Timestamp) -> Option<&str> {
        self.0.get(image).filter(|f| f.until > now).map(|f| f.error.as_str())
    }

    /// Records that a pull of `image` failed. The delay of the next one doubles.
    pub(super) fn failed(&mut self, image: &str, error: &str, now: Timestamp) {
        let delay = self.0.get(image).map_or(INITIAL, |f| (f.delay * 2).min(MAX));
        let failed = Failed { until: now + delay, delay, error: error.to_owned() };
        self.0.insert(image.to_owned(), failed);
    }

    /// How long until the next check.
    pub(super) fn next_look(&self, image: &str, first: bool, now: Timestamp) -> Duration {
        let longest = if first { FIRST_LOOK } else { LOOK };
        self.0.get(image).map_or(longest, |f| meta::time::left(now, f.until).min(longest))
    }

    /// Forgets the failures of an image that is present.
    pub(super) fn forget(&mut self, image: &str) {
        self.0.remove(image);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clauses: P10
    #[test]
    fn pulls_wait_longer_each_time_while_the_node_looks_for_the_image() {
        let (mut pulls, mut now, mut delays) =
            (Pulls::default(), Timestamp::from_second(1_000_000).unwrap(), Vec::new());
        for _ in 0..7 {
            assert!(pulls.backs_off("a", now).is_none());
            pulls.failed("a", "no registry", now);
            let (start, mut looks) = (now, 0);
            now += pulls.next_look("a", true, now);
            while pulls.backs_off("a", now) == Some("no registry") {
                now += pulls.next_look("a", false, now);
                looks += 1;
            }
            let waited = now.duration_since(start).as_secs();
            assert_eq!(looks, waited / 10, "{waited} s");
            delays.push(waited);
        }
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
        assert!(pulls.backs_off("b", now).is_none());
        pulls.failed("a", "no registry", now);
        pulls.forget("a");
        assert!(pulls.backs_off("a", now).is_none());
    }
}
