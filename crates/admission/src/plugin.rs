//! The one trait of all plugins, and their order.

use auth::Attributes;
use meta::{GroupResource, Gvk, Object, Status};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

/// One write as plugins see it. The new object is handed in beside.
pub struct Review<'a> {
    pub operation: Operation,
    pub attributes: &'a Attributes,
    pub kind: Gvk,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub old: Option<&'a Object>,
    pub dry_run: bool,
    pub lookup: &'a dyn Lookup,
}

impl Review<'_> {
    /// The main resource of this group and plural, not one of its subresources.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        self.attributes.group == group && self.attributes.resource == resource && self.subresource.is_empty()
    }

    pub fn group_resource(&self) -> GroupResource {
        GroupResource { group: self.attributes.group.clone(), resource: self.attributes.resource.clone() }
    }

    pub fn forbidden(&self, why: &str) -> Status {
        Status::forbidden(&self.group_resource(), self.name, why)
    }
}

/// Other objects, as they are stored now.
pub trait Lookup: Send + Sync {
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Object>;
    fn list(&self, group: &str, resource: &str, namespace: Option<&str>) -> Vec<Object>;

    /// Whether a namespace is going away; none when there is none. Asked at every create, and so worth a shorter way.
    fn is_terminating(&self, namespace: &str) -> Option<bool> {
        self.get("", "namespaces", "", namespace).map(|ns| is_terminating(&ns))
    }
}

/// A namespace that is being deleted, or says so.
pub fn is_terminating(namespace: &Object) -> bool {
    namespace.is_deleting() || namespace.str_at(&["status", "phase"]) == Some("Terminating")
}

pub trait Plugin: Send + Sync {
    /// Upstream's name, as in `--enable-admission-plugins`.
    fn name(&self) -> &'static str;

    fn mutate(&self, _review: &Review<'_>, _object: &mut Object) -> Result<(), Status> {
        Ok(())
    }

    /// `object` is none for a deletion.
    fn validate(&self, _review: &Review<'_>, _object: Option<&Object>) -> Result<(), Status> {
        Ok(())
    }
}

/// Plugins in their order: all mutate before any validates.
pub struct Chain {
    plugins: Vec<Box<dyn Plugin>>,
}

impl Chain {
    pub fn new(plugins: Vec<Box<dyn Plugin>>) -> Self {
        Self { plugins }
    }

    /// Leaves plugins out by name; an unknown name is an error that says so.
    pub fn without(mut self, names: &[String]) -> Result<Self, String> {
        for n in names {
            if !self.plugins.iter().any(|p| p.name() == n) {
                return Err(format!("no admission plugin is called {n:?}"));
            }
            self.plugins.retain(|p| p.name() != n);
        }
        Ok(self)
    }

    pub fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        self.plugins.iter().try_for_each(|p| p.mutate(review, object))
    }

    pub fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        self.plugins.iter().try_for_each(|p| p.validate(review, object))
    }
}
