//! Decides about an object whose owners are known. Pure: data to data.

use super::graph::{FOREGROUND, ORPHAN};
use client::Propagation;

/// The state of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It exists and is not waiting for its dependents.
    Solid,
    /// It does not exist.
    Dangling,
    /// It is being deleted in the foreground and waits for its dependents.
    Waiting,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    Stay,
    /// Some owners are solid: remove the references to the others (by UID).
    DropReferences(Vec<String>),
    Delete(Propagation),
}

/// `finalizers` are the object's own; `has_dependents`: whether it owns other objects.
pub fn fate(owners: &[(String, Standing)], finalizers: &[String], has_dependents: bool) -> Fate {
    let with = |s: Standing| owners.iter().filter(move |(_, o)| *o == s);
    if owners.is_empty() {
        return Fate::Stay;
    }
    if with(Standing::Solid).next().is_some() {
        let loose: Vec<String> =
            owners.iter().filter(|(_, s)| *s != Standing::Solid).map(|(uid, _)| uid.clone()).collect();
        return if loose.is_empty() { Fate::Stay } else { Fate::DropReferences(loose) };
    }
    if with(Standing::Waiting).next().is_some() && has_dependents {
        return Fate::Delete(Propagation::Foreground);
    }
    // The finalizers of the object keep the deletion policy that was requested for it.
    let has = |f: &str| finalizers.iter().any(|x| x == f);
    Fate::Delete(if has(ORPHAN) {
        Propagation::Orphan
    } else if has(FOREGROUND) {
        Propagation::Foreground
    } else {
        Propagation::Background
    })
}

#[cfg(test)]
mod tests {
    use super::Standing::*;
    use super::*;

    /// Clauses: C10.owners, C10.foreground
    #[test]
    fn fates() {
        let o = |s: &[Standing]| -> Vec<(String, Standing)> {
            s.iter().enumerate().map(|(i, s)| (i.to_string(), *s)).collect()
        };
        assert_eq!(fate(&[], &[], false), Fate::Stay);
        assert_eq!(fate(&o(&[Solid]), &[], false), Fate::Stay);
        let dropped = Fate::DropReferences(vec!["1".into(), "2".into()]);
        assert_eq!(fate(&o(&[Solid, Dangling, Waiting]), &[], false), dropped);
        assert_eq!(fate(&o(&[Dangling]), &[], true), Fate::Delete(Propagation::Background));
        assert_eq!(fate(&o(&[Waiting]), &[], true), Fate::Delete(Propagation::Foreground));
        assert_eq!(fate(&o(&[Waiting, Dangling]), &[], false), Fate::Delete(Propagation::Background));
        assert_eq!(fate(&o(&[Dangling]), &[ORPHAN.into()], false), Fate::Delete(Propagation::Orphan));
    }
}
