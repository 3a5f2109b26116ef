//! Layers, sizes of files, tests that never run, and kinds named outside their places.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

/// A file with more lines wants to be two.
const MAX_LINES: usize = 1000;
/// Where `unsafe` may stand, and how often: one more is a decision, which changes this number too.
const UNSAFE: [(&str, usize); 2] = [("crates/runtime/", 50), ("crates/store/src/engine/lmdb/environment.rs", 5)];

pub fn run(root: &Path) -> Result<(), Vec<String>> {
    let mut problems = Vec::new();
    layers(root, &mut problems);
    let mut files = Vec::new();
    for d in ["crates", "xtask"] {
        collect(&root.join(d), &mut files);
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for f in &files {
        let name = f.strip_prefix(root).unwrap_or(f).display().to_string();
        match fs::read_to_string(f) {
            Ok(text) => {
                check_file(&name, &text, &mut problems);
                if let Some((room, _)) = UNSAFE.iter().find(|(p, _)| name.starts_with(p)) {
                    *counts.entry(room).or_default() += text.lines().filter(|l| is_unsafe(l)).count();
                }
            }
            Err(e) => problems.push(format!("{name}: {e}")),
        }
    }
    for (room, allowed) in UNSAFE {
        let found = counts.get(room).copied().unwrap_or(0);
        if found != allowed {
            problems.push(format!("{room}: {found} uses of unsafe, not {allowed} as tidy.rs has it"));
        }
    }
    forgotten(root, &files, &mut problems);
    named_kinds(root, &files, &mut problems);
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn collect(dir: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for e in entries.flatten() {
        let p = e.path();
        if p.is_dir() && p.file_name().is_none_or(|n| n != "target") {
            collect(&p, out);
        } else if p.extension().is_some_and(|x| x == "rs") {
            out.push(p);
        }
    }
    out.sort();
}

/// A crate's manifest, as far as layers go.
struct Manifest {
    layer: u32,
    /// Crates, ours and others, that it must not depend on, not even through another crate.
    must_not_know: Vec<String>,
    /// Direct dependencies. What only tests use may come from above.
    dependencies: Vec<String>,
}

impl Manifest {
    fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| text.lines().find_map(|l| l.strip_prefix(key)?.trim_start().strip_prefix("= "));
        let list = value("must-not-know").unwrap_or_default().trim_matches(['[', ']']);
        let section = text.split("\n[dependencies]\n").nth(1).unwrap_or_default();
        let names = section.lines().take_while(|l| !l.starts_with('[')).map(|l| l.split(['.', ' ', '=']).next());
        Some(Self {
            layer: value("layer")?.trim().parse().ok()?,
            must_not_know: list.split(", ").map(|n| n.trim_matches('"').to_owned()).filter(|n| !n.is_empty()).collect(),
            dependencies: names
                .flatten()
                .filter(|n| !n.is_empty())
                .map(|n| n.replace("kinds_roots", "kinds-roots"))
                .collect(),
        })
    }
}

/// Each crate depends only on crates of lower layers, and on none that its manifest says it must not know.
fn layers(root: &Path, problems: &mut Vec<String>) {
    let mut manifests: BTreeMap<String, Manifest> = BTreeMap::new();
    let Ok(entries) = fs::read_dir(root.join("crates")) else { return };
    for e in entries.flatten() {
        let name = e.file_name().to_string_lossy().into_owned();
        let Ok(text) = fs::read_to_string(e.path().join("Cargo.toml")) else { continue };
        match Manifest::parse(&text) {
            Some(m) => {
                manifests.insert(name, m);
            }
            None => problems.push(format!("crates/{name}/Cargo.toml has no layer in [package.metadata.kemudi]")),
        }
    }
    for (name, manifest) in &manifests {
        // The lowest layers have an order of their own.
        let order = |n: &str| ["meta", "schema"].iter().position(|p| *p == n).unwrap_or(2);
        for other in &manifest.dependencies {
            let Some(theirs) = manifests.get(other) else { continue };
            let below = theirs.layer < manifest.layer
                || (manifest.layer == 0 && theirs.layer == 0 && order(other) < order(name));
            if !below {
                problems.push(format!(
                    "{name} (layer {}) depends on {other} (layer {}), which is not below it",
                    manifest.layer, theirs.layer
                ));
            }
        }
        let top = manifests.values().map(|m| m.layer).max();
        if manifest.must_not_know.is_empty() && Some(manifest.layer) != top {
            problems.push(format!("crates/{name}/Cargo.toml does not list the crates that it must not know"));
        }
        for path in forbidden(&manifests, name) {
            problems.push(format!("{name} must not know {}: {}", path.last().map_or("", |n| n), path.join(" → ")));
        }
    }
}

/// The shortest way from a crate to each one that it must not know.
fn forbidden<'a>(manifests: &'a BTreeMap<String, Manifest>, name: &'a str) -> Vec<Vec<&'a str>> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::from([name]);
    let mut paths = VecDeque::from([vec![name]]);
    while let Some(path) = paths.pop_front() {
        let Some(manifest) = path.last().and_then(|n| manifests.get(*n)) else { continue };
        for dependency in &manifest.dependencies {
            if seen.insert(dependency) {
                let longer: Vec<&str> = path.iter().copied().chain([dependency.as_str()]).collect();
                if manifests[name].must_not_know.contains(dependency) {
                    found.push(longer.clone());
                }
                paths.push_back(longer);
            }
        }
    }
    found
}

