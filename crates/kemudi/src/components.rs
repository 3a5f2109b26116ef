//! The components of the control plane, each under its own identity through authorization and admission.

use apiserver::Server;
use apiserver::handle::as_identity;
use auth::User;
use bytes::Bytes;
use client::{Client, InProcess, Informers, Shutdown};
use controllers::Context;
use http::Request;
use meta::{Clock, Rng};
use std::sync::Arc;

/// What components are made of.
#[derive(Clone)]
pub struct Parts {
    pub server: Arc<Server>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub shutdown: Shutdown,
    /// The CA that pods trust the API by.
    pub ca_pem: String,
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

    /// The context of a controller under its own service account.
    fn controller(&self, name: &str, informers: &Informers) -> Context {
        let groups = [auth::user::GROUP_SERVICE_ACCOUNTS, "system:serviceaccounts:kube-system"];
        let user = User::new(format!("system:serviceaccount:kube-system:{name}"), &groups);
        Context {
            client: self.client(user, &format!("kube-controller-manager/{name}")),
            informers: informers.clone(),
            clock: self.clock.clone(),
            rng: self.rng.clone(),
            shutdown: self.shutdown.clone(),
        }
    }
}

/// Starts the controllers and the scheduler. Their caches are shared: one per kind in this process.
pub fn start(parts: &Parts) -> Informers {
    let informers = parts.informers("system:kube-controller-manager");
    let context = |name: &str| parts.controller(name, &informers);
    use controllers::{endpointslice, per_namespace, replicaset};
    tokio::spawn(per_namespace::run(per_namespace::default_service_account(), context("service-account-controller")));
    tokio::spawn(per_namespace::run(per_namespace::root_ca(&parts.ca_pem), context("root-ca-cert-publisher")));
    tokio::spawn(replicaset::run(replicaset::Family::ReplicaSet, context("replicaset-controller")));
    tokio::spawn(replicaset::run(replicaset::Family::ReplicationController, context("replication-controller")));
    tokio::spawn(controllers::deployment::run(context("deployment-controller")));
    tokio::spawn(endpointslice::run(endpointslice::Form::Slices, context("endpointslice-controller")));
    tokio::spawn(endpointslice::run(endpointslice::Form::Endpoints, context("endpoint-controller")));
    informers
}
