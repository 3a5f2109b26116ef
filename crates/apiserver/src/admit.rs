//! Between the registry's admission hook and the chain of plugins.

use crate::Server;
use admission::{Lookup, Review, is_terminating};
use async_trait::async_trait;
use auth::Attributes;
use meta::{Object, Status};
use parking_lot::Mutex;
use registry::{Admit, Operation, Registry, Request, encode};
use std::collections::HashMap;
use std::sync::Arc;

/// Admission of one call.
pub struct Admission<'a> {
    pub(crate) server: &'a Arc<Server>,
    pub(crate) request: &'a Request,
    pub(crate) attributes: Attributes,
    pub(crate) dry_run: bool,
}

impl Admission<'_> {
    fn review<'a>(&'a self, operation: Operation, old: Option<&'a Object>, lookup: &'a dyn Lookup) -> Review<'a> {
        Review {
            operation: match operation {
                Operation::Create => admission::Operation::Create,
                Operation::Update => admission::Operation::Update,
                Operation::Delete => admission::Operation::Delete,
                Operation::Connect => admission::Operation::Connect,
            },
            attributes: &self.attributes,
            kind: self.request.resource.kind.gvk(),
            subresource: &self.request.subresource,
            namespace: &self.request.namespace,
            name: &self.request.name,
            old,
            dry_run: self.dry_run,
            lookup,
        }
    }
}

#[async_trait]
impl Admit for Admission<'_> {
    async fn mutate(&self, operation: Operation, object: &mut Object, old: Option<&Object>) -> Result<(), Status> {
        let stored = Stored { registry: &self.server.registry, namespaces: &self.server.namespaces };
        self.server.admission.mutate(&self.review(operation, old, &stored), object)
    }

    async fn validate(
        &self,
        operation: Operation,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let stored = Stored { registry: &self.server.registry, namespaces: &self.server.namespaces };
        self.server.admission.validate(&self.review(operation, old, &stored), object)
    }
}

/// What plugins look up: the newest stored objects.
pub struct Stored<'a> {
    pub registry: &'a Registry,
    pub namespaces: &'a Namespaces,
}

/// The state of namespaces at the revision it was read from: a namespace seldom changes, and each create asks for it.
#[derive(Default)]
pub struct Namespaces(Mutex<HashMap<String, (u64, bool)>>);

/// Beyond this many, all are forgotten.
const NAMESPACES_MAX: usize = 10_000;

impl Lookup for Stored<'_> {
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Object> {
        let rows = self.registry.rows();
        let key = rows.stored(group, resource)?.key(namespace, name)?;
        self.registry.store.snapshot().get(&key).map(|e| encode::decode(&e))
    }

    fn is_terminating(&self, namespace: &str) -> Option<bool> {
        let rows = self.registry.rows();
        let key = rows.stored("", "namespaces")?.key("", namespace)?;
        let entry = self.registry.store.snapshot().get(&key)?;
        let mut known = self.namespaces.0.lock();
        if let Some((_, state)) = known.get(namespace).filter(|(revision, _)| *revision == entry.revision) {
            return Some(*state);
        }
        let state = is_terminating(&encode::decode(&entry));
        if known.len() >= NAMESPACES_MAX {
            known.clear();
        }
        known.insert(namespace.to_owned(), (entry.revision, state));
        Some(state)
    }

    fn list(&self, group: &str, resource: &str, namespace: Option<&str>) -> Vec<Object> {
        let rows = self.registry.rows();
        let Some(name) = rows.stored(group, resource).and_then(|r| r.stored().map(|(n, _)| n.clone())) else {
            return Vec::new();
        };
        self.registry.store.snapshot().range(&name, namespace, None).map(|e| encode::decode(e)).collect()
    }
}
