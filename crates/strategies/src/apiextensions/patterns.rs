//! Compiles the patterns of a definition, within a budget.
//!
//! A short pattern may compile to a large program (`\pL{500}`), and a definition may have any number of patterns. The
//! budget counts the approximate program sizes of distinct patterns, by trying increasing limits. It is per thread,
//! since a definition is validated on one thread without interruption; see [`begin`].

use regex::RegexBuilder;
use std::cell::RefCell;
use std::collections::HashSet;

/// Increasing program size limits, in bytes.
const LIMITS: [usize; 6] = [16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 10 << 20];
/// Maximum total program size of a definition's patterns, in bytes.
const BUDGET: usize = 32 << 20;

#[derive(Default)]
struct Spent {
    bytes: usize,
    known: HashSet<String>,
}

thread_local! {
    static SPENT: RefCell<Spent> = RefCell::default();
}

/// Resets the budget, before a definition is validated.
pub fn begin() {
    SPENT.take();
}

/// Compiles a pattern. Errors if it is invalid, or exceeds the definition's budget.
pub fn check(pattern: &str) -> Result<(), String> {
    SPENT.with_borrow_mut(|spent| {
        if pattern.is_empty() || spent.known.contains(pattern) {
            return Ok(());
        }
        let text = meta::re2::translate(pattern);
        let mut error = String::new();
        for limit in LIMITS {
            if spent.bytes + limit > BUDGET {
                return Err(format!("all patterns of the definition together take more than {} MiB", BUDGET >> 20));
            }
            match RegexBuilder::new(&text).size_limit(limit).build() {
                Ok(_) => {
                    spent.bytes += limit;
                    spent.known.insert(pattern.to_owned());
                    return Ok(());
                }
                Err(e @ regex::Error::CompiledTooBig(_)) => error = e.to_string(),
                Err(e) => return Err(e.to_string()),
            }
        }
        spent.bytes += LIMITS[LIMITS.len() - 1];
        Err(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_the_total_size() {
        begin();
        let large: Vec<bool> = (0..300).map(|i| check(&format!(r"^\pL{{{}}}$", 100 + i)).is_ok()).collect();
        assert!(large[0] && !large[299]);
        assert!(check("a").is_ok() || large.iter().filter(|l| **l).count() > 10, "{large:?}");
        begin();
        assert!((0..1_500).all(|i| check(&format!("^[a-z0-9]([-a-z0-9]*[a-z0-9])?{i}$")).is_ok()));
        begin();
        let quantity = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";
        assert!((0..20_000).all(|_| check(quantity).is_ok()));
        assert!(check("(").is_err_and(|e| e.contains("unclosed group")));
        assert!(check(r"(\pL{1000}){1000}").is_err_and(|e| e.contains("size limit")));
    }
}
