//! Resources of the API and their paths.

use k8s_openapi::{NamespaceResourceScope, Resource};
use meta::{Gvk, Gvr};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::any::TypeId;
use std::fmt;
use std::sync::Arc;

/// A resource of the API: where it is served and the kind of its objects. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiResource(Arc<Inner>);

#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Inner {
    gvr: Gvr,
    kind: String,
    namespaced: bool,
}

impl ApiResource {
    /// A resource of a group and version, with the kind of its objects.
    pub fn new(gvr: Gvr, kind: impl Into<String>, namespaced: bool) -> Self {
        Self(Arc::new(Inner { gvr, kind: kind.into(), namespaced }))
    }

    /// Short form of [`Self::new`]: `ApiResource::named("apps", "v1", "deployments", "Deployment", true)`.
    pub fn named(group: &str, version: &str, resource: &str, kind: &str, namespaced: bool) -> Self {
        let gvr = Gvr { group: group.into(), version: version.into(), resource: resource.into() };
        Self::new(gvr, kind, namespaced)
    }

    /// The resource of a typed view.
    pub fn typed<K: Resource>() -> Self
    where
        K::Scope: 'static,
    {
        let namespaced = TypeId::of::<K::Scope>() == TypeId::of::<NamespaceResourceScope>();
        Self::named(K::GROUP, K::VERSION, K::URL_PATH_SEGMENT, K::KIND, namespaced)
    }

    /// Group, version and plural name.
    pub fn gvr(&self) -> &Gvr {
        &self.0.gvr
    }

    /// Group, version and kind.
    pub fn gvk(&self) -> Gvk {
        Gvk::new(self.0.gvr.group.clone(), self.0.gvr.version.clone(), self.0.kind.clone())
    }

    /// The kind of the objects.
    pub fn kind(&self) -> &str {
        &self.0.kind
    }

    /// Whether objects are in namespaces.
    pub fn namespaced(&self) -> bool {
        self.0.namespaced
    }

    /// `/api/v1/namespaces/NS/pods[/NAME[/SUB]]`; without a namespace, the resource in all namespaces. Fails on an empty name
    /// or one that is no path segment.
    pub fn path(&self, namespace: Option<&str>, name: Option<&str>, sub: Option<&str>) -> Result<String, crate::Error> {
        let g = &self.0.gvr;
        let mut p = match (g.group.as_str(), g.version.as_str()) {
            // Of an object in a file without an apiVersion: no server has it, and its answer is the error.
            ("", "") => "/api".to_owned(),
            ("", version) => format!("/api/{version}"),
            (group, version) => format!("/apis/{group}/{version}"),
        };
        if let (true, Some(ns)) = (self.0.namespaced, namespace) {
            p.push_str("/namespaces/");
            push_segment(&mut p, "namespace", ns)?;
        }
        p.push('/');
        p.push_str(&g.resource);
        if let Some(name) = name {
            p.push('/');
            push_segment(&mut p, "name", name)?;
            if let Some(sub) = sub {
                p.push('/');
                p.push_str(sub);
            }
        }
        Ok(p)
    }
}

impl fmt::Debug for ApiResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let g = self.gvr();
        if g.group.is_empty() {
            write!(f, "{}/{}", g.version, g.resource)
        } else {
            write!(f, "{}/{}/{}", g.group, g.version, g.resource)
        }
    }
}

fn push_segment(out: &mut String, what: &str, s: &str) -> Result<(), crate::Error> {
    if s.is_empty() {
        return Err(crate::Error::Request(format!("resource {what} may not be empty")));
    }
    if let Some(why) = meta::names::path_segment(s).first() {
        return Err(crate::Error::Request(format!("{what} {s:?}: {why}")));
    }
    encode(out, s);
    Ok(())
}

/// What may stand in a path segment or a query value as it is.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b':');

/// Percent-encodes for a path segment or a query value.
pub(crate) fn encode(out: &mut String, s: &str) {
    out.extend(utf8_percent_encode(s, PLAIN));
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node};

    #[test]
    fn paths_follow_group_scope_and_subresource() {
        let d = ApiResource::typed::<Deployment>();
        let path = |ns, n, s| d.path(ns, n, s).unwrap();
        assert_eq!(path(Some("a"), Some("b"), Some("status")), "/apis/apps/v1/namespaces/a/deployments/b/status");
        assert_eq!(path(None, None, None), "/apis/apps/v1/deployments");
        let n = ApiResource::typed::<Node>();
        assert_eq!(n.path(Some("ignored"), Some("n:1"), None).unwrap(), "/api/v1/nodes/n:1");
        assert!(d.path(Some("a"), Some(""), None).is_err());
        assert!(d.path(Some("a"), Some("../x"), None).is_err());
        assert_eq!(n.path(None, Some("a b"), None).unwrap(), "/api/v1/nodes/a%20b");
    }
}
