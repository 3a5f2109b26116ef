//! Terms of admission that both the storage of objects and the admission plugins use.

/// What a request does to an object, as admission reviews it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `CREATE`.
    Create,
    /// `UPDATE`.
    Update,
    /// `DELETE`.
    Delete,
    /// `CONNECT`: a connection to a subresource, as `exec`.
    Connect,
}

impl Operation {
    /// The name in an `AdmissionReview`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// Who may have changed an object in mutating admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutatedBy {
    /// At most plugins of the server.
    Plugins,
    /// A webhook or a policy, which may have changed anything, also fields that only the server sets.
    Anyone,
}
