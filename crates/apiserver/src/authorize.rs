//! What a request is to those who decide about it, and what is said when they refuse.

use crate::Server;
use crate::info::Info;
use crate::metrics::Authorization;
use crate::path::{Query, Target};
use crate::trace::Trace;
use auth::{Attributes, Decision, User};
use http::request::Parts;
use meta::{GroupResource, Status};
use tokio::time::Instant;

impl Server {
    pub(crate) async fn authorize(&self, user: &User, parts: &Parts, info: &Info, trace: &Trace) -> Result<(), Status> {
        let a = info.attributes(user, parts);
        let begun = Instant::now();
        let decision = self.authorizer.decide(&a).await;
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
            Decision::Deny(why) | Decision::NoOpinion(why) => Err(forbidden(&a, &why)),
        }
    }
}

/// What a request is to those who decide about it, from the same reading of its path and query as everything else.
pub(crate) fn attributes(user: &User, path: &str, target: &Target, query: &Query, verb: &'static str) -> Attributes {
    let Some(gv) = target.group_version.as_ref().filter(|_| target.is_resource()) else {
        return Attributes { user: user.clone(), verb: verb.into(), path: path.to_owned(), ..Attributes::default() };
    };
    // A list or watch of one name may be allowed for that name, and one of some fields for these.
    let (mut fields, mut labels) = (None, None);
    if matches!(verb, "list" | "watch" | "deletecollection") {
        fields = meta::FieldSelector::parse(query.get("fieldSelector")).ok().filter(|f| !f.is_everything());
        labels = meta::LabelSelector::parse(query.get("labelSelector")).ok().filter(|l| !l.is_everything());
    }
    let mut name = target.name.clone();
    if name.is_empty() && matches!(verb, "list" | "watch") {
        let selected = fields.as_ref().and_then(|f| f.exact("metadata.name"));
        let is_segment = |n: &&str| !matches!(*n, "." | "..") && !n.contains(['/', '%']);
        name = selected.filter(is_segment).unwrap_or_default().to_owned();
    }
    let namespace = match (&*target.resource, &*target.namespace) {
        ("namespaces", "") => target.name.clone(),
        (_, ns) => ns.to_owned(),
    };
    Attributes {
        user: user.clone(),
        verb: verb.into(),
        group: gv.group.clone(),
        version: gv.version.clone(),
        resource: target.resource.clone(),
        subresource: target.subresource.clone(),
        namespace,
        name,
        path: String::new(),
        fields,
        labels,
    }
}

/// The refusal of authorization, in upstream's words.
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
        ("", _) | (_, "namespaces") => "at the cluster scope".to_owned(),
        (ns, _) => format!("in the namespace {ns:?}"),
    };
    let gr = GroupResource { group: a.group.clone(), resource: a.resource.clone() };
    let why = format!("User {user:?} cannot {} resource {resource:?} in API group {:?} {place}{tail}", a.verb, a.group);
    Status::forbidden(&gr, &a.name, &why)
}
