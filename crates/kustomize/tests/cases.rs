//! Test cases as directories: `tests/cases/NAME` (itself or its `overlay`) is built and compared with its `expected.yaml`,
//! or with `expected.error` if the build must fail.
//!
//! If a real kubectl with kustomize 5.5 or later is available, it builds the same directories. The file `differs` of a case
//! explains why versions of kustomize differ.
//!
//! Clauses: A15.resources, A15.components, A15.patches, A15.generators, A15.hashes, A15.images, A15.replicas, A15.namespace
//! Clauses: A15.prefixes, A15.labels, A15.replacements, A15.vars, A15.plugins, A15.order, A15.errors

#![allow(clippy::unwrap_used)] // a broken setup is a failed test

use kustomize::{Memory, Options, build};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn cases() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut all: Vec<PathBuf> = fs::read_dir(root).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    assert!(all.len() > 50, "{}", all.len());
    all
}

fn read_in(files: &mut Memory, dir: &Path, base: &Path) {
    for e in fs::read_dir(dir).unwrap() {
        let path = e.unwrap().path();
        if path.is_dir() {
            read_in(files, &path, base);
        } else {
            let name = path.strip_prefix(base).unwrap().to_str().unwrap().to_owned();
            files.insert(&format!("/{name}"), fs::read(&path).unwrap());
        }
    }
}

/// Returns the directory to build, relative to the case.
fn target(case: &Path) -> &'static str {
    if case.join("overlay").is_dir() { "overlay" } else { "." }
}

fn expected(case: &Path, extension: &str) -> Option<String> {
    fs::read_to_string(case.join(format!("expected.{extension}"))).ok()
}

/// Every case is built as by kustomize 5.
#[test]
fn builds_cases_as_kustomize_does() {
    let mut wrong = Vec::new();
    for case in cases() {
        let mut files = Memory::default();
        read_in(&mut files, &case, case.parent().unwrap());
        let name = case.file_name().unwrap().to_str().unwrap();
        let (result, _) = build(&files, &format!("/{name}/{}", target(&case)), Options::default());
        let (got, expectation) = match result {
            Ok(output) => (output.yaml(), expected(&case, "yaml").unwrap_or_default()),
            Err(e) => (format!("{e}\n"), expected(&case, "error").unwrap_or_default()),
        };
        if got != expectation {
            wrong.push(format!("=== {name}\n{got}--- expected\n{expectation}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A real kubectl builds what the cases expect.
#[test]
fn real_kubectl_builds_the_expected_output() {
    let Ok(version) = Command::new("kubectl").args(["version", "--client"]).output() else { return };
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    // Versions before 5.5 do some steps in another order.
    let minor =
        version.split_once("Kustomize Version: v5.").and_then(|(_, v)| v.split('.').next()?.parse::<u32>().ok());
    if minor.is_none_or(|m| m < 5) {
        return;
    }
    let mut wrong = Vec::new();
    for case in cases().into_iter().filter(|c| !c.join("differs").exists()) {
        let out = Command::new("kubectl").arg("kustomize").arg(case.join(target(&case))).output().unwrap();
        let name = case.file_name().unwrap().to_str().unwrap();
        let got = String::from_utf8_lossy(&out.stdout).into_owned();
        match expected(&case, "yaml") {
            Some(expectation) if out.status.success() && got == expectation => {}
            Some(expectation) => wrong
                .push(format!("=== {name}\n{got}{}--- expected\n{expectation}", String::from_utf8_lossy(&out.stderr))),
            None if out.status.success() => wrong.push(format!("=== {name}: built\n{got}")),
            None => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
