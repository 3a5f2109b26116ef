//! The properties of a request that filters need, parsed once (upstream `RequestInfo`).

use crate::decision;
use crate::path::{Query, Target};
use crate::server_kinds::NAMESPACES;
use auth::{Attributes, User};
use http::request::Parts;
use http::{Method, Uri};

pub(crate) struct RequestInfo {
    pub target: Target,
    pub query: Query,
    /// The RBAC verb; for non-resource requests, the method in lower case.
    pub verb: &'static str,
    /// The request is for the decision about the target.
    pub is_decision: bool,
    /// A watch or stream: no deadline, and not counted as in flight.
    pub long_running: bool,
}

/// Subresources that respond with streams.
const STREAMS: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

impl RequestInfo {
    pub fn parse(parts: &Parts) -> Self {
        Self::of_line(&parts.method, &parts.uri)
    }

    pub fn of_line(method: &Method, uri: &Uri) -> Self {
        let query = Query::parse(uri.query());
        let decision = decision::target(method, uri.path());
        let is_decision = decision.is_some();
        let target = decision.unwrap_or_else(|| Target::parse(uri.path()));
        // A request for a named object is a get, whatever the query.
        let watch = (query.is_true("watch") && target.name.is_empty()) || target.watch;
        let resource = target.is_resource();
        let verb = if resource { target.verb(method, watch) } else { lowercase(method) };
        let long_running = resource && (verb == "watch" || is_stream(&target.subresource));
        Self { target, query, verb, is_decision, long_running }
    }

    /// The authorization attributes.
    pub fn attributes(&self, user: &User, parts: &Parts) -> Attributes {
        attributes(user, parts.uri.path(), &self.target, &self.query, self.verb)
    }

    /// Read-only requests (`nonMutatingRequestVerbs`).
    pub fn mutates(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }
}

/// Whether a subresource responds with a stream and negotiates its encoding itself.
pub(crate) fn is_stream(subresource: &str) -> bool {
    STREAMS.contains(&subresource)
}

/// The authorization attributes, from the path and query as parsed for the handler.
fn attributes(user: &User, path: &str, target: &Target, query: &Query, verb: &'static str) -> Attributes {
    let Some(gv) = target.group_version.as_ref().filter(|_| target.is_resource()) else {
        return Attributes { user: user.clone(), verb: verb.into(), path: path.to_owned(), ..Attributes::default() };
    };
    // A list or watch restricted to a name may be allowed for that name, and one with selectors for those.
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
        (NAMESPACES, "") => target.name.clone(),
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

fn lowercase(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "get",
        "HEAD" => "head",
        "POST" => "post",
        "PUT" => "put",
        "PATCH" => "patch",
        "DELETE" => "delete",
        "OPTIONS" => "options",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_and_watches_run_long() {
        let check = |method: &str, uri: &str, verb: &str, long: bool| {
            let (parts, ()) = http::Request::builder().method(method).uri(uri).body(()).unwrap().into_parts();
            let i = RequestInfo::parse(&parts);
            assert_eq!((i.verb, i.long_running), (verb, long), "{method} {uri}");
        };
        check("GET", "/api/v1/pods", "list", false);
        check("GET", "/api/v1/pods?watch=1", "watch", true);
        check("GET", "/api/v1/pods?watch=0", "list", false);
        check("GET", "/api/v1/watch/pods", "watch", true);
        check("GET", "/api/v1/namespaces/x/pods/p/log", "get", true);
        check("POST", "/api/v1/namespaces/x/pods/p/exec", "create", true);
        check("POST", "/api/v1/namespaces/x/pods/p/eviction", "create", false);
        check("GET", "/healthz?watch=true", "get", false);
        check("GET", "/api/v1/namespaces/x/pods/p?watch=true", "get", false);
        check("GET", "/api/v1/watch/namespaces/x/pods/p", "watch", true);
    }
}
