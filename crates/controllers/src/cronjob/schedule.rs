//! Missed and next times of a CronJob (upstream `cronjob/utils.go`).

use cron::Schedule;
use jiff::{SignedDuration, Timestamp};
use std::time::Duration;

/// A job is started this long after its time, so that small corrections of the clock do not skip it.
const DELTA: SignedDuration = SignedDuration::from_millis(100);
/// More missed times than this are reported.
const MANY: i64 = 100;

/// What missed times depend on.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub created: Timestamp,
    pub last_schedule: Option<Timestamp>,
    pub starting_deadline: Option<i64>,
    pub now: Timestamp,
}

/// Times that are due and have not been handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The time from which on times were searched.
    since: Timestamp,
    /// The most recent due time. None also if it cannot be found among many irregular ones.
    pub time: Option<Timestamp>,
    missed: i64,
}

impl Due {
    pub fn are_many(&self) -> bool {
        self.missed > MANY
    }
}

/// Finds the most recent due time that has not been handled; older ones than the starting deadline are ignored. The number of missed times
/// is an estimate from the interval between the first two. Fails if the schedule has no two times.
pub fn due(times: &Times, schedule: &Schedule) -> Result<Due, String> {
    let since = times.last_schedule.unwrap_or(times.created);
    let deadline = times.starting_deadline.map(|seconds| meta::time::plus(times.now, seconds.saturating_neg()));
    most_recent(deadline.map_or(since, |d| d.max(since)), times.now, schedule)
}

fn most_recent(since: Timestamp, now: Timestamp, schedule: &Schedule) -> Result<Due, String> {
    let found = |time: Option<Timestamp>, missed: i64| Ok(Due { since, time, missed });
    let no_interval = || "time difference between two schedules is less than 1 second".to_owned();
    let first = schedule.next(since).ok_or_else(no_interval)?;
    if now < first {
        return found(None, 0);
    }
    let second = schedule.next(first).ok_or_else(no_interval)?;
    if now < second {
        return found(Some(first), 0);
    }
    let interval = second.duration_since(first).as_secs();
    if interval < 1 {
        return Err(no_interval());
    }
    let missed = now.duration_since(first).as_secs() / interval + 1;
    // One interval earlier than estimated: intervals may differ.
    let start = meta::time::plus(first, (missed - 2).saturating_mul(interval));
    let times = std::iter::successors(schedule.next(start), |t| schedule.next(*t));
    found(times.take_while(|t| *t <= now).last(), missed)
}

/// How long until the schedule is due next.
pub fn until_next(times: &Times, schedule: &Schedule) -> Option<Duration> {
    let since = times.last_schedule.unwrap_or(times.created);
    let from = match most_recent(since, times.now, schedule) {
        Ok(Due { time: Some(time), .. }) => time,
        Ok(Due { missed: 0, since, .. }) => since,
        Ok(_) | Err(_) => times.now,
    };
    let next = schedule.next(from)?.saturating_add(DELTA).ok()?;
    Some(meta::time::left(times.now, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        let text = if text.len() == 5 { format!("2026-01-05T{text}:00Z") } else { text.to_owned() };
        text.parse().unwrap()
    }

    fn times(created: &str, last: Option<&str>, deadline: Option<i64>, now: &str) -> Times {
        Times { created: time(created), last_schedule: last.map(time), starting_deadline: deadline, now: time(now) }
    }

    /// Clauses: C13.missed, C13.startingDeadlineSeconds
    #[test]
    fn the_most_recent_missed_time_is_found() {
        let check = |schedule: &str, times: Times, expect: Option<&str>, missed: i64| {
            let found = due(&times, &Schedule::parse(schedule).unwrap()).unwrap();
            assert_eq!((found.time, found.missed), (expect.map(time), missed), "{schedule} {times:?}");
        };
        check("0 * * * *", times("10:10", None, None, "10:50"), None, 0);
        check("0 * * * *", times("10:10", None, None, "11:00"), Some("11:00"), 0);
        check("0 * * * *", times("10:10", Some("11:00"), None, "11:30"), None, 0);
        check("0 * * * *", times("10:10", Some("11:00"), None, "14:30"), Some("14:00"), 3);
        check("30 6-16/4 * * 1-5", times("00:00", None, None, "15:00"), Some("14:30"), 3);
        check("@every 1h", times("10:10", None, None, "13:30"), Some("13:10"), 3);
        // The manual's example: down from 08:29 to 10:21.
        check("* * * * *", times("08:00", Some("08:29"), None, "10:21"), Some("10:21"), 112);
        check("* * * * *", times("08:00", Some("08:29"), Some(200), "10:21"), Some("10:21"), 4);
        check("* * * * *", times("08:00", Some("08:29"), Some(1 << 40), "10:21"), Some("10:21"), 112);
        // The interval between the first two says nothing about the others.
        check("0,1 0 5 1 *", times("2025-01-01T00:00:00Z", None, None, "2025-07-01T00:00:00Z"), None, 254_881);
        let many = due(&times("08:00", Some("08:29"), None, "10:21"), &Schedule::parse("* * * * *").unwrap()).unwrap();
        assert!(many.are_many());
        let never = due(&times("08:00", None, None, "10:21"), &Schedule::parse("59 23 31 2 *").unwrap());
        assert_eq!(never, Err("time difference between two schedules is less than 1 second".into()));
    }

    #[test]
    fn the_next_time_follows_the_most_recent() {
        let check = |schedule: &str, times: Times, expect: Option<u64>| {
            let next = until_next(&times, &Schedule::parse(schedule).unwrap());
            assert_eq!(
                next,
                expect.map(|s| Duration::from_secs(s) + Duration::from_millis(100)),
                "{schedule} {times:?}"
            );
        };
        check("0 * * * *", times("10:10", None, None, "10:50"), Some(600));
        check("0 * * * *", times("10:10", None, None, "11:00"), Some(3600));
        check("0 * * * *", times("10:10", None, None, "15:30"), Some(1800));
        check("@every 1h", times("10:10", None, None, "13:30"), Some(2400));
        check("0,1 0 5 1 *", times("2025-01-01T00:00:00Z", None, None, "2026-01-04T23:59:00Z"), Some(60));
        check("59 23 31 2 *", times("08:00", None, None, "10:21"), None);
    }
}
