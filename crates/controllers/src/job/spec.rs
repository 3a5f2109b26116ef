//! The fields of a Job that its controller reads and writes.

use client::informer::or_default;
use jiff::Timestamp;
use meta::{Map, Value};
use serde::{Deserialize, Serialize};

/// The value of `spec.managedBy` for this controller.
pub const CONTROLLER: &str = "kubernetes.io/job-controller";

/// `spec`, of whose template only the restart policy is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    pub parallelism: Option<i64>,
    pub completions: Option<i64>,
    pub active_deadline_seconds: Option<i64>,
    pub pod_failure_policy: Option<PodFailurePolicy>,
    pub success_policy: Option<SuccessPolicy>,
    pub backoff_limit: Option<i64>,
    pub backoff_limit_per_index: Option<i64>,
    pub max_failed_indexes: Option<i64>,
    pub selector: Option<Value>,
    pub template: Template,
    pub completion_mode: Option<String>,
    pub suspend: Option<bool>,
    pub pod_replacement_policy: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Template {
    pub spec: TemplateSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TemplateSpec {
    pub restart_policy: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodFailurePolicy {
    #[serde(deserialize_with = "or_default")]
    pub rules: Vec<FailureRule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailureRule {
    pub action: String,
    pub on_exit_codes: Option<OnExitCodes>,
    #[serde(deserialize_with = "or_default")]
    pub on_pod_conditions: Vec<OnPodCondition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OnExitCodes {
    pub container_name: Option<String>,
    pub operator: String,
    #[serde(deserialize_with = "or_default")]
    pub values: Vec<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct OnPodCondition {
    pub r#type: String,
    pub status: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SuccessPolicy {
    #[serde(deserialize_with = "or_default")]
    pub rules: Vec<SuccessRule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SuccessRule {
    pub succeeded_indexes: Option<String>,
    pub succeeded_count: Option<i64>,
}

impl Spec {
    pub fn is_indexed(&self) -> bool {
        self.completion_mode.as_deref() == Some("Indexed")
    }

    pub fn is_suspended(&self) -> bool {
        self.suspend == Some(true)
    }

    pub fn parallelism(&self) -> i64 {
        self.parallelism.unwrap_or(1)
    }

    /// The completions of an indexed job.
    pub fn indexes(&self) -> i64 {
        self.completions.unwrap_or(0)
    }

    pub fn backoff_limit(&self) -> i64 {
        self.backoff_limit.unwrap_or(6)
    }

    /// Whether pods are replaced when they have failed, not already when they are being deleted.
    pub fn only_replaces_failed(&self) -> bool {
        self.pod_replacement_policy.as_deref() == Some("Failed") || self.pod_failure_policy.is_some()
    }
}

/// `status`. Members that this controller does not know are kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Option::is_none", with = "whole_seconds")]
    pub start_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none", with = "whole_seconds")]
    pub completion_time: Option<Timestamp>,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_zero")]
    pub active: i64,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_zero")]
    pub succeeded: i64,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_zero")]
    pub failed: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<i64>,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub completed_indexes: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_indexes: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub uncounted_terminated_pods: Uncounted,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<i64>,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// Pods that have terminated and are not in the counters yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Uncounted {
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub succeeded: Vec<String>,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    pub r#type: String,
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none", with = "whole_seconds")]
    pub last_probe_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none", with = "whole_seconds")]
    pub last_transition_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Condition {
    /// A condition that is true.
    pub fn new(kind: &str, reason: &str, message: &str, now: Timestamp) -> Self {
        Self {
            r#type: kind.into(),
            status: "True".into(),
            last_probe_time: Some(now),
            last_transition_time: Some(now),
            reason: reason.into(),
            message: message.into(),
        }
    }

    pub fn is(&self, kind: &str) -> bool {
        self.r#type == kind
    }
}

impl Status {
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.is(kind))
    }

    /// The condition, if it is true.
    pub fn true_condition(&self, kind: &str) -> Option<&Condition> {
        self.condition(kind).filter(|c| c.status == "True")
    }

    /// Sets a condition. One that is missing is not added as false. Returns whether anything changed.
    pub fn set_condition(&mut self, condition: Condition) -> bool {
        match self.conditions.iter_mut().find(|c| c.is(&condition.r#type)) {
            Some(held) => {
                let same = |c: &Condition| (c.status.clone(), c.reason.clone(), c.message.clone());
                let changed = same(held) != same(&condition);
                if changed {
                    *held = condition;
                }
                changed
            }
            None if condition.status == "False" => false,
            None => {
                self.conditions.push(condition);
                true
            }
        }
    }
}

fn is_zero(n: &i64) -> bool {
    *n == 0
}

/// Times as the API writes them. One that cannot be read is missing.
mod whole_seconds {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(t: &Option<Timestamp>, s: S) -> Result<S::Ok, S::Error> {
        t.map(meta::time::format).serialize(s)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Timestamp>, D::Error> {
        Ok(Option::<String>::deserialize(d)?.as_deref().and_then(meta::time::parse))
    }
}
