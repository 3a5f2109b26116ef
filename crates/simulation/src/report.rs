//! The result of a rehearsal as data, and as JSON.

use crate::expectations::Violation;
use crate::recorder::{DrainRow, Recorder};
use crate::timeline::{Entry, Subject};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

/// How a rehearsal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// Everything that was expected held, and every budget.
    Held,
    /// A budget or an expectation was broken.
    Broken,
    /// It did not come to its end.
    Unfinished,
}

/// What is real, what is assumed, and what is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Basis {
    /// What was copied.
    pub copied: Vec<String>,
    /// What is the real thing.
    pub real: Vec<String>,
    /// What is assumed, and can be set.
    pub assumed: Vec<String>,
    /// What is not simulated.
    pub missing: Vec<String>,
    /// What a reader should know about this copy.
    pub notes: Vec<String>,
}

/// The availability of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadRow {
    pub workload: Subject,
    pub desired: u64,
    pub minimum: u64,
    /// How long fewer were available than desired, how long without interruption, and how long none was.
    pub below: Duration,
    pub longest: Duration,
    pub none: Duration,
}

/// The endpoints of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRow {
    pub service: Subject,
    pub endpoints: u64,
    pub minimum: u64,
    /// How long it had none, in total and without interruption.
    pub none: Duration,
    pub longest: Duration,
}

/// The healthy pods of a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetRow {
    pub budget: Subject,
    pub required: i64,
    pub minimum: i64,
    pub broken: Duration,
}

/// The result of a rehearsal. Times are since its first step.
#[derive(Clone, Debug)]
pub struct Rehearsal {
    pub verdict: Verdict,
    /// Why it is unfinished.
    pub problem: Option<String>,
    /// Whether it is unfinished because it was stopped.
    pub stopped: bool,
    pub seed: u64,
    /// How much virtual time the steps took.
    pub elapsed: Duration,
    pub basis: Basis,
    pub violations: Vec<Violation>,
    pub workloads: Vec<WorkloadRow>,
    pub services: Vec<ServiceRow>,
    pub budgets: Vec<BudgetRow>,
    pub drains: Vec<DrainRow>,
    pub timeline: Vec<Entry>,
    /// How many entries and violations were not kept.
    pub omitted: usize,
}

impl Rehearsal {
    /// The result of a recording whose steps began at `begun`, and which ended at `ended`.
    pub(crate) fn new(mut recorder: Recorder, begun: Duration, ended: Duration, seed: u64, basis: Basis) -> Self {
        recorder.finish(ended);
        let rel = |at: Duration| at.saturating_sub(begun);
        let violations: Vec<Violation> = recorder
            .violations
            .all()
            .iter()
            .map(|v| Violation { from: rel(v.from), until: v.until.map(rel), ..v.clone() })
            .collect();
        let workloads = recorder.workloads.iter().map(|(subject, w)| WorkloadRow {
            workload: subject.clone(),
            desired: w.level.desired,
            minimum: w.level.minimum,
            below: w.level.below,
            longest: w.level.longest,
            none: w.level.none,
        });
        let served = recorder.services.iter().filter(|(_, s)| s.level.base > 0);
        let services = served.map(|(subject, s)| ServiceRow {
            service: subject.clone(),
            endpoints: s.endpoints,
            minimum: s.minimum,
            none: s.level.below,
            longest: s.level.longest,
        });
        let budgets = recorder.budgets.iter().map(|(subject, b)| BudgetRow {
            budget: subject.clone(),
            required: b.required,
            minimum: b.minimum,
            broken: b.broken,
        });
        let drains = recorder.drains.iter().map(|d| DrainRow {
            began: rel(d.began),
            ended: d.ended.map(rel),
            blocked_by: d.blocked_by.iter().map(|(by, (a, b))| (by.clone(), (rel(*a), rel(*b)))).collect(),
            ..d.clone()
        });
        let (workloads, services) = (workloads.collect(), services.collect());
        let (budgets, drains) = (budgets.collect(), drains.collect());
        let omitted = recorder.timeline.omitted + recorder.violations.omitted;
        let entries = std::mem::take(&mut recorder.timeline).into_entries();
        let timeline = entries.into_iter().map(|e| Entry { at: rel(e.at), until: e.until.map(rel), ..e }).collect();
        let verdict = if violations.is_empty() { Verdict::Held } else { Verdict::Broken };
        let elapsed = rel(ended);
        Self {
            verdict,
            problem: None,
            stopped: false,
            seed,
            elapsed,
            basis,
            violations,
            workloads,
            services,
            budgets,
            drains,
            timeline,
            omitted,
        }
    }

