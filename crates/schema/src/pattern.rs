//! Patterns of schemas. They are compiled when they first match a value, and cached within a bound: definitions may have any number of
//! them, and a compiled pattern takes a hundred times the memory of its text, more while it searches.

use crate::strings::Str;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use regex::{Regex, RegexBuilder};
use std::cell::Cell;
use std::sync::LazyLock;

/// The work left for the validation of one object, or of the defaults of one definition. A unit is the comparison of a character of a string
/// with one of a pattern: 20 ns at worst.
pub struct Work(Cell<u64>);

impl Default for Work {
    fn default() -> Self {
        Self(Cell::new(Self::MOST))
    }
}

impl Work {
    /// Two seconds at worst.
    const MOST: u64 = 100_000_000;

    /// The work for the validation of one object.
    pub fn new() -> Self {
        Self::default()
    }

    #[cfg(test)]
    pub(super) fn with(units: u64) -> Self {
        Self(Cell::new(units))
    }

    /// Takes units of work. False if there are not enough; then none are left.
    pub(super) fn take(&self, units: u64) -> bool {
        let left = self.0.get().checked_sub(units);
        self.0.set(left.unwrap_or_default());
        left.is_some()
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.get() == 0
    }
}

/// A regular expression.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The text of the pattern, in RE2's syntax.
    pub text: Str,
}

/// Maximum bytes of the compiled patterns of all definitions together.
const ROOM: u64 = 96 << 20;
/// Maximum bytes of the table of a search, per direction and thread.
const TABLE: usize = 64 << 10;
/// Limits of the size of a compiled pattern, in bytes, tried in turn.
const LIMITS: [usize; 3] = [32 << 10, 512 << 10, 10 << 20];
/// More parts than a pattern within the last limit can have.
const MOST_PARTS: usize = 1 << 20;

/// A compiled pattern, if its text is valid.
#[derive(Clone)]
struct Compiled {
    regex: Option<Regex>,
    /// Estimated bytes, with the tables of searches.
    size: usize,
    /// Work per byte of a string.
    each: u64,
    /// Work of compiling it.
    making: u64,
}

/// Work of compiling a pattern, and of each of its parts.
const ONCE: u64 = 2_000;
const PART: u64 = 5;

impl Compiled {
    fn new(text: &str) -> Self {
        let translated = meta::re2::translate(text);
        let pattern = meta::re2::size(&translated);
        let each = 1 + pattern.positions as u64;
        let making = ONCE + PART * pattern.parts.min(MOST_PARTS) as u64;
        for limit in LIMITS {
            match RegexBuilder::new(&translated).size_limit(limit).dfa_size_limit(TABLE).build() {
                Ok(regex) => return Self { regex: Some(regex), size: 2 * limit + 4 * TABLE, each, making },
                Err(regex::Error::CompiledTooBig(_)) => {}
                Err(_) => break,
            }
        }
        Self { regex: None, size: 256, each, making }
    }
}

#[derive(Clone)]
struct Size;

impl Weighter<Str, Compiled> for Size {
    fn weight(&self, text: &Str, compiled: &Compiled) -> u64 {
        (text.len() + compiled.size) as u64
    }
}

static COMPILED: LazyLock<Cache<Str, Compiled, Size>> =
    LazyLock::new(|| Cache::with_weighter((ROOM / (LIMITS[0] + TABLE) as u64) as usize, ROOM, Size));

impl Pattern {
    /// A pattern with this text. It is compiled on first use.
    pub fn new(text: &str) -> Self {
        Self { text: text.into() }
    }

    /// Whether the pattern matches. A pattern that does not compile matches everything, as upstream ignores it; so does any pattern when no
    /// work is left.
    pub(super) fn matches(&self, s: &str, work: &Work) -> bool {
        let compiled = COMPILED.get(&self.text).unwrap_or_else(|| {
            let made = Compiled::new(&self.text);
            work.take(made.making);
            COMPILED.insert(self.text.clone(), made.clone());
            made
        });
        !work.take(compiled.each.saturating_mul(s.len() as u64)) || compiled.regex.is_none_or(|r| r.is_match(s))
    }

    pub(super) fn size(&self) -> meta::re2::Size {
        meta::re2::size(&meta::re2::translate(&self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_know_unicode() {
        let check = |pattern: &str, yes: &str, no: &str| {
            let p = Pattern::new(pattern);
            let matches = |text| p.matches(text, &Work::new());
            assert!(matches(yes) && !matches(no), "{pattern}");
        };
        check(r"^\p{L}+$", "Größe", "größe1");
        check(r"^\p{Lu}\pN$", "Ä٣", "ä3");
        check(r"^\P{Greek}+$", "abc", "abγ");
        check(r"^(?i)straße$", "STRAßE", "strasse");
        assert!(Pattern::new(r"\p{Nobody}").matches("anything", &Work::new()), "an invalid pattern matches everything");
    }

    #[test]
    fn many_patterns_share_a_bounded_room() {
        let text = "abcdefghijklmnopqrstuvwxyzN".repeat(40);
        for i in 0..2_000 {
            let p = Pattern::new(&format!("[a-m][a-z]{{14}}[N-Z0-5]|x{i}y"));
            assert!(p.matches(&text, &Work::new()));
        }
        assert!(COMPILED.weight() <= ROOM && COMPILED.len() < 1_000, "{} in {}", COMPILED.weight(), COMPILED.len());
    }
}
