//! `GET /kemudi/v1/namespaces/NAMESPACE/RESOURCE/NAME/decision`: why a component has decided what it has about an object.
//!
//! The path is not below `/api` or `/apis`, so that discovery and OpenAPI stay those of Kubernetes. It is authorized like reading the object, and needs the
//! permission to list the resource whose objects every decision names (nodes).
//! The names of other objects are shown to those who may list them.

use crate::Server;
use crate::answer::bytes;
use crate::body::Body;
use crate::path::Target;
use async_trait::async_trait;
use auth::{Attributes, Decision, User};
use http::{Method, Response};
use meta::status::Cause;
use meta::{GroupResource, Status};
use std::collections::BTreeSet;

/// The kind of a decision as JSON.
pub const KIND: &str = "Decision";
/// Its version.
pub const API_VERSION: &str = "kemudi/v1";
const PREFIX: &str = "/kemudi/v1/";
const SEGMENT: &str = "decision";
/// The reason of a cause that names a component which decides here.
const DECIDER: &str = "Decider";
/// In how many namespaces a caller's permission to list is checked. Names of objects of further ones are not shown.
const MOST_NAMESPACES: usize = 20;

/// A component that decides about objects of one resource.
#[async_trait]
pub trait DecisionSource: Send + Sync {
    /// The resource of the objects.
    fn resource(&self) -> GroupResource;

    /// The core resource whose objects every decision names: who may not list it, may not read decisions.
    fn shows(&self) -> GroupResource;

    /// The names of the components that decide here, such as the profiles of a scheduler.
    fn deciders(&self) -> Vec<String> {
        Vec::new()
    }

    /// The decision about an object; none if the component does not run on this server, or has nothing to decide.
    async fn decision(&self, uid: &str) -> Option<Box<dyn DecisionReport>>;
}

/// A decision, which may name objects of the same resource.
pub trait DecisionReport: Send {
    /// The namespaces of the objects that it names.
    fn namespaces(&self) -> BTreeSet<String>;

    /// The document of the kind [`KIND`] as JSON, with the names of objects of these namespaces alone.
    fn render(self: Box<Self>, readable: &BTreeSet<String>) -> String;
}

/// The object of a request for a decision. None for any other request.
pub(crate) fn target(method: &Method, path: &str) -> Option<Target> {
    let below = path.strip_prefix(PREFIX).filter(|_| matches!(*method, Method::GET | Method::HEAD))?;
    let mut target = Target::parse(&format!("/api/v1/{below}"));
    let complete = ![&target.namespace, &target.resource, &target.name].iter().any(|s| s.is_empty());
    if target.odd || target.too_long || target.watch || !complete || target.subresource != SEGMENT {
        return None;
    }
    target.subresource.clear();
    Some(target)
}

impl Server {
    /// Responds with the decision about an object.
    pub(crate) async fn decision(
        &self,
        target: &Target,
        attributes: &Attributes,
        user: &User,
    ) -> Result<Response<Body>, Status> {
        let source = self.decisions.read().clone();
        let row = self.row(target)?;
        let Some(source) = source.filter(|s| s.resource() == row.group_resource()) else {
            return Err(Status::no_such_path());
        };
        let not_found = || Status::not_found(&row.group_resource(), &target.name);
        let key = row.key(&target.namespace, &target.name).ok_or_else(not_found)?;
        let object = self.registry.stored_object(&key)?.ok_or_else(not_found)?;
        let list = |resource: &str, namespace: &str| Attributes {
            user: user.clone(),
            verb: "list".into(),
            resource: resource.into(),
            namespace: namespace.into(),
            name: String::new(),
            ..attributes.clone()
        };
        // Before anything is computed: a decision names nodes, with their labels and taints.
        let nodes = list(&source.shows().resource, "");
        if !matches!(self.authorizer.decide(&nodes).await, Decision::Allow(_)) {
            return Err(crate::authorize::forbidden(&nodes, "a decision names them"));
        }
        let Some(report) = source.decision(object.uid()).await else {
            let decisions = GroupResource { group: "kemudi".into(), resource: "decisions".into() };
            let mut status = Status::not_found(&decisions, &target.name);
            let cause = |name| Cause { reason: DECIDER.into(), message: name, ..Cause::default() };
            if let Some(details) = &mut status.details {
                details.causes = source.deciders().into_iter().map(cause).collect();
            }
            return Err(status);
        };
        let mut readable = BTreeSet::new();
        for namespace in report.namespaces().into_iter().take(MOST_NAMESPACES) {
            let pods = list(&attributes.resource, &namespace);
            if matches!(self.authorizer.decide(&pods).await, Decision::Allow(_)) {
                readable.insert(namespace);
            }
        }
        Ok(bytes(200, "application/json", report.render(&readable)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_path_is_of_a_decision() {
        let check = |method: Method, path: &str, expect: Option<(&str, &str, &str)>| {
            let found = target(&method, path);
            let found = found.as_ref().map(|t| (&*t.namespace, &*t.resource, &*t.name));
            assert_eq!(found, expect, "{method} {path}");
        };
        check(Method::GET, "/kemudi/v1/namespaces/x/pods/p/decision", Some(("x", "pods", "p")));
        for path in [
            "/kemudi/v1/namespaces/x/pods/p",
            "/kemudi/v1/namespaces/x/pods/p/log",
            "/kemudi/v1/namespaces/x/pods/p/decision/x",
            "/kemudi/v1/pods/p/decision",
            "/kemudi/v1/watch/namespaces/x/pods/p/decision",
            "/kemudi/v1/namespaces/x%2Fy/pods/p/decision",
            "/kemudi/v1/namespaces/x/pods/%2e%2e/decision",
            "/kemudi/v2/namespaces/x/pods/p/decision",
            "//kemudi/v1/namespaces/x/pods/p/decision",
            "/api/v1/namespaces/x/pods/p/decision",
        ] {
            check(Method::GET, path, None);
        }
        check(Method::POST, "/kemudi/v1/namespaces/x/pods/p/decision", None);
    }
}
