//! Metrics of the controllers, under upstream's names. They are global: a scrape reads those of all controllers of the process.
//!
//! A metric is a row of [`ROWS`]. Controllers count with the functions below; the work queues have their own metrics
//! (`client::metrics`).

use metrics::{Row, Set};
use std::sync::LazyLock;
use std::time::Duration;

/// `first · 2ⁿ`, fifteen bounds.
macro_rules! doubled {
    ($first:literal) => {
        &[
            $first,
            $first * 2.0,
            $first * 4.0,
            $first * 8.0,
            $first * 16.0,
            $first * 32.0,
            $first * 64.0,
            $first * 128.0,
            $first * 256.0,
            $first * 512.0,
            $first * 1024.0,
            $first * 2048.0,
            $first * 4096.0,
            $first * 8192.0,
            $first * 16384.0,
        ]
    };
}

const DELETION_SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0];
const MODE: &str = "completion_mode";

pub(crate) const JOB_SYNC_SECONDS: Row = Row::histogram(
    "job_controller_job_sync_duration_seconds",
    &[MODE, "result", "action"],
    doubled!(0.004),
    "Seconds that a reconcile of a job takes.",
);
pub(crate) const JOB_SYNCS: Row =
    Row::counter("job_controller_job_syncs_total", &[MODE, "result", "action"], "Number of reconciles of jobs.");
pub(crate) const JOBS_FINISHED: Row = Row::counter(
    "job_controller_jobs_finished_total",
    &[MODE, "result", "reason"],
    "Number of finished jobs, by the reason of their last condition.",
);
pub(crate) const JOBS_OF_OTHERS: Row = Row::counter(
    "job_controller_jobs_by_external_controller_total",
    &["controller_name"],
    "Number of jobs that name another controller in spec.managedBy.",
);
pub(crate) const JOB_PODS_FINISHED: Row = Row::counter(
    "job_controller_job_pods_finished_total",
    &[MODE, "result"],
    "Number of finished pods that are counted in the status of their job.",
);
pub(crate) const JOB_FAILURES_HANDLED: Row = Row::counter(
    "job_controller_pod_failures_handled_by_failure_policy_total",
    &["action"],
    "Number of failed pods to which a rule of a pod failure policy applied, by its action.",
);
pub(crate) const JOB_TRACKED_PODS: Row = Row::counter(
    "job_controller_terminated_pods_tracking_finalizer_total",
    &["event"],
    "Number of finished pods that have (add) or no longer have (delete) the finalizer batch.kubernetes.io/job-tracking.",
);
pub(crate) const JOB_INDEXES_FINISHED: Row = Row::counter(
    "job_controller_job_finished_indexes_total",
    &["status", "backoffLimit"],
    "Number of finished indexes of indexed jobs.",
);
pub(crate) const JOB_PODS_CREATED: Row = Row::counter(
    "job_controller_job_pods_creation_total",
    &["reason", "status"],
    "Number of pods that were created for jobs, or could not be.",
);
pub(crate) const JOB_STALE: Row = Row::counter(
    "job_controller_stale_sync_skips_total",
    &["group", "resource"],
    "Number of reconciles of jobs that were put off because a cache was behind.",
);
pub(crate) const CRONJOB_SKEW: Row = Row::histogram(
    "cronjob_controller_job_creation_skew_duration_seconds",
    &[],
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0],
    "Seconds from the scheduled time of a job to its creation.",
);
pub(crate) const TTL_DELETION_SECONDS: Row = Row::histogram(
    "ttl_after_finished_controller_job_deletion_duration_seconds",
    &[],
    &[0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2],
    "Seconds from the end of a job's TTL to its deletion.",
);
pub(crate) const STATEFULSET_MAX_UNAVAILABLE: Row = Row::gauge(
    "statefulset_controller_statefulset_max_unavailable",
    &["statefulset_namespace", "statefulset_name", "pod_management_policy"],
    "Number of pods of a StatefulSet that may be unavailable during an update.",
);
pub(crate) const STATEFULSET_UNAVAILABLE: Row = Row::gauge(
    "statefulset_controller_statefulset_unavailable_replicas",
    &["statefulset_namespace", "statefulset_name", "pod_management_policy"],
    "Number of pods of a StatefulSet that are not available.",
);
pub(crate) const DELETION_AGE_RATIO: Row = Row::histogram(
    "replicaset_controller_sorting_deletion_age_ratio",
    &[],
    &[0.25, 0.5, 1.0, 2.0, 4.0, 8.0],
    "Age of a ready pod that a scale-down deletes, in relation to that of the youngest ready pod.",
);
pub(crate) const HPA_RECONCILES: Row = Row::counter(
    "horizontal_pod_autoscaler_controller_reconciliations_total",
    &["action", "error"],
    "Number of reconciles of autoscalers, by what was done and the kind of the first error.",
);
pub(crate) const HPA_SECONDS: Row = Row::histogram(
    "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds",
    &["action", "error"],
    doubled!(0.001),
    "Seconds that a reconcile of an autoscaler takes.",
);
pub(crate) const HPA_METRICS: Row = Row::counter(
    "horizontal_pod_autoscaler_controller_metric_computation_total",
    &["action", "error", "metric_type"],
    "Number of evaluations of metrics of autoscalers.",
);
pub(crate) const HPA_METRIC_SECONDS: Row = Row::histogram(
    "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds",
    &["action", "error", "metric_type"],
    doubled!(0.001),
    "Seconds that an evaluation of a metric of an autoscaler takes.",
);
pub(crate) const HPA_COUNT: Row =
    Row::gauge("horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers", &[], "Number of autoscalers.");
