//! All controllers, each with its own identity.

use crate::context::Context;
use crate::replicaset::Family;
use crate::{
    attachdetach, bootstrap, certificates, clusterroleaggregation, cronjob, daemonset, deployment, devicetainteviction,
    disruption, endpointslice, ephemeralvolume, expand, garbagecollector, horizontalpodautoscaler, ipallocator, job,
    namespace, nodelifecycle, per_namespace, persistentvolume, podgc, replicaset, resourceclaim, resourcequota,
    serviceaccounttokens, servicecidrs, servicelb, statefulset, storageprotection, ttl, ttlafterfinished,
    validatingadmissionpolicystatus,
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
    /// The names and addresses in the certificate of the API server, which no other program may have in its certificate.
    pub server_hosts: Vec<String>,
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
    /// The addresses of load balancers (`--load-balancer-cidr`). None: services get none.
    pub load_balancers: Option<servicelb::Pool>,
}

/// A running controller.
pub type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The identity of a controller.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Identity {
    /// The service account in `kube-system` that has the controller's name.
    ServiceAccount,
    /// The API server (`system:apiserver`).
    ApiServer,
}

/// A controller: its name, the name of its work queue in metrics and logs (upstream's), its identity, and how it runs.
struct Row(&'static str, &'static str, Identity, fn(Context, &Options) -> Running);

use Identity::{ApiServer, ServiceAccount};

/// Every controller. A new one is a module with `run`, and a row here.
const CONTROLLERS: &[Row] = &[
    Row("namespace-controller", "namespace", ServiceAccount, |c, _| Box::pin(namespace::run(c))),
    Row("service-account-controller", "serviceaccount", ServiceAccount, |c, _| {
        Box::pin(per_namespace::run(per_namespace::default_service_account(), c))
    }),
    Row("root-ca-cert-publisher", "root_ca_cert_publisher", ServiceAccount, |c, o| {
        Box::pin(per_namespace::run(per_namespace::root_ca(&o.root_ca), c))
    }),
    Row("replicaset-controller", "replicaset", ServiceAccount, |c, _| Box::pin(replicaset::run(Family::ReplicaSet, c))),
    Row("replication-controller", "replicationmanager", ServiceAccount, |c, _| {
        Box::pin(replicaset::run(Family::ReplicationController, c))
    }),
    Row("deployment-controller", "deployment", ServiceAccount, |c, _| Box::pin(deployment::run(c))),
    Row("daemon-set-controller", "daemonset", ServiceAccount, |c, _| Box::pin(daemonset::run(c))),
    Row("statefulset-controller", "statefulset", ServiceAccount, |c, _| Box::pin(statefulset::run(c))),
    Row("horizontal-pod-autoscaler", "horizontalpodautoscaler", ServiceAccount, |c, _| {
        Box::pin(horizontalpodautoscaler::run(c))
    }),
    Row("disruption-controller", "disruption", ServiceAccount, |c, _| Box::pin(disruption::run(c))),
    Row("ephemeral-volume-controller", "ephemeral_volume", ServiceAccount, |c, _| Box::pin(ephemeralvolume::run(c))),
    Row("resource-claim-controller", "resource_claim", ServiceAccount, |c, _| Box::pin(resourceclaim::run(c))),
    Row("device-taint-eviction-controller", "device-taint-eviction-controller", ServiceAccount, |c, _| {
        Box::pin(devicetainteviction::run(c))
    }),
    Row("ttl-controller", "ttlcontroller", ServiceAccount, |c, _| Box::pin(ttl::run(c))),
    Row("job-controller", "job", ServiceAccount, |c, _| Box::pin(job::run(c))),
    Row("cronjob-controller", "cronjob", ServiceAccount, |c, _| Box::pin(cronjob::run(c))),
    Row("ttl-after-finished-controller", "ttl_jobs_to_delete", ServiceAccount, |c, _| {
        Box::pin(ttlafterfinished::run(c))
    }),
    Row("generic-garbage-collector", "garbage_collector_attempt_to_delete", ServiceAccount, |c, _| {
        Box::pin(garbagecollector::run(c))
    }),
    Row("endpointslice-controller", "endpoint_slice", ServiceAccount, |c, _| Box::pin(endpointslice::run_slices(c))),
    Row("endpoint-controller", "endpoint", ServiceAccount, |c, _| Box::pin(endpointslice::run_endpoints(c))),
    Row("endpointslicemirroring-controller", "endpoint_slice_mirroring", ServiceAccount, |c, _| {
        Box::pin(endpointslice::mirror::run(c))
    }),
    Row("node-controller", "node_lifecycle_controller", ServiceAccount, |c, _| Box::pin(nodelifecycle::run(c))),
    Row("resourcequota-controller", "resourcequota_primary", ServiceAccount, |c, _| Box::pin(resourcequota::run(c))),
    Row("serviceaccount-token-controller", "serviceaccount_tokens_secret", ServiceAccount, |c, o| {
        Box::pin(serviceaccounttokens::run(c, o.issue.clone(), o.root_ca.clone()))
    }),
    Row("legacy-service-account-token-cleaner", "legacy_service_account_token_cleaner", ServiceAccount, |c, _| {
        Box::pin(serviceaccounttokens::cleaner::run(c))
    }),
    Row("bootstrap-signer", "bootstrap_signer_queue", ServiceAccount, |c, _| Box::pin(bootstrap::signer::run(c))),
    Row("token-cleaner", "token_cleaner", ServiceAccount, |c, _| Box::pin(bootstrap::cleaner::run(c))),
    Row("certificate-controller", "certificate", ServiceAccount, |c, o| {
        Box::pin(certificates::run(c, o.authority.clone(), o.server_hosts.clone()))
    }),
    Row("clusterrole-aggregation-controller", "ClusterRoleAggregator", ServiceAccount, |c, _| {
        Box::pin(clusterroleaggregation::run(c))
    }),
    Row("validatingadmissionpolicy-status-controller", "validatingadmissionpolicy-status", ServiceAccount, |c, _| {
        Box::pin(validatingadmissionpolicystatus::run(c))
    }),
    Row("persistent-volume-binder", "claims", ServiceAccount, |c, _| Box::pin(persistentvolume::run(c))),
    Row("pvc-protection-controller", "pvcprotection", ServiceAccount, |c, _| {
        Box::pin(storageprotection::run(storageprotection::claims(), c))
    }),
    Row("attachdetach-controller", "attachdetach", ServiceAccount, |c, _| Box::pin(attachdetach::run(c))),
    Row("expand-controller", "volume_expand", ServiceAccount, |c, _| Box::pin(expand::run(c))),
    Row("pv-protection-controller", "pvprotection", ServiceAccount, |c, _| {
        Box::pin(storageprotection::run(storageprotection::volumes(), c))
    }),
    Row("volumeattributesclass-protection-controller", "vacprotection", ServiceAccount, |c, _| {
        Box::pin(storageprotection::run(storageprotection::classes(), c))
    }),
    Row("service-cidrs-controller", "servicecidrs", ServiceAccount, |c, _| Box::pin(servicecidrs::run(c))),
    Row("service-controller", "service", ServiceAccount, |c, o| Box::pin(servicelb::run(c, o.load_balancers))),
    Row("pod-garbage-collector", "orphaned_pods_nodes", ServiceAccount, |c, o| {
        Box::pin(podgc::run(c, o.terminated_pods))
    }),
    Row("ipallocator-repair-controller", "ipaddresses", ApiServer, |c, _| Box::pin(ipallocator::run(c))),
    Row("kubernetes-service-cidr-controller", "default_servicecidr", ApiServer, |c, o| {
        Box::pin(ipallocator::default_range::run(c, o.service_ranges.clone()))
    }),
];

