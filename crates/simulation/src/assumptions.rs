//! How long simulated containers take, and which of them fail: what a rehearsal assumes, because no image is run.
//!
//! All values are known from the scenario, the pod and the seed. Left out: probes, resource use, and what one container does to another.

use crate::container::Outcome;
use crate::scenario::ObjectName;
use crate::span::Span;
use meta::{Rng, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// What is assumed of containers. Every field has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Assumptions {
    /// How long the first pod with an image waits for it on each node.
    pub image_pull: Span,
    /// From the image to running containers.
    pub start: Span,
    /// From running to ready containers. The `initialDelaySeconds` of a readiness probe is the minimum.
    pub ready: Span,
    /// From the request to stop to the end of the containers. The grace period of the pod is the maximum.
    pub stop: Span,
    /// How long containers run that end by themselves: those of pods with another restart policy than `Always`.
    pub run: Span,
    /// By how much these times vary at random, in percent: 20 is from 80 % to 120 %.
    pub spread: u8,
    /// Claims without a volume get one at once, as if a provisioner made it.
    pub bind_volumes: bool,
    /// What differs for some pods. The first match counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<Exception>,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self {
            image_pull: seconds(10),
            start: seconds(1),
            ready: seconds(5),
            stop: seconds(2),
            run: seconds(30),
            spread: 0,
            bind_volumes: true,
            pods: Vec::new(),
        }
    }
}

/// What is assumed of the pods that match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Exception {
    /// The image of a container, in which `*` stands for any text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Labels of the pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The workload that the pods belong to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<ObjectName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<Span>,
    /// The containers start and never become ready.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub never_ready: bool,
    /// The exit code of containers that end by themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
}

fn seconds(n: u64) -> Span {
    Span(Duration::from_secs(n))
}

/// What the containers of a pod do, and how long it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Course {
    pub image_pull: Duration,
    pub start: Duration,
    pub ready: Duration,
    pub stop: Duration,
    pub outcome: Outcome,
}

impl Assumptions {
    /// Those of the tests of controllers: a second for a start and for a stop, and nothing for the rest.
    pub fn immediate() -> Self {
        Self {
            image_pull: Span::default(),
            ready: Span::default(),
            stop: seconds(1),
            bind_volumes: false,
            ..Self::default()
        }
    }

    /// The course of a pod. `workload` is the object that it belongs to, as far as that is known.
    pub fn course(&self, pod: &Value, workload: Option<&ObjectName>, outcome: Outcome, rng: &dyn Rng) -> Course {
        let exception = self.pods.iter().find(|e| e.matches(pod, workload));
        let time =
            |usual: Span, of: fn(&Exception) -> Option<Span>| self.vary(exception.and_then(of).unwrap_or(usual).0, rng);
        let spec = &pod["spec"];
        let ends = spec["restartPolicy"].as_str().is_some_and(|p| p != "Always");
        let never_ready = exception.is_some_and(|e| e.never_ready);
        let outcome = match outcome {
            Outcome::Runs if never_ready => Outcome::NeverReady,
            Outcome::Runs if ends => {
                let run = time(self.run, |e| e.run);
                Outcome::Exits(exception.and_then(|e| e.exit_code).unwrap_or(0), run.as_secs())
            }
            other => other,
        };
        let containers = || spec["containers"].as_array().into_iter().flatten();
        let seconds = |v: &Value| Duration::from_secs(v.as_u64().unwrap_or(0));
        let delay =
            containers().map(|c| seconds(&c["readinessProbe"]["initialDelaySeconds"])).max().unwrap_or_default();
        let sleep =
            containers().map(|c| seconds(&c["lifecycle"]["preStop"]["sleep"]["seconds"])).max().unwrap_or_default();
        Course {
            image_pull: time(self.image_pull, |e| e.image_pull),
            start: time(self.start, |e| e.start),
            ready: time(self.ready, |e| e.ready).max(delay),
            stop: time(self.stop, |e| e.stop) + sleep,
            outcome,
        }
    }

    /// A time with its random part, in whole milliseconds.
    fn vary(&self, time: Duration, rng: &dyn Rng) -> Duration {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let part = ms.saturating_mul(u64::from(self.spread)) / 100;
        if part == 0 {
            return time;
        }
        Duration::from_millis(ms.saturating_sub(part).saturating_add(rng.next_u64() % (2 * part + 1)))
    }

    /// The field and the problem of a value that makes no sense.
    pub(crate) fn problem(&self) -> Option<(String, String)> {
        if self.spread > 100 {
            return Some(("spread".into(), "must be at most 100".into()));
        }
        let selects = |e: &Exception| e.image.is_some() || !e.labels.is_empty() || e.workload.is_some();
        let i = self.pods.iter().position(|e| !selects(e))?;
        Some((format!("pods[{i}]"), "must have image, labels or workload".into()))
    }

