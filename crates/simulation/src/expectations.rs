//! What a scenario expects, and what contradicts it.

use crate::name::ObjectName;
use crate::span::Span;
use crate::timeline::Subject;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// How many violations are kept.
const MAX: usize = 1000;

/// Something that must hold from the first step to the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Expectation {
    /// The workload has at least this many available pods at all times. Without a workload: each one.
    Available {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        object: Option<ObjectName>,
        at_least: Amount,
    },
    /// The service has at least this many endpoints at all times. Without a service: each that has endpoints at the start.
    Endpoints {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        object: Option<ObjectName>,
        #[serde(default = "one")]
        at_least: u64,
    },
    /// Rollouts of the workload end in time. Without a workload: all rollouts.
    Rollout {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        object: Option<ObjectName>,
        within: Span,
    },
    /// Each drain ends in time.
    Drain { within: Span },
    /// No pod waits longer than this until its containers run.
    Pending { at_most: Span },
}

fn one() -> u64 {
    1
}

/// A number, or a part of the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Count(u64),
    Percent(u64),
}

impl Amount {
    /// The number of pods, of `total` replicas; parts are rounded up.
    pub(crate) fn of_total(self, total: u64) -> u64 {
        match self {
            Self::Count(n) => n,
            Self::Percent(p) => total.saturating_mul(p).div_ceil(100),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(n) => write!(f, "{n}"),
            Self::Percent(p) => write!(f, "{p}%"),
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(n) => s.serialize_u64(*n),
            Self::Percent(_) => s.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let value = meta::Value::deserialize(d)?;
        let percent = value.as_str().and_then(|t| t.strip_suffix('%')).and_then(|p| p.trim_end().parse().ok());
        match (value.as_u64(), percent) {
            (Some(n), _) => Ok(Self::Count(n)),
            (_, Some(p @ 0..=100)) => Ok(Self::Percent(p)),
            _ => Err(D::Error::custom(format!("{value} is neither a number of pods nor a percentage such as 90%"))),
        }
    }
}

impl Expectation {
    /// The field and the problem of a value that makes no sense.
    pub(crate) fn problem(&self) -> Option<(String, String)> {
        let wrong = |field: &str, problem: String| Some((field.to_owned(), problem));
        match self {
            Self::Available { object: Some(o), .. } if !crate::workload::KINDS.iter().any(|(_, k)| *k == o.kind) => {
                wrong("available.object", format!("{} has no available pods", o.kind))
            }
            Self::Endpoints { object: Some(o), .. } if o.kind != "Service" => {
                wrong("endpoints.object", format!("{} has no endpoints", o.kind))
            }
            Self::Rollout { object: Some(o), .. }
                if !matches!(&*o.kind, "Deployment" | "StatefulSet" | "DaemonSet") =>
            {
                wrong("rollout.object", format!("{} has no rollouts", o.kind))
            }
            _ => None,
        }
    }

    /// The object that must exist.
    pub(crate) fn object(&self) -> Option<(&'static str, &ObjectName)> {
        match self {
            Self::Available { object, .. } => object.as_ref().map(|o| ("available.object", o)),
            Self::Endpoints { object, .. } => object.as_ref().map(|o| ("endpoints.object", o)),
            Self::Rollout { object, .. } => object.as_ref().map(|o| ("rollout.object", o)),
            Self::Drain { .. } | Self::Pending { .. } => None,
        }
    }
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |o: &Option<ObjectName>, all: &str| o.as_ref().map_or_else(|| all.to_owned(), ToString::to_string);
        match self {
            Self::Available { object, at_least } => {
                write!(f, "{} has at least {at_least} available pods", named(object, "each workload"))
            }
            Self::Endpoints { object, at_least } => {
                write!(f, "{} has at least {at_least} endpoints", named(object, "each service"))
            }
            Self::Rollout { object, within } => {
                write!(f, "rollouts of {} end within {within}", named(object, "each workload"))
            }
            Self::Drain { within } => write!(f, "drains end within {within}"),
            Self::Pending { at_most } => write!(f, "no pod is pending for more than {at_most}"),
        }
    }
}

