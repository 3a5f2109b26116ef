//! Joins this machine to a cluster as a node: finds the cluster's CA, requests and renews the node's certificates, and waits for its
//! range of pod addresses (what `kubeadm join` and kubelet's `pkg/kubelet/certificate` do).
//!
//! **Invariant**: the bootstrap token is sent only to a server whose certificate the cluster's CA verifies, and that CA is trusted only
//! if its ConfigMap is signed with the token.

mod certificate;
mod discovery;
mod membership;
mod range;

pub use certificate::Pair;
pub use discovery::{CaHash, Token, ca_of, check_servers};
pub use membership::{Identity, Settings, join};
pub use range::{POD_NETWORK, await_ranges};

/// Why a machine cannot join a cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid bootstrap token: it has the form id.secret, with 6 and 16 lower-case letters and digits")]
    Token,
    #[error("invalid hash {0:?} of a CA: write it as sha256:HEX, as `kemudi token create` prints it")]
    Hash(String),
    #[error(
        "{0} is no node of a cluster yet; give a bootstrap token with --token (`kemudi token create` on the server makes one)"
    )]
    NoToken(String),
    #[error(
        "the server has not signed its CA with this bootstrap token: the token does not exist, has expired, or is not for signing \
         (usage-bootstrap-signing)"
    )]
    Unsigned,
    #[error(
        "the server's CA is not signed with this bootstrap token, but by somebody who does not have it; it is not trusted"
    )]
    Forged,
    #[error("the server's CA has the hash {0}, which is none of --ca-hash; it is not trusted")]
    OtherCa(String),
    #[error("the cluster's information (ConfigMap kube-public/cluster-info) is invalid: {0}")]
    Information(String),
    #[error("the certificate request {name} was denied: {message}")]
    Denied { name: String, message: String },
    #[error("the certificate request {0} was not approved and signed within {1:?}")]
    NotSigned(String, std::time::Duration),
    #[error("making a certificate request: {0}")]
    Request(#[from] rcgen::Error),
    #[error("{path}: {source}")]
    File { path: std::path::PathBuf, source: std::io::Error },
    #[error("{0}: the certificate is invalid")]
    Certificate(std::path::PathBuf),
    #[error("{0}; choose another name with --node-name, or wait until that node is not ready")]
    NameTaken(String),
    #[error("the node's ranges of pod addresses {0:?} are not one range, or one of each family")]
    Range(String),
    #[error(transparent)]
    Client(#[from] client::Error),
}

impl Error {
    /// Whether it may pass by itself: the server cannot be reached, or does not answer.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Client(client::Error::Api(status)) => status.code >= 500 || status.code == 429,
            Self::Client(client::Error::Request(_) | client::Error::Credentials(_)) => false,
            Self::Client(_) => true,
            _ => false,
        }
    }
}
