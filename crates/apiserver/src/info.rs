//! What every filter asks of a request, found out once.

use crate::authorize;
use crate::path::{Query, Target};
use auth::{Attributes, User};
use http::request::Parts;
use http::{Method, Uri};

pub(crate) struct Info {
    pub target: Target,
    pub query: Query,
    /// The verb of RBAC; of what is no resource, the method in small letters.
    pub verb: &'static str,
    /// A watch or a stream: it has no deadline, and is not counted among the requests in flight.
    pub long_running: bool,
}

/// Subresources that answer with streams.
const STREAMS: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

impl Info {
    pub fn of(parts: &Parts) -> Self {
        Self::of_line(&parts.method, &parts.uri)
    }

    pub fn of_line(method: &Method, uri: &Uri) -> Self {
        let query = Query::parse(uri.query());
        let target = Target::parse(uri.path());
        // One object that is named is read, whatever the query says.
        let watch = (query.is_true("watch") && target.name.is_empty()) || target.watch;
        let resource = target.is_resource();
        let verb = if resource { target.verb(method, watch) } else { lowercase(method) };
        let long_running = resource && (verb == "watch" || STREAMS.contains(&target.subresource.as_str()));
        Self { target, query, verb, long_running }
    }

    pub fn attributes(&self, user: &User, parts: &Parts) -> Attributes {
        authorize::attributes(user, parts.uri.path(), &self.target, &self.query, self.verb)
    }

    /// Reading changes nothing (`nonMutatingRequestVerbs`).
    pub fn mutates(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
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
            let i = Info::of(&parts);
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
