//! The identity of objects, and how it is formatted.

use crate::go::go_struct;
use std::fmt;

go_struct! {
    Gvk "Gvk" {
        group: String = "group",
        version: String = "version",
        kind: String = "kind",
    }
}

/// The namespace of cluster-scoped objects.
const NO_NAMESPACE: &str = "_non_namespaceable_";
const DEFAULT_NAMESPACE: &str = "default";

impl Gvk {
    pub fn new(api_version: &str, kind: &str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
    }

    /// `group/version`, or only the version in the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Whether a selector matches; its empty parts match anything.
    pub fn is_selected(&self, by: &Self) -> bool {
        let fits = |selector: &str, own: &str| selector.is_empty() || selector == own;
        fits(&by.group, &self.group) && fits(&by.version, &self.version) && fits(&by.kind, &self.kind)
    }

    /// Whether this is a built-in cluster-scoped kind, in any version. Unknown kinds count as namespaced.
    pub fn is_cluster_scoped(&self) -> bool {
        let known = kinds::catalog().kinds.iter();
        known.filter(|k| *k.group == self.group && *k.kind == self.kind).any(|k| !k.namespaced)
    }
}

fn or_default<'a>(text: &'a str, empty: &'a str) -> &'a str {
    if text.is_empty() { empty } else { text }
}

impl fmt::Display for Gvk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, version) = (or_default(&self.kind, "[noKind]"), or_default(&self.version, "[noVer]"));
        write!(f, "{kind}.{version}.{}", or_default(&self.group, "[noGrp]"))
    }
}

/// The identity of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Id {
    pub gvk: Gvk,
    pub name: String,
    pub namespace: String,
}

impl Id {
    /// Returns the namespace for comparisons: `default` if it is empty, and a fixed name for cluster-scoped kinds.
    pub fn effective_namespace(&self) -> &str {
        if self.gvk.is_cluster_scoped() { NO_NAMESPACE } else { or_default(&self.namespace, DEFAULT_NAMESPACE) }
    }

    /// Whether both identify the same object; no namespace means `default`.
    pub fn is_same(&self, other: &Self) -> bool {
        self.gvk == other.gvk && self.name == other.name && self.effective_namespace() == other.effective_namespace()
    }

    /// Formats as Go prints the struct.
    pub fn debug(&self) -> String {
        format!(
            "resid.ResId{{Gvk:resid.Gvk{{Group:{:?}, Version:{:?}, Kind:{:?}, isClusterScoped:{}}}, Name:{:?}, Namespace:{:?}}}",
            self.gvk.group,
            self.gvk.version,
            self.gvk.kind,
            self.gvk.is_cluster_scoped(),
            self.name,
            self.namespace,
        )
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}.{}", self.gvk, or_default(&self.name, "[noName]"), or_default(&self.namespace, "[noNs]"))
    }
}