pub(crate) const HPA_DESIRED: Row = Row::gauge(
    "horizontal_pod_autoscaler_controller_desired_replicas",
    &["namespace", "hpa_name"],
    "Number of replicas that an autoscaler desires.",
);
pub(crate) const SLICE_ENDPOINTS_ADDED: Row = Row::histogram(
    "endpoint_slice_controller_endpoints_added_per_sync",
    &[],
    doubled!(2.0),
    "Number of endpoints that a reconcile of a service adds.",
);
pub(crate) const SLICE_ENDPOINTS_REMOVED: Row = Row::histogram(
    "endpoint_slice_controller_endpoints_removed_per_sync",
    &[],
    doubled!(2.0),
    "Number of endpoints that a reconcile of a service removes.",
);
pub(crate) const SLICE_ENDPOINTS: Row =
    Row::gauge("endpoint_slice_controller_endpoints_desired", &[], "Number of endpoints of all services.");
pub(crate) const SLICES: Row =
    Row::gauge("endpoint_slice_controller_num_endpoint_slices", &[], "Number of endpoint slices of all services.");
pub(crate) const SLICES_DESIRED: Row = Row::gauge(
    "endpoint_slice_controller_desired_endpoint_slices",
    &[],
    "Number of endpoint slices that would do if all were full.",
);
pub(crate) const SLICE_CHANGES: Row =
    Row::counter("endpoint_slice_controller_changes", &["operation"], "Number of changes of endpoint slices.");
pub(crate) const SLICES_CHANGED: Row = Row::histogram(
    "endpoint_slice_controller_endpointslices_changed_per_sync",
    &["topology", "traffic_distribution"],
    &[0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0],
    "Number of endpoint slices that a reconcile of a service changes.",
);
pub(crate) const SLICE_SYNCS: Row = Row::counter(
    "endpoint_slice_controller_syncs",
    &["result"],
    "Number of reconciles of services: success, stale cache, or error.",
);
pub(crate) const SLICE_DISTRIBUTIONS: Row = Row::gauge(
    "endpoint_slice_controller_services_count_by_traffic_distribution",
    &["traffic_distribution"],
    "Number of services with a trafficDistribution.",
);
pub(crate) const MIRROR_CHANGES: Row = Row::counter(
    "endpoint_slice_mirroring_controller_changes",
    &["operation"],
    "Number of changes of endpoint slices that mirror Endpoints.",
);
pub(crate) const MIRROR_SKIPPED: Row = Row::histogram(
    "endpoint_slice_mirroring_controller_addresses_skipped_per_sync",
    &[],
    doubled!(2.0),
    "Number of addresses that are invalid or too many to be mirrored.",
);
pub(crate) const MIRROR_SECONDS: Row = Row::histogram(
    "endpoint_slice_mirroring_controller_endpoints_sync_duration",
    &[],
    doubled!(0.001),
    "Seconds that mirroring one Endpoints object takes.",
);
pub(crate) const GC_SYNC_ERRORS: Row = Row::counter(
    "garbagecollector_controller_resources_sync_error_total",
    &[],
    "Number of times that resources could not be discovered or listed for garbage collection.",
);
pub(crate) const ZONE_HEALTH: Row =
    Row::gauge("node_collector_zone_health", &["zone"], "Percentage of the nodes of a zone that are ready.");
