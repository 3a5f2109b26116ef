//! The controllers and the scheduler. Each has its own identity and is subject to authorization and admission.

use crate::agent::Environment;
use crate::cluster_network::ClusterNetwork;
use crate::leadership::Candidate;
use crate::peers::Peer;
use apiserver::{DecisionReport, DecisionSource, Server, as_identity, decision};
use async_trait::async_trait;
use auth::User;
use bytes::Bytes;
use client::{Client, InProcess, Informers};
use controllers::nodeipam;
use http::Request;
use meta::{Clock, GroupResource, Rng};
use network::Family;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use strategies::authentication::service_account::ServiceAccountTokens;
use supervisor::{Component, OnEnd, Shutdown};
use tokio::runtime::Handle;

/// Number of terminated pods that are kept (upstream's default).
const TERMINATED_PODS: usize = 12_500;

/// The component of elections and of the addresses of servers.
pub const MEMBERSHIP: &str = "membership";

/// Dependencies of the components.
#[derive(Clone)]
pub struct Parts {
    pub server: Arc<Server>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub shutdown: Shutdown,
    /// The CA with which pods verify the API server.
    pub ca_pem: String,
    /// The names and addresses in the certificate of the API server.
    pub server_hosts: Vec<String>,
    /// Signs the certificates of CertificateSigningRequests.
    pub authority: Arc<controllers::certificates::Authority>,
    /// Issues the service account tokens in secrets.
    pub accounts: Arc<ServiceAccountTokens>,
    /// The ranges of service addresses.
    pub service_ranges: Vec<String>,
    /// The addresses of load balancers.
    pub load_balancers: Option<controllers::servicelb::Pool>,
    /// This server among several. None: it is the only one, and always leads.
    pub membership: Option<Membership>,
    /// The configuration of the scheduler.
    pub scheduling: scheduler::Configuration,
    /// None: nodes get no ranges of pod addresses.
    pub pod_ranges: Option<PodRanges>,
}

/// The ranges of pod addresses that nodes get.
#[derive(Clone)]
pub struct PodRanges {
    pub network: ClusterNetwork,
    /// Ranges that no node gets.
    pub reserved: Option<network::Ranges>,
    /// For every node, not only those that take part in the pod network of Kemudi.
    pub for_all: bool,
}

impl PodRanges {
    fn start(&self, shared: &controllers::Options, component: &Component, client_for: &dyn Fn(&str) -> Client) {
        let network = &self.network;
        let (v4, v6) = (network.node_bits(Family::V4), network.node_bits(Family::V6));
        let options = nodeipam::Options::new(&network.pods.to_string(), v4, v6);
        let options = match options {
            Ok(options) if self.for_all => options,
            Ok(options) => options.on_request(node::join::POD_NETWORK),
            Err(e) => return tracing::error!("nodes get no ranges of pod addresses: {e}"),
        };
        let reserved = self.reserved.into_iter().flat_map(|ranges| ranges.iter());
        let reserved = reserved.filter_map(|r| nodeipam::Cidr::parse(&r.to_string())).collect();
        nodeipam::start(options, reserved, shared, component, client_for);
    }
}

/// A server among several.
#[derive(Clone)]
pub struct Membership {
    /// Identity of this process.
    pub identity: String,
    /// Given before the shutdown, while requests are still answered: leases are released then.
    pub leaving: Shutdown,
}

impl Parts {
    /// A client of the server in this process. The identity is an extension of the request, which no socket can set.
    pub fn client(&self, user: User, agent: &str) -> Client {
        let server = self.server.clone();
        let handler = move |request: Request<Bytes>| {
            let (server, user) = (server.clone(), user.clone());
            async move { server.handle(as_identity(request, user)).await }
        };
        Client::new(InProcess(handler), agent)
    }

    /// A component whose services end with the process.
    pub fn component(&self, name: &'static str, runtime: &Handle) -> Component {
        self.server.registry.supervisor.component(name, &self.shutdown, runtime)
    }

    /// What a node in this process uses of it.
    pub fn node(&self, name: &str, informers: &Informers) -> Environment {
        let user = User::new(format!("system:node:{name}"), &[auth::user::GROUP_NODES]);
        Environment {
            client: self.client(user, "kubelet"),
            informers: informers.clone(),
            policy_informers: informers.clone(),
            clock: self.clock.clone(),
            rng: self.rng.clone(),
            shutdown: self.shutdown.clone(),
            supervisor: self.server.registry.supervisor.clone(),
        }
    }

    fn informers(&self, user: &str) -> Informers {
        let client = self.client(User::new(user, &[]), "kemudi-informers");
        Informers::new(client, self.rng.clone(), self.shutdown.clone())
    }

    /// A client of a controller under its own service account.
    fn controller(&self, name: &str) -> Client {
        let groups = [auth::user::GROUP_SERVICE_ACCOUNTS, "system:serviceaccounts:kube-system"];
        let user = User::new(format!("system:serviceaccount:kube-system:{name}"), &groups);
        self.client(user, &format!("kube-controller-manager/{name}"))
    }
}

/// The decisions of the scheduler of this process.
struct PodDecisions(Arc<scheduler::Explainer>);

/// Keeps its turn until it is rendered: decisions on thousands of nodes are large, and readers many.
struct PodDecision(scheduler::Explained);

