//! Which clauses of the requirements are named by which tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Prints each requirement with its clauses and the files of the tests that name them.
pub fn run(root: &Path) -> Result<(), Vec<String>> {
    let mut files = Vec::new();
    for d in ["crates", "scripts"] {
        collect(&root.join(d), &mut files);
    }
    let mut clauses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for f in &files {
        let Ok(text) = fs::read_to_string(f) else { continue };
        let name = f.strip_prefix(root).unwrap_or(f).display().to_string();
        for line in text.lines() {
            let Some((_, list)) = line.split_once("Clauses: ") else { continue };
            for c in list.split([',', ' ']).filter(|c| is_clause(c)) {
                clauses.entry(c.to_owned()).or_default().insert(name.clone());
            }
        }
    }
    let known = rows();
    for row in &known {
        let own: Vec<_> = clauses.iter().filter(|(c, _)| c.split('.').next() == Some(row)).collect();
        if own.is_empty() {
            println!("{row}  –");
        }
        for (c, tests) in own {
            println!("{c}  {}", tests.iter().cloned().collect::<Vec<_>>().join(", "));
        }
    }
    let covered = known.iter().filter(|r| clauses.keys().any(|c| c.split('.').next() == Some(r))).count();
    println!("{} clauses named by tests; {covered} of {} requirements touched", clauses.len(), known.len());
    Ok(())
}

fn is_clause(text: &str) -> bool {
    text.split_once('.')
        .is_some_and(|(row, c)| row.len() == 3 && row.as_bytes()[0].is_ascii_uppercase() && !c.is_empty())
}

/// The rows of the requirements: a letter and how many there are.
fn rows() -> Vec<String> {
    let groups = [('A', 16), ('S', 12), ('P', 20), ('C', 14), ('R', 7), ('K', 12), ('Q', 6), ('G', 9)];
    groups.iter().flat_map(|(l, n)| (1..=*n).map(move |i| format!("{l}{i:02}"))).collect()
}

fn collect(dir: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for e in entries.flatten() {
        let p = e.path();
        if p.is_dir() {
            collect(&p, out);
        } else if p.extension().is_none_or(|x| x == "rs" || x == "sh" || x == "py") {
            out.push(p);
        }
    }
}
