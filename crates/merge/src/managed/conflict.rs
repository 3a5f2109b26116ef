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
pub struct Conflicts(Vec<(String, Set)>);

impl Conflicts {
    pub(super) fn add(&mut self, entry: &Entry, fields: Set) {
        if !fields.is_empty() {
            self.0.push((describe(entry), fields));
        }
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
        for (manager, fields) in &self.0 {
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

fn describe(e: &Entry) -> String {
    let mut s = format!("{:?}", e.manager);
    if !e.subresource.is_empty() {
        s.push_str(&format!(" with subresource {:?}", e.subresource));
    }
    if e.operation == Operation::Update {
        s.push_str(&format!(" using {}", e.api_version));
    }
    s
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
