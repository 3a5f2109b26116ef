//! All controllers, each with its own identity.

use crate::context::Context;
use crate::replicaset::Family;
use crate::{
    bootstrap, certificates, clusterroleaggregation, cronjob, daemonset, deployment, disruption, endpointslice,
    ephemeralvolume, garbagecollector, horizontalpodautoscaler, ipallocator, job, namespace, nodelifecycle,
    per_namespace, podgc, replicaset, resourceclaim, resourcequota, serviceaccounttokens, servicecidrs, statefulset,
    storageprotection, ttl, ttlafterfinished, validatingadmissionpolicystatus,
};
use client::{Client, Informers};
use meta::{Clock, Rng};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use supervisor::{Component, OnEnd};

/// What all controllers share.
#[derive(Clone)]
pub struct Options {
    /// Informers of the identity that reads for all controllers (`system:kube-controller-manager`).
    pub informers: Informers,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    /// The certificate authority of the API server, PEM.
    pub root_ca: String,
    /// Signs the certificates of CertificateSigningRequests. None: they are approved, but not signed.
    pub authority: Option<Arc<certificates::Authority>>,
    /// Issues the tokens of service accounts that are kept in secrets.
    pub issue: serviceaccounttokens::Issue,
    /// How many terminated pods are kept.
    pub terminated_pods: usize,
    /// A client with the identity of the API server, for the controllers that upstream runs in it.
    pub server: Client,
    /// The ranges of service addresses (`--service-cluster-ip-range`). Empty: the default ServiceCIDR is not kept.
    pub service_ranges: Vec<String>,
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The identity of a controller.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Identity {
    /// The service account in `kube-system` that has the controller's name.
    ServiceAccount,
    /// The API server (`system:apiserver`).
    ApiServer,
}

/// A controller: its name, its identity, and how it runs.
struct Row(&'static str, Identity, fn(Context, &Options) -> Running);

use Identity::{ApiServer, ServiceAccount};

/// Every controller. A new one is a module with `run`, and a row here.
const CONTROLLERS: &[Row] = &[
    Row("namespace-controller", ServiceAccount, |c, _| Box::pin(namespace::run(c))),
    Row("service-account-controller", ServiceAccount, |c, _| {
        Box::pin(per_namespace::run(per_namespace::default_service_account(), c))
    }),
    Row("root-ca-cert-publisher", ServiceAccount, |c, o| {
        Box::pin(per_namespace::run(per_namespace::root_ca(&o.root_ca), c))
    }),
    Row("replicaset-controller", ServiceAccount, |c, _| Box::pin(replicaset::run(Family::ReplicaSet, c))),
    Row("replication-controller", ServiceAccount, |c, _| Box::pin(replicaset::run(Family::ReplicationController, c))),
    Row("deployment-controller", ServiceAccount, |c, _| Box::pin(deployment::run(c))),
    Row("daemon-set-controller", ServiceAccount, |c, _| Box::pin(daemonset::run(c))),
    Row("statefulset-controller", ServiceAccount, |c, _| Box::pin(statefulset::run(c))),
    Row("horizontal-pod-autoscaler", ServiceAccount, |c, _| Box::pin(horizontalpodautoscaler::run(c))),
    Row("disruption-controller", ServiceAccount, |c, _| Box::pin(disruption::run(c))),
    Row("ephemeral-volume-controller", ServiceAccount, |c, _| Box::pin(ephemeralvolume::run(c))),
    Row("resource-claim-controller", ServiceAccount, |c, _| Box::pin(resourceclaim::run(c))),
    Row("ttl-controller", ServiceAccount, |c, _| Box::pin(ttl::run(c))),
    Row("job-controller", ServiceAccount, |c, _| Box::pin(job::run(c))),
    Row("cronjob-controller", ServiceAccount, |c, _| Box::pin(cronjob::run(c))),
    Row("ttl-after-finished-controller", ServiceAccount, |c, _| Box::pin(ttlafterfinished::run(c))),
    Row("generic-garbage-collector", ServiceAccount, |c, _| Box::pin(garbagecollector::run(c))),
    Row("endpointslice-controller", ServiceAccount, |c, _| Box::pin(endpointslice::run_slices(c))),
    Row("endpoint-controller", ServiceAccount, |c, _| Box::pin(endpointslice::run_endpoints(c))),
    Row("endpointslicemirroring-controller", ServiceAccount, |c, _| Box::pin(endpointslice::mirror::run(c))),
    Row("node-controller", ServiceAccount, |c, _| Box::pin(nodelifecycle::run(c))),
    Row("resourcequota-controller", ServiceAccount, |c, _| Box::pin(resourcequota::run(c))),
    Row("serviceaccount-token-controller", ServiceAccount, |c, o| {
        Box::pin(serviceaccounttokens::run(c, o.issue.clone(), o.root_ca.clone()))
    }),
    Row("legacy-service-account-token-cleaner", ServiceAccount, |c, _| Box::pin(serviceaccounttokens::cleaner::run(c))),
    Row("bootstrap-signer", ServiceAccount, |c, _| Box::pin(bootstrap::signer::run(c))),
    Row("token-cleaner", ServiceAccount, |c, _| Box::pin(bootstrap::cleaner::run(c))),
    Row("certificate-controller", ServiceAccount, |c, o| Box::pin(certificates::run(c, o.authority.clone()))),
    Row("clusterrole-aggregation-controller", ServiceAccount, |c, _| Box::pin(clusterroleaggregation::run(c))),
    Row("validatingadmissionpolicy-status-controller", ServiceAccount, |c, _| {
        Box::pin(validatingadmissionpolicystatus::run(c))
    }),
    Row("pvc-protection-controller", ServiceAccount, |c, _| {
        Box::pin(storageprotection::run(storageprotection::claims(), c))
    }),
    Row("pv-protection-controller", ServiceAccount, |c, _| {
        Box::pin(storageprotection::run(storageprotection::volumes(), c))
    }),
    Row("volumeattributesclass-protection-controller", ServiceAccount, |c, _| {
        Box::pin(storageprotection::run(storageprotection::classes(), c))
    }),
    Row("service-cidrs-controller", ServiceAccount, |c, _| Box::pin(servicecidrs::run(c))),
    Row("pod-garbage-collector", ServiceAccount, |c, o| Box::pin(podgc::run(c, o.terminated_pods))),
    Row("ipallocator-repair-controller", ApiServer, |c, _| Box::pin(ipallocator::run(c))),
    Row("kubernetes-service-cidr-controller", ApiServer, |c, o| {
        Box::pin(ipallocator::default_range::run(c, o.service_ranges.clone()))
    }),
];

/// The service accounts (in `kube-system`) that controllers act as.
pub fn service_accounts() -> impl Iterator<Item = &'static str> {
    CONTROLLERS.iter().filter(|Row(_, identity, _)| *identity == ServiceAccount).map(|Row(name, ..)| *name)
}

/// Starts all controllers as services of `component`. `client_for` returns a client that acts as the service account of that name.
pub fn start(options: &Options, component: &Component, client_for: &dyn Fn(&str) -> Client) {
    for Row(name, identity, run) in CONTROLLERS {
        let context = Context {
            name,
            client: match identity {
                ServiceAccount => client_for(name),
                ApiServer => options.server.clone(),
            },
            informers: options.informers.clone(),
            clock: options.clock.clone(),
            rng: options.rng.clone(),
            shutdown: component.shutdown().clone(),
        };
        let options = options.clone();
        component.spawn(name, OnEnd::Restart, move || run(context.clone(), &options));
    }
}