/// A decision in a response.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct DecisionDocument<'a> {
    kind: &'a str,
    api_version: &'a str,
    #[serde(flatten)]
    decision: &'a scheduler::PodDecision,
}

#[async_trait]
impl DecisionSource for PodDecisions {
    fn resource(&self) -> GroupResource {
        GroupResource { group: String::new(), resource: "pods".into() }
    }

    fn shows(&self) -> GroupResource {
        GroupResource { group: String::new(), resource: "nodes".into() }
    }

    fn deciders(&self) -> Vec<String> {
        self.0.profiles()
    }

    async fn decision(&self, uid: &str) -> Option<Box<dyn DecisionReport>> {
        Some(Box::new(PodDecision(self.0.explain(uid).await?)))
    }
}

impl DecisionReport for PodDecision {
    fn namespaces(&self) -> BTreeSet<String> {
        self.0.decision.explanation.namespaces()
    }

    fn render(mut self: Box<Self>, readable: &BTreeSet<String>) -> String {
        let decision = &mut self.0.decision;
        decision.explanation.hide_pods(|namespace| readable.contains(namespace));
        let document = DecisionDocument { kind: decision::KIND, api_version: decision::API_VERSION, decision };
        serde_json::to_string(&document).unwrap_or_default()
    }
}

/// Starts the controllers and the scheduler on threads of their own. They share one cache per kind.
pub fn start(parts: &Parts, runtime: &Handle, scheduling: &Handle) -> Informers {
    let informers = parts.informers("system:kube-controller-manager");
    let options = controllers::Options {
        informers: informers.clone(),
        clock: parts.clock.clone(),
        rng: parts.rng.clone(),
        root_ca: parts.ca_pem.clone(),
        server_hosts: parts.server_hosts.clone(),
        authority: Some(parts.authority.clone()),
        issue: Arc::new({
            let accounts = parts.accounts.clone();
            move |account, secret| accounts.issue_legacy(account, secret)
        }),
        terminated_pods: TERMINATED_PODS,
        server: parts.client(User::new("system:apiserver", &[auth::user::GROUP_MASTERS]), "kube-apiserver"),
        service_ranges: parts.service_ranges.clone(),
        load_balancers: parts.load_balancers,
    };
    let controllers = {
        let parts = parts.clone();
        move |component: &Component| {
            controllers::start(&options, component, &|name| parts.controller(name));
            if let Some(ranges) = &parts.pod_ranges {
                ranges.start(&options, component, &|name| parts.controller(name));
            }
        }
    };
    let client = parts.client(User::new("system:kube-scheduler", &[]), "kube-scheduler");
    let scheduler = {
        let (clock, rng, shared, client) = (parts.clock.clone(), parts.rng.clone(), informers.clone(), client.clone());
        let configuration = parts.scheduling.clone();
        let explainer = Arc::new(scheduler::Explainer::default());
        *parts.server.decisions.write() = Some(Arc::new(PodDecisions(explainer.clone())));
        move |component: &Component| {
            let shutdown = component.shutdown().clone();
            let (clock, rng, shared, client) = (clock.clone(), rng.clone(), shared.clone(), client.clone());
            let (configuration, explainer) = (configuration.clone(), explainer.clone());
            component.spawn("scheduler", OnEnd::Restart, move || {
                let mut options = scheduler::Options::new(client.clone(), shared.clone(), clock.clone(), rng.clone());
                options.configuration = configuration.clone();
                options.explainer = explainer.clone();
                scheduler::run(options, shutdown.clone())
            });
        }
    };
    let _entered = runtime.enter();
    match &parts.membership {
        None => {
            controllers(&parts.component("controller-manager", runtime));
            scheduler(&parts.component("scheduler", scheduling));
        }
        Some(membership) => {
            let candidate = Candidate {
                identity: membership.identity.clone(),
                clock: parts.clock.clone(),
                rng: parts.rng.clone(),
                supervisor: parts.server.registry.supervisor.clone(),
                shutdown: membership.leaving.clone(),
                runtime: runtime.clone(),
            };
            let manager = parts.client(User::new("system:kube-controller-manager", &[]), "kube-controller-manager");
            candidate.run("kube-controller-manager", "controller-manager", manager, controllers);
            let candidate = Candidate { runtime: scheduling.clone(), ..candidate };
            candidate.run("kube-scheduler", "scheduler", client, scheduler);
        }
    }
    parts.server.start_steps.complete(&["poststarthook/start-service-ip-repair-controllers"]);
    informers
}

/// Keeps the lease of this server and the endpoints of the service `kubernetes` until it leaves.
pub fn follow_peers(parts: &Parts, membership: &Membership, address: SocketAddr, runtime: &Handle) {
    let peer = Arc::new(Peer {
        registry: parts.server.registry.clone(),
        client: parts.client(User::new("system:apiserver", &[auth::user::GROUP_MASTERS]), "kube-apiserver"),
        clock: parts.clock.clone(),
        address,
        identity: membership.identity.clone(),
    });
    let leaving = membership.leaving.clone();
    let component = parts.server.registry.supervisor.component(MEMBERSHIP, &leaving, runtime);
    component.spawn_graceful("kubernetes-endpoints", OnEnd::Restart, move || peer.clone().run(leaving.clone()));
}
