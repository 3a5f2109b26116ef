//! How far and how fast replicas may change: stabilization windows, policies, limits. Pure: data to data.
//!
//! Times are those of a monotonic clock: a jump of the wall clock ends no window.

use super::replicas::Tolerances;
use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscalerBehavior};
use meta::{Quantity, time};
use std::time::Duration;
use tokio::time::Instant;

/// How long the highest recommendation stands when replicas are removed.
const DOWNSCALE_STABILIZATION: Duration = Duration::from_secs(300);
/// The ratio between usage and target that changes nothing.
const TOLERANCE: f64 = 0.1;
const TOO_FAST_UP: (&str, &str) =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const TOO_FAST_DOWN: (&str, &str) =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");
const TOO_MANY: (&str, &str) = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: (&str, &str) = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const IN_RANGE: (&str, &str) = ("DesiredWithinRange", "the desired count is within the acceptable range");

/// What an autoscaler has recommended and done lately. It is lost with the process.
#[derive(Debug, Default)]
pub struct Memory {
    recommendations: Vec<(i64, Instant)>,
    added: Vec<(i64, Instant)>,
    removed: Vec<(i64, Instant)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Select {
    Maximum,
    Minimum,
    Disabled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Policy {
    percent: bool,
    value: i64,
    period: Duration,
}

/// The rules for one direction.
#[derive(Clone, Debug, PartialEq)]
struct Rules {
    window: Duration,
    select: Select,
    policies: Vec<Policy>,
}

impl Rules {
    fn read(rules: Option<&HPAScalingRules>, defaults: Self) -> Self {
        let Some(rules) = rules else { return defaults };
        let select = match rules.select_policy.as_deref() {
            Some("Disabled") => Select::Disabled,
            Some("Min") => Select::Minimum,
            _ => Select::Maximum,
        };
        let policies = rules.policies.as_ref().map(|all| {
            let policy = |p: &k8s_openapi::api::autoscaling::v2::HPAScalingPolicy| Policy {
                percent: p.type_ == "Percent",
                value: p.value.into(),
                period: time::seconds(p.period_seconds),
            };
            all.iter().map(policy).collect()
        });
        Self {
            window: rules.stabilization_window_seconds.map_or(defaults.window, time::seconds),
            select,
            policies: policies.unwrap_or(defaults.policies),
        }
    }
}

/// The rules of `spec.behavior`.
#[derive(Clone, Debug, PartialEq)]
pub struct Behavior {
    up: Rules,
    down: Rules,
}

impl Behavior {
    pub fn read(behavior: &HorizontalPodAutoscalerBehavior) -> Self {
        let period = Duration::from_secs(15);
        let all = Policy { percent: true, value: 100, period };
        let up = Rules {
            window: Duration::ZERO,
            select: Select::Maximum,
            policies: vec![Policy { percent: false, value: 4, period }, all],
        };
        let down = Rules { window: DOWNSCALE_STABILIZATION, select: Select::Maximum, policies: vec![all] };
        Self { up: Rules::read(behavior.scale_up.as_ref(), up), down: Rules::read(behavior.scale_down.as_ref(), down) }
    }
}

/// The tolerances of an autoscaler.
pub fn tolerances(behavior: Option<&HorizontalPodAutoscalerBehavior>) -> Tolerances {
    let read = |rules: Option<&HPAScalingRules>| {
        let own = rules.and_then(|r| Quantity::parse(&r.tolerance.as_ref()?.0).ok());
        own.map_or(TOLERANCE, |q| q.nano_value() as f64 / 1e9)
    };
    Tolerances {
        down: read(behavior.and_then(|b| b.scale_down.as_ref())),
        up: read(behavior.and_then(|b| b.scale_up.as_ref())),
    }
}

/// Limits of the replicas.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub min: i64,
    pub max: i64,
}

/// A condition: its status, reason and message.
pub type Explanation = (bool, &'static str, &'static str);

/// The replicas that an autoscaler sets, and why.
#[derive(Debug, PartialEq, Eq)]
pub struct Limited {
    pub replicas: i64,
    /// The condition `AbleToScale`.
    pub able_to_scale: Explanation,
    /// The condition `ScalingLimited`.
    pub limited: Explanation,
}

impl Memory {
    /// Remembers the replicas that an autoscaler finds.
    pub fn begin(&mut self, current: i64, now: Instant) {
        if self.recommendations.is_empty() {
            self.recommendations.push((current, now));
        }
    }

