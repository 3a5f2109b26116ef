//! The authorization filter.

use crate::Server;
use crate::metrics::Authorization;
use crate::server_kinds::NAMESPACES;
use crate::trace::Trace;
use auth::{Attributes, Decision};
use meta::{GroupResource, Status};
use tokio::time::Instant;

impl Server {
    /// Calls the authorizer. Errors if it does not allow the request.
    pub(crate) async fn authorize(&self, attributes: &Attributes, trace: &Trace) -> Result<(), Status> {
        let begun = Instant::now();
        let decision = self.authorizer.decide(attributes).await;
        let result = match &decision {
            Decision::Allow(_) => Authorization::Allowed,
            Decision::Deny(_) => Authorization::Denied,
            Decision::NoOpinion(_) => Authorization::NoOpinion,
        };
        self.metrics.authorized(result, begun.elapsed());
        if let Some(record) = trace.audit.get() {
            let (word, why) = match &decision {
                Decision::Allow(why) => ("allow", why),
                Decision::Deny(why) | Decision::NoOpinion(why) => ("forbid", why),
            };
            record.annotate("authorization.k8s.io/decision", word);
            record.annotate("authorization.k8s.io/reason", why);
        }
        match decision {
            Decision::Allow(_) => Ok(()),
            Decision::Deny(why) | Decision::NoOpinion(why) => Err(forbidden(attributes, &why)),
        }
    }
}

/// The error for a request that no authorizer allows.
pub(crate) fn forbidden(a: &Attributes, why: &str) -> Status {
    let user = &a.user.name;
    let tail = if why.is_empty() { String::new() } else { format!(": {why}") };
    if a.resource.is_empty() && !a.path.is_empty() {
        let message = format!("forbidden: User {user:?} cannot {} path {:?}{tail}", a.verb, a.path);
        return Status::new(403, meta::Reason::Forbidden, message).with_details(meta::status::Details::default());
    }
    let resource =
        if a.subresource.is_empty() { a.resource.clone() } else { format!("{}/{}", a.resource, a.subresource) };
    let place = match (a.namespace.as_str(), a.resource.as_str()) {
        ("", _) | (_, NAMESPACES) => "at the cluster scope".to_owned(),
        (ns, _) => format!("in the namespace {ns:?}"),
    };
    let gr = GroupResource { group: a.group.clone(), resource: a.resource.clone() };
    let why = format!("User {user:?} cannot {} resource {resource:?} in API group {:?} {place}{tail}", a.verb, a.group);
    Status::forbidden(&gr, &a.name, &why)
}
