//! How many replicas a metric requires (upstream `replica_calculator.go`). Pure: data to data.

use crate::views::{Pod, PodEntry};
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How long after its start a pod may use unusual amounts of CPU.
const CPU_INITIALIZATION: SignedDuration = SignedDuration::from_mins(5);
/// A pod that became unready this soon after its start has never been ready.
const INITIAL_READINESS_DELAY: SignedDuration = SignedDuration::from_secs(30);
const MAX_REPLICAS: i64 = i32::MAX as i64;

/// The measured value of a pod, in thousandths.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub value: i64,
    pub at: Timestamp,
    /// The time over which the value was measured.
    pub window: SignedDuration,
}

/// Samples by pod name.
pub type Samples = BTreeMap<Box<str>, Sample>;

/// Ratios between usage and target that change nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerances {
    pub down: f64,
    pub up: f64,
}

impl Tolerances {
    fn covers(self, ratio: f64) -> bool {
        (1.0 - self.down..=1.0 + self.up).contains(&ratio)
    }
}

/// The target of an autoscaler as it is now.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The pods that the scale's selector selects.
    pub pods: &'a [Arc<PodEntry>],
    /// `spec.replicas` of the scale.
    pub replicas: i64,
    pub tolerances: Tolerances,
    pub now: Timestamp,
}

