//! Unified diffs, for machines without a `diff` program.

use similar::{Algorithm, TextDiff};
use std::collections::BTreeSet;
use std::path::Path;

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// Compares two directories of files. A file that only one of them has counts as empty in the other.
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
        let hunks = hunks(&a, &b);
        if !hunks.is_empty() {
            let (p, q) = (from.join(&n), to.join(&n));
            out.push_str(&format!("diff -u -N {} {}\n", p.display(), q.display()));
            out.push_str(&format!("--- {}\n+++ {}\n{hunks}", p.display(), q.display()));
        }
    }
    Ok(out)
}

/// Returns the hunks that turn `a` into `b`; empty if the lines are the same.
fn hunks(a: &str, b: &str) -> String {
    let diff = TextDiff::configure().algorithm(Algorithm::Lcs).diff_lines(a, b);
    diff.unified_diff().context_radius(CONTEXT).missing_newline_hint(false).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_are_those_of_diff() {
        for (a, b, expected) in [
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
            assert_eq!(hunks(a, b), expected);
        }
    }
}