fn check_file(name: &str, text: &str, problems: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > MAX_LINES {
        problems.push(format!("{name} has {lines} lines; it wants to be two rooms"));
    }
    for (i, line) in text.lines().enumerate() {
        let at = format!("{name}:{}", i + 1);
        let code = line.trim_start();
        // One that another test starts in a process of its own says so.
        if code.starts_with("#[ignore") && !code.contains("started by") {
            problems.push(format!("{at}: a test that is never run"));
        }
        if is_unsafe(line) && !UNSAFE.iter().any(|(p, _)| name.starts_with(p)) {
            problems.push(format!("{at}: unsafe outside the rooms that may"));
        }
        if name.contains("/src/") && ["utils", "helpers", "misc", "common"].iter().any(|b| code == format!("mod {b};"))
        {
            problems.push(format!("{at}: a room without a name of its own"));
        }
    }
}

/// Where the server handles all kinds alike, and must not name any.
const KINDLESS: [&str; 4] =
    ["crates/registry/src/", "crates/apiserver/src/", "crates/stored/src/", "crates/store/src/"];
/// Files there that may name kinds: the list of those that the server itself needs, and the audit log, whose kinds are not in `kinds/data`.
/// Upstream bans one kind as an owner of others in the validation of metadata.
const MAY_NAME_KINDS: [&str; 3] =
    ["crates/apiserver/src/server_kinds.rs", "crates/apiserver/src/audit/", "crates/registry/src/metadata.rs"];

/// A built-in kind is named in `kinds/data` and `strategies`, and by components that work with it, but not where all kinds are handled alike.
fn named_kinds(root: &Path, files: &[PathBuf], problems: &mut Vec<String>) {
    let mut quoted: Vec<String> = Vec::new();
    for e in fs::read_dir(root.join("crates/kinds/data")).into_iter().flatten().flatten() {
        let text = fs::read_to_string(e.path()).unwrap_or_default();
        for line in text.lines().filter_map(|l| l.strip_prefix("kind ")) {
            let mut words = line.split_whitespace();
            if let (Some(kind), Some(plural)) = (words.next(), words.next()) {
                quoted.push(format!("\"kind\": \"{kind}\""));
                // Also a field of slices.
                if plural != "endpoints" {
                    quoted.extend([format!("\"{plural}\""), format!("/{plural}\"")]);
                }
            }
        }
    }
    for f in files {
        let name = f.strip_prefix(root).unwrap_or(f).display().to_string();
        if !KINDLESS.iter().any(|k| name.starts_with(k)) || MAY_NAME_KINDS.iter().any(|k| name.starts_with(k)) {
            continue;
        }
        let text = fs::read_to_string(f).unwrap_or_default();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (i, line) in code.lines().enumerate().filter(|(_, l)| !l.trim_start().starts_with("//")) {
            if let Some(q) = quoted.iter().find(|q| line.contains(q.as_str())) {
                problems.push(format!("{name}:{}: names the kind of {q}, where all kinds are handled alike", i + 1));
            }
        }
    }
}

/// Whether a line of code begins an unsafe block, function or implementation.
fn is_unsafe(line: &str) -> bool {
    let code = line.trim_start();
    let word = concat!("un", "safe");
    let forms = [format!(" {word} {{"), format!("({word} {{"), format!(" {word} fn")];
    !code.starts_with("//")
        && (code.starts_with(&format!("{word} ")) || forms.iter().any(|f| code.contains(f.as_str())))
}

/// A file that no module names is compiled by nobody.
fn forgotten(root: &Path, files: &[PathBuf], problems: &mut Vec<String>) {
    for f in files {
        let name = f.strip_prefix(root).unwrap_or(f).display().to_string();
        let (Some(stem), Some(dir)) = (f.file_stem().map(|s| s.to_string_lossy().into_owned()), f.parent()) else {
            continue;
        };
        let root_like = ["lib", "main", "mod", "build"].contains(&stem.as_str());
        let top = ["tests", "examples", "benches", "bin", "build"].iter().any(|d| dir.ends_with(d));
        if root_like || top {
            continue;
        }
        let parent = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let mut owners = vec![dir.join("mod.rs"), dir.join("lib.rs"), dir.join("main.rs")];
        if let Some(up) = dir.parent() {
            owners.push(up.join(format!("{parent}.rs")));
        }
        let by_path = files.iter().filter(|o| o.starts_with(dir)).filter_map(|o| fs::read_to_string(o).ok());
        let quoted = format!("{stem}.rs\"");
        if by_path.into_iter().any(|t| t.contains("#[path") && t.contains(&quoted)) {
            continue;
        }
        let named = owners.iter().filter_map(|o| fs::read_to_string(o).ok()).any(|t| {
            t.lines().any(|l| {
                let l = l.trim();
                l.ends_with(&format!("mod {stem};"))
                    || l.contains(&format!("include!(\"{stem}.rs\")"))
                    || l.contains(&format!("\"{stem}.rs\""))
            })
        });
        if !named {
            problems.push(format!("{name}: no module names this file"));
        }
    }
}
