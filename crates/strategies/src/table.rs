//! The table of kinds with a strategy of their own.
//!
//! Such a kind has a file `<group>/<kind in snake case>.rs` with a function `row`, and `<group>/mod.rs` lists it in
//! `kinds!`. The directory of a group has the name of its `.kinds` file, up to the first dot. A kind that no table lists
//! is plain.

use crate::Config;
use crate::plain::Plain;
use registry::{Function, Strategy};
use std::sync::Arc;

/// The behaviour of a kind beyond its description.
pub struct Row {
    pub strategy: Arc<dyn Strategy>,
    /// Serves the requests of a resource that is not stored.
    pub function: Option<Arc<dyn Function>>,
}

impl Row {
    /// Returns the row of a kind that is stored.
    pub fn stored(strategy: impl Strategy + 'static) -> Self {
        Self { strategy: Arc::new(strategy), function: None }
    }

    /// Returns the row of a kind that is not stored.
    pub fn computed(strategy: impl Strategy + 'static, function: impl Function + 'static) -> Self {
        Self { strategy: Arc::new(strategy), function: Some(Arc::new(function)) }
    }
}

/// The file name of a kind, and its row.
pub type Entry = (&'static str, fn(&Config) -> Row);

/// Lists the kinds of a group that have a file.
macro_rules! kinds {
    ($($kind:ident),* $(,)?) => {
        pub(crate) const KINDS: &[$crate::table::Entry] = &[$((stringify!($kind), $kind::row)),*];
    };
}

/// Lists the groups that have a directory.
macro_rules! groups {
    ($($group:ident),* $(,)?) => {
        pub(crate) const GROUPS: &[(&str, &[$crate::table::Entry])] = &[$((stringify!($group), $crate::$group::KINDS)),*];
    };
}

/// Returns the row of a kind, which is plain unless it has a file.
pub fn row(config: &Config, group: &str, kind: &str) -> Row {
    match find(group, kind) {
        Some(row) => row(config),
        None => Row::stored(Plain),
    }
}

fn find(group: &str, kind: &str) -> Option<fn(&Config) -> Row> {
    let (directory, file) = (directory(group), snake_case(kind));
    let (_, kinds) = crate::GROUPS.iter().find(|(name, _)| *name == directory)?;
    kinds.iter().find(|(name, _)| *name == file).map(|(_, row)| *row)
}

/// Returns the directory of a group: `rbac` for `rbac.authorization.k8s.io`.
fn directory(group: &str) -> &str {
    match group {
        "" => "core",
        _ => group.split('.').next().unwrap_or(group),
    }
}

/// Returns the name of a kind's file: `csi_node` for `CSINode`.
fn snake_case(kind: &str) -> String {
    let characters: Vec<char> = kind.chars().collect();
    let mut out = String::new();
    for (i, c) in characters.iter().enumerate() {
        let after_word = i > 0 && !characters[i - 1].is_uppercase();
        let begins_word = i > 0 && characters.get(i + 1).is_some_and(|next| next.is_lowercase());
        if c.is_uppercase() && (after_word || begins_word) {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::{Path, PathBuf};

    fn source() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
    }

    /// Returns the files below `dir` by their path, without their tests.
    fn files(dir: &Path, out: &mut BTreeMap<PathBuf, String>) {
        for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                files(&path, out);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("testing.rs") {
                let text = std::fs::read_to_string(&path).expect("a file");
                let code = text.split("#[cfg(test)]\nmod").next().unwrap_or_default().to_owned();
                out.insert(path.strip_prefix(source()).expect("below the source").to_owned(), code);
            }
        }
    }

    fn code() -> BTreeMap<PathBuf, String> {
        let mut out = BTreeMap::new();
        files(&source(), &mut out);
        out
    }

    #[test]
    fn converts_kinds_to_file_names() {
        let check = |kind: &str, expect: &str| assert_eq!(snake_case(kind), expect);
        check("Pod", "pod");
        check("APIService", "api_service");
        check("CSIStorageCapacity", "csi_storage_capacity");
        check("IPAddress", "ip_address");
        check("ServiceCIDR", "service_cidr");
        assert_eq!(directory(""), "core");
        assert_eq!(directory("rbac.authorization.k8s.io"), "rbac");
    }

    #[test]
    fn every_entry_is_a_kind() {
        let kinds: BTreeSet<(&str, String)> =
            kinds::catalog().kinds.iter().map(|k| (directory(&k.group), snake_case(&k.kind))).collect();
        for (group, entries) in crate::GROUPS {
            for (name, _) in *entries {
                assert!(kinds.contains(&(group, (*name).to_owned())), "{group}/{name} is no kind of the catalogue");
            }
        }
        let groups: BTreeSet<&str> = kinds::catalog().kinds.iter().map(|k| &*k.group).collect();
        let directories: BTreeSet<&str> = groups.iter().map(|g| directory(g)).collect();
        assert_eq!(groups.len(), directories.len(), "two groups have one directory");
    }

    #[test]
    fn every_file_with_a_row_is_in_the_table() {
        for (path, code) in code() {
            let Some(group) = path.parent().filter(|_| code.contains(": &Config) -> Row {")) else { continue };
            let file = if path.ends_with("mod.rs") { group.to_owned() } else { path.with_extension("") };
            let (group, name) = (file.parent().unwrap_or(group), file.file_name().unwrap_or_default());
            let (_, kinds) = crate::GROUPS.iter().find(|(g, _)| group == Path::new(g)).expect("a group of the table");
            assert!(kinds.iter().any(|(k, _)| name == *k), "{}: kinds! does not name it", path.display());
        }
    }

    #[test]
    fn a_kind_without_a_file_is_plain() {
        assert!(find("", "Pod").is_some());
        for (group, kind) in [("coordination.k8s.io", "Lease"), ("", "Other"), ("other.example", "Pod")] {
            assert!(find(group, kind).is_none(), "{group} {kind}");
        }
    }

    #[test]
    fn kinds_are_named_by_tables_alone() {
        for (path, code) in code() {
            let shared = path.components().count() == 1 || path.ends_with("mod.rs") && path.components().count() == 2;
            for k in kinds::catalog().kinds.iter() {
                let pair = format!("({:?}, {:?})", k.group, k.plural);
                let matched = code.contains(&format!("{pair} =>")) || code.contains(&format!("{pair} |"));
                let named = shared && code.contains(&format!("{:?}", k.plural));
                assert!(!matched && !named, "{}: names {}", path.display(), k.plural);
            }
        }
    }
}