/// The replicas that a utilization requires.
#[derive(Debug, PartialEq, Eq)]
pub struct Utilization {
    pub replicas: i64,
    /// Percent of the requests.
    pub percent: i64,
    /// The average of the pods, in thousandths.
    pub average: i64,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Groups {
    ready: usize,
    unready: Vec<Box<str>>,
    missing: Vec<Box<str>>,
    ignored: Vec<Box<str>>,
}

fn group(pods: &[Arc<PodEntry>], samples: &Samples, resource: &str, now: Timestamp) -> Groups {
    let mut groups = Groups::default();
    for pod in pods {
        let name = &pod.meta.name;
        let group = match (&*pod.view.status.phase, samples.get(&**name)) {
            _ if pod.meta.is_deleting() => &mut groups.ignored,
            ("Failed", _) => &mut groups.ignored,
            ("Pending", _) => &mut groups.unready,
            (_, None) => &mut groups.missing,
            (_, Some(sample)) if resource == "cpu" && !has_settled(&pod.view, sample, now) => &mut groups.unready,
            _ => {
                groups.ready += 1;
                continue;
            }
        };
        group.push((**name).into());
    }
    groups
}

/// Whether the CPU usage of a pod is that of its normal operation.
fn has_settled(pod: &Pod, sample: &Sample, now: Timestamp) -> bool {
    let (Some(ready), Some(started)) = (pod.condition("Ready"), pod.status.start_time) else { return false };
    let since = ready.last_transition_time.unwrap_or(Timestamp::UNIX_EPOCH);
    let unready = &*ready.status == "False";
    if later(started, CPU_INITIALIZATION) > now {
        return !unready && sample.at >= later(since, sample.window);
    }
    !(unready && later(started, INITIAL_READINESS_DELAY) > since)
}

fn later(t: Timestamp, by: SignedDuration) -> Timestamp {
    t.checked_add(by).unwrap_or(Timestamp::MAX)
}

fn ceil(replicas: f64) -> i64 {
    (replicas.ceil() as i64).min(MAX_REPLICAS)
}

/// The replicas that bring `ratio` of the pods' samples to one. `missing` is the value of a pod without a sample when replicas are removed.
fn per_pod(
    target: &Target<'_>,
    samples: &Samples,
    groups: &Groups,
    ratio: impl Fn(&Samples) -> Result<f64, String>,
    missing: impl Fn(&str) -> i64,
) -> Result<i64, String> {
    let before = ratio(samples)?;
    let unready_matter = !groups.unready.is_empty() && before > 1.0;
    if !unready_matter && groups.missing.is_empty() {
        let within = target.tolerances.covers(before);
        return Ok(if within { target.replicas } else { ceil(before * groups.ready as f64) });
    }
    let mut all = samples.clone();
    let mut assume = |name: &str, value| {
        all.insert(name.into(), Sample { value, at: target.now, window: SignedDuration::ZERO });
    };
    if before < 1.0 {
        groups.missing.iter().for_each(|p| assume(p, missing(p)));
    } else if before > 1.0 {
        groups.missing.iter().for_each(|p| assume(p, 0));
    }
    if unready_matter {
        groups.unready.iter().for_each(|p| assume(p, 0));
    }
    let after = ratio(&all)?;
    let reversed = (before < 1.0 && after > 1.0) || (before > 1.0 && after < 1.0);
    if target.tolerances.covers(after) || reversed {
        return Ok(target.replicas);
    }
    let replicas = ceil(after * all.len() as f64);
    let reversed = (after < 1.0 && replicas > target.replicas) || (after > 1.0 && replicas < target.replicas);
    Ok(if reversed { target.replicas } else { replicas })
}

/// Removes the samples of pods that do not count.
fn settled(target: &Target<'_>, mut samples: Samples, resource: &str) -> Result<(Samples, Groups), String> {
    if target.pods.is_empty() {
        return Err("no pods returned by selector while calculating replica count".into());
    }
    let groups = group(target.pods, &samples, resource, target.now);
    for name in groups.ignored.iter().chain(&groups.unready) {
        samples.remove(name);
    }
    if samples.is_empty() {
        return Err("did not receive metrics for targeted pods (pods might be unready)".into());
    }
    Ok((samples, groups))
}

/// The replicas for an average utilization of `percent` of the requests. An empty `container` means all containers of a pod.
pub fn for_utilization(
    target: &Target<'_>,
    samples: Samples,
    resource: &str,
    container: &str,
    percent: i64,
) -> Result<Utilization, String> {
    let (samples, groups) = settled(target, samples, resource)?;
    let mut requests = BTreeMap::new();
    for pod in target.pods {
        requests.insert(&*pod.meta.name, request(pod, container, resource)?);
    }
    let ratio = |samples: &Samples| Ok(utilization(samples, &requests)?.0 as f64 / percent as f64);
    let (current, average) = utilization(&samples, &requests)?;
    let fallback = |pod: &str| {
        let request = requests.get(pod).copied().unwrap_or_default();
        saturate(i128::from(request) * i128::from(percent.max(100)) / 100)
    };
    let replicas = per_pod(target, &samples, &groups, ratio, fallback)?;
    Ok(Utilization { replicas, percent: current, average })
}

/// The percentage of requests that pods use, and their average usage.
fn utilization(samples: &Samples, requests: &BTreeMap<&str, i64>) -> Result<(i64, i64), String> {
    let known = || samples.iter().filter_map(|(pod, s)| Some((s, *requests.get(&**pod)?)));
    let used: i128 = known().map(|(s, _)| i128::from(s.value)).sum();
    let requested: i128 = known().map(|(_, request)| i128::from(request)).sum();
    if requested == 0 {
        return Err("no metrics returned matched known pods".into());
    }
    let percent = (used * 100 / requested).clamp(i32::MIN.into(), i32::MAX.into());
    Ok((saturate(percent), saturate(used / known().count() as i128)))
}

fn saturate(v: i128) -> i64 {
    v.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// The request of a pod for a resource, in thousandths: of one container, of the pod, or the sum of its containers and sidecars.
fn request(pod: &PodEntry, container: &str, resource: &str) -> Result<i64, String> {
    let (spec, name) = (&pod.view.spec, &pod.meta.name);
    let pod_level =
        spec.resources.requests.keys().any(|r| matches!(&**r, "cpu" | "memory") || r.starts_with("hugepages-"));
    if container.is_empty() && pod_level {
        return pod_request(&pod.view, resource)
            .ok_or_else(|| format!("missing pod-level request for {resource} in Pod {name}"));
    }
    let mut sum = 0i64;
    for c in spec.containers.iter().chain(spec.init_containers.iter().filter(|c| c.is_sidecar())) {
        if container.is_empty() || container == &*c.name {
            let Some(own) = c.resources.requests.get(resource) else {
                return Err(format!("missing request for {resource} in container {} of Pod {name}", c.name));
            };
            sum = sum.saturating_add(own.0);
        }
        if container == &*c.name {
            return Ok(sum);
        }
    }
    if container.is_empty() { Ok(sum) } else { Err(format!("container {container} not found in Pod {name}")) }
}

/// The request of a pod with resources of its own (component-helpers `PodRequests`).
fn pod_request(pod: &Pod, resource: &str) -> Option<i64> {
    let spec = &pod.spec;
    let of = |c: &crate::views::Container| c.resources.requests.get(resource).map(|m| m.0);
    let overhead = spec.overhead.get(resource).map(|m| m.0);
    let own = spec.resources.requests.get(resource).map(|m| m.0).or_else(|| {
        let (mut sidecars, mut start) = (None, None);
        for c in spec.init_containers.iter() {
            let with = add(sidecars, of(c));
            if c.is_sidecar() {
                sidecars = with;
            }
            start = start.max(with);
        }
        spec.containers.iter().map(of).fold(sidecars, add).max(start)
    });
    add(own, overhead)
}

fn add(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    }
}

/// The replicas for an average usage of `value` per pod, and the average. `resource` is empty for a custom metric.
pub fn for_average(target: &Target<'_>, samples: Samples, resource: &str, value: i64) -> Result<(i64, i64), String> {
    let (samples, groups) = settled(target, samples, resource)?;
    let average = |samples: &Samples| {
        let sum: i128 = samples.values().map(|s| i128::from(s.value)).sum();
        saturate(sum / samples.len() as i128)
    };
    let ratio = |samples: &Samples| Ok(average(samples) as f64 / value as f64);
    let replicas = per_pod(target, &samples, &groups, ratio, |_| value)?;
    Ok((replicas, average(&samples)))
}

/// The replicas for a metric of something else than the pods, which is `usage` and should be `value`.
pub fn for_value(target: &Target<'_>, usage: i64, value: i64) -> Result<i64, String> {
    let ratio = usage as f64 / value as f64;
    if target.tolerances.covers(ratio) {
        return Ok(target.replicas);
    }
    if target.pods.is_empty() {
        return Err(
            "unable to calculate ready pods: no pods returned by selector while calculating replica count".into()
        );
    }
    let ready = target.pods.iter().filter(|p| &*p.view.status.phase == "Running" && p.view.is_ready()).count();
    Ok(ceil(ratio * ready as f64))
}

/// The replicas for a metric of something else than the pods, which should be `value` for each of `running` replicas; and what it is.
pub fn for_value_per_pod(tolerances: Tolerances, running: i64, usage: i64, value: i64) -> (i64, i64) {
    let ratio = usage as f64 / (value as f64 * running as f64);
    let replicas = if tolerances.covers(ratio) { running } else { ceil(usage as f64 / value as f64) };
    let each = if usage == i64::MAX { usage } else { (usage as f64 / running as f64).ceil() as i64 };
    (replicas, each)
}

/// The sum of the values of an external metric.
pub fn sum(values: &[i64]) -> i64 {
    values.iter().fold(0, |sum, v| sum.saturating_add(*v))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const NOW: &str = "2026-01-01T01:00:00Z";
    const TOLERANCES: Tolerances = Tolerances { down: 0.1, up: 0.1 };

    fn now() -> Timestamp {
        NOW.parse().unwrap()
    }

    fn entry(name: &str, request: Value, more: impl FnOnce(&mut Value)) -> Arc<PodEntry> {
        let mut pod = json!({
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "resources": {"requests": request}}]},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}]},
        });
        more(&mut pod);
        Arc::new(PodEntry::new(pod.to_string().into()).unwrap())
    }

    /// Pods `p0`, `p1`, … that request one core each. By letter: `r` ready, `m` ready without a sample, `p` pending, `f` failed,
    /// `d` being deleted, `n` never ready, `u` unready now but not before, `y` young and unready, `w` young and ready for
    /// less than a window.
    fn pods(states: &str) -> Vec<Arc<PodEntry>> {
        let pod = |(i, state): (usize, char)| {
            entry(&format!("p{i}"), json!({"cpu": "1"}), |pod| {
                let ready = |pod: &mut Value, status: &str, started: &str, since: &str| {
                    pod["status"]["startTime"] = started.into();
                    pod["status"]["conditions"][0] =
                        json!({"type": "Ready", "status": status, "lastTransitionTime": since});
                };
                match state {
                    'p' => pod["status"]["phase"] = "Pending".into(),
                    'f' => pod["status"]["phase"] = "Failed".into(),
                    'd' => pod["metadata"]["deletionTimestamp"] = NOW.into(),
                    'n' => ready(pod, "False", "2026-01-01T00:00:00Z", "2026-01-01T00:00:20Z"),
                    'u' => ready(pod, "False", "2026-01-01T00:00:00Z", "2026-01-01T00:40:00Z"),
                    'y' => ready(pod, "False", "2026-01-01T00:56:00Z", "2026-01-01T00:56:00Z"),
                    'w' => ready(pod, "True", "2026-01-01T00:56:00Z", "2026-01-01T00:59:40Z"),
                    _ => {}
                }
            })
        };
        states.chars().enumerate().map(pod).collect()
    }

    /// Samples of a minute for `p0`, `p1`, …, except where the letter is `m`.
    fn samples(states: &str, values: &[i64]) -> Samples {
        let all = states.chars().zip(values).enumerate().filter(|(_, (state, _))| *state != 'm');
        let sample = |value: &i64| Sample { value: *value, at: now(), window: SignedDuration::from_mins(1) };
        all.map(|(i, (_, value))| (format!("p{i}").into(), sample(value))).collect()
    }

    fn target(pods: &[Arc<PodEntry>]) -> Target<'_> {
        Target { pods, replicas: pods.len() as i64, tolerances: TOLERANCES, now: now() }
    }

    /// Clauses: C03.utilization, C03.missing-metrics, C03.unready-pods, C03.cpu-initialization
    #[test]
    fn utilization_counts_settled_pods() {
        // States of pods, milli-cores, target in percent; replicas, utilization, average.
        let cases: &[(&str, &[i64], i64, (i64, i64, i64))] = &[
            ("rrr", &[300, 500, 700], 30, (5, 50, 500)),
            ("rrr", &[300, 500, 700], 50, (3, 50, 500)),
            ("rrr", &[300, 500, 700], 46, (3, 50, 500)),
            ("rrr", &[300, 500, 700], 45, (4, 50, 500)),
            ("rrr", &[100, 300, 500], 50, (2, 30, 300)),
            ("rrrrr", &[100, 200, 300, 250, 250], 100, (2, 22, 220)),
            // Unready pods count as idle when replicas are added, and not at all otherwise.
            ("rrp", &[500, 700, 0], 30, (4, 60, 600)),
            ("rpp", &[700, 0, 0], 30, (3, 70, 700)),
            ("rrn", &[500, 700, 900], 30, (4, 60, 600)),
            ("rry", &[500, 700, 900], 30, (4, 60, 600)),
            ("rrw", &[500, 700, 900], 30, (4, 60, 600)),
            ("rru", &[500, 700, 900], 30, (7, 70, 700)),
            ("rrp", &[100, 100, 0], 50, (1, 10, 100)),
            // Pods without a sample count as idle when replicas are added, and as busy when they are removed.
            ("rrm", &[800, 700, 0], 50, (3, 75, 750)),
            ("rrm", &[900, 950, 0], 50, (4, 92, 925)),
            ("rrrm", &[100, 300, 500, 0], 50, (4, 30, 300)),
            ("rrrm", &[10, 10, 10, 0], 50, (2, 1, 10)),
            ("rrrm", &[100, 100, 100, 0], 200, (2, 10, 100)),
            ("rmmm", &[500, 0, 0, 0], 25, (4, 50, 500)),
            // Pods that are gone are not counted.
            ("rrdf", &[600, 600, 900, 900], 30, (4, 60, 600)),
        ];
        for (states, values, percent, (replicas, utilization, average)) in cases {
            let pods = pods(states);
            let found = for_utilization(&target(&pods), samples(states, values), "cpu", "", *percent);
            let expected = Utilization { replicas: *replicas, percent: *utilization, average: *average };
            assert_eq!(found, Ok(expected), "{states} {values:?} {percent}");
        }
    }

    #[test]
    fn only_cpu_needs_time_to_settle() {
        let pods = pods("rrw");
        let found = for_average(&target(&pods), samples("rrw", &[500, 700, 900]), "memory", 300);
        assert_eq!(found, Ok((7, 700)));
        let found = for_average(&target(&pods), samples("rrw", &[500, 700, 900]), "", 300);
        assert_eq!(found, Ok((7, 700)));
    }

    /// Clauses: C03.average-value
    #[test]
    fn averages_count_settled_pods() {
        let cases: &[(&str, &[i64], i64, (i64, i64))] = &[
            ("rrr", &[20_000, 10_000, 30_000], 15_000, (4, 20_000)),
            ("rrr", &[20_000, 10_000, 30_000], 19_000, (3, 20_000)),
            ("rrr", &[1000, 1000, 1000], 3000, (1, 1000)),
            ("rrm", &[3000, 3000, 0], 2000, (3, 3000)),
            ("rrm", &[6000, 6000, 0], 2000, (6, 6000)),
            ("rrm", &[100, 100, 0], 2000, (2, 100)),
            ("rrp", &[3000, 6000, 0], 2000, (5, 4500)),
        ];
        for (states, values, value, expected) in cases {
            let pods = pods(states);
            let found = for_average(&target(&pods), samples(states, values), "", *value);
            assert_eq!(found, Ok(*expected), "{states} {values:?} {value}");
        }
    }

    #[test]
    fn tolerances_differ_by_direction() {
        let pods = pods("rrrrrrrrrr");
        let replicas = |tolerances, value| {
            let target = Target { tolerances, ..target(&pods) };
            for_average(&target, samples("rrrrrrrrrr", &[value; 10]), "", 1000).unwrap().0
        };
        let narrow_up = Tolerances { down: 0.5, up: 0.01 };
        let cases = [(TOLERANCES, 1099, 10), (TOLERANCES, 1101, 12), (TOLERANCES, 899, 9), (narrow_up, 1020, 11)];
        for (tolerances, value, expected) in cases {
            assert_eq!(replicas(tolerances, value), expected, "{tolerances:?} {value}");
        }
        assert_eq!(replicas(narrow_up, 600), 10);
        assert_eq!(replicas(narrow_up, 499), 5);
    }

    /// Clauses: C03.object-metric, C03.external-metric
    #[test]
    fn values_of_other_objects() {
        let all = pods("rrrpu");
        let target = Target { replicas: 5, ..target(&all) };
        for (usage, value, expected) in [(20_000, 10_000, 6), (10_500, 10_000, 5), (1, 10_000, 1), (0, 10_000, 0)] {
            assert_eq!(for_value(&target, usage, value), Ok(expected), "{usage} of {value}");
        }
        assert_eq!(for_value(&target, i64::MAX, 1), Ok(i64::from(i32::MAX)));
        let none = Target { pods: &[], ..target };
        assert_eq!(for_value(&none, 10_000, 10_000), Ok(5));
        let error = "unable to calculate ready pods: no pods returned by selector while calculating replica count";
        assert_eq!(for_value(&none, 20_000, 10_000), Err(error.into()));
        // Usage, target; replicas, usage of each.
        let cases = [(20_000, 5000, (4, 6667)), (15_500, 5000, (3, 5167)), (1, 5000, (1, 1)), (0, 5000, (0, 0))];
        for (usage, value, expected) in cases {
            assert_eq!(for_value_per_pod(TOLERANCES, 3, usage, value), expected, "{usage} of {value}");
        }
        assert_eq!(for_value_per_pod(TOLERANCES, 0, 7000, 5000).0, 2);
        assert_eq!(for_value_per_pod(TOLERANCES, 3, i64::MAX, 1), (i64::from(i32::MAX), i64::MAX));
        assert_eq!(sum(&[i64::MAX, 1]), i64::MAX);
    }

    #[test]
    fn errors_name_what_is_missing() {
        let bare = vec![entry("p0", json!({}), |_| {})];
        let cases: &[(&[Arc<PodEntry>], &str, &str, &str)] = &[
            (&[], "r", "", "no pods returned by selector while calculating replica count"),
            (&pods("m"), "m", "", "did not receive metrics for targeted pods (pods might be unready)"),
            (&pods("p"), "r", "", "did not receive metrics for targeted pods (pods might be unready)"),
            (&bare, "r", "", "missing request for cpu in container c of Pod p0"),
            (&pods("r"), "r", "other", "container other not found in Pod p0"),
        ];
        for (pods, states, container, expected) in cases {
            let found = for_utilization(&target(pods), samples(states, &[100]), "cpu", container, 50);
            assert_eq!(found, Err((*expected).into()));
        }
        let pods = pods("r");
        let strange = Samples::from([("other".into(), Sample { value: 1, at: now(), window: SignedDuration::ZERO })]);
        let found = for_utilization(&target(&pods), strange, "cpu", "", 50);
        assert_eq!(found, Err("no metrics returned matched known pods".into()));
    }

    #[test]
    fn requests_of_containers_and_pods() {
        let spec = |spec: Value| entry("p", json!({}), move |pod| pod["spec"] = spec);
        let c = |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
        let mut sidecar = c("s", "50m");
        sidecar["restartPolicy"] = "Always".into();
        let plain = json!({"containers": [c("a", "100m"), c("b", "0.2")], "initContainers": [c("i", "5"), sidecar]});
        let with = |more: Value| {
            let mut all = plain.clone();
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec(all)
        };
        let cpu = json!({"resources": {"requests": {"cpu": "2"}}, "overhead": {"cpu": "10m"}});
        let memory = json!({"resources": {"requests": {"memory": "1Gi"}}});
        let cases = [
            (with(json!({})), "", Ok(350)),
            (with(json!({})), "b", Ok(200)),
            (with(json!({})), "s", Ok(50)),
            (with(json!({})), "i", Err("container i not found in Pod p".to_owned())),
            (with(cpu.clone()), "", Ok(2010)),
            (with(cpu), "a", Ok(100)),
            // The largest of the start and the operation.
            (with(memory), "", Ok(5000)),
            (
                spec(json!({"containers": [{"name": "a"}], "resources": {"requests": {"memory": "1Gi"}}})),
                "",
                Err("missing pod-level request for cpu in Pod p".to_owned()),
            ),
        ];
        for (pod, container, expected) in cases {
            assert_eq!(request(&pod, container, "cpu"), expected, "{container}");
        }
    }
}
