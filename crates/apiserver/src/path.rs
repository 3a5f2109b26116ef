//! What a URL path and an HTTP method ask for (`k8s.io/apiserver/pkg/endpoints/request/requestinfo.go`).

use http::Method;
use meta::GroupVersion;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Empty unless the path is below `/api/v1` or `/apis/GROUP/VERSION`.
    pub group_version: Option<GroupVersion>,
    pub namespace: String,
    pub resource: String,
    pub name: String,
    pub subresource: String,
    /// What follows the subresource (of a proxy).
    pub rest: String,
    /// The path has more segments than any resource.
    pub too_long: bool,
    /// The deprecated `watch/` prefix.
    pub watch: bool,
}

impl Target {
    pub fn parse(path: &str) -> Self {
        let mut segments = path.trim_matches('/').split('/').map(decode).collect::<Vec<_>>().into_iter().peekable();
        let mut t = Self::default();
        let (group, version) = match segments.next().as_deref() {
            Some("api") => (String::new(), segments.next()),
            Some("apis") => (segments.next().unwrap_or_default(), segments.next()),
            _ => return t,
        };
        let Some(version) = version else { return t };
        t.group_version = Some(GroupVersion { group, version });
        if segments.peek().map(String::as_str) == Some("watch") {
            segments.next();
            t.watch = true;
        }
        let parts: Vec<String> = segments.collect();
        let mut rest = &parts[..];
        // `namespaces/x/pods` is pods in x; `namespaces/x/status` and `…/finalize` are the namespace itself.
        if let [n, ns, tail @ ..] = rest
            && n == "namespaces"
            && !tail.is_empty()
            && !(tail.len() == 1 && matches!(tail[0].as_str(), "status" | "finalize"))
        {
            t.namespace = ns.clone();
            rest = tail;
        }
        let mut it = rest.iter();
        t.resource = it.next().cloned().unwrap_or_default();
        t.name = it.next().cloned().unwrap_or_default();
        t.subresource = it.next().cloned().unwrap_or_default();
        let more: Vec<&str> = it.map(String::as_str).collect();
        t.too_long = !more.is_empty() && t.subresource != "proxy";
        t.rest = more.join("/");
        t
    }

    pub fn is_resource(&self) -> bool {
        !self.resource.is_empty()
    }

    /// The verb of RBAC.
    pub fn verb(&self, method: &Method, watch: bool) -> &'static str {
        let collection = self.name.is_empty();
        match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if collection => "deletecollection",
            Method::DELETE => "delete",
            _ if watch || self.watch => "watch",
            _ if collection => "list",
            _ => "get",
        }
    }
}

/// Undoes percent encoding; what is no UTF-8 stays as it is.
pub fn decode(text: &str) -> String {
    if !text.contains(['%', '+']) {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = bytes.get(i + 1..i + 3).and_then(|h| std::str::from_utf8(h).ok());
        match (bytes[i], hex.and_then(|h| u8::from_str_radix(h, 16).ok())) {
            (b'%', Some(b)) => {
                out.push(b);
                i += 3;
            }
            (b, _) => {
                out.push(b);
                i += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

/// The parameters of a query.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(query: Option<&str>) -> Self {
        let pairs = query.unwrap_or_default().split('&').filter(|p| !p.is_empty()).map(|p| {
            let (k, v) = p.split_once('=').unwrap_or((p, ""));
            (decode(&k.replace('+', " ")), decode(&v.replace('+', " ")))
        });
        Self(pairs.collect())
    }

    /// The first value; an empty text when there is none.
    pub fn get(&self, key: &str) -> &str {
        self.0.iter().find(|(k, _)| k == key).map_or("", |(_, v)| v)
    }

    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    pub fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(k, _)| k == key)
    }

    /// As Go converts booleans in queries: `false` and `0` are false, anything else that is there is true.
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
        assert_eq!(Target::parse("/api/v1/nodes/n/proxy/a/b").rest, "a/b");
        assert!(Target::parse("/api/v1/namespaces/x/pods/p/log/x").too_long);
    }
}