pub(crate) const ZONE_SIZE: Row = Row::gauge("node_collector_zone_size", &["zone"], "Number of nodes of a zone.");
pub(crate) const ZONE_UNHEALTHY: Row =
    Row::gauge("node_collector_unhealthy_nodes_in_zone", &["zone"], "Number of nodes of a zone that are not ready.");
pub(crate) const NODE_EVICTIONS: Row = Row::counter(
    "node_collector_evictions_total",
    &["zone"],
    "Number of nodes that were tainted so that their pods leave them.",
);
pub(crate) const NODE_HEALTH_SECONDS: Row = Row::histogram(
    "node_collector_update_node_health_duration_seconds",
    &[],
    &[0.001, 0.004, 0.016, 0.064, 0.256, 1.024, 4.096, 16.384],
    "Seconds that a check of the health of a node takes.",
);
pub(crate) const TAINT_DELETIONS: Row = Row::counter(
    "taint_eviction_controller_pod_deletions_total",
    &[],
    "Number of pods that were deleted because of a taint of their node.",
);
pub(crate) const TAINT_SECONDS: Row = Row::histogram(
    "taint_eviction_controller_pod_deletion_duration_seconds",
    &[],
    DELETION_SECONDS,
    "Seconds from the time at which a taint took effect on a pod to the deletion of the pod.",
);
pub(crate) const DEVICE_TAINT_DELETIONS: Row = Row::counter(
    "device_taint_eviction_controller_pod_deletions_total",
    &[],
    "Number of pods that were deleted because of a taint of a device that they use.",
);
pub(crate) const DEVICE_TAINT_SECONDS: Row = Row::histogram(
    "device_taint_eviction_controller_pod_deletion_duration_seconds",
    &[],
    DELETION_SECONDS,
    "Seconds from the time at which a taint of a device took effect on a pod to the deletion of the pod.",
);
pub(crate) const PODGC_DELETIONS: Row = Row::counter(
    "pod_gc_collector_force_delete_pods_total",
    &["namespace", "reason"],
    "Number of pods that were deleted without a grace period.",
);
pub(crate) const PODGC_ERRORS: Row = Row::counter(
    "pod_gc_collector_force_delete_pod_errors_total",
    &["namespace", "reason"],
    "Number of pods that could not be deleted without a grace period.",
);
pub(crate) const CLAIMS_CREATED: Row = Row::counter(
    "resourceclaim_controller_creates_total",
    &["status", "admin_access"],
    "Number of ResourceClaims that were created for pods, or could not be.",
);
pub(crate) const VOLUME_CLAIMS: Row = Row::counter(
    "ephemeral_volume_controller_create_total",
    &[],
    "Number of requests to create a PersistentVolumeClaim for an ephemeral volume.",
);
pub(crate) const VOLUME_CLAIM_FAILURES: Row = Row::counter(
    "ephemeral_volume_controller_create_failures_total",
    &[],
    "Number of PersistentVolumeClaims for ephemeral volumes that could not be created.",
);
pub(crate) const ROOT_CA_SYNCS: Row = Row::counter(
    "root_ca_cert_publisher_sync_total",
    &["code"],
    "Number of namespaces to which the cluster's CA was published, by status code.",
);
pub(crate) const ROOT_CA_SECONDS: Row = Row::histogram(
    "root_ca_cert_publisher_sync_duration_seconds",
    &["code"],
    doubled!(0.001),
    "Seconds that publishing the cluster's CA to a namespace takes.",
);
pub(crate) const CIDR_ALLOCATIONS: Row = Row::counter(
    "node_ipam_controller_cidrset_cidrs_allocations_total",
    &["clusterCIDR"],
    "Number of ranges that were allocated to nodes.",
);
pub(crate) const CIDR_RELEASES: Row = Row::counter(
    "node_ipam_controller_cidrset_cidrs_releases_total",
    &["clusterCIDR"],
    "Number of ranges that nodes gave back.",
);
pub(crate) const CIDR_MAX: Row = Row::gauge(
    "node_ipam_controller_cirdset_max_cidrs",
    &["clusterCIDR"],
    "Number of ranges for nodes in a range of the cluster.",
);
pub(crate) const CIDR_USAGE: Row = Row::real_gauge(
    "node_ipam_controller_cidrset_usage_cidrs",
    &["clusterCIDR"],
    "Part of the ranges for nodes that is allocated.",
);
pub(crate) const CIDR_TRIES: Row = Row::histogram(
    "node_ipam_controller_cidrset_allocation_tries_per_request",
    &["clusterCIDR"],
    &[1.0, 5.0, 25.0, 125.0, 625.0],
    "Number of ranges that were tried until a free one was found.",
);

