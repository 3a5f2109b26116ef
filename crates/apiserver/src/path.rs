//! Parses a URL path and HTTP method into request properties
//! (`k8s.io/apiserver/pkg/endpoints/request/requestinfo.go`).

use crate::server_kinds::NAMESPACES;
use http::Method;
use meta::GroupVersion;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Empty unless the path is below `/api/v1` or `/apis/GROUP/VERSION`.
    pub group_version: Option<GroupVersion>,
    pub namespace: String,
    /// Empty for a path with an empty segment instead of the resource: it matches neither a resource nor a document.
    pub resource: String,
    pub name: String,
    pub subresource: String,
    /// The offset of the raw path after the subresource (of a proxy).
    pub rest: usize,
    /// The path has more segments than any resource.
    pub too_long: bool,
    /// The deprecated `watch/` prefix.
    pub watch: bool,
    /// The path is ambiguous between servers: it begins with two slashes, or a segment contains an encoded slash, is
    /// `.` or `..`, or is not UTF-8. Such paths are not found.
    pub odd: bool,
    /// The path continues after the version.
    resource_request: bool,
}

/// Whether a path has a `..` segment in any encoding, which another server may resolve.
pub(crate) fn climbs(path: &str) -> bool {
    path.split('/').any(|s| matches!(&*decode(s), "." | ".."))
}

impl Target {
    pub fn parse(path: &str) -> Self {
        let start = path.len() - path.trim_start_matches('/').len();
        let trimmed = path.trim_matches('/');
        let mut t = Self { odd: start > 1, rest: path.len(), ..Self::default() };
        let mut next = start;
        // Each segment with the offset after it.
        let mut segments = trimmed.split('/').map(|raw| {
            next += raw.len() + 1;
            (raw, next - 1)
        });
        let mut odd = false;
        let mut read = |raw: &str| {
            let (text, valid) = decoded(raw);
            odd |= !valid || text.contains(['/', '\0']) || matches!(&*text, "." | "..");
            text
        };
        let (group, version) = match segments.next() {
            Some(("api", _)) => (String::new(), segments.next()),
            Some(("apis", _)) => (segments.next().map(|(g, _)| read(g)).unwrap_or_default(), segments.next()),
            _ => return t,
        };
        let Some((version, _)) = version else { return t };
        t.group_version = Some(GroupVersion { group, version: read(version) });
        let mut rest: Vec<(&str, usize)> = segments.collect();
        t.resource_request = !rest.is_empty();
        if rest.first().is_some_and(|(s, _)| read(s) == "watch") {
            rest.remove(0);
            t.watch = true;
        }
        // `namespaces/x/pods` is pods in x; `namespaces/x/status` and `…/finalize` are the namespace itself.
        if let [(first, _), (ns, _), (third, _), ..] = rest[..]
            && read(first) == NAMESPACES
            && !matches!(&*read(third), "status" | "finalize")
        {
            t.namespace = read(ns);
            rest.drain(..2);
        }
        let mut parts = rest.into_iter();
        for field in [&mut t.resource, &mut t.name, &mut t.subresource] {
            let Some((raw, end)) = parts.next() else { break };
            *field = read(raw);
            t.rest = end;
        }
        t.too_long = parts.next().is_some() && t.subresource != "proxy";
        t.odd |= odd;
        t
    }

    /// Whether the path is of an object or collection, not of a document.
    pub fn is_resource(&self) -> bool {
        self.resource_request
    }

    /// The RBAC verb; empty for a method that resources do not support.
    pub fn verb(&self, method: &Method, watch: bool) -> &'static str {
        let collection = self.name.is_empty();
        match *method {
            _ if self.watch => "watch",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if collection => "deletecollection",
            Method::DELETE => "delete",
            Method::GET | Method::HEAD if watch => "watch",
            Method::GET | Method::HEAD if collection => "list",
            Method::GET | Method::HEAD => "get",
            _ => "",
        }
    }
}

/// Decodes percent encoding; returns invalid UTF-8 unchanged.
pub fn decode(text: &str) -> String {
    decoded(text).0
}

/// Decodes percent encoding. Returns whether the result was valid UTF-8.
fn decoded(text: &str) -> (String, bool) {
    match percent_encoding::percent_decode_str(text).decode_utf8() {
        Ok(decoded) => (decoded.into_owned(), true),
        Err(_) => (text.to_owned(), false),
    }
}

