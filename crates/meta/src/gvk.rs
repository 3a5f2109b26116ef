//! Groups, versions, kinds and resources, and how they are written.

use std::fmt;

/// An API group and version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersion {
    /// The group; empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
}

/// Group, version and kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvk {
    /// The group; empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The kind.
    pub kind: String,
}

/// Group, version and resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvr {
    /// The group; empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The resource (plural).
    pub resource: String,
}

/// Group and kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKind {
    /// The group; empty for the core group.
    pub group: String,
    /// The kind.
    pub kind: String,
}

/// Group and resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    /// The group; empty for the core group.
    pub group: String,
    /// The resource (plural).
    pub resource: String,
}

impl GroupVersion {
    /// A group and version.
    pub fn new(group: impl Into<String>, version: impl Into<String>) -> Self {
        Self { group: group.into(), version: version.into() }
    }

    /// Reads an `apiVersion`: `v1` or `apps/v1`. `None` when it has more than one slash.
    pub fn parse(api_version: &str) -> Option<Self> {
        match api_version.split_once('/') {
            None => Some(Self::new("", api_version)),
            Some((_, v)) if v.contains('/') => None,
            Some((g, v)) => Some(Self::new(g, v)),
        }
    }

    /// A kind of this group and version.
    pub fn with_kind(&self, kind: impl Into<String>) -> Gvk {
        Gvk { group: self.group.clone(), version: self.version.clone(), kind: kind.into() }
    }

    /// A resource of this group and version.
    pub fn with_resource(&self, resource: impl Into<String>) -> Gvr {
        Gvr { group: self.group.clone(), version: self.version.clone(), resource: resource.into() }
    }
}

impl fmt::Display for GroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(&self.version) } else { write!(f, "{}/{}", self.group, self.version) }
    }
}

impl Gvk {
    /// Group, version and kind.
    pub fn new(group: impl Into<String>, version: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    /// The group and version.
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion::new(self.group.clone(), self.version.clone())
    }

    /// The group and kind.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind { group: self.group.clone(), kind: self.kind.clone() }
    }

    /// The `apiVersion`: `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        self.group_version().to_string()
    }
}

impl fmt::Display for Gvk {
    /// As Go prints a GroupVersionKind: `apps/v1, Kind=Deployment`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

impl Gvr {
    /// The group and version.
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion::new(self.group.clone(), self.version.clone())
    }

    /// The group and resource.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource { group: self.group.clone(), resource: self.resource.clone() }
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(&self.kind) } else { write!(f, "{}.{}", self.kind, self.group) }
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(&self.resource) } else { write!(f, "{}.{}", self.resource, self.group) }
    }
}
