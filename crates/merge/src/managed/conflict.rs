//! Conflicts and how the API tells of them.

use super::entry::{Entry, Operation};
use crate::fieldset::{PathElement, Set};
use meta::status::{Cause, Details};
use meta::{Reason, Status};
use std::fmt;

/// A field that another manager owns with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The manager as conflicts print it: `"m1" with subresource "scale" using apps/v1`.
    pub manager: String,
    pub path: Vec<PathElement>,
}

impl Conflict {
    /// `.spec.replicas`
    pub fn field(&self) -> String {
        self.path.iter().map(ToString::to_string).collect()
    }
}

/// All conflicts of one apply, by manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflicts(pub Vec<Conflict>);

impl Conflicts {
    pub(super) fn add(&mut self, entry: &Entry, fields: &Set) {
        let manager = describe(entry);
        self.0.extend(fields.paths().into_iter().map(|path| Conflict { manager: manager.clone(), path }));
    }

    pub(super) fn without(mut self, allowed: &Set) -> Self {
        self.0.retain(|c| !allowed.has(&c.path));
        self
    }

    /// 409 with a cause per field.
    pub fn status(&self) -> Status {
        let causes = self.0.iter().map(|c| Cause {
            reason: "FieldManagerConflict".to_owned(),
            message: format!("conflict with {}", c.manager),
            field: c.field(),
        });
        Status::new(409, Reason::Conflict, self.to_string())
            .with_details(Details { causes: causes.collect(), ..Details::default() })
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
        if let [one] = self.0.as_slice() {
            return write!(f, "Apply failed with 1 conflict: conflict with {}: {}", one.manager, one.field());
        }
        write!(f, "Apply failed with {} conflicts: ", self.0.len())?;
        let mut manager = None;
        for (i, c) in self.0.iter().enumerate() {
            if manager != Some(&c.manager) {
                write!(f, "{}conflicts with {}:", if i > 0 { "\n" } else { "" }, c.manager)?;
                manager = Some(&c.manager);
            }
            write!(f, "\n- {}", c.field())?;
        }
        Ok(())
    }
}

impl std::error::Error for Conflicts {}
