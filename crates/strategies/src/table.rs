//! The table of the kinds whose behaviour is more than their description.
//!
//! Such a kind has a file `<group>/<kind in snake case>.rs` with a function `row`, and `<group>/mod.rs` names it in `kinds!`. A group's
//! directory is called as its `.kinds` file, up to the first dot. A kind that no table names is plain.

use crate::Config;
use crate::plain::Plain;
use registry::{Function, Strategy};
use std::sync::Arc;

/// What the server does with a kind beside its description.
pub struct Row {
    pub strategy: Arc<dyn Strategy>,
    /// Answers the requests of a resource that is not stored.
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

/// The name of a kind's file, and its row.
pub type Entry = (&'static str, fn(&Config) -> Row);

/// Names the kinds of a group that have a file.
macro_rules! kinds {
    ($($kind:ident),* $(,)?) => {
        pub(crate) const KINDS: &[$crate::table::Entry] = &[$((stringify!($kind), $kind::row)),*];
    };
}

/// Names the groups that have a directory.
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
    let letters: Vec<char> = kind.chars().collect();
    let mut out = String::new();
    for (i, c) in letters.iter().enumerate() {
        let after_word = i > 0 && !letters[i - 1].is_uppercase();
        let begins_word = i > 0 && letters.get(i + 1).is_some_and(|next| next.is_lowercase());
        if c.is_uppercase() && (after_word || begins_word) {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}
