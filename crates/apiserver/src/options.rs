//! Options of the server, with upstream's defaults.

use crate::audit::Audit;
use client::https::{ClientIdentity, Reach};
use std::collections::BTreeMap;
use std::time::Duration;

pub struct Options {
    /// Maximum duration of a request other than a watch or stream.
    pub request_timeout: Duration,
    /// Minimum default timeout of a watch; randomised up to twice as long.
    pub min_request_timeout: Duration,
    /// Maximum number of concurrent read-only requests; 0: unlimited.
    pub max_requests_in_flight: usize,
    pub max_mutating_requests_in_flight: usize,
    /// Maximum number of connections, of which at most half are of unauthenticated clients.
    pub max_connections: usize,
    /// Maximum number of connections to kubelets (logs, exec, port forwarding); one user gets at most a third.
    pub node_streams: usize,
    /// Whether priority and fairness is enabled: the two limits above are then its seats, instead of separate limits.
    pub priority_and_fairness: bool,
    /// The client certificate for calling other API servers as their front proxy.
    pub proxy_client: Option<ClientIdentity>,
    /// Where endpoints of services for webhooks and APIServices may be: users who write those may not be trusted with
    /// this machine.
    pub endpoints: Reach,
    /// The flags with their values, including defaults (`/flagz`).
    pub flags: BTreeMap<String, String>,
    /// The audit configuration; none disables it.
    pub audit: Option<Audit>,
    /// Whether CBOR is enabled.
    pub cbor: bool,
    /// Worker threads for long requests ([`crate::workers::runtime`]); without them, long requests execute where they
    /// arrive.
    pub workers: Option<tokio::runtime::Handle>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(60),
            min_request_timeout: Duration::from_secs(1800),
            max_requests_in_flight: 400,
            max_mutating_requests_in_flight: 200,
            max_connections: 8192,
            node_streams: 3072,
            priority_and_fairness: true,
            proxy_client: None,
            endpoints: Reach::Network,
            flags: BTreeMap::new(),
            audit: None,
            cbor: false,
            workers: None,
        }
    }
}