    /// Brings a recommendation within the limits and remembers it.
    pub fn limit(
        &mut self,
        behavior: Option<&Behavior>,
        bounds: Bounds,
        current: i64,
        desired: i64,
        now: Instant,
    ) -> Limited {
        let stabilized = match behavior {
            None => self.stabilize(desired, now),
            Some(b) => self.stabilize_by(b, current, desired, now),
        };
        let able_to_scale = if stabilized == desired {
            (true, "ReadyForNewScale", "recommended size matches current size")
        } else if behavior.is_some() && desired >= current {
            let why = "recent recommendations were lower than current one, applying the lowest recent recommendation";
            (true, "ScaleUpStabilized", why)
        } else {
            let why = "recent recommendations were higher than current one, applying the highest recent recommendation";
            (true, "ScaleDownStabilized", why)
        };
        let (replicas, (reason, message)) = match behavior {
            None => limit(bounds, current, stabilized),
            Some(b) => self.limit_by(b, bounds, current, stabilized, now),
        };
        Limited { replicas, able_to_scale, limited: (replicas != stabilized, reason, message) }
    }

    fn recommend(&mut self, desired: i64, now: Instant, is_old: impl Fn(Instant) -> bool) {
        replace_old(&mut self.recommendations, (desired, now), is_old);
    }

    fn stabilize(&mut self, desired: i64, now: Instant) -> i64 {
        let is_old = |at| now.duration_since(at) > DOWNSCALE_STABILIZATION;
        let recent = self.recommendations.iter().filter(|(_, at)| !is_old(*at)).map(|(replicas, _)| *replicas);
        let highest = recent.max().map_or(desired, |r| r.max(desired));
        self.recommend(desired, now, is_old);
        highest
    }

    fn stabilize_by(&mut self, behavior: &Behavior, current: i64, desired: i64, now: Instant) -> i64 {
        let (up, down) = (behavior.up.window, behavior.down.window);
        let within =
            |window| self.recommendations.iter().filter(move |(_, at)| now.duration_since(*at) < window).map(|r| r.0);
        let lowest = within(up).min().map_or(desired, |r| r.min(desired));
        let highest = within(down).max().map_or(desired, |r| r.max(desired));
        self.recommend(desired, now, |at| now.duration_since(at) > up.max(down));
        // Unlike `clamp`, for a lowest above the highest.
        current.max(lowest).min(highest)
    }

    /// Remembers that the replicas were changed.
    pub fn scaled(&mut self, behavior: Option<&Behavior>, from: i64, to: i64, now: Instant) {
        let Some(behavior) = behavior else { return };
        let (events, rules) =
            if to > from { (&mut self.added, &behavior.up) } else { (&mut self.removed, &behavior.down) };
        let longest = rules.policies.iter().map(|p| p.period).max().unwrap_or_default();
        replace_old(events, ((to - from).abs(), now), |at| now.duration_since(at) > longest);
    }

    /// The replicas at the beginning of a period.
    fn at_start(&self, period: Duration, current: i64, now: Instant) -> i64 {
        let sum = |events: &[(i64, Instant)]| -> i64 {
            events.iter().filter(|(_, at)| now.duration_since(*at) < period).map(|(n, _)| *n).sum()
        };
        current - sum(&self.added) + sum(&self.removed)
    }

    fn highest(&self, rules: &Rules, current: i64, now: Instant) -> i64 {
        let allowed = rules.policies.iter().map(|p| {
            let start = self.at_start(p.period, current, now);
            if p.percent { (start as f64 * (1.0 + p.value as f64 / 100.0)).ceil() as i64 } else { start + p.value }
        });
        let limit = match rules.select {
            Select::Disabled => None,
            Select::Minimum => allowed.min(),
            Select::Maximum => allowed.max(),
        };
        limit.unwrap_or(current).max(current)
    }

    fn lowest(&self, rules: &Rules, current: i64, now: Instant) -> i64 {
        let allowed = rules.policies.iter().map(|p| {
            let start = self.at_start(p.period, current, now);
            if p.percent { (start as f64 * (1.0 - p.value as f64 / 100.0)) as i64 } else { start - p.value }
        });
        let limit = match rules.select {
            Select::Disabled => None,
            Select::Minimum => allowed.max(),
            Select::Maximum => allowed.min(),
        };
        limit.unwrap_or(current).min(current)
    }