/// The name of a controller's work queue; the controller's own if it is not listed.
pub(crate) fn queue_name(controller: &'static str) -> &'static str {
    CONTROLLERS.iter().find(|Row(name, ..)| *name == controller).map_or(controller, |Row(_, queue, ..)| queue)
}

/// The service accounts (in `kube-system`) that controllers act as.
pub fn service_accounts() -> impl Iterator<Item = &'static str> {
    CONTROLLERS.iter().filter(|Row(_, _, identity, _)| *identity == ServiceAccount).map(|Row(name, ..)| *name)
}

/// Starts all controllers as services of `component`. `client_for` returns a client that acts as the service account of that name.
pub fn start(options: &Options, component: &Component, client_for: &dyn Fn(&str) -> Client) {
    metrics::publish("controllers", crate::meters::text);
    for Row(name, _, identity, run) in CONTROLLERS {
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

/// The names of all controllers, in the order in which they are started.
pub fn names() -> impl Iterator<Item = &'static str> {
    CONTROLLERS.iter().map(|Row(name, ..)| *name)
}

/// Runs the controller that `context` names until it ends, for a caller that supervises controllers itself. None if there is no controller
/// of that name.
pub fn run(context: Context, options: &Options) -> Option<Running> {
    let Row(.., run) = CONTROLLERS.iter().find(|Row(name, ..)| *name == context.name)?;
    metrics::publish("controllers", crate::meters::text);
    Some(run(context, options))
}
