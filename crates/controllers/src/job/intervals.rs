//! Completion indexes as ordered intervals, as `status.completedIndexes` has them (`1,3-5,7`).

use std::fmt;

/// Disjoint intervals in increasing order, with their first and last index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals(Vec<(i64, i64)>);

impl Intervals {
    /// Parses indexes below `completions`. Others, and parts that are no numbers, are ignored.
    pub fn parse(text: &str, completions: i64) -> Self {
        let mut all: Vec<(i64, i64)> = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let mut limits = part.split('-');
            let number = |n: Option<&str>| n.and_then(|n| n.parse::<i64>().ok());
            let Some(first) = number(limits.next()) else { continue };
            if first >= completions {
                break;
            }
            let last = match limits.next() {
                None => first,
                Some(last) => match number(Some(last)) {
                    None => continue,
                    Some(last) => last.min(completions - 1),
                },
            };
            match all.last_mut() {
                Some(before) if before.1 == first - 1 => before.1 = last,
                _ => all.push((first, last)),
            }
        }
        Self(all)
    }

    /// Adds indexes, in increasing order.
    #[must_use]
    pub fn with(&self, indexes: impl IntoIterator<Item = i64>) -> Self {
        self.merged(&Self(indexes.into_iter().map(|i| (i, i)).collect()))
    }

    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let mut all: Vec<(i64, i64)> = self.0.iter().chain(&other.0).copied().collect();
        all.sort_unstable();
        let mut merged: Vec<(i64, i64)> = Vec::with_capacity(all.len());
        for (first, last) in all {
            match merged.last_mut() {
                Some(before) if first <= before.1 + 1 => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// The number of indexes.
    pub fn total(&self) -> i64 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, index: i64) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < index);
        self.0.get(at).is_some_and(|(first, _)| *first <= index)
    }

    /// The number of indexes that both have.
    pub fn common(&self, other: &Self) -> i64 {
        let (mut n, mut own, mut theirs) = (0, self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some((a, b)), Some((c, d))) = (own.peek(), theirs.peek()) {
            n += (b.min(d) - a.max(c) + 1).max(0);
            if b < d {
                own.next()
            } else {
                theirs.next()
            };
        }
        n
    }

    /// The first `count` indexes below `completions` that are missing.
    pub fn first_missing(&self, count: usize, completions: i64) -> Vec<i64> {
        let (mut missing, mut candidate) = (Vec::with_capacity(count), 0);
        for (first, last) in self.0.iter().chain([&(completions, completions)]) {
            let end = (*first).min(completions);
            missing.extend((candidate..end).take(count - missing.len()));
            candidate = candidate.max(last + 1);
        }
        missing
    }
}

impl fmt::Display for Intervals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, last)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_parsed_and_written() {
        for (text, completions, expect) in [
            ("", 10, ""),
            ("0", 10, "0"),
            ("0,1", 10, "0,1"),
            ("0,1,2,5", 10, "0-2,5"),
            ("0-2,3-5,7", 10, "0-5,7"),
            ("1-20", 10, "1-9"),
            ("1,10,12", 10, "1"),
            ("1,x,3-y,5", 10, "1,5"),
        ] {
            assert_eq!(Intervals::parse(text, completions).to_string(), expect, "{text}");
        }
    }

    #[test]
    fn intervals_are_sets() {
        let set = |text| Intervals::parse(text, 100);
        for (a, b, union, common) in [
            ("", "", "", 0),
            ("0-2", "", "0-2", 0),
            ("0-2", "1,3", "0-3", 1),
            ("0,4,8", "1-9", "0-9", 2),
            ("1-5,7-9", "3-8", "1-9", 5),
            ("5", "1", "1,5", 0),
        ] {
            assert_eq!(set(a).merged(&set(b)), set(union), "{a} and {b}");
            assert_eq!((set(a).common(&set(b)), set(b).common(&set(a))), (common, common), "{a} and {b}");
        }
        let some = set("1,3-5,9");
        assert_eq!((some.total(), some.has(4), some.has(2), some.has(10)), (5, true, false, false));
        assert_eq!(some.with([2, 6, 20]).to_string(), "1-6,9,20");
    }

    #[test]
    fn missing_indexes_are_found_in_order() {
        for (held, count, completions, expect) in [
            ("", 2, 5, &[0, 1][..]),
            ("", 9, 3, &[0, 1, 2]),
            ("0-2,4", 3, 10, &[3, 5, 6]),
            ("0-9", 3, 10, &[]),
            ("0-9,20", 3, 5, &[]),
            ("1", 0, 5, &[]),
        ] {
            assert_eq!(Intervals::parse(held, 100).first_missing(count, completions), expect, "{held}");
        }
    }
}
