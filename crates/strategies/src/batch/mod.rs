//! Job and CronJob.

pub mod cron_job;
pub mod job;
mod job_spec;
mod job_status;
mod pod_failure_policy;
mod schedule;
mod success_policy;
