//! The results as rows, a table, or JSON.

use crate::Format;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// One line of the result. What a benchmark does not measure is left out.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub name: String,
    /// Number of measured requests, events, pods or starts.
    pub n: u64,
    /// Per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<&'static str>,
    pub errors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
}

impl Row {
    /// A row from durations in any order.
    pub fn times(name: impl Into<String>, mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |q| percentile(&times, q).map(milliseconds);
        Self { name: name.into(), n: times.len() as u64, p50_ms: at(0.5), p99_ms: at(0.99), ..Self::default() }
    }

    /// A row of a value that was read once.
    pub fn value(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { name: name.into(), n: 1, value: Some(value), unit: Some(unit), ..Self::default() }
    }

    /// A row of a benchmark without a result.
    pub fn failed(name: impl Into<String>, why: String) -> Self {
        Self { name: name.into(), errors: 1, first_error: Some(why), ..Self::default() }
    }

    #[must_use]
    pub fn with_rate(mut self, elapsed: Duration) -> Self {
        self.rate = (!elapsed.is_zero()).then(|| self.n as f64 / elapsed.as_secs_f64());
        self
    }

    #[must_use]
    pub fn with_value(mut self, value: f64, unit: &'static str) -> Self {
        (self.value, self.unit) = (Some(value), Some(unit));
        self
    }

    #[must_use]
    pub fn with_errors(mut self, errors: u64, first: Option<String>) -> Self {
        (self.errors, self.first_error) = (errors, first);
        self
    }

    /// Whether the result counts: something was measured, and no answer was an error.
    pub fn counts(&self) -> bool {
        self.n > 0 && self.errors == 0
    }
}

fn milliseconds(d: Duration) -> f64 {
    (d.as_secs_f64() * 1e6).round() / 1e3
}

/// The smallest of the sorted times that is not less than the share `q` of them.
fn percentile(sorted: &[Duration], q: f64) -> Option<Duration> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

#[derive(Debug, Default)]
pub struct Report {
    /// The version of the server.
    pub server: String,
    pub rows: Vec<Row>,
    pub skipped: Vec<(&'static str, String)>,
}

impl Report {
    /// Something was measured wrongly or not at all.
    pub fn failed(&self) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|r| !r.counts())
    }

    pub fn print(&self, format: Format) -> String {
        match format {
            Format::Table => self.table(),
            Format::Json => format!("{:#}\n", self.json()),
        }
    }

    pub fn json(&self) -> serde_json::Value {
        let skipped = self.skipped.iter().map(|(n, why)| serde_json::json!({"name": n, "why": why}));
        serde_json::json!({
            "server": self.server,
            "failed": self.failed(),
            "results": self.rows,
            "skipped": skipped.collect::<Vec<_>>(),
        })
    }

    fn table(&self) -> String {
        let digits = |v: Option<f64>| match v {
            None => "-".to_owned(),
            Some(v) if v >= 100.0 => format!("{v:.0}"),
            Some(v) => format!("{v:.2}"),
        };
        let head = ["NAME", "N", "RATE/S", "P50 MS", "P99 MS", "VALUE", "ERRORS"].map(str::to_owned);
        let mut lines = vec![head];
        lines.extend(self.rows.iter().map(|r| {
            let value = match (r.value, r.unit) {
                (Some(_), Some(unit)) => format!("{} {unit}", digits(r.value)),
                _ => "-".into(),
            };
            let n = r.n.to_string();
            [r.name.clone(), n, digits(r.rate), digits(r.p50_ms), digits(r.p99_ms), value, r.errors.to_string()]
        }));
        let width = |i: usize| lines.iter().map(|l| l[i].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
        let mut out = format!("server {}\n", self.server);
        for line in &lines {
            let _ = write!(out, "{:<w$}", line[0], w = widths[0]);
            for (cell, w) in line.iter().zip(&widths).skip(1) {
                let _ = write!(out, "   {cell:>w$}");
            }
            out.push('\n');
        }
        for r in self.rows.iter().filter(|r| !r.counts()) {
            let why = r.first_error.as_deref().unwrap_or("nothing was measured");
            let _ = writeln!(out, "{} does not count: {why}", r.name);
        }
        for (name, why) in &self.skipped {
            let _ = writeln!(out, "{name} was not measured: {why}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_times_themselves() {
        let times: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        let row = Row::times("x", times);
        assert_eq!((row.n, row.p50_ms, row.p99_ms), (100, Some(50.0), Some(99.0)));
        let one = Row::times("x", vec![Duration::from_micros(1500)]);
        assert_eq!((one.p50_ms, one.p99_ms), (Some(1.5), Some(1.5)));
        assert!(!Row::times("x", vec![]).counts());
    }

    #[test]
    fn an_error_answer_spoils_a_row_and_the_report() {
        let good = Row::times("good", vec![Duration::from_millis(2)]).with_rate(Duration::from_secs(1));
        let bad = good.clone().with_errors(1, Some("500: broken".into()));
        let report = Report { server: "v1".into(), rows: vec![good.clone()], skipped: vec![("run", "no node".into())] };
        assert!(!report.failed());
        let table = report.print(Format::Table);
        assert_eq!(table.lines().nth(2), Some("good   1     1.00     2.00     2.00       -        0"));
        assert!(table.ends_with("run was not measured: no node\n"), "{table}");
        let report = Report { rows: vec![good, bad], ..report };
        assert!(report.failed() && report.print(Format::Table).contains("500: broken"));
        let json: serde_json::Value = serde_json::from_str(&report.print(Format::Json)).unwrap();
        assert_eq!((&json["failed"], &json["results"][1]["errors"]), (&true.into(), &1.into()));
        assert!(Report::default().failed(), "nothing measured is no success");
    }
}
