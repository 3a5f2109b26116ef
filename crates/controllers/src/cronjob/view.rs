//! The fields of a CronJob that its controller reads.

use client::informer::or_default;
use jiff::Timestamp;
use meta::{Map, Value};
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CronView {
    pub spec: Spec,
    pub status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    pub schedule: String,
    pub time_zone: Option<String>,
    pub starting_deadline_seconds: Option<i64>,
    pub concurrency_policy: String,
    #[serde(deserialize_with = "or_default")]
    pub suspend: bool,
    pub successful_jobs_history_limit: Option<usize>,
    pub failed_jobs_history_limit: Option<usize>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    #[serde(deserialize_with = "or_default")]
    pub active: Vec<Reference>,
    pub last_schedule_time: Option<Timestamp>,
    pub last_successful_time: Option<Timestamp>,
}

/// A reference to a job, with all its members.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Reference(pub Map<String, Value>);

impl Reference {
    pub fn uid(&self) -> &str {
        self.member("uid")
    }

    pub fn name(&self) -> &str {
        self.member("name")
    }

    fn member(&self, key: &str) -> &str {
        self.0.get(key).and_then(Value::as_str).unwrap_or_default()
    }
}

impl Status {
    pub fn has_active(&self, name: &str) -> bool {
        self.active.iter().any(|j| j.name() == name)
    }

    pub fn is_active(&self, uid: &str) -> bool {
        self.active.iter().any(|j| j.uid() == uid)
    }

    pub fn remove_active(&mut self, uid: &str) {
        self.active.retain(|j| j.uid() != uid);
    }

    /// Writes the members into the status of an object.
    pub fn write(&self, status: &mut Map<String, Value>) {
        let time = |t: Option<Timestamp>| t.map(|t| Value::from(meta::time::format(t)));
        let active: Vec<Value> = self.active.iter().map(|j| Value::Object(j.0.clone())).collect();
        for (key, value) in [
            ("active", (!active.is_empty()).then(|| active.into())),
            ("lastScheduleTime", time(self.last_schedule_time)),
            ("lastSuccessfulTime", time(self.last_successful_time)),
        ] {
            match value {
                Some(v) => drop(status.insert(key.to_owned(), v)),
                None => drop(status.remove(key)),
            }
        }
    }
}