    fn limit_by(
        &self,
        behavior: &Behavior,
        bounds: Bounds,
        current: i64,
        desired: i64,
        now: Instant,
    ) -> (i64, (&'static str, &'static str)) {
        if desired > current {
            let fastest = self.highest(&behavior.up, current, now);
            let (most, why) = if bounds.max > fastest { (fastest, TOO_FAST_UP) } else { (bounds.max, TOO_MANY) };
            if desired > most {
                return (most, why);
            }
        } else if desired < current {
            let fastest = self.lowest(&behavior.down, current, now);
            let (fewest, why) = if bounds.min < fastest { (fastest, TOO_FAST_DOWN) } else { (bounds.min, TOO_FEW) };
            if desired < fewest {
                return (fewest, why);
            }
        }
        (desired, IN_RANGE)
    }
}

/// Replaces the last entry that is old, or adds one.
fn replace_old(entries: &mut Vec<(i64, Instant)>, entry: (i64, Instant), is_old: impl Fn(Instant) -> bool) {
    match entries.iter().rposition(|(_, at)| is_old(*at)) {
        Some(i) => entries[i] = entry,
        None => entries.push(entry),
    }
}

/// The limits without `spec.behavior`: twice as many replicas at a time, at least four.
fn limit(bounds: Bounds, current: i64, desired: i64) -> (i64, (&'static str, &'static str)) {
    let fastest = current.saturating_mul(2).max(4);
    let (most, why) = if bounds.max > fastest { (fastest, TOO_FAST_UP) } else { (bounds.max, TOO_MANY) };
    if desired < bounds.min {
        (bounds.min, TOO_FEW)
    } else if desired > most {
        (most, why)
    } else {
        (desired, IN_RANGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const BOUNDS: Bounds = Bounds { min: 1, max: 100 };

    fn behavior(v: Value) -> Behavior {
        Behavior::read(&serde_json::from_value(v).unwrap())
    }

    fn seconds(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    /// Clauses: C03.scaling-limited
    #[test]
    fn limits_without_a_behavior() {
        let cases = [
            // Bounds, replicas now and desired; replicas and reason.
            ((1, 100), 1, 3, (3, IN_RANGE)),
            ((1, 100), 1, 50, (4, TOO_FAST_UP)),
            ((1, 100), 10, 50, (20, TOO_FAST_UP)),
            ((1, 15), 10, 50, (15, TOO_MANY)),
            ((3, 15), 10, 1, (3, TOO_FEW)),
            ((3, 15), 10, 0, (3, TOO_FEW)),
            ((3, 15), 10, 4, (4, IN_RANGE)),
            ((3, i64::from(i32::MAX)), i64::from(i32::MAX) - 1, i64::from(i32::MAX), (i64::from(i32::MAX), IN_RANGE)),
        ];
        for ((min, max), current, desired, expected) in cases {
            assert_eq!(limit(Bounds { min, max }, current, desired), expected, "{current} → {desired}");
        }
    }

    /// Clauses: C03.stabilization
    #[tokio::test]
    async fn the_highest_recommendation_of_five_minutes_stands() {
        let (mut memory, start) = (Memory::default(), Instant::now());
        memory.begin(3, start);
        memory.begin(9, start);
        let cases = [(15, 6, 6), (30, 2, 6), (300, 2, 6), (315, 2, 6), (316, 2, 2), (610, 1, 2), (650, 1, 1)];
        for (at, desired, expected) in cases {
            let found = memory.limit(None, BOUNDS, 6, desired, start + seconds(at));
            assert_eq!(found.replicas, expected, "after {at} s");
            let reason = if expected == desired { "ReadyForNewScale" } else { "ScaleDownStabilized" };
            assert_eq!(found.able_to_scale.1, reason, "after {at} s");
        }
        assert!(memory.recommendations.len() < 8, "old ones are replaced");
    }

    /// Clauses: C03.stabilization
    #[tokio::test]
    async fn windows_of_a_behavior() {
        let b = behavior(
            json!({"scaleUp": {"stabilizationWindowSeconds": 60, "policies": [{"type": "Pods", "value": 100, "periodSeconds": 1}]},
            "scaleDown": {"stabilizationWindowSeconds": 120}}),
        );
        let (mut memory, start) = (Memory::default(), Instant::now());
        memory.begin(5, start);
        let cases = [
            // Seconds, replicas now and desired; replicas and reason.
            (15, 5, 10, (5, "ScaleUpStabilized")),
            (59, 5, 10, (5, "ScaleUpStabilized")),
            (60, 5, 8, (8, "ReadyForNewScale")),
            (75, 8, 3, (8, "ScaleDownStabilized")),
            (90, 8, 9, (8, "ScaleUpStabilized")),
            (178, 8, 3, (8, "ScaleDownStabilized")),
            (211, 9, 3, (3, "ReadyForNewScale")),
        ];
        for (at, current, desired, (replicas, reason)) in cases {
            let found = memory.limit(Some(&b), BOUNDS, current, desired, start + seconds(at));
            assert_eq!((found.replicas, found.able_to_scale.1), (replicas, reason), "after {at} s");
        }
    }

    /// Clauses: C03.behavior-policies
    #[tokio::test]
    async fn policies_limit_the_rate() {
        let up = |policies: Value, select: &str| json!({"scaleUp": {"policies": policies, "selectPolicy": select}});
        let down = |policies: Value, select: &str| json!({"scaleDown": {"stabilizationWindowSeconds": 0, "policies": policies, "selectPolicy": select}});
        let pods = |n: i64| json!({"type": "Pods", "value": n, "periodSeconds": 60});
        let percent = |n: i64| json!({"type": "Percent", "value": n, "periodSeconds": 60});
        let cases = [
            // Behavior, replicas now and desired; replicas, reason.
            (json!({}), 1, 50, (5, "ScaleUpLimit")),
            (json!({}), 10, 50, (20, "ScaleUpLimit")),
            (json!({}), 60, 200, (100, "TooManyReplicas")),
            (json!({"scaleDown": {"stabilizationWindowSeconds": 0}}), 60, 0, (1, "TooFewReplicas")),
            (up(json!([pods(3), percent(100)]), "Max"), 10, 50, (20, "ScaleUpLimit")),
            (up(json!([pods(3), percent(100)]), "Min"), 10, 50, (13, "ScaleUpLimit")),
            (up(json!([percent(1)]), "Max"), 10, 50, (11, "ScaleUpLimit")),
            (up(json!([pods(3)]), "Disabled"), 10, 50, (10, "ScaleUpLimit")),
            (up(json!([pods(3)]), "Max"), 10, 12, (12, "DesiredWithinRange")),
            (down(json!([pods(3), percent(50)]), "Max"), 10, 1, (5, "ScaleDownLimit")),
            (down(json!([pods(3), percent(50)]), "Min"), 10, 1, (7, "ScaleDownLimit")),
            (down(json!([percent(5)]), "Max"), 10, 1, (9, "ScaleDownLimit")),
            (down(json!([pods(3)]), "Disabled"), 10, 1, (10, "ScaleDownLimit")),
        ];
        for (b, current, desired, expected) in cases {
            let mut memory = Memory::default();
            let found = memory.limit(Some(&behavior(b.clone())), BOUNDS, current, desired, Instant::now());
            assert_eq!((found.replicas, found.limited.1), expected, "{b} {current} → {desired}");
            assert_eq!(found.limited.0, found.replicas != desired, "{b} {current} → {desired}");
        }
    }

    /// Clauses: C03.behavior-policies
    #[tokio::test]
    async fn a_period_counts_earlier_changes() {
        let b = behavior(json!({
            "scaleUp": {"policies": [{"type": "Pods", "value": 4, "periodSeconds": 60}]},
            "scaleDown": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 50, "periodSeconds": 60}]},
        }));
        let (mut memory, start) = (Memory::default(), Instant::now());
        let mut current = 10;
        // Seconds, desired; replicas.
        for (at, desired, expected) in [
            (0, 50, 14),
            (15, 50, 14),
            (59, 50, 14),
            (60, 50, 18),
            (61, 12, 12),
            (75, 1, 7),
            (130, 1, 6),
            (131, 100, 16),
        ] {
            let now = start + seconds(at);
            let found = memory.limit(Some(&b), BOUNDS, current, desired, now).replicas;
            assert_eq!(found, expected, "after {at} s");
            if found != current {
                memory.scaled(Some(&b), current, found, now);
            }
            current = found;
        }
        assert!(memory.added.len() <= 2 && memory.removed.len() <= 2, "old ones are replaced: {memory:?}");
    }

    /// Clauses: C03.tolerance
    #[test]
    fn tolerances_of_a_behavior() {
        let read = |v: Value| tolerances(Some(&serde_json::from_value(v).unwrap()));
        assert_eq!(tolerances(None), Tolerances { down: 0.1, up: 0.1 });
        assert_eq!(read(json!({"scaleUp": {"tolerance": "0.05"}})), Tolerances { down: 0.1, up: 0.05 });
        let both = json!({"scaleUp": {"tolerance": "0"}, "scaleDown": {"tolerance": "500m"}});
        assert_eq!(read(both), Tolerances { down: 0.5, up: 0.0 });
    }
}
