//! Whether a CronJob starts a job now, and when to look again.

use super::schedule::{Times, due, until_next};
use super::view::CronView;
use client::Severity;
use cron::Schedule;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::time::Duration;

/// An event to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event(pub Severity, pub &'static str, pub String);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub events: Vec<Event>,
    /// The time of the job to start.
    pub start: Option<Timestamp>,
    /// When to look again.
    pub again: Option<Duration>,
}

/// The schedule of a CronJob in its time zone. An unknown zone is ignored.
pub fn parse(cron_job: &CronView) -> Result<Schedule, String> {
    let schedule = Schedule::parse(&cron_job.spec.schedule)?;
    let zone = cron_job.spec.time_zone.as_deref().filter(|_| !has_zone(cron_job));
    Ok(match zone.map(cron::time_zone) {
        Some(Ok(zone)) => schedule.in_zone(zone),
        _ => schedule,
    })
}

fn has_zone(cron_job: &CronView) -> bool {
    cron_job.spec.schedule.contains("TZ")
}

/// How long until a changed schedule is due.
pub fn after_change(cron_job: &CronView, created: Timestamp, now: Timestamp) -> Result<Option<Duration>, Event> {
    let unparseable = |_| {
        let message = format!("unparseable schedule for cronjob: {}", cron_job.spec.schedule);
        Event(Severity::Warning, "UnParseableCronJobSchedule", message)
    };
    Ok(until_next(&times(cron_job, created, now), &parse(cron_job).map_err(unparseable)?))
}

fn times(cron_job: &CronView, created: Timestamp, now: Timestamp) -> Times {
    Times {
        created,
        last_schedule: cron_job.status.last_schedule_time,
        starting_deadline: cron_job.spec.starting_deadline_seconds,
        now,
    }
}

/// Decides on a CronJob that is not being deleted, whose list of active jobs is current.
pub fn decide(name: &str, cron_job: &CronView, created: Timestamp, now: Timestamp) -> Decision {
    let (spec, status) = (&cron_job.spec, &cron_job.status);
    let mut d = Decision::default();
    let mut event = |severity, reason, message: String| d.events.push(Event(severity, reason, message));
    if let Some(zone) = &spec.time_zone
        && let Err(why) = cron::time_zone(zone)
    {
        event(Severity::Warning, "UnknownTimeZone", format!("invalid timeZone: {zone:?}: {why}"));
        return d;
    }
    if spec.suspend {
        return d;
    }
    if has_zone(cron_job) {
        let message = format!(
            "CRON_TZ or TZ used in schedule {:?} is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
            spec.schedule
        );
        event(Severity::Warning, "UnsupportedSchedule", message);
    }
    let schedule = match parse(cron_job) {
        Ok(schedule) => schedule,
        Err(why) => {
            let message = format!("unparseable schedule: {:?} : {why}", spec.schedule);
            event(Severity::Warning, "UnparseableSchedule", message);
            return d;
        }
    };
    let times = times(cron_job, created, now);
    let due = match due(&times, &schedule) {
        Ok(due) => due,
        Err(why) => {
            event(Severity::Warning, "InvalidSchedule", format!("invalid schedule: {} : {why}", spec.schedule));
            return d;
        }
    };
    if due.time.is_some() && due.are_many() {
        let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        event(Severity::Warning, "TooManyMissedTimes", message.to_owned());
    }
    let deadline = |t: Timestamp| spec.starting_deadline_seconds.map(|seconds| meta::time::plus(t, seconds));
    match due.time {
        None => {}
        Some(t) if deadline(t).is_some_and(|last| last < now) => {
            let time = t.strftime("%a, %d %b %Y %H:%M:%S +0000");
            event(Severity::Warning, "MissSchedule", format!("Missed scheduled time to start a job: {time}"));
        }
        Some(t) if status.last_schedule_time == Some(t) || status.has_active(&job_name(name, t)) => {}
        Some(_) if spec.concurrency_policy == "Forbid" && !status.active.is_empty() => {
            let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
            event(Severity::Normal, "JobAlreadyActive", message.to_owned());
        }
        Some(t) => d.start = Some(t),
    }
    d.again = until_next(&times, &schedule);
    d
}

/// The name of the job for a time, which is the same however often it is created.
pub fn job_name(cron_job: &str, time: Timestamp) -> String {
    format!("{cron_job}-{}", time.as_second() / 60)
}

