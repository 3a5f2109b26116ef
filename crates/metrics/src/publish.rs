//! Metrics of parts of the process that the server of `/metrics` does not know, such as controllers.

use parking_lot::Mutex;
use std::collections::BTreeMap;

/// What each part shows.
static PARTS: Mutex<BTreeMap<&'static str, fn() -> String>> = Mutex::new(BTreeMap::new());

/// Shows the metrics of a part at `/metrics` from now on. `text` returns them in Prometheus' text format.
pub fn publish(part: &'static str, text: fn() -> String) {
    PARTS.lock().insert(part, text);
}

/// The metrics of all published parts in Prometheus' text format.
pub fn published() -> String {
    let parts: Vec<fn() -> String> = PARTS.lock().values().copied().collect();
    parts.into_iter().map(|text| text()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_shown_once() {
        publish("b", || "b 1\n".into());
        publish("a", || "a 1\n".into());
        publish("b", || "b 2\n".into());
        assert_eq!(published(), "a 1\nb 2\n");
    }
}
