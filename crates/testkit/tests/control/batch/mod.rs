//! Jobs, CronJobs and the TTL of finished jobs.

mod crashes;
mod cronjobs;
mod jobs;
mod lab;
mod ownership;
mod policies;
mod ttl;
