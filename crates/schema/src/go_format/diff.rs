//! Unified diff of two texts, with three lines of context, by the algorithm of Python's and Go's `difflib`: the longest run of equal lines
//! first, then the parts before and behind it. A run does not begin at lines that a long text repeats often.

use std::collections::HashMap;
use std::fmt::Write;
use std::ops::Range;

const CONTEXT: usize = 3;
/// The number of lines from which on a line can be too common.
const LONG: usize = 200;

/// A run of equal lines: its start on either side, and its length.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    a: usize,
    b: usize,
    len: usize,
}

/// A part of both texts that is equal or differs.
#[derive(Clone, Debug)]
struct Stretch {
    equal: bool,
    a: Range<usize>,
    b: Range<usize>,
}

/// The hunks of the diff, each line with a line break. Empty for equal texts.
pub fn unified(a: &str, b: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (a.lines().collect(), b.lines().collect());
    let mut out = String::new();
    for hunk in hunks(stretches(&a, &b)) {
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { continue };
        let of = |from: usize, to: usize| match to - from {
            1 => format!("{}", from + 1),
            0 => format!("{from},0"),
            n => format!("{},{n}", from + 1),
        };
        let (left, right) = (of(first.a.start, last.a.end), of(first.b.start, last.b.end));
        // Writing to a string does not fail.
        let _ = writeln!(out, "@@ -{left} +{right} @@");
        for s in &hunk {
            let signs: &[(char, &[&str])] =
                if s.equal { &[(' ', &a[s.a.clone()])] } else { &[('-', &a[s.a.clone()]), ('+', &b[s.b.clone()])] };
            for (sign, lines) in signs {
                lines.iter().for_each(|l| out.extend([&*sign.to_string(), l, "\n"]));
            }
        }
    }
    out
}

/// Groups changes with their context into hunks.
fn hunks(mut all: Vec<Stretch>) -> Vec<Vec<Stretch>> {
    if let Some(first) = all.first_mut().filter(|s| s.equal) {
        let n = first.a.len().saturating_sub(CONTEXT);
        first.a.start += n;
        first.b.start += n;
    }
    if let Some(last) = all.last_mut().filter(|s| s.equal) {
        let n = last.a.len().saturating_sub(CONTEXT);
        last.a.end -= n;
        last.b.end -= n;
    }
    let (mut out, mut hunk) = (Vec::new(), Vec::new());
    for s in all {
        if s.equal && s.a.len() > 2 * CONTEXT {
            let end = |r: &Range<usize>| r.start..r.start + CONTEXT;
            let begin = |r: &Range<usize>| r.end - CONTEXT..r.end;
            hunk.push(Stretch { equal: true, a: end(&s.a), b: end(&s.b) });
            out.push(std::mem::take(&mut hunk));
            hunk.push(Stretch { equal: true, a: begin(&s.a), b: begin(&s.b) });
        } else {
            hunk.push(s);
        }
    }
    out.push(hunk);
    out.retain(|h| h.iter().any(|s| !s.equal));
    out
}

fn stretches(a: &[&str], b: &[&str]) -> Vec<Stretch> {
    let (mut i, mut j) = (0, 0);
    let mut out = Vec::new();
    for run in runs(a, b).into_iter().chain([Run { a: a.len(), b: b.len(), len: 0 }]) {
        if i < run.a || j < run.b {
            out.push(Stretch { equal: false, a: i..run.a, b: j..run.b });
        }
        (i, j) = (run.a + run.len, run.b + run.len);
        if run.len > 0 {
            out.push(Stretch { equal: true, a: run.a..i, b: run.b..j });
        }
    }
    out
}

/// All runs in order; adjacent ones are joined.
fn runs(a: &[&str], b: &[&str]) -> Vec<Run> {
    let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
    for (j, line) in b.iter().enumerate() {
        places.entry(line).or_default().push(j);
    }
    if b.len() >= LONG {
        places.retain(|_, at| at.len() <= b.len() / 100 + 1);
    }
    let mut found = Vec::new();
    let mut left = vec![(0..a.len(), 0..b.len())];
    while let Some((x, y)) = left.pop() {
        let run = longest(a, b, &places, &x, &y);
        if run.len == 0 {
            continue;
        }
        left.push((x.start..run.a, y.start..run.b));
        left.push((run.a + run.len..x.end, run.b + run.len..y.end));
        found.push(run);
    }
    found.sort_by_key(|r| r.a);
    let mut out: Vec<Run> = Vec::new();
    for r in found {
        match out.last_mut().filter(|l| l.a + l.len == r.a && l.b + l.len == r.b) {
            Some(l) => l.len += r.len,
            None => out.push(r),
        }
    }
    out
}

/// The longest run within bounds: the first one on the left, then on the right.
fn longest(a: &[&str], b: &[&str], places: &HashMap<&str, Vec<usize>>, x: &Range<usize>, y: &Range<usize>) -> Run {
    let mut best = Run { a: x.start, b: y.start, len: 0 };
    // The length of the run that ends at each line of the right side.
    let mut ending: HashMap<usize, usize> = HashMap::new();
    for i in x.clone() {
        let mut next = HashMap::new();
        let here = places.get(a[i]).map_or(&[][..], Vec::as_slice);
        for &j in here.iter().filter(|j| y.contains(j)) {
            let len = 1 + j.checked_sub(1).and_then(|j| ending.get(&j)).copied().unwrap_or(0);
            next.insert(j, len);
            if len > best.len {
                best = Run { a: i + 1 - len, b: j + 1 - len, len };
            }
        }
        ending = next;
    }
    // Common lines begin no run, but extend an adjacent one.
    while best.a > x.start && best.b > y.start && a[best.a - 1] == b[best.b - 1] {
        best = Run { a: best.a - 1, b: best.b - 1, len: best.len + 1 };
    }
    while best.a + best.len < x.end && best.b + best.len < y.end && a[best.a + best.len] == b[best.b + best.len] {
        best.len += 1;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_show_what_is_around() {
        let text = |n: Range<u32>| n.map(|i| format!("{i}\n")).collect::<String>();
        let a = text(0..30);
        let cases = [
            (a.clone(), String::new()),
            (a.replace("\n15\n", "\nx\n"), "@@ -13,7 +13,7 @@\n 12\n 13\n 14\n-15\n+x\n 16\n 17\n 18\n".to_owned()),
            (text(1..30), "@@ -1,4 +1,3 @@\n-0\n 1\n 2\n 3\n".to_owned()),
            (
                a.replace("\n5\n", "\n").replace("\n20\n", "\n20\n20\n"),
                "@@ -3,7 +3,6 @@\n 2\n 3\n 4\n-5\n 6\n 7\n 8\n@@ -19,6 +18,7 @@\n 18\n 19\n 20\n+20\n 21\n 22\n 23\n"
                    .to_owned(),
            ),
        ];
        for (b, want) in cases {
            assert_eq!(unified(&a, &b), want);
        }
        assert_eq!(unified("a", "b"), "@@ -1 +1 @@\n-a\n+b\n");
    }
}
