//! Which thresholds are met and for how long, and the conditions of the node: a pure state machine (upstream `synchronize`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::observe::{Layout, Observations};
use crate::configuration::{Pressure, Signal, Threshold};

/// What follows from an observation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The pressures of the node, including those that ended less than the transition period ago.
    pub pressures: BTreeSet<Pressure>,
    /// The thresholds whose grace periods are over, the first to reclaim first. If there are none, nothing is reclaimed.
    pub due: Vec<Threshold>,
}

/// The thresholds of a node, and since when they are met.
#[derive(Debug)]
pub struct Decider {
    thresholds: Vec<Threshold>,
    transition_period: Duration,
    /// Since when thresholds are met.
    since: Vec<(Threshold, Instant)>,
    /// The thresholds of the last verdict, which stay until their minimum is reclaimed.
    due: Vec<Threshold>,
    /// When a pressure was observed last.
    observed: BTreeMap<Pressure, Instant>,
}

impl Decider {
    pub fn new(thresholds: Vec<Threshold>, transition_period: Duration, layout: Layout) -> Self {
        let thresholds = with_container_file_system(thresholds, layout);
        Self { thresholds, transition_period, since: Vec::new(), due: Vec::new(), observed: BTreeMap::new() }
    }

    /// Whether nothing can ever be due.
    pub fn is_idle(&self) -> bool {
        self.thresholds.is_empty()
    }

    /// Decides by an observation.
    pub fn decide(&mut self, observations: &Observations, now: Instant) -> Verdict {
        let mut met = met(&self.thresholds, observations, Goal::Threshold);
        for unresolved in self::met(&self.due, observations, Goal::Reclaim) {
            if !met.contains(&unresolved) {
                met.push(unresolved);
            }
        }
        self.since = met
            .iter()
            .map(|t| {
                let known = self.since.iter().find(|(known, _)| known == t);
                (*t, known.map_or(now, |(_, at)| *at))
            })
            .collect();
        self.observed.extend(met.iter().map(|t| (t.signal.pressure(), now)));
        let recent = |at: Instant| now.saturating_duration_since(at) < self.transition_period;
        let pressures = self.observed.iter().filter(|(_, at)| recent(**at)).map(|(p, _)| *p).collect();
        let is_due = |(t, at): &&(Threshold, Instant)| now.saturating_duration_since(*at) >= t.grace_period;
        self.due = self.since.iter().filter(is_due).map(|(t, _)| *t).collect();
        // Memory comes first: without it nothing else can be done.
        self.due.sort_by_key(|t| t.signal.pressure() != Pressure::Memory);
        Verdict { pressures, due: self.due.clone() }
    }

