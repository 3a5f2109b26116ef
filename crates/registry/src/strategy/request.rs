//! Requests and objects as the registry handles them.

use super::Warnings;
use crate::Registry;
use crate::options::WriteOptions;
use crate::row::Resource;
use auth::User;
use meta::{Clock, GroupResource, Object, Rng};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The environment available to strategies.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    pub registry: &'a Registry,
    /// Receives the warnings for the client; none where there is no client.
    warnings: Option<&'a Warnings>,
    /// Whether nothing will be written.
    pub dry_run: bool,
    /// See [`Sent::labels_are_defaults`].
    pub labels_are_defaults: bool,
}

impl<'a> Env<'a> {
    pub(crate) fn new(registry: &'a Registry, warnings: Option<&'a Warnings>) -> Self {
        Self { registry, warnings, dry_run: false, labels_are_defaults: false }
    }

    /// The environment of a write with these options.
    pub(crate) fn with(self, options: &WriteOptions) -> Self {
        Self { dry_run: options.dry_run, ..self }
    }

    /// Warns the client, also if the request fails.
    pub fn warn(&self, text: impl Into<String>) {
        if let Some(warnings) = self.warnings {
            warnings.push(text);
        }
    }

    pub fn clock(&self) -> &dyn Clock {
        &*self.registry.clock
    }

    pub fn rng(&self) -> &dyn Rng {
        &*self.registry.rng
    }
}

/// One request for a resource, as the registry handles it.
pub struct Request {
    pub user: User,
    /// The verb that was authorized; empty for a write of the server itself.
    pub verb: &'static str,
    pub resource: Arc<Resource>,
    pub subresource: String,
    pub namespace: String,
    /// Empty for requests on collections.
    pub name: String,
}

impl Request {
    /// A write of the server itself, as `system:apiserver`. The namespace is empty for objects of the cluster.
    pub fn own(resource: Arc<Resource>, subresource: &str, namespace: &str, name: &str) -> Request {
        Request {
            user: User::new("system:apiserver", &[auth::user::GROUP_MASTERS]),
            verb: "",
            resource,
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    pub fn group_resource(&self) -> GroupResource {
        self.resource.group_resource()
    }
}

/// An object as a client sent it, or as the server made it.
#[derive(Clone, Default)]
pub struct Sent {
    /// Typed and defaulted.
    pub object: Object,
    /// The fields that the client sent empty, for error messages.
    pub empties: schema::Empties,
    /// Whether the object has labels because the client sent none.
    pub labels_are_defaults: bool,
}

impl From<Object> for Sent {
    fn from(object: Object) -> Self {
        Self { object, ..Self::default() }
    }
}

impl Deref for Sent {
    type Target = Object;

    fn deref(&self) -> &Object {
        &self.object
    }
}

impl DerefMut for Sent {
    fn deref_mut(&mut self) -> &mut Object {
        &mut self.object
    }
}
