//! The HTTP side of the API: one stack of filters, one file per verb, and what is derived from the description of the kinds.
//!
//! A request walks top to bottom through [`Server::handle`]: authenticate, authorize, find the row, then the verb. The socket
//! and the components in the same process enter at the same place. Invariant: no kind is named here.

pub mod admit;
mod authenticate;
pub mod body;
mod compress;
mod connect;
mod content;
pub mod discovery;
pub mod handle;
mod health;
pub mod listen;
mod node_authorizer;
mod openapi;
mod path;
mod proxy;
mod rbac_cache;
mod table;
mod verbs;
mod webhooks;

pub use authenticate::bootstrap_token::BootstrapTokens;
pub use authenticate::{
    Anonymous, AnyCertificate, Authenticators, Certificates, FrontProxy, Identity, Peer, PeerError,
};
pub use body::Body;
pub use connect::NodeConnector;
pub use health::VERSION;
pub use node_authorizer::NodeAuthorizer;
pub use rbac_cache::RbacCache;

use parking_lot::RwLock;
use registry::Registry;
use std::sync::Arc;

/// Everything a request needs.
pub struct Server {
    pub registry: Arc<Registry>,
    pub authenticators: Authenticators,
    pub authorizer: Arc<dyn auth::Authorizer>,
    pub admission: admission::Chain,
    pub connector: RwLock<Option<Arc<dyn NodeConnector>>>,
    pub readiness: health::Readiness,
    /// True once the server ends: watches end by themselves then.
    pub(crate) ending: tokio::sync::watch::Sender<bool>,
    pub(crate) documents: openapi::Documents,
    pub(crate) namespaces: admit::Namespaces,
    pub(crate) webhooks: webhooks::Clients,
    pub(crate) turns: admit::Turns,
}

impl Server {
    pub fn new(
        registry: Arc<Registry>,
        authenticators: Authenticators,
        authorizer: Arc<dyn auth::Authorizer>,
        admission: admission::Chain,
    ) -> Arc<Self> {
        Arc::new(Self {
            registry,
            authenticators,
            authorizer,
            admission,
            connector: RwLock::new(None),
            readiness: health::Readiness::default(),
            ending: tokio::sync::watch::Sender::new(false),
            documents: openapi::Documents::default(),
            namespaces: admit::Namespaces::default(),
            webhooks: webhooks::Clients::default(),
            turns: admit::Turns::default(),
        })
    }

    /// The server is about to end: it is not ready any more, and watches come to their end as if their time was over.
    pub fn end(&self) {
        self.ending.send_replace(true);
    }
}
