//! An authenticated identity.

use std::collections::BTreeMap;

/// The name of anonymous users.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of authenticated users.
pub const GROUP_AUTHENTICATED: &str = "system:authenticated";
/// The group of anonymous users.
pub const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group that is allowed everything.
pub const GROUP_MASTERS: &str = "system:masters";
/// The group of nodes.
pub const GROUP_NODES: &str = "system:nodes";
/// The group of service accounts.
pub const GROUP_SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

/// An authenticated or anonymous user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// The UID; empty for none.
    pub uid: String,
    /// The groups.
    pub groups: Vec<String>,
    /// Extra attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// An authenticated user with these groups.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Self {
        let mut groups: Vec<String> = groups.iter().map(|g| (*g).to_owned()).collect();
        if !groups.iter().any(|g| g == GROUP_AUTHENTICATED) {
            groups.push(GROUP_AUTHENTICATED.to_owned());
        }
        Self { name: name.into(), groups, ..Self::default() }
    }

    /// The anonymous user.
    pub fn anonymous() -> Self {
        Self { name: ANONYMOUS.into(), groups: vec![GROUP_UNAUTHENTICATED.into()], ..Self::default() }
    }

    /// Whether the user is in a group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// The namespace and name, if it is a service account.
    pub fn service_account(&self) -> Option<(&str, &str)> {
        self.name.strip_prefix("system:serviceaccount:")?.split_once(':')
    }

    /// The node name, if it is a kubelet.
    pub fn node(&self) -> Option<&str> {
        self.name.strip_prefix("system:node:").filter(|_| self.is_in(GROUP_NODES))
    }
}