/// Query parameters.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes a query. Invalid UTF-8 becomes U+FFFD.
    pub fn parse(query: Option<&str>) -> Self {
        Self(form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect())
    }

    /// The first value; empty by default.
    pub fn get(&self, key: &str) -> &str {
        self.0.iter().find(|(k, _)| k == key).map_or("", |(_, v)| v)
    }

    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    pub fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(k, _)| k == key)
    }

    /// Parses a boolean as Go does in queries: `false` and `0` are false, any other value is true.
    pub fn is_true(&self, key: &str) -> bool {
        self.has(key) && !matches!(self.get(key), "false" | "0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_understood() {
        let check = |path: &str, ns: &str, resource: &str, name: &str, sub: &str| {
            let t = Target::parse(path);
            assert_eq!((&*t.namespace, &*t.resource, &*t.name, &*t.subresource), (ns, resource, name, sub), "{path}");
        };
        check("/api/v1/pods", "", "pods", "", "");
        check("/api/v1/namespaces/x/pods/p/log", "x", "pods", "p", "log");
        check("/api/v1/namespaces/x", "", "namespaces", "x", "");
        check("/api/v1/namespaces/x/finalize", "", "namespaces", "x", "finalize");
        check("/apis/apps/v1/namespaces/x/deployments/d/scale", "x", "deployments", "d", "scale");
        check("/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode", "", "clusterroles", "system:node", "");
        assert!(!Target::parse("/version").is_resource());
        let path = "/api/v1/nodes/n/proxy/a%2Fb//c/";
        assert_eq!(&path[Target::parse(path).rest..], "/a%2Fb//c/");
        assert_eq!(Target::parse("/api/v1/nodes/n/proxy").rest, "/api/v1/nodes/n/proxy".len());
        assert!(Target::parse("/api/v1/namespaces/x/pods/p/log/x").too_long);
    }

    /// As parsed by upstream's `RequestInfoFactory`.
    #[test]
    fn what_goes_on_behind_a_version_is_a_resource() {
        let check = |path: &str, resource: bool, odd: bool| {
            let t = Target::parse(path);
            assert_eq!((t.is_resource(), t.odd), (resource, odd), "{path}");
        };
        check("/apis/metrics.k8s.io/v1beta1", false, false);
        check("/apis/metrics.k8s.io/v1beta1//", false, false);
        check("/apis/metrics.k8s.io/v1beta1//nodes", true, false);
        check("/apis/metrics.k8s.io/v1beta1/nodes", true, false);
        check("//apis/metrics.k8s.io/v1beta1/nodes", true, true);
        check("/api/v1/namespaces/x%2Fsecrets", true, true);
        check("/api/v1/namespaces/x/pods/%2e%2e", true, true);
        check("/api/v1/namespaces/x/pods/a%00", true, true);
        check("/api/v1/namespaces/x/pods/%ff", true, true);
        check("/api/v1/namespaces/x/services/s/proxy/../%2e%2e/a%2Fb", true, false);
        check("/api%2Fv1/pods", false, false);
        let t = Target::parse("/apis/g/v//nodes");
        assert_eq!((&*t.resource, &*t.name), ("", "nodes"));
        assert_eq!(Target::parse("/api/v1/pods").verb(&Method::OPTIONS, true), "");
        assert_eq!(Target::parse("/api/v1/watch/pods").verb(&Method::POST, false), "watch");
    }

    /// Parses as upstream's server: decodes the entire path, then splits it.
    fn decoded_first(path: &str) -> Option<[String; 6]> {
        let whole = decode(path);
        let mut parts = whole.trim_matches('/').split('/');
        let prefix = parts.next()?;
        let mut rest: Vec<String> = parts.map(str::to_owned).collect();
        let group = match prefix {
            "api" => String::new(),
            "apis" if !rest.is_empty() => rest.remove(0),
            _ => return None,
        };
        if rest.len() < 2 {
            return None;
        }
        let version = rest.remove(0);
        if rest[0] == "watch" {
            rest.remove(0);
        }
        let mut namespace = String::new();
        if rest.len() > 2 && rest[0] == NAMESPACES && !matches!(&*rest[2], "status" | "finalize") {
            namespace = rest[1].clone();
            rest.drain(..2);
        }
        rest.resize(rest.len().max(3), String::new());
        Some([group, version, namespace, rest[0].clone(), rest[1].clone(), rest[2].clone()])
    }

    const SEGMENTS: [&str; 28] = [
        "api",
        "apis",
        "v1",
        "metrics.k8s.io",
        "v1beta1",
        "watch",
        "namespaces",
        "open",
        "pods",
        "nodes",
        "PODS",
        "status",
        "finalize",
        "proxy",
        "log",
        "",
        ".",
        "..",
        "%2e%2e",
        "%2F",
        "a%2fb",
        "%2",
        "%00",
        "%ff",
        "a;b",
        "a+b",
        "%77atch",
        "namespaces%2Fclosed",
    ];

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(20_000))]

        /// Accepted paths must parse like upstream's, and are documents only if upstream agrees.
        #[test]
        fn no_path_is_read_in_two_ways(
            begin in 0..3usize,
            apis in proptest::bool::ANY,
            all in proptest::collection::vec(0..SEGMENTS.len(), 0..9),
            end in 0..3usize,
        ) {
            let begin = "/".repeat(begin + 1);
            let start = if apis { "apis/metrics.k8s.io/v1beta1" } else { "api/v1" };
            let middle: String = all.iter().map(|i| format!("/{}", SEGMENTS[*i])).collect();
            let path = format!("{begin}{start}{middle}{}", "/".repeat(end));
            let t = Target::parse(&path);
            if t.odd {
                return Ok(());
            }
            // The path after a proxy is not parsed.
            let read = decoded_first(&path[..t.rest]);
            let gv = t.group_version.clone().unwrap();
            let own = [gv.group, gv.version, t.namespace.clone(), t.resource.clone(), t.name.clone(), t.subresource.clone()];
            match read {
                Some(other) => {
                    proptest::prop_assert!(t.is_resource(), "{path}");
                    proptest::prop_assert_eq!(own, other, "{}", path);
                }
                None => proptest::prop_assert!(!t.is_resource() || t.resource.is_empty(), "{path}"),
            }
        }
    }
}
