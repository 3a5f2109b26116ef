//! Metrics that are computed on request: the text is written at once, no values are kept.

use crate::{Kind, Row};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Samples of several metrics, in the order of their names.
#[derive(Default)]
pub struct Scrape(BTreeMap<&'static str, (Row, String)>);

impl Scrape {
    /// Adds a sample with as many values as the row has labels. `at` is when it was measured, in milliseconds since 1970.
    pub fn sample(&mut self, row: &Row, values: &[&str], value: f64, at: Option<i64>) {
        debug_assert_eq!(row.labels.len(), values.len(), "{}", row.name);
        let (_, text) = self.0.entry(row.name).or_insert_with(|| (*row, String::new()));
        text.push_str(row.name);
        for (i, (label, value)) in row.labels.iter().zip(values).enumerate() {
            let open = if i == 0 { '{' } else { ',' };
            let _ = write!(text, "{open}{label}=\"{}\"", escaped(value));
        }
        if !row.labels.is_empty() {
            text.push('}');
        }
        let _ = write!(text, " {value}");
        if let Some(at) = at {
            let _ = write!(text, " {at}");
        }
        text.push('\n');
    }

    /// All samples in Prometheus' text format.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (row, samples) in self.0.values().filter(|(_, s)| !s.is_empty()) {
            let kind = match row.kind {
                Kind::Counter => "counter",
                Kind::Gauge | Kind::RealGauge => "gauge",
                Kind::Histogram(_) => "histogram",
            };
            let _ = write!(out, "# HELP {0} {1}\n# TYPE {0} {kind}\n{samples}", row.name, row.help);
        }
        out
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const USED: Row = Row::counter("used_seconds_total", &["pod", "namespace"], "What was used.");
    const SIZE: Row = Row::real_gauge("size_bytes", &[], "How large it is.");

    #[test]
    fn samples_become_text() {
        let mut s = Scrape::default();
        s.sample(&USED, &["a", "b"], 1.5, Some(1000));
        s.sample(&USED, &["a\"\\\n", ""], 2.0, None);
        s.sample(&SIZE, &[], 12_345_678_901.0, None);
        let want = "# HELP size_bytes How large it is.\n# TYPE size_bytes gauge\nsize_bytes 12345678901\n\
            # HELP used_seconds_total What was used.\n# TYPE used_seconds_total counter\n\
            used_seconds_total{pod=\"a\",namespace=\"b\"} 1.5 1000\n\
            used_seconds_total{pod=\"a\\\"\\\\\\n\",namespace=\"\"} 2\n";
        assert_eq!(s.text(), want);
    }
}