/// The annotation with the time of a job, in the time zone of its CronJob.
pub fn scheduled_timestamp(cron_job: &CronView, time: Timestamp) -> String {
    let zone = cron_job.spec.time_zone.as_deref().and_then(|zone| cron::time_zone(zone).ok()).unwrap_or(TimeZone::UTC);
    let local = time.to_zoned(zone);
    match local.offset().is_zero() {
        true => meta::time::format(time),
        false => local.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn time(text: &str) -> Timestamp {
        format!("2026-01-05T{text}Z").parse().unwrap()
    }

    /// The decision at a time of a CronJob `c` that was created at 10:10: the minutes since midnight of the time whose job is started, the
    /// reasons of the events, and the seconds until the next time.
    fn check(spec: Value, status: Value, now: &str, start: Option<&str>, reasons: &[&str], again: Option<f64>) {
        let title = format!("{spec} {status} {now}");
        let view: CronView = serde_json::from_value(json!({"spec": spec, "status": status})).unwrap();
        let d = decide("c", &view, time("10:10:00"), time(now));
        let got: Vec<_> = d.events.iter().map(|e| e.1).collect();
        assert_eq!(
            (d.start, got, d.again.map(|d| d.as_secs_f64())),
            (start.map(time), reasons.to_vec(), again),
            "{title}"
        );
    }

    fn hourly(extra: Value) -> Value {
        let mut spec = json!({"schedule": "0 * * * *", "concurrencyPolicy": "Allow"});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        spec
    }

    /// Clauses: C13.concurrencyPolicy, C13.suspend, C13.missed, C13.startingDeadlineSeconds
    #[test]
    fn a_job_is_started_when_it_is_due() {
        let none = || json!({});
        let last = |t: &str| json!({"lastScheduleTime": format!("2026-01-05T{t}Z")});
        check(hourly(none()), none(), "10:59:59", None, &[], Some(1.1));
        check(hourly(none()), none(), "11:00:00", Some("11:00:00"), &[], Some(3600.1));
        check(hourly(none()), none(), "11:00:00.1", Some("11:00:00"), &[], Some(3600.0));
        check(hourly(none()), last("11:00:00"), "11:00:01", None, &[], Some(3599.1));
        check(hourly(none()), last("11:00:00"), "14:30:00", Some("14:00:00"), &[], Some(1800.1));
        check(hourly(json!({"suspend": true})), none(), "11:00:00", None, &[], None);
        let deadline = |s: i64| hourly(json!({"startingDeadlineSeconds": s}));
        check(deadline(30), none(), "11:00:30", None, &[], Some(3570.1));
        check(deadline(31), none(), "11:00:30", Some("11:00:00"), &[], Some(3570.1));
        let active = |name: &str| json!({"active": [{"name": name, "uid": "u"}]});
        check(hourly(none()), active("other"), "11:00:00", Some("11:00:00"), &[], Some(3600.1));
        let policy = |p: &str| hourly(json!({"concurrencyPolicy": p}));
        check(policy("Forbid"), active("other"), "11:00:00", None, &["JobAlreadyActive"], Some(3600.1));
        check(policy("Forbid"), none(), "11:00:00", Some("11:00:00"), &[], Some(3600.1));
        check(policy("Replace"), active("other"), "11:00:00", Some("11:00:00"), &[], Some(3600.1));
        let same = job_name("c", time("11:00:00"));
        assert_eq!(same, "c-29460180");
        check(hourly(none()), active(&same), "11:00:00", None, &[], Some(3600.1));
        let minutely = json!({"schedule": "* * * * *"});
        check(minutely, none(), "12:10:00", Some("12:10:00"), &["TooManyMissedTimes"], Some(60.1));
    }

    /// Clauses: C13.time-zone, C13.syntax
    #[test]
    fn schedules_that_cannot_be_followed_are_reported() {
        let spec = |schedule: &str, zone: Value| json!({"schedule": schedule, "timeZone": zone});
        check(spec("often", json!(null)), json!({}), "11:00:00", None, &["UnparseableSchedule"], None);
        check(spec("59 23 31 2 *", json!(null)), json!({}), "11:00:00", None, &["InvalidSchedule"], None);
        check(spec("0 * * * *", json!("No/Where")), json!({}), "11:00:00", None, &["UnknownTimeZone"], None);
        check(spec("0 20 * * *", json!("Asia/Tokyo")), json!({}), "11:00:00", Some("11:00:00"), &[], Some(86400.1));
        let zoned = spec("TZ=Asia/Tokyo 0 20 * * *", json!(null));
        check(zoned, json!({}), "11:00:00", Some("11:00:00"), &["UnsupportedSchedule"], Some(86400.1));
    }

    #[test]
    fn the_timestamp_is_in_the_zone_of_the_cron_job() {
        for (zone, expect) in [
            (json!(null), "2026-01-05T11:00:00Z"),
            (json!("Europe/London"), "2026-01-05T11:00:00Z"),
            (json!("Asia/Kolkata"), "2026-01-05T16:30:00+05:30"),
        ] {
            let view: CronView = serde_json::from_value(json!({"spec": {"timeZone": zone}})).unwrap();
            assert_eq!(scheduled_timestamp(&view, time("11:00:00")), expect);
        }
    }
}
