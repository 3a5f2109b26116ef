//! The fields of jobs that controllers read from the cache.

use super::spec::CONTROLLER;
use crate::views::{Condition, Selector};
use client::Meta;
use client::informer::or_default;
use jiff::Timestamp;
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobView {
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    selector: Selector,
    managed_by: Option<Box<str>>,
    ttl_seconds_after_finished: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(deserialize_with = "or_default")]
    conditions: Vec<Condition>,
    start_time: Option<Timestamp>,
    completion_time: Option<Timestamp>,
}

impl JobView {
    /// The condition `Complete` or `Failed`, if one is true.
    pub fn finished(&self) -> Option<&Condition> {
        let ends = |kind: &str| matches!(kind, "Complete" | "Failed");
        self.status.conditions.iter().find(|c| ends(&c.r#type) && &*c.status == "True")
    }

    pub fn is_finished(&self) -> bool {
        self.finished().is_some()
    }

    pub fn has_succeeded(&self) -> bool {
        self.finished().is_some_and(|c| &*c.r#type == "Complete")
    }

    pub fn start_time(&self) -> Option<Timestamp> {
        self.status.start_time
    }

    pub fn completion_time(&self) -> Option<Timestamp> {
        self.status.completion_time
    }

    pub fn ttl_seconds(&self) -> Option<i64> {
        self.spec.ttl_seconds_after_finished
    }

    /// Whether another controller runs the job.
    /// The other controller that the job names.
    pub fn other_manager(&self) -> Option<&str> {
        self.spec.managed_by.as_deref().filter(|name| *name != CONTROLLER)
    }

    pub fn is_managed_by_other(&self) -> bool {
        self.other_manager().is_some()
    }

    pub fn selects(&self, object: &Meta) -> bool {
        self.spec.selector.selects(object)
    }
}
