//! Metrics in Prometheus' text format. A metric is a row of a table: name, kind, labels and help text. A [`Set`] counts.
//!
//! Frequent code resolves a series once ([`Set::counter`] and the like) and keeps it: counting is then a few atomic operations. A [`Scrape`]
//! collects values that are read on request. Left out: the rows, which belong to the code that counts.

#![warn(missing_docs)]

mod health;
mod publish;
mod scrape;

pub use health::HealthChecks;
pub use prometheus::{Gauge as RealGauge, Histogram, IntCounter as Counter, IntGauge as Gauge};
pub use publish::{publish, published};
pub use scrape::Scrape;

use prometheus::core::Collector;
use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};
use std::collections::HashMap;

/// The kind of a metric.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A counter, which never decreases.
    Counter,
    /// A gauge of integers.
    Gauge,
    /// A gauge with fractions.
    RealGauge,
    /// A histogram with the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

/// A metric of a table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name, as Prometheus reads it.
    pub name: &'static str,
    /// The kind.
    pub kind: Kind,
    /// The help text.
    pub help: &'static str,
    /// The names of the labels.
    pub labels: &'static [&'static str],
}

impl Row {
    /// A row of a counter.
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Counter, help, labels }
    }

    /// A row of a gauge of integers.
    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, help, labels }
    }

    /// A row of a gauge of floating-point numbers.
    pub const fn real_gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::RealGauge, help, labels }
    }

    /// A row of a histogram with these upper bounds.
    pub const fn histogram(
        name: &'static str,
        labels: &'static [&'static str],
        buckets: &'static [f64],
        help: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Histogram(buckets), help, labels }
    }
}

enum Family {
    Counter(IntCounterVec),
    Gauge(IntGaugeVec),
    RealGauge(GaugeVec),
    Histogram(HistogramVec),
}

/// The metrics of a table, with their values.
pub struct Set {
    registry: Registry,
    families: HashMap<&'static str, Family>,
}

impl Set {
    /// Registers a table. Panics if two rows have one name, or a name is invalid.
    pub fn new(rows: &[Row]) -> Self {
        let registry = Registry::new();
        let mut families = HashMap::new();
        for r in rows {
            let made = match r.kind {
                Kind::Counter => IntCounterVec::new(Opts::new(r.name, r.help), r.labels)
                    .and_then(|f| add(&registry, f).map(Family::Counter)),
                Kind::Gauge => IntGaugeVec::new(Opts::new(r.name, r.help), r.labels)
                    .and_then(|f| add(&registry, f).map(Family::Gauge)),
                Kind::RealGauge => GaugeVec::new(Opts::new(r.name, r.help), r.labels)
                    .and_then(|f| add(&registry, f).map(Family::RealGauge)),
                Kind::Histogram(buckets) => {
                    let opts = HistogramOpts::new(r.name, r.help).buckets(buckets.to_vec());
                    HistogramVec::new(opts, r.labels).and_then(|f| add(&registry, f).map(Family::Histogram))
                }
            };
            match made {
                Ok(f) => families.insert(r.name, f),
                Err(e) => unreachable!("the metric {}: {e}", r.name),
            };
        }
        Self { registry, families }
    }

    /// Adds the metrics of this process (`process_*`).
    pub fn with_process(self) -> Self {
        let collector = prometheus::process_collector::ProcessCollector::for_self();
        if let Err(e) = self.registry.register(Box::new(collector)) {
            unreachable!("its names are its own: {e}");
        }
        self
    }

    /// The series of a counter, with a value for each label of its row.
    pub fn counter(&self, row: &Row, values: &[&str]) -> Counter {
        match self.families.get(row.name) {
            Some(Family::Counter(f)) => f.with_label_values(values),
            _ => unreachable!("{} is no counter of this table", row.name),
        }
    }

    /// The series of an integer gauge, with a value for each label of its row.
    pub fn gauge(&self, row: &Row, values: &[&str]) -> Gauge {
        match self.families.get(row.name) {
            Some(Family::Gauge(f)) => f.with_label_values(values),
            _ => unreachable!("{} is no gauge of this table", row.name),
        }
    }

    /// The series of a floating-point gauge, with a value for each label of its row.
    pub fn real_gauge(&self, row: &Row, values: &[&str]) -> RealGauge {
        match self.families.get(row.name) {
            Some(Family::RealGauge(f)) => f.with_label_values(values),
            _ => unreachable!("{} is no gauge with fractions of this table", row.name),
        }
    }

    /// The series of a histogram, with a value for each label of its row.
    pub fn histogram(&self, row: &Row, values: &[&str]) -> Histogram {
        match self.families.get(row.name) {
            Some(Family::Histogram(f)) => f.with_label_values(values),
            _ => unreachable!("{} is no histogram of this table", row.name),
        }
    }

    /// Removes a series of any kind whose object is gone.
    pub fn remove(&self, row: &Row, values: &[&str]) {
        // A series that was never counted does not exist.
        let _ = match self.families.get(row.name) {
            Some(Family::Counter(f)) => f.remove_label_values(values),
            Some(Family::Gauge(f)) => f.remove_label_values(values),
            Some(Family::RealGauge(f)) => f.remove_label_values(values),
            Some(Family::Histogram(f)) => f.remove_label_values(values),
            None => Ok(()),
        };
    }

    /// Removes all series of a gauge that is computed at each read.
    pub fn reset(&self, row: &Row) {
        if let Some(Family::Gauge(f)) = self.families.get(row.name) {
            f.reset();
        }
    }

    /// All metrics in Prometheus' text format.
    pub fn text(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }
}

fn add<C: Collector + Clone + 'static>(registry: &Registry, family: C) -> prometheus::Result<C> {
    registry.register(Box::new(family.clone()))?;
    Ok(family)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: Row = Row::counter("done_total", &["what"], "What was done.");
    const OPEN: Row = Row::gauge("open", &[], "What is open.");
    const TOOK: Row = Row::histogram("took_seconds", &["what"], &[0.5, 1.0], "How long it took.");

    #[test]
    fn rows_become_text() {
        let s = Set::new(&[DONE, OPEN, TOOK]);
        let done = s.counter(&DONE, &["a\"b"]);
        done.inc();
        done.inc();
        s.gauge(&OPEN, &[]).set(-3);
        s.histogram(&TOOK, &["x"]).observe(0.7);
        let want = "# HELP done_total What was done.\n# TYPE done_total counter\ndone_total{what=\"a\\\"b\"} 2\n\
            # HELP open What is open.\n# TYPE open gauge\nopen -3\n\
            # HELP took_seconds How long it took.\n# TYPE took_seconds histogram\n\
            took_seconds_bucket{what=\"x\",le=\"0.5\"} 0\ntook_seconds_bucket{what=\"x\",le=\"1\"} 1\n\
            took_seconds_bucket{what=\"x\",le=\"+Inf\"} 1\ntook_seconds_sum{what=\"x\"} 0.7\ntook_seconds_count{what=\"x\"} 1\n";
        assert_eq!(s.text(), want);
    }

    #[test]
    fn the_kernel_is_asked() {
        let text = Set::new(&[]).with_process().text();
        for name in [
            "process_cpu_seconds_total",
            "process_open_fds",
            "process_resident_memory_bytes",
            "process_start_time_seconds",
        ] {
            assert!(text.contains(&format!("\n{name} ")), "{name} in {text}");
        }
    }
}
