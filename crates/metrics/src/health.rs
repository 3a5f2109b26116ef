//! Service level indicators of health checks (`/metrics/slis`, `k8s.io/component-base/metrics/prometheus/slis`).

use crate::{Row, Set};

const CHECK: Row = Row::gauge(
    "kubernetes_healthcheck",
    &["name", "type"],
    "Result of a health check: 1 if it passed the last time, else 0. By its name, and the endpoint that lists it.",
);
const CHECKS: Row = Row::counter(
    "kubernetes_healthchecks_total",
    &["name", "status", "type"],
    "Health checks made, by name, result (success or error) and the endpoint that lists them.",
);

/// The health checks of a server, by their name and the endpoint that lists them (`healthz`, `livez` or `readyz`).
pub struct HealthChecks(Set);

impl Default for HealthChecks {
    fn default() -> Self {
        Self(Set::new(&[CHECK, CHECKS]))
    }
}

impl HealthChecks {
    /// Records the result of a check that no client requested.
    pub fn set(&self, name: &str, endpoint: &str, passed: bool) {
        self.0.gauge(&CHECK, &[name, endpoint]).set(passed.into());
    }

    /// Records the result of a check that a client requested.
    pub fn count(&self, name: &str, endpoint: &str, passed: bool) {
        self.set(name, endpoint, passed);
        let status = if passed { "success" } else { "error" };
        self.0.counter(&CHECKS, &[name, status, endpoint]).inc();
    }

    /// All indicators in Prometheus' text format.
    pub fn text(&self) -> String {
        self.0.text()
    }
}
