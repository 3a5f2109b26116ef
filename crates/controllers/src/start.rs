//! Starting all controllers, each as itself.

use crate::context::Context;
use crate::endpointslice::Form;
use crate::replicaset::Family;
use crate::{
    bootstrap, certificates, clusterroleaggregation, deployment, endpointslice, garbagecollector, ipallocator,
    namespace, nodelifecycle, per_namespace, podgc, replicaset, resourcequota, serviceaccounttokens, servicecidrs,
    storageprotection, validatingadmissionpolicystatus,
};
use client::{Client, Informers, Shutdown};
use meta::{Clock, Rng};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::task::JoinSet;

/// What all controllers share.
#[derive(Clone)]
pub struct Options {
    /// Under the identity that reads for all of them (`system:kube-controller-manager`).
    pub informers: Informers,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub shutdown: Shutdown,
    /// The certificate authority of the API server, PEM.
    pub root_ca: String,
    /// Signs certificates for those who ask for them by CertificateSigningRequests.
    pub authority: Option<Arc<certificates::Authority>>,
    /// Makes the tokens of service accounts that are kept in secrets.
    pub issue: serviceaccounttokens::Issue,
    /// Ended pods that may stay.
    pub terminated_pods: usize,
    /// Under the identity of the API server itself, for what it does beside its requests.
    pub server: Client,
    /// The ranges that services have their addresses from; none: they are not looked after.
    pub service_ranges: Vec<String>,
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Every controller: the name of its service account in `kube-system`, and how it is run.
type Row = (&'static str, fn(Context, &Options) -> Running);

const ALL: &[Row] = &[
    ("namespace-controller", |c, _| Box::pin(namespace::run(c))),
    ("service-account-controller", |c, _| Box::pin(per_namespace::run(per_namespace::default_service_account(), c))),
    ("root-ca-cert-publisher", |c, o| Box::pin(per_namespace::run(per_namespace::root_ca(&o.root_ca), c))),
    ("replicaset-controller", |c, _| Box::pin(replicaset::run(Family::ReplicaSet, c))),
    ("replication-controller", |c, _| Box::pin(replicaset::run(Family::ReplicationController, c))),
    ("deployment-controller", |c, _| Box::pin(deployment::run(c))),
    ("generic-garbage-collector", |c, _| Box::pin(garbagecollector::run(c))),
    ("endpointslice-controller", |c, _| Box::pin(endpointslice::run(Form::Slices, c))),
    ("endpoint-controller", |c, _| Box::pin(endpointslice::run(Form::Endpoints, c))),
    ("endpointslicemirroring-controller", |c, _| Box::pin(endpointslice::mirror::run(c))),
    ("node-controller", |c, _| Box::pin(nodelifecycle::run(c))),
    ("resourcequota-controller", |c, _| Box::pin(resourcequota::run(c))),
    ("serviceaccount-token-controller", |c, o| {
        Box::pin(serviceaccounttokens::run(c, o.issue.clone(), o.root_ca.clone()))
    }),
    ("legacy-service-account-token-cleaner", |c, _| Box::pin(serviceaccounttokens::clean(c))),
    ("bootstrap-signer", |c, _| Box::pin(bootstrap::signer::run(c))),
    ("token-cleaner", |c, _| Box::pin(bootstrap::cleaner::run(c))),
    ("certificate-controller", |c, o| Box::pin(certificates::run(c, o.authority.clone()))),
    ("clusterrole-aggregation-controller", |c, _| Box::pin(clusterroleaggregation::run(c))),
    ("validatingadmissionpolicy-status-controller", |c, _| Box::pin(validatingadmissionpolicystatus::run(c))),
    ("pvc-protection-controller", |c, _| Box::pin(storageprotection::run(storageprotection::claims(), c))),
    ("pv-protection-controller", |c, _| Box::pin(storageprotection::run(storageprotection::volumes(), c))),
    ("volumeattributesclass-protection-controller", |c, _| {
        Box::pin(storageprotection::run(storageprotection::classes(), c))
    }),
    (servicecidrs::COMPONENT, |c, _| Box::pin(servicecidrs::run(c))),
    ("pod-garbage-collector", |c, o| Box::pin(podgc::run(c, o.terminated_pods))),
];

/// The service accounts (in `kube-system`) that controllers act as.
pub fn service_accounts() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// Starts all controllers. `client_for` makes a client that acts as the service account of that name. They end with `shutdown`;
/// the set is empty then.
pub fn start(options: &Options, client_for: &dyn Fn(&str) -> Client) -> JoinSet<()> {
    let mut set = JoinSet::new();
    let context = |client: Client| Context {
        client,
        informers: options.informers.clone(),
        clock: options.clock.clone(),
        rng: options.rng.clone(),
        shutdown: options.shutdown.clone(),
    };
    for (name, run) in ALL {
        set.spawn(run(context(client_for(name)), options));
    }
    set.spawn(ipallocator::run(context(options.server.clone()), options.service_ranges.clone()));
    set
}