/// Every metric.
const ROWS: &[Row] = &[
    JOB_SYNC_SECONDS,
    JOB_SYNCS,
    JOBS_FINISHED,
    JOBS_OF_OTHERS,
    JOB_PODS_FINISHED,
    JOB_FAILURES_HANDLED,
    JOB_TRACKED_PODS,
    JOB_INDEXES_FINISHED,
    JOB_PODS_CREATED,
    JOB_STALE,
    CRONJOB_SKEW,
    TTL_DELETION_SECONDS,
    STATEFULSET_MAX_UNAVAILABLE,
    STATEFULSET_UNAVAILABLE,
    DELETION_AGE_RATIO,
    HPA_RECONCILES,
    HPA_SECONDS,
    HPA_METRICS,
    HPA_METRIC_SECONDS,
    HPA_COUNT,
    HPA_DESIRED,
    SLICE_ENDPOINTS_ADDED,
    SLICE_ENDPOINTS_REMOVED,
    SLICE_ENDPOINTS,
    SLICES,
    SLICES_DESIRED,
    SLICE_CHANGES,
    SLICES_CHANGED,
    SLICE_SYNCS,
    SLICE_DISTRIBUTIONS,
    MIRROR_CHANGES,
    MIRROR_SKIPPED,
    MIRROR_SECONDS,
    GC_SYNC_ERRORS,
    ZONE_HEALTH,
    ZONE_SIZE,
    ZONE_UNHEALTHY,
    NODE_EVICTIONS,
    NODE_HEALTH_SECONDS,
    TAINT_DELETIONS,
    TAINT_SECONDS,
    DEVICE_TAINT_DELETIONS,
    DEVICE_TAINT_SECONDS,
    PODGC_DELETIONS,
    PODGC_ERRORS,
    CLAIMS_CREATED,
    VOLUME_CLAIMS,
    VOLUME_CLAIM_FAILURES,
    ROOT_CA_SYNCS,
    ROOT_CA_SECONDS,
    CIDR_ALLOCATIONS,
    CIDR_RELEASES,
    CIDR_MAX,
    CIDR_USAGE,
    CIDR_TRIES,
];

static SET: LazyLock<Set> = LazyLock::new(|| Set::new(ROWS));

/// All metrics in the Prometheus text format.
pub(crate) fn text() -> String {
    SET.text()
}

pub(crate) fn count(row: &Row, labels: &[&str]) {
    SET.counter(row, labels).inc();
}

/// Adds to a counter. A negative number counts nothing.
pub(crate) fn add(row: &Row, labels: &[&str], n: i64) {
    SET.counter(row, labels).inc_by(u64::try_from(n).unwrap_or(0));
}

pub(crate) fn observe(row: &Row, labels: &[&str], value: f64) {
    SET.histogram(row, labels).observe(value);
}

pub(crate) fn took(row: &Row, labels: &[&str], duration: Duration) {
    observe(row, labels, duration.as_secs_f64());
}

pub(crate) fn set(row: &Row, labels: &[&str], value: usize) {
    SET.gauge(row, labels).set(i64::try_from(value).unwrap_or(i64::MAX));
}

pub(crate) fn set_real(row: &Row, labels: &[&str], value: f64) {
    SET.real_gauge(row, labels).set(value);
}

/// Removes the series of an object that is gone.
pub(crate) fn remove(row: &Row, labels: &[&str]) {
    SET.remove(row, labels);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shown_when_they_are_counted() {
        assert_eq!(SET.text(), text(), "every row has a name of its own");
        add(&CLAIMS_CREATED, &["success", "false"], 2);
        add(&CLAIMS_CREATED, &["success", "false"], -2);
        set(&ZONE_SIZE, &["test"], 3);
        let line = |l: &str| assert!(text().lines().any(|line| line == l), "{l}");
        line("resourceclaim_controller_creates_total{admin_access=\"false\",status=\"success\"} 2");
        line("node_collector_zone_size{zone=\"test\"} 3");
        remove(&ZONE_SIZE, &["test"]);
        assert!(!text().contains("zone=\"test\""));
    }
}
