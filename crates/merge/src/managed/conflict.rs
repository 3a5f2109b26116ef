//! Conflicts, and the errors that report them.

use super::entry::{Entry, Operation};
use crate::fieldset::{PathElement, Set};
use meta::status::{Cause, Details};
use meta::{Reason, Status};
use std::fmt;

/// Maximum bytes of conflicts in a response.
const MOST_SAID: usize = 256 << 10;

/// A field that another manager owns with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The manager as conflicts print it: `"m1" with subresource "scale" using apps/v1`.
    pub manager: String,
    /// The path of the field.
    pub path: Vec<PathElement>,
}

impl Conflict {
    /// `.spec.replicas`
    pub fn field(&self) -> String {
        self.path.iter().map(ToString::to_string).collect()
    }
}

/// All conflicts of an apply: the managers, and the applied fields that each owns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflicts(Vec<(Owner, Set)>);

/// A manager whose fields conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owner {
    manager: String,
    subresource: String,
    /// Shown unless the manager applies.
    version: Option<String>,
}

impl Conflicts {
    pub(super) fn add(&mut self, entry: &Entry, fields: Set) {
        if !fields.is_empty() {
            let version = (entry.operation == Operation::Update).then(|| entry.api_version.clone());
            let (manager, subresource) = (entry.manager.clone(), entry.subresource.clone());
            self.0.push((Owner { manager, subresource, version }, fields));
        }
    }

    /// The conflicts as a subresource with another kind shows them: all are about its one field, in its version.
    pub fn through(self, api_version: &str, field: &[&str]) -> Self {
        let seen = |(owner, _): (Owner, Set)| {
            let version = owner.version.map(|_| api_version.to_owned());
            (Owner { version, ..owner }, Set::of_fields(&[field]))
        };
        Self(self.0.into_iter().map(seen).collect())
    }

    /// Whether there are no conflicts.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn without(self, allowed: &Set) -> Self {
        let left = self.0.into_iter().map(|(m, fields)| (m, fields.difference(allowed)));
        Self(left.filter(|(_, fields)| !fields.is_empty()).collect())
    }

    /// The conflicts by manager, within the limit of a response, and the number of others.
    pub fn list(&self) -> (Vec<Conflict>, usize) {
        let (mut out, mut all, mut size) = (Vec::new(), 0, 0);
        for (owner, fields) in &self.0 {
            let manager = owner.to_string();
            all += fields.len();
            for path in fields.paths_within(MOST_SAID.saturating_sub(size)) {
                if size > MOST_SAID {
                    break;
                }
                let conflict = Conflict { manager: manager.clone(), path };
                size += manager.len() + conflict.field().len();
                out.push(conflict);
            }
        }
        let left = all - out.len();
        (out, left)
    }

    /// 409 with a cause per field.
    pub fn status(&self) -> Status {
        let (list, left) = self.list();
        let cause = |message, field| Cause { reason: "FieldManagerConflict".to_owned(), message, field };
        let mut causes: Vec<Cause> =
            list.iter().map(|c| cause(format!("conflict with {}", c.manager), c.field())).collect();
        if left > 0 {
            causes.push(cause(format!("{left} more conflicts"), String::new()));
        }
        Status::new(409, Reason::Conflict, self.to_string()).with_details(Details { causes, ..Details::default() })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.manager)?;
        if !self.subresource.is_empty() {
            write!(f, " with subresource {:?}", self.subresource)?;
        }
        match &self.version {
            Some(version) => write!(f, " using {version}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (list, left) = self.list();
        if let ([one], 0) = (list.as_slice(), left) {
            return write!(f, "Apply failed with 1 conflict: conflict with {}: {}", one.manager, one.field());
        }
        write!(f, "Apply failed with {} conflicts: ", list.len() + left)?;
        let mut manager = None;
        for (i, c) in list.iter().enumerate() {
            if manager != Some(&c.manager) {
                write!(f, "{}conflicts with {}:", if i > 0 { "\n" } else { "" }, c.manager)?;
                manager = Some(&c.manager);
            }
            write!(f, "\n- {}", c.field())?;
        }
        if left > 0 {
            write!(f, "\nand {left} more")?;
        }
        Ok(())
    }
}

impl std::error::Error for Conflicts {}