/// Something that contradicts an expectation or a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What was expected.
    pub expectation: String,
    /// The object that contradicts it.
    pub object: String,
    /// How.
    pub problem: String,
    /// Why, if that is known.
    pub cause: Option<String>,
    pub from: Duration,
    /// None: until the end.
    pub until: Option<Duration>,
}

/// All violations, each open until it ends.
#[derive(Debug, Default)]
pub(crate) struct Violations {
    all: Vec<Violation>,
    /// By expectation and object: the index, and how much is missing at the worst moment.
    open: BTreeMap<(String, String), (usize, u64)>,
    /// How many were not kept.
    pub omitted: usize,
}

impl Violations {
    /// Records that an expectation holds for an object, or how much is missing and what the problem is. The problem of the worst moment stays.
    pub fn update(
        &mut self,
        at: Duration,
        expectation: String,
        object: &Subject,
        shortage: Option<(u64, String)>,
        cause: Option<&String>,
    ) {
        let key = (expectation, object.to_string());
        match (shortage, self.open.get_mut(&key)) {
            (None, Some((i, _))) => {
                self.all[*i].until = Some(at);
                self.open.remove(&key);
            }
            (Some((missing, problem)), Some((i, worst))) if missing > *worst => {
                *worst = missing;
                self.all[*i].problem = problem;
            }
            (Some((missing, problem)), None) => {
                if let Some(i) = self.push(at, None, &key.0, key.1.clone(), problem, cause.cloned()) {
                    self.open.insert(key, (i, missing));
                }
            }
            _ => {}
        }
    }

    /// Records something that is over.
    pub fn add(
        &mut self,
        from: Duration,
        until: Duration,
        expectation: &str,
        object: String,
        problem: String,
        cause: Option<String>,
    ) {
        self.push(from, Some(until), expectation, object, problem, cause);
    }

    fn push(
        &mut self,
        from: Duration,
        until: Option<Duration>,
        expectation: &str,
        object: String,
        problem: String,
        cause: Option<String>,
    ) -> Option<usize> {
        if self.all.len() >= MAX {
            self.omitted += 1;
            return None;
        }
        let expectation = expectation.to_owned();
        self.all.push(Violation { expectation, object, problem, cause, from, until });
        Some(self.all.len() - 1)
    }

    pub fn all(&self) -> &[Violation] {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn amounts_are_numbers_and_percentages() {
        for (value, total, expected) in
            [(json!(3), 10, Some(3)), (json!("90%"), 3, Some(3)), (json!("50%"), 5, Some(3)), (json!("0%"), 5, Some(0))]
        {
            assert_eq!(serde_json::from_value::<Amount>(value).ok().map(|a| a.of_total(total)), expected);
        }
        for value in [json!(-1), json!("101%"), json!("3"), json!(1.5), json!("-5%"), json!(null)] {
            assert!(serde_json::from_value::<Amount>(value.clone()).is_err(), "{value}");
        }
    }

    #[test]
    fn violations_have_a_beginning_and_an_end() {
        let mut v = Violations::default();
        let web = Subject::new("Deployment", "default", "web");
        let at = Duration::from_secs;
        let missing = |n: u64| Some((n, format!("{n} missing")));
        for (when, shortage) in
            [(1, None), (2, missing(1)), (3, missing(2)), (4, missing(1)), (5, None), (6, missing(3))]
        {
            v.update(at(when), "e".into(), &web, shortage, Some(&"drain".into()));
        }
        let found: Vec<_> = v.all().iter().map(|v| (v.from, v.until, &*v.problem)).collect();
        assert_eq!(found, [(at(2), Some(at(5)), "2 missing"), (at(6), None, "3 missing")]);
    }
}