    /// The verdict in words.
    pub fn headline(&self) -> String {
        let n = self.violations.len();
        let violations = if n == 1 { "1 violation".to_owned() } else { format!("{n} violations") };
        match self.verdict {
            Verdict::Held => "Everything that was expected held.".to_owned(),
            Verdict::Broken => format!("What was expected did not hold: {violations}."),
            Verdict::Unfinished => format!("The rehearsal did not come to its end: {violations} until then."),
        }
    }

    /// The result as JSON. Times and durations are in seconds.
    pub fn to_json(&self) -> Value {
        let violation = |v: &Violation| {
            json!({"expectation": v.expectation, "object": v.object, "problem": v.problem, "cause": v.cause,
                "from": seconds(v.from), "until": v.until.map(seconds)})
        };
        let workload = |w: &WorkloadRow| {
            json!({"workload": w.workload, "desired": w.desired, "minimumAvailable": w.minimum,
                "secondsBelow": seconds(w.below), "longestGap": seconds(w.longest), "secondsWithout": seconds(w.none)})
        };
        let service = |s: &ServiceRow| {
            json!({"service": s.service, "endpoints": s.endpoints, "minimumEndpoints": s.minimum,
                "secondsWithout": seconds(s.none), "longestGap": seconds(s.longest)})
        };
        let budget = |b: &BudgetRow| json!({"budget": b.budget, "required": b.required, "minimumHealthy": b.minimum, "secondsBroken": seconds(b.broken)});
        let drain = |d: &DrainRow| {
            let blocked = |(by, (from, until)): (&String, &(Duration, Duration))| json!({"by": by, "from": seconds(*from), "until": seconds(*until)});
            json!({"node": d.node, "began": seconds(d.began), "ended": d.ended.map(seconds), "outcome": d.outcome,
                "blocked": d.blocked_by.iter().map(blocked).collect::<Vec<_>>()})
        };
        let entry = |e: &Entry| {
            let object = (!e.object.name.is_empty()).then(|| e.object.to_string());
            let mut entry = json!({"at": seconds(e.at), "kind": e.kind, "object": object, "text": e.text,
                "cause": e.cause, "step": e.step});
            if let Some(until) = e.until {
                entry["until"] = seconds(until);
            }
            if !e.node.is_empty() {
                entry["node"] = e.node.clone().into();
            }
            if !e.names.is_empty() {
                entry["count"] = e.count.into();
                entry["pods"] = e.names.clone().into();
            }
            entry
        };
        json!({
            "verdict": self.verdict, "problem": self.problem, "seed": self.seed, "elapsed": seconds(self.elapsed),
            "basis": self.basis,
            "violations": self.violations.iter().map(violation).collect::<Vec<_>>(),
            "workloads": self.workloads.iter().map(workload).collect::<Vec<_>>(),
            "services": self.services.iter().map(service).collect::<Vec<_>>(),
            "budgets": self.budgets.iter().map(budget).collect::<Vec<_>>(),
            "drains": self.drains.iter().map(drain).collect::<Vec<_>>(),
            "timeline": self.timeline.iter().map(entry).collect::<Vec<_>>(),
            "omitted": self.omitted,
        })
    }
}

/// A duration in seconds, with thousandths.
fn seconds(time: Duration) -> Value {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    if ms.is_multiple_of(1000) { (ms / 1000).into() } else { (ms as f64 / 1000.0).into() }
}

/// A duration for readers, such as `1h02m`, `3m05s`, `4.2s` or `0s`.
pub(crate) fn duration(time: Duration) -> String {
    let tenths = (time.as_millis() + 50) / 100;
    let (hours, minutes, rest) = (tenths / 36_000, tenths / 600 % 60, tenths % 600);
    match (hours, minutes) {
        (0, 0) if rest % 10 == 0 => format!("{}s", rest / 10),
        (0, 0) => format!("{}.{}s", rest / 10, rest % 10),
        (0, m) => format!("{m}m{:02}s", rest / 10),
        (h, m) => format!("{h}h{m:02}m{:02}s", rest / 10),
    }
}

/// A moment for readers: hours, minutes and seconds since the first step.
pub(crate) fn moment(time: Duration) -> String {
    let tenths = time.as_millis() / 100;
    let (hours, minutes, rest) = (tenths / 36_000, tenths / 600 % 60, tenths % 600);
    format!("{hours}:{minutes:02}:{:02}.{}", rest / 10, rest % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_for_readers() {
        for (ms, short, long) in [
            (0, "0s", "0:00:00.0"),
            (4210, "4.2s", "0:00:04.2"),
            (185_000, "3m05s", "0:03:05.0"),
            (3_723_450, "1h02m03s", "1:02:03.4"),
        ] {
            let time = Duration::from_millis(ms);
            assert_eq!((duration(time), moment(time)), (short.to_owned(), long.to_owned()));
        }
        assert_eq!((seconds(Duration::from_millis(1500)), seconds(Duration::from_secs(2))), (json!(1.5), json!(2)));
    }
}
