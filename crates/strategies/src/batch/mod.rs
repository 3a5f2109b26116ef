//! `batch`.

mod cron_job;
mod job;
mod job_spec;
mod job_status;
mod pod_failure_policy;
mod success_policy;

kinds! { cron_job, job }
