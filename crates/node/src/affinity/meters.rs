//! Metrics of the managers, under upstream's names (`pkg/kubelet/metrics/metrics.go`).

use std::time::Duration;

use metrics::{Row, Set};

const CPU_REQUESTS: Row = Row::counter(
    "kubelet_cpu_manager_pinning_requests_total",
    &[],
    "Containers for which exclusive processors were requested.",
);
const CPU_ERRORS: Row =
    Row::counter("kubelet_cpu_manager_pinning_errors_total", &[], "Requests for exclusive processors that failed.");
const SHARED_POOL: Row = Row::gauge(
    "kubelet_cpu_manager_shared_pool_size_millicores",
    &[],
    "Thousandths of processors that containers without exclusive ones share.",
);
const EXCLUSIVE: Row =
    Row::gauge("kubelet_cpu_manager_exclusive_cpu_allocation_count", &[], "Processors that are allocated exclusively.");
const MEMORY_REQUESTS: Row = Row::counter(
    "kubelet_memory_manager_pinning_requests_total",
    &[],
    "Containers for which memory of NUMA nodes was requested.",
);
const MEMORY_ERRORS: Row =
    Row::counter("kubelet_memory_manager_pinning_errors_total", &[], "Requests for memory of NUMA nodes that failed.");
const ADMISSIONS: Row = Row::counter(
    "kubelet_topology_manager_admission_requests_total",
    &[],
    "Pods for which resources had to be aligned.",
);
const ADMISSION_ERRORS: Row = Row::counter(
    "kubelet_topology_manager_admission_errors_total",
    &[],
    "Pods that were refused because their resources could not be aligned.",
);
const ADMISSION_MILLISECONDS: Row = Row::histogram(
    "kubelet_topology_manager_admission_duration_ms",
    &[],
    &[0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2],
    "Milliseconds that it took to align the resources of a pod.",
);
const ROWS: &[Row] = &[
    CPU_REQUESTS,
    CPU_ERRORS,
    SHARED_POOL,
    EXCLUSIVE,
    MEMORY_REQUESTS,
    MEMORY_ERRORS,
    ADMISSIONS,
    ADMISSION_ERRORS,
    ADMISSION_MILLISECONDS,
];

/// Whether something succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Succeeded,
    Failed,
}

impl<T, E> From<&Result<T, E>> for Outcome {
    fn from(result: &Result<T, E>) -> Self {
        if result.is_ok() { Self::Succeeded } else { Self::Failed }
    }
}

/// The metrics of the managers of a node.
pub struct Meters(Set);

impl Default for Meters {
    fn default() -> Self {
        let set = Set::new(ROWS);
        // Present from the start.
        for row in [&CPU_REQUESTS, &CPU_ERRORS, &MEMORY_REQUESTS, &MEMORY_ERRORS, &ADMISSIONS, &ADMISSION_ERRORS] {
            let _ = set.counter(row, &[]);
        }
        for row in [&SHARED_POOL, &EXCLUSIVE] {
            set.gauge(row, &[]).set(0);
        }
        Self(set)
    }
}

impl Meters {
    /// Records a request for exclusive processors.
    pub fn pinned_cpus(&self, outcome: Outcome) {
        self.count([&CPU_REQUESTS, &CPU_ERRORS], outcome);
    }

    /// Records a request for memory.
    pub fn pinned_memory(&self, outcome: Outcome) {
        self.count([&MEMORY_REQUESTS, &MEMORY_ERRORS], outcome);
    }

    /// Records that the resources of a pod were aligned, or not.
    pub fn admitted(&self, outcome: Outcome, took: Duration) {
        self.count([&ADMISSIONS, &ADMISSION_ERRORS], outcome);
        self.0.histogram(&ADMISSION_MILLISECONDS, &[]).observe(took.as_secs_f64() * 1000.0);
    }

    /// Replaces the numbers of processors that are shared and allocated.
    pub fn cpus(&self, shared: usize, exclusive: usize) {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.0.gauge(&SHARED_POOL, &[]).set(number(shared).saturating_mul(1000));
        self.0.gauge(&EXCLUSIVE, &[]).set(number(exclusive));
    }

    pub fn text(&self) -> String {
        self.0.text()
    }

    fn count(&self, [requests, errors]: [&Row; 2], outcome: Outcome) {
        self.0.counter(requests, &[]).inc();
        if outcome == Outcome::Failed {
            self.0.counter(errors, &[]).inc();
        }
    }
}
