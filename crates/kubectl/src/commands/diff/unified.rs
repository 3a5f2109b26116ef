//! Unified differences, for machines without a `diff` program.

use std::collections::BTreeSet;
use std::path::Path;

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// Compares two directories of files; one that is only in one of them is empty in the other.
pub fn directories(from: &Path, to: &Path) -> std::io::Result<String> {
    let mut names = BTreeSet::new();
    for d in [from, to] {
        for e in std::fs::read_dir(d)? {
            names.insert(e?.file_name());
        }
    }
    let mut out = String::new();
    for n in names {
        let read = |d: &Path| match std::fs::read_to_string(d.join(&n)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            r => r,
        };
        let (a, b) = (read(from)?, read(to)?);
        let hunks = texts(&a, &b);
        if !hunks.is_empty() {
            let (p, q) = (from.join(&n), to.join(&n));
            out.push_str(&format!("diff -u -N {} {}\n", p.display(), q.display()));
            out.push_str(&format!("--- {}\n+++ {}\n{hunks}", p.display(), q.display()));
        }
    }
    Ok(out)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line<'a> {
    Both(&'a str),
    Old(&'a str),
    New(&'a str),
}

/// The lines of both texts in one order, by a longest common subsequence. What is equal at both ends is not compared.
fn lines<'a>(a: &'a str, b: &'a str) -> Vec<Line<'a>> {
    let (a, b): (Vec<&str>, Vec<&str>) = (a.lines().collect(), b.lines().collect());
    let head = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let tail = a[head..].iter().rev().zip(b[head..].iter().rev()).take_while(|(x, y)| x == y).count();
    let (x, y) = (&a[head..a.len() - tail], &b[head..b.len() - tail]);
    // How long the common rest is from here on.
    let width = y.len() + 1;
    let mut rest = vec![0u32; (x.len() + 1) * width];
    for i in (0..x.len()).rev() {
        for j in (0..y.len()).rev() {
            rest[i * width + j] = if x[i] == y[j] {
                rest[(i + 1) * width + j + 1] + 1
            } else {
                rest[(i + 1) * width + j].max(rest[i * width + j + 1])
            };
        }
    }
    let mut out: Vec<Line<'a>> = a[..head].iter().copied().map(Line::Both).collect();
    let (mut i, mut j) = (0, 0);
    while i < x.len() || j < y.len() {
        if i < x.len() && j < y.len() && x[i] == y[j] {
            out.push(Line::Both(x[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == y.len() || (i < x.len() && rest[(i + 1) * width + j] >= rest[i * width + j + 1]) {
            out.push(Line::Old(x[i]));
            i += 1;
        } else {
            out.push(Line::New(y[j]));
            j += 1;
        }
    }
    out.extend(a[a.len() - tail..].iter().copied().map(Line::Both));
    out
}

/// The hunks of the differences; empty when there are none.
fn texts(a: &str, b: &str) -> String {
    let all = lines(a, b);
    let changed: Vec<usize> = (0..all.len()).filter(|&i| !matches!(all[i], Line::Both(_))).collect();
    let mut hunks: Vec<(usize, usize)> = Vec::new();
    for i in changed {
        let (from, to) = (i.saturating_sub(CONTEXT), (i + CONTEXT + 1).min(all.len()));
        match hunks.last_mut() {
            Some(last) if from <= last.1 => last.1 = to,
            _ => hunks.push((from, to)),
        }
    }
    let mut out = String::new();
    for (from, to) in hunks {
        let count = |range: &[Line<'_>]| {
            let old = range.iter().filter(|l| !matches!(l, Line::New(_))).count();
            (old, range.iter().filter(|l| !matches!(l, Line::Old(_))).count())
        };
        let (before, inside) = (count(&all[..from]), count(&all[from..to]));
        let at = |before: usize, n: usize| match n {
            0 => format!("{before},0"),
            1 => format!("{}", before + 1),
            n => format!("{},{n}", before + 1),
        };
        out.push_str(&format!("@@ -{} +{} @@\n", at(before.0, inside.0), at(before.1, inside.1)));
        for l in &all[from..to] {
            let (sign, text) = match l {
                Line::Both(t) => (' ', t),
                Line::Old(t) => ('-', t),
                Line::New(t) => ('+', t),
            };
            out.push_str(&format!("{sign}{text}\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_those_of_diff() {
        for (a, b, want) in [
            ("a\n", "a\n", ""),
            ("", "a\nb\n", "@@ -0,0 +1,2 @@\n+a\n+b\n"),
            ("a\nb\nc\n", "a\nx\nc\n", "@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n"),
            ("a\n", "", "@@ -1 +0,0 @@\n-a\n"),
            (
                "1\n2\n3\n4\n5\n6\n7\n8\n9\n",
                "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n",
                "@@ -1,3 +1,4 @@\n+0\n 1\n 2\n 3\n@@ -7,3 +8,4 @@\n 7\n 8\n 9\n+10\n",
            ),
        ] {
            assert_eq!(texts(a, b), want);
        }
    }
}
