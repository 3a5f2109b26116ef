//! The objects that a watch or a read is about.

use crate::{Key, Str};

/// The objects of a watch or read: a resource, maybe one namespace or name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The storage name of the resource.
    pub resource: Str,
    /// The namespace; none for all.
    pub namespace: Option<Str>,
    /// The name of the object; none for all.
    pub name: Option<Str>,
}

impl Scope {
    /// All objects of a resource.
    pub fn resource(resource: &str) -> Scope {
        Scope { resource: resource.into(), namespace: None, name: None }
    }

    /// Whether the key is in the scope.
    pub fn contains(&self, key: &Key) -> bool {
        self.resource == key.resource && self.contains_place(&key.namespace, &key.name)
    }

    /// Whether every key of the other scope is in this one.
    pub(crate) fn includes(&self, other: &Scope) -> bool {
        let covers = |mine: &Option<Str>, other: &Option<Str>| mine.is_none() || mine == other;
        self.resource == other.resource && covers(&self.namespace, &other.namespace) && covers(&self.name, &other.name)
    }

    pub(crate) fn contains_place(&self, namespace: &str, name: &str) -> bool {
        self.namespace.as_ref().is_none_or(|n| &**n == namespace) && self.name.as_ref().is_none_or(|n| &**n == name)
    }
}