    /// The assumptions as lines of text.
    pub fn lines(&self) -> Vec<String> {
        let Self { image_pull, start, ready, stop, run, spread, bind_volumes, pods } = self;
        let mut lines = vec![
            format!("images are pulled in {image_pull}, once per node and image; none is run"),
            format!(
                "containers start in {start} and are ready {ready} later, or after the initial delay of their readiness probe"
            ),
            format!("containers stop in {stop} and the sleep of their preStop hook, at most in their grace period"),
            format!("containers of pods that are not always restarted run for {run} and succeed"),
        ];
        if *spread > 0 {
            lines.push(format!("these times vary by {spread} % at random"));
        }
        if *bind_volumes {
            lines.push("claims without a volume get one at once, on any node".into());
        }
        lines.extend(pods.iter().map(|e| format!("except for pods with {}", e.describe())));
        lines
    }
}

impl Exception {
    fn matches(&self, pod: &Value, workload: Option<&ObjectName>) -> bool {
        let images =
            pod["spec"]["containers"].as_array().into_iter().flatten().map(|c| c["image"].as_str().unwrap_or_default());
        self.image.as_ref().is_none_or(|pattern| images.into_iter().any(|image| matches_pattern(pattern, image)))
            && self.labels.iter().all(|(k, v)| pod["metadata"]["labels"][k.as_str()] == v.as_str())
            && self.workload.as_ref().is_none_or(|w| workload == Some(w))
    }

    fn describe(&self) -> String {
        let mut who: Vec<String> = self.image.iter().map(|i| format!("image {i}")).collect();
        who.extend(self.labels.iter().map(|(k, v)| format!("label {k}={v}")));
        who.extend(self.workload.iter().map(|w| format!("workload {w}")));
        let times = [
            ("image pull", self.image_pull),
            ("start", self.start),
            ("ready", self.ready),
            ("stop", self.stop),
            ("run", self.run),
        ];
        let mut what: Vec<String> = times.iter().filter_map(|(name, t)| t.map(|t| format!("{name} {t}"))).collect();
        what.extend(self.never_ready.then(|| "never ready".to_owned()));
        what.extend(self.exit_code.map(|code| format!("exit code {code}")));
        format!("{}: {}", who.join(", "), what.join(", "))
    }
}

/// Whether a text matches a pattern, in which `*` stands for any text.
pub(crate) fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use testkit::SeededRng;

    #[test]
    fn patterns_match_whole_texts() {
        for (pattern, text, expected) in [
            ("web:2", "web:2", true),
            ("web:2", "web:20", false),
            ("web:*", "web:2", true),
            ("*/web:*", "registry/web:2", true),
            ("*/web:*", "web:2", false),
            ("*", "", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
        ] {
            assert_eq!(matches_pattern(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn the_first_exception_counts() {
        let text = json!({"ready": "20s", "pods": [
            {"image": "web:2", "neverReady": true}, {"labels": {"app": "web"}, "ready": "1m"}, {"image": "web:*", "ready": "2m"}]});
        let a: Assumptions = serde_json::from_value(text).unwrap();
        let rng = SeededRng::new(1);
        let course = |image: &str, app: &str| {
            let pod = json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"image": image}]}});
            let c = a.course(&pod, None, Outcome::Runs, &*rng);
            (c.ready.as_secs(), c.outcome)
        };
        assert_eq!(course("web:2", "web"), (20, Outcome::NeverReady));
        assert_eq!(course("web:1", "web"), (60, Outcome::Runs));
        assert_eq!(course("web:1", "other"), (120, Outcome::Runs));
        assert_eq!(course("db", "db"), (20, Outcome::Runs));
    }

    #[test]
    fn probes_hooks_and_restart_policies_count() {
        let rng = SeededRng::new(1);
        let pod = json!({"spec": {"restartPolicy": "Never", "containers": [
            {"readinessProbe": {"initialDelaySeconds": 30}, "lifecycle": {"preStop": {"sleep": {"seconds": 10}}}}]}});
        let c = Assumptions::default().course(&pod, None, Outcome::Runs, &*rng);
        assert_eq!((c.ready.as_secs(), c.stop.as_secs(), c.outcome), (30, 12, Outcome::Exits(0, 30)));
        let varied = Assumptions { spread: 50, ..Assumptions::default() };
        let times: Vec<u128> = (0..50).map(|_| varied.vary(Duration::from_secs(10), &*rng).as_millis()).collect();
        assert!(times.iter().all(|t| (5000..=15_000).contains(t)), "{times:?}");
        assert!(times.iter().max() > times.iter().min());
    }
}
