//! The components of the control plane, each under its own identity through authorization and admission.

use apiserver::Server;
use apiserver::as_identity;
use auth::User;
use bytes::Bytes;
use client::{Client, InProcess, Informers, Shutdown};
use http::Request;
use meta::{Clock, Rng};
use std::sync::Arc;
use strategies::authentication::service_account::ServiceAccountTokens;

/// Terminated pods that are kept, as upstream's default.
const TERMINATED_PODS: usize = 12_500;

/// What components are made of.
#[derive(Clone)]
pub struct Parts {
    pub server: Arc<Server>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub shutdown: Shutdown,
    /// The CA that pods trust the API by.
    pub ca_pem: String,
    /// Signs what is asked for by CertificateSigningRequests.
    pub authority: Arc<controllers::certificates::Authority>,
    /// Makes the tokens that are kept in secrets.
    pub accounts: Arc<ServiceAccountTokens>,
    /// Where services have their addresses from.
    pub service_ranges: Vec<String>,
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

/// Starts the controllers and the scheduler. Their caches are shared: one per kind in this process.
pub fn start(parts: &Parts) -> Informers {
    let informers = parts.informers("system:kube-controller-manager");
    let options = controllers::Options {
        informers: informers.clone(),
        clock: parts.clock.clone(),
        rng: parts.rng.clone(),
        shutdown: parts.shutdown.clone(),
        root_ca: parts.ca_pem.clone(),
        authority: Some(parts.authority.clone()),
        issue: Arc::new({
            let accounts = parts.accounts.clone();
            move |account, secret| accounts.issue_legacy(account, secret)
        }),
        terminated_pods: TERMINATED_PODS,
        server: parts.client(User::new("system:apiserver", &[auth::user::GROUP_MASTERS]), "kube-apiserver"),
        service_ranges: parts.service_ranges.clone(),
    };
    let mut running = controllers::start(&options, &|name| parts.controller(name));
    parts.server.start_steps.complete(&["poststarthook/start-service-ip-repair-controllers"]);
    let components = parts.server.registry.components.clone();
    let mut healthy = Some(components.run("controller-manager"));
    tokio::spawn(async move {
        while let Some(ended) = running.join_next().await {
            if let Err(e) = ended {
                tracing::error!("a controller ended: {e}");
                healthy.take();
            }
        }
    });
    let client = parts.client(User::new("system:kube-scheduler", &[]), "kube-scheduler");
    let options = scheduler::Options::new(client, informers.clone(), parts.clock.clone(), parts.rng.clone());
    let (healthy, shutdown) = (components.run("scheduler"), parts.shutdown.clone());
    tokio::spawn(async move {
        scheduler::run(options, shutdown).await;
        drop(healthy);
    });
    informers
}