    /// Whether no threshold is met any more, with what is to be reclaimed at least.
    pub fn is_resolved(&self, observations: &Observations) -> bool {
        met(&self.thresholds, observations, Goal::Reclaim).is_empty()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Goal {
    Threshold,
    /// The threshold and what is to be reclaimed beyond it.
    Reclaim,
}

fn met(thresholds: &[Threshold], observations: &Observations, goal: Goal) -> Vec<Threshold> {
    let is_met = |t: &&Threshold| {
        let Some(observed) = observations.get(&t.signal) else { return false };
        let mut least = t.value.of_capacity(observed.capacity);
        if let Some(reclaim) = t.minimum_reclaim.filter(|_| goal == Goal::Reclaim) {
            least = least + reclaim.of_capacity(observed.capacity);
        }
        least > meta::Quantity::from_int(observed.available)
    };
    thresholds.iter().filter(is_met).copied().collect()
}

/// Replaces the thresholds of the file system of containers by those of the one that they are on, as upstream.
fn with_container_file_system(thresholds: Vec<Threshold>, layout: Layout) -> Vec<Threshold> {
    const OWN: [Signal; 2] = [Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree];
    let (mut out, own): (Vec<_>, Vec<_>) = thresholds.into_iter().partition(|t| !OWN.contains(&t.signal));
    for threshold in own {
        tracing::info!(
            signal = threshold.signal.as_str(),
            "this eviction threshold is ignored: it follows from others"
        );
    }
    let from = match layout {
        Layout::OneFileSystem | Layout::ContainersApart => [Signal::NodeFsAvailable, Signal::NodeFsInodesFree],
        Layout::ImagesApart => [Signal::ImageFsAvailable, Signal::ImageFsInodesFree],
    };
    let copies: Vec<Threshold> = out
        .iter()
        .filter_map(|t| {
            let at = from.iter().position(|signal| *signal == t.signal)?;
            Some(Threshold { signal: OWN[at], ..*t })
        })
        .collect();
    out.extend(copies);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Amount;
    use crate::eviction::observe::Observation;
    use meta::Quantity;

    const MIB: i64 = 1 << 20;

    fn threshold(signal: Signal, mib: i64, grace: u64, reclaim: Option<i64>) -> Threshold {
        Threshold {
            signal,
            value: Amount::Absolute(Quantity::binary(mib * MIB)),
            grace_period: Duration::from_secs(grace),
            minimum_reclaim: reclaim.map(|n| Amount::Absolute(Quantity::binary(n * MIB))),
        }
    }

    /// Seconds, what is available of memory in MiB, expected due thresholds (by grace period), and pressure.
    fn check(thresholds: Vec<Threshold>, transition: u64, steps: &[(u64, i64, &[u64], bool)]) {
        let mut decider = Decider::new(thresholds, Duration::from_secs(transition), Layout::OneFileSystem);
        let begin = Instant::now();
        for (second, available, due, pressure) in steps {
            let seen = Observation { available: available * MIB, capacity: 1000 * MIB };
            let observations = Observations::from([(Signal::MemoryAvailable, seen)]);
            let verdict = decider.decide(&observations, begin + Duration::from_secs(*second));
            let graces: Vec<u64> = verdict.due.iter().map(|t| t.grace_period.as_secs()).collect();
            assert_eq!((graces.as_slice(), !verdict.pressures.is_empty()), (*due, *pressure), "after {second} s");
        }
    }

    #[tokio::test]
    async fn hard_thresholds_are_due_at_once_and_the_condition_stays() {
        let hard = threshold(Signal::MemoryAvailable, 100, 0, None);
        check(
            vec![hard],
            300,
            &[
                (0, 100, &[], false),
                (10, 99, &[0], true),
                (20, 150, &[], true),
                (309, 150, &[], true),
                (310, 150, &[], false),
            ],
        );
    }

    #[tokio::test]
    async fn soft_thresholds_wait_for_their_grace_period() {
        let soft = threshold(Signal::MemoryAvailable, 200, 60, None);
        check(
            vec![soft],
            10,
            &[
                (0, 150, &[], true),
                (50, 150, &[], true),
                // It begins anew.
                (55, 250, &[], true),
                (60, 150, &[], true),
                (110, 150, &[], true),
                (120, 150, &[60], true),
                (130, 250, &[], false),
            ],
        );
    }

    #[tokio::test]
    async fn what_was_due_stays_until_the_minimum_is_reclaimed() {
        let hard = threshold(Signal::MemoryAvailable, 100, 0, Some(50));
        check(
            vec![hard],
            0,
            &[
                (0, 149, &[], false),
                (10, 99, &[0], false),
                (20, 149, &[0], false),
                (30, 150, &[], false),
                (40, 149, &[], false),
            ],
        );
        let decider = Decider::new(vec![hard], Duration::ZERO, Layout::OneFileSystem);
        let seen = |mib: i64| {
            Observations::from([(Signal::MemoryAvailable, Observation { available: mib * MIB, capacity: 0 })])
        };
        assert!(!decider.is_resolved(&seen(149)) && decider.is_resolved(&seen(150)));
    }

    #[tokio::test]
    async fn memory_comes_first_and_shares_are_of_the_capacity() {
        let pids = Threshold { value: Amount::Share(0.5), ..threshold(Signal::PidAvailable, 0, 0, None) };
        let memory = threshold(Signal::MemoryAvailable, 100, 0, None);
        let disk = threshold(Signal::NodeFsAvailable, 100, 0, None);
        let mut decider = Decider::new(vec![disk, pids, memory], Duration::from_secs(1), Layout::OneFileSystem);
        let observations: Observations = [
            (Signal::PidAvailable, Observation { available: 499, capacity: 1000 }),
            (Signal::MemoryAvailable, Observation { available: 0, capacity: 1 }),
            (Signal::NodeFsAvailable, Observation { available: 0, capacity: 1 }),
        ]
        .into();
        let verdict = decider.decide(&observations, Instant::now());
        let signals: Vec<Signal> = verdict.due.iter().map(|t| t.signal).collect();
        assert_eq!(signals, [Signal::MemoryAvailable, Signal::NodeFsAvailable, Signal::PidAvailable]);
        assert_eq!(verdict.pressures, [Pressure::Memory, Pressure::Disk, Pressure::Pid].into());
    }

    #[test]
    fn thresholds_of_containers_follow_from_the_layout() {
        let all = vec![
            threshold(Signal::NodeFsAvailable, 10, 0, None),
            threshold(Signal::ImageFsAvailable, 20, 0, None),
            threshold(Signal::ImageFsInodesFree, 30, 5, None),
            threshold(Signal::ContainerFsAvailable, 40, 0, None),
        ];
        let copies = |layout| {
            let out = with_container_file_system(all.clone(), layout);
            out[3..].to_vec()
        };
        assert_eq!(copies(Layout::OneFileSystem), [threshold(Signal::ContainerFsAvailable, 10, 0, None)]);
        assert_eq!(copies(Layout::ContainersApart), copies(Layout::OneFileSystem));
        let expected = [
            threshold(Signal::ContainerFsAvailable, 20, 0, None),
            threshold(Signal::ContainerFsInodesFree, 30, 5, None),
        ];
        assert_eq!(copies(Layout::ImagesApart), expected);
    }
}
