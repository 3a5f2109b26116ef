//! Reads `/metrics/resource` of a kubelet, in the text format of Prometheus.

use crate::{Containers, PodKey, Point, Report};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, HashMap};

/// A point while its samples are read.
#[derive(Default)]
struct Partial {
    at: Option<Timestamp>,
    started: Option<Timestamp>,
    cpu: u64,
    memory: u64,
}

impl Partial {
    fn point(&self, now: Timestamp) -> Option<Point> {
        let complete = self.cpu != 0 && self.memory != 0;
        complete.then_some(Point {
            at: self.at.unwrap_or(now),
            started: self.started,
            cpu: self.cpu,
            memory: self.memory,
        })
    }
}

/// A line: name, labels, value, time.
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
    at: Option<Timestamp>,
}

impl Sample<'_> {
    fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(k, _)| *k == name).map(|(_, v)| v.as_str())
    }
}

/// Reads a report. Lines that cannot be read are skipped, and so are pods with a container that lacks CPU or memory. `now` is the time of
/// samples without one.
pub fn parse(text: &str, now: Timestamp) -> Report {
    let mut node = Partial::default();
    let mut pods: HashMap<PodKey, BTreeMap<Box<str>, Partial>> = HashMap::new();
    for s in text.lines().filter_map(sample) {
        match s.name {
            "node_cpu_usage_seconds_total" => (node.cpu, node.at) = (nanoseconds(s.value), s.at),
            "node_memory_working_set_bytes" => node.memory = s.value as u64,
            "container_cpu_usage_seconds_total"
            | "container_memory_working_set_bytes"
            | "container_start_time_seconds" => {
                let label = |name| s.label(name).filter(|v| !v.is_empty());
                let (Some(namespace), Some(pod), Some(container)) =
                    (label("namespace"), label("pod"), label("container"))
                else {
                    continue;
                };
                let containers = pods.entry((namespace.into(), pod.into())).or_default();
                let own = containers.entry(container.into()).or_default();
                match s.name {
                    "container_cpu_usage_seconds_total" => (own.cpu, own.at) = (nanoseconds(s.value), s.at),
                    "container_memory_working_set_bytes" => own.memory = s.value as u64,
                    _ => own.started = time(s.value),
                }
            }
            _ => {}
        }
    }
    let complete = |(pod, containers): (PodKey, BTreeMap<Box<str>, Partial>)| {
        let points: Option<Containers> = containers.into_iter().map(|(name, p)| Some((name, p.point(now)?))).collect();
        Some((pod, points?))
    };
    Report { node: node.point(now), pods: pods.into_iter().filter_map(complete).collect() }
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

fn time(seconds: f64) -> Option<Timestamp> {
    let since = SignedDuration::try_from_secs_f64(seconds).ok()?;
    Timestamp::UNIX_EPOCH.checked_add(since).ok()
}

/// Reads `name{label="value",…} value [milliseconds]`.
fn sample(line: &str) -> Option<Sample<'_>> {
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            inside = inside.trim_start_matches([',', ' ']);
            if let Some(after) = inside.strip_prefix('}') {
                rest = after;
                break;
            }
            let (key, value) = inside.split_once("=\"")?;
            let (text, after) = quoted(value)?;
            labels.push((key.trim(), text));
            inside = after;
        }
    }
    let mut fields = rest.split_whitespace();
    let value: f64 = fields.next()?.parse().ok()?;
    let at = fields.next().and_then(|t| Timestamp::from_millisecond(t.parse().ok()?).ok());
    (value.is_finite() && value >= 0.0).then_some(Sample { name, labels, value, at })
}

/// Reads a text up to its closing quote; returns what follows too.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return Some((out, &text[i + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => out.push('\n'),
                c => out.push(c),
            },
            c => out.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_kubelets_report() {
        let now = Timestamp::from_second(2_000).unwrap();
        let text = r#"# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 1.5e+01 1000500
node_memory_working_set_bytes 2.048e+09 1000500
container_cpu_usage_seconds_total{container="c",namespace="ns",pod="p"} 0.25 1000000
container_memory_working_set_bytes{container="c",namespace="ns",pod="p"} 1.048576e+06 1000000
container_start_time_seconds{container="c",namespace="ns",pod="p"} 900.5
container_cpu_usage_seconds_total{container="odd \"}\\",namespace="ns",pod="q"} 1
container_memory_working_set_bytes{container="odd \"}\\",namespace="ns",pod="q"} 1
container_cpu_usage_seconds_total{container="idle",namespace="ns",pod="r"} 0 1000000
container_memory_working_set_bytes{container="idle",namespace="ns",pod="r"} 5 1000000
container_memory_working_set_bytes{container="",namespace="ns",pod="s"} 5
container_memory_working_set_bytes{container="c
container_memory_working_set_bytes{} NaN
pod_cpu_usage_seconds_total{namespace="ns",pod="p"} 3 1000000
scrape_error 0
"#;
        let found = parse(text, now);
        let at = |ms| Timestamp::from_millisecond(ms).unwrap();
        let node = Point { at: at(1_000_500), started: None, cpu: 15_000_000_000, memory: 2_048_000_000 };
        assert_eq!(found.node, Some(node));
        let p = Point { at: at(1_000_000), started: Some(at(900_500)), cpu: 250_000_000, memory: 1 << 20 };
        let q = Point { at: now, started: None, cpu: 1_000_000_000, memory: 1 };
        let key = |pod: &str| ("ns".into(), pod.into());
        let expected = HashMap::from([
            (key("p"), Containers::from([("c".into(), p)])),
            (key("q"), Containers::from([("odd \"}\\".into(), q)])),
        ]);
        assert_eq!(found.pods, expected);
        assert_eq!(parse("", now), Report::default());
    }
}
