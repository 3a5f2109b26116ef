//! What an operator may choose of the server, with upstream's defaults.

use crate::audit::Audit;
use client::https::{ClientIdentity, Reach};
use meta::GroupResource;
use std::collections::BTreeMap;
use std::time::Duration;

pub struct Options {
    /// The longest time a request may take that is no watch and no stream.
    pub request_timeout: Duration,
    /// A watch that asks for no end lives for once to twice as long.
    pub min_request_timeout: Duration,
    /// Requests that only read, at a time; 0 for any number.
    pub max_requests_in_flight: usize,
    pub max_mutating_requests_in_flight: usize,
    /// Open connections, of which at most half are of clients that have not been authenticated.
    pub max_connections: usize,
    /// Open connections to agents of nodes (logs, exec, port forwarding), of which one user has at most a third.
    pub node_streams: usize,
    /// Whether FlowSchemas and priority levels govern requests. They share the two numbers above as seats; without them each is a
    /// limit of its own.
    pub priority_and_fairness: bool,
    /// The certificate by which other API servers know this one as their front proxy.
    pub proxy_client: Option<ClientIdentity>,
    /// Where endpoints of services may be that webhooks and API services lead to: whoever writes those need not be who is trusted
    /// with this machine.
    pub endpoints: Reach,
    /// The flags that were given, or would have been, with their values (`/flagz`).
    pub flags: BTreeMap<String, String>,
    /// What is written down of requests; nothing without it.
    pub audit: Option<Audit>,
    /// A warning for whoever creates an object of a resource that is stored and not carried out by this installation.
    pub not_carried_out: BTreeMap<GroupResource, &'static str>,
    /// Whether CBOR is read and written, beside the other encodings.
    pub cbor: bool,
    /// Worker threads for long requests ([`crate::workers::runtime`]); without them, long requests execute where they arrive.
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
            not_carried_out: BTreeMap::new(),
            cbor: false,
            workers: None,
        }
    }
}
