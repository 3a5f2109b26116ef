//! The identity of a user, and well-known users and groups (`k8s.io/apiserver/pkg/authentication/user`).

use std::collections::BTreeMap;

/// The user of requests without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of all authenticated users.
pub const GROUP_AUTHENTICATED: &str = "system:authenticated";
/// The group of the anonymous user.
pub const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group that may do everything.
pub const GROUP_MASTERS: &str = "system:masters";
/// The group of kubelets.
pub const GROUP_NODES: &str = "system:nodes";
/// The group of all service accounts.
pub const GROUP_SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

/// A user as an authenticator returns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// The name, such as `system:node:n1` or `jane`.
    pub name: String,
    /// Empty if the authenticator has none.
    pub uid: String,
    /// The names of the groups.
    pub groups: Vec<String>,
    /// Further attributes, which authorizers may read.
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
