//! The status of an autoscaler. Pure: data to data.

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus, MetricStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub const ABLE_TO_SCALE: &str = "AbleToScale";
pub const SCALING_ACTIVE: &str = "ScalingActive";
pub const SCALING_LIMITED: &str = "ScalingLimited";
/// Kept by servers that scale to zero, which this version does not by default.
pub const SCALED_TO_ZERO: &str = "ScaledToZero";

/// A status while it is computed.
pub struct Draft {
    pub status: HorizontalPodAutoscalerStatus,
    pub now: Timestamp,
}

impl Draft {
    /// Sets a condition. Its time changes with its status only.
    pub fn condition(&mut self, kind: &str, holds: bool, reason: &str, message: impl Into<String>) {
        let status = if holds { "True" } else { "False" };
        let (reason, message) = (Some(reason.to_owned()), Some(message.into()));
        let all = self.status.conditions.get_or_insert_default();
        match all.iter_mut().find(|c| c.type_ == kind) {
            Some(c) => {
                if c.status != status {
                    c.last_transition_time = Some(Time(self.now));
                }
                c.status = status.into();
                (c.reason, c.message) = (reason, message);
            }
            None => all.push(HorizontalPodAutoscalerCondition {
                type_: kind.into(),
                status: status.into(),
                last_transition_time: Some(Time(self.now)),
                reason,
                message,
            }),
        }
    }

    pub fn remove_condition(&mut self, kind: &str) {
        if let Some(all) = &mut self.status.conditions {
            all.retain(|c| c.type_ != kind);
        }
    }

    /// Sets what was found. Zero replicas are absent. Upstream's controller does not set `observedGeneration` either.
    pub fn observe(&mut self, current: i64, metrics: Vec<MetricStatus>) {
        self.status.observed_generation = None;
        self.status.current_replicas = i32::try_from(current).ok().filter(|n| *n != 0);
        self.status.current_metrics = (!metrics.is_empty()).then_some(metrics);
    }

    /// Sets what was decided.
    pub fn decide(&mut self, desired: i64, rescaled: bool) {
        self.status.desired_replicas = i32::try_from(desired).unwrap_or(i32::MAX);
        if rescaled {
            self.status.last_scale_time = Some(Time(self.now));
        }
    }
}
