//! Warnings of responses.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// The distinct warnings of a response, of bounded length (`k8s.io/apiserver/pkg/endpoints/filters/warning.go`):
/// above 4096 characters in total, each is truncated to 256, and those beyond 4096 are dropped. Clones share them.
#[derive(Clone, Default)]
pub struct Warnings(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    texts: Vec<String>,
    known: HashSet<String>,
    /// Characters of all warnings: complete, and truncated.
    whole: usize,
    cut: usize,
}

/// Maximum total length of warnings, in characters.
const ALL_WARNINGS: usize = 4096;
/// Length that warnings are truncated to above the total limit, in characters.
const ONE_WARNING: usize = 256;

impl Recorded {
    fn too_many(&self) -> bool {
        self.whole > ALL_WARNINGS
    }
}

impl Warnings {
    pub fn push(&self, text: impl Into<String>) {
        let Ok(mut w) = self.0.lock() else { return };
        if w.too_many() && w.cut >= ALL_WARNINGS {
            return;
        }
        // Truncate early what exceeds the total limit on its own.
        let mut text: String = text.into();
        if let Some((end, _)) = text.char_indices().nth(ALL_WARNINGS + 1) {
            text.truncate(end);
        }
        if text.is_empty() || !w.known.insert(text.clone()) {
            return;
        }
        let length = text.chars().count();
        w.whole += length;
        w.cut += length.min(ONE_WARNING);
        w.texts.push(text);
    }

    pub fn take(&self) -> Vec<String> {
        let Ok(recorded) = self.0.lock().map(|mut w| std::mem::take(&mut *w)) else { return Vec::new() };
        if !recorded.too_many() {
            return recorded.texts;
        }
        let mut total = 0;
        let fitting = recorded.texts.into_iter().map(|t| t.chars().take(ONE_WARNING).collect::<String>());
        let until_enough = fitting.take_while(|t| {
            let fits = total < ALL_WARNINGS;
            total += t.chars().count();
            fits
        });
        until_enough.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deduplicates_and_bounds_warnings() {
        let w = Warnings::default();
        for text in ["a", "b", "a", ""] {
            w.push(text);
        }
        assert_eq!(w.take(), ["a", "b"]);
        (0..100_000).for_each(|i| w.push(format!("unknown field {i}: {}", "x".repeat(300))));
        let texts = w.take();
        assert!(texts.len() == 16 && texts.iter().all(|t| t.len() == ONE_WARNING), "{}", texts.len());
        w.push("x".repeat(1 << 20));
        assert_eq!(w.take(), ["x".repeat(ONE_WARNING)]);
        w.push("x".repeat(ALL_WARNINGS));
        assert_eq!(w.take(), ["x".repeat(ALL_WARNINGS)]);
    }
}
